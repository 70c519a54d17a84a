"""The master wants IPsec of what comes from the other node, which sends it in the clear."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    far, near = lab["node-b"].address, lab["node-a"].address
    lab["node-a"].ip(
        f"xfrm policy add src {far}/32 dst {near}/32 dir in tmpl src {far} dst {near} proto esp mode transport"
    )


FAULT = Fault(
    breaks=breaks,
    stage="ping",
    cause="firewall-drop",
    nodes="node-a",
    says=(r"most likely drops what comes from node-b, which is not protected as an IPsec policy demands",),
    mends=True,
    within_s=8,
)
