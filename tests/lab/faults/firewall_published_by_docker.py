"""Docker publishes the rendezvous port of a container that is gone: packets for it are sent to that container."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault

RULES = (
    "-N DOCKER",
    "-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER",
    "-A DOCKER ! -i docker0 -p tcp -m tcp --dport 29500 -j DNAT --to-destination 172.17.0.2:29500",
)


def publish(lab: Lab) -> None:
    for rule in RULES:
        lab["node-a"].run(f"iptables -t nat {rule}", "root")


FAULT = Fault(
    breaks=publish,
    stage="firewall",
    cause="firewall-drop",
    nodes="node-a",
    says=(r"elsewhere: iptables chain DOCKER of table nat", r"DNAT"),
    mends=True,
    within_s=9,
)
