"""Which nodes are to blame for a slow AllReduce, by the measurements: in which layer, what their adapters say, and the
remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runbook.causes.catalogue import finding_for, remedy_from_page
from runbook.checks.bandwidth.adapters import (
    NodeAdapters,
    SlowReason,
    interface_error_lines,
    slow_adapter_reasons,
    slow_loopback_reasons,
)
from runbook.checks.bandwidth.allreduce_bottleneck import Isolation, LinkLayer
from runbook.checks.bandwidth.normal_busbw import rate_range_text
from runbook.checks.bandwidth.slow_link_search import is_short_of_cpus, unjudged_link_text
from runbook.checks.bandwidth.slow_links import Link
from runbook.checks.ranks.pool import RankMember
from runbook.model.command_quoting import shell_word
from runbook.model.remedy import Remedy
from runbook.model.units import bandwidth_text, count_text, first_items_text, name_list_text, quantity_range_text
from runbook.model.verdict import Finding

MAX_SLOW_RANK_SHARE = 1 / 3
"""A rank is slow by itself below this part of the fastest rank: sound machines of one cluster differ by less, even when
other programs run on them."""

QUEUED_RANK_LIMITS = (0.6, 0.5, 0.3)
"""A rank is also slow by itself below the first part of the fastest rank, if its threads waited for a CPU for more than
the second share of the time, and for the third share more than those of the rank that waited least."""


@dataclass(frozen=True)
class Blame:
    """What explains a slow AllReduce. `charges`: by node, the finding against it; empty when no node stands out. Then
    `common` says what all nodes have in common, and `remedy` where to look. `cleared`: why a node that is not charged
    is fine. `measured`: evidence for all nodes."""

    charges: Mapping[str, Finding] = field(default_factory=dict)
    common: str = ""
    remedy: str = ""
    cleared: Mapping[str, str] = field(default_factory=dict)
    measured: tuple[str, ...] = ()


def assign_blame(
    members: Sequence[RankMember], found: Isolation, wires: Mapping[str, NodeAdapters], gate: float
) -> Blame:
    """Who is to blame. The innermost layer in which a node stands out decides: a rank that is slow by itself slows down
    every link. `gate` is in GB/s."""
    nodes = list(dict.fromkeys(member.rank.node for member in members))
    home = {member.label: member.rank.node for member in members}
    own = {node: own_slow_reasons(node, wires, found.between.rates, gate) for node in nodes}
    measured = tuple(_measured_rate_lines(found))
    charges = (
        _slow_rank_findings(members, found, gate)
        or _inside_node_findings(found.inside, home, wires)
        or _between_nodes_findings(found.between, own, members, wires)
    )
    if not charges and any(own.values()) and (found.between.rates or found.stopped):
        # No link stands out, but some adapters report a limit below the gate.
        charges = {node: _adapter_limit_finding(node, own[node][0], found.between) for node in nodes if own.get(node)}
    for node, charge in charges.items():
        errors = tuple(interface_error_lines(wires[node])) if node in wires else ()
        charges[node] = charge.with_evidence(*errors)
    if not charges:
        common, remedy = _common_cause_text(found, gate), no_culprit_remedy(wires)
        if is_short_of_cpus(found.alone) and not any(map(_gpu_of, members)):
            common = f"{common}; {_short_of_cpus_text(found.alone)}"
            measured += tuple(line for lines in found.busy.values() for line in lines)
            links = found.between
            if not links.all_fast or not links.rates or min(links.rates.values()) >= gate:
                remedy = remedy_from_page("allreduce-slow", "cpu")  # no link is known to be slow
        return Blame(common=common, remedy=remedy, measured=measured)
    return Blame(charges, cleared=_clearing_sentences(nodes, charges, found), measured=measured)


def own_slow_reasons(
    node: str, wires: Mapping[str, NodeAdapters], rates: Mapping[Link, float], below: float
) -> list[SlowReason]:
    """What the node's adapters say that explains a rate under `below`, by the `rates` of the links between nodes, both
    in GB/s; nothing for a node whose adapters are not known."""
    if node not in wires:
        return []
    sent = max((rate for link, rate in rates.items() if link.source == node), default=0.0)
    received = max((rate for link, rate in rates.items() if link.destination == node), default=0.0)
    others = [adapters for name, adapters in wires.items() if name != node]
    return [
        reason
        for reason in slow_adapter_reasons(wires[node], others)
        if (reason.gbytes is None or reason.gbytes < below) and not reason.outrun(sent, received)
    ]


def _gpu_of(member: RankMember) -> str | None:
    """The model of the rank's GPU, or None for a rank on CPUs."""
    return member.steps.get("imported", {}).get("gpu")


