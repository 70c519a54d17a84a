"""`logs -f` and `attach` beside a node that lies: the other nodes' logs flow, Ctrl-C is heard, and it ends when there is nothing to wait for."""

from __future__ import annotations

import base64
import io
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runbook.jobs import attach, stop_attempt, watch

from .hostile_run import Done, attack, changing
from .recorded_node import UNANSWERED, Json, Recording, recording
from .test_hostile_node import altered, attacks, changes, hostile, places

ATTACHED = replace(recording("job_attach"), command=("attach", "-i", "{inventory}"))
FOLLOWED = replace(recording("job_attach"), command=("logs", "-f", "-i", "{inventory}"))
"""Its nodes say what they said to `attach`, which asks for the same: a job of two ranks that print 40 lines each and end well."""

LINES = 40
LOGS = ("rank-00001.node-b.l0.out", "rank-00001.node-b.l0.err")


@pytest.fixture(autouse=True)
def silence_is_soon_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "NODE_SILENCE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(
        watch, "NEWS_ANSWER_TIMEOUT_S", 2.0
    )  # an honest node on a busy machine may need more than a moment
    monkeypatch.setattr(stop_attempt, "SLOW_LOGS_TIMEOUT_S", 0.2)
    monkeypatch.setattr(watch, "FETCH_THREADS_TIMEOUT_S", 0.2)


def followed(
    change: Callable[[Json], Json], folder: Path, found: Recording = FOLLOWED, printed: io.StringIO | None = None
) -> Done:
    """node-b's answers on its job, changed."""
    lies = changing("node-b", lambda name, said: change(said) if name == "job_control watch" else said)
    return attack(found, lies, folder, printed)


def lines_of(done: Done, node: str) -> int:
    return sum(f" {node}] line " in line for line in done.stdout.splitlines())


def kept(said: Json, **facts: Any) -> Json:
    return {**said, "kept": [{**journal, **facts} for journal in said["kept"]]}


def running(said: Json) -> Json:
    return kept(said, state="running", code=None, ended=None)


def more_of_it(said: Json) -> Json:
    return {**said, "size": {**said["size"], LOGS[0]: 1 << 61}}


def too_much(said: Json) -> Json:
    return {**said, "read": {LOGS[0]: base64.b64encode(b"x" * (4 << 20)).decode()}}


def flood(said: Json) -> Json:
    return {**running(said), "read": {LOGS[0]: base64.b64encode(b"y\n" * 100_000).decode()}, "size": {LOGS[0]: 1 << 60}}


def journals_without_end(said: Json) -> Json:
    return {**running(said), "kept": running(said)["kept"] * 2000}


ENDING: dict[str, tuple[Callable[[Json], Json], str]] = {
    "no object": (lambda _: [], "not what our programs say"),
    "no JSON": (lambda _: b"{", "not what our programs say"),
    "more than was asked for": (too_much, "and was asked for"),
    "a name that is a path": (lambda said: {**said, "read": {"../x.out": ""}}, "not what our programs say"),
    "a state that is none": (lambda said: kept(said, state="asleep"), "not what our programs say"),
    "nothing at all": (lambda _: UNANSWERED, "has reported nothing about the job"),
    "logs that never come": (more_of_it, "not everything was read: node-b"),
}
"""What it says; a part of what is told of it."""


@pytest.mark.parametrize("found", [FOLLOWED, ATTACHED], ids=["logs", "attach"])
@pytest.mark.parametrize("name", ENDING)
def test_a_node_that_is_not_believed_is_told_and_the_others_are_followed(
    name: str, found: Recording, tmp_path: Path
) -> None:
    change, told = ENDING[name]
    done = followed(change, tmp_path, found)
    assert (done.complaint(), done.code) == (None, 3), str(done)
    assert told in done.stderr, str(done)
    assert "not everything was read: node-b\n" in done.stderr
    assert lines_of(done, "node-a") == LINES, str(done)


LIVING: dict[str, Callable[[Json], Json]] = {
    "it runs for ever": running,
    "it runs, and has more to tell for ever": lambda said: more_of_it(running(said)),
    "it prints without end": flood,
    "journals without end": journals_without_end,
}


