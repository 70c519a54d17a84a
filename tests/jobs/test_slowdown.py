"""Whether a training has become slower, and who the others wait for: from simulated series of steps and of looks."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from runbook.jobs import counters
from runbook.jobs.counters import CounterWatch
from runbook.jobs.progress import Slowdown, StepTimes
from runbook.jobs.slowdown import (
    MAIN_THREAD_SAMPLES,
    LateNode,
    ReasonsByKind,
    SlowdownSearch,
    Waits,
    find_late_node,
    judge_slowdown,
    slow_node_reasons,
    waits_by_samples,
)
from runbook.model.verdict import Finding
from runbook.transport.node_answers import Counters

from .made_up_attempts import kept

HOUR = 3600.0
Step = Callable[[int, float], float]
"""Seconds that a step takes, by its number and the time since the first."""

IN_REDUCE = (
    'Current thread 0x1 (most recent call first):\n  File "/v/lib/python3.11/site-packages/torch/distributed/x.py", line 9 '
    'in all_reduce\n  File "/srv/train.py", line 46 in main\n'
)
IN_QUEUE = 'Current thread 0x1 (most recent call first):\n  File "/usr/lib/python3.11/queue.py", line 171 in get\n'


def trained(step: Step, *, seconds: float = 2 * HOUR, every: int = 1, baseline_s: float = 600.0) -> list[Slowdown]:
    """What is told of a training, looked at every 30 s, whose every so many steps are printed."""
    times, now, number, looked, told = StepTimes(baseline_s), 1000.0, 0, 1000.0, []
    while now < 1000.0 + seconds:
        if number % every == 0:
            times.reached(now, number)
        while looked + 30.0 <= now:
            looked += 30.0
            if slower := times.slower(looked):
                told.append(slower)
        now += step(number, now - 1000.0)
        number += 1
    return told


def noisy(seconds: float, spread: float = 0.2, seed: int = 1) -> Step:
    chance = random.Random(seed)
    return lambda number, at: seconds * chance.lognormvariate(0.0, spread)


def also(step: Step, more: Callable[[int, float], float]) -> Step:
    return lambda number, at: step(number, at) + more(number, at)


HEALTHY: dict[str, tuple[Step, int]] = {
    "even": (noisy(0.5, 0.02), 1),
    "uneven": (noisy(0.5, 0.8), 1),
    "fast and printed rarely": (noisy(0.01, 0.3), 100),
    "slow steps": (noisy(45.0, 0.15), 1),
    "sequences of two lengths": (lambda n, _: 1.0 if (n // 7) % 2 else 2.5, 1),
    "an evaluation now and then": (also(noisy(0.4), lambda n, _: 200.0 if n % 1000 == 999 else 0.0), 1),
    "an evaluation with every second line": (also(noisy(0.2), lambda n, _: 30.0 if n % 100 == 99 else 0.0), 50),
    "checkpoints": (also(noisy(0.4), lambda n, _: 60.0 if n % 500 == 499 else 0.0), 10),
    "a longer evaluation each time": (also(noisy(0.4), lambda n, at: at / 20 if n % 1000 == 999 else 0.0), 1),
    "compiling at first": (also(noisy(0.5), lambda n, _: 120.0 if n < 3 else 0.0), 1),
    "slow at first": (lambda n, at: 2.0 - min(1.0, at / 1200.0), 1),
    "a pause of an hour": (also(noisy(0.5), lambda n, at: HOUR if n == 4000 else 0.0), 1),
    "a tenth slower": (lambda n, at: 0.5 if at < 1800 else 0.55, 1),
    "a slow minute": (lambda n, at: 2.0 if 3000 < at < 3060 else 0.5, 1),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_training_is_left_alone(name: str) -> None:
    step, every = HEALTHY[name]
    assert trained(step, every=every) == []


@pytest.mark.parametrize("seconds", [0.05, 0.5, 20.0])
@pytest.mark.parametrize("factor", [1.35, 2.0, 8.0])
def test_a_training_that_lost_its_speed_is_told_at_once(seconds: float, factor: float) -> None:
    base = noisy(seconds)
    told = trained(lambda n, at: base(n, at) * (factor if at > 2000 else 1.0), every=1)
    assert told
    assert told[0].at_once
    assert told[-1].now_s / told[-1].before_s == pytest.approx(factor, rel=0.15)
    assert told[-1].lost == pytest.approx(1 - 1 / factor, abs=0.1)


def test_a_training_with_evaluations_that_lost_its_speed_is_told_too() -> None:
    step, _ = HEALTHY["an evaluation now and then"]
    assert trained(lambda n, at: step(n, at) * (1.6 if at > 2500 else 1.0))


def test_sequences_that_grow_come_by_and_by() -> None:
    base = noisy(0.5)
    told = trained(lambda n, at: base(n, at) * (1 + at / HOUR))
    assert told
    assert not told[0].at_once


def test_before_the_baseline_and_after_it_is_waited() -> None:
    assert trained(lambda n, at: 0.5 if at < 500 else 1.0, seconds=890.0) == []
    assert trained(lambda n, at: 0.5 if at < 30 else 1.0, seconds=100.0, baseline_s=30.0)
    assert StepTimes().slower(1e9) is None


def test_a_restart_from_a_checkpoint_is_no_step_back() -> None:
    times = StepTimes()
    for number in range(3000):
        times.reached(float(number), number % 1000)
    assert times.slower(3000.0) is None


# Who is late.


def rank(node: str, share: float | None, number: int = 0) -> Waits:
    return Waits(node, f"rank {number} on {node}", share)


def test_who_hardly_waits_while_all_others_do_is_late() -> None:
    found = find_late_node([rank("a", 0.5), rank("b", 0.04, 1), rank("c", 0.45, 2)])
    assert found is not None
    assert found.node == "b"
    assert "rank 1 on b waits for others 4% of the time" in found.says
    assert "at least 45%" in found.says
    two = find_late_node([rank("a", 0.5), rank("a", 0.4), rank("b", 0.0), rank("b", 0.9)])
    assert two is not None
    assert two.node == "b"


@pytest.mark.parametrize(
    "seen",
    [
        [],
        [rank("a", 0.5)],
        [rank("a", 0.0), rank("b", 0.0)],  # all compute
        [rank("a", 0.9), rank("b", 0.9)],  # all wait: the network
        [rank("a", 0.3), rank("b", 0.05)],  # they are nearly even
        [rank("a", 0.5), rank("b", 0.05), rank("c", 0.05)],
        [rank("a", 0.5), rank("b", 0.05), rank("c", 0.2)],
        [rank("a", 0.5), rank("b", 0.05), rank("c", None)],  # nobody knows
        [rank("a", 0.5), rank("b", None)],
    ],
)
def test_nobody_is_accused_where_it_is_not_clear(seen: list[Waits]) -> None:
    assert find_late_node(seen) is None


def test_ranks_that_wait_alike_are_hardly_ever_told_apart() -> None:
    """Single looks are chance; all ranks wait for the same part of the time, whatever that is."""
    chance, wrong, runs = random.Random(7), 0, 0
    for share in (0.05, 0.1, 0.2, 0.25, 0.3, 0.5):
        for nodes in (2, 4, 8):
            for _ in range(200):
                looks = [
                    sum(chance.random() < share for _ in range(MAIN_THREAD_SAMPLES)) / MAIN_THREAD_SAMPLES
                    for _ in range(nodes)
                ]
                wrong += find_late_node([rank(str(n), look, n) for n, look in enumerate(looks)]) is not None
                runs += 1
    assert wrong / runs < 0.01


def test_a_node_at_half_speed_is_found_by_its_looks() -> None:
    chance = random.Random(7)
    found = 0
    for _ in range(200):
        slow = "".join(chance.choices("RS", (0.97, 0.03), k=MAIN_THREAD_SAMPLES))
        fast = "".join(chance.choices("RS", (0.45, 0.55), k=MAIN_THREAD_SAMPLES))
        seen = [
            waits_by_samples(node, node, states, [IN_REDUCE] * MAIN_THREAD_SAMPLES, by_stack=True)
            for node, states in (("a", fast), ("b", slow))
        ]
        told = find_late_node(seen)
        assert told is None or told.node == "b"
        found += told is not None
    assert found > 180


def test_a_look_counts_by_state_and_stack() -> None:
    half = MAIN_THREAD_SAMPLES // 2
    asleep = "S" * MAIN_THREAD_SAMPLES

    def share(states: str, stacks: list[str], *, by_stack: bool = True) -> float | None:
        return waits_by_samples("a", "rank 0 on a", states, stacks, by_stack=by_stack).share

    assert share(asleep, [IN_REDUCE] * MAIN_THREAD_SAMPLES) == 1.0
    assert share(asleep, [IN_QUEUE] * MAIN_THREAD_SAMPLES) == 0.0  # it sleeps, and for no other rank
    assert (
        share("R" * half + "S" * half, [IN_REDUCE] * MAIN_THREAD_SAMPLES) == 0.5
    )  # it computes in `backward`, or waits there
    assert share("D" * MAIN_THREAD_SAMPLES, [""] * MAIN_THREAD_SAMPLES) == 0.0
    assert share(asleep, [""] * MAIN_THREAD_SAMPLES) is None  # it could not be asked
    assert share(asleep, [], by_stack=False) is None
    assert share("T" * MAIN_THREAD_SAMPLES, [IN_REDUCE] * MAIN_THREAD_SAMPLES) is None
    assert share("", []) is None


QUIET: dict[str, ReasonsByKind] = {"node-a": {}, "node-b": {}}


class Searched(SlowdownSearch):
    """Nodes that nobody reaches: `sees` has what each look would tell, and whom it would name."""

    def __init__(self, folder: Path, *sees: LateNode | None, seen: list[Waits], why: dict[str, ReasonsByKind]) -> None:
        self.told: list[str] = []
        self.said: list[str] = []
        times = StepTimes(baseline_s=0.0)
        times.reached(0.0, 1)
        made = kept(folder)
        super().__init__(
            made,
            times,
            CounterWatch(made, lambda *_: None, lambda *_: None),
            lambda nodes, _: self.told.extend(nodes),
            self.said.append,
        )
        self._sees = iter(sees)
        self._seen = seen
        self._reasons = why

    def _late(self, *, by_stack: bool) -> LateNode | None:  # noqa: ARG002
        return next(self._sees)

    def _why(self, name: str) -> ReasonsByKind:
        return self._reasons[name]


A, B = LateNode("node-a", "the others wait for node-a"), LateNode("node-b", "the others wait for node-b")


@pytest.mark.parametrize(
    ("sees", "told"),
    [
        ([A, A, A, A], ["node-a"]),
        ([A, A, None, None], []),  # it was busy for a while
        ([A, A, B, B], []),
        ([A, B, A, A], []),  # states and stacks disagree
        ([A, A, A, None], []),
    ],
)
def test_a_node_is_named_that_is_late_at_two_readings_in_a_row(
    tmp_path: Path, sees: list[LateNode | None], told: list[str]
) -> None:
    search = Searched(tmp_path, *sees, None, None, seen=[], why=QUIET)
    search.look()
    assert search.told == []
    search.look()
    assert search.told == told


@pytest.mark.parametrize(("sees", "told"), [([None] * 6, ["node-a", "node-b"]), ([None, None, A, A, A, A], ["node-a"])])
def test_that_no_node_stands_out_takes_two_readings_as_well(
    tmp_path: Path, sees: list[LateNode | None], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    search = Searched(tmp_path, *sees, seen=[], why=QUIET)
    monkeypatch.setattr(StepTimes, "slower", lambda *_: Slowdown(0.5, 1.0, True))
    search.look()
    assert search.told == []
    for _ in range(2):
        search.look()
    assert search.told == told


@pytest.mark.parametrize(
    ("sees", "told"),
    [
        ([A, A, B, B, A, A], ["node-a", "node-b"]),
        ([A, A, B, B, B, B], ["node-b"]),
        ([A, A, None, None, None, None], ["node-a", "node-b"]),
    ],
)
def test_that_another_node_is_late_each_time_is_told_of_no_node(
    tmp_path: Path, sees: list[LateNode | None], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    search = Searched(tmp_path, *sees, seen=[], why=QUIET)
    monkeypatch.setattr(StepTimes, "slower", lambda *_: Slowdown(0.5, 1.0, True))
    for _ in range(2):
        search.look()
        assert search.told == []
    search.look()
    assert search.told == told


def test_a_training_that_was_fast_again_is_doubted_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = Searched(tmp_path, *[None] * 7, seen=[], why=QUIET)
    for slower in (Slowdown(0.5, 1.0, True), None, Slowdown(0.5, 1.0, True)):
        monkeypatch.setattr(StepTimes, "slower", lambda *_, slower=slower: slower)
        search.look()
    assert search.told == []
    search.look()
    assert search.told == ["node-a", "node-b"]


def test_which_of_several_nodes_that_wait_for_a_cpu_is_late_is_chance(tmp_path: Path) -> None:
    """As in a lab on a busy machine: each of its nodes was named once."""
    short = [Waits("node-a", "rank 0 on node-a", 0.05, 0.7), Waits("node-b", "rank 1 on node-b", 0.5, 0.6)]
    cut: dict[str, ReasonsByKind] = {**QUIET, "node-a": {"quota": "the ranks of node-a are held back by the CPU quota"}}
    errors: dict[str, ReasonsByKind] = {**QUIET, "node-a": {"node-a: 100 TCP segments": "node-a: 100 TCP segments"}}
    alone = [short[0], replace(short[1], for_cpu=0.05)]
    for seen, why, named in ((short, QUIET, False), (short, errors, False), (short, cut, True), (alone, QUIET, True)):
        search = Searched(tmp_path, A, A, A, A, seen=seen, why=why)
        search.look()
        search.look()
        assert search.told == ["node-a"] * named
        assert any("wait for a CPU, so it is chance which one is late" in text for text in search.said) is not named


# What is said.

CPU = {"cpu": "processes wait for a CPU 60% of the time"}
LATE = LateNode("node-b", "the others wait for node-b: rank 1 on node-b waits for others 0% of the time")


def found(judged: tuple[tuple[str, ...], Finding] | None) -> tuple[tuple[str, ...], Finding]:
    assert judged is not None
    return judged


def facts(clock: float, **machine: int) -> Counters:
    return cast(Counters, {"clock": clock, "machine": machine, "gpus": None})


def test_the_late_node_is_named_with_its_reason() -> None:
    then, now = facts(0.0, quota_us=5), facts(30.0, quota_us=15_000_005)
    why = {"node-a": CPU, "node-b": {**slow_node_reasons("node-b", then, now, ()), **CPU}}
    nodes, finding = found(judge_slowdown(Slowdown(0.5, 1.0, True), LATE, why))
    assert (nodes, finding.cause) == (("node-b",), "training-slowed")
    assert "50% slower" in finding.says
    assert "held back by the CPU quota" in finding.says
    assert "cpu.max" in finding.remedy
    assert "wait for a CPU" not in finding.says  # so do the others'


def test_a_late_node_is_told_without_a_slower_training_and_nobody_otherwise() -> None:
    assert found(judge_slowdown(None, LATE, QUIET))[0] == ("node-b",)
    assert judge_slowdown(None, None, {**QUIET, "node-b": CPU}) is None


def test_without_a_late_node_nobody_is_accused() -> None:
    nodes, finding = found(
        judge_slowdown(Slowdown(0.5, 1.0, True), None, QUIET, ["rank 0 on node-a waits for others 20% of the time"])
    )
    assert nodes == tuple(QUIET)
    assert "no node stands out from the others" in finding.says
    assert finding.evidence == ("rank 0 on node-a waits for others 20% of the time",)
    nodes, finding = found(judge_slowdown(Slowdown(0.5, 1.0, False), None, {"node-a": CPU, "node-b": CPU}))
    assert nodes == ("node-a", "node-b")
    assert "no node stands out from the others: processes wait for a CPU" in finding.says
    nodes, finding = found(judge_slowdown(Slowdown(0.5, 1.0, False), None, {**QUIET, "node-b": CPU}))
    assert nodes == ("node-b",)
    assert "no node is measurably late" in finding.says


def test_steps_that_grow_and_nothing_else_accuse_nobody() -> None:
    assert judge_slowdown(Slowdown(0.5, 1.0, False), None, QUIET) is None


def test_reasons_are_rates_and_what_is_not_read_is_none() -> None:
    quiet = facts(0.0, quota_us=0, memory_waited_us=0, cpu_waited_us=0, pswpin=0, pswpout=0)
    same = facts(30.0, quota_us=10**6, memory_waited_us=10**6, cpu_waited_us=8 * 10**6, pswpin=9000, pswpout=9000)
    assert list(slow_node_reasons("n", quiet, same, [{"pid": 1, "user": "u", "command": "c", "cpu": 0.4}])) == []
    assert slow_node_reasons("n", facts(0.0), facts(30.0), ()) == slow_node_reasons("n", None, same, ()) == {}
    busy = facts(30.0, quota_us=10**7, memory_waited_us=10**7, cpu_waited_us=20 * 10**6, pswpin=90_000, pswpout=9000)
    found = slow_node_reasons("n", quiet, busy, [{"pid": 1, "user": "u", "command": "c", "cpu": 0.9}])
    assert list(found) == ["quota", "memory", "cpu", "process 1"]
    assert "swaps" in found["memory"]
    assert "90% of a CPU" in found["process 1"]


def test_a_look_that_fails_is_told_and_the_next_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch that ended without a word would look healthy."""
    unread: list[tuple[str, str]] = []
    made, looks, again = kept(tmp_path), [0], threading.Event()

    def look() -> None:
        looks[0] += 1
        if looks[0] > 2:
            again.set()
        raise ValueError("odd")

    monkeypatch.setattr(counters, "COUNTERS_INTERVAL_S", 0.01)
    watch = counters.CounterWatch(made, lambda *_: None, lambda *said: unread.append(said))
    watch.after_reading = look
    with watch:
        assert again.wait(60)
    assert unread == [(name, "a reading of counters failed: ValueError: odd") for name in made.nodes], "once each"
