"""Which rank is accused of a stall, and which is not: from stacks and states as nodes tell them."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest

from runbook.jobs.progress import StepProgress
from runbook.jobs.stall import SeenProcess, StackFrame, accused, frames_of
from runbook.launch.job import Watch
from runbook.node.training_steps import step_in

MAIN = StackFrame("/srv/train.py", 90, "<module>")
STEP = StackFrame("/srv/train.py", 46, "main")
REDUCE = (
    StackFrame("/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 2806, "all_reduce"),
    STEP,
    MAIN,
)
BARRIER = (REDUCE[0].__class__(REDUCE[0].file, 4159, "barrier"), StackFrame("/srv/train.py", 80, "save"), MAIN)
QUEUE = (StackFrame("/usr/lib/python3.11/threading.py", 327, "wait"), StackFrame("/srv/data.py", 12, "load"), MAIN)
ITEM = (StackFrame("/srv/train.py", 50, "main"), MAIN)


def standing(
    rank: int,
    frames: tuple[StackFrame, ...],
    state: str = "S",
    *,
    gpu: bool = False,
    cpu: float = 0.0,
    use: int | None = None,
) -> SeenProcess:
    label = f"rank {rank} on node-{rank}"
    return SeenProcess(f"node-{rank}", label, 100 + rank, state, "futex", cpu, gpu, frames, gpu_use=use)


def told(*ranks: SeenProcess) -> dict[str, list[str]]:
    return {node: [finding.cause for finding in found] for node, found in accused(ranks, "no step for 1 min").items()}


def test_who_stands_outside_of_the_call_that_others_wait_in_is_behind() -> None:
    assert told(standing(0, REDUCE), standing(1, QUEUE), standing(2, REDUCE)) == {"node-1": ["rank-behind"]}
    assert told(standing(0, REDUCE), standing(1, ITEM)) == {"node-1": ["rank-behind"]}


def test_a_line_that_may_wait_for_a_gpu_accuses_nobody() -> None:
    assert told(standing(0, REDUCE, gpu=True), standing(1, ITEM, gpu=True, cpu=1.0)) == {}
    assert told(standing(0, REDUCE, gpu=True), standing(1, QUEUE, gpu=True)) == {"node-1": ["rank-behind"]}


@pytest.mark.parametrize("others", [ITEM, REDUCE])
def test_whose_gpu_is_idle_while_those_of_others_are_kept_busy_is_behind(others: tuple[StackFrame, ...]) -> None:
    waiting = [standing(rank, others, gpu=True, cpu=1.0, use=100) for rank in (0, 1)]
    for state, cpu in (("S", 0.0), ("R", 1.0)):  # in a lock, and spinning
        assert told(*waiting, standing(2, ITEM, state, gpu=True, cpu=cpu, use=0)) == {"node-2": ["rank-behind"]}


def test_busy_gpus_and_those_that_nobody_knows_of_accuse_nobody() -> None:
    assert told(*(standing(rank, ITEM, gpu=True, use=100) for rank in range(3))) == {}
    assert told(standing(0, ITEM, gpu=True, use=100), standing(1, ITEM, gpu=True)) == {}
    assert told(*(standing(rank, ITEM, gpu=True, use=0) for rank in range(3))) == {}  # all compute, or wait for data
    assert told(standing(0, ITEM, gpu=True, use=10), standing(1, ITEM, gpu=True, use=0)) == {}
    assert told(standing(0, REDUCE, gpu=True, use=0), standing(1, REDUCE, gpu=True, use=100)) == {}


def test_another_call_than_most_is_named_and_of_two_both_are() -> None:
    most = [standing(rank, REDUCE) for rank in range(3)]
    assert told(*most, standing(3, BARRIER)) == {"node-3": ["mismatched-collectives"]}
    assert set(told(standing(0, REDUCE), standing(1, BARRIER))) == {"node-0", "node-1"}


def test_all_alike_or_unseen_accuse_nobody() -> None:
    assert told(*(standing(rank, REDUCE) for rank in range(4))) == {}
    assert told(*(standing(rank, QUEUE) for rank in range(4))) == {}
    assert told(standing(0, REDUCE), standing(1, ())) == {}
    assert told(standing(0, REDUCE), standing(1, BARRIER), standing(2, ())) == {}


@pytest.mark.parametrize(
    ("state", "frames", "accuses"), [("T", REDUCE, True), ("t", (), True), ("D", (), True), ("D", REDUCE, False)]
)
def test_a_process_that_is_stopped_is_named_whatever_the_others_do(
    state: str, frames: tuple[StackFrame, ...], accuses: bool
) -> None:
    assert told(standing(0, REDUCE), standing(1, frames, state)) == ({"node-1": ["rank-stopped"]} if accuses else {})


def test_dumps_of_both_tools_are_read() -> None:
    by_us = (
        'Thread 0x00007f1 (most recent call first):\n  File "/a/b.py", line 3 in other\n\n'
        'Current thread 0x00007f2 (most recent call first):\n  File "/srv/x y.py", line 46 in main\n  File "/srv/x y.py", line 90 in <module>\n'
    )
    assert frames_of(by_us) == (StackFrame("/srv/x y.py", 46, "main"), StackFrame("/srv/x y.py", 90, "<module>"))
    by_py_spy = (
        'Process 7: python train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread 7 (idle): "MainThread"\n'
        '    wait (threading.py:327)\n    <module> (train.py:90)\nThread 8 (idle): "Thread-1"\n    run (x.py:1)\n'
    )
    assert frames_of(by_py_spy) == (StackFrame("threading.py", 327, "wait"), StackFrame("train.py", 90, "<module>"))
    assert frames_of("Segmentation fault") == ()


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("step 12 loss 0.3", "12"),
        ("[rank0]: Step: 1200/5000 | loss 2.1", "1200"),
        ("iter 7: loss 1.0", "7"),
        ("{'loss': 1.2, 'global_step': 40, 'epoch': 0.1}", "40"),
        (" iteration      100/  500000 | consumed samples: 800", "100"),
        ("  3%|▎         | 31/1000 [00:10<05:20,  3.02it/s]", "31"),
        ("Epoch 3: 100 samples in 3 s", None),
        ("loading step files", None),
        ("lr 1e-5, stepped", None),
    ],
)
def test_the_usual_ways_to_print_a_step(line: str, step: str | None) -> None:
    assert step_in(line) == (step and int(step))


def test_a_limit_is_learned_and_begins_with_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    progress = StepProgress(Watch())
    clock[0] = 100_000.0
    assert progress.stalled_s(clock[0]) is None
    for step in range(5):
        clock[0] += 10.0
        progress.heard(0, [f"step {step} loss 1.0"])
    clock[0] += 99.0
    assert progress.stalled_s(clock[0]) is None
    clock[0] += 2.0
    assert progress.stalled_s(clock[0]) == pytest.approx(101.0)
    progress.stall_reported()
    assert progress.stalled_s(clock[0]) is None
    progress.heard(1, ["step 5"])
    clock[0] += 1111.0
    assert progress.stalled_s(clock[0]) == pytest.approx(1111.0)


def test_what_nobody_has_heard_yet_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is busy, or a controller that slept, tells of steps later than they were made."""
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    progress = StepProgress(replace(Watch(), stall_s=30.0))
    progress.heard(0, ["step 1"])
    clock[0] += 1000.0
    assert progress.stalled_s(-math.inf) is None
    assert progress.stalled_s(100.0 + 29.0) is None
    assert progress.stalled_s(100.0 + 31.0) == pytest.approx(31.0)


def test_ranks_that_follow_are_progress_and_the_same_step_again_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    progress = StepProgress(replace(Watch(), stall_s=30.0))
    for rank in (0, 1, 2):
        clock[0] += 20.0
        progress.heard(rank, ["step 1"])
        assert progress.stalled_s(clock[0]) is None
    for _ in range(3):
        clock[0] += 20.0
        progress.heard(0, ["step 1", "warning: step size is small"])
    assert progress.stalled_s(clock[0]) == pytest.approx(60.0)
