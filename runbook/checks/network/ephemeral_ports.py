"""Whether a node has too few ports left to dial from or to listen on: how many its kernel hands out, and which
processes hold them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from runbook.causes.catalogue import finding_for, remedy_from_page
from runbook.checks.context import Context, Facts
from runbook.checks.network.dial import dial_summary_lines
from runbook.checks.network.mesh import Mesh
from runbook.firewall.evaluate import DEFAULT_EPHEMERAL_PORTS
from runbook.model.grouping import values_by_key
from runbook.model.inventory import Node
from runbook.model.units import count_text
from runbook.model.verdict import Finding
from runbook.transport.node_answers import EPHEMERAL_PORTS_PROGRAM

NO_PORT_CAUSE = "ephemeral-ports-exhausted"

MIN_PORTS_PER_RANK = 4
"""The least number of ports that a rank needs: one for its connection to the store, one to listen on for its peers, and
twice that, since a closed port stays taken for a minute (TIME_WAIT). Two gloo ranks on two nodes start with two ports
each, and fail when an earlier try has left one in TIME_WAIT."""

MIN_EPHEMERAL_PORTS = 1024
"""With fewer ports, the next job may find none."""

MAX_TIME_WAIT_SHARE = 0.5
"""When more than this share of the connections is in TIME_WAIT, that is why no port is left."""

SOCKET_COUNT_TIMEOUT_S = 5.0
"""Seconds that a node may take to count its sockets."""

SOCKET_HOLDERS_COMMAND = "sudo ss -Htanp | grep -o 'users:.*' | sort | uniq -c | sort -rn | head"
"""The command that shows which processes hold the most connections."""


def port_range(facts: Mapping[str, Any]) -> tuple[int, int] | None:
    """The range of ports that a node's kernel hands out, both ends included, as `reach` learned it; None when it is not
    known."""
    bounds = str(facts.get("port_range") or "").split()
    if len(bounds) != 2 or not all(bound.isdecimal() and len(bound) < 6 for bound in bounds):
        return None
    low, high = (int(bound) for bound in bounds)
    return (low, high) if low <= high else None


def ephemeral_port_count(facts: Mapping[str, Any]) -> int | None:
    """The number of ports that a node's kernel hands out; None when it is not known."""
    bounds = port_range(facts)
    return None if bounds is None else bounds[1] - bounds[0] + 1


def has_too_few_ports(at: Context, node: Node) -> bool:
    """Whether the node's kernel hands out fewer ports than the ranks there need at least."""
    ports = ephemeral_port_count(at.facts(node.name))
    return ports is not None and ports < MIN_PORTS_PER_RANK * node.slots


def few_ports_warning(facts: Mapping[str, Any]) -> list[str]:
    """A warning when the kernel hands out fewer than MIN_EPHEMERAL_PORTS ports."""
    bounds, ports = port_range(facts), ephemeral_port_count(facts)
    if bounds is None or ports is None or ports >= MIN_EPHEMERAL_PORTS:
        return []
    few = f"the kernel has only {count_text(ports, 'port')} ({bounds[0]}-{bounds[1]}) for all that dials or listens"
    return [f"{few}: a large job needs more; `{remedy_from_page(NO_PORT_CAUSE, 'more')}` is usual"]


def nodes_without_ports(mesh: Mesh) -> dict[str, list[str]]:
    """By node, what was met on nodes that had no port for our listeners or dials."""
    found: dict[str, list[str]] = {}
    for name, errors in mesh.occupied.items():
        if any(not error["port"] for error in errors):
            found[name] = ["bind(0): no port is free"]
    for name, dials in values_by_key((dial.source, dial) for dial in mesh.dials if dial.outcome == "unsent").items():
        found[name] = [*found.get(name, ()), *dial_summary_lines(dials)]
    return found


def port_exhaustion_findings(
    at: Context, seen: Mapping[str, Sequence[str]], peers: Mapping[str, Sequence[str]] | None = None
) -> dict[str, Finding]:
    """By node, a finding for each node in `seen`, which gives the lines that show that no port is left there."""
    sockets = _count_sockets(at, list(seen))
    return {
        node: _port_exhaustion_finding(at, node, sockets.get(node), list(lines), tuple((peers or {}).get(node, ())))
        for node, lines in seen.items()
    }