def _slow_rank_findings(members: Sequence[RankMember], found: Isolation, gate: float) -> dict[str, Finding]:
    """By node, a finding for ranks that are slow even when no other rank takes part, and whose links are slow too: the
    reason is the CPU, GPU or memory of their node. `gate` is in GB/s."""
    kind = {member.rank.rank: _gpu_of(member) for member in members}
    best_of: dict[object, float] = {}  # by model of GPU: a smaller one is not slow
    for rank, (rate, _) in found.alone.items():
        best_of[kind.get(rank)] = max(rate, best_of.get(kind.get(rank), 0.0))
    least = min((waited for _, waited in found.alone.values()), default=0.0)
    between = found.between
    verdict = between.verdict
    involved = {
        *verdict.ends,
        *(end for link in (*verdict.paths, *between.unsettled, *between.unjudged) for end in link.ends),
    }
    # What a rank moved on one link, its CPU or GPU could move on each.
    involved -= {end for link, rate in between.rates.items() if rate >= gate for end in link.ends}
    charges: dict[str, Finding] = {}
    for member in members:
        best = best_of.get(kind[member.rank.rank], 0.0)
        rate, waited = found.alone.get(member.rank.rank, (best, 0.0))
        part, share, more = QUEUED_RANK_LIMITS
        queued = rate < part * best and waited > max(share, least + more)
        if rate >= MAX_SLOW_RANK_SHARE * best and not queued:
            continue
        node = member.rank.node
        if not between.all_fast and node not in involved:
            continue  # it was fast on a link, so this does not explain the slow ones
        cpu = not kind[member.rank.rank]
        why = f" (its threads waited {waited:.0%} of the time for a CPU)" if waited > 0.2 and cpu else ""
        says = (
            f"{member.label} is slow by itself, before anything crosses a link: it adds tensors up at "
            f"{bandwidth_text(rate)}, others at {bandwidth_text(best)}{why}"
        )
        evidence = found.busy.get(node, ()) if cpu else ()
        charges.setdefault(node, finding_for("rank-behind", says, evidence, way="cpu" if cpu else "gpu", node=node))
    return charges


def _inside_node_findings(
    layer: LinkLayer, home: Mapping[str, str], wires: Mapping[str, NodeAdapters]
) -> dict[str, Finding]:
    """By node, a finding for ranks that are slow with other ranks of their node: by NVLink, PCIe, shared memory, or TCP
    over loopback."""
    charges: dict[str, Finding] = {}
    verdict = layer.verdict
    slow = [link for link in layer.rates if link.source in verdict.sending or link.destination in verdict.receiving]
    for link in dict.fromkeys([*slow, *verdict.paths]):
        node = home[link.source]
        says = (
            f"the ranks of {node} are slow among themselves, before anything leaves the node: {link} "
            f"{bandwidth_text(layer.rates[link])}, the fastest such pair {bandwidth_text(max(layer.rates.values()))}"
        )
        remedy = remedy_from_page("allreduce-slow", "inside", node=node)
        own = slow_loopback_reasons(wires[node]) if node in wires else []
        charges.setdefault(node, node_charge_finding(node, says, own, remedy))
    return charges


