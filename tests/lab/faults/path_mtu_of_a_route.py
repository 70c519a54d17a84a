"""No fault: the route itself says that less than the interface's MTU gets through, and TCP adapts."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].ip(f"route add {lab['node-a'].address}/32 dev eth0 mtu 1400"),
    cause=None,
    says=(r"1400",),
    within_s=8,
)
