"""What two inventories of one lint say of one machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runbook.lint.rules.written import said, trusted
from runbook.lint.subject import InventoryFile, PlaybookFile
from runbook.load.address import is_loopback
from runbook.model.errors import Problem


def rendezvous_taken(inventories: Sequence[InventoryFile], _: Sequence[PlaybookFile]) -> Iterator[Problem]:
    """Two jobs that meet at one address and port cannot run at once.

    Loopback is left out: each machine has its own, and examples all use it.
    """
    first: dict[tuple[str, int], InventoryFile] = {}
    for file in inventories:
        rendezvous = file.inventory.rendezvous
        if is_loopback(rendezvous.address) or not _settled(file):
            continue
        other = first.setdefault((rendezvous.address.lower(), rendezvous.port), file)
        if other is file:
            continue
        where = f"{rendezvous.address}, port {rendezvous.port}"
        message = f"the job of {other.document.path} meets at {where} as well: the two cannot run at once"
        help = "give one of them another `rendezvous: {port: …}`"
        span = file.document.span("rendezvous", "port")
        if ("rendezvous", "port") not in file.document.spans:
            span = file.document.key_span("rendezvous") or file.document.span()
        yield Problem("inventory.rendezvous-taken", message, span, help)


def _settled(file: InventoryFile) -> bool:
    """Whether address and port are what the author meant. One node alone dials itself, wherever it is."""
    master = file.inventory.nodes[0]
    known = all(said(file, "rendezvous", name) for name in ("master", "address", "port"))
    return known and master in trusted(file, "address")[:1]
