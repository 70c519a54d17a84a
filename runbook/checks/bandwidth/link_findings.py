"""Findings by node from measured links, with their remedies. Pure."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from runbook.causes.catalogue import finding_for, remedy_from_page
from runbook.checks.bandwidth.adapters import NodeAdapters, SlowReason, interface_error_lines
from runbook.checks.bandwidth.allreduce_blame import (
    inspection_remedy,
    no_culprit_remedy,
    node_charge_finding,
    own_slow_reasons,
    slow_rail_evidence,
)
from runbook.checks.bandwidth.allreduce_bottleneck import LinkLayer, between_nodes_layer
from runbook.checks.bandwidth.slow_link_search import MeasuredLink, Search, unjudged_link_text
from runbook.checks.bandwidth.slow_links import Endpoint, Judgement, Link, LinksVerdict, Role
from runbook.checks.network.mesh import too_busy_finding
from runbook.checks.ranks.pool import RankMember
from runbook.model.grouping import values_by_key
from runbook.model.units import link_rate_text, name_list_text, quantity_range_text, significant_digits_text
from runbook.model.verdict import Finding

MAX_SHOWN_LINKS = 6
"""How many links are shown as evidence; `links.csv` has them all."""

MIN_LATE_FACTOR, MIN_LATE_US = 5.0, 100.0
"""A node gets a warning when a few bytes take this many times as long as is usual, and this many microseconds longer,
with every partner."""

MIN_MENTIONED_NOISE = 0.25
"""The noise is mentioned when it hides rates that are up to this far below the median."""

MIN_STARVED_TRANSFERS_SHARE = 0.2
"""When this part of all transfers does not count, since an end had no CPU, slow links all over prove nothing either:
the machines may be short of time in ways that are not seen."""

MIN_DUPLEX_SHARE = 0.6
"""A node gets a warning when less than this part of one direction's rate remains while the other direction is busy, and
other nodes keep more."""

ROLE_VERBS = {Role.SENDS: ("sends", "whoever receives"), Role.RECEIVES: ("receives", "whoever sends")}
"""For a node's role, the verb of a sentence, and its partners in words."""


@dataclass(frozen=True)
class LinkFindings:
    """Findings and warnings by node. `unsettled`: by node, why nothing is known about it."""

    findings: Mapping[str, list[Finding]] = field(default_factory=dict)
    unsettled: Mapping[str, Finding] = field(default_factory=dict)
    warnings: Mapping[str, list[str]] = field(default_factory=dict)


def link_search_findings(
    done: Search, members: Sequence[RankMember], wires: Mapping[str, NodeAdapters], floor: float | None
) -> LinkFindings:
    """The findings of a search. `floor`: Gbit/s that every node should have at least, or None."""
    return _FindingsOfLinks(done, members, wires, floor).findings()


