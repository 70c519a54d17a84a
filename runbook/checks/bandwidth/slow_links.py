"""What measured links prove: which node in which direction, which link, or which leaf is slow. Pure: numbers in, names
out.

A rate is compared with the median of the other rates, and with their spread (MAD). A slow link has two suspects, and
the path between them. A node that was fast once in a role is proven in that role. A node is accused in a role only if
links with three different partners that are proven in the opposite role are all slow, and after that a longer transfer
too, which has the uplinks of both leaves to itself. A link is accused only if it is slow three times, the last time
alone, while both of its ends are proven elsewhere. If links are slow only beside others, the reason is the leaf's
uplink, which its nodes share.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

MIN_CONFIRMATIONS = 3
"""How many different proven partners an accused node must have met, and how many tries an accused link must have
had."""

MIN_SUSPECT_DROP, MIN_CONFIRMED_DROP, MIN_MEAN_DROP = 0.10, 0.07, 0.095
"""Shares below the median. A single rate is suspect from the first on; each rate of an accused must be below by the
second, and their mean by the third."""

SUSPECT_SIGMAS, CONFIRMED_SIGMAS, MEAN_SIGMAS = 3.3, 2.3, 3.1
"""The same three limits in standard deviations, which count where they are wider: noise accuses no node."""

MAX_TOLERATED_DROP = 0.5
"""A rate of less than half the median is suspect, however wide the noise."""

ANCHOR_QUANTILE = 0.9
"""The quantile at which the search for the median of the sound rates begins. With half of all nodes slow in both
directions, a quarter of the links is sound; of four nodes, a sixth."""

MIN_ANCHOR_SHARE = 0.85
"""Rates of at least this part of the anchor begin the search. Also the tolerance for chance in the number of sound
links."""
MAX_FAST_UPLINK_SHARE = 0.4
"""This part of the links out of a leaf with too narrow an uplink may be fast: those that have the uplink to themselves
for a while."""

MAX_OTHERS_SLOW_SHARE = 0.1
"""All leaves have narrow uplinks, as many networks are built, when more than this part of the links between other
leaves was slow as well, and a link out of the leaf was fast, if only alone."""

MAX_SLOW_NODES_SHARE = 0.4
"""When more than this part of the nodes is slow, single faults do not explain it."""

MIN_REFERENCE_LINKS = 12
"""A round with this many links that were not asked about is its own reference; with fewer, all rounds share one."""

MAD_TO_SIGMA = 1.4826
"""The standard deviation of normally distributed numbers is this many times their MAD."""
MIN_MAD_RATES = 24
"""With fewer rates the MAD is unreliable; the standard deviation, without the slow rates, is close enough."""


class Role(Enum):
    """What a node does on a link."""

    SENDS = "sends"
    RECEIVES = "receives"

    @property
    def opposite(self) -> Role:
        return Role.RECEIVES if self is Role.SENDS else Role.SENDS


@dataclass(frozen=True, slots=True, order=True)
class Link:
    """One direction, from a node (or a rank, or a leaf) to another."""

    source: str
    destination: str

    def __str__(self) -> str:
        return f"{self.source} → {self.destination}"

    @property
    def ends(self) -> tuple[str, str]:
        """The source and the destination."""
        return self.source, self.destination

    def end(self, role: Role) -> Endpoint:
        return Endpoint(self.source if role is Role.SENDS else self.destination, role)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A node or a leaf, in one of its roles."""

    name: str
    role: Role


@dataclass(frozen=True, slots=True)
class Measured:
    """The rate of one link in one round (counted from 0), in GB/s. `asked`, `long` and `alone` are those of the
    Meeting."""

    link: Link
    gbytes: float
    round: int
    asked: bool = True
    long: bool = False
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Normal:
    """What is usual: the median in GB/s, and the standard deviation as a share of the median."""

    median: float
    sigma: float

    @property
    def suspect(self) -> float:
        """The part of the median below which a rate is suspect."""
        return 1 - min(max(MIN_SUSPECT_DROP, SUSPECT_SIGMAS * self.sigma), MAX_TOLERATED_DROP)

    @property
    def confirmed(self) -> float:
        """The part of the median below which each rate of an accused must be."""
        return 1 - min(max(MIN_CONFIRMED_DROP, CONFIRMED_SIGMAS * self.sigma), MAX_TOLERATED_DROP)

    @property
    def mean(self) -> float:
        """The part of the median below which the mean of an accused's rates must be."""
        return 1 - min(max(MIN_MEAN_DROP, MEAN_SIGMAS * self.sigma), MAX_TOLERATED_DROP)


