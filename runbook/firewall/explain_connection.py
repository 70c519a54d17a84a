"""Explains a failed connection from the rules of both its ends.

The four legs of opening a connection are judged in the order the packets take: out of the source, into the destination,
the answer out of the destination, the answer into the source. The first leg that is certainly blocked names the
culprit. If no leg is, the rules could not be read, or they do not decide, or something between the nodes blocks: these
three are never confused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from runbook.causes.catalogue import remedy_from_page
from runbook.firewall.collected_rules import Evidence
from runbook.firewall.evaluate import DEFAULT_EPHEMERAL_PORTS, Flow, Leg, merge_spans
from runbook.firewall.explain_node import Explanation, explain_leg
from runbook.model.command_quoting import shell_word
from runbook.model.remedy import Remedy, RemedyStep
from runbook.model.units import range_text

RULE_READ_COMMANDS = (
    "/usr/sbin/nft -j -a list ruleset",
    "/usr/sbin/nft -a list ruleset",
    '/usr/sbin/iptables-save \\"\\"',
    '/usr/sbin/ip6tables-save \\"\\"',
    '/usr/sbin/iptables-legacy-save \\"\\"',
    '/usr/sbin/ip6tables-legacy-save \\"\\"',
    "/usr/sbin/ipset save",
    "/usr/sbin/ufw status verbose",
    "/usr/sbin/ip xfrm policy",
    "/usr/bin/firewall-cmd --state",
    "/usr/bin/firewall-cmd --list-all-zones",
    "/usr/bin/firewall-cmd --get-default-zone",
)
"""The commands with which `runbook` reads rules, exactly as sudoers(5) has to allow them."""

Seen = Literal["dropped", "rejected", "refused", "reset", "lost"]
"""How a connection failed; see `explain_blocked`."""
SILENT_FAILURES: frozenset[Seen] = frozenset({"dropped", "lost"})
"""Failures without any answer."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why a connection failed. `cause` is `firewall-drop` or `firewall-reject`; `node` is the culprit, or the node to
    look at first.

    `decided`: a rule was found, or both ends certainly allow the connection. `between`: neither end's own filter blocks
    it. `unread`: the rules of neither end could be read. `unseen`: what may block it cannot be read. `remedies` are
    (node, command); `remedy` is the same as one text, or a sentence if there is no command. `rule`: the place and text
    of the rule, if only one is meant.
    """

    cause: str
    node: str
    says: str
    remedy: str
    evidence: tuple[str, ...]
    decided: bool
    between: bool = False
    unread: bool = False
    unseen: bool = False
    remedies: tuple[tuple[str, str], ...] = ()
    rule: str = ""
    explanations: tuple[tuple[str, Explanation], ...] = ()

    @property
    def by_chance(self) -> bool:
        """Whether a rule of `node` stops some of the packets by chance and lets others pass, as if they got lost."""
        return not self.decided and any(e.by_chance for name, e in self.explanations if name == self.node)


@dataclass(frozen=True, slots=True)
class Ends:
    """Both nodes of a connection with their rules (None: not collected). `ports`, `sources` and `destinations` are all
    that the inventory needs between nodes, so that one command opens everything."""

    source: Evidence | None
    destination: Evidence | None
    source_name: str
    destination_name: str
    ports: Sequence[tuple[int, int]] = ()
    sources: Sequence[str] = ()
    destinations: Sequence[str] = ()

    @classmethod
    def of(cls, rules: Mapping[str, Evidence | None], source: str, destination: str) -> Ends:
        """The ends of a connection between two nodes, given by name."""
        return cls(rules.get(source), rules.get(destination), source, destination)

    def legs(self, flow: Flow) -> list[tuple[str, Explanation]]:
        """(node, explanation) for each of the four legs, in order; legs on a node without collected rules are left
        out."""
        found: list[tuple[str, Explanation]] = []
        tracked: dict[str, bool | None] = {}
        plan: list[tuple[str, Evidence | None, Leg, Sequence[str]]] = [
            (self.source_name, self.source, "request-out", self.destinations),
            (self.destination_name, self.destination, "request-in", self.sources),
            (self.destination_name, self.destination, "reply-out", self.sources),
            (self.source_name, self.source, "reply-in", self.destinations),
        ]
        for name, evidence, leg, peers in plan:
            if evidence is None:
                continue
            known = tracked.get(name, True)
            one = explain_leg(evidence, flow, leg, ports=self.ports, peers=peers, tracked=known)
            tracked[name] = one.tracked
            found.append((name, one))
            if one.new_source:  # the destination sees another source, but the packets still come over the same wire
                wire = flow.in_interface or (self.destination.interface_to(flow.source) if self.destination else None)
                flow = replace(flow, source=one.new_source, source_ports=DEFAULT_EPHEMERAL_PORTS, in_interface=wire)
        return found


def explain_blocked(seen: Seen, flow: Flow, ends: Ends, *, listener_was_up: bool = True) -> Blocked | None:
    """Why a new `flow` was `dropped` (timeout), `rejected` (ICMP error, EPERM) or `refused` (RST); or why an
    established one was `reset`, or `lost` (its packets vanish).

    None: there is nothing to explain, since the flow was refused, nothing listened, and no rule certainly refuses it.
    """
    if ends.source is not None and flow.source_ports == DEFAULT_EPHEMERAL_PORTS:
        flow = replace(flow, source_ports=ends.source.client_ports)
    legs = ends.legs(flow)
    given = flow.source
    flow = replace(flow, source=next((e.new_source for _, e in legs if e.new_source), given))
    case = _Case("firewall-drop" if seen in SILENT_FAILURES else "firewall-reject", seen, flow, given, ends, legs)
    first = next(((name, e) for name, e in legs if e.blocks or e.elsewhere is not False), None)
    if first is not None and first[1].elsewhere is not False:
        return case.elsewhere(*first)
    if certain := [(name, e) for name, e in legs if e.blocks]:
        return case.culprit(certain)
    if seen == "refused" and not listener_was_up:
        return None
    if possible := [(name, e) for name, e in legs if e.candidates]:
        return case.perhaps(possible)
    if blind := case.blind():
        return case.not_seen(blind)
    return case.foreign_source() or case.beside() or case.between()


SMALL_PACKET_BYTES = 120
"""Bytes of a packet that is too small for any rule about large packets."""


def stops_small_packets(blocked: Blocked, flow: Flow, ends: Ends) -> bool:
    """Whether the rule that stops large packets of a flow would stop small ones as well: then their size is not the
    reason."""
    small = explain_blocked("lost", replace(flow, packet_length=SMALL_PACKET_BYTES), ends)
    return small is not None and bool(_suspect_rules(small) & _suspect_rules(blocked))


def is_certainly_blocked(blocked: Blocked | None) -> bool:
    """Whether a rule was found that certainly blocks."""
    return blocked is not None and blocked.decided and not blocked.between


def _suspect_rules(blocked: Blocked) -> set[tuple[str, str, str]]:
    return {(name, e.where, e.rule) for name, e in blocked.explanations if e.blocks or e.candidates}


def explain_redirection(flow: Flow, ends: Ends) -> Blocked | None:
    """The explanation by a NAT rule of either end that certainly leads new connections of this flow to another
    destination, which may answer them; None if there is no such rule."""
    flow = replace(flow, state="new")
    legs = ends.legs(flow)
    led = next(((name, e) for name, e in legs if e.elsewhere), None)
    return None if led is None else _Case("firewall-reject", "refused", flow, flow.source, ends, legs).elsewhere(*led)


@dataclass(frozen=True, slots=True)
class _Case:
    """A failed connection with its legs judged; each public method is one way to explain it. The source of `flow` is
    the address that the destination sees, `given` the source's address in the inventory."""

    cause: str
    seen: Seen
    flow: Flow
    given: str
    ends: Ends
    legs: list[tuple[str, Explanation]]

    def elsewhere(self, node: str, by: Explanation) -> Blocked:
        """The explanation that a NAT rule gives the packet another destination: it never reaches the intended port."""
        what = f"its own outgoing {_flow_in_words(self.flow)}" if by.leg == "request-out" else _flow_in_words(self.flow)
        may = "sends" if by.elsewhere else "may send"
        says = f"{node} {may} {what} elsewhere: {by.where} `{by.rule}`"
        return self._translating(node, by, says, decided=bool(by.elsewhere))

    def culprit(self, certain: list[tuple[str, Explanation]]) -> Blocked:
        """The explanation by the first of the legs that are certainly blocked."""
        node, first = certain[0]
        cause = {"drop": "firewall-drop", "unknown": self.cause}.get(first.action, "firewall-reject")
        if len(first.candidates) > 1:
            rules = "could be one of " + "; ".join(first.candidates)
        else:
            rules = f"{first.where} `{first.rule}`"
        evidence = [f"{node}: {first.where}: {first.rule}", *first.caveats]
        if not _fits_failure(self.seen, first):
            evidence.append(f"the connection was {self.seen}, while that rule's action is {first.action}")
        evidence += [f"{name} blocks it too: {e.where}: {e.rule}" for name, e in certain[1:]]
        evidence += [
            f"{name} may block it too: {rule}" for name, e in self.legs if e.blocks is None for rule in e.candidates
        ]
        found = self._blocked(
            node,
            f"{_explanation_sentence(node, self.flow, first)}: {rules}{self._translated(node)}",
            remedies=tuple(dict.fromkeys((name, e.allow) for name, e in certain if e.allow)),
            evidence=[*evidence, *self._allowing()],
            decided=True,
            rule=f"{first.where} {first.rule}",
        )
        return replace(found, cause=cause)

    def perhaps(self, possible: list[tuple[str, Explanation]]) -> Blocked:
        """The explanation by rules that may block, none of them certainly."""
        node, first = possible[0]
        rules = list(dict.fromkeys(f"{name}: {rule}" for name, e in possible for rule in e.candidates))
        what = _flow_in_words(self.flow)
        if len(rules) == 1 and first.by_chance:
            says = (
                f"{node} {_blocking_verb(first)} some of the packets of {what}, by count or by "
                f"chance: {first.candidates[0]}"
            )
        elif len(rules) == 1:
            says = (
                f"{node} {_blocking_verb(first)} {what}, most likely by a rule whose match "
                "cannot be decided from here: "
                f"{first.candidates[0]}"
            )
        else:
            says = (
                f"{what} was {self.seen}, and the rules alone do not tell by which one: could be one of "
                f"{'; '.join(rules)}"
            )
        return self._blocked(
            node,
            says + self._translated(node),
            remedy=remedy_from_page("firewall-drop", "trace", node=node),
            remedies=tuple(dict.fromkeys((name, e.allow) for name, e in possible if e.allow)),
            evidence=[*(c for _, e in possible for c in e.caveats), *self._allowing()],
            rule=rules[0] if len(rules) == 1 else "",
        )

    def blind(self) -> dict[str, str]:
        """By a node whose rules could not be read, why not, in words."""
        ends = self.ends
        found = {name: e.could_not_look for name, e in reversed(self.legs) if e.could_not_look}
        for name, evidence in ((ends.source_name, ends.source), (ends.destination_name, ends.destination)):
            if evidence is None:
                found[name] = "its rules were not collected"
        return found

    def not_seen(self, blind: dict[str, str]) -> Blocked:
        """The explanation that rules could not be read; the remedy says how to let runbook read them."""
        node = self.ends.destination_name if self.ends.destination_name in blind else next(iter(blind))
        nodes = " and ".join(blind)
        reasons = "; ".join(f"on {name}: {why}" for name, why in blind.items())
        if len(set(blind.values())) == 1:
            reasons = f"on {nodes}: {blind[node]}"
        denied = any("sudo asks" in why or "needs root" in why for why in blind.values())
        protocol, port = self.flow.protocol, self.flow.port
        found = self._blocked(
            node,
            f"{_flow_in_words(self.flow)} was {self.seen}, and the rules "
            f"{'may' if denied else 'could'} not be read to find the "
            f"one that does it {reasons}",
            remedy=remedy_from_page(
                "firewall-drop",
                "unread",
                nodes=nodes,
                commands=", ".join(RULE_READ_COMMANDS),
                protocol=protocol,
                port=port,
            )
            if denied
            else remedy_from_page("firewall-drop", "unread-by-hand", nodes=nodes, protocol=protocol, port=port),
            evidence=self._allowing(),
        )
        return replace(found, unread=len(blind) > 1)

    def foreign_source(self) -> Blocked | None:
        """The explanation that a NAT rule gives the packets a source address that the source node does not have, so
        that answers do not reach it; None if no rule does."""
        source = self.ends.source
        node, by = next(((name, e) for name, e in self.legs if e.new_source), ("", None))
        if by is None or source is None or not source.addresses or by.new_source in source.addresses:
            return None
        says = (
            f"{_flow_in_words(self.flow)} was {self.seen}, and no rule of either node does "
            "it; most likely the answers are led "
            f"elsewhere, since {by.new_source} is none of {node}'s addresses, and its own NAT rule sends from there: "
            f"{by.where} `{by.rule}`"
        )
        return self._translating(node, by, says, decided=False)

    def beside(self) -> Blocked | None:
        """The explanation by the first thing on the way, other than packet filters, that may drop packets; None if
        there is nothing."""
        ends = self.ends
        if self.flow.state == "new" and self.seen in SILENT_FAILURES:
            for node, evidence in ((ends.source_name, ends.source), (ends.destination_name, ends.destination)):
                if evidence is not None and (full := evidence.full_tracking_table):
                    return self._blocked(
                        node,
                        f"{_flow_in_words(self.flow)} was {self.seen}, and no rule of either node does it; {node} "
                        f"tracks {full[0]} connections and may track {full[1]}: the kernel drops those that do not fit",
                        remedy=remedy_from_page("firewall-drop", "tracking", node=node, more=2 * full[1]),
                        evidence=self._allowing(),
                    )
        ways = [
            (ends.source_name, ends.source, self.flow.destination, False),
            (ends.destination_name, ends.destination, self.flow.source, True),
            (ends.destination_name, ends.destination, self.flow.source, False),
            (ends.source_name, ends.source, self.flow.destination, True),
        ]
        for node, evidence, peer, arriving in ways:
            if evidence is not None and (found := evidence.beside(peer, arriving=arriving)):
                what, how = found
                blocked = self._blocked(
                    node,
                    f"{_flow_in_words(self.flow)} was {self.seen}, and no rule of either node does "
                    f"it; {node} has {what}",
                    remedy=remedy_from_page("firewall-drop", "counters", node=node, command=how),
                    evidence=self._allowing(),
                )
                return replace(blocked, unseen=True)
        return None

    def between(self) -> Blocked:
        """The explanation that neither node's rules block it, so that something between the nodes does."""
        flow, node = self.flow, self.ends.destination_name
        if self.ends.source_name == node:
            return self._blocked(
                node,
                f"{_flow_in_words(flow)} was {self.seen}, though no rule of {node} does it and "
                f"nothing of it leaves {node}",
                remedy=remedy_from_page("firewall-drop", "itself", node=node),
                evidence=self._allowing(),
                decided=True,
            )
        wanted = ", ".join(range_text(*span) for span in merge_spans(((flow.port, flow.port), *self.ends.ports)))
        found = self._blocked(
            node,
            f"{_flow_in_words(flow)} was {self.seen}, though the rules of "
            f"{self.ends.source_name} and of {node} allow it: "
            "something between the nodes blocks it (security group, switch ACL, "
            "the firewall of a hypervisor or router)",
            remedy=remedy_from_page(
                "firewall-drop",
                "in-between",
                protocol=flow.protocol.upper(),
                ports=wanted,
                source=flow.source,
                destination=flow.destination,
                filter=shell_word(f"{flow.protocol} port {flow.port} and host {flow.source}"),
                node=node,
            ),
            evidence=[*self._allowing(), *(c for _, e in self.legs for c in e.caveats)],
            decided=True,
        )
        return replace(found, between=True)

    def _translating(self, node: str, by: Explanation, says: str, *, decided: bool) -> Blocked:
        """The explanation by a NAT rule of the node."""
        return self._blocked(
            node,
            says,
            remedies=((node, by.allow),) if by.allow else (),
            evidence=[f"{node}: {by.where}: {by.rule}", *by.caveats, *self._allowing()],
            decided=decided,
            rule=f"{by.where} {by.rule}",
        )

    def _blocked(
        self,
        node: str,
        says: str,
        *,
        remedies: tuple[tuple[str, str], ...] = (),
        remedy: str = "",
        evidence: list[str],
        decided: bool = False,
        rule: str = "",
    ) -> Blocked:
        return Blocked(
            cause=self.cause,
            node=node,
            says=says,
            remedy=combined_remedy(remedies, node) or remedy,
            evidence=tuple(dict.fromkeys(evidence)),
            decided=decided,
            remedies=remedies,
            rule=rule,
            explanations=tuple(self.legs),
        )

    def _translated(self, node: str) -> str:
        """A note for a sentence about the destination that names an address which is not in the inventory: the source's
        NAT rule made it. Empty for any other."""
        if self.flow.source == self.given or node != self.ends.destination_name:
            return ""
        return f"; {self.flow.source} is what {self.ends.source_name}'s own NAT rule makes of {self.given}"

    def _allowing(self) -> list[str]:
        """Lines of evidence about the legs that are allowed, with the rule that accepts them."""
        lines = []
        for name, one in self.legs:
            if one.blocks is False:
                by = f": {one.where}: {one.rule}" if one.rule else f": {one.where}"
                lines.append(f"{name} {LEG_PHRASES[one.leg]}{by}")
        return lines


