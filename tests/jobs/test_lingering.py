"""A JAX program that printed a traceback: whether it is lost, or goes on."""

from __future__ import annotations

import time

import pytest

from runbook.jobs.watch import Lingering

TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 3, in main', "    step()", "ValueError: no"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    at = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: at[0])
    return at


def raised(clock: list[float], *later: tuple[float, str, str, str]) -> tuple[str, str] | None:
    """Rank 1 raises; later, each so long after: a line of this process and stream. Asked after twenty seconds."""
    found = Lingering(10.0)
    found.heard("r0", "out", ["step 1"])
    found.heard("r1", "err", TRACEBACK)
    for seconds, name, stream, line in later:
        clock[0] = 100.0 + seconds
        found.heard(name, stream, [line])
    clock[0] = 109.0
    if not later:
        assert found.who() is None
    clock[0] = 120.0
    return found.who()


def test_who_raised_and_is_silent_is_lost_after_the_grace(clock: list[float]) -> None:
    assert raised(clock) == ("r1", "ValueError: no")


@pytest.mark.parametrize(
    "line",
    ["E1123 04:00:01 coordination_service.cc:1] waiting", "", "For simplicity, JAX has removed its internal frames"],
)
def test_what_jax_says_while_it_waits_is_no_sign_of_life(clock: list[float], line: str) -> None:
    assert raised(clock, (5.0, "r1", "err", line)) == ("r1", "ValueError: no")


def test_a_message_may_have_more_lines(clock: list[float]) -> None:
    assert raised(clock, (0.2, "r1", "err", "and a second line")) == ("r1", "ValueError: no")


@pytest.mark.parametrize(
    "later",
    [
        (5.0, "r1", "err", "retrying the file server"),
        (5.0, "r1", "err", "I0612 12:34:56.789012 123 train.py:88] step 10"),  # absl's Python logs as the runtime does
        (5.0, "r1", "out", "step 2"),
        (5.0, "r0", "out", "step 2"),  # the others make steps: it is in them
    ],
)
def test_a_training_that_goes_on_is_left_alone(clock: list[float], later: tuple[float, str, str, str]) -> None:
    assert raised(clock, later) is None


def test_of_several_the_first_is_named(clock: list[float]) -> None:
    found = Lingering(10.0)
    found.heard("r2", "err", ["Traceback (most recent call last):", "KeyError"])
    clock[0] += 3.0
    found.heard("r1", "err", TRACEBACK)
    clock[0] += 20.0
    assert found.who() == ("r2", "KeyError")