def _count_sockets(at: Context, names: Collection[str]) -> dict[str, Facts]:
    """By node, how the node itself counts its sockets. Nodes that cannot count or do not answer in time are left
    out."""

    def one(node: Node) -> Facts:
        return at.session(node).call(EPHEMERAL_PORTS_PROGRAM, {}, timeout_s=SOCKET_COUNT_TIMEOUT_S)

    found = at.each(one, at.reached(names), timeout_s=SOCKET_COUNT_TIMEOUT_S + 1.0)
    return {
        name: answer
        for name, answer in found.items()
        if isinstance(answer, dict) and answer.get("low") is not None and answer["low"] <= answer["high"]
    }


def _port_exhaustion_finding(
    at: Context, node: str, sockets: Facts | None, seen: list[str], peers: tuple[str, ...]
) -> Finding:
    """The finding for a node without a free port. `sockets`: the node's own count, or None; `seen`: lines of
    evidence."""
    bounds = (sockets["low"], sockets["high"]) if sockets else port_range(at.facts(node))
    which = f" ({bounds[0]}-{bounds[1]})" if bounds else ""
    narrow = bounds is None or bounds[1] - bounds[0] < DEFAULT_EPHEMERAL_PORTS[1] - DEFAULT_EPHEMERAL_PORTS[0]
    reserved = sockets["reserved"] if sockets else 0
    usable = bounds[1] - bounds[0] + 1 - reserved if bounds else None
    if usable is not None and (sockets is None or usable <= 0 or sockets["taken"] - sockets["ours"] < usable):
        says = f"the kernel of {node} has too few ports to hand out{which}: {usable} for all that dials or listens"
    else:
        says = (
            f"every port that the kernel of {node} may hand out{which} is taken: ranks there can neither dial nor "
            "listen"
        )
    if reserved:
        says += f"; {reserved} of that range are reserved"
    lines = [
        *seen[:4],
        f"net.ipv4.ip_local_port_range of {node}: {' '.join(map(str, bounds)) if bounds else 'unknown'}",
        *(_socket_holder_lines(node, sockets) if sockets else [f"who holds them: `{SOCKET_HOLDERS_COMMAND}`"]),
    ]
    holder = next((one["pid"] for one in sockets["holders"] if one["pid"]), None) if sockets else None
    way = "holder" if holder else "holders"
    if sockets and reserved > (sockets["high"] - sockets["low"] + 1) // 2:
        way = "reserved"
    elif narrow:
        way = "more"
    elif sockets and sockets["waiting"] > MAX_TIME_WAIT_SHARE * (sockets["connected"] + sockets["waiting"]):
        way = "time-wait"
    return finding_for(
        NO_PORT_CAUSE, says, tuple(lines), peers, way=way, node=node, pid=holder, who=SOCKET_HOLDERS_COMMAND
    )


def _socket_holder_lines(node: str, sockets: Facts) -> list[str]:
    """The node's counts of sockets, and the processes that hold them, as lines of evidence."""
    ports = sockets["high"] - sockets["low"] + 1
    states = f"{sockets['connected']} connected, {sockets['listening']} listening, {sockets['waiting']} in TIME_WAIT"
    ours = f" ({sockets['ours']} by this check)" if sockets["ours"] else ""
    lines = [f"{sockets['taken']} of {ports} are not available now{ours}; sockets on them: {states}"]
    if sockets["reserved"]:
        lines.append(f"net.ipv4.ip_local_reserved_ports of {node}: {sockets['reserved']} of them")
    for one in sockets["holders"][:4]:
        number = count_text(one["sockets"], "socket")
        if one["pid"] is None:
            lines.append(f"user {one['user']} holds {number}; root can see which process: `{SOCKET_HOLDERS_COMMAND}`")
        else:
            lines.append(f"process {one['pid']} of {one['user']} holds {number}: {one['command'] or '?'}")
    return lines
