"""The engine: every node accounted for, whatever a check does; where it stops, and with which code."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from runbook.checks.context import Context
from runbook.checks.reach.reach import Reach
from runbook.checks.shell import Shell
from runbook.engine import run as engine
from runbook.engine.plan import PlannedStage
from runbook.engine.run import causes_of_outcomes
from runbook.engine.run_folder import JOB_ENDING_FILE
from runbook.model.events import Event, Progress, RunStarted, StageFinished, StageStarted
from runbook.model.playbook import Expect
from runbook.model.verdict import Outcome, Verdict
from runbook.transport.node_sessions import Site
from runbook.transport.remote_program import Message

from .made_up_plans import RUN_ID, Fake, Told, Work, execute_stages, failing, finding, local, passing, stage

TWO = local("node-a", "node-b")


def one(folder: Path, work: Work, **options: object) -> Told:
    return execute_stages(folder, stage("s", work, TWO, **options))  # type: ignore[arg-type]


def verdicts(told: Told, name: str = "s") -> list[Verdict]:
    return [outcome.verdict for outcome in told.outcomes(name).values()]


def test_all_pass(tmp_path: Path) -> None:
    told = one(tmp_path, passing)
    assert (told.code, told.end.exit_code, told.end.verdict, told.end.stopped_at) == (0, 0, Verdict.PASS, None)
    assert [type(event).__name__ for event in told.events] == [
        *("RunStarted", "StageStarted", "OutcomeReached", "OutcomeReached", "StageFinished", "RunFinished")
    ]
    first = told.events[0]
    assert isinstance(first, RunStarted)
    assert (first.nodes, first.stages) == (("node-a", "node-b"), ("s",))


def raising(error: BaseException) -> Work:
    def work(at: Context) -> list[Outcome]:
        raise error

    return work


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("x"), KeyError("dev"), SystemExit(0), AssertionError(), TimeoutError()]
)
def test_a_check_that_raises_could_not_look(error: BaseException, tmp_path: Path) -> None:
    told = one(tmp_path, raising(error))
    assert (told.code, told.end.causes) == (3, ("insufficient-evidence",))
    assert verdicts(told) == [Verdict.UNKNOWN, Verdict.UNKNOWN]
    assert type(error).__name__ in told.outcomes("s")["node-a"].findings[0].says
    assert type(error).__name__ in (tmp_path / "crash.txt").read_text()


def test_a_node_that_nobody_spoke_of_is_unknown(tmp_path: Path) -> None:
    told = one(tmp_path, lambda at: passing(at)[:1])
    assert (told.code, verdicts(told)) == (3, [Verdict.PASS, Verdict.UNKNOWN])
    assert one(tmp_path, lambda at: []).code == 3


def test_an_outcome_of_a_node_that_is_not_of_this_stage_does_not_count(tmp_path: Path) -> None:
    told = one(tmp_path, lambda at: [Outcome.passed("node-x", "who?"), *passing(at)[:1]])
    assert list(told.outcomes("s")) == ["node-a", "node-b"]
    assert told.code == 3


def test_a_check_that_never_returns_is_unknown_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "LATE_CHECK_TIMEOUT_S", 0.05)
    done = threading.Event()

    def work(at: Context) -> list[Outcome]:
        done.wait(30)
        return passing(at)

    try:
        told = one(tmp_path, work, timeout=0.1)
    finally:
        done.set()
    assert (told.code, verdicts(told)) == (3, [Verdict.UNKNOWN, Verdict.UNKNOWN])
    assert "within 0.1 s" in told.outcomes("s")["node-a"].findings[0].says


def test_a_check_that_is_a_little_late_still_gives_its_own_answer(tmp_path: Path) -> None:
    def work(at: Context) -> list[Outcome]:
        threading.Event().wait(0.3)
        return failing(at)

    assert one(tmp_path, work, timeout=0.05).end.causes == ("packet-loss",)


def test_it_stops_at_the_first_stage_that_fails(tmp_path: Path) -> None:
    ran: list[str] = []

    def noting(name: str, then: Work) -> Work:
        def work(at: Context) -> list[Outcome]:
            ran.append(name)
            return then(at)

        return work

    works = {"a": passing, "b": failing, "c": passing}
    told = execute_stages(tmp_path, *(stage(name, noting(name, work), TWO) for name, work in works.items()))
    assert (ran, told.code, told.end.stopped_at) == (["a", "b"], 1, "b")
    assert [e.stage for e in told.events if isinstance(e, StageStarted)] == ["a", "b"]
    assert [(e.stage, e.verdict) for e in told.events if isinstance(e, StageFinished)] == [
        ("a", Verdict.PASS),
        ("b", Verdict.FAIL),
    ]


def unknowing(at: Context) -> list[Outcome]:
    return [Outcome.unknown(node.name, finding("tool-missing")) for node in at.nodes]


@pytest.mark.parametrize(("work", "code"), [(failing, 1), (unknowing, 3)])
def test_a_failure_that_may_be_passed_by_still_counts(work: Work, code: int, tmp_path: Path) -> None:
    told = execute_stages(tmp_path, stage("a", work, TWO, stop_on_failure=False), stage("b", passing, TWO))
    assert (told.code, told.end.stopped_at, verdicts(told, "b")) == (code, None, [Verdict.PASS] * 2)


def test_nothing_passes_by_reach(tmp_path: Path) -> None:
    told = execute_stages(tmp_path, stage("reach", failing, TWO, stop_on_failure=False), stage("b", passing, TWO))
    assert (told.code, told.end.stopped_at) == (1, "reach")


def test_one_unknown_node_stops_the_run(tmp_path: Path) -> None:
    def work(at: Context) -> list[Outcome]:
        return [passing(at)[0], unknowing(at)[1]]

    told = execute_stages(tmp_path, stage("a", work, TWO), stage("b", passing, TWO))
    assert (told.code, told.end.stopped_at, told.outcomes("b")) == (3, "a", {})


def test_failed_beats_unknown(tmp_path: Path) -> None:
    def work(at: Context) -> list[Outcome]:
        return [unknowing(at)[0], failing(at)[1]]

    told = one(tmp_path, work)
    assert (told.code, told.end.causes) == (1, ("packet-loss", "tool-missing"))


def test_a_skipped_stage_is_not_run_and_says_why(tmp_path: Path) -> None:
    told = execute_stages(
        tmp_path, stage("a", raising(AssertionError()), TWO, skip="when: false does not hold"), stage("b", passing, TWO)
    )
    assert (told.code, verdicts(told, "a")) == (0, [Verdict.SKIP, Verdict.SKIP])
    assert told.outcomes("a")["node-a"].proof == "when: false does not hold"


def test_a_stage_of_fewer_nodes(tmp_path: Path) -> None:
    told = execute_stages(tmp_path, stage("a", passing, TWO), stage("b", passing, local("node-b")))
    assert list(told.outcomes("b")) == ["node-b"]


def test_what_a_check_says_is_told(tmp_path: Path) -> None:
    def work(at: Context) -> list[Outcome]:
        at.say("half way", "node-a", 0, {"row": {"size": 1}})
        return passing(at)

    (said,) = [event for event in one(tmp_path, work).events if isinstance(event, Progress)]
    assert (said.stage, said.text, said.node, said.rank, said.data) == (
        "s",
        "half way",
        "node-a",
        0,
        {"row": {"size": 1}},
    )


def test_ctrl_c_cleans_up_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> list[Outcome]:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "_run_check", interrupted)
    told = execute_stages(tmp_path, stage("a", passing, TWO), stage("b", passing, TWO))
    assert (told.code, told.end.exit_code, told.end.stopped_at) == (130, 130, "a")
    assert "stopped and removed everything" in (told.end.cleaned or "")


def test_ctrl_c_while_it_cleans_up_hides_nothing_that_was_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pressed, waited = threading.Event(), engine._wait_for_future

    def close(_: Site) -> dict[str, BaseException]:
        assert pressed.wait(60)
        return {"node-a": TimeoutError()}

    def wait(*arguments: Any) -> None:
        if (
            threading.current_thread() is threading.main_thread()
            and not pressed.is_set()
            and "closing" in {thread.name for thread in threading.enumerate()}
        ):
            pressed.set()
            raise KeyboardInterrupt
        waited(*arguments)

    monkeypatch.setattr(Site, "close", close)
    monkeypatch.setattr(engine, "_wait_for_future", wait)
    assert "node-a could not be asked" in (one(tmp_path, passing).end.cleaned or "")


def late(at: Context) -> list[Outcome]:
    """Past its deadline it still ends what it started, and says what it saw of that."""
    at.stopping.wait(max(0.0, at.deadline - time.monotonic()) + 1.5)
    return failing(at, "rank-killed")


@pytest.mark.parametrize(("ends_by_itself", "cause"), [(True, "rank-killed"), (False, "insufficient-evidence")])
def test_a_check_that_ends_what_it_started_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_by_itself: bool, cause: str
) -> None:
    monkeypatch.setattr(engine, "LATE_CHECK_TIMEOUT_S", 0.0)
    monkeypatch.setattr(Fake, "ends_by_itself", ends_by_itself)
    assert one(tmp_path, late, timeout=0.1).end.causes == (cause,)


@pytest.mark.parametrize("again", ["signal", "mark"])
def test_who_wishes_an_end_at_once_gets_it_though_the_end_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    """The second wish comes while the first is being told."""
    monkeypatch.setattr(Fake, "ends_by_itself", True)

    def patient(at: Context) -> list[Outcome]:
        hurried.append(at.run.hurry.wait(60.0))
        return failing(at, "rank-killed")

    def wait(*arguments: Any) -> None:
        if first.acquire(blocking=False):
            raise KeyboardInterrupt
        waited(*arguments)

    def tell(event: Event) -> None:
        if isinstance(event, Progress) and event.text.startswith("stopping"):
            if again == "signal":
                raise KeyboardInterrupt
            mark = {"person": "ann", "at": time.time(), "now": True}
            (tmp_path / JOB_ENDING_FILE).write_text(json.dumps(mark))

    first, waited = threading.Semaphore(), engine._wait_for_future
    monkeypatch.setattr(engine, "_wait_for_future", wait)
    hurried: list[bool] = []
    told = execute_stages(tmp_path, stage("s", patient, TWO), tell=tell)
    assert (told.code, hurried) == (130, [True])
    assert verdicts(told, "s") == [Verdict.FAIL, Verdict.FAIL], "how it ended what it had started is told too"
    assert told.end.causes == ("rank-killed",)


class Unasked(Site):
    """Every node falls silent before the end."""

    def close(self, *, timeout_s: float = 10.0) -> Mapping[str, Message | BaseException]:
        return {name: TimeoutError() for name in super().close(timeout_s=timeout_s)}


@pytest.mark.parametrize(
    ("outlives_s", "words"),
    [(10.0, "ends by itself within 10 s"), (48.0, "within 48 s"), (math.inf, "`runbook stop {run}` ends it")],
)
def test_what_becomes_of_nodes_that_fell_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outlives_s: float, words: str
) -> None:
    monkeypatch.setattr(engine, "Site", Unasked)
    monkeypatch.setattr(Fake, "outlives_s", outlives_s)
    here = local("node-a", "node-b", workdir=tmp_path)

    def opening(at: Context) -> list[Outcome]:
        at.run.site.open(at.nodes)
        return passing(at)

    cleaned = execute_stages(tmp_path, stage("s", opening, here, timeout=30.0)).end.cleaned
    assert (cleaned or "").startswith("node-[a-b] could not be asked: ")
    assert words.format(run=RUN_ID) in (cleaned or "")


F, U = Outcome.failed, Outcome.unknown


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([], ""),
        ([Outcome.passed("a", "ok")], ""),
        ([U("a", finding("tool-missing")), F("b", finding("no-route"))], "no-route tool-missing"),
        ([F("a", finding("no-route")), F("b", finding("no-route"))], "no-route"),
        ([U("a", finding("peer-died")), F("b", finding("rank-killed"))], "rank-killed"),
        ([U("a", finding("ranks-missing")), U("b", finding("ssh-refused"))], "ssh-refused"),
        ([U("a", finding("peer-died"))], "peer-died"),
        ([F("a", finding("ranks-missing")), U("b", finding("ranks-missing"))], "ranks-missing"),
        (
            [F("a", finding("packet-loss"), finding("no-route")), F("b", finding("ib-no-device"))],
            "packet-loss no-route ib-no-device",
        ),
    ],
)
def test_the_root_cause_comes_first(outcomes: list[Outcome], expected: str) -> None:
    assert causes_of_outcomes(outcomes) == tuple(expected.split())


def shell(command: str, **expect: object) -> Callable[[Path], PlannedStage]:
    def make(workdir: Path) -> PlannedStage:
        check = Shell(command=command, expect=Expect(**expect))  # type: ignore[arg-type]
        return PlannedStage("shell", check, local("node-a", "node-b", workdir=workdir), 20.0)

    return make


@pytest.mark.parametrize(
    ("make", "code", "verdict"),
    [
        (shell("echo runs on $RUNBOOK_NODE", stdout="^runs on node-[ab]$"), 0, Verdict.PASS),
        (shell("echo other", stdout="^runs"), 1, Verdict.FAIL),
        (shell("exit 4", exit=4), 0, Verdict.PASS),
        (shell("exit 4"), 1, Verdict.FAIL),
        (shell("kill -9 $$"), 1, Verdict.FAIL),
    ],
)
def test_two_real_nodes_of_this_machine(
    make: Callable[[Path], PlannedStage], code: int, verdict: Verdict, tmp_path: Path
) -> None:
    workdir = tmp_path / "work dir"
    planned = make(workdir)
    told = execute_stages(tmp_path, PlannedStage("reach", Reach(), planned.inventory, 30.0), planned)
    assert [o.verdict for o in told.outcomes("reach").values()] == [Verdict.PASS, Verdict.PASS]
    assert (told.code, verdicts(told, "shell")) == (code, [verdict, verdict])
    assert not list(workdir.iterdir()), "the run's folders are gone"


def test_a_workdir_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    nodes = local("node-a", workdir=tmp_path / "file" / "below")
    told = execute_stages(tmp_path, PlannedStage("reach", Reach(), nodes, 30.0), stage("b", passing, nodes))
    assert (told.code, told.end.stopped_at, told.end.causes) == (1, "reach", ("workdir-not-writable",))
