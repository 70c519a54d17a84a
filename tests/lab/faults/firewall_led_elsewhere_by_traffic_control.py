"""A filter of tc leads what a node sends to the rendezvous port out of another interface, where it is lost."""

from __future__ import annotations

from lab.fault import Fault

MATCH = "u32 match ip protocol 6 0xff match ip dport 29500 0xffff"

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].run(
        "tc qdisc add dev eth0 clsact && "
        f"tc filter add dev eth0 egress protocol ip {MATCH} action mirred egress redirect dev lo",
        "root",
    ),
    stage="firewall",
    cause="firewall-drop",
    nodes="node-b",
    says=(r"tc filter on eth0 \(egress\)", r"mirred", r"sudo tc filter del dev eth0 egress pref"),
    within_s=7,
)
