"""A node with a leftover `blackhole` route, and without the tools that would show it."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    host = lab["node-b"]
    host.ip(f"route add blackhole {lab['node-a'].address}/32")
    for tool in ("ip", "ss"):
        host.remove_tool(tool)


FAULT = Fault(
    breaks=breaks,
    stage="ping",
    cause="no-route",
    nodes="node-b",
    says=(r"the kernel of node-b itself refuses to send", r"EINVAL", r"/proc/net/route"),
    within_s=8,
)
