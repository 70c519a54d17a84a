"""The supervisor's programs, with a pipe of ours for what it sends."""

from __future__ import annotations

import builtins
import json
import os
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runbook.node import supervisor
from runbook.node.supervisor import Program


class SlowPipe:
    """Takes its time for each piece of output, as a starved machine does before its threads run."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.over = threading.Event()

    def send(self, frame: dict[str, Any], payload: bytes = b"") -> None:
        if frame["event"] == "output":
            time.sleep(1.0)
        self.sent.append(frame["event"] + payload.decode())
        if frame["event"] == "exit":
            self.over.set()


def told(script: str) -> list[str]:
    pipe = SlowPipe()
    program = Program(pipe, {}, None, {"id": 1, "argv": ["/bin/sh", "-c", script]})  # type: ignore[arg-type]
    assert pipe.over.wait(60)
    sent = [*pipe.sent]
    for pump in program.pumps.values():
        pump.join(60)
    program.close()
    return sent


def test_programs_that_are_over_hold_no_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is tried again and again starts hundreds."""
    pipe = SlowPipe()
    monkeypatch.setattr(supervisor, "Pipe", lambda: pipe)
    here = supervisor.Supervisor()

    def start(id: int, script: str) -> Program:
        here.obey({"do": "start", "id": id, "argv": ["/bin/sh", "-c", script]}, b"")
        return here.programs[id]

    lives = start(0, "read line; exit 0")
    for id in range(1, 9):
        program = start(id, "exit 3")
        assert program.over.wait(60)
        for pump in program.pumps.values():
            pump.join(60)
    before = len([*Path("/proc/self/fd").iterdir()])
    last = start(9, "exit 0")
    assert [*here.programs] == [0, 9]
    assert len([*Path("/proc/self/fd").iterdir()]) <= before
    for order in ("feed", "signal", "stop"):
        here.obey({"do": order, "program": 1, "signal": "SIGTERM", "end": True}, b"more")  # its end may be on its way
    here.obey({"do": "feed", "program": 0, "end": True}, b"\n")
    for program in (lives, last):
        assert program.over.wait(60)
    here.forget()


def test_what_a_program_wrote_is_sent_before_its_end_however_slowly() -> None:
    first, *said, last = told("echo out; echo err >&2")
    assert (first, sorted(said), last) == ("started", ["outputerr\n", "outputout\n"], "exit")
    assert told("head -c 200000 /dev/zero | tr '\\0' x")[-1] == "exit"


def test_a_grandchild_that_holds_the_pipes_keeps_no_end_back() -> None:
    assert told("echo here; sleep 4 & exit 0")[-2:] == ["outputhere\n", "exit"]


def test_a_program_that_is_called_again_and_again_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And begins anew each time."""
    said: list[dict[str, Any]] = []
    compiled, truly = [], builtins.compile
    monkeypatch.setattr(supervisor, "Pipe", lambda: SimpleNamespace(send=said.append))

    def noted(source: Any, name: str, mode: str) -> Any:
        compiled.append(name)
        return truly(source, name, mode)

    monkeypatch.setattr(builtins, "compile", noted)
    sources = {"counts": "calls = []\ndef look(arguments):\n    calls.append(arguments)\n    return len(calls)\n"}
    ours = supervisor.Supervisor()
    for _ in range(3):
        ours.call({"id": 1, "program": "counts", "arguments": {}}, json.dumps(sources).encode())
    assert [one["answer"] for one in said] == [1, 1, 1]
    assert compiled.count("counts") == 1


def test_a_folder_that_an_earlier_supervisor_is_removing_is_not_taken_for_there(tmp_path: Path) -> None:
    folder = tmp_path / "node-a"
    folder.mkdir()
    first = supervisor.mark_used(str(folder))
    assert first is not None
    assert not supervisor.used_by_others(first)  # from now on it has the folder alone

    def remove() -> None:
        time.sleep(0.3)
        shutil.rmtree(folder)
        os.close(first)

    removing = threading.Thread(target=remove)
    removing.start()
    mark = supervisor.mark_used(str(folder))
    removing.join()
    assert not supervisor.is_same_folder(mark, str(folder))
    folder.mkdir()
    mark = supervisor.mark_used(str(folder))
    assert supervisor.is_same_folder(mark, str(folder))
    other = supervisor.mark_used(str(folder))
    assert supervisor.used_by_others(mark)
    os.close(other or 0)
    assert not supervisor.used_by_others(mark)
