"""A connection that was seen to fail, explained from the rules of both its ends.

The four legs of opening a connection are judged in the order the packets take: out of the source, into the
destination, the answer out of the destination, the answer into the source. The first that surely blocks is the
culprit. When none does, either nobody could look, or the rules leave it open, or what blocks lies between the nodes:
these three are never confused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from runbook.firewall.evidence import Evidence
from runbook.firewall.explain import Explanation, explain, merge
from runbook.firewall.flow import EPHEMERAL, Flow, Leg
from runbook.model.commands import word
from runbook.model.verdict import Finding

READERS = (
    "nft -j -a list ruleset",
    "nft -a list ruleset",
    'iptables-save \\"\\"',
    'ip6tables-save \\"\\"',
    'iptables-legacy-save \\"\\"',
    'ip6tables-legacy-save \\"\\"',
    "ipset save",
    "ufw status verbose",
)
"""What `runbook` runs to name a rule, as sudoers(5) writes it: these words and no others."""

Seen = Literal["dropped", "rejected", "refused", "reset", "lost"]
SILENT: frozenset[Seen] = frozenset({"dropped", "lost"})


@dataclass(frozen=True, slots=True)
class Blocked:
    """`cause` is `firewall-drop` or `firewall-reject`; `node` is the culprit, or where to look first.

    `decided`: a rule was found, or both ends surely allow it. `between`: it is neither end's own filter. `remedies`
    are the commands, each with the node to run it on; `remedy` is the same as one text. `rule`: its place, where it can
    be no other.
    """

    cause: str
    node: str
    says: str
    remedy: str
    evidence: tuple[str, ...]
    decided: bool
    between: bool = False
    remedies: tuple[tuple[str, str], ...] = ()
    rule: str = ""
    explanations: tuple[tuple[str, Explanation], ...] = ()

    @property
    def by_chance(self) -> bool:
        """Whether a rule of the culprit stops some of these packets and lets others pass, as if they got lost."""
        return not self.decided and any(e.by_chance for name, e in self.explanations if name == self.node)

    def finding(self, peers: Iterable[str] = ()) -> Finding:
        return Finding(self.cause, self.says, self.remedy, self.evidence, tuple(peers))


def explain_blocked(
    seen: Seen,
    flow: Flow,
    source: Evidence | None,
    destination: Evidence | None,
    source_name: str,
    destination_name: str,
    *,
    ports: Iterable[tuple[int, int]] = (),
    sources: Iterable[str] = (),
    destinations: Iterable[str] = (),
    listener_was_up: bool = True,
    no_evidence: str = "its rules were not collected",
) -> Blocked | None:
    """Explain why `flow` was `dropped` (timeout), `rejected` (ICMP error, EPERM) or `refused` (RST); of an established
    one: why it was `reset`, or `lost` (its packets vanish).

    `ports`, `sources` and `destinations` are all that the inventory needs, so that one command opens it all. None:
    there is nothing to explain, because it was refused, nothing listened, and no rule refuses it.
    """
    ports, sources, destinations = tuple(ports), tuple(sources), tuple(destinations)
    if source is not None and flow.source_ports == EPHEMERAL:
        flow = replace(flow, source_ports=source.client_ports)
    legs = _legs(flow, source, destination, source_name, destination_name, ports, sources, destinations)
    given = flow.source
    flow = replace(flow, source=next((e.new_source for _, e in legs if e.new_source), given))
    cause = "firewall-drop" if seen in SILENT else "firewall-reject"
    certain = [(name, e) for name, e in legs if e.blocks]
    first = next(((name, e) for name, e in legs if e.blocks or e.elsewhere is not False), None)
    if first is not None and first[1].elsewhere is not False:
        return _elsewhere(cause, flow, *first, legs)
    translated = (
        f"; {flow.source} is what {source_name}'s own NAT rule makes of {given}" if given != flow.source else ""
    )
    if certain:
        return _with_note(_culprit(cause, seen, flow, certain, legs), destination_name, translated)
    if seen == "refused" and not listener_was_up:
        return None
    possible = [(name, e) for name, e in legs if e.candidates]
    if possible:
        return _with_note(_perhaps(cause, seen, flow, possible, legs), destination_name, translated)
    blind = {name: e.could_not_look for name, e in reversed(legs) if e.could_not_look}
    for name, evidence in ((source_name, source), (destination_name, destination)):
        if evidence is None:
            blind[name] = no_evidence
    if blind:
        return _not_seen(cause, seen, flow, blind, legs, destination_name)
    if foreign := _foreign_source(cause, seen, flow, source, legs):
        return foreign
    if beside := _beside(flow, source, destination, source_name, destination_name):
        node, what, how = beside
        return Blocked(
            cause,
            node,
            f"{_flow(flow)} was {seen}, and no rule of either node does it; {node} has {what}",
            f"see on {node} whether its counters grow: {how}",
            tuple(_allowing(legs)),
            False,
            explanations=tuple(legs),
        )
    return _between(cause, seen, flow, legs, source_name, destination_name, ports)


SMALL = 120
"""Bytes of a packet that no rule about large ones means."""


def also_small(
    blocked: Blocked,
    flow: Flow,
    source: Evidence | None,
    destination: Evidence | None,
    source_name: str,
    destination_name: str,
) -> bool:
    """Whether what was found to stop large packets of a flow would stop small ones as well, so that size is not the matter."""
    flow = replace(flow, packet_length=SMALL)
    small = explain_blocked("lost", flow, source, destination, source_name, destination_name)
    return small is not None and bool(_suspects(small) & _suspects(blocked))


def _suspects(blocked: Blocked) -> set[tuple[str, str, str]]:
    return {(name, e.where, e.rule) for name, e in blocked.explanations if e.blocks or e.candidates}


def _with_note(found: Blocked, destination_name: str, translated: str) -> Blocked:
    """An accusation of the destination says why it names an address that nobody wrote into the inventory."""
    return replace(found, says=found.says + translated) if found.node == destination_name else found


def _foreign_source(
    cause: str, seen: Seen, flow: Flow, source: Evidence | None, legs: list[tuple[str, Explanation]]
) -> Blocked | None:
    """A NAT rule makes the packets come from an address that the source does not have: who would bring the answers?"""
    node, by = next(((name, e) for name, e in legs if e.new_source), ("", None))
    if by is None or source is None or not source.addresses or by.new_source in source.addresses:
        return None
    remedies = ((node, by.allow),) if by.allow else ()
    return Blocked(
        cause,
        node,
        f"{_flow(flow)} was {seen}, and no rule of either node does it; most likely the answers are led elsewhere, since "
        f"{by.new_source} is none of {node}'s addresses, and its own NAT rule sends from there: {by.where} `{by.rule}`",
        command_line(remedies, node),
        tuple(dict.fromkeys([f"{node}: {by.where}: {by.rule}", *by.caveats, *_allowing(legs)])),
        False,
        remedies=remedies,
        rule=f"{by.where} {by.rule}",
        explanations=tuple(legs),
    )


def _beside(
    flow: Flow, source: Evidence | None, destination: Evidence | None, source_name: str, destination_name: str
) -> tuple[str, str, str] | None:
    """The first thing on the way, beside the packet filters, that may drop: its node, what it is, how to mend it."""
    ways = [
        (source_name, source, flow.destination, False),
        (destination_name, destination, flow.source, True),
        (destination_name, destination, flow.source, False),
        (source_name, source, flow.destination, True),
    ]
    for name, evidence, peer, arriving in ways:
        if evidence is not None and (found := evidence.beside(peer, arriving=arriving)):
            return name, *found[0]
    return None


def _legs(
    flow: Flow,
    source: Evidence | None,
    destination: Evidence | None,
    source_name: str,
    destination_name: str,
    ports: tuple[tuple[int, int], ...],
    sources: tuple[str, ...],
    destinations: tuple[str, ...],
) -> list[tuple[str, Explanation]]:
    found: list[tuple[str, Explanation]] = []
    tracked: dict[str, bool | None] = {}
    plan: list[tuple[str, Evidence | None, Leg, tuple[str, ...]]] = [
        (source_name, source, "request-out", destinations),
        (destination_name, destination, "request-in", sources),
        (destination_name, destination, "reply-out", sources),
        (source_name, source, "reply-in", destinations),
    ]
    for name, evidence, leg, peers in plan:
        if evidence is not None:
            known = tracked.get(name, True)
            one = explain(evidence, flow, leg, ports=ports, peers=peers, tracked=known)
            tracked[name] = one.tracked
            found.append((name, one))
            if one.new_source:  # it still comes over the same wire
                wire = flow.in_interface or (destination.interface_to(flow.source) if destination else None)
                flow = replace(flow, source=one.new_source, in_interface=wire)
    return found


def sent_elsewhere(
    flow: Flow,
    source: Evidence | None,
    destination: Evidence | None,
    source_name: str,
    destination_name: str,
    *,
    ports: Iterable[tuple[int, int]] = (),
    sources: Iterable[str] = (),
    destinations: Iterable[str] = (),
) -> Blocked | None:
    """The NAT rule of either end that leads new connections of this flow to something else, which may answer them."""
    flow = replace(flow, state="new")
    legs = _legs(
        flow, source, destination, source_name, destination_name, tuple(ports), tuple(sources), tuple(destinations)
    )
    name, found = next(((name, e) for name, e in legs if e.elsewhere), ("", None))
    return None if found is None else _elsewhere("firewall-reject", flow, name, found, legs)


def _elsewhere(cause: str, flow: Flow, node: str, by: Explanation, legs: list[tuple[str, Explanation]]) -> Blocked:
    """A NAT rule gives the packet another destination: the port that was meant never hears of it."""
    what = f"its own outgoing {_flow(flow)}" if by.leg == "request-out" else _flow(flow)
    may = "sends" if by.elsewhere else "may send"
    remedies = ((node, by.allow),) if by.allow else ()
    return Blocked(
        cause,
        node,
        f"{node} {may} {what} elsewhere: {by.where} `{by.rule}`",
        command_line(remedies, node),
        tuple(dict.fromkeys([f"{node}: {by.where}: {by.rule}", *by.caveats, *_allowing(legs)])),
        bool(by.elsewhere),
        False,
        remedies,
        f"{by.where} {by.rule}",
        tuple(legs),
    )


def _culprit(
    cause: str, seen: Seen, flow: Flow, certain: list[tuple[str, Explanation]], legs: list[tuple[str, Explanation]]
) -> Blocked:
    node, first = certain[0]
    cause = {"drop": "firewall-drop", "unknown": cause}.get(first.action, "firewall-reject")
    if len(first.candidates) > 1:
        rules = "could be one of " + "; ".join(first.candidates)
    else:
        rules = f"{first.where} `{first.rule}`"
    evidence = [f"{node}: {first.where}: {first.rule}", *first.caveats]
    if not _fits(seen, first):
        evidence.append(f"the connection was {seen}, while that rule's action is {first.action}")
    evidence += [f"{name} blocks it too: {e.where}: {e.rule}" for name, e in certain[1:]]
    evidence += [f"{name} may block it too: {rule}" for name, e in legs if e.blocks is None for rule in e.candidates]
    evidence += _allowing(legs)
    remedies = tuple(dict.fromkeys((name, e.allow) for name, e in certain if e.allow))
    return Blocked(
        cause,
        node,
        f"{_sentence(node, flow, first)}: {rules}",
        command_line(remedies, node),
        tuple(dict.fromkeys(evidence)),
        True,
        False,
        remedies,
        f"{first.where} {first.rule}",
        tuple(legs),
    )


def _perhaps(
    cause: str, seen: Seen, flow: Flow, possible: list[tuple[str, Explanation]], legs: list[tuple[str, Explanation]]
) -> Blocked:
    node = possible[0][0]
    rules = list(dict.fromkeys(f"{name}: {rule}" for name, e in possible for rule in e.candidates))
    if len(rules) == 1 and possible[0][1].by_chance:
        says = f"{node} {_verb(possible[0][1])} some of the packets of {_flow(flow)}, by count or by chance: {possible[0][1].candidates[0]}"
    elif len(rules) == 1:
        says = f"{node} {_verb(possible[0][1])} {_flow(flow)}, most likely by a rule whose match cannot be told from here: {possible[0][1].candidates[0]}"
    else:
        says = f"{_flow(flow)} was {seen}, and the rules alone do not tell by which one: could be one of {'; '.join(rules)}"
    remedies = tuple(dict.fromkeys((name, e.allow) for name, e in possible if e.allow))
    return Blocked(
        cause,
        node,
        says,
        command_line(remedies, node) or f"look on {node} with `sudo nft monitor trace`",
        tuple(dict.fromkeys([*(c for _, e in possible for c in e.caveats), *_allowing(legs)])),
        False,
        False,
        remedies,
        rules[0] if len(rules) == 1 else "",
        tuple(legs),
    )


def _not_seen(
    cause: str,
    seen: Seen,
    flow: Flow,
    blind: dict[str, str],
    legs: list[tuple[str, Explanation]],
    destination_name: str,
) -> Blocked:
    node = destination_name if destination_name in blind else next(iter(blind))
    alike = len(set(blind.values())) == 1
    reasons = (
        f"on {' and '.join(blind)}: {blind[node]}" if alike else "; ".join(f"on {n}: {why}" for n, why in blind.items())
    )
    permitted = ", ".join(f"/usr/sbin/{line}" for line in READERS)
    file = "/etc/sudoers.d/zz-runbook"
    grant = f'echo "$USER ALL=(root) NOPASSWD: {permitted}" | sudo tee {file} && sudo chmod 440 {file}'
    return Blocked(
        cause,
        node,
        f"{_flow(flow)} was {seen}, and nobody may look for the rule that does it {reasons}",
        f"on {' and '.join(blind)}, let this user read the rules and run again: `{grant}`; or look there by hand: "
        f"`sudo nft -a list ruleset; sudo iptables-save`, for what stops {flow.protocol} port {flow.port}",
        tuple(_allowing(legs)),
        False,
        explanations=tuple(legs),
    )


def _between(
    cause: str,
    seen: Seen,
    flow: Flow,
    legs: list[tuple[str, Explanation]],
    source_name: str,
    destination_name: str,
    ports: tuple[tuple[int, int], ...],
) -> Blocked:
    wanted = ", ".join(
        str(low) if low == high else f"{low}-{high}" for low, high in merge(((flow.port, flow.port), *ports))
    )
    return Blocked(
        cause,
        destination_name,
        f"{_flow(flow)} was {seen}, though the rules of {source_name} and of {destination_name} allow it: "
        "something between the nodes blocks it (security group, switch ACL, the firewall of a hypervisor or router)",
        f"allow {flow.protocol.upper()} {wanted} from {flow.source} to {flow.destination} in what lies between; "
        f"`sudo tcpdump -ni any {word(f'{flow.protocol} port {flow.port} and host {flow.source}')}` on {destination_name} shows "
        "whether it arrives",
        tuple(dict.fromkeys([*_allowing(legs), *(c for _, e in legs for c in e.caveats)])),
        True,
        True,
        explanations=tuple(legs),
    )


# --- words ------------------------------------------------------------------------------------------------------------

LEGS: dict[Leg, str] = {
    "request-out": "lets it out",
    "request-in": "lets it in",
    "reply-out": "lets the answer out",
    "reply-in": "lets the answer in",
}


def _flow(flow: Flow) -> str:
    return f"{flow.what} from {flow.source} to {flow.destination}"


def _sentence(node: str, flow: Flow, explanation: Explanation) -> str:
    verb = _verb(explanation)
    what = flow.what
    how = {"reject-rst": " with a TCP reset", "reject-icmp": " with an ICMP error"}.get(explanation.action, "")
    return {
        "request-out": f"{node} {verb} its own outgoing {what} to {flow.destination}{how}",
        "request-in": f"{node} {verb} {what} from {flow.source}{how}",
        "reply-out": f"{node} {verb} its own answers to {what} from {flow.source}{how}",
        "reply-in": f"{node} {verb} the answers of {flow.destination} to {what}{how}",
    }[explanation.leg]


def _verb(explanation: Explanation) -> str:
    return {"drop": "drops", "unknown": "blocks"}.get(explanation.action, "rejects")


def _fits(seen: Seen, explanation: Explanation) -> bool:
    if explanation.action == "unknown" or (seen == "dropped" and explanation.action == "reject-icmp"):
        return True  # of many ICMP errors the kernel sends only some
    return (seen in SILENT) == (explanation.action == "drop")


def _allowing(legs: list[tuple[str, Explanation]]) -> list[str]:
    lines = []
    for name, one in legs:
        if one.blocks is False:
            by = f": {one.where}: {one.rule}" if one.rule else f": {one.where}"
            lines.append(f"{name} {LEGS[one.leg]}{by}")
    return lines


def command_line(remedies: tuple[tuple[str, str], ...], node: str) -> str:
    """One command line when it is for `node` alone; else each with its node."""
    if all(name == node for name, _ in remedies):
        return " && ".join(command for _, command in remedies)
    there = {name: [command for where, command in remedies if where == name] for name, _ in remedies}
    return "; ".join(f"on {name}: {' && '.join(commands)}" for name, commands in there.items())
