"""Where a slow AllReduce loses its time: which links are tried, what they prove, and who is blamed with which reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from runbook.checks.bandwidth.adapters import NodeAdapters, slow_adapter_reasons, tc_limit_reasons, tc_rate_after
from runbook.checks.bandwidth.allreduce_blame import assign_blame
from runbook.checks.bandwidth.allreduce_bottleneck import (
    Isolation,
    LinkLayer,
    RingVerdict,
    disjoint_rounds,
    judge_ring,
    links_to_remeasure,
    ring_links,
    slow_links,
)
from runbook.checks.bandwidth.slow_link_search import has_uneven_rates
from runbook.checks.bandwidth.slow_links import Link
from runbook.parsers.infiniband import Port
from runbook.transport.node_answers import AdapterFacts

from .made_up_cluster import cluster, node, pool_of

GATE = 10.0
FAST, SLOW = 12.0, 2.0
ENDS = [f"n{number}" for number in range(9)]


def looked(count: int, is_slow: Callable[[Link], bool], gate: float = GATE, fast: float = FAST) -> RingVerdict:
    """What both looks conclude in a world where these links are slow."""

    def rate(link: Link) -> float:
        return SLOW if is_slow(link) else fast

    first = {link: rate(link) for link in ring_links(ENDS[:count])}
    return judge_ring(first, {link: rate(link) for link in links_to_remeasure(first, gate)}, gate)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 9])
def test_every_end_sends_once_and_receives_once_and_is_on_one_lane_at_a_time(count: int) -> None:
    links = ring_links(ENDS[:count])
    assert len(links) == (count if count > 1 else 0)
    assert sorted(link.source for link in links) == sorted(link.destination for link in links)
    groups = disjoint_rounds(links)
    assert len(groups) <= 3
    for group in groups:
        ends = [end for link in group for end in (link.source, link.destination)]
        assert len(ends) == len(set(ends))


@pytest.mark.parametrize("count", [3, 4, 5, 8, 9])
@pytest.mark.parametrize("guilty", [0, 1, 2])
def test_a_slow_sender_receiver_node_or_path_is_told_apart(count: int, guilty: int) -> None:
    end, following = ENDS[guilty], ENDS[(guilty + 1) % count]
    assert looked(count, lambda link: link.source == end) == RingVerdict(sending=(end,))
    assert looked(count, lambda link: link.destination == end) == RingVerdict(receiving=(end,))
    assert looked(count, lambda link: end in (link.source, link.destination)) == RingVerdict((end,), (end,))
    path = Link(end, following)
    assert looked(count, lambda link: link == path) == RingVerdict(paths=(path,))


def test_two_nodes_cannot_tell_who_of_them_it_is() -> None:
    assert looked(2, lambda link: link.source == "n0") == RingVerdict(paths=(Link("n0", "n1"),))
    assert looked(2, lambda link: True).clean
    assert looked(2, lambda link: False).clean


@pytest.mark.parametrize("count", [2, 3, 8, 9])
@pytest.mark.parametrize("gate", [1.0, 10.0, 1000.0])
def test_nobody_is_blamed_where_all_are_alike(count: int, gate: float) -> None:
    assert looked(count, lambda link: True, gate).clean
    assert looked(count, lambda link: False, gate).clean


def test_a_gate_that_nobody_meets_still_shows_who_is_far_behind() -> None:
    assert looked(5, lambda link: link.source == "n3", gate=1000.0) == RingVerdict(sending=("n3",))
    assert looked(5, lambda link: link.source == "n3", gate=1000.0, fast=3.5).clean


def test_two_slow_nodes_of_nine() -> None:
    verdict = looked(9, lambda link: link.source in ("n1", "n5"))
    assert (set(verdict.sending), verdict.receiving, verdict.paths) == ({"n1", "n5"}, (), ())


def test_slow_once_is_chance() -> None:
    first = dict.fromkeys(ring_links(ENDS[:4]), FAST) | {Link("n1", "n2"): SLOW}
    second = dict.fromkeys(links_to_remeasure(first, GATE), FAST)
    assert Link("n1", "n2") in second
    assert judge_ring(first, second, GATE).clean


def test_a_second_look_that_could_not_be_had_leaves_the_path() -> None:
    first = dict.fromkeys(ring_links(ENDS[:4]), FAST) | {Link("n1", "n2"): SLOW}
    assert judge_ring(first, {}, GATE).ends == ()
    assert judge_ring(first, {}, GATE).paths == (Link("n1", "n2"),)


def test_partners_come_from_the_same_ring() -> None:
    first = {Link("a0", "a1"): SLOW, Link("a1", "a0"): SLOW, Link("b0", "b1"): FAST, Link("b1", "b0"): FAST}
    assert set(links_to_remeasure(first, GATE)) == {Link("a0", "a1"), Link("a1", "a0")}
    assert slow_links(first, GATE) == [Link("a0", "a1"), Link("a1", "a0")]


@pytest.mark.parametrize(
    ("tc", "says", "gbytes", "command"),
    [
        ({"qdisc": "qdisc tbf 8001: root refcnt 2 rate 50Mbit burst 16000b lat 100ms"}, "50 Mbit/s", 0.00625, "root"),
        ({"qdisc": "qdisc tbf 8001: dev eth0 root refcnt 2 rate 1500Mbit burst 1b"}, "1.5 Gbit/s", 0.1875, "root"),
        ({"qdisc": "qdisc cake 8002: root refcnt 2 bandwidth 800Kbit diffserv3"}, "0.8 Mbit/s", 1e-4, "root"),
        ({"qdisc": "qdisc netem 8: root refcnt 2 limit 1000 rate 1Gbit"}, "1 Gbit/s", 0.125, "root"),
        ({"qdisc": "qdisc netem 8: root refcnt 2 limit 1000 delay 50ms"}, "delay 50ms", None, "root"),
        ({"qdisc": "qdisc netem 8: root refcnt 2 limit 1000 loss 5%"}, "loss 5%", None, "root"),
        (
            {"qdisc": "qdisc fq 8: root refcnt 2 limit 10000p flow_limit 100p maxrate 100Mbit"},
            "100 Mbit/s",
            0.0125,
            "root",
        ),
        (
            {
                "qdisc": "qdisc htb 1: root refcnt 2 r2q 10 default 0x10",
                "class": "class htb 1:10 root prio 0 rate 100Mbit ceil 200Mbit burst 1600b cburst 1600b",
            },
            "200 Mbit/s",
            0.025,
            "root",
        ),
        (
            {
                "qdisc": "qdisc noqueue 0: root refcnt 2\nqdisc ingress ffff: parent ffff:fff1 ----------------",
                "ingress": "filter parent ffff: protocol all pref 49152 u32\n police 0x1 rate 10Mbit burst 10Kb mtu 2Kb action drop",
            },
            "what arrives at eth0 is limited to 10 Mbit/s",
            0.00125,
            "ingress",
        ),
    ],
)
def test_limits_that_somebody_set(tc: dict[str, str], says: str, gbytes: float | None, command: str) -> None:
    (reason,) = tc_limit_reasons("eth0", tc)
    assert says in reason.says
    assert reason.gbytes == (pytest.approx(gbytes) if gbytes else None)
    assert reason.command == f"sudo tc qdisc del dev eth0 {command}"


@pytest.mark.parametrize(
    ("tc", "sent", "received"),
    [
        (
            {
                "qdisc": "qdisc htb 1: root refcnt 2 r2q 10 default 0x10",
                "class": "class htb 1:20 root prio 0 rate 100Mbit ceil 100Mbit burst 1600b cburst 1600b",
            },
            1.0,
            0.0,
        ),
        ({"qdisc": "qdisc tbf 20: parent 1:20 rate 100Mbit burst 32Kb lat 50ms"}, 1.0, 0.0),
        ({"ingress": "filter parent ffff: protocol ip\n police 0x1 rate 100Mbit burst 10Kb action drop"}, 0.0, 1.0),
    ],
)
def test_a_limit_of_other_traffic_explains_nothing(tc: dict[str, str], sent: float, received: float) -> None:
    (reason,) = tc_limit_reasons("eth0", tc)
    assert reason.outrun(sent, received)
    assert not reason.outrun(received, sent)
    assert not reason.outrun(0.014, 0.014)


def test_a_burst_does_not_refute_a_limit_of_all_traffic() -> None:
    (reason,) = tc_limit_reasons("eth0", {"qdisc": "qdisc tbf 1: root refcnt 2 rate 100Mbit burst 32Mb lat 50ms"})
    assert not reason.outrun(1.0, 1.0)


@pytest.mark.parametrize(
    "qdisc",
    [
        "",
        "qdisc noqueue 0: root refcnt 2",
        "qdisc mq 0: root\nqdisc fq_codel 0: parent :4 limit 10240p flows 1024 quantum 1514 target 5ms interval 100ms",
        "qdisc pfifo_fast 0: root refcnt 2 bands 3 priomap 1 2 2 2 1 2 0 0 1 1 1 1 1 1 1 1",
        "qdisc cake 8002: root refcnt 2 bandwidth unlimited diffserv3 triple-isolate",
        "qdisc fq 8001: root refcnt 2 limit 10000p flow_limit 100p buckets 1024 low_rate_threshold 550Kbit",
        "qdisc netem 8: root refcnt 2 limit 1000",
        "qdisc ingress ffff: parent ffff:fff1 ----------------",
    ],
)
def test_what_every_machine_has_is_no_limit(qdisc: str) -> None:
    assert tc_limit_reasons("eth0", {"qdisc": qdisc, "class": "", "ingress": ""}) == []


def test_a_slow_link_that_is_not_settled_is_named_and_accuses_nobody() -> None:
    slow = Link("node-a", "node-c")
    layer = LinkLayer({slow: 0.006, Link("node-c", "node-b"): 0.3, Link("node-b", "node-a"): 1.2}, unsettled=(slow,))
    found = assign_blame(THREE, Isolation(between=layer), {}, GATE)
    assert not found.charges
    assert "node-a → node-c carries 6.00 MB/s" in found.common
    assert "node-a sends slowly, or node-c receives slowly" in found.common
    assert "alike" not in found.common


def test_rates_of_tc() -> None:
    assert tc_rate_after("rate", "rate 500bit") == pytest.approx(5e-7)
    assert tc_rate_after("rate", "ceil 1Gbit") is None


def told(mbit: int | None = None, tc: dict[str, str] | None = None, duplex: str | None = "full") -> NodeAdapters:
    facts: AdapterFacts = {
        "hardware": ["eth0"] if mbit else [],
        "mbit": mbit,
        "duplex": [duplex],
        "counters": {"rx_errors": 0},
        "tc": tc,
    }
    return NodeAdapters({"eth0": facts})


def test_an_interface_that_agreed_on_less() -> None:
    (reason,) = slow_adapter_reasons(told(100), [told(10000), told(10000)])
    assert "100 Mbit/s, where other nodes have 10000" in reason.says
    assert reason.gbytes == pytest.approx(0.0125)
    assert slow_adapter_reasons(told(10000), [told(10000), told(100)]) == []
    assert [reason.says for reason in slow_adapter_reasons(told(100, duplex="half"), [])] == [
        "eth0 runs at half duplex"
    ]
    assert slow_adapter_reasons(told(), [told()]) == []


def test_an_adapter_that_came_up_slower() -> None:
    def ports(*rates: float) -> tuple[Port, ...]:
        return tuple(Port(f"mlx5_{n}", 1, "active", "linkup", rate, "InfiniBand") for n, rate in enumerate(rates))

    (reason,) = slow_adapter_reasons(NodeAdapters({}, ports(400, 100)), [NodeAdapters({}, ports(400, 400))])
    assert "mlx5_1:1 runs at 100 Gbit/s, where others have 400" in reason.says
    assert reason.command == "sudo ibportstate -C mlx5_1 -P 1 -D 0 1 reset", "of this adapter, and not of the first"
    storage = [NodeAdapters({}, ports(400, 400, 200)), NodeAdapters({}, ports(400, 400, 200))]
    assert slow_adapter_reasons(storage[0], storage[1:]) == [], "a card of another kind, on every node"
    (reason,) = slow_adapter_reasons(NodeAdapters({}, ports(400, 400, 100)), storage)
    assert "mlx5_2:1 runs at 100 Gbit/s, where others have 200" in reason.says
    (reason,) = slow_adapter_reasons(NodeAdapters({}, ports(400, 400, 200)), [NodeAdapters({}, ports(400, 400))])
    assert "mlx5_2:1 runs at 200 Gbit/s, where others have 400" in reason.says
    roce = tuple(replace(port, link_layer="Ethernet") for port in ports(400, 100))
    (reason,) = slow_adapter_reasons(NodeAdapters({}, roce), [NodeAdapters({}, ports(400, 400))])
    assert reason.command == 'sudo ethtool -r "$(ls /sys/class/infiniband/mlx5_1/device/net | head -1)"'


def test_a_bond_is_made_of_several_adapters() -> None:
    bond: AdapterFacts = {**told(1000).interfaces["eth0"], "hardware": ["eth0", "eth1"], "duplex": ["full", "half"]}
    half, slow = slow_adapter_reasons(NodeAdapters({"bond0": bond}), [told(10000)])[::-1]
    assert (half.says, half.command) == ("eth1 runs at half duplex", "sudo ethtool -r eth1")
    assert half.evidence == "/sys/class/net/eth1/duplex: half"
    assert slow.says == "eth0/eth1 runs at 1000 Mbit/s, where other nodes have 10000"
    assert slow.command == "sudo ethtool -r eth0 && sudo ethtool -r eth1"
    assert slow.evidence == "/sys/class/net/eth0/speed, /sys/class/net/eth1/speed: 1000"


THREE = pool_of(cluster(node("node-a"), node("node-b"), node("node-c"))).members
PAIRS = pool_of(cluster(node("node-a", processes=2), node("node-b", processes=2))).members


def layer(first: Mapping[tuple[str, str], float], second: Mapping[tuple[str, str], float] | None = None) -> LinkLayer:
    one = {Link(*ends): rate for ends, rate in first.items()}
    other = {Link(*ends): rate for ends, rate in (second or {}).items()}
    return LinkLayer(one, other, verdict=judge_ring(one, other, GATE))


ALIKE = layer({("node-a", "node-b"): 2.0, ("node-b", "node-c"): 2.1, ("node-c", "node-a"): 2.2})
SENDS_SLOWLY = layer(
    {("node-a", "node-b"): 11.0, ("node-b", "node-c"): 1.0, ("node-c", "node-a"): 12.0},
    {("node-b", "node-a"): 1.1, ("node-a", "node-c"): 11.5, ("node-b", "node-c"): 1.0},
)


def test_one_node_is_blamed_and_the_others_are_cleared() -> None:
    found = assign_blame(THREE, Isolation(between=SENDS_SLOWLY), {}, GATE)
    assert set(found.charges) == {"node-b"}
    assert "node-b sends at 1.00 GB/s, with every other node" in found.charges["node-b"].says
    assert found.cleared["node-a"].startswith("node-a and node-c move 11.5 to 12.0 GB/s among themselves")


@pytest.mark.parametrize(("other", "slow"), [("A10", set()), ("H100", {"node-b"})])
def test_a_smaller_gpu_is_not_a_slow_one(other: str, slow: set[str]) -> None:
    members = pool_of(cluster(node("node-a"), node("node-b"), node("node-c"))).members
    for member, gpu in zip(members, ("H100", other, "H100"), strict=True):
        member.steps["imported"] = {"gpu": gpu}
    alone = {0: (3300.0, 0.0), 1: (600.0, 0.0), 2: (3290.0, 0.0)}
    assert set(assign_blame(members, Isolation(alone=alone, between=ALIKE), {}, GATE).charges) == slow


def test_the_nodes_own_word_becomes_the_reason_and_the_remedy() -> None:
    shaped = told(tc={"qdisc": "qdisc tbf 1: root rate 8Gbit burst 1b"})
    found = assign_blame(
        THREE, Isolation(between=SENDS_SLOWLY), {"node-b": shaped, "node-a": told(), "node-c": told()}, GATE
    )
    assert found.charges["node-b"].remedy == "on node-b: `sudo tc qdisc del dev eth0 root`"
    assert "eth0 is limited to 8 Gbit/s" in found.charges["node-b"].says


def test_a_limit_above_the_gate_or_on_a_node_that_is_fine_is_nobodys_reason() -> None:
    shaped = told(tc={"qdisc": "qdisc tbf 1: root rate 800Gbit burst 1b"})
    found = assign_blame(THREE, Isolation(between=SENDS_SLOWLY), {"node-b": shaped}, GATE)
    assert "tc qdisc" not in found.charges["node-b"].remedy
    slow = told(tc={"qdisc": "qdisc tbf 1: root rate 8Gbit burst 1b"})
    found = assign_blame(THREE, Isolation(between=SENDS_SLOWLY), {"node-a": slow}, GATE)
    assert set(found.charges) == {"node-b"}


def test_all_alike_blames_nobody_unless_adapters_say_it_themselves() -> None:
    found = assign_blame(THREE, Isolation(between=ALIKE), {}, GATE)
    assert not found.charges
    assert "all links between nodes are alike, 2.00 to 2.20 GB/s" in found.common
    assert "what they have in common is slow" in found.common
    limited = told(tc={"qdisc": "qdisc tbf 1: root rate 16Gbit burst 1b"})
    found = assign_blame(THREE, Isolation(between=ALIKE), dict.fromkeys(("node-a", "node-b", "node-c"), limited), GATE)
    assert set(found.charges) == {"node-a", "node-b", "node-c"}


def test_links_that_are_fast_enough_one_by_one() -> None:
    fine = layer({("node-a", "node-b"): 12.0, ("node-b", "node-c"): 12.0, ("node-c", "node-a"): 12.0})
    found = assign_blame(THREE, Isolation(between=fine), {}, GATE)
    assert "each by itself is fast enough" in found.common


def test_a_rank_that_is_slow_by_itself_explains_its_lanes() -> None:
    alone = {0: (10.0, 0.0), 1: (1.0, 0.9), 2: (9.0, 0.05)}
    found = assign_blame(THREE, Isolation(alone=alone, busy={"node-b": ("pid 7",)}, between=ALIKE), {}, GATE)
    assert set(found.charges) == {"node-b"}
    charge = found.charges["node-b"]
    assert charge.cause == "rank-behind"
    assert "waited 90% of the time for a CPU" in charge.says
    assert charge.evidence == ("pid 7",)
    # Slow alone, and yet its links are the good ones: that is not why.
    innocent = {0: (10.0, 0.0), 1: (9.0, 0.0), 2: (1.0, 0.9)}
    verdict = assign_blame(THREE, Isolation(alone=innocent, between=SENDS_SLOWLY), {}, GATE)
    assert set(verdict.charges) == {"node-b"}
    assert verdict.charges["node-b"].cause == "allreduce-slow"


def test_a_rank_that_was_fast_on_another_link_is_not_behind() -> None:
    """Its threads waited for a CPU while it was measured alone; what is slow is one direction of two nodes."""
    two = pool_of(cluster(node("node-a"), node("node-b"))).members
    slow = Link("node-a", "node-b")
    layer = LinkLayer({slow: 0.006, Link("node-b", "node-a"): 12.0}, verdict=RingVerdict(paths=(slow,)))
    found = assign_blame(two, Isolation(alone={0: (4.5, 0.69), 1: (19.2, 0.0)}, between=layer), {}, GATE)
    assert {charge.cause for charge in found.charges.values()} == {"allreduce-slow"}
    assert "node-a sends slowly, or node-b receives slowly" in found.charges["node-a"].says


def test_a_rank_that_was_fast_on_a_link_is_not_behind_where_others_are_open() -> None:
    """One link of node-b was never judged, and one is slow: node-b received fast, so its CPU is not why."""
    slow, unjudged = Link("node-b", "node-c"), Link("node-b", "node-a")
    fast = dict.fromkeys([Link("node-a", "node-b"), Link("node-c", "node-a"), Link("node-a", "node-c")], 12.0)
    alone = {0: (9.4, 0.2), 1: (2.8, 0.84), 2: (9.4, 0.2)}
    layer = LinkLayer({slow: 0.006, **fast}, unsettled=(slow,), unjudged=(unjudged,))
    found = assign_blame(THREE, Isolation(alone=alone, between=layer), {}, GATE)
    assert not found.charges
    assert "node-b sends slowly, or node-c receives slowly" in found.common


def test_a_link_of_which_no_measurement_counts_is_not_called_fast() -> None:
    layer = LinkLayer({Link("node-b", "node-a"): 12.0}, unjudged=(Link("node-a", "node-b"),))
    found = assign_blame(THREE, Isolation(between=layer), {}, GATE)
    assert not found.charges
    assert "node-a → node-b could not be judged" in found.common
    assert "fast enough" not in found.common


def test_a_machine_where_all_wait_for_cpus_blames_nobody() -> None:
    alone = {0: (10.0, 0.6), 1: (5.0, 0.8), 2: (9.0, 0.7)}
    fine = layer({("node-a", "node-b"): 12.0, ("node-b", "node-c"): 12.0, ("node-c", "node-a"): 12.0})
    for links in (ALIKE, fine):
        found = assign_blame(THREE, Isolation(alone=alone, busy={"node-a": ("pid 7",)}, between=links), {}, GATE)
        assert not found.charges
        assert "every rank waited for a CPU for 60% to 80% of the time" in found.common
        assert ("top -b" in found.remedy) == (links is fine), "links that are slow explain it as well"
        assert "pid 7" in found.measured
    alike = dict.fromkeys(range(3), (10.0, 0.94))
    found = assign_blame(THREE, Isolation(alone=alike, between=ALIKE), {}, GATE)
    assert "for 94% of the time" in found.common
    on_gpus = pool_of(cluster(node("node-a"), node("node-b"), node("node-c"))).members
    for member in on_gpus:
        member.steps["imported"] = {"gpu": "H100"}
    assert "CPU" not in assign_blame(on_gpus, Isolation(alone=alone, between=ALIKE), {}, GATE).common
    assert has_uneven_rates({0: (1.0, 0.0), 1: (3.0, 0.0)})
    assert not has_uneven_rates({0: (2.0, 0.0), 1: (3.0, 0.0)})
    assert not has_uneven_rates({})


def test_ranks_that_are_slow_inside_their_node() -> None:
    labels = [member.label for member in PAIRS]
    inside = layer(
        {
            (labels[0], labels[1]): 12.0,
            (labels[1], labels[0]): 12.0,
            (labels[2], labels[3]): 1.0,
            (labels[3], labels[2]): 1.0,
        },
        {(labels[2], labels[3]): 1.0, (labels[3], labels[2]): 1.0},
    )
    between = layer({("node-a", "node-b"): 12.0, ("node-b", "node-a"): 12.0})
    found = assign_blame(PAIRS, Isolation(inside=inside, between=between), {}, GATE)
    assert set(found.charges) == {"node-b"}
    assert "the ranks of node-b are slow among themselves" in found.charges["node-b"].says


def test_one_slow_pair_of_ranks_is_named() -> None:
    """With GPUs every pair has an adapter of its own: one HCA is slow."""
    between = layer(
        {("node-a", "node-b"): 2.0, ("node-b", "node-c"): 12.0, ("node-c", "node-a"): 12.0},
        {("node-a", "node-c"): 2.0, ("node-c", "node-b"): 12.0, ("node-a", "node-b"): 2.0},
    )
    members = pool_of(cluster(*(node(name, processes=2) for name in ("node-a", "node-b", "node-c")))).members
    between.pairs = {Link("node-a", "node-b"): {(0, 2): 6.0, (1, 3): 1.0}}
    charge = assign_blame(members, Isolation(between=between), {}, GATE).charges["node-a"]
    assert charge.evidence == (
        (
            "rank 1 on node-a → rank 3 on node-b: 1.00 GB/s, the fastest pair of these nodes 6.00 GB/s: look at the "
            "adapter beside that GPU"
        ),
    )


def test_what_could_not_be_measured_is_said() -> None:
    found = assign_blame(THREE, Isolation(stopped="the ranks did not finish"), {}, GATE)
    assert "could not be measured: the ranks did not finish" in found.common
    assert not found.charges


def test_the_rings_of_many_nodes_are_judged_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand nodes have eight thousand links inside: none is compared with each of the others."""
    compared: list[Link] = []

    def same(one: Link, other: Link) -> bool:
        compared.append(one)
        return hash(one) == hash(other)

    monkeypatch.setattr(Link, "__eq__", same)
    rings = [ring_links([f"n{node}r{rank}" for rank in range(4)]) for node in range(100)]
    first = {link: SLOW if link.source.endswith("r1") else FAST for links in rings for link in links}
    second = {link: SLOW if link.source.endswith("r1") else FAST for link in links_to_remeasure(first, GATE)}
    verdict = judge_ring(first, second, GATE)
    assert (len(verdict.sending), verdict.receiving, verdict.paths) == (100, (), ())
    assert len(compared) < 20 * len(first)