def estimate_normal(rates: Iterable[float]) -> Normal:
    """What is usual among the sound ones of these rates. Slow rates cannot drag it down: the search starts near the
    top, and takes in every rate that noise explains."""
    ordered = sorted(rates)
    anchor = ordered[round(ANCHOR_QUANTILE * (len(ordered) - 1))]
    near = [rate for rate in ordered if rate >= MIN_ANCHOR_SHARE * anchor]
    found = Normal(anchor, 0.0)
    for _ in range(6):
        median = statistics.median(near)
        spread = MAD_TO_SIGMA * statistics.median(abs(rate - median) for rate in near)
        if len(near) < MIN_MAD_RATES:
            spread = min(spread, statistics.pstdev(near))
        found = Normal(median, spread / median if median else 0.0)
        wider = [rate for rate in ordered if rate >= median - max(SUSPECT_SIGMAS * spread, MIN_SUSPECT_DROP * median)]
        if len(wider) == len(near):
            break
        near = wider
    return found


@dataclass(frozen=True, slots=True)
class RelativeRate:
    """One measured rate, relative to what is usual for its kind and round: 1 is usual."""

    ratio: float
    normal: Normal
    asked: bool
    long: bool
    alone: bool

    @property
    def suspect(self) -> bool:
        """Whether the rate is low enough for a suspicion."""
        return self.ratio < self.normal.suspect

    @property
    def confirmed(self) -> bool:
        """Whether the rate is low enough to confirm a suspicion."""
        return self.ratio < self.normal.confirmed


def has_fast_rate(rates: Sequence[RelativeRate]) -> bool:
    """Whether one of these rates is fast; if others are not, clearly fast."""
    slow = any(rate.suspect for rate in rates)
    return any(not (rate.confirmed if slow else rate.suspect) for rate in rates)


def relative_rates(measured: Sequence[Measured], leaf_of: Mapping[str, str]) -> dict[Link, list[RelativeRate]]:
    """The relative rates of each link. A rate is compared with rates of its kind (inside a leaf or between leaves), of
    the same round where that has enough."""
    kinds: dict[bool, list[float]] = defaultdict(list)
    company: dict[tuple[bool, int], list[float]] = defaultdict(list)
    for each in measured:
        crosses = _crosses_leaves(each.link, leaf_of)
        kinds[crosses].append(each.gbytes)
        if not each.asked:
            company[crosses, each.round].append(each.gbytes)
    every = [each.gbytes for each in measured]
    usual = {
        crosses: estimate_normal(rates if len(rates) >= MIN_REFERENCE_LINKS else every)
        for crosses, rates in kinds.items()
    }
    own = {place: estimate_normal(rates) for place, rates in company.items() if len(rates) >= MIN_REFERENCE_LINKS}
    noise = estimate_normal(every).sigma if every else 0.0  # the spread of a few rates alone may be far too small
    found: dict[Link, list[RelativeRate]] = defaultdict(list)
    for each in measured:
        crosses = _crosses_leaves(each.link, leaf_of)
        norm = own.get((crosses, each.round), usual[crosses])
        norm = Normal(norm.median, max(norm.sigma, noise))
        ratio = each.gbytes / norm.median if norm.median else 1.0
        found[each.link].append(RelativeRate(ratio, norm, each.asked, each.long, each.alone))
    return found


def _crosses_leaves(link: Link, leaf_of: Mapping[str, str]) -> bool:
    """Whether the link goes from one leaf to another."""
    return leaf_of.get(link.source) != leaf_of.get(link.destination)


