"""A node that is slow by its network alone: told from what the kernels count of each connection, or not told."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence

import pytest

from runbook.checks.bandwidth.adapters import SlowReason
from runbook.jobs.slowdown import SlowNetwork, Way, judge_network, network_suspects

SECONDS = 10.0
BYTES = 100_000_000
SHAPED = SlowReason("eth0 is limited to 100 Mbit/s by `tc`", "sudo tc qdisc del dev eth0 root", "qdisc tbf", 0.0125)
ABC = ("a", "b", "c")


def pairs(nodes: Sequence[str], *, ring: bool) -> Iterable[tuple[str, str]]:
    return zip(nodes, [*nodes[1:], nodes[0]], strict=True) if ring else itertools.permutations(nodes, 2)


def ways(
    nodes: Sequence[str], *, ring: bool, chance: random.Random, slow: Mapping[tuple[str, str], float] | None = None
) -> list[Way]:
    """Of a training that sends the same everywhere, within noise; `slow`: the part of the time that ways are busy."""
    return [
        Way(
            *pair,
            int(BYTES * chance.uniform(0.8, 1.2)),
            (slow or {}).get(pair) or 0.04 * chance.lognormvariate(0.0, 0.3),
            SECONDS,
        )
        for pair in pairs(nodes, ring=ring)
    ]


def judged(
    nodes: Sequence[str],
    slow: Mapping[tuple[str, str], float],
    *,
    ring: bool,
    reasons: Mapping[str, Sequence[SlowReason]] | None = None,
) -> SlowNetwork | None:
    chance = random.Random(3)
    looks = [ways(nodes, ring=ring, slow=slow, chance=chance) for _ in range(2)]
    return judge_network(looks, dict.fromkeys(nodes, ()) if reasons is None else reasons)


def test_who_sends_slowly_to_all_is_named() -> None:
    found = judged(ABC, {("b", "a"): 0.9, ("b", "c"): 0.8}, ring=False)
    assert found is not None
    assert found.node == "b"
    assert found.says.startswith("what b sends is on its way for 90% of the time")


def test_who_gets_slowly_from_all_is_named() -> None:
    found = judged(ABC, {("a", "b"): 0.9, ("c", "b"): 0.8}, ring=False)
    assert found is not None
    assert found.node == "b"
    assert found.says.startswith("what is sent to b is on its way")


def test_in_a_ring_who_is_slow_both_ways_is_named() -> None:
    found = judged(("a", "b", "c", "d"), {("a", "b"): 0.9, ("b", "c"): 0.8}, ring=True)
    assert found is not None
    assert found.node == "b"


def test_of_the_two_ends_of_one_slow_way_nobody_is_named_unless_an_adapter_says_why() -> None:
    slow = {("b", "c"): 0.9}
    found = judged(ABC, slow, ring=True)
    assert found is not None
    assert found.node is None
    assert "what b sends or what is sent to c" in found.says
    found = judged(ABC, slow, ring=True, reasons={"a": (), "b": (SHAPED,), "c": ()})
    assert found is not None
    assert found.node == "b"
    assert "limited to 100 Mbit/s" in found.says
    assert "tc qdisc del" in found.remedy


def test_an_adapter_that_says_nothing_which_explains_it_is_not_blamed() -> None:
    slow = {("b", "c"): 0.9}
    wide = SlowReason("eth0 is limited to 20 Gbit/s by `tc`", "x", "y", 2.5)
    unclear: list[dict[str, Sequence[SlowReason]]] = [
        {"a": (), "b": (), "c": (wide,)},
        {"a": (), "b": (SHAPED,), "c": (SHAPED,)},
        {"a": (), "b": (SHAPED,)},  # c could not be asked
    ]
    for reasons in unclear:
        found = judged(ABC, slow, ring=True, reasons=reasons)
        assert found is not None
        assert found.node is None


def test_of_two_nodes_only_the_way_is_known() -> None:
    found = judged(("a", "b"), {("b", "a"): 0.9}, ring=False)
    assert found is not None
    assert found.node is None
    assert judged(("a", "b"), {("b", "a"): 0.9, ("a", "b"): 0.9}, ring=False) is None, "the network may be slow"


@pytest.mark.parametrize("ring", [True, False])
@pytest.mark.parametrize("nodes", ["ab", "abc", "abcd", "abcdefgh"])
def test_noise_accuses_nobody(nodes: str, ring: bool) -> None:
    chance = random.Random(11)
    for _ in range(300):
        load = chance.choice((0.02, 0.2, 0.6))
        looks = [
            [
                Way(
                    *pair,
                    int(BYTES * load * chance.uniform(0.5, 2.0)),
                    min(1.0, load * chance.lognormvariate(0.0, 0.35)),
                    SECONDS,
                )
                for pair in pairs(nodes, ring=ring)
            ]
            for _ in range(2)
        ]
        assert judge_network(looks, {}) is None


def test_a_burst_in_one_look_is_no_proof() -> None:
    chance = random.Random(3)
    calm = ways(ABC, ring=False, chance=chance)
    slow = ways(ABC, ring=False, slow={("b", "a"): 0.9, ("b", "c"): 0.9}, chance=chance)
    assert network_suspects(slow)
    assert judge_network([calm, slow], {}) is None
    assert judge_network([slow, calm], {}) is None
    assert judge_network([], {}) is None


def test_who_explains_both_looks_is_named_where_acknowledgements_are_late_in_one_of_them() -> None:
    """As seen in a ring b → a → c → b whose b sends at 20 Mbit/s: what c sends waits for b's acknowledgements."""
    size = 17_700_000
    rest = Way("a", "c", size, 0.005, 8.0)
    first = [Way("b", "a", size, 0.93, 8.0), rest, Way("c", "b", size, 0.66, 8.0)]
    second = [Way("b", "a", size, 0.93, 8.0), rest, Way("c", "b", size, 0.1, 8.0)]
    found = judge_network([first, second], {})
    assert found is not None
    assert found.node == "b"


@pytest.mark.parametrize("late", [0.02, 0.1, 0.2, 0.3, 0.66, 0.9])
def test_however_late_acknowledgements_are_the_slow_sender_of_a_ring_is_found(late: float) -> None:
    size = 17_700_000
    looks = [[Way("b", "a", size, 0.93, 8.0), Way("a", "c", size, 0.005, 8.0), Way("c", "b", size, late, 8.0)]] * 2
    found = judge_network(looks, {"a": (), "b": (SlowReason("x", "y", "z", 0.0025),), "c": ()})
    assert found is not None
    assert found.node == "b"


def test_small_messages_and_pauses_are_no_measure() -> None:
    little = [Way("a", "b", 1000, 0.9, SECONDS), Way("b", "a", BYTES, 0.05, SECONDS)]
    assert network_suspects(little) == []
    rarely = [Way("a", "b", BYTES, 0.2, SECONDS), Way("b", "a", BYTES, 0.01, SECONDS)]
    assert network_suspects(rarely) == []
    more_than_the_others = [Way("a", "b", BYTES, 0.9, SECONDS), Way("b", "a", BYTES // 20, 0.01, SECONDS)]
    assert network_suspects(more_than_the_others) == []