# --- words ------------------------------------------------------------------------------------------------------------

LEG_PHRASES: dict[Leg, str] = {
    "request-out": "lets it out",
    "request-in": "lets it in",
    "reply-out": "lets the answer out",
    "reply-in": "lets the answer in",
}


def _flow_in_words(flow: Flow) -> str:
    return f"{flow.what} from {flow.source} to {flow.destination}"


def _explanation_sentence(node: str, flow: Flow, explanation: Explanation) -> str:
    verb = _blocking_verb(explanation)
    what = flow.what
    how = {"reject-rst": " with a TCP reset", "reject-icmp": " with an ICMP error"}.get(explanation.action, "")
    return {
        "request-out": f"{node} {verb} its own outgoing {what} to {flow.destination}{how}",
        "request-in": f"{node} {verb} {what} from {flow.source}{how}",
        "reply-out": f"{node} {verb} its own answers to {what} from {flow.source}{how}",
        "reply-in": f"{node} {verb} the answers of {flow.destination} to {what}{how}",
    }[explanation.leg]


def _blocking_verb(explanation: Explanation) -> str:
    return {"drop": "drops", "unknown": "blocks"}.get(explanation.action, "rejects")


def _fits_failure(seen: Seen, explanation: Explanation) -> bool:
    """Whether a rule's action leads to the failure that was seen."""
    if explanation.action == "unknown" or (seen == "dropped" and explanation.action == "reject-icmp"):
        return True  # the kernel limits how many ICMP errors it sends, so that a rejected packet may get no answer
    return (seen in SILENT_FAILURES) == (explanation.action == "drop")


def combined_remedy(remedies: tuple[tuple[str, str], ...], node: str) -> Remedy:
    """The remedy with these commands, given as (node, command): one command line if all are for `node`, else a step for
    each node."""
    if all(name == node for name, _ in remedies):
        return Remedy.run(" && ".join(command for _, command in remedies)) if remedies else Remedy()
    there = {name: [command for where, command in remedies if where == name] for name, _ in remedies}
    return Remedy(*(RemedyStep(name, (" && ".join(commands),)) for name, commands in there.items()))