def _between_nodes_findings(
    layer: LinkLayer,
    own: Mapping[str, list[SlowReason]],
    members: Sequence[RankMember],
    wires: Mapping[str, NodeAdapters],
) -> dict[str, Finding]:
    """By node, a finding for nodes and links that are slow between nodes."""
    charges: dict[str, Finding] = {}
    verdict, rates = layer.verdict, layer.rates
    if verdict.clean:
        return charges
    best = bandwidth_text(max(rates.values()))
    for node in verdict.ends:
        sends, receives = node in verdict.sending, node in verdict.receiving
        links = [link for link in rates if (sends and link.source == node) or (receives and link.destination == node)]
        slowest = bandwidth_text(min(rates[link] for link in links))
        way = " and ".join(["sends"] * sends + ["receives"] * receives)
        whoever = ", with every other node" if len(links) > 1 else ""
        says = f"{node} {way} at {slowest}{whoever}; the fastest link carries {best}"
        charges[node] = node_charge_finding(
            node, says, own.get(node, []), inspection_remedy(node, wires), slow_rail_evidence(layer, links, members)
        )
    for link in verdict.paths:
        ends = link.ends
        explained = [node for node in ends if own.get(node)]
        says = f"{link} carries {bandwidth_text(rates[link])}, where the fastest link carries {best}"
        if explained:  # one end reports that it is the limit
            for node in explained:
                charges.setdefault(node, node_charge_finding(node, f"{node} is slow: {says}", own[node], ""))
            continue
        two = len({end for each in rates for end in each.ends}) == 2
        says += (
            f": {link.source} sends slowly, or {link.destination} receives slowly; a third node would show which"
            if two
            else ": only on the way between these two; with other nodes both are fast"
        )
        for node, other in zip(ends, reversed(ends), strict=True):
            rails = slow_rail_evidence(layer, [link], members)
            charges.setdefault(
                node, node_charge_finding(node, says, [], inspection_remedy(node, wires), rails, (other,))
            )
    return charges


def node_charge_finding(
    node: str,
    says: str,
    own: Sequence[SlowReason],
    remedy: str,
    evidence: tuple[str, ...] = (),
    peers: tuple[str, ...] = (),
    cause: str = "allreduce-slow",
) -> Finding:
    """A finding against a node. If the node's own adapters give a reason, the sentence says so and the remedy is a
    command."""
    if own:
        says, remedy = f"{says}: {own[0].says}", Remedy.run(f"{own[0].command}", node=node)
    return Finding(cause, says, remedy, (*evidence, *(each.evidence for each in own)), peers)


def inspection_remedy(node: str, wires: Mapping[str, NodeAdapters]) -> str:
    """The remedy for a slow node whose adapters give no reason: which ports or interface to look at."""
    mine = wires.get(node)
    if mine and mine.ports:
        names = ", ".join(port.name for port in mine.ports)
        return remedy_from_page("node-slow", "ports", node=node, ports=names)
    name = next(iter(mine.interfaces), "IFACE") if mine else "IFACE"
    return remedy_from_page("node-slow", "interface", node=node, name=shell_word(name))


def _adapter_limit_finding(node: str, reason: SlowReason, layer: LinkLayer) -> Finding:
    """The finding for a node whose adapters report a limit below the gate, when no link stands out."""
    says = f"{node} is slow: {reason.says}"
    if layer.rates:
        says += f" (measured between nodes: {layer.span})"
    return Finding("allreduce-slow", says, Remedy.run(f"{reason.command}", node=node), (reason.evidence,))


def slow_rail_evidence(layer: LinkLayer, links: Sequence[Link], members: Sequence[RankMember]) -> tuple[str, ...]:
    """Evidence about single pairs of ranks that make a link slow: with GPUs each pair has an adapter of its own."""
    labels = {member.rank.rank: member.label for member in members}
    found = []
    for link in links:
        rates = layer.pairs.get(link, {})
        best = max(rates.values(), default=0.0)
        for (source, destination), rate in rates.items():
            if rate < 0.7 * best:
                found.append(
                    f"{labels[source]} → {labels[destination]}: {bandwidth_text(rate)}, the fastest pair of these "
                    f"nodes {bandwidth_text(best)}: look at the adapter beside that GPU"
                )
    return tuple(found)


