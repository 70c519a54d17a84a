"""A policy that an IPsec daemon left behind drops what one node sends to the other; no packet filter shows it."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    near, far = lab["node-b"].address, lab["node-a"].address
    lab["node-b"].ip(f"xfrm policy add src {near}/32 dst {far}/32 dir out action block priority 100")


FAULT = Fault(
    breaks=breaks,
    stage="ping",
    cause="firewall-drop",
    nodes="node-b",
    says=(r"node-b drops what it sends to node-a, by an IPsec policy", r"dir out action block"),
    mends=True,
    within_s=8,
)
