"""The ports that a job needs between its nodes, and what it means when none is left."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from runbook.checks.context import Context
from runbook.checks.dialling.dial import Dial
from runbook.model.inventory import Inventory
from runbook.model.verdict import Finding

DEFAULT_PORTS = "32768 60999"
"""net.ipv4.ip_local_port_range as Linux ships it."""


def needed_ports(inventory: Inventory, dials: Iterable[Dial]) -> list[tuple[int, int]]:
    """All that one command should open: the rendezvous port, the promised ranges, and the ephemeral ones if blocked."""
    dials = list(dials)
    kinds = {dial.kind for dial in dials}
    ports: list[tuple[int, int]] = []
    if "rendezvous" in kinds:
        ports.append((inventory.rendezvous.port, inventory.rendezvous.port))
    if "range" in kinds:
        ports.extend(inventory.network.ports)
    if "ephemeral" in kinds:
        ports.append(ephemeral_range(dials))
    return sorted(set(ports))


def ephemeral_range(dials: list[Dial]) -> tuple[int, int]:
    """Linux's default range, widened to what was really handed out."""
    seen = [dial.port for dial in dials if dial.kind == "ephemeral"]
    return min(32768, *seen), max(60999, *seen)


def why_so_many(dials: Iterable[Dial], remedy: str) -> tuple[str, ...]:
    """Why a remedy opens the ports that the kernel hands out, where it does."""
    dials = list(dials)
    if not any(dial.kind == "ephemeral" for dial in dials):
        return ()
    low, high = ephemeral_range(dials)
    if not re.search(rf"\b{low}[-:]{high}\b", remedy):
        return ()
    return (f"why: {low}-{high} are the ports that the kernel picks, on which the ranks exchange their data",)


def no_port_left(at: Context, node: str, seen: Sequence[str], peers: Sequence[str] = ()) -> Finding:
    """Every port that the kernel may hand out there is taken: nothing can be dialled, and no rank can listen."""
    bounds = str(at.facts(node).get("port_range") or "").split()
    ports, wider = (
        (f" ({bounds[0]}-{bounds[1]})", " ".join(bounds) != DEFAULT_PORTS) if len(bounds) == 2 else ("", True)
    )
    who = "sudo ss -Htanp | grep -o 'users:.*' | sort | uniq -c | sort -rn | head"
    return Finding(
        "port-in-use",
        f"every port that the kernel of {node} may hand out{ports} is taken: ranks there can neither dial nor listen",
        f"sudo sysctl -w net.ipv4.ip_local_port_range='{DEFAULT_PORTS}'"
        if wider
        else f"see on {node} who holds them, and end it: `{who}`",
        (*seen, f"net.ipv4.ip_local_port_range of {node}: {' '.join(bounds) or 'unknown'}", f"who holds them: `{who}`"),
        tuple(peers),
    )
