"""A route that refuses appears in the middle of an AllReduce."""

from __future__ import annotations

from lab.fault import LONG, Fault, Strike

FAULT = Fault(
    breaks=lambda lab: lab.data_network(),
    inventory=lambda lab: lab.over_data_network(),
    strike=Strike(lambda lab: lab["node-b"].ip("route add blackhole 10.44.0.1/32")),
    arguments=LONG,
    stage="full",
    cause="no-route",
    nodes="node-b",
    says=(r"blackhole 10\.44\.0\.1",),
    within_s=8,
)
