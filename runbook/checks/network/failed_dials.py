"""From failed dials to guilty nodes: the rule, route or address behind a failure, and the remedy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from runbook.causes.catalogue import finding_for
from runbook.checks.context import Context
from runbook.checks.network.dial import (
    UNMEASURED,
    Dial,
    dial_summary_lines,
    ephemeral_ports_reason,
    folded_ports,
    needed_ports,
    numeric_address,
    numeric_node_address,
    ports_text,
)
from runbook.checks.network.ephemeral_ports import port_exhaustion_findings, port_range
from runbook.checks.network.packet_filters import (
    network_policy_finding,
    peer_addresses,
    rules_of,
    unexplained_pods_evidence,
)
from runbook.checks.network.pairs import BlamedNodes, node_groupings
from runbook.checks.network.routing import Sent, refusing_policy_finding, unusable_path_finding
from runbook.firewall.collected_rules import Evidence
from runbook.firewall.evaluate import DEFAULT_EPHEMERAL_PORTS, Flow, NumberRange
from runbook.firewall.explain_connection import (
    Blocked,
    Ends,
    Seen,
    combined_remedy,
    explain_blocked,
    explain_redirection,
    is_certainly_blocked,
    stops_small_packets,
)
from runbook.model.command_quoting import shell_word
from runbook.model.grouping import values_by_key
from runbook.model.units import count_text, name_list_text
from runbook.model.verdict import Finding

MAX_DIAL_EVIDENCE_LINES = 10
"""How many lines of evidence a finding has at most."""


@dataclass(frozen=True)
class Accusation:
    """A node and its fault. `rule`: the rule, when one is known. `itself`: the trouble is in the node's traffic to
    itself. `guess`: nothing shows at which end the fault is. `common`: what the failed dials have in common;
    accusations of a node with the same `common` are one."""

    node: str
    finding: Finding
    rule: str = ""
    remedies: tuple[tuple[str, str], ...] = ()
    itself: bool = False
    guess: bool = False
    common: str = ""

    def same(self, other: Accusation) -> bool:
        """Whether both are one finding: the same rule, the same command, or the same trouble of a node with itself."""
        if self.rule or other.rule:
            return self.rule == other.rule
        if self.finding.cause != other.finding.cause:
            return False
        return other.itself or self.finding.remedy == other.finding.remedy or "" != self.common == other.common

    def placed(self, blame: BlamedNodes, dials: Sequence[Dial]) -> Accusation:
        """A guess, moved to the end of these dials that other failed dials share; without such an end, unchanged."""
        shared = [name for name in _end_nodes(dials) if len(blame.nodes.get(name, ())) > 1]
        if len(shared) != 1 and not (blame.apart and self.node in shared):
            return self
        name = shared[0] if len(shared) == 1 else self.node
        peers = blame.nodes[name]
        why = blame.apart or f"what fails with {name_list_text(peers)} has {name} in common"
        finding = replace(self.finding, says=f"{why}: {self.finding.says}", peers=tuple(peers))
        return replace(self, node=name, finding=finding, common=f"{dials[0].outcome} {dials[0].source == name}")

    def merged(self, other: Accusation) -> Accusation:
        """This accusation with the remedies, evidence and peers of another one that is the same."""
        mine, its = self.finding, other.finding
        remedies = tuple(dict.fromkeys((*self.remedies, *other.remedies)))
        differ = remedies and mine.remedy != its.remedy
        finding = replace(
            mine,
            remedy=combined_remedy(remedies, self.node) if differ else mine.remedy,
            evidence=tuple(dict.fromkeys((*mine.evidence, *its.evidence)))[:MAX_DIAL_EVIDENCE_LINES],
            peers=tuple(dict.fromkeys((*mine.peers, *its.peers))),
        )
        return replace(self, finding=finding, remedies=remedies)


FILTER_OUTCOMES: Mapping[str, Seen] = {
    "dropped": "dropped",
    "rejected": "rejected",
    "refused": "refused",
    "reset": "reset",
    "silent": "lost",
    "lost": "lost",
}
"""The outcomes of dials that a packet filter can cause, and what the firewall room calls them; a filter causes no
others."""


MIN_CLEAN_CONNECTIONS = 4
"""This many connections that open at once show that a path loses next to nothing."""


MIN_RETRANSMITTED_SEGMENTS = 3
"""This many retransmitted segments on connections that did work show that a path loses packets."""

MIN_CHANCE = 0.01
"""Something less likely than this did not happen by chance."""

ESTABLISHED_OUTCOMES = ("reset", "silent", "lost")
"""Outcomes of dials that got as far as an established connection."""


@dataclass(frozen=True)
class Trouble:
    """Everything that is known when failed dials are explained. `bad` and `good`: dials that failed, and that opened.
    `evidence`: the rules of the nodes involved. `unmeasured`: dials that tell nothing."""

    at: Context
    bad: list[Dial]
    good: list[Dial]
    evidence: Mapping[str, Evidence | None] = field(default_factory=dict)
    unmeasured: Sequence[Dial] = ()

    @classmethod
    def of(cls, at: Context, dials: Iterable[Dial], evidence: Mapping[str, Evidence | None] | None = None) -> Trouble:
        """The trouble in these dials. Reads the rules of both ends of failed dials, where `evidence` does not have
        them."""
        dials = list(dials)
        bad = [dial for dial in dials if dial.outcome not in ("open", UNMEASURED)]
        good = [dial for dial in dials if dial.outcome == "open"]
        involved = {name for dial in bad for name in (dial.source, dial.destination)}
        if fresh := sorted(involved - set(evidence or ())):
            evidence = {**(evidence or {}), **rules_of(at, fresh, peer_addresses(at, bad))}
        return cls(at, bad, good, evidence or {}, [dial for dial in dials if dial.outcome == UNMEASURED])

    @cached_property
    def _good_between(self) -> Mapping[frozenset[str], list[Dial]]:
        """The dials that opened, by the two nodes at their ends."""
        return values_by_key((frozenset((dial.source, dial.destination)), dial) for dial in self.good)

    def _opened_between(self, dial: Dial) -> Sequence[Dial]:
        """The dials between the same two nodes, either way, that opened."""
        return self._good_between.get(frozenset((dial.source, dial.destination)), ())

    @property
    def groups(self) -> list[list[Dial]]:
        """Failed dials in groups: one for each source, destination and outcome, with all its ports; a node with itself
        last."""
        itself_last = sorted(self.bad, key=lambda dial: dial.source == dial.destination)
        return list(
            values_by_key(((dial.source, dial.destination, dial.outcome), dial) for dial in itself_last).values()
        )

    def unexplained(self) -> list[Dial]:
        """Dials to try again: of each pair, some dials that met silence, when no rule surely accounts for it and
        packets may only have been lost; and all dials that were not measured.

        Where other dials between the same two nodes opened, and all at the first try, the silence was not loss."""
        found: list[Dial] = list(self.unmeasured)
        for dials in self.groups:
            if dials[0].outcome == "dropped" and not self._clean(dials[0]) and self._gone(dials[0]) is None:
                found += [
                    dial
                    for dial in sample_dials(dials, MIN_CLEAN_CONNECTIONS)
                    if not is_certainly_blocked(self.blocked([dial]))
                    and not ((reason := self._turned_away(dial)) and reason[2])
                ]
        return found

    def unsure(self) -> list[Dial]:
        """Failed dials between two nodes for which no rule is certain to be the reason; dials of other pairs may show
        it."""
        found: list[Dial] = []
        for dials in self.groups:
            if dials[0].source != dials[0].destination and not (
                dials[0].outcome in FILTER_OUTCOMES and is_certainly_blocked(self.blocked(dials[:1]))
            ):
                found += dials
        return found

    def _clean(self, dial: Dial) -> bool:
        """Whether enough dials between the two nodes opened at the first try to say that packets are not lost by
        chance."""
        if self.at.facts(dial.source).get("asks_ecn"):
            return False  # a device that drops packets with ECN passes the kernel's repeated one, which is without
        opened = self._opened_between(dial)
        return len(opened) >= MIN_CLEAN_CONNECTIONS and all(other.tries == 1 for other in opened)

    def findings(self) -> dict[str, list[Finding]]:
        """Findings by guilty node: one for each rule or kind of trouble."""
        return {name: [accusation.finding for accusation in few] for name, few in self.accusations.items()}

    @cached_property
    def guessed(self) -> frozenset[str]:
        """The nodes of which nothing shows that what failed is their own fault: it may be the other end's."""
        return frozenset(
            name for name, few in self.accusations.items() if all(one.guess and not one.common for one in few)
        )

    @cached_property
    def accusations(self) -> dict[str, list[Accusation]]:
        """Accusations by guilty node: one for each rule or kind of trouble."""
        found: dict[str, list[Accusation]] = defaultdict(list)
        for node, finding in self._unsent().items():
            found[node].append(Accusation(node, finding))
        judged = self._judged()
        blame = self._blame({_end_nodes(dials) for dials, accusation in judged if accusation.guess})
        for dials, first in judged:
            accusation = first.placed(blame, dials) if first.guess else first
            accusations = found[accusation.node]
            same = next((at for at, other in enumerate(accusations) if other.same(accusation)), None)
            if same is None:
                accusations.append(accusation)
            else:
                accusations[same] = accusations[same].merged(accusation)
        return found

    def _judged(self) -> list[tuple[list[Dial], Accusation]]:
        """The accusation of each group of dials. When an uncertain rule is named for other dials, a group that seemed
        only lossy met that rule too: it is not loss."""
        judged = [(dials, self._judge(dials)) for dials in self._by_rule() if dials[0].outcome != "unsent"]
        named = {accusation.rule for _, accusation in judged} - {""}
        found = []
        for dials, accusation in judged:
            blocked = (
                self.blocked(dials) if named and accusation.guess and dials[0].outcome in FILTER_OUTCOMES else None
            )
            known = blocked is not None and blocked.rule in named
            found.append((dials, self._filtered(dials, blocked) if known else accusation))
        return self._by_likely_rule(found)

    def _by_likely_rule(self, judged: list[tuple[list[Dial], Accusation]]) -> list[tuple[list[Dial], Accusation]]:
        """The groups that one rule most likely stops in one direction, joined, so that one command opens all of
        them."""
        joined = values_by_key(
            ((one.node, one.rule, dials[0].source == one.node) if one.rule else id(dials), (dials, one))
            for dials, one in judged
        )
        found = []
        for of in joined.values():
            dials, accusation = [dial for some, _ in of for dial in some], of[0][1]
            blocked = self.blocked(dials) if len(of) > 1 and dials[0].outcome in FILTER_OUTCOMES else None
            if blocked is None or blocked.rule != accusation.rule:
                found += of
            else:
                found.append((dials, self._filtered(dials, blocked)))
        return found

    def _blame(self, bad: Iterable[frozenset[str]]) -> BlamedNodes:
        """The nodes to blame for these failed pairs. A node's trouble with itself is left out."""
        tried = {frozenset((dial.source, dial.destination)) for dial in (*self.good, *self.bad)}
        return BlamedNodes.of((pair for pair in bad if len(pair) > 1), tried, node_groupings(self.at))

    def _unsent(self) -> dict[str, Finding]:
        """By node, a finding for a node that had no port left to dial from."""
        dials = [dial for dial in self.bad if dial.outcome == "unsent"]
        sources = dict.fromkeys(dial.source for dial in dials)
        return port_exhaustion_findings(
            self.at,
            {source: dial_summary_lines([dial for dial in dials if dial.source == source]) for source in sources},
            {source: sorted({d.destination for d in dials if d.source == source} - {source}) for source in sources},
        )

    def _by_rule(self) -> list[list[Dial]]:
        """The groups, joined where one rule stops them in the same way, so that one command opens all of them."""
        joined: dict[tuple[object, ...], list[Dial]] = {}
        for dials in self.groups:
            blocked = self.blocked(dials[:1]) if dials[0].outcome in FILTER_OUTCOMES else None
            key: tuple[object, ...] = (dials[0].source, dials[0].destination, dials[0].outcome)
            if blocked is not None and is_certainly_blocked(blocked):
                key = (blocked.rule, *((name, one.leg) for name, one in blocked.explanations if one.blocks))
            joined.setdefault(key, []).extend(dials)
        return list(joined.values())

    def blocked(self, dials: Sequence[Dial]) -> Blocked | None:
        """What the rules of both ends make of the first of these dials, with a remedy that opens all of them; None when
        they explain nothing."""
        first = dials[0]
        alike = [
            d for d in dials if (d.source, d.destination, d.outcome) == (first.source, first.destination, first.outcome)
        ]
        return explain_blocked(
            FILTER_OUTCOMES[first.outcome],
            replace(self._flow(first), ports=folded_ports(alike)),
            self._ends(dials),
            listener_was_up=first.mode != "knock",
        )

    def elsewhere(self, dials: Sequence[Dial]) -> Blocked | None:
        """The NAT rule that made another program than our listener answer these dials; None when there is none."""
        first = dials[0]
        return explain_redirection(self._flow(first), self._ends(dials))

    def _flow(self, dial: Dial) -> Flow:
        """The packets of a dial, as firewall rules see them."""
        to_itself = "lo" if dial.source == dial.destination else None
        return Flow(
            self.source_of(dial),
            self.destination_of(dial),
            dial.port,
            in_interface=to_itself,
            out_interface=to_itself,
            state="established" if dial.outcome in ESTABLISHED_OUTCOMES else "new",
            packet_length=self._mtu(dial.source) if dial.outcome == "lost" else None,
            source_ports=(min(dial.from_ports), max(dial.from_ports)) if dial.from_ports else DEFAULT_EPHEMERAL_PORTS,
        )

    def _ends(self, dials: Sequence[Dial]) -> Ends:
        """The ends of the first of these dials, with all ports and addresses that one command is to open."""
        first = dials[0]
        arriving = [dial for dial in dials if dial.destination == first.destination]
        leaving = [dial for dial in dials if dial.source == first.source]
        other_sources = self._untried(first.destination, {dial.source for dial in arriving})
        other_destinations = self._untried(first.source, {dial.destination for dial in leaving})
        return replace(
            Ends.of(self.evidence, first.source, first.destination),
            ports=needed_ports(self.at.inventory, dials, self._handed_out(dials)),
            sources=sorted({*map(self.source_of, arriving), *self._numbers(other_sources)}),
            destinations=sorted({*map(self.destination_of, leaving), *self._numbers(other_destinations)}),
        )

    def _untried(self, name: str, failed: Collection[str]) -> list[str]:
        """The nodes that this node was not tried with, if it failed with all that it was tried with; else none. In a
        large cluster only some pairs are dialled, and a remedy for these alone would leave the ranks on all other nodes
        blocked."""
        tried = self._tried_with.get(name, set())
        if tried - {name} <= {*failed}:
            return [node.name for node in self.at.nodes if node.name not in tried and node.name != name]
        return []

    def _numbers(self, names: Iterable[str]) -> Iterator[str]:
        return (numeric_node_address(self.at, name) for name in names)

    @cached_property
    def _tried_with(self) -> Mapping[str, set[str]]:
        """By node, the nodes that it dialled or that dialled it."""
        found: dict[str, set[str]] = defaultdict(set)
        for dial in (*self.good, *self.bad, *self.unmeasured):
            found[dial.source].add(dial.destination)
            found[dial.destination].add(dial.source)
        return found

    def _handed_out(self, dials: Iterable[Dial]) -> list[tuple[int, int]]:
        """The ranges of ports that the kernels of the dialled nodes hand out."""
        ranges = (port_range(self.at.facts(name)) for name in dict.fromkeys(dial.destination for dial in dials))
        return [span for span in ranges if span is not None]

    def source_of(self, dial: Dial) -> str:
        """The address that the dialler's kernel chose, which is the one that rules at the other end see."""
        return dial.local or numeric_node_address(self.at, dial.source)

    def destination_of(self, dial: Dial) -> str:
        """The numeric address that was dialled."""
        return dial.remote or numeric_address(self.at, dial.address)

    def _mtu(self, name: str) -> int | None:
        """The MTU of the node's interface to its peers; None when it is not known."""
        entries = self.at.facts(name).get("interfaces", {}).values()
        address = numeric_node_address(self.at, name)
        return next((entry["mtu"] for entry in entries if address in entry["addresses"]), None)

    def _judge(self, dials: list[Dial]) -> Accusation:
        """The accusation for these failed dials of one direction: the guilty node and the finding."""
        if misled := self._misled(dials):
            return misled
        blocked = self.blocked(dials) if dials[0].outcome in FILTER_OUTCOMES else None
        return self._not_filtered(dials, blocked) or self._filtered(dials, blocked)

    def _misled(self, dials: list[Dial]) -> Accusation | None:
        """The accusation for dials that did not lead to the other node: because of a name, a NAT rule, or a lost
        address. Else None."""
        first, seen = dials[0], tuple(dial_summary_lines(dials))
        source, destination = first.source, first.destination
        if first.outcome == "unresolvable":
            says = f"{source} cannot resolve {first.address}"
            finding = finding_for("name-unresolvable", says, seen, (destination,), way="node", source=source)
            return Accusation(source, finding)
        if first.outcome in ("stranger", *ESTABLISHED_OUTCOMES) and (led := self.elsewhere(dials)):
            finding = with_dial_evidence(Finding(led.cause, led.says, led.remedy, led.evidence), led.node, dials)
            return Accusation(led.node, finding, led.rule, led.remedies, source == destination)
        if first.outcome == "stranger":
            finding = finding_for(
                "name-wrong-address",
                f"{first.address} leads {source} to another machine than {destination}: the listener that "
                "answers there is not ours",
                seen,
                (source,),
                destination=destination,
                source=source,
            )
            return Accusation(destination, finding, guess=True)
        if first.outcome in ("dropped", "rejected") and (missing := self._gone(first)):
            node, finding = missing
            return Accusation(node, with_dial_evidence(finding, node, dials))
        return None

    def _not_filtered(self, dials: list[Dial], blocked: Blocked | None) -> Accusation | None:
        """The accusation for dials that no rule surely explains, or None. `blocked`: what the rules make of the
        dials."""
        first, seen = dials[0], tuple(dial_summary_lines(dials))
        source, destination = first.source, first.destination
        if not is_certainly_blocked(blocked) and (refused := self._turned_away(first)):
            node, finding, _ = refused
            return Accusation(node, with_dial_evidence(finding, node, dials))
        if (
            first.outcome == "dropped"
            and not is_certainly_blocked(blocked)
            and (policy := network_policy_finding(self.at, dials, seen))
        ):
            return Accusation(*policy)
        ends = self.evidence.get(source), self.evidence.get(destination)
        if first.errno in ("ENETUNREACH", "EHOSTUNREACH") and not can_rules_reject(*ends):
            says = f"{source} cannot reach {destination} ({first.address}): {first.errno}"
            finding = finding_for(
                "no-route", says, seen, (destination,), way="node", source=source, address=shell_word(first.address)
            )
            return Accusation(source, finding)
        by_chance = blocked is not None and blocked.by_chance
        quiet = first.outcome in ("dropped", "silent", "lost")
        if quiet and not is_certainly_blocked(blocked) and not by_chance and (lossy := self._lossy(dials)):
            return Accusation(destination, lossy_link_finding(source, destination, lossy, seen), guess=True)
        if first.outcome in ESTABLISHED_OUTCOMES and not (
            blocked and (is_certainly_blocked(blocked) or blocked.remedies)
        ):
            return Accusation(destination, self._broken(dials, seen), guess=True)
        return None

    def _filtered(self, dials: list[Dial], blocked: Blocked | None) -> Accusation:
        """The accusation for dials that a rule stops, or that nothing known explains."""
        first, seen = dials[0], dial_summary_lines(dials)
        source, destination = first.source, first.destination
        if blocked is None:
            says = f"{destination} refuses {source} on {ports_text(dials)} although our listener was up"
            finding = finding_for("master-not-listening", says, tuple(seen), (source,), destination=destination)
            return Accusation(destination, finding, guess=True)
        cause, says = blocked.cause, blocked.says
        ends = Ends.of(self.evidence, source, destination)
        if first.outcome == "lost" and not stops_small_packets(blocked, self._flow(first), ends):
            cause = "mtu-blackhole"
            says = f"full-size packets from {source} to {destination} vanish while small ones pass: {says}"
        # without this sentence the finding would only name ephemeral ports, which are random
        elif self._only_data_ports(dials) and (is_certainly_blocked(blocked) or not blocked.rule):
            cause = "data-ports-blocked"
            says = (
                f"the rendezvous port {self.at.inventory.rendezvous.port} opens, but the ports on which the ranks "
                f"exchange data do not: {says}"
            )
        more = () if is_certainly_blocked(blocked) else unexplained_pods_evidence(self.at, dials)
        evidence = (*more, *ephemeral_ports_reason(dials, blocked.remedy, self._handed_out(dials)), *blocked.evidence)
        finding = with_dial_evidence(Finding(cause, says, blocked.remedy, evidence), blocked.node, dials)
        guess = blocked.between or blocked.unread or blocked.unseen
        return Accusation(blocked.node, finding, blocked.rule, blocked.remedies, source == destination, guess)

    def _gone(self, dial: Dial) -> tuple[str, Finding] | None:
        """What an end has lost since the run began (an address or a route), with that node. It explains a failure
        before any rule does."""
        near, far = (
            (dial.source, numeric_node_address(self.at, dial.source)),
            (dial.destination, self.destination_of(dial)),
        )
        for (name, address), (_, peer) in ((near, far), (far, near)):
            if dial.source != dial.destination and (
                found := unusable_path_finding(self.at, name, address, peer, self.evidence.get(name))
            ):
                return name, found
        return None

    def _turned_away(self, dial: Dial) -> tuple[str, Finding, bool] | None:
        """The node whose own kernel refuses just this port, user or mark by a policy rule, the finding, and whether it
        is certain."""
        if dial.outcome not in ("dropped", "rejected"):
            return None
        near, far = self.source_of(dial), self.destination_of(dial)
        port, any_port = NumberRange.exactly(dial.port), NumberRange(*DEFAULT_EPHEMERAL_PORTS)
        ways = (
            (dial.source, Sent(far, near, any_port, port), f"TCP {dial.port} to {dial.destination} ({far})"),
            (
                dial.destination,
                Sent(near, far, port, any_port),
                f"answers from TCP {dial.port} to {dial.source} ({near})",
            ),
        )
        reasons = [
            (name, *found)
            for name, sent, what in ways
            if (found := refusing_policy_finding(name, sent, what, self.evidence.get(name))) is not None
        ]
        return max(reasons, key=lambda one: one[2], default=None)

    def _only_data_ports(self, dials: list[Dial]) -> bool:
        """Whether both nodes can join the rendezvous, and only ports on which ranks meet afterwards are closed."""
        source, destination = dials[0].source, dials[0].destination
        master = self.at.inventory.rendezvous.master
        tried = (*self._opened_between(dials[0]), *self.bad)
        fixed = [dial for dial in tried if (dial.source, dial.destination) == (source, destination)]
        fixed = [dial for dial in fixed if dial.kind in ("rendezvous", "range")]
        return (
            any(dial.kind == "ephemeral" for dial in dials)
            and {source, destination} - {master} <= self._joining
            and (not fixed or any(dial.outcome == "open" for dial in fixed))
        )

    @cached_property
    def _joining(self) -> frozenset[str]:
        """Nodes that reach the rendezvous."""
        master = self.at.inventory.rendezvous.master
        return frozenset(d.source for d in self.good if d.kind == "rendezvous" and d.destination == master)

    def _lossy(self, dials: list[Dial]) -> str | None:
        """Why these failed dials are loss and not a filter, in words: others between the same two nodes opened only
        after several tries, or had to send again. A single repetition only means a busy moment. When the rules of an
        end were not read, these repetitions must also be many enough to explain the silence. None when it is no
        loss."""
        same = self._opened_between(dials[0])
        slow = [dial for dial in same if dial.tries > 1]
        repeated = sum(dial.retransmitted or 0 for dial in same)
        if not slow and repeated < MIN_RETRANSMITTED_SEGMENTS:
            return None
        unread = None in (self.evidence.get(dials[0].source), self.evidence.get(dials[0].destination))
        if unread and dials[0].outcome == "dropped" and not _is_chance_loss(dials, same):
            return None
        several = f"{count_text(len(slow), 'connection')} opened only after several tries"
        seen = [f"{several} (up to {max(d.tries for d in slow)})"] if slow else []
        seen += [f"{repeated} segments had to be sent again"] if repeated else []
        never = "never" if dials[0].outcome == "dropped" else "opened and carried nothing through"
        return f"{', '.join(seen)}, {len(dials)} {never}"

    def _broken(self, dials: list[Dial], seen: tuple[str, ...]) -> Finding:
        """The finding for dials that open and then break or carry nothing, when no rule accounts for it."""
        first = dials[0]
        cause, then = {
            "reset": ("tcp-connection-lost-midrun", "is then reset"),
            "silent": ("packet-loss", "then nothing more comes through"),
            "lost": ("mtu-blackhole", "then full-size packets do not arrive"),
        }[first.outcome]
        return finding_for(
            cause,
            f"TCP from {first.source} to {first.destination} opens on {ports_text(dials)}, and {then}; no rule that "
            "could be read accounts for it: the fault is at either end, or between them",
            seen,
            (first.source,),
            way="between",
            filter=shell_word(f"tcp port {first.port} and host {self.destination_of(first)}"),
        )


