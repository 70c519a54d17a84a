"""A follower of a job whose nodes come and go: what it does not see end goes on."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runbook.jobs import attach, follow_launch, stop_attempt
from runbook.jobs.follow_launch import SILENT_AFTER_SUCCESS_TIMEOUT_S, Follower, _outcomes_of_end
from runbook.jobs.kept_processes import KeptProcesses
from runbook.jobs.known_jobs import Cluster
from runbook.jobs.launch import Stall
from runbook.jobs.watch import WatchEnd, watch_processes
from runbook.model.errors import Unreachable
from runbook.transport.node_answers import HOST_FACTS_PROGRAM

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
    nodes.later_s = 2 * SILENT_AFTER_SUCCESS_TIMEOUT_S
    assert nodes.look() is None, "they had answered in between"


def test_one_node_away_twice_is_waited_for_anew_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Outages(tmp_path, monkeypatch)
    nodes.lose, nodes.well = ("node-b",), (0, 1)
    assert nodes.look() is None, "node-a has ended well: perhaps node-b has, too"
    nodes.later_s = 2 * SILENT_AFTER_SUCCESS_TIMEOUT_S
    assert nodes.look() is None, "node-b had come back, and its ranks ran"


def test_a_job_none_of_whose_nodes_answers_has_not_finished(tmp_path: Path) -> None:
    made = kept(tmp_path)
    for name in made.nodes:
        made.at.run.site.sessions[name] = cast(Any, SimpleNamespace(lost=LOST))
    told: list[str] = []
    end = watch_processes(
        made, stopping=lambda: False, deadline=time.monotonic() + 60.0, on_loss=lambda name, _: told.append(name)
    )
    assert end == WatchEnd("lost")
    assert told == ["node-a", "node-b"]


@pytest.mark.parametrize(("why", "by_user"), [("stopped by the user", True), ("signal 15", False)])
def test_a_reboot_is_not_taken_for_the_user(tmp_path: Path, why: str, by_user: bool) -> None:
    made = kept(tmp_path)
    for rank in range(4):
        ended(made, rank, -15, 200.0, why=why)
    assert follow_launch._is_stopped_on_request(made, ending=False) is by_user
    assert [one.killed for one in made.members] == [not by_user] * 4


def test_a_follower_that_leaves_does_not_cut_the_grace_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = kept(tmp_path, attempt(detach=True))
    for member in made.members:
        made.learn(member, journal("running", pid=7, started=time.time()))
    made.folders = dict.fromkeys(made.nodes, "/work/job-1/attempt-01")
    orders: list[tuple[str, str]] = []
    leaving = threading.Event()

    class Session:
        lost = None

        def __init__(self, name: str) -> None:
            self.name = name

        def call(self, _: str, order: dict[str, Any], **__: Any) -> dict[str, Any]:
            orders.append((self.name, order["do"]))
            assert order["why"] == "another rank failed"
            leaving.set()
            return {"kept": []}

    for name in made.nodes:
        made.at.run.site.sessions[name] = cast(Any, Session(name))
    monkeypatch.setattr(attach, "Fetching", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(stop_attempt, "freeze", lambda *_: {})
    failed = WatchEnd("failed", made.members[0])
    attach.supervise_job(made, grace_s=300.0, watched=lambda: (failed, Stall()), leaving=leaving.is_set)
    assert sorted(orders) == [("node-a", "stop"), ("node-b", "stop")]


def test_a_follower_learns_the_addresses_of_the_hosts_as_reach_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network between the nodes is looked at by the address of the interface that the ranks use."""
    made = kept(tmp_path, attempt(detach=True))

    class Session:
        folder, lost = "/work/job-1", None

        def call(self, program: Any, *_: Any, **__: Any) -> dict[str, Any]:
            assert program is HOST_FACTS_PROGRAM
            return {"interfaces": {"ib0": {"addresses": ["10.1.0.1"]}}}

    made.at.run.site.sessions["node-a"] = cast(Any, Session())
    monkeypatch.setattr(attach, "Fetching", lambda *_, **__: contextlib.nullcontext())
    seen: list[list[str]] = []

    def watched() -> tuple[WatchEnd, Stall]:
        seen.append(made.at.own_addresses("node-a"))
        seen.append(made.at.own_addresses("node-b"))  # does not answer
        return WatchEnd("stopped"), Stall()

    attach.supervise_job(made, grace_s=1.0, watched=watched)
    assert seen == [["10.1.0.1"], []]


def test_of_ranks_whose_end_nobody_saw_nothing_is_proven(tmp_path: Path) -> None:
    made = kept(tmp_path)
    for rank in (0, 1):
        ended(made, rank, 0, 101.0)
    assert "2 of 4 ranks ended with code 0" in (_outcomes_of_end(made, False, 1)[0].proof or "")
    for rank in (2, 3):
        ended(made, rank, 0, 101.0)
    assert (_outcomes_of_end(made, False, 1)[0].proof or "").startswith("4 ranks ended with code 0")
