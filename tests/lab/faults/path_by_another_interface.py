"""No fault: what one node sends leaves by the interface of the logins, where the other one takes it as well. It is warned
of."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.data_network()
    lab["node-b"].ip(
        "route del 10.44.0.0/24 dev eth1",
        "addr add 10.44.0.77/24 dev eth0 noprefixroute",
        "route add 10.44.0.0/24 dev eth0 metric 50 src 10.44.0.77",
        "route add 10.44.0.0/24 dev eth1 metric 100 src 10.44.0.2",
    )


FAULT = Fault(
    breaks=breaks,
    inventory=lambda lab: lab.over_data_network(),
    cause=None,
    says=(r"what it sends to node-a leaves by eth0, not by eth1",),
    within_s=10,
)
