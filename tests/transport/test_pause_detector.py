"""Silence counts only for somebody who would have heard: the controller's half and the node's."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from runbook.model.errors import Unreachable
from runbook.transport import pause_detector
from runbook.transport.bootstrap import SUPERVISOR_MARK
from runbook.transport.pause_detector import Awake, Pace, Pause
from runbook.transport.session import SILENCE_TIMEOUT_S, Session

from .local_sessions import Scripted, eventually, opened

pytestmark = pytest.mark.xdist_group("session")

HELLO = (
    SUPERVISOR_MARK
    + b'{"event": "hello", "time": 0, "python": "3.11.2", "executable": "/usr/bin/python3", "rejected": [], '
)
HELLO += (
    b'"hostname": "a", "platform": "linux", "pid": 7, "uid": 0, "home": "/root", "machine": "m", "folder": "/root/x"}\n'
)
ENOUGH = 50


def silent_node(awake: Awake | None = None) -> Session:
    """It has said hello and nothing since, for longer than either end bears."""
    node = Session("node-a", Scripted(HELLO, hang=True), {}, sys.executable, 20.0, awake)
    assert eventually(lambda: node._listening)
    node._last_heard -= 2 * SILENCE_TIMEOUT_S
    return node


def test_beats_that_come_late_accuse_nobody_and_those_in_time_do() -> None:
    node = silent_node()
    for _ in range(ENOUGH):
        node.beat(in_time=False)
    assert node.lost is None
    for _ in range(ENOUGH):
        node.beat()
    assert node.lost is not None
    assert node.lost.cause == "ssh-unreachable"
    node._stream.close()


class Full(Scripted):
    """A far end behind a dead jump host: its connection is full, and takes nothing more until it is `given_up`."""

    shared = True

    def __init__(self) -> None:
        super().__init__(HELLO, hang=True)
        self.begun, self.given_up = 0, threading.Event()

    def write(self, data: bytes) -> None:
        self.begun += b'"beat"' in data
        if self.begun:
            self.given_up.wait(60)


def test_a_beat_that_a_jump_host_does_not_take_keeps_nobody_waiting() -> None:
    far = Full()
    node = Session("node-a", far, {}, sys.executable, 20.0)
    assert eventually(lambda: node._listening)
    node._last_heard -= 2 * SILENCE_TIMEOUT_S
    for _ in range(ENOUGH):
        node.beat()
    assert eventually(lambda: node.lost is not None)
    assert far.begun == 1
    far.given_up.set()
    far.close()


def test_a_beat_that_may_start_no_thread_is_sent_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the login's limit of processes is reached for a moment."""
    far = Full()
    node = Session("node-a", far, {}, sys.executable, 20.0)
    assert eventually(lambda: node._listening)
    node._last_heard -= 2 * SILENCE_TIMEOUT_S
    node._last_said -= 2 * SILENCE_TIMEOUT_S

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            node.beat()
    far.given_up.set()
    node.beat()
    assert eventually(lambda: far.begun == 1)
    far.close()


@pytest.mark.parametrize(
    ("says", "cause", "words"),
    [
        (b'{"event"', "ssh-unreachable", "the connection to node-a was closed"),
        (
            b'{"event": "failed", "error": {"type": "KeyError", "errno": null, "text": "no such user", "path": ""}}\n',
            "tool-output-unknown",
            "KeyError: no such user",
        ),
    ],
)
def test_a_supervisor_that_ends_before_its_hello_is_no_silent_python(says: bytes, cause: str, words: str) -> None:
    stream = Scripted(SUPERVISOR_MARK + says)
    with pytest.raises(Unreachable) as caught:
        Session("node-a", stream, {}, sys.executable, 600.0)
    assert caught.value.cause == cause
    assert words in caught.value.says


def test_a_node_is_not_silent_while_our_own_reader_is_busy() -> None:
    node = silent_node()
    node._listening = False  # as while a long answer is being looked at
    for _ in range(ENOUGH):
        node.beat()
    assert node.lost is None
    node._stream.close()