def _common_cause_text(found: Isolation, gate: float) -> str:
    """What all nodes have in common when none stands out, in words."""
    if found.stopped:
        return f"which layer is slow could not be measured: {found.stopped}"
    parts = []
    if found.between.unsettled:
        parts.append(_unsettled_links_text(found.between))
    elif found.between.unjudged:
        parts.append(unjudged_link_text(found.between.unjudged[0]))
        if found.between.rates:
            parts.append(f"the other links between nodes carry {found.between.span}")
    elif found.between.rates:
        alike = f"all links between nodes are alike, {found.between.span}"
        enough = min(found.between.rates.values()) >= gate
        parts.append(
            f"{alike}: each by itself is fast enough, so what they share is slow (the switch, other traffic, CPUs)"
            if enough
            else f"{alike}: what they have in common is slow (the interface, the switch, the transport)"
        )
    if found.inside.rates:
        parts.append(f"inside the nodes {found.inside.span}, no node stands out")
    return "; ".join(parts) or "no rank stands out"


def _short_of_cpus_text(alone: Mapping[int, tuple[float, float]]) -> str:
    """How long the ranks waited for a CPU, in words."""
    waited = sorted(share for _, share in alone.values())
    span = quantity_range_text(f"{waited[0]:.0%}", f"{waited[-1]:.0%}")
    return f"every rank waited for a CPU for {span} of the time, even alone"


def _unsettled_links_text(layer: LinkLayer) -> str:
    """In words, the slowest of the links that are slow without a node that is proven slow."""
    link, more = layer.unsettled[0], len(layer.unsettled) - 1
    others = f" (and {count_text(more, 'other link')})" if more else ""
    return (
        f"{link} carries {bandwidth_text(layer.rates[link])}{others}, where the fastest link carries "
        f"{bandwidth_text(max(layer.rates.values()))}: {link.source} sends slowly, or {link.destination} receives "
        "slowly; too few other links of theirs were measured to tell which"
    )


def no_culprit_remedy(wires: Mapping[str, NodeAdapters]) -> str:
    """The remedy that says where to look when no node stands out."""
    for mine in wires.values():
        if mine.ports:
            return remedy_from_page("allreduce-slow", "adapters")
        for name in mine.interfaces:
            return remedy_from_page("allreduce-slow", "interface", typed=shell_word(name), name=name)
    return ""


def _clearing_sentences(nodes: Sequence[str], charges: Mapping[str, Finding], found: Isolation) -> dict[str, str]:
    """By node, why the nodes that are not charged are fine: the rates of the links among them."""
    free = [node for node in nodes if node not in charges]
    rates = found.between.rates
    among = {link: rate for link, rate in rates.items() if link.source in free and link.destination in free}
    guilty, others = name_list_text(charges), name_list_text(free)
    if not among:
        return {node: f"no measurement points to {node}: {guilty} explains the loss" for node in free}
    span = rate_range_text(min(among.values()), max(among.values()))
    return dict.fromkeys(free, f"{others} move {span} among themselves; what is slow is {guilty}")


def _measured_rate_lines(found: Isolation) -> list[str]:
    """The measured rates as lines of evidence, the slowest links first."""
    lines = []
    for name, layer in (("between nodes", found.between), ("inside a node", found.inside)):
        if layer.rates:
            links = sorted(layer.rates, key=lambda link: layer.rates[link])
            shown = first_items_text([f"{link} {bandwidth_text(layer.rates[link])}" for link in links])
            up_to = f", up to {bandwidth_text(max(layer.rates.values()))}" if len(links) > 6 else ""
            lines.append(f"{name}: {shown}{up_to}")
    if found.alone:
        rates = [rate for rate, _ in found.alone.values()]
        lines.append(f"each rank alone, adding up: {rate_range_text(min(rates), max(rates))}")
    if found.stopped:
        lines.append(f"not everything could be measured: {found.stopped}")
    return lines
