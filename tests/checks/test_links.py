"""links: what is told of measured links, to whom, and what is told when a measurement proves nothing."""

from __future__ import annotations

import csv
import io
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import pytest

from runbook.checks.bandwidth.adapters import NodeAdapters
from runbook.checks.bandwidth.allreduce_bottleneck import RingVerdict, between_nodes_layer
from runbook.checks.bandwidth.link_findings import LinkFindings, link_metrics, link_search_findings, measurements_csv
from runbook.checks.bandwidth.normal_busbw import BandwidthSetting, link_gbps_floor
from runbook.checks.bandwidth.pairing_rounds import Meeting
from runbook.checks.bandwidth.slow_link_search import (
    MeasuredLink,
    PairMeasured,
    Search,
    TimedRankPair,
    Unfinished,
    is_cpu_starved,
    search_slow_links,
    switch_by_node,
)
from runbook.checks.bandwidth.slow_links import Normal
from runbook.checks.base import build_check
from runbook.checks.links import Links, link_outcomes
from runbook.checks.ranks.pool import Halt
from runbook.model.errors import FilesWrong
from runbook.model.verdict import Verdict
from runbook.transport.node_answers import AdapterFacts

from .made_up_cluster import cluster, context, node, pool_of

FULL = 5.0  # GB/s, 40 Gbit/s

Rate = Callable[[str, str], PairMeasured]
"""What a node has of another, by their names."""


