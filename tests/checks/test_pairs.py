"""Which pairs of nodes are tried: few for each, and enough that everybody is met by others of every kind."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.checks.network.pairs import (
    MAX_ALL_DIALLED_NODES,
    MAX_PAIR_NEIGHBOURS,
    BlamedNodes,
    Pairs,
    choose_pairs,
    node_groupings,
    pairs_around_failures,
)
from runbook.model.node_ranges import fold

from .made_up_cluster import cluster, context, node

NUMBERS = st.integers(2, 300)


def named(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


@given(NUMBERS)
def test_every_pair_of_a_few_and_of_many_each_node_meets_at_least_eight(count: int) -> None:
    names = named(count)
    pairs = choose_pairs(names, names[0])
    assert list(pairs.peers) == names
    for name, peers in pairs.peers.items():
        assert name not in peers
        assert len(set(peers)) == len(peers)
        assert all(name in pairs.peers[peer] for peer in peers), "both directions"
        assert len(peers) >= min(8, count - 1)
        assert names[0] in (name, *peers), "the master"
    if count <= MAX_ALL_DIALLED_NODES:
        assert len(pairs) == count * (count - 1)
        assert pairs.note() == ""
    else:
        assert len(pairs) <= count * (2 * count.bit_length() + 2)


@given(NUMBERS)
def test_all_means_all(count: int) -> None:
    pairs = choose_pairs(named(count), "n0", wanted="all")
    assert len(pairs) == count * (count - 1)
    assert pairs.note() == ""


@given(st.integers(17, 300))
def test_nobody_but_the_master_has_many_guests_at_a_time(count: int) -> None:
    """At the same step of their lists two nodes are never at the same peer, as far as both have the same distances."""
    names = named(count)
    pairs = choose_pairs(names, names[0])
    for step in range(min(map(len, pairs.peers.values()))):
        guests = [peers[step] for name, peers in pairs.peers.items() if name != names[0]]
        most = max(guests.count(peer) for peer in set(guests) - {names[0]})
        assert most <= 3


@given(st.integers(17, 200), st.integers(2, 40))
def test_groups_are_crossed(count: int, size: int) -> None:
    names = named(count)
    rack = {name: str(at // size) for at, name in enumerate(names)}
    pairs = choose_pairs(names, names[0], [rack])
    racks = set(rack.values())
    met = {(rack[name], rack[peer]) for name, peers in pairs.peers.items() for peer in peers}
    if len(racks) >= 2 and 2 * len(racks) <= count:
        assert met >= {(one, other) for one in racks for other in racks if one != other}


def test_subnets_racks_and_leaves_of_the_inventory_are_groups() -> None:
    places = {"rack": "r1", "leaf": "l1"}
    one, other = node("node-a", **places), node("node-b", rack="r1", leaf="l2", address="10.0.1.1")
    assert node_groupings(context(cluster(one, other))) == [
        {"node-a": "10.0.0.0/24", "node-b": "10.0.1.0/24"},
        {"node-a": "leaf l1", "node-b": "leaf l2"},
    ]


def test_a_group_for_each_node_tells_nothing() -> None:
    names = named(100)
    alone = {name: name for name in names}
    assert choose_pairs(names, "n0", [alone]) == choose_pairs(names, "n0")


@given(st.integers(17, 120), st.data())
def test_more_pairs_around_one_that_failed(count: int, data: st.DataObject) -> None:
    names = named(count)
    rack = {name: str(at // 8) for at, name in enumerate(names)}
    pairs = choose_pairs(names, names[0], [rack])
    source = data.draw(st.sampled_from(names))
    failed = (source, data.draw(st.sampled_from(pairs.peers[source])))
    more = pairs_around_failures(pairs, [failed], [rack])
    fresh = {frozenset((name, peer)) for name, peers in more.peers.items() for peer in peers}
    assert not fresh & {frozenset((name, peer)) for name, peers in pairs.peers.items() for peer in peers}
    for end in failed:
        left = count - 1 - len(pairs.peers[end])
        assert len(more.peers[end]) >= min(MAX_PAIR_NEIGHBOURS, left)
    assert len(pairs.and_(more)) == len(pairs) + len(more)


def test_of_a_few_nodes_there_are_no_more_pairs() -> None:
    pairs = Pairs.every(named(5))
    assert len(pairs_around_failures(pairs, [("n0", "n1")])) == 0


@pytest.mark.parametrize(("count", "text"), [(17, "of 272 pairs"), (256, "of 65,280 pairs")])
def test_what_is_left_out_is_said(count: int, text: str) -> None:
    note = choose_pairs(named(count), "n0").note()
    assert text in note
    assert "pairs: all" in note


RACKS = {name: f"rack {name[0].upper()}" for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1", "c2")}
TRIED = {frozenset(pair) for pair in combinations(RACKS, 2)}


def blame(*bad: str) -> BlamedNodes:
    """Bad are pairs of single nodes, such as `a1-b1`, or all pairs of two racks, such as `a-b`."""
    pairs = {
        pair
        for pair in TRIED
        for one, other in (text.split("-") for text in bad)
        for mine, its in (sorted(pair), sorted(pair, reverse=True))
        if mine.startswith(one) and its.startswith(other)
    }
    return BlamedNodes.of(pairs, TRIED, [RACKS])


def test_where_two_racks_cannot_talk_it_is_what_joins_them() -> None:
    found = blame("a-b")
    assert found.apart.startswith("what fails is nearly every pair between rack A and rack B, and no other")
    assert {name: " ".join(sorted(peers)) for name, peers in found.nodes.items()} == {
        **dict.fromkeys(("a1", "a2", "a3", "a4"), "b1 b2"),
        **dict.fromkeys(("b1", "b2"), "a1 a2 a3 a4"),
    }


def test_a_rack_that_reaches_no_other_is_named_and_the_others_are_not() -> None:
    assert set(blame("a-b", "c-b").nodes) == {"b1", "b2"}


@pytest.mark.parametrize(
    ("bad", "nodes"),
    [
        (("a1-b", "a1-c"), {"a1"}),  # one node of the rack is what they have in common
        (("a-b1",), {"b1"}),
        (("a-b", "a1-a2"), {"b1", "b2", "a1", "a2"}),  # inside a rack as well: that is not the way between two
        (("a1-b1", "a2-b2"), {"a1", "b1", "a2", "b2"}),
    ],
)
def test_what_nodes_have_in_common_comes_before_what_racks_have(bad: tuple[str, ...], nodes: set[str]) -> None:
    found = blame(*bad)
    assert (set(found.nodes), found.apart) == (nodes, "")


def test_two_islands_are_told_whatever_the_inventory_calls_them() -> None:
    """Of c1 and c2, which both islands reach, nothing is said."""
    pairs = {frozenset((one, other)) for one in ("a1", "a3") for other in ("a2", "b1", "b2")}
    found = BlamedNodes.of(pairs, TRIED, [RACKS])
    assert found.apart.startswith("what fails is nearly every pair between a[1,3] and a2,b[1-2], and no other")
    assert set(found.nodes) == {"a1", "a3", "a2", "b1", "b2"}


@pytest.mark.parametrize("few", [2, 3, 5, 8, 10])
def test_of_islands_that_differ_in_size_the_small_one_is_named(few: int) -> None:
    names = named(20)
    tried = {frozenset((name, peer)) for name, peers in choose_pairs(names, "n0").peers.items() for peer in peers}
    small = set(names[-few:])
    found = BlamedNodes.of({pair for pair in tried if len(pair & small) == 1}, tried, [])
    if few < 7:
        assert set(found.nodes) == small
        assert f"between {fold(sorted(small))} and the rest, and no other" in found.apart
    else:
        assert set(found.nodes) == set(names)


@pytest.mark.parametrize("change", [("a1", "a3"), ("a2", "a3"), ("c1", "c2")])
def test_islands_with_a_bad_pair_inside_or_a_good_one_between_are_none(change: tuple[str, str]) -> None:
    pairs = {frozenset((one, other)) for one in ("a1", "a3") for other in ("a2", "b1", "b2")}
    assert BlamedNodes.of(pairs ^ {frozenset(change)}, TRIED, [RACKS]).apart == ""


def test_each_way_between_groups_is_told_once() -> None:
    assert "between rack B and each of rack A and rack C, and no other" in blame("a-b", "c-b").apart
