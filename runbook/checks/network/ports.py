"""The ports that a job needs between its nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable

from runbook.checks.network.dial import Dial
from runbook.model.inventory import Inventory


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
