"""One node uses an interface of another network, which the others have no way to."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab["node-b"].ip(
        *("link add mgmt0 type veth peer name mgmt1", "addr add 10.45.0.2/24 dev mgmt0"),
        *("link set mgmt0 up", "link set mgmt1 up"),
    )


FAULT = Fault(
    breaks=breaks,
    inventory=lambda lab: {"nodes": {"node-b": {"env": {"GLOO_SOCKET_IFNAME": "mgmt0"}}}},
    stage="ping",
    cause="interface-wrong",
    nodes="node-b",
    says=(r"mgmt0", r"10\.45\.0\.2", r"eth0"),
    within_s=6,
)