class _FindingsOfLinks:
    """Makes the findings of one search. `found` collects them by node."""

    def __init__(
        self, done: Search, members: Sequence[RankMember], wires: Mapping[str, NodeAdapters], floor: float | None
    ) -> None:
        self.done, self.members, self.wires, self.floor = done, members, wires, floor
        self.verdict: LinksVerdict = done.verdict
        self.judged: Judgement = done.judge()
        self.median = self.verdict.normal.median
        self.rates = done.best
        self.found: dict[str, list[Finding]] = {}
        self.of_link = values_by_key((each.link, each) for each in done.found)
        self.of_node = values_by_key((each.link.end(role).name, each) for each in done.found for role in Role)

    @cached_property
    def lossy_from(self) -> float:
        return self.done.lossy_from

    @cached_property
    def layer(self) -> LinkLayer:
        return between_nodes_layer(self.done)

    def findings(self) -> LinkFindings:
        if self.verdict.common and (busy := self._too_busy()):
            return LinkFindings({}, busy, self._warnings())
        if self.verdict.common:
            self._all(self._common())
        elif self.floor is not None and self.median * 8 < self.floor:
            self._all(f"every link is slow: {self._span(self.rates)}, at least {link_rate_text(self.floor)} are due")
        else:
            for leaf in self.verdict.leaves:
                self._leaf(leaf)
            for pair in self.verdict.leaf_pairs:
                self._leaf_pair(pair)
            for name in dict.fromkeys(end.name for end in self.verdict.nodes):
                self._node(name)
            for link in self.verdict.links:
                self._link(link)
        return LinkFindings(self.found, {} if self.verdict.common else self._unsettled(), self._warnings())

    # Numbers as text.

    def _lost(self, links: Iterable[Link]) -> float | None:
        """The share of segments that each of these links lost at least, most times; None if one of the links is not
        lossy.

        Not every time: a short transfer has few packets, and sometimes none of them is lost."""
        losses = [[each.moved.losses or 0.0 for each in self.of_link.get(link, ()) if each.counts] for link in links]
        least = min((statistics.median_low(of_link) if of_link else 0.0 for of_link in losses), default=0.0)
        return least if least >= self.lossy_from else None

    def _loss(self, links: Iterable[Link]) -> str:
        """The end of a sentence when these links lose packets; else ""."""
        lost = self._lost(links)
        return "" if lost is None else f", and most times {lost:.1%} of the TCP segments or more are lost"

    def _cause(self, links: Collection[Link], slow: str) -> str:
        """`link-lossy` when packets are lost, unless the rate is also held back: a rate limit loses packets too."""
        limit = self.verdict.normal.suspect * self.median
        held_back = slow == "node-slow" and all(self.rates[link] < limit for link in links)
        return slow if held_back or self._lost(links) is None else "link-lossy"

    def _of_usual(self, link: Link) -> str:
        """The best rate of a link in words, with its share of the median."""
        rate = self.rates[link]
        return f"{gbps_text(rate)} ({rate / self.median:.0%})" if self.median else gbps_text(rate)

    def _others(self) -> str:
        return f"the median of all is {gbps_text(self.median)}"

    def _span(self, links: Iterable[Link]) -> str:
        rates = [self.rates[link] for link in links]
        return quantity_range_text(gbps_text(min(rates)), gbps_text(max(rates)))

    def _evidence(self, links: Iterable[Link]) -> tuple[str, ...]:
        """The slowest of these links as lines of evidence, each with its rounds."""
        lines = []
        slowest = sorted(links, key=self.rates.__getitem__)
        for link in slowest[:MAX_SHOWN_LINKS]:
            rounds = sorted(each.round + 1 for each in self.of_link[link] if each.counts)
            numbers = ", ".join(map(str, rounds))
            lost = self._lost([link])
            losses = "" if lost is None else f", {lost:.1%} lost"
            lines.append(f"{link}: {self._of_usual(link)}{losses}, round{'s' * (len(rounds) > 1)} {numbers}")
        if len(slowest) > MAX_SHOWN_LINKS:
            lines.append(f"and {len(slowest) - MAX_SHOWN_LINKS} more in links.csv")
        return tuple(lines)

    # Findings.

    def _add(self, node: str, finding: Finding) -> None:
        self.found.setdefault(node, []).append(finding)

    def _all(self, says: str) -> None:
        """Adds the same finding to every node."""
        evidence = self._evidence(self.rates)
        for node in self.done.nodes:
            self._add(
                node,
                Finding(
                    "link-slow", says, no_culprit_remedy(self.wires) or remedy_from_page("link-slow", "all"), evidence
                ),
            )

    def _common(self) -> str:
        """Why no node is named, in words: more links are slow than single nodes explain."""
        slow = sum(rate.suspect for rate in self.judged.best.values())
        return (
            f"{slow} of {len(self.judged.best)} links carry less than {self.verdict.normal.suspect:.0%} of what the "
            f"fast ones do ({self._span(self.rates)}): more than single slow nodes explain, so no node is named"
        )

    def _too_busy(self) -> dict[str, Finding]:
        """A finding for every node, when links are slow all over and an end got no CPU in many transfers; else
        empty."""
        waits = [each for each in self.done.found if not each.counts]
        if len(waits) < MIN_STARVED_TRANSFERS_SHARE * len(self.done.found):
            return {}
        seen = f"links are slow all over, and in {len(waits)} of {len(self.done.found)} transfers an end got no CPU"
        return {node: too_busy_finding(node, seen, self._evidence_of(waits)) for node in self.done.nodes}

    def _reasons(self, node: str) -> list[SlowReason]:
        """What the node's own adapters say that explains a rate below the usual one."""
        return own_slow_reasons(node, self.wires, self.rates, 0.95 * self.median)

    def _node(self, name: str) -> None:
        """Adds the finding for a slow node, with all its slow roles."""
        roles = [end.role for end in self.verdict.nodes if end.name == name]
        links = self._links(name, roles)
        slow = [link for link in links if self.judged.best[link].suspect] or links
        what = " and ".join(ROLE_VERBS[role][0] for role in roles)
        whoever = "with every other node" if len(roles) > 1 else ROLE_VERBS[roles[0]][1]
        says = f"{name} {what} at {self._span(slow)}, {whoever} ({len(slow)} tried){self._loss(slow)}; {self._others()}"
        mates = [end.name for end in self.verdict.nodes]
        leaf = self.done.leaf_of.get(name)
        shared = len(mates) > 1 and leaf and all(self.done.leaf_of.get(mate) == leaf for mate in mates)
        evidence = (
            *self._evidence(slow),
            *slow_rail_evidence(self.layer, slow, self.members),
            *((f"all slow nodes share {leaf}: {', '.join(dict.fromkeys(mates))}",) if shared else ()),
            *(interface_error_lines(self.wires[name]) if name in self.wires else ()),
        )
        peers = tuple(dict.fromkeys(link.destination if link.source == name else link.source for link in slow))
        where, cause = inspection_remedy(name, self.wires), self._cause(slow, "node-slow")
        self._add(name, node_charge_finding(name, says, self._reasons(name), where, evidence, peers, cause))

    def _link(self, link: Link) -> None:
        """Adds the findings for a slow link, to both of its ends."""
        two = len(self.done.nodes) == 2
        cause = self._cause([link], "link-slow")
        lossy = cause == "link-lossy"
        badly = "badly" if lossy else "slowly"
        says = f"{link} carries {self._of_usual(link)}{self._loss([link])}; {self._others()}: " + (
            f"{link.source} sends {badly}, or {link.destination} receives {badly}; a third node would show which"
            if two
            else f"only on the way between these two; with other nodes both are {'sound' if lossy else 'fast'}"
        )
        evidence = (*self._evidence([link]), *slow_rail_evidence(self.layer, [link], self.members))
        for node, other in ((link.source, link.destination), (link.destination, link.source)):
            where = inspection_remedy(node, self.wires)
            self._add(node, node_charge_finding(node, says, self._reasons(node), where, evidence, (other,), cause))

    def _leaf(self, leaf: Endpoint) -> None:
        """Adds the findings for a slow leaf, to all its nodes."""
        nodes = [node for node in self.done.nodes if self.done.leaf_of.get(node) == leaf.name]
        links = [
            link
            for link in self.rates
            if link.end(leaf.role).name in nodes and link.end(leaf.role.opposite).name not in nodes
        ]
        verb = ROLE_VERBS[leaf.role][0]
        where = {
            True: f"and among themselves they are fast: what joins {leaf.name} to the others is slow",
            False: "among themselves as well",
            None: "with all others",
        }[self.verdict.inside.get(leaf.name)]
        says = (
            f"all {len(nodes)} nodes of {leaf.name} are slow when one of them {verb}, "
            f"{self._span(links)}{self._loss(links)}, {where}; {self._others()}"
        )
        self._of_switch(nodes, says, [leaf.name], links)

    def _leaf_pair(self, pair: Link) -> None:
        """Adds the findings for two leaves between which everything is slow in one direction."""
        leaf_of = self.done.leaf_of
        links = [
            link
            for link in self.rates
            if (leaf_of.get(link.source), leaf_of.get(link.destination)) == (pair.source, pair.destination)
        ]
        says = (
            f"everything from {pair.source} to {pair.destination} is slow, {self._span(links)} on {len(links)} "
            f"links{self._loss(links)}, while their nodes are fast with others: the way between these two switches; "
            f"{self._others()}"
        )
        here, there = (
            tuple(node for node in self.done.nodes if leaf_of.get(node) == leaf)
            for leaf in (pair.source, pair.destination)
        )
        for nodes, peers in ((here, there), (there, here)):
            self._of_switch(nodes, says, [pair.source, pair.destination], links, peers)

    def _of_switch(
        self, nodes: Iterable[str], says: str, leaves: Sequence[str], links: Sequence[Link], peers: tuple[str, ...] = ()
    ) -> None:
        """Adds the same finding about these leaves to each of the nodes."""
        evidence, named = self._evidence(links), " and ".join(leaves)
        for node in nodes:
            self._add(node, finding_for("leaf-slow", says, evidence, peers, way="ports", leaves=named))

    # What is unknown, and warnings.

    def _unsettled(self) -> dict[str, Finding]:
        """By node, why a node without a finding is not proven: it had no CPU, or was measured too rarely."""
        busy = set(self.done.too_busy)
        found: dict[str, Finding] = {}
        for node in self.done.nodes:
            roles = [role for role in Role if not self.judged.proven(node, role)]
            if node in self.found or not roles:
                continue
            waits = [each for each in self.of_node.get(node, ()) if not each.counts]
            if waits and (node in busy or not any(each.counts for each in self._of(node, roles))):
                seconds = max(each.moved.waited for each in waits)
                seen = (
                    f"in {len(waits)} tries it, or its partner, got no CPU for up to {seconds:.1f} s of "
                    f"{waits[0].moved.seconds:.1f} s"
                )
                found[node] = too_busy_finding(node, seen, self._evidence_of(waits))
                continue
            slow = self._links(node, roles)
            says = f"{node} was never fast when it {roles[0].value}, but was measured too rarely to be called slow"
            stopped = f": {self.done.stopped}" if self.done.stopped else ""
            evidence = self._evidence(slow)
            found[node] = finding_for("insufficient-evidence", says + stopped, evidence, way="links", node=node)
        return found

    def _of(self, node: str, roles: Sequence[Role]) -> list[MeasuredLink]:
        """The measurements of a node in these roles."""
        return [each for each in self.of_node.get(node, ()) if any(each.link.end(role).name == node for role in roles)]

    def _links(self, node: str, roles: Sequence[Role]) -> list[Link]:
        """The links of a node in these roles that have a measurement that counts."""
        return list(dict.fromkeys(each.link for each in self._of(node, roles) if each.counts))

    def _evidence_of(self, found: Sequence[MeasuredLink]) -> tuple[str, ...]:
        """Measurements that do not count, as lines of evidence."""
        return tuple(
            f"{each.link}: {gbps_text(each.moved.gbytes)} in round {each.round + 1}, did not run for "
            f"{each.moved.waited:.2f} of {each.moved.seconds:.2f} s: does not count"
            for each in found[:MAX_SHOWN_LINKS]
        )

    def _warnings(self) -> dict[str, list[str]]:
        """Warnings by node: shared uplinks, slow links that nothing confirms, links that were never judged, noise,
        latency and half duplex."""
        found: dict[str, list[str]] = {}
        if not self.verdict.common:
            shared = [link for link in self.verdict.open if self._shares_an_uplink(link)]
            if shared and not self.found:
                worst = min(each.moved.gbytes for link in shared for each in self.of_link[link] if each.counts)
                leaves = sorted({end.name for end in self.judged.shared_uplinks})
                part = f"{worst / self.median:.0%} of the median"
                text = (
                    f"links between {name_list_text(leaves)} share an uplink: {len(shared)} of them carried down to "
                    f"{gbps_text(worst)} ({part}) beside others, and what was measured alone as much as any"
                )
                found[shared[0].source] = [text]
            for link in [link for link in self.verdict.open if link not in shared][:MAX_SHOWN_LINKS]:
                if link.source not in self.found and link.destination not in self.found:
                    counted = [each.moved for each in self.of_link[link] if each.counts]
                    worst, lost = min(each.gbytes for each in counted), max(each.losses or 0.0 for each in counted)
                    losses = f", {lost:.1%} of the TCP segments lost" if lost >= self.lossy_from else ""
                    seen = f"{gbps_text(worst)} ({worst / self.median:.0%} of the median){losses}"
                    found.setdefault(link.source, []).append(f"{link} was slow once, {seen}, and nothing confirms it")
        for link in self.done.never_counted[:MAX_SHOWN_LINKS]:
            if not self.found.keys() & {*link.ends}:
                found.setdefault(link.source, []).append(unjudged_link_text(link))
        normal = self.verdict.normal
        if len(self.done.nodes) > 2 and 1 - normal.suspect > MIN_MENTIONED_NOISE:
            text = (
                f"noise of {normal.sigma:.0%}: rates above {normal.suspect:.0%} of the median cannot be "
                "distinguished from it"
            )
            for node in self.done.nodes:
                found.setdefault(node, []).append(f"{text}; longer transfers (`seconds:`) on idle nodes show more")
        for name, text in (*self._late(), *self._half_duplex()):
            found.setdefault(name, []).append(text)
        return found

    def _shares_an_uplink(self, link: Link) -> bool:
        """Whether the link crosses a leaf whose nodes share a narrow uplink."""
        leaves = self.judged.leaves_of(link)
        return leaves is not None and any(leaves.end(role) in self.judged.shared_uplinks for role in Role)

    def _late(self) -> list[tuple[str, str]]:
        """Warnings for nodes for which a few bytes take far longer than for others."""
        own = {
            node: [each.moved.us for each in self.of_node.get(node, ()) if each.moved.us is not None]
            for node in self.done.nodes
        }
        least = {node: min(times) for node, times in own.items() if times}
        if len(least) < 3:
            return []
        usual = statistics.median(least.values())
        return [
            (
                node,
                (
                    f"a few bytes to or from {node} take {significant_digits_text(us)} us one way, "
                    f"elsewhere {significant_digits_text(usual)}: "
                    "`ping`, `tc qdisc show`"
                ),
            )
            for node, us in least.items()
            if us > max(MIN_LATE_FACTOR * usual, usual + MIN_LATE_US)
        ]

    def _half_duplex(self) -> list[tuple[str, str]]:
        """Warnings for nodes that lose much of one direction while the other is busy, when others do not."""
        kept: dict[str, list[float]] = {}
        for each in self.done.found:
            if each.counts and each.moved.both is not None and each.moved.gbytes:
                for node in (each.link.source, each.link.destination):
                    kept.setdefault(node, []).append(each.moved.both / each.moved.gbytes)
        middle = {node: statistics.median(parts) for node, parts in kept.items()}
        usual = statistics.median(middle.values()) if middle else 0.0
        if len(middle) < 3 or usual < 0.8:
            return []
        where = "`ethtool IFACE | grep Duplex`, the width of its PCIe slot"
        return [
            (node, f"{node} keeps {part:.0%} of its rate while both ways are busy, others {usual:.0%}: {where}")
            for node, part in middle.items()
            if part < MIN_DUPLEX_SHARE
        ]


