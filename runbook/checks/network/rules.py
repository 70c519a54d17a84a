"""The packet filters of nodes, read where a connection failed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from runbook.checks.context import Context
from runbook.checks.network.dial import Dial
from runbook.checks.network.resolved import number, numeric
from runbook.firewall import Evidence
from runbook.model.errors import Unreachable
from runbook.model.inventory import Node
from runbook.transport import ProgramNotStarted

NOT_TOLD = (Unreachable, ProgramNotStarted, ValueError, TimeoutError)


def rules_of(
    at: Context, names: Sequence[str], peers: Mapping[str, Sequence[str]], *, timeout_s: float = 12.0
) -> dict[str, Evidence | None]:
    """The firewall rules of these nodes, asked in parallel; None for a node that could not be asked in time."""

    def one(node: Node) -> Evidence | None:
        program = at.session(node).program("rules", {"peers": list(peers.get(node.name, ()))}, timeout_s=8.0)
        answer = program.wait(min(10.0, timeout_s))
        return Evidence.of(answer.message) if answer.message else None

    evidence: dict[str, Evidence | None] = dict.fromkeys(names)
    for name, found in at.each(one, at.reached(names), timeout_s=timeout_s).items():
        if isinstance(found, BaseException) and not isinstance(found, NOT_TOLD):
            raise found
        evidence[name] = found if isinstance(found, Evidence) else None
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