def sample_dials(dials: Sequence[Dial], count: int) -> Sequence[Dial]:
    """At most `count` of these dials, spread over all kinds and ports, with the first and the last."""
    if len(dials) <= count:
        return dials
    ordered = sorted(dials, key=lambda dial: (dial.kind, dial.port))
    return [ordered[at * (len(ordered) - 1) // (count - 1)] for at in range(count)]


def _is_chance_loss(dials: Sequence[Dial], opened: Sequence[Dial]) -> bool:
    """Whether a path may have lost every try of a dial by chance, if it loses packets at the rate that was seen on the
    dials that opened. A dial that opens carries at least two packets through: its own, and the data it is there to
    send."""
    lost = sum(dial.tries - 1 + (dial.retransmitted or 0) for dial in opened)
    rate = (lost + 1) / (lost + 2 * len(opened) + 1)
    return rate ** max(dial.tries for dial in dials) >= MIN_CHANCE


def _end_nodes(dials: Sequence[Dial]) -> frozenset[str]:
    """The two nodes of these dials, all of which are between the same two."""
    return frozenset((dials[0].source, dials[0].destination))


def lossy_link_finding(source: str, destination: str, lossy: str, seen: tuple[str, ...]) -> Finding:
    """The finding for loss that no rule explains: on the link between two nodes, or inside one node."""
    own = source == destination
    where = f"that {source} sends to itself" if own else f"between {source} and {destination}"
    return finding_for(
        "packet-loss",
        f"packets {where} are lost: {lossy}",
        seen,
        tuple({source} - {destination}),
        way="itself" if own else "link",
        source=source,
        destination=destination,
    )


def with_dial_evidence(finding: Finding, node: str, dials: Sequence[Dial]) -> Finding:
    """The finding, with what was seen of these dials before its own evidence, and with their other ends as peers."""
    ends = dict.fromkeys(name for dial in dials for name in (dial.source, dial.destination))
    evidence = (*dial_summary_lines(dials)[:4], *finding.evidence)[:MAX_DIAL_EVIDENCE_LINES]
    return replace(finding, evidence=evidence, peers=tuple(name for name in ends if name != node))


def can_rules_reject(*evidence: Evidence | None) -> bool:
    """Whether a rule could have sent an `unreachable`. Without any rules, the routing did."""
    return any(one is None or one.bases(4) or one.bases(6) for one in evidence)
