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

from runbook.causes.netfilter.evidence import Evidence
from runbook.causes.netfilter.explain import Explanation, explain, merge
from runbook.causes.netfilter.flow import Flow, Leg
from runbook.model.verdict import Finding

Seen = Literal["dropped", "rejected", "refused"]


@dataclass(frozen=True, slots=True)
class Blocked:
    """`cause` is `firewall-drop` or `firewall-reject`; `node` is the culprit, or where to look first.

    `decided`: a rule was found, or both ends surely allow it. `between`: it is neither end's own filter. `remedies`
    are the commands, each with the node to run it on; `remedy` is the same as one text.
    """

    cause: str
    node: str
    says: str
    remedy: str
    evidence: tuple[str, ...]
    decided: bool
    between: bool = False
    remedies: tuple[tuple[str, str], ...] = ()
    explanations: tuple[tuple[str, Explanation], ...] = ()

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
    """Explain why `flow` was `dropped` (timeout), `rejected` (ICMP error, EPERM) or `refused` (RST).

    `ports`, `sources` and `destinations` are all that the inventory needs, so that one command opens it all. None:
    there is nothing to explain, because it was refused, nothing listened, and no rule refuses it.
    """
    ports, sources, destinations = tuple(ports), tuple(sources), tuple(destinations)
    if source is not None:
        flow = replace(flow, source_ports=source.client_ports)
    legs = _legs(flow, source, destination, source_name, destination_name, ports, sources, destinations)
    cause = "firewall-drop" if seen == "dropped" else "firewall-reject"
    certain = [(name, e) for name, e in legs if e.blocks]
    if certain:
        return _culprit(cause, seen, flow, certain, legs)
    if seen == "refused" and not listener_was_up:
        return None
    possible = [(name, e) for name, e in legs if e.candidates]
    if possible:
        return _perhaps(cause, seen, flow, possible, legs)
    blind = {name: e.could_not_look for name, e in reversed(legs) if e.could_not_look}
    for name, evidence in ((source_name, source), (destination_name, destination)):
        if evidence is None:
            blind[name] = no_evidence
    if blind:
        return _not_seen(cause, seen, flow, blind, legs, destination_name)
    return _between(cause, seen, flow, legs, source_name, destination_name, ports)


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
    return found


def _culprit(
    cause: str, seen: Seen, flow: Flow, certain: list[tuple[str, Explanation]], legs: list[tuple[str, Explanation]]
) -> Blocked:
    node, first = certain[0]
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
        _commands(remedies, node),
        tuple(dict.fromkeys(evidence)),
        True,
        False,
        remedies,
        tuple(legs),
    )


def _perhaps(
    cause: str, seen: Seen, flow: Flow, possible: list[tuple[str, Explanation]], legs: list[tuple[str, Explanation]]
) -> Blocked:
    node = possible[0][0]
    rules = "; ".join(rule for name, e in possible for rule in (f"{name}: {c}" for c in e.candidates))
    remedies = tuple(dict.fromkeys((name, e.allow) for name, e in possible if e.allow))
    return Blocked(
        cause,
        node,
        f"{_flow(flow)} was {seen}, and the rules alone do not tell by which one: could be one of {rules}",
        _commands(remedies, node) or f"look on {node} with `sudo nft monitor trace`",
        tuple(dict.fromkeys([*(c for _, e in possible for c in e.caveats), *_allowing(legs)])),
        False,
        False,
        remedies,
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
    reasons = "; ".join(f"{name}: {why}" for name, why in blind.items())
    return Blocked(
        cause,
        node,
        f"{_flow(flow)} was {seen}, and the rules could not all be read ({reasons})",
        f"let this user run `sudo -n nft -a list ruleset` on {' and '.join(blind)} and run again, or look there with "
        "`sudo nft -a list ruleset` and `sudo iptables-save`",
        tuple(_allowing(legs)),
        False,
        False,
        (),
        tuple(legs),
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
        f"`sudo tcpdump -ni any '{flow.protocol} port {flow.port} and host {flow.source}'` on {destination_name} shows "
        "whether it arrives",
        tuple(dict.fromkeys([*_allowing(legs), *(c for _, e in legs for c in e.caveats)])),
        True,
        True,
        (),
        tuple(legs),
    )


# --- words ------------------------------------------------------------------------------------------------------------

LEGS: dict[Leg, str] = {
    "request-out": "lets it out",
    "request-in": "lets it in",
    "reply-out": "lets the answer out",
    "reply-in": "lets the answer in",
}


def _flow(flow: Flow) -> str:
    return f"{flow.protocol.upper()} {flow.port} from {flow.source} to {flow.destination}"


def _sentence(node: str, flow: Flow, explanation: Explanation) -> str:
    verb = "drops" if explanation.action == "drop" else "rejects"
    if explanation.action == "unknown":
        verb = "blocks"
    what = f"{flow.protocol.upper()} {flow.port}"
    how = {"reject-rst": " with a TCP reset", "reject-icmp": " with an ICMP error"}.get(explanation.action, "")
    return {
        "request-out": f"{node} {verb} its own outgoing {what} to {flow.destination}{how}",
        "request-in": f"{node} {verb} {what} from {flow.source}{how}",
        "reply-out": f"{node} {verb} its own answers to {what} from {flow.source}{how}",
        "reply-in": f"{node} {verb} the answers of {flow.destination} to {what}{how}",
    }[explanation.leg]


def _fits(seen: Seen, explanation: Explanation) -> bool:
    if explanation.action == "unknown":
        return True
    return (seen == "dropped") == (explanation.action == "drop")


def _allowing(legs: list[tuple[str, Explanation]]) -> list[str]:
    lines = []
    for name, one in legs:
        if one.blocks is False:
            by = f": {one.where}: {one.rule}" if one.rule else f": {one.where}"
            lines.append(f"{name} {LEGS[one.leg]}{by}")
    return lines


def _commands(remedies: tuple[tuple[str, str], ...], node: str) -> str:
    """One command line when it is for `node` alone; else each with its node."""
    if all(name == node for name, _ in remedies):
        return " && ".join(command for _, command in remedies)
    return "; ".join(f"on {name}: {command}" for name, command in remedies)