def test_after_a_pause_of_our_own_all_nodes_are_lost_in_the_same_words() -> None:
    clock = Awake(1.0)
    clock._pauses.append(Pause(11.0, 10.5, time.monotonic()))
    told: list[Unreachable] = []
    for name in ("node-a", "node-b"):
        stream = Scripted(HELLO, hang=True)
        node = Session(name, stream, {}, sys.executable, 20.0, clock)
        stream.close()  # the node has ended the run
        assert eventually(lambda node=node: node.lost is not None)  # type: ignore[misc]
        assert node.lost
        told.append(node.lost)
    assert {one.cause for one in told} == {"controller-paused"}
    assert len({(one.says, one.remedy) for one in told}) == 1
    assert "slept for 11 s" in told[0].says


@pytest.mark.parametrize(("asleep_s", "words"), [(11.0, "slept for 12 s"), (0.0, "gave runbook no CPU")])
def test_sleep_and_starvation_are_told_apart(asleep_s: float, words: str) -> None:
    assert words in str(Pause(12.0, asleep_s, 0.0))


def test_the_longest_pause_is_of_the_time_asked_for_and_may_be_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(pause_detector, "_clock_with_suspend", lambda: now[0])
    clock = Awake(1.0)
    for step in (1.0, 8.0, 1.1, 3.0, 1.0):
        now[0] += step
        clock.tick()
    assert clock.longest(0.0).seconds == pytest.approx(7.0)
    assert clock.longest(1009.5).seconds == pytest.approx(2.0)
    assert clock.longest(1014.0).seconds == 0.0
    now[0] += 21.0
    assert clock.longest(1014.0).seconds == pytest.approx(20.0)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_supervisor_that_was_stopped_looks_again_before_it_ends(tmp_path: Path) -> None:
    """A starved machine: its own time stands still, and what came meanwhile waits unread."""
    node = opened(tmp_path, silence_s=1.5, grace_s=0.2)
    pid = node.hello["pid"]
    os.kill(pid, signal.SIGSTOP)
    for _ in range(12):
        time.sleep(0.25)
        node._write(b'{"do": "beat"}\n')
    os.kill(pid, signal.SIGCONT)
    assert node.shell("echo alive", timeout_s=30).stdout == "alive\n"
    node.goodbye()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_controller_that_is_short_of_cpu_asks_nodes_for_patience(tmp_path: Path) -> None:
    node = opened(tmp_path, silence_s=0.5, grace_s=0.2)
    node.beat(patience_s=60.0)
    time.sleep(2.0)
    assert node.shell("echo alive", timeout_s=30).stdout == "alive\n"
    node.goodbye()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_a_supervisor_ends_unasked_is_not_told_as_how_it_ended(tmp_path: Path) -> None:
    """Else a controller that was away for too long would accuse the program."""
    node = opened(tmp_path, silence_s=0.5, grace_s=0.2)
    program = node.start(["sleep", "1000"])
    with pytest.raises(Unreachable):
        program.wait(60)
    assert program.code is None
    node._stream.close()


def most_at_once(count: int) -> int:
    pace, lock = Pace(), threading.Lock()
    state: dict[str, Any] = {"now": 0, "most": 0}

    def work() -> None:
        with pace.turn():
            with lock:
                state["now"] += 1
                state["most"] = max(state["most"], state["now"])
            time.sleep(0.3)
            with lock:
                state["now"] -= 1

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return int(state["most"])


def test_a_machine_that_keeps_up_lets_all_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pause_detector, "MAX_LATENESS_S", 60.0)
    assert most_at_once(12) > pause_detector.MIN_UNDER_WAY


def test_a_machine_that_does_not_lets_few_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pause_detector, "MAX_LATENESS_S", -1.0)
    assert most_at_once(12) <= pause_detector.MIN_UNDER_WAY + 1