class Measuring:
    """Stands in for the ranks: `moved` says what each pair of them moves."""

    def __init__(self, nodes: Sequence[str], moved: Rate, each: int = 1) -> None:
        self.nodes, self.moved, self.each = nodes, moved, each
        self.rounds: list[Sequence[TimedRankPair]] = []

    def meet(self, pairs: Sequence[TimedRankPair], **_how: object) -> dict[tuple[int, int], PairMeasured]:
        self.rounds.append(pairs)
        ways = [way for one, other, _ in pairs for way in ((one, other), (other, one))]
        return {way: self.moved(self.nodes[way[0] // self.each], self.nodes[way[1] // self.each]) for way in ways}


def moved(
    part: float = 1.0,
    *,
    waited: float = 0.0,
    us: float = 20.0,
    both: float | None = None,
    losses: float | None = 0.0,
) -> PairMeasured:
    return PairMeasured(FULL * part, 0.5 / part, waited, FULL * part if both is None else FULL * both, us, losses)


def world(count: int, **options: Any) -> Any:
    return cluster(*(node(f"n{number}", address=f"10.0.0.{number + 1}", **options) for number in range(count)))


def searched(count: int, rate: Rate, *, leaf_size: int | None = None, each: int = 1, **options: Any) -> Search:
    inventory = world(count, processes=each)
    names = [one.name for one in inventory.nodes]
    leaf_of = {name: f"leaf{number // leaf_size}" for number, name in enumerate(names)} if leaf_size else {}
    ranks: Any = Measuring(names, rate, each)
    return search_slow_links(
        ranks, pool_of(inventory).members, seconds=0.5, leaf_of=leaf_of, trips=1, both=True, **options
    )


def told(
    count: int, rate: Rate, *, wires: dict[str, NodeAdapters] | None = None, floor: float | None = None, **options: Any
) -> LinkFindings:
    done = searched(count, rate, **options)
    return link_search_findings(
        done, pool_of(world(count, processes=options.get("each", 1))).members, wires or {}, floor
    )


def sound(_source: str, _destination: str) -> PairMeasured:
    return moved()


def slow_sender(source: str, _destination: str) -> PairMeasured:
    return moved(0.5 if source == "n2" else 1.0)


def causes(found: LinkFindings) -> dict[str, list[str]]:
    return {name: [finding.cause for finding in findings] for name, findings in found.findings.items()}


# What is told.


def test_a_node_that_sends_slowly_is_named_with_its_direction_and_the_median() -> None:
    found = told(6, slow_sender)
    assert causes(found) == {"n2": ["node-slow"]}
    (finding,) = found.findings["n2"]
    assert finding.says == "n2 sends at 20.0 Gbit/s, whoever receives (5 tried); the median of all is 40.0 Gbit/s"
    assert finding.evidence[0].startswith("n2 → n")
    assert "20.0 Gbit/s (50%), round" in finding.evidence[0]
    assert set(finding.peers) == {"n0", "n1", "n3", "n4", "n5"}
    assert "on n2" in finding.remedy


@pytest.mark.parametrize("count", [3, 6, 16])
@pytest.mark.parametrize("part", [1.0, 0.3])
def test_a_link_that_loses_packets_is_named_however_fast_it_is(count: int, part: float) -> None:
    lossy = ("n1", "n4") if count == 16 else ("n0", "n1")
    found = told(
        count, lambda *way: moved(part, losses=0.02) if way == lossy else moved(), leaf_size=4 if count == 16 else None
    )
    assert causes(found) == {name: ["link-lossy"] for name in lossy}
    assert "and most times 2.0% of the TCP segments or more are lost" in found.findings["n1"][0].says


def test_a_node_with_fewer_ranks_is_as_fast_as_the_others() -> None:
    """With an adapter for each rank, half the ranks carry half as much."""
    nodes = ("n0", "n1", "n2", "n3")
    measured = [
        MeasuredLink(link, 0, meeting, moved(pairs / 8), {(pair, 100 + pair): FULL / 8 for pair in range(pairs)})
        for one, other in combinations(nodes, 2)
        for meeting in [Meeting(one, other)]
        for link in meeting.links
        for pairs in [4 if "n3" in (one, other) else 8]
    ]
    done = Search(nodes, {}, found=measured)
    assert {each.gbytes for each in done.measured} == {FULL}
    assert done.verdict.clean


def test_a_node_that_loses_what_it_sends_is_named_alone() -> None:
    found = told(6, lambda source, _: moved(losses=0.03 if source == "n2" else 0.0004))
    assert causes(found) == {"n2": ["link-lossy"]}
    assert found.findings["n2"][0].says.startswith(
        "n2 sends at 40.0 Gbit/s, whoever receives (5 tried), and most times 3.0% of"
    )


def test_a_node_that_is_held_back_and_therefore_loses_some_is_slow() -> None:
    found = told(6, lambda source, _: moved(0.4, losses=0.03) if source == "n2" else moved())
    assert causes(found) == {"n2": ["node-slow"]}
    assert "segments or more are lost" in found.findings["n2"][0].says


def test_what_a_busy_network_loses_everywhere_and_what_was_lost_once_is_nobodys() -> None:
    assert causes(told(6, lambda *_: moved(losses=0.02))) == {}
    assert causes(told(6, lambda *way: moved(losses=0.06 if way == ("n0", "n1") else 0.02))) == {}
    assert causes(told(6, lambda *_: moved(losses=None))) == {}
    times: Counter[tuple[str, ...]] = Counter()

    def once(*way: str) -> PairMeasured:
        times[way] += 1
        return moved(losses=0.05 if way == ("n0", "n1") and times[way] == 1 else 0.0)

    assert causes(told(6, once)) == {}
    assert times["n0", "n1"] > 1, "it is asked again"


def test_a_lossy_link_may_lose_none_of_the_few_packets_of_one_transfer() -> None:
    times: Counter[tuple[str, ...]] = Counter()

    def but_once(*way: str) -> PairMeasured:
        times[way] += 1
        if way != ("n0", "n1"):
            return moved()
        return moved(0.5) if times[way] == 2 else moved(losses=0.05)

    assert causes(told(6, but_once)) == {name: ["link-lossy"] for name in ("n0", "n1")}
    assert times["n0", "n1"] > 2


def test_a_node_that_is_slow_both_ways() -> None:
    found = told(12, lambda source, destination: moved(0.8 if "n7" in (source, destination) else 1.0))
    assert causes(found) == {"n7": ["node-slow"]}
    assert "n7 receives and sends at 32.0 Gbit/s" in found.findings["n7"][0].says.replace(
        "sends and receives", "receives and sends"
    )


def test_a_limit_that_explains_it_is_the_remedy_and_one_that_does_not_is_none() -> None:
    def limited(rate: str) -> NodeAdapters:
        facts: AdapterFacts = {
            "hardware": [],
            "mbit": None,
            "duplex": [],
            "counters": {},
            "tc": {"qdisc": f"qdisc tbf 1: root rate {rate}"},
        }
        return NodeAdapters({"eth0": facts})

    (finding,) = told(6, slow_sender, wires={"n2": limited("20Gbit")}).findings["n2"]
    assert finding.remedy == "on n2: `sudo tc qdisc del dev eth0 root`"
    (finding,) = told(6, slow_sender, wires={"n2": limited("90Gbit")}).findings["n2"]
    assert "qdisc del" not in finding.remedy


def test_a_link_is_told_to_both_of_its_ends_with_its_direction() -> None:
    found = told(6, lambda *ends: moved(0.4 if ends == ("n1", "n4") else 1.0))
    assert causes(found) == {"n1": ["link-slow"], "n4": ["link-slow"]}
    finding = found.findings["n1"][0]
    assert finding.says.startswith("n1 → n4 carries 16.0 Gbit/s (40%)")
    assert "only on the way between these two" in finding.says
    assert finding.peers == ("n4",)


def test_two_nodes_cannot_tell_who_of_them_it_is() -> None:
    found = told(2, lambda source, _: moved(0.5 if source == "n0" else 1.0))
    assert causes(found) == {"n0": ["link-slow"], "n1": ["link-slow"]}
    assert "n0 sends slowly, or n1 receives slowly; a third node would show which" in found.findings["n0"][0].says


@pytest.mark.parametrize(
    ("inside", "says"), [(1.0, "among themselves they are fast"), (0.5, "among themselves as well")]
)
def test_a_leaf_comes_before_the_names_of_its_nodes(inside: float, says: str) -> None:
    members = {"n4", "n5", "n6", "n7"}

    def rate(source: str, destination: str) -> PairMeasured:
        if source not in members:
            return moved()
        return moved(inside if destination in members else 0.5)

    found = told(16, rate, leaf_size=4)
    assert causes(found) == {name: ["leaf-slow"] for name in members}
    (finding,) = found.findings["n4"]
    assert says in finding.says
    assert "all 4 nodes of leaf1" in finding.says
    assert finding.remedy.startswith("look at leaf1 before any of these nodes")


def test_the_way_between_two_leaves() -> None:
    one, other = {"n0", "n1", "n2", "n3"}, {"n8", "n9", "n10", "n11"}
    found = told(16, lambda s, d: moved(0.5 if s in one and d in other else 1.0), leaf_size=4)
    assert causes(found) == {name: ["leaf-slow"] for name in one | other}
    assert "everything from leaf0 to leaf2 is slow" in found.findings["n0"][0].says


def test_half_of_all_is_a_common_cause() -> None:
    found = told(16, lambda source, _: moved(0.5 if int(source[1:]) % 2 else 1.0))
    assert set(causes(found)) == {f"n{number}" for number in range(16)}
    assert {finding.cause for each in found.findings.values() for finding in each} == {"link-slow"}
    assert "no node is named" in found.findings["n3"][0].says
    assert not found.unsettled


def test_all_alike_and_below_the_gate_is_slow_and_without_a_gate_is_not() -> None:
    assert causes(told(6, sound)) == {}
    found = told(6, sound, floor=100.0)
    assert set(causes(found)) == {f"n{number}" for number in range(6)}
    assert "every link is slow: 40.0 Gbit/s, at least 100 Gbit/s are due" in found.findings["n0"][0].says


def test_one_slow_rail_of_a_node_is_named() -> None:
    inventory = world(4, processes=2)
    members = pool_of(inventory).members

    class Rails(Measuring):
        def meet(self, pairs: Sequence[TimedRankPair], **_how: object) -> dict[tuple[int, int], PairMeasured]:
            ways = [way for one, other, _ in pairs for way in ((one, other), (other, one))]
            return {way: moved(0.25 if way[0] == 3 else 1.0) for way in ways}  # the second rank of n1

    ranks: Any = Rails([], sound)
    done = search_slow_links(ranks, members, seconds=0.5)
    found = link_search_findings(done, members, {}, None)
    assert set(causes(found)) == {"n1"}
    assert any("rank 3 on n1 → rank" in line and "1.25 GB/s" in line for line in found.findings["n1"][0].evidence)


# What proves nothing.


def test_a_slow_rate_of_somebody_who_had_no_cpu_does_not_count() -> None:
    usual = Normal(FULL, 0.03)
    assert is_cpu_starved(moved(0.5, waited=0.3), usual)
    assert not is_cpu_starved(moved(0.5, waited=0.1), usual)  # it lost half a second, and waited for a tenth
    assert not is_cpu_starved(moved(1.0, waited=0.5), usual)


def test_a_starved_node_is_measured_again_and_then_fine() -> None:
    tries: list[str] = []

    def rate(source: str, destination: str) -> PairMeasured:
        if source == "n3":
            tries.append(destination)
        starving = source == "n3" and len(tries) <= 5
        return moved(0.5, waited=0.9) if starving else moved()

    done = searched(6, rate)
    assert done.rounds > 5
    found = link_search_findings(done, pool_of(world(6)).members, {}, None)
    assert not found.findings
    assert not found.unsettled
    assert sum(not each.counts for each in done.found) == 5


def test_a_node_that_never_has_a_cpu_is_unknown_and_nobody_is_accused() -> None:
    found = told(6, lambda *ends: moved(0.3, waited=2.0) if "n3" in ends else moved())
    assert not found.findings
    assert list(found.unsettled) == ["n3"]
    assert found.unsettled["n3"].cause == "node-too-busy"
    assert "does not count" in found.unsettled["n3"].evidence[0]


@pytest.mark.parametrize(("starving", "cause"), [(1, "link-slow"), (6, "node-too-busy")])
def test_slow_links_all_over_prove_nothing_where_many_transfers_had_no_cpu(starving: int, cause: str) -> None:
    """As on one machine that is all nodes at once, and has other work."""

    def rate(source: str, destination: str) -> PairMeasured:
        at = (int(source[1:]) * 7 + int(destination[1:]) * 3) % 16
        return moved() if at >= 14 else moved(0.4, waited=2.0 if at < starving else 0.1)

    found = told(12, rate)
    told_of = found.findings or {node: [finding] for node, finding in found.unsettled.items()}
    assert {one.cause for each in told_of.values() for one in each} == {cause}
    assert len(told_of) == 12


def test_a_link_that_never_counts_is_told_and_not_among_the_proven_ones() -> None:
    """Its two nodes are sound by their other links."""
    done = searched(6, lambda *ends: moved(0.3, waited=2.0) if ends == ("n1", "n4") else moved())
    found = link_search_findings(done, pool_of(world(6)).members, {}, None)
    assert not found.findings
    assert not found.unsettled
    (warning,) = found.warnings["n1"]
    assert warning == "n1 → n4 could not be judged: it was slow each time, and each time one of its nodes had no CPU"
    passed = link_outcomes(context(world(6)), done, found)
    assert {each.verdict for each in passed} == {Verdict.PASS}
    assert "14 of 15 pairs" in str(passed[0].proof)


def test_a_transient_is_a_warning() -> None:
    seen: list[int] = []

    def rate(source: str, destination: str) -> PairMeasured:
        if (source, destination) != ("n1", "n2"):
            return moved()
        seen.append(1)
        return moved(0.5 if len(seen) == 1 else 1.0)

    found = told(6, rate)
    assert not found.findings
    (warning,) = found.warnings["n1"]
    assert "n1 → n2 was slow once, 20.0 Gbit/s (50% of the median), and nothing confirms it" in warning


class OversubscribedMeasuring(Measuring):
    """A node of the second of four leaves sends to another leaf at the full rate only while its neighbours do not, or
    while they happen to be done."""

    def meet(self, pairs: Sequence[TimedRankPair], **how: object) -> dict[tuple[int, int], PairMeasured]:
        found = super().meet(pairs, **how)
        leaving = [way for way in sorted(found) if way[0] // 4 == 1 != way[1] // 4]
        found.update({way: moved(0.6) for way in leaving[:: 1 + len(self.rounds) % 2] if len(leaving) > 1})
        return found


def test_an_uplink_that_is_shared_is_one_warning() -> None:
    inventory = world(16)
    names = [one.name for one in inventory.nodes]
    members = pool_of(inventory).members
    ranks: Any = OversubscribedMeasuring(names, sound)
    leaf_of = {name: f"leaf{number // 4}" for number, name in enumerate(names)}
    done = search_slow_links(ranks, members, seconds=0.5, leaf_of=leaf_of, trips=1, both=True)
    found = link_search_findings(done, members, {}, None)
    assert not found.findings
    ((warning,),) = found.warnings.values()
    assert re.fullmatch(
        r"links between leaf0, leaf1 and leaf2 share an uplink: \d of them carried down to 24.0 Gbit/s \(60% of the "
        r"median\) beside others, and what was measured alone as much as any",
        warning,
    )


def test_late_answers_and_half_duplex_are_warnings() -> None:
    found = told(6, lambda *ends: moved(us=5000.0 if "n1" in ends else 20.0, both=0.4 if "n2" in ends else 1.0))
    assert not found.findings
    assert any("a few bytes to or from n1 take 5000 us" in text for text in found.warnings["n1"])
    assert any("n2 keeps 40% of its rate while both ways are busy" in text for text in found.warnings["n2"])


def test_the_measurements_of_many_nodes_are_not_read_once_a_node() -> None:
    class Counted(list[MeasuredLink]):
        walked = 0

        def __iter__(self) -> Iterator[MeasuredLink]:
            self.walked += 1
            return super().__iter__()

    slow = {f"n{number}" for number in range(0, 60, 6)}
    done = searched(60, lambda source, _: moved(0.5 if source in slow else 1.0, losses=0.0))
    done.found = Counted(done.found)
    found = link_search_findings(done, pool_of(world(60)).members, {}, None)
    assert causes(found) == {name: ["node-slow"] for name in slow}
    assert done.found.walked < 60


def test_time_that_ran_out_proves_nobody_sound_or_slow() -> None:
    class Short(Measuring):
        def meet(self, pairs: Sequence[TimedRankPair], **_how: object) -> dict[tuple[int, int], PairMeasured]:
            if len(self.rounds) == 1:
                raise Unfinished("there was no time left to measure the rest")
            return super().meet(pairs)

    inventory = world(12)
    names = [one.name for one in inventory.nodes]
    ranks: Any = Short(names, slow_sender)
    done = search_slow_links(ranks, pool_of(inventory).members, seconds=0.5)
    assert done.stopped
    found = link_search_findings(done, pool_of(inventory).members, {}, None)
    assert not found.findings
    assert "n2" in found.unsettled
    assert found.unsettled["n2"].cause == "insufficient-evidence"
    assert "no time left" in found.unsettled["n2"].says


def test_a_rank_that_died_ends_the_search() -> None:
    class Dying(Measuring):
        def meet(self, pairs: Sequence[TimedRankPair], **_how: object) -> dict[tuple[int, int], PairMeasured]:
            raise Unfinished(f"{len(pairs)} pairs did not finish", Halt("died", 1.0))

    ranks: Any = Dying([], sound)
    with pytest.raises(Unfinished):
        search_slow_links(ranks, pool_of(world(3)).members, seconds=0.5)


# Outcomes and documents.


def test_every_node_has_one_outcome_and_its_own_links() -> None:
    inventory = world(6)
    done = searched(6, slow_sender)
    made = link_outcomes(context(inventory), done, link_search_findings(done, pool_of(inventory).members, {}, None))
    assert [(each.node, each.verdict) for each in made] == [
        (f"n{number}", Verdict.FAIL if number == 2 else Verdict.PASS) for number in range(6)
    ]
    links: Any = made[2].metrics["links"]
    assert {each["from"] for each in links} == {"n2"}
    assert {"from", "to", "gbps", "us", "round"} <= links[0].keys()
    assert links[0]["gbps"] == pytest.approx(20.0)
    assert "every pair in 6 rounds" in str(made[0].proof)


def test_nothing_measured_is_unknown_and_one_node_has_no_link() -> None:
    empty = Search(("n0", "n1"), {}, stopped="no time")
    assert {each.verdict for each in link_outcomes(context(world(2)), empty, LinkFindings())} == {Verdict.UNKNOWN}
    assert [each.verdict for each in link_outcomes(context(world(1)), Search(("n0",), {}), LinkFindings())] == [
        Verdict.PASS
    ]


def test_the_table_has_every_measurement_and_the_result_what_counts() -> None:
    done = searched(6, lambda *ends: moved(0.3, waited=2.0) if "n3" in ends else moved())
    rows = list(csv.DictReader(io.StringIO(measurements_csv(done))))
    assert len(rows) == len(done.found)
    assert {row["counts"] for row in rows if "n3" in (row["from"], row["to"])} == {"0"}
    assert len(link_metrics(done.found)) == sum(row["counts"] == "1" for row in rows)
    assert float(rows[0]["gbps"]) == pytest.approx(40.0) or rows[0]["counts"] == "0"


def test_a_slow_allreduce_blames_only_what_is_far_slower_than_the_others() -> None:
    assert between_nodes_layer(searched(6, slow_sender)).verdict.sending == ("n2",)
    a_little = searched(6, lambda source, _: moved(0.85 if source == "n2" else 1.0))
    assert between_nodes_layer(a_little).verdict.clean
    fast_enough = searched(6, slow_sender, enough=2.0)
    assert between_nodes_layer(fast_enough).verdict.clean


# Arguments, leaves and gates.


def test_arguments() -> None:
    assert Links(pairs="all").pairs == "all"
    for wrong in ({"pairs": "some"}, {"seconds": 0.0}, {"seconds": 100.0}):
        with pytest.raises(FilesWrong):
            build_check(Links, wrong, {}, None)


def test_a_leaf_is_what_the_inventory_calls_so_or_else_the_rack() -> None:
    nodes = [node("a", leaf="l1", rack="r1"), node("b", rack="r1"), node("c")]
    assert switch_by_node(nodes) == {"a": "l1", "b": "r1"}


def test_the_floor_is_what_is_promised_or_usual() -> None:
    eight = BandwidthSetting("nccl", (8, 8), adapters=((400.0,) * 8,) * 2)
    assert link_gbps_floor(eight) == pytest.approx(0.8 * 0.82 * 3200)
    assert link_gbps_floor(eight, 200.0) == pytest.approx(0.8 * 0.82 * 1600)
    assert link_gbps_floor(BandwidthSetting("nccl", (1, 1), adapters=((400.0,) * 8,) * 2)) == pytest.approx(
        0.8 * 0.82 * 400
    )
    assert link_gbps_floor(BandwidthSetting("gloo", (1, 1), link_gbps=1.0)) == pytest.approx(0.8 * 0.88)
    assert link_gbps_floor(BandwidthSetting("gloo", (1, 1), link_gbps=100.0)) is None
    assert link_gbps_floor(BandwidthSetting("nccl", (8, 8))) is None
    assert link_gbps_floor(BandwidthSetting("nccl", (8,), adapters=((400.0,) * 8,))) is None


@pytest.mark.parametrize("count", [3, 4, 6])
def test_a_slow_node_is_named_though_many_transfers_had_no_cpu(count: int) -> None:
    """Most of them say so: a rate that is low for want of a CPU does not count, and is asked for again in time."""
    right = 0
    for seed in range(60):
        chance = random.Random(seed)

        def rate(_source: str, destination: str, chance: random.Random = chance) -> PairMeasured:
            full = 0.005 if destination == "n2" else chance.uniform(0.6, 1.2)
            if chance.random() > 0.3:
                return moved(full)
            return moved(min(full, 10 ** chance.uniform(-2, 0)), waited=chance.choice([1e9] * 9 + [0]))

        layer = between_nodes_layer(searched(count, rate, enough=0.3))
        right += layer.verdict == RingVerdict(receiving=("n2",))
        assert layer.verdict in (RingVerdict(), RingVerdict(receiving=("n2",)))
    assert right >= 54


def test_a_slow_link_whose_first_measurement_did_not_count_is_found_all_the_same() -> None:
    tries: list[int] = []

    def rate(source: str, destination: str) -> PairMeasured:
        if (source, destination) != ("n1", "n4"):
            return moved()
        tries.append(1)
        return moved(0.4, waited=2.0 if len(tries) == 1 else 0.0)

    assert causes(told(6, rate)) == {"n1": ["link-slow"], "n4": ["link-slow"]}


def test_a_leaf_that_is_slow_towards_several_others_is_its_own_uplink() -> None:
    def rate(source: str, destination: str) -> PairMeasured:
        leaf, other = int(source[1:]) // 4, int(destination[1:]) // 4
        return moved(0.5 if leaf == 1 and other in (0, 2) else 1.0)

    assert causes(told(16, rate, leaf_size=4)) == {f"n{number}": ["leaf-slow"] for number in range(4, 8)}
