"""The packet filters of nodes, read where a connection failed."""

from __future__ import annotations

import concurrent.futures
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from runbook.causes.netfilter import Evidence
from runbook.checks.context import Context
from runbook.checks.dialling.addresses import number, numeric
from runbook.checks.dialling.dial import Dial
from runbook.model.errors import Unreachable
from runbook.transport import ProgramNotStarted


def rules_of(
    at: Context, names: Sequence[str], peers: Mapping[str, Sequence[str]], *, timeout_s: float = 12.0
) -> dict[str, Evidence | None]:
    """The firewall rules of these nodes, asked in parallel; None for a node that could not be asked in time."""
    evidence: dict[str, Evidence | None] = dict.fromkeys(names)

    def one(name: str) -> Evidence | None:
        session = at.run.site.sessions[name]
        answer = session.program("rules", {"peers": list(peers.get(name, ()))}, timeout_s=8.0).wait(
            min(10.0, timeout_s)
        )
        return Evidence.of(answer.message) if answer.message else None

    pool = concurrent.futures.ThreadPoolExecutor(max(1, min(32, len(names))), thread_name_prefix="rules")
    futures = {name: pool.submit(one, name) for name in names if name in at.run.site.sessions}
    concurrent.futures.wait(futures.values(), timeout=timeout_s)
    pool.shutdown(wait=False, cancel_futures=True)
    for name, future in futures.items():
        if future.done() and not future.cancelled():
            try:
                evidence[name] = future.result()
            except (Unreachable, ProgramNotStarted, ValueError, TimeoutError):
                continue
    return evidence


def peers_of(at: Context, dials: Iterable[Dial]) -> dict[str, list[str]]:
    """By node, the addresses of those it had to do with."""
    addresses = {node.name: number(at, node.name) for node in at.nodes}
    found: dict[str, set[str]] = defaultdict(set)
    for dial in dials:
        found[dial.source].add(addresses[dial.destination])
        found[dial.source].add(dial.remote or numeric(dial.address))
        found[dial.destination].add(dial.local or addresses[dial.source])
    return {name: sorted(listed) for name, listed in found.items()}
