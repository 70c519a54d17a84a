"""A follower of a job whose nodes come and go: what it does not see end goes on."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runbook.jobs import follow_launch
from runbook.jobs.follow_launch import MISSING_WELL_S, Follower
from runbook.jobs.kept_processes import KeptProcesses
from runbook.jobs.known_jobs import Cluster
from runbook.jobs.watch import WatchEnd, watch
from runbook.model.errors import Unreachable

from .made_up_attempts import PAIR, attempt, ended, journal, kept

LOST = Unreachable("ssh-unreachable", "no answer for 6 s", "look at it")


class Outages:
    """A job on two nodes: at each look they answer, and those named in `lose` are lost once they are watched."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.lose: tuple[str, ...] = ("node-a", "node-b")
        self.well: tuple[int, ...] = ()
        self.later_s = 0.0
        monotonic = time.monotonic
        monkeypatch.setattr(follow_launch, "time", SimpleNamespace(monotonic=lambda: monotonic() + self.later_s))
        monkeypatch.setattr(follow_launch, "clean", lambda *_: None)
        self.follower = Follower(
            PAIR, "job-1", folder, "train", say=lambda *_, **__: None, leaving=threading.Event(), ending=lambda: False
        )
        monkeypatch.setattr(self.follower, "_kept", lambda *_: (self._kept(), None))

    def _kept(self) -> KeptProcesses:
        made = kept(self.folder, attempt(detach=True))
        made.folders = {}  # nothing is asked of these nodes
        for member in made.members:
            made.learn(member, journal("running", pid=7, started=time.time()))
        for rank in self.well:
            ended(made, rank, 0, time.time())
        sessions = made.at.run.site.sessions
        for name in made.nodes:
            sessions[name] = cast(Any, SimpleNamespace(lost=LOST if name in self.lose else None))
        return made

    def look(self) -> Any:
        job = SimpleNamespace(absent=[], attempt="attempt-01", nodes=["node-a", "node-b"], grace_s=1.0, id="job-1")
        cluster = SimpleNamespace(job=lambda _: job, unreached={})
        return self.follower._look(cast(Cluster, cluster))


def test_a_second_outage_of_all_nodes_ends_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Outages(tmp_path, monkeypatch)
    assert nodes.look() is None
    nodes.later_s = 2 * MISSING_WELL_S
    assert nodes.look() is None, "they had answered in between"


def test_one_node_away_twice_is_waited_for_anew_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Outages(tmp_path, monkeypatch)
    nodes.lose, nodes.well = ("node-b",), (0, 1)
    assert nodes.look() is None, "node-a has ended well: perhaps node-b has, too"
    nodes.later_s = 2 * MISSING_WELL_S
    assert nodes.look() is None, "node-b had come back, and its ranks ran"


def test_a_job_none_of_whose_nodes_answers_has_not_finished(tmp_path: Path) -> None:
    made = kept(tmp_path)
    for name in made.nodes:
        made.at.run.site.sessions[name] = cast(Any, SimpleNamespace(lost=LOST))
    told: list[str] = []
    end = watch(
        made, stopping=lambda: False, deadline=time.monotonic() + 60.0, on_loss=lambda name, _: told.append(name)
    )
    assert end == WatchEnd("lost")
    assert told == ["node-a", "node-b"]
