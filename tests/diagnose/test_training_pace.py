"""Trainings that became slower for good, and those whose pace changes for a reason, or for a while."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from runbook.diagnose.training_pace import PaceFall, lasting_pace_fall

from .read import causes_in

FORMS: dict[str, Callable[[int, float], str]] = {
    "a rate with a comma": lambda step, s: f"[rank0]: step: {step:3d}  loss:  6.1522  wps: {6018 / s:,.0f}  mfu: 35.1%",
    "a time": lambda step, s: f"completed step: {step}, seconds: {s:.3f}, loss: 2.611",
    "a bar": lambda step, s: f"Epoch 0:  {step % 100}%|█▌  | {step}/9000 [00:41<16:35,  {1 / s:.2f}it/s]",
    "a slow bar": lambda step, s: f"train {step}%|█ | {step}/60 [6:02:11<00:00, {s:.2f}s/it]",
    "megatron": lambda step, s: (
        f" iteration {step}/ 60000 | elapsed time per iteration (ms): {1000 * s:.1f} | lm loss: 7.0"
    ),
    "images": lambda step, s: f"[1,0]<stdout>:{step}\timages/sec: {40 / s:.1f} +/- 0.4\tloss 8.5",
}


def slowdown(form: str, course: Sequence[float]) -> PaceFall | None:
    return lasting_pace_fall([(step, FORMS[form](step, s).encode()) for step, s in enumerate(course, 1)])


@pytest.mark.parametrize("form", FORMS)
def test_a_training_that_becomes_slower_for_good_is_told_with_its_line(form: str) -> None:
    course = [3.0, *([1.0, 1.02, 0.98] * 4), *([1.8, 1.85, 1.79] * 3)]
    told = slowdown(form, course)
    assert told
    assert told.number == 14
    assert 1.7 < told.times < 1.9


@pytest.mark.parametrize(
    "course",
    [
        [1.0, 1.02, 0.98] * 8,
        [3.0, 2.0, *([1.0, 1.02] * 10)],  # it warms up
        [*([1.0] * 12), *([2.5] * 7), *([1.0] * 3)],  # and recovers
        [*([1.0] * 7), 2.5, *([1.0] * 7), 2.5, *([1.0] * 7), 2.5],  # it saves now and then
        [*([1.0] * 12), *([1.2] * 12)],  # too little to say so
        [1.0 + step / 8 for step in range(24)],  # it drifts, or counts from its start
        [12.0 * step for step in range(1, 40)],
        [*([1.0] * 18), 2.0, 2.0, 2.0],  # too short to tell
        [1.0, 3.0, 0.7, 2.4, 1.1, 2.8, 0.9, 1.9, 3.1, 1.2, 2.6, 2.2, 3.0, 1.4, 2.9],
    ],
)
@pytest.mark.parametrize("form", ["a time", "a bar"])
def test_a_pace_that_changes_a_little_or_for_a_while_is_no_slowdown(form: str, course: list[float]) -> None:
    assert slowdown(form, course) is None


def test_steps_that_do_more_work_are_not_slower() -> None:
    lines = [
        f"step: {step} seq_len: {2048 if step < 15 else 8192} step_time: {1 if step < 15 else 4}" for step in range(30)
    ]
    assert lasting_pace_fall([(at, line.encode()) for at, line in enumerate(lines)]) is None


def test_bars_of_another_kind_of_work_are_not_compared_with_it() -> None:
    lines = [
        f"{'train' if step < 15 else 'validate'}: {step}/30 [00:41<16:35, {1 if step < 15 else 4}.0s/it]"
        for step in range(30)
    ]
    assert lasting_pace_fall([(at, line.encode()) for at, line in enumerate(lines)]) is None


@pytest.mark.parametrize(("ending", "told"), [("", "training-slowed"), ("training finished\n", None)])
def test_a_run_that_came_to_its_end_is_healthy_however_slow_it_was(ending: str, told: str | None) -> None:
    text = "".join(FORMS["a time"](step, 1.0 if step < 15 else 1.9) + "\n" for step in range(30)) + ending
    found = causes_in(job=text)
    assert [(cause.cause, cause.confidence) for cause in found] == ([(told, "low")] if told else [])
