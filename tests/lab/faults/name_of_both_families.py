"""Names that mean an IPv4 and an IPv6 address on every node: the ranks meet at the one, and talk over the other."""

from __future__ import annotations

from typing import Any

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    for host in lab:
        host.ip(f"addr add fd00:77::{host.index + 1}/64 dev eth0 nodad")
        host.set_hosts("\n".join(f"{each.address} {each.name}\nfd00:77::{each.index + 1} {each.name}" for each in lab))


def by_name(lab: Lab) -> dict[str, Any]:
    nodes = {host.name: {"address": host.name, "ssh": {"host": host.address}} for host in lab}
    return {"rendezvous": {"address": lab.names[0]}, "nodes": nodes}


FAULT = Fault(breaks=breaks, inventory=by_name, cause=None, within_s=8)