class Judgement:
    """What the measurements prove, and what is still to be measured."""

    def __init__(self, nodes: Sequence[str], measured: Sequence[Measured], leaf_of: Mapping[str, str]) -> None:
        self.nodes = tuple(nodes)
        self.leaf_of = leaf_of
        self.rates = relative_rates(measured, leaf_of)
        self.normal = estimate_normal(each.gbytes for each in measured)
        self.best = {link: max(rates, key=lambda rate: rate.ratio) for link, rates in self.rates.items()}
        """The best rate of each link: a rate that was reached once is possible."""
        beside = {link: [rate for rate in rates if not rate.alone] for link, rates in self.rates.items()}
        self._beside = {link: rates for link, rates in beside.items() if rates}
        """The rates that were measured while others crossed the same leaves, which share their uplinks."""
        self._links: dict[Endpoint, list[Link]] = defaultdict(list)
        for link in self.rates:
            for role in Role:
                self._links[link.end(role)].append(link)
        rates = {end: [self.best[link] for link in links] for end, links in self._links.items()}
        self._proven = {end for end, of_end in rates.items() if has_fast_rate(of_end)}

    def links_of(self, end: Endpoint) -> list[Link]:
        return self._links.get(end, [])

    # Nodes.

    def proven(self, node: str, role: Role) -> bool:
        """Whether the node was fast in this role, with any partner."""
        return Endpoint(node, role) in self._proven

    def untested(self, nodes: Iterable[str]) -> list[str]:
        """The nodes without a measurement in one of the roles."""
        return [node for node in nodes if not all(self._links.get(Endpoint(node, role)) for role in Role)]

    @cached_property
    def _slow_ends(self) -> dict[Endpoint, list[RelativeRate]]:
        """Ends that were asked about and were never fast, with their rates to different proven partners."""
        found: dict[Endpoint, list[RelativeRate]] = {}
        for end, links in self._links.items():
            if end in self._proven or not any(rate.asked for link in links for rate in self.rates[link]):
                continue
            partners = [(link, link.end(end.role.opposite)) for link in links]
            found[end] = [
                self.best[link]
                for link, partner in partners
                if partner in self._proven and not self._explained(partner)
            ]
        return found

    def _enough(self, end: Endpoint) -> bool:
        """Whether the end met enough proven partners, and was slow with all of them."""
        against = self._slow_ends[end]
        least = min(MIN_CONFIRMATIONS, len(self.nodes) - 1)
        return (
            len(against) >= least >= 2
            and all(rate.confirmed for rate in against)
            and statistics.fmean(rate.ratio for rate in against) < against[0].normal.mean
        )

    def _tried_alone(self, end: Endpoint) -> bool:
        """Whether the end was measured while no other node left or entered its leaf."""
        return any(rate.alone for link in self._links[end] for rate in self.rates[link])

    @cached_property
    def accused(self) -> list[Endpoint]:
        """Nodes that are slow in a role with every partner, also in the longer transfer. Nodes of a slow leaf are left
        out."""
        return [
            end for end in self._slow_ends if self._enough(end) and self._tried_alone(end) and not self._explained(end)
        ]

    @property
    def nodes_to_confirm(self) -> list[Endpoint]:
        """Nodes that would be accused, but for the longer transfer, which is still due."""
        return [
            end
            for end in self._slow_ends
            if self._enough(end) and not self._tried_alone(end) and not self._explained(end)
        ]

    @property
    def suspects(self) -> dict[str, list[Role]]:
        """Nodes about which more must be known, with the roles in question."""
        found: dict[str, list[Role]] = defaultdict(list)
        for end, against in self._slow_ends.items():
            done = self._enough(end) or len(against) >= 2 * MIN_CONFIRMATIONS
            if not done and not self._explained(end) and len(self.nodes) > 2:
                found[end.name].append(end.role)
        return found

    # Links.

    @cached_property
    def _slow_links(self) -> list[Link]:
        """Links that are slow although both ends are fast with others; with two nodes there are no others."""
        return [
            link
            for link, rate in self.best.items()
            if rate.suspect
            and any(each.asked for each in self.rates[link])
            and (len(self.nodes) == 2 or all(link.end(role) in self._proven for role in Role))
            and not any(self._explained(link.end(role)) for role in Role)
        ]

    def _confirmed_link(self, link: Link) -> bool:
        """Whether a link was slow often enough, and alone, to be accused."""
        rates = self.rates[link]
        leaves = self.leaves_of(link)
        least = 2 if leaves and any(leaves.end(role) in self.shared_uplinks for role in Role) else 1
        alone = sum(rate.alone for rate in rates)
        return len(rates) >= MIN_CONFIRMATIONS and alone >= least and self.best[link].confirmed

    @property
    def links_to_repeat(self) -> list[tuple[Link, bool]]:
        """Slow links to measure again, each with whether the longer transfer is due."""
        return [
            (link, len(self.rates[link]) >= MIN_CONFIRMATIONS - 1)
            for link in self._slow_links
            if not self._confirmed_link(link)
            and len(self.rates[link]) < 2 * MIN_CONFIRMATIONS
            and self.leaves_of(link) not in self.slow_leaf_pairs
        ]

    @property
    def links_to_surround(self) -> list[Link]:
        """Slow links between two leaves about which nothing else is known yet."""
        return [
            link
            for link in self._slow_links
            if (leaves := self.leaves_of(link))
            and len(self._between[leaves]) < min(MIN_CONFIRMATIONS, self._width(leaves))
        ]

    @cached_property
    def slow_links(self) -> list[Link]:
        """Links that are slow while both ends are fast with others. Links between two slow leaves are reported as
        leaves."""
        slow = set(self.slow_leaf_pairs)
        return [link for link in self._slow_links if self._confirmed_link(link) and self.leaves_of(link) not in slow]

    @property
    def open_links(self) -> list[Link]:
        """Slow links that no finding explains: they were slow once, or not often enough for a finding."""
        charged = {*self.accused, *self._explaining}
        known = {*self.slow_links}
        slow_leaves = set(self.slow_leaf_pairs)
        return [
            link
            for link, rates in self.rates.items()
            if any(rate.suspect and rate.asked for rate in rates)
            and link not in known
            and self.leaves_of(link) not in slow_leaves
            and not any(link.end(role) in charged for role in Role)
        ]

    # Leaves.

    def leaves_of(self, link: Link) -> Link | None:
        """The two leaves of a link, when it goes from one leaf to another; else None."""
        source, destination = self.leaf_of.get(link.source), self.leaf_of.get(link.destination)
        return Link(source, destination) if source and destination and source != destination else None

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """The number of nodes of each leaf."""
        sizes: dict[str, int] = defaultdict(int)
        for node in self.nodes:
            if leaf := self.leaf_of.get(node):
                sizes[leaf] += 1
        return sizes

    def _width(self, leaves: Link) -> int:
        """The number of nodes on the smaller of the two leaves."""
        return min(self._sizes[leaves.source], self._sizes[leaves.destination])

    @cached_property
    def _between(self) -> dict[Link, list[Link]]:
        """Links by the leaves that they join."""
        found: dict[Link, list[Link]] = defaultdict(list)
        for link in self._beside:
            if leaves := self.leaves_of(link):
                found[leaves].append(link)
        return found

    @cached_property
    def _slow_between(self) -> set[Link]:
        """Pairs of leaves between which nothing was fast while others crossed them as well."""
        return {
            leaves
            for leaves, links in self._between.items()
            if all(rate.suspect for link in links for rate in self._beside[link])
        }

    def _mostly_slow(self, link: Link) -> bool:
        """Whether the link was mostly slow while others crossed the same leaves. Now and then a link has a narrow
        uplink to itself, and is fast."""
        rates = self._beside[link]
        return 2 * sum(rate.suspect for rate in rates) > len(rates)

    @cached_property
    def shared_uplinks(self) -> list[Endpoint]:
        """The leaves of links that were slow while others crossed the same leaves, and fast alone."""
        shared = [
            leaves
            for leaves, links in self._between.items()
            if any(self._mostly_slow(link) and not self.best[link].suspect for link in links)
        ]
        return list(dict.fromkeys(leaves.end(role) for leaves in shared for role in Role))

    @cached_property
    def slow_leaf_pairs(self) -> list[Link]:
        """Pairs of leaves between which everything in one direction is slow, for all nodes, while both leaves are fast
        otherwise."""
        single = [
            leaves for leaves in self._slow_between if not any(leaves.end(role) in self._slow_leaves for role in Role)
        ]
        found = []
        for leaves in single:
            links = self._between[leaves]
            proven = [link for link in links if all(link.end(role) in self._proven for role in Role)]
            if (
                len(proven) >= min(MIN_CONFIRMATIONS, self._width(leaves)) >= 2
                and len({link.source for link in proven}) > 1 < len({link.destination for link in proven})
                and any(self._confirmed_link(link) for link in proven)
                and all(self.best[link].confirmed for link in links)
            ):
                found.append(leaves)
        return found

    @cached_property
    def _slow_leaves(self) -> dict[Endpoint, list[Link]]:
        """Leaves from which (or to which) hardly anything is fast, whichever the other leaf and the nodes, with the
        slow links."""
        found: dict[Endpoint, list[Link]] = {}
        good = {leaves.end(role) for leaves in self._between if leaves not in self._slow_between for role in Role}
        crossing = [(leaves, link) for leaves, links in self._between.items() for link in links]
        mostly = {link for _, link in crossing if self._mostly_slow(link)}
        for leaf, size in self._sizes.items():
            elsewhere = [link for leaves, link in crossing if leaf not in (leaves.source, leaves.destination)]
            if len(mostly.intersection(elsewhere)) > MAX_SLOW_NODES_SHARE * len(elsewhere):
                continue
            others_too = sum(any(rate.suspect for rate in self._beside[link]) for link in elsewhere)
            for role in Role:
                own = [(leaves, link) for leaves, link in crossing if leaves.end(role).name == leaf]
                slow = [(leaves, link) for leaves, link in own if link in mostly]
                proven = good.intersection(leaves.end(role.opposite) for leaves, _ in slow)
                tried = {link.end(role).name for _, link in slow}
                never_fast = all(self.best[link].suspect for _, link in own)
                if (
                    len(slow) >= (1 - MAX_FAST_UPLINK_SHARE) * len(own)
                    and (never_fast or others_too <= MAX_OTHERS_SLOW_SHARE * len(elsewhere))
                    and len(proven) > 1
                    and len(tried) >= min(MIN_CONFIRMATIONS, size) >= 2
                ):
                    found[Endpoint(leaf, role)] = [link for _, link in slow]
        return found

    @cached_property
    def _explaining(self) -> set[Endpoint]:
        """The nodes of slow leaves, in the leaf's role: the leaf explains their rates."""
        return {
            Endpoint(node, leaf.role)
            for leaf in self._slow_leaves
            for node in self.nodes
            if self.leaf_of.get(node) == leaf.name
        }

    def _explained(self, end: Endpoint) -> bool:
        """Whether a slow leaf explains the rates of this end."""
        return end in self._explaining

    @cached_property
    def accused_leaves(self) -> list[Endpoint]:
        """Slow leaves for which the longer transfer was slow too."""
        return [leaf for leaf, links in self._slow_leaves.items() if self._crossed(links)]

    def _crossed(self, links: Iterable[Link]) -> bool:
        """Whether the longer transfer was tried on these links, and was slow."""
        return any(rate.long and rate.confirmed for link in links for rate in self._beside[link])

    @property
    def leaves_to_look_inside(self) -> list[Endpoint]:
        """Slow leaves whose nodes have not been measured among themselves."""
        return [leaf for leaf in self._slow_leaves if self.inside(leaf.name) is None]

    @property
    def leaves_to_cross(self) -> list[Endpoint]:
        """Leaves whose nodes are to meet nodes of other leaves, all at once: slow leaves, and leaves with a link that
        was slow beside others and fast alone."""
        looked_inside = [leaf for leaf in self._slow_leaves if self.inside(leaf.name) is not None]
        return [
            end for end in dict.fromkeys([*looked_inside, *self.shared_uplinks]) if not self._tried_all_at_once(end)
        ]

    def _tried_all_at_once(self, leaf: Endpoint) -> bool:
        """Whether a longer transfer has crossed the leaf in this role."""
        links = (link for leaves, links in self._between.items() if leaves.end(leaf.role) == leaf for link in links)
        return any(rate.long for link in links for rate in self._beside[link])

    def inside(self, leaf: str) -> bool | None:
        """Whether the nodes of a leaf are fast among themselves; None when that was not tried."""
        links = [
            link for link in self.best if self.leaf_of.get(link.source) == leaf == self.leaf_of.get(link.destination)
        ]
        return any(not self.best[link].suspect for link in links) if links else None

    # All nodes.

    @cached_property
    def common(self) -> bool:
        """Whether more nodes are slow than single faults explain; then none is accused."""
        if len(self.nodes) < 3:
            return False
        slow = {end.name for end in self._slow_ends if self._explained(end) or self._enough(end)}
        sound = sum(not rate.suspect for rate in self.best.values())
        # A link is sound if both ends are: at least this many links, with MAX_SLOW_NODES_SHARE of the nodes slow, and
        # MIN_ANCHOR_SHARE for chance.
        fewest = MIN_ANCHOR_SHARE * (1 - MAX_SLOW_NODES_SHARE) ** 2 * len(self.best)
        return (
            len(slow) > MAX_SLOW_NODES_SHARE * len(self.nodes)
            or sound < fewest
            or len(
                self._apart(
                    link
                    for link in self._slow_links
                    if self.best[link].confirmed and any(rate.alone for rate in self.rates[link])
                )
            )
            >= max(MIN_CONFIRMATIONS, MAX_SLOW_NODES_SHARE * len(self.nodes) / 2)
        )

    def _apart(self, links: Iterable[Link]) -> list[Link]:
        """Some of these links, without a node in common; of all links between two leaves, one."""
        taken: set[object] = set()
        found = []
        for link in links:
            leaves = self.leaves_of(link)
            own: set[object] = {*link.ends}
            if leaves:
                own.add(frozenset((leaves.source, leaves.destination)))
            if not taken & own:
                taken |= own
                found.append(link)
        return found


