"""What nodes answer about a job: what of it is old, what of it is known, and all nodes of it at once."""

from __future__ import annotations

import base64
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from checks.made_up_cluster import cluster, node

from runbook.checks.context import Facts
from runbook.jobs import attach, stop_attempt
from runbook.jobs.kept_processes import KeptProcesses
from runbook.jobs.known_jobs import Cluster, KnownJob
from runbook.jobs.logs import JobSecrets, RankLogs
from runbook.jobs.watch import store_answer
from runbook.model.errors import Unreachable
from runbook.model.redact import Redactor
from runbook.node import job_control
from runbook.transport.session import Session

from . import made_up_attempts

MANY = 80


def answer(kept: KeptProcesses, size: int, data: bytes = b"") -> Facts:
    name = kept.on("node-a")[0].place.name
    told = [{"name": name, "state": "running", "pid": 7}]
    return {"seen": [], "steps": {}, "kept": told, "read": {f"{name}.out": data}, "size": {f"{name}.out": size}}


def test_what_a_node_had_when_it_was_first_asked_comes_late_and_what_it_writes_then_does_not(tmp_path: Path) -> None:
    kept = made_up_attempts.kept(tmp_path)
    file, at = f"{kept.on('node-a')[0].place.name}.out", 0
    late = []
    for size, data in ((14, b"step 1\n"), (21, b"step 2\n"), (28, b"step 3\n")):
        store_answer(kept, "node-a", answer(kept, size, data), {file: at})
        late.append("node-a" in kept.late)
        at += len(data)
    assert late == [True, True, False]


def test_a_journal_that_says_what_is_known_wakes_nobody(tmp_path: Path) -> None:
    kept = made_up_attempts.kept(tmp_path)
    store_answer(kept, "node-a", answer(kept, 0), {})
    assert kept.take_news(0.0)
    assert kept.on("node-a")[0].state == "running"
    store_answer(kept, "node-a", answer(kept, 0), {})
    assert not kept.take_news(0.0)


def test_all_nodes_of_a_large_job_are_looked_at_in_the_same_moment(tmp_path: Path) -> None:
    inventory = cluster(*(node(f"node-{number}") for number in range(MANY)))
    kept = made_up_attempts.kept(tmp_path, made_up_attempts.attempt(1, inventory))
    together = threading.Barrier(MANY)

    def call(*_: object, **__: object) -> Facts:
        together.wait(8.0)
        return {}

    for member in kept.members:
        kept.learn(member, made_up_attempts.journal("running", pid=7))
        kept.at.run.site.sessions[member.place.node] = cast("Session", SimpleNamespace(call=call))
    assert len(stop_attempt.freeze(kept)) == MANY


def test_a_node_that_does_not_tell_its_clock_keeps_nobody_from_the_logs(tmp_path: Path) -> None:
    def silent() -> tuple[float, float]:
        raise Unreachable("ssh-unreachable", "node-b stopped answering", "look")

    sessions = {"node-a": SimpleNamespace(clock=lambda: (3.0, 0.1)), "node-b": SimpleNamespace(clock=silent)}

    def each(nodes: Any, work: Any, **_: object) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for one in nodes:
            try:
                found[one.name] = work(one)
            except Unreachable as error:
                found[one.name] = error
        return found

    reached = SimpleNamespace(site=SimpleNamespace(sessions=sessions, each=each), inventory=made_up_attempts.PAIR)
    journals = {
        name: {
            "attempt-01": [
                {"name": f"rank-{rank:05d}.{name}.l0", "node": name, "ranks": [rank], "state": "ended", "code": 0}
                | {"started": 10.0, "keeper_lives": False}
            ]
        }
        for rank, name in enumerate(("node-a", "node-b"))
    }
    job = KnownJob("job", {}, {name: f"/work/job/{name}" for name in journals}, journals)
    secrets = JobSecrets(Redactor([]), {}, ())
    kept = attach.kept_processes_of(cast("Cluster", reached), job, tmp_path, lambda *_: None, secrets)
    assert kept.offsets == {"node-a": (3.0, 0.1)}
    assert [member.started for member in kept.members] == [7.0, 10.0]


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def with_logs_on_node_a(made: KeptProcesses, work: Path) -> list[str]:
    """Lets every rank of node-a have a log there, read by the real program of the node. The names of what was read."""
    there = work / "job-1" / "node-a" / made.folder
    there.mkdir(parents=True)
    for member in made.on("node-a"):
        (there / f"{member.place.name}.out").write_text(f"of rank {member.place.rank}\n")
    for path in (work, *work.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    made.folders = {"node-a": str(there)}
    read: list[str] = []

    def call(_: str, order: Facts, **__: object) -> Facts:
        said = dict(job_control.look(order))
        said["read"] = {file: base64.b64decode(data) for file, data in said["read"].items()}
        read.extend(said["read"])
        return said

    made.at.run.site.sessions["node-a"] = cast("Session", SimpleNamespace(call=call, lost=None))
    return read


def test_only_the_logs_of_ranks_that_are_wanted_are_fetched(tmp_path: Path) -> None:
    """From a node that has written much for the others."""
    (tmp_path / "here").mkdir()
    made = made_up_attempts.kept(tmp_path / "here")
    made.only = frozenset({1})
    read = with_logs_on_node_a(made, tmp_path / "work")
    assert stop_attempt.fetch_rest_of_logs(made) == []
    wanted = f"{made.members[1].place.name}.out"
    assert set(read) == {wanted}
    assert [path.name for path in files(tmp_path / "here")] == [wanted]


def test_logs_that_cannot_be_written_here_are_still_on_their_node(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "logs").write_text("not a folder")
    made = made_up_attempts.kept(tmp_path / "here")
    made.only = frozenset({0, 1})
    with_logs_on_node_a(made, tmp_path / "work")
    said: list[str] = []
    made.at = replace(made.at, say=lambda text, *_, **__: said.append(text))
    assert stop_attempt.fetch_rest_of_logs(made) == ["node-a"]
    assert [text for text in said if text.startswith("part of the logs of node-a could not be written here: ")], said


def test_who_has_enough_gets_no_more(tmp_path: Path) -> None:
    """Such as `head`: the rest, of which there may be much, stays on the node."""
    made = made_up_attempts.kept(tmp_path)
    made.folders = {"node-a": "/work"}
    asked: list[int] = []

    def call(*_: object, **__: object) -> Facts:
        asked.append(1)
        return {**answer(made, 1 << 40, b"x\n" * 4096), "steps": {}}

    made.at.run.site.sessions["node-a"] = cast("Session", SimpleNamespace(call=call, lost=None))
    assert stop_attempt.fetch_rest_of_logs(made, enough=lambda: len(asked) > 2) == ["node-a", "node-b"]
    assert len(asked) == 3


def test_where_logs_are_only_told_nothing_of_them_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    logs = RankLogs(None, "attempt-01", Redactor(()), lambda place, stream, lines: told.extend(lines))
    logs.begin(["rank-00000.node-a.l0.out"])
    made_up_attempts.come(logs, "rank-00000.node-a.l0.out", b"one\ntwo")
    logs.close()
    assert (told, logs.unwritten, list(tmp_path.iterdir())) == (["one", "two"], {}, [])