@pytest.mark.parametrize("name", LIVING)
def test_ctrl_c_ends_it_while_a_node_says_that_the_job_runs(name: str, tmp_path: Path) -> None:
    """Nothing else ends it with this code."""
    printed = io.StringIO()

    def press() -> None:
        """Once all that the other node printed is here."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and printed.getvalue().count(" node-a] line ") < LINES:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    ctrl_c = threading.Thread(target=press)
    ctrl_c.start()
    done = followed(LIVING[name], tmp_path, printed=printed)
    ctrl_c.join()
    assert done.complaint((130,)) is None, str(done)[-3000:]
    assert lines_of(done, "node-a") == LINES, str(done)[-3000:]


def test_a_trickle_is_not_waited_for(tmp_path: Path) -> None:
    """An honest node sends a page at a time of what it has; one that says it has 2 EiB and sends two bytes does not."""
    done = followed(lambda said: {**more_of_it(said), "read": {LOGS[0]: base64.b64encode(b"z\n").decode()}}, tmp_path)
    assert (done.complaint(), done.code) == (None, 3), str(done)
    assert "not everything was read: node-b" in done.stderr, str(done)


def test_ctrl_c_ends_what_is_left_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose part has ended, and that trickles for ever what it says that it printed."""
    monkeypatch.setattr(stop_attempt, "SLOW_LOGS_TIMEOUT_S", 60.0)
    ctrl_c = threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    ctrl_c.start()
    done = followed(lambda said: {**more_of_it(said), "read": {LOGS[0]: base64.b64encode(b"z\n").decode()}}, tmp_path)
    ctrl_c.join()
    assert done.complaint((130,)) is None, str(done)


def test_a_rank_that_failed_is_the_verdict_whatever_another_node_says(tmp_path: Path) -> None:
    def lie(name: str, said: Json) -> Json:
        return kept(said, state="ended", code=7, ended=1.0) if name == "job_control watch" else said

    done = attack(FOLLOWED, changing("node-a", lie), tmp_path)
    assert (done.complaint(), done.code) == (None, 1), str(done)


def test_what_was_recorded_ends_well(tmp_path: Path) -> None:
    done = followed(lambda said: said, tmp_path)
    assert (done.complaint(), done.code, done.stderr) == (None, 0, ""), str(done)
    assert (lines_of(done, "node-a"), lines_of(done, "node-b")) == (LINES, LINES)


def lied_to(count: int, folder: Path) -> None:
    """One change of one field of one answer; whatever it is, the other node's lines are all there and it ends."""
    chance = random.Random(20261122)
    every = [plan for plan in attacks(("job_attach",)) if plan[1] == "node-b" and plan[2] == "job_control watch"]
    for number, plan in enumerate(chance.sample(every, count)):
        done = attack(FOLLOWED, changing("node-b", hostile(plan)), folder / str(number))
        assert done.complaint() is None, f"{plan}\n{done}"
        assert lines_of(done, "node-a") == LINES, f"{plan}\n{done}"


def test_one_lie(tmp_path: Path) -> None:
    lied_to(2, tmp_path)


@pytest.mark.slow
@pytest.mark.thorough
def test_many_lies(tmp_path: Path) -> None:
    lied_to(80, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("place", [at for at in places(FOLLOWED.said["node-b"]["job_control watch"][0]) if at], ids=str)
def test_one_field_that_never_fits(place: tuple[Any, ...], tmp_path: Path) -> None:
    """The same lie in every answer. One that leaves the job running for ever is ended by Ctrl-C."""
    value: Json = FOLLOWED.said["node-b"]["job_control watch"][0]
    for step in place:
        value = value[step]
    for number, (_, change) in enumerate(random.Random(7).sample(changes(value), 3)):

        def lie(said: Json, change: Callable[[Json], Json] = change) -> Json:
            try:
                return altered(said, place, change)
            except (KeyError, IndexError, TypeError, AttributeError):
                return said

        ctrl_c = threading.Timer(5.0, lambda: os.kill(os.getpid(), signal.SIGINT))
        ctrl_c.start()
        try:
            done = followed(lie, tmp_path / str(number))
        finally:
            ctrl_c.cancel()
            ctrl_c.join()
        assert done.complaint((0, 1, 3, 130)) is None, str(done)
        assert lines_of(done, "node-a") == LINES, str(done)
