"""RoCE: does an Ethernet port have the GID that NCCL will use to reach its peers?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runbook.causes.findings import finding_for
from runbook.model.commands import word
from runbook.model.inventory import Node
from runbook.model.verdict import Finding
from runbook.parsers.ibstat import Port

Gids = Mapping[str, Mapping[str, str]]
"""index -> {gid, type, ndev}; an entry that is all zeros is left out."""


def gid_findings(
    node: Node, ports: Sequence[Port], gids: Mapping[str, Any] | None, index: str | None
) -> Iterator[Finding]:
    """Where the table could be read: an index that is set must be a RoCE v2 GID, and some routable one must be there."""
    for port in ports:
        table: Gids | None = (gids or {}).get(port.name)
        if not port.ethernet or table is None:
            continue
        listed = tuple(f"GID {n}: {e.get('gid')} ({e.get('type')}, {e.get('ndev')})" for n, e in table.items())[:8]
        good = [n for n, entry in table.items() if routable(entry)]
        if index and index not in ("-1", "") and index not in table:
            yield finding_for(
                "roce-wrong-gid-index",
                f"{port.name} of {node.name} has no GID {index}, which NCCL_IB_GID_INDEX asks for",
                listed or ("its GID table is empty",),
                way="index",
                one_of=one_of(good),
            )
        elif index and index in table and not routable(table[index]):
            yield finding_for(
                "roce-wrong-gid-index",
                f"GID {index} of {port.name} on {node.name}, which NCCL_IB_GID_INDEX asks for, is no routable RoCE v2 GID",
                listed,
                way="index",
                one_of=one_of(good),
            )
        elif not index and not good:
            yield finding_for(
                "roce-wrong-gid-index",
                f"{port.name} of {node.name} has no RoCE v2 GID with an address: its interface has none",
                listed or ("its GID table is empty",),
                way="no-address",
                node=node.name,
                hca=word(port.hca),
            )


def routable(entry: Mapping[str, str]) -> bool:
    return "v2" in (entry.get("type") or "").lower() and not (entry.get("gid") or "fe80").lower().startswith("fe80")


def one_of(good: Sequence[str]) -> str:
    return f", or set it to {good[-1]} for this node" if good else ""
