"""What nodes tell of their jobs is looked through in work that grows with its length, whatever it says; a job is stopped
where it lives."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runbook.jobs import known_jobs
from runbook.jobs.known_jobs import Cluster, KnownJob, _checked_journals
from runbook.model.errors import Unreachable
from runbook.node.journal import STOPPED_BY_USER, Odd, attempt_folder


class Counted(str):
    """A text that counts how often one of its kind was compared."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_name_that_comes_twice_is_found_among_many_by_few_comparisons() -> None:
    names = [Counted(f"rank-{number:05d}.node-a.l0") for number in range(5_000)]
    journal: dict[str, Any] = {
        "name": "ranks-0-4999.node-a.launcher",
        "job": "job",
        "attempt": 1,
        "node": "node-a",
        "ranks": [0],
        "keeper": 7,
        "state": "ended",
        "lives": False,
        "keeper_lives": False,
        "each": [*names, Counted(names[-1])],
    }
    Counted.comparisons = 0
    with pytest.raises(Odd, match="a name of its own"):
        _checked_journals("attempt-01", [journal], "node-a", "job")
    assert 0 < Counted.comparisons < 10 * len(names)


@pytest.mark.parametrize(("told", "grace_s"), [(3600, 3600.0), (None, 30.0), (1e300, 86_400.0)])
def test_a_job_has_the_grace_that_its_nodes_tell_up_to_a_day(told: float | None, grace_s: float) -> None:
    """It may write its checkpoint for an hour; a node that lies holds nobody for ever."""
    assert KnownJob("job", {"grace_s": told}).grace_s == grace_s


def tried(times: int, *, live: int) -> KnownJob:
    """A job of one node whose process lives of one attempt alone."""
    attempts = {
        attempt_folder(serial): [
            {
                "name": "rank-00000.node-a.l0",
                "node": "node-a",
                "attempt": serial,
                "lives": serial == live,
                "keeper_lives": serial == live,
            }
        ]
        for serial in range(1, times + 1)
    }
    return KnownJob("job", {"nodes": {"node-a": [0]}}, {"node-a": "/work/job/node-a"}, {"node-a": attempts})


class Answering:
    """A cluster of one node: what it says of its jobs, look by look, None where it is late; and what it was told."""

    def __init__(self, *looks: KnownJob | None) -> None:
        self.looks = list(looks)
        self.told: list[tuple[str, str]] = []
        self.unreached: dict[str, Unreachable] = {}
        self.site = SimpleNamespace(sessions={"node-a": SimpleNamespace(lost=None)})

    def ask(self, order: Mapping[str, Any], folders: Mapping[str, str]) -> dict[str, Any]:
        self.told += [(order["do"], folder) for folder in folders.values()]
        return {}

    def jobs(self, only: str | None = None) -> list[KnownJob]:
        assert only == "job"
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        self.unreached = {} if look else {"node-a": Unreachable("node-too-busy", "no answer in time", "wait")}
        return [look] if look else []


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_jobs, "STOP_POLL_INTERVAL_S", 0.0)


def test_of_a_job_of_a_thousand_attempts_only_those_that_may_live_are_told_to_end() -> None:
    cluster = Answering(tried(1000, live=0))
    stopped = known_jobs.stop(cast("Cluster", cluster), tried(1000, live=7))
    assert cluster.told == [("stop", "/work/job/node-a/attempt-07"), ("stop", "/work/job/node-a/attempt-1000")]
    assert (stopped.ended, stopped.left, stopped.unsure) == (1, {}, {})


def test_a_node_that_was_late_with_one_answer_is_believed_the_next() -> None:
    """It ends the ranks meanwhile, and is busy."""
    cluster = Answering(None, None, tried(2, live=0))
    stopped = known_jobs.stop(cast("Cluster", cluster), tried(2, live=2))
    assert (stopped.ended, stopped.left, stopped.unsure) == (1, {}, {})


def test_a_node_that_is_lost_meanwhile_is_not_waited_for() -> None:
    cluster = Answering(None)
    cluster.site.sessions["node-a"].lost = Unreachable("ssh-unreachable", "lost", "look")
    stopped = known_jobs.stop(cast("Cluster", cluster), tried(2, live=2))
    assert (stopped.ended, stopped.left, list(stopped.unsure)) == (0, {}, ["node-a"])


@pytest.mark.parametrize(
    ("why", "state"), [("stopped by the user", "stopped"), ("signal 15", "failed"), ("another rank failed", "failed")]
)
def test_only_a_job_that_the_user_stopped_is_called_stopped(why: str, state: str) -> None:
    """A node that is shut down ends its keepers with a signal."""
    job = tried(1, live=0)
    for journal in job.attempts["node-a"]["attempt-01"]:
        journal |= {"ranks": [0], "state": "ended", "code": -15, "why": why}
    assert job.state == state


@pytest.mark.parametrize("now", [False, True])
def test_who_stops_a_job_says_so_to_its_keepers(now: bool) -> None:
    cluster = Answering(tried(1, live=0))
    orders: list[Mapping[str, Any]] = []
    ask = cluster.ask

    def noted(order: Mapping[str, Any], folders: Mapping[str, str]) -> dict[str, Any]:
        orders.append(order)
        return ask(order, folders)

    cluster.ask = noted  # type: ignore[method-assign]
    known_jobs.stop(cast("Cluster", cluster), tried(1, live=1), now=now)
    assert orders == [{"do": "kill" if now else "stop", "why": STOPPED_BY_USER}]


def test_nodes_that_the_user_leaves_out_make_no_job_degraded() -> None:
    """They were not asked, so nothing is known of them, and nobody fell silent."""
    lives = {"name": "rank-0", "ranks": [0], "lives": True, "keeper_lives": True}
    job = KnownJob("job", {"nodes": ["node-a", "node-b"]}, {"node-a": "/x"}, {"node-a": {attempt_folder(1): [lives]}})
    assert (job.state, job.absent, job.silent) == ("degraded", ("node-b",), ("node-b",))
    job.left_out = ("node-b",)
    assert (job.state, job.absent, job.silent) == ("running", ("node-b",), ())
    lives |= {"lives": False, "keeper_lives": True, "state": "waiting"}  # its keeper waits to start it
    assert job.state == "running"
    lives |= {"lives": False, "keeper_lives": False, "state": "ended", "code": 0}
    assert job.state == "finished"