@dataclass(frozen=True)
class LinksVerdict:
    """The result; all fields are empty when no node stands out. `common`: too many are slow to name nodes. `open`: slow
    links that nothing explains. `inside`: by slow leaf, whether its nodes are fast among themselves."""

    normal: Normal
    nodes: tuple[Endpoint, ...] = ()
    links: tuple[Link, ...] = ()
    leaves: tuple[Endpoint, ...] = ()
    leaf_pairs: tuple[Link, ...] = ()
    common: bool = False
    open: tuple[Link, ...] = ()
    inside: Mapping[str, bool | None] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Whether nothing is found to be slow."""
        return not (self.nodes or self.links or self.leaves or self.leaf_pairs or self.common)


def links_verdict(judged: Judgement) -> LinksVerdict:
    """The result of a judgement. With a common cause no node is named."""
    if judged.common:
        return LinksVerdict(judged.normal, common=True)
    pairs = judged.slow_leaf_pairs
    several = leaves_slow_to_several(pairs)
    leaves = tuple(dict.fromkeys([*judged.accused_leaves, *several]))
    slow = {leaf.name for leaf in leaves}

    def explained(link: Link) -> bool:
        """Whether one of its leaves is slow, in either direction: acknowledgements of the other direction wait in the
        same queue."""
        between = judged.leaves_of(link)
        return between is not None and any(between.end(role).name in slow for role in Role)

    links = [link for link in judged.slow_links if not explained(link)]
    ends = ends_slow_to_several(judged, links)
    return LinksVerdict(
        judged.normal,
        tuple(dict.fromkeys([*judged.accused, *ends])),
        tuple(link for link in links if not any(link.end(role) in ends for role in Role)),
        leaves,
        tuple(pair for pair in pairs if not {pair.source, pair.destination} & slow),
        open=tuple(judged.open_links),
        inside={leaf.name: judged.inside(leaf.name) for leaf in leaves},
    )


def leaves_slow_to_several(pairs: Sequence[Link]) -> list[Endpoint]:
    """Leaves from which the paths to several others are slow (or to which): their own uplink is the reason."""
    ends = [pair.end(role) for pair in pairs for role in Role]
    return [end for end in dict.fromkeys(ends) if ends.count(end) > 1]


def ends_slow_to_several(judged: Judgement, links: Sequence[Link]) -> list[Endpoint]:
    """Ends that several slow links have in common, at least half of all links that were measured there: a single fast
    link, which may be chance, does not make each slow link a fault of its own."""
    shared: dict[Endpoint, int] = defaultdict(int)
    for link in links:
        for role in Role:
            shared[link.end(role)] += 1
    return [end for end, count in shared.items() if count > 1 and 2 * count >= len(judged.links_of(end))]
