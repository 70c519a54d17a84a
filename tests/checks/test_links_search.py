"""Who is measured with whom, and what that proves: in simulated networks of 4 to 1,024 nodes, sound and not."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from profiles import one_in

from runbook.checks.bandwidth.pairing_rounds import Schedule, leaf_crossing_pairs, nodes_of_leaves, round_robin
from runbook.checks.bandwidth.slow_links import (
    Endpoint,
    Judgement,
    Link,
    Measured,
    Role,
    estimate_normal,
    links_verdict,
)

from .simulated_links import GBYTES, Network, first_links, leaf_size, search

BOTH, SENDS, RECEIVES = tuple(Role), (Role.SENDS,), (Role.RECEIVES,)
SIZES = {4: 300, 16: 60, 64: 12, 256: 3, 1024: 1}
"""Trials a case in `make test-all`, by the number of nodes."""

MANY = {4: 1000, 16: 1000, 64: 200, 256: 40, 1024: 6}
"""In `make test-scale`."""

QUICK = {4: 30, 16: 20, 64: 3}

Case = Callable[[int, random.Random], tuple[Network, set[object]]]
"""A network of so many nodes, and everything that must be told of it."""


def topology(count: int) -> Network:
    return Network(count, leaf_size(count) if count > 8 else None)


def slow_nodes(share: float, part: float, roles: tuple[Role, ...]) -> Case:
    """This share of the nodes, and one at least, has so much of the full rate."""

    def case(count: int, chance: random.Random) -> tuple[Network, set[object]]:
        sound = topology(count)
        guilty = chance.sample(sound.nodes, max(1, round(share * count)))
        ends = {Endpoint(name, role): part for name in guilty for role in roles}
        return Network(count, sound.leaf_size, ends), set(ends)

    return case


def slow_leaf(part: float, roles: tuple[Role, ...], *, inside: bool) -> Case:
    """One leaf: only what leaves or enters it, or all that its nodes do."""

    def case(count: int, chance: random.Random) -> tuple[Network, set[object]]:
        sound = topology(count)
        leaf = chance.choice(sorted(set(sound.leaf_of.values())))
        names = [name for name, of in sound.leaf_of.items() if of == leaf] if inside else [leaf]
        ends = {Endpoint(name, role): part for name in names for role in roles}
        return Network(count, sound.leaf_size, ends), {Endpoint(leaf, role) for role in roles}

    return case


def slow_pair_of_leaves(part: float, ways: int) -> Case:
    def case(count: int, chance: random.Random) -> tuple[Network, set[object]]:
        sound = topology(count)
        one, other = chance.sample(sorted(set(sound.leaf_of.values())), 2)
        pairs = dict.fromkeys([Link(one, other), Link(other, one)][:ways], part)
        return Network(count, sound.leaf_size, leaf_pairs=pairs), set(pairs)

    return case


def slow_link(part: float) -> Case:
    """One of those that are measured at first: with hundreds of nodes nobody looks at every pair."""

    def case(count: int, chance: random.Random) -> tuple[Network, set[object]]:
        sound = topology(count)
        link = chance.choice(first_links(sound))
        return Network(count, sound.leaf_size, links={link: part}), {link}

    return case


def sound_network(count: int, _chance: random.Random) -> tuple[Network, set[object]]:
    return topology(count), set()


def slow_half(part: float, roles: tuple[Role, ...]) -> Case:
    def case(count: int, chance: random.Random) -> tuple[Network, set[object]]:
        return slow_nodes(0.5, part, roles)(count, chance)[0], {"common"}

    return case


CASES: dict[str, tuple[Case, int]] = {
    "sound": (sound_network, 4),
    **{
        f"{name} of {part} {' and '.join(role.value for role in roles)}": (slow_nodes(share, part, roles), least)
        for name, share, least in (("one", 0.0, 4), ("1%", 0.01, 256), ("5%", 0.05, 64))
        for part in (0.5, 0.8)
        for roles in (BOTH, SENDS, RECEIVES)
    },
    **{f"link of {part}": (slow_link(part), 4) for part in (0.5, 0.8)},
    **{
        f"pair of leaves of {part}, {ways} ways": (slow_pair_of_leaves(part, ways), 16)
        for part, ways in ((0.5, 2), (0.8, 1))
    },
    **{
        f"leaf of {part} {'inside' if inside else 'uplinks'}": (slow_leaf(part, roles, inside=inside), 16)
        for part, roles, inside in ((0.5, BOTH, False), (0.8, SENDS, False), (0.5, SENDS, True), (0.8, RECEIVES, True))
    },
    "half of 0.5": (slow_half(0.5, BOTH), 4),
    "half of 0.8 sends": (slow_half(0.8, SENDS), 4),
}
"""Each with the smallest network it is tried in."""


def told(network: Network, seed: int) -> tuple[set[object], int]:
    """Everything that a search tells, and its rounds."""
    done = search(network, seed)
    names: set[object] = {*done.told.nodes, *done.told.links, *done.told.leaves, *done.told.leaf_pairs}
    return names | ({"common"} if done.told.common else set()), done.rounds


def try_often(case: Case, count: int, trials: int) -> tuple[int, int, Counter[int]]:
    """In how many trials everything was found, in how many somebody was accused falsely, and the rounds."""
    found, false, rounds = 0, 0, Counter[int]()
    for seed in range(trials):
        network, wanted = case(count, random.Random(seed))
        names, number = told(network, seed)
        rounds[number] += 1
        found += wanted <= names
        false += not names <= wanted
    return found, false, rounds


def judge_trials(case: Case, count: int, trials: int, *, chance: int = 0) -> None:
    """At most this many false accusations more than the rate allows: few trials say little of one in a thousand."""
    found, false, rounds = try_often(case, count, trials)
    print(f"{count} nodes: found {found} of {trials}, {false} false, rounds {dict(sorted(rounds.items()))}")
    # Half of all slower by a fifth looks like noise now and then, of which nobody is accused.
    rate = 0.02 if case is CASES["half of 0.8 sends"][0] else 0.01
    assert trials - found <= max(1, rate * trials) + chance, f"{found} of {trials}"
    assert false <= 0.001 * trials + chance, f"{false} of {trials} accused somebody falsely"
    usual = max(3, count - 1) + 2 if count <= 8 else 5
    assert sum(number for value, number in rounds.items() if value <= usual) >= 0.9 * trials, rounds


@pytest.mark.parametrize("count", QUICK)
@pytest.mark.parametrize("name", CASES)
def test_who_is_slow_is_found_and_nobody_else_accused(name: str, count: int) -> None:
    case, least = CASES[name]
    if count >= least:
        judge_trials(case, count, QUICK[count])


@pytest.mark.thorough
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("name", CASES)
def test_the_same_many_times(name: str, count: int) -> None:
    case, least = CASES[name]
    if count >= least:
        judge_trials(case, count, SIZES[count], chance=1)


@pytest.mark.scale
@pytest.mark.parametrize("count", MANY)
@pytest.mark.parametrize("name", CASES)
def test_the_same_as_often_as_a_rate_of_one_in_a_thousand_needs(name: str, count: int) -> None:
    case, least = CASES[name]
    if count >= least:
        judge_trials(case, count, MANY[count], chance=1)


@pytest.mark.parametrize("capacity", one_in(4, [0.5, 0.75, 1.0, 2.0]))
@pytest.mark.parametrize("roles", [SENDS, RECEIVES, BOTH])
@pytest.mark.parametrize(("count", "trials"), [(16, 40), (64, 3)])
def test_an_uplink_that_its_nodes_share_accuses_none_of_them(
    count: int, trials: int, roles: tuple[Role, ...], capacity: float
) -> None:
    """Each of its nodes and links is fast now and then, whenever the others do not send. An uplink for two nodes at a
    time, of four, is as many build them: it may be told, but nobody else."""
    named = 0
    for seed in range(trials):
        sound = topology(count)
        leaf = random.Random(seed).choice(sorted(set(sound.leaf_of.values())))
        ends = {Endpoint(leaf, role): capacity for role in roles}
        names, _ = told(Network(count, sound.leaf_size, uplinks=ends, transients=0.0), seed)
        assert all(isinstance(each, Endpoint) and each.name == leaf for each in names), (seed, leaf, names)
        named += bool(names)
    assert named >= 0.9 * trials or capacity > 1, f"named in {named} of {trials}"


@pytest.mark.parametrize("capacity", one_in(4, [1.5, 1.0, 2.0, 3.0]))
def test_where_all_leaves_have_narrow_uplinks_none_is_accused(capacity: float) -> None:
    """As most fabrics are built: for four nodes an uplink of one to three."""
    accused = 0
    for seed in range(60):
        sound = topology(16)
        ends = {Endpoint(leaf, role): capacity for leaf in set(sound.leaf_of.values()) for role in Role}
        names, _ = told(Network(16, sound.leaf_size, uplinks=ends, transients=0.0), seed)
        accused += bool(names - {"common"})
    assert accused <= 3, f"{accused} of 60"


@pytest.mark.parametrize("noise", [0.08, 0.15])
def test_on_a_noisy_network_nobody_is_accused(noise: float) -> None:
    for seed in range(40):
        names, _ = told(Network(16, 4, noise=noise, transients=0.005), seed)
        assert not names


@pytest.mark.parametrize("count", [3, 5, 7, 9, 11, 17, 33])
def test_an_odd_number_of_nodes(count: int) -> None:
    for seed in range(20):
        guilty = Endpoint(f"n{seed % count:04}", Role.SENDS)
        assert told(Network(count, None, {guilty: 0.5}), seed)[0] == {guilty}
        assert told(Network(count), seed)[0] == set()


def test_of_two_nodes_only_the_link_can_be_named() -> None:
    slow = Link("n0000", "n0001")
    names, rounds = told(Network(2, ends={Endpoint("n0000", Role.SENDS): 0.5}), 1)
    assert (names, rounds) == ({slow}, 3)
    assert told(Network(2), 1) == (set(), 1)
    assert told(Network(2, ends={Endpoint("n0000", role): 0.5 for role in Role}), 1)[0] == set()  # both ways alike


def test_leaves_of_different_sizes_and_nodes_of_none() -> None:
    network = Network(23, 6, {Endpoint("n0009", Role.RECEIVES): 0.6})
    for seed in range(20):
        assert told(network, seed)[0] == {Endpoint("n0009", Role.RECEIVES)}


# The schedule.


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8, 11])
def test_a_round_robin_has_every_pair_once_and_nobody_twice_in_a_round(count: int) -> None:
    nodes = [str(number) for number in range(count)]
    rounds = round_robin(nodes)
    assert len(rounds) == count - 1 + count % 2
    pairs = Counter(frozenset(pair) for each in rounds for pair in each)
    assert len(pairs) == count * (count - 1) // 2
    assert set(pairs.values()) == {1}
    for each in rounds:
        assert len({name for pair in each for name in pair}) == 2 * len(each)


@pytest.mark.parametrize(("leaves", "size"), [(4, 4), (8, 8), (5, 8), (3, 7), (32, 32)])
def test_the_first_round_crosses_every_pair_of_leaves(leaves: int, size: int) -> None:
    leaf_of = {f"l{leaf}n{place}": f"l{leaf}" for leaf in range(leaves) for place in range(size)}
    pairs = leaf_crossing_pairs(nodes_of_leaves(list(leaf_of), leaf_of))
    met = {frozenset((leaf_of[one], leaf_of[other])) for one, other in pairs}
    assert len({pair for pair in met if len(pair) == 2}) == leaves * (leaves - 1) // 2
    assert len({name for pair in pairs for name in pair}) == 2 * len(pairs) == leaves * size // 2 * 2


def test_every_pair_on_request() -> None:
    nodes = [str(number) for number in range(12)]
    schedule = Schedule(nodes, every_pair=True)
    met = {frozenset((each.one, each.other)) for number in range(11) for each in schedule.round(number, None, [])}
    assert len(met) == 66
    assert schedule.round(11, None, []) == []


def test_who_is_measured_alone_has_the_uplinks_of_both_leaves_to_itself() -> None:
    slow = Link("n0001", "n0005")
    network = Network(16, 4, links={slow: 0.5}, noise=0.0, transients=0.0)
    schedule = Schedule(network.nodes, network.leaf_of)
    measured, number = [Measured(slow, 0.5 * GBYTES, 0)], 1
    measured += [Measured(link, GBYTES, 0) for link in first_links(network) if link != slow]
    alone = False
    while meetings := schedule.round(number, Judgement(network.nodes, measured, network.leaf_of), measured):
        for each in meetings:
            measured += [
                Measured(link, network.full(link, network.leaf_of), number, each.asked, each.long, each.alone)
                for link in each.links
            ]
        crossing = [each for each in meetings if network.leaf_of[each.one] != network.leaf_of[each.other]]
        for one in (each for each in crossing if each.alone):
            alone = True
            leaves = {network.leaf_of[one.one], network.leaf_of[one.other]}
            others = {network.leaf_of[node] for each in crossing if each is not one for node in (each.one, each.other)}
            assert not leaves & others
        number += 1
    assert alone
    assert links_verdict(Judgement(network.nodes, measured, network.leaf_of)).links == (slow,)


def test_in_the_second_round_neighbours_meet_and_suspects_meet_proven_ones() -> None:
    network = Network(16, 4, {Endpoint("n0005", Role.SENDS): 0.5}, noise=0.0, transients=0.0)
    schedule = Schedule(network.nodes, network.leaf_of)
    first = schedule.round(0, None, [])
    measured = [Measured(link, network.full(link, network.leaf_of), 0) for each in first for link in each.links]
    second = schedule.round(1, Judgement(network.nodes, measured, network.leaf_of), measured)
    assert {name for each in second for name in (each.one, each.other)} == set(network.nodes)
    before = {frozenset((each.one, each.other)) for each in first}
    assert not before & {frozenset((each.one, each.other)) for each in second}
    suspect = next(each for each in second if "n0005" in (each.one, each.other))
    assert len({network.leaf_of[suspect.one], network.leaf_of[suspect.other]}) == 1


def test_nothing_that_is_never_measured_is_accused() -> None:
    """A node that is not measured at all, as one that is too busy, is neither proven nor suspect."""
    network = Network(6, noise=0.0, transients=0.0)
    links = [Link(one, other) for one in network.nodes for other in network.nodes if one != other]
    measured = [Measured(link, GBYTES, 0) for link in links if "n0002" not in (link.source, link.destination)]
    judged = Judgement(network.nodes, measured, {})
    assert links_verdict(judged).clean
    assert judged.untested(network.nodes) == ["n0002"]
    assert not judged.proven("n0002", Role.SENDS)


# The statistics.


@pytest.mark.parametrize("slow", [0.0, 0.2, 0.5, 0.75])
def test_slow_ones_do_not_drag_the_median_down(slow: float) -> None:
    chance = random.Random(3)
    rates = [10 * (0.5 if number < slow * 200 else 1) * (1 + chance.gauss(0, 0.03)) for number in range(200)]
    found = estimate_normal(rates)
    assert found.median == pytest.approx(10, rel=0.02)
    assert found.sigma == pytest.approx(0.03, rel=0.4)


def test_wide_noise_moves_the_limits() -> None:
    chance = random.Random(5)
    narrow, wide = (estimate_normal(10 * (1 + chance.gauss(0, sigma)) for _ in range(500)) for sigma in (0.01, 0.1))
    assert (narrow.suspect, narrow.confirmed) == pytest.approx((0.9, 0.93))
    assert 0.6 < wide.suspect < 0.75
    assert wide.suspect < wide.mean < wide.confirmed < 1


def test_nothing_at_all_flows() -> None:
    assert estimate_normal([0.0, 0.0]).median == 0
    assert links_verdict(Judgement(["a", "b"], [Measured(Link("a", "b"), 0.0, 0)], {})).clean