def gbps_text(gbytes: float) -> str:
    """A rate in words; GB/s in, Gbit/s out, as links are rated."""
    return link_rate_text(gbytes * 8)


def link_metrics(found: Iterable[MeasuredLink]) -> list[dict[str, object]]:
    """Measured links as the result has them, in Gbit/s and microseconds, without measurements that do not count."""
    return [
        {
            "from": each.link.source,
            "to": each.link.destination,
            "gbps": round(each.moved.gbytes * 8, 6),
            "us": None if each.moved.us is None else round(each.moved.us, 1),
            "losses": None if each.moved.losses is None else round(each.moved.losses, 6),
            "round": each.round + 1,
            "both_gbps": None if each.moved.both is None else round(each.moved.both * 8, 6),
        }
        for each in found
        if each.counts
    ]


def measurements_csv(done: Search) -> str:
    """Every measurement as CSV, also those that do not count."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    numbers = ["gbps", "both_gbps", "us", "losses", "seconds", "waited"]
    table.writerow(["from", "to", "round", *numbers, "long", "asked", "counts", "alone"])
    for each in done.found:
        moved = each.moved
        values = (
            moved.gbytes * 8,
            moved.both * 8 if moved.both is not None else None,
            moved.us,
            moved.losses,
            moved.seconds,
            moved.waited,
        )
        shown = ["" if number is None else f"{number:.6g}" for number in values]
        flags = [int(flag) for flag in (each.meeting.long, each.meeting.asked, each.counts, each.meeting.alone)]
        table.writerow([each.link.source, each.link.destination, each.round + 1, *shown, *flags])
    return text.getvalue()
