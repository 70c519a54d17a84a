"""No fault: an interface has another address before the one of the inventory, and the one that gloo does not announce
is the one that is dialled. It is warned of."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.data_network()
    lab["node-b"].ip("addr flush dev eth1", "addr add 192.168.250.9/24 dev eth1", "addr add 10.44.0.2/24 dev eth1")


FAULT = Fault(
    breaks=breaks,
    inventory=lambda lab: lab.over_data_network(),
    cause=None,
    says=(r"eth1 carries 192\.168\.250\.9 before 10\.44\.0\.2",),
    within_s=10,
)
