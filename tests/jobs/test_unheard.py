"""What is said of a training of which no step is heard: that a hang would go unnoticed, and who does nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runbook.checks.context import Facts
from runbook.jobs.kept_processes import KeptProcesses
from runbook.jobs.progress import StepProgress
from runbook.jobs.unheard import CONFIRMING_LOOK_INTERVAL_S, FIRST_UNHEARD_LOOK_S, Unheard
from runbook.model.playbook import Watch

from .made_up_attempts import attempt, ended, kept
from .test_stall import BARRIER, QUEUE, REDUCE, dumped, seen_alike


def seen(stack: str = "", **facts: Any) -> dict[str, Facts]:
    """All ranks wait in a barrier but the third, which stands in this place."""
    told = seen_alike(dumped(BARRIER))
    for node in told.values():
        for rank in node["ranks"].values():
            rank.update(moved=0)
    rank = told["node-b"]["ranks"]["3"]
    rank["own_stacks"]["3"] = stack or dumped(BARRIER)
    rank["processes"][0].update({name: facts.pop(name) for name in ("cpu", "copied") if name in facts})
    rank.update(facts)
    return told


def causes(unheard: Unheard, made: KeptProcesses, told: dict[str, Facts], at: float) -> list[str]:
    return [
        f"{','.join(nodes)} {finding.cause}"
        for nodes, finding in (unheard.look(made, told, at) if unheard.due(at) else ())
    ]


SAID = "node-a,node-b insufficient-evidence"


def test_that_no_step_was_heard_is_said_once_and_where_the_ranks_stand(tmp_path: Path) -> None:
    made, unheard = kept(tmp_path), Unheard()
    assert causes(unheard, made, seen(), FIRST_UNHEARD_LOOK_S) == []
    ((_, finding),) = unheard.look(made, seen(), FIRST_UNHEARD_LOOK_S + 1)
    assert "no step was heard in the first 10 min" in finding.says
    assert "`progress: 'REGEX (\\d+)'` in `watch:`" in finding.remedy
    assert "RUNBOOK_PROGRESS" in finding.remedy
    assert any("in barrier at /srv/train.py:80" in line for line in finding.evidence)
    for at in (700.0, 2000.0, 1e6):
        assert causes(unheard, made, seen(), at) == []


def test_who_does_nothing_in_two_looks_while_the_others_wait_is_named_once(tmp_path: Path) -> None:
    made, unheard = kept(tmp_path), Unheard()
    hangs = seen(dumped(QUEUE), moved=90, copied=90)  # its connections are only kept open
    assert causes(unheard, made, hangs, FIRST_UNHEARD_LOOK_S + 1) == [SAID]
    assert not unheard.due(FIRST_UNHEARD_LOOK_S + CONFIRMING_LOOK_INTERVAL_S)
    assert causes(unheard, made, hangs, FIRST_UNHEARD_LOOK_S + CONFIRMING_LOOK_INTERVAL_S + 2) == ["node-b rank-behind"]
    assert causes(unheard, made, hangs, 1e6) == []
    stopped = seen()
    stopped["node-b"]["ranks"]["3"]["processes"][0]["state"] = "T"
    unheard = Unheard()
    found = [causes(unheard, made, stopped, at) for at in (601.0, 700.0)]
    assert found == [[SAID], ["node-b rank-stopped"]]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (seen(dumped(QUEUE), cpu=0.06), seen(dumped(QUEUE), cpu=0.06)),
        (seen(dumped(QUEUE), copied=1000), seen(dumped(QUEUE), copied=1000)),
        (seen(dumped(QUEUE), moved=1000), seen(dumped(QUEUE), moved=1000)),  # it downloads
        (seen(dumped(QUEUE)), seen()),
        (seen(dumped(QUEUE)), seen(dumped((replace(QUEUE[0], line=9), replace(QUEUE[1], line=13), QUEUE[2])))),
        (seen(dumped(REDUCE)), seen(dumped(REDUCE))),  # calls that differ, as those of a training that goes on
        (seen(own_stacks={}), seen(own_stacks={})),
        (seen(processes=[]), seen(processes=[])),
    ],
)
def test_who_may_be_at_work_is_not_named(tmp_path: Path, first: dict[str, Facts], second: dict[str, Facts]) -> None:
    made, unheard = kept(tmp_path), Unheard()
    assert causes(unheard, made, first, 601.0) == [SAID]
    assert causes(unheard, made, second, 1e6) == []


def test_nobody_is_named_while_another_works_whom_it_may_wait_for(tmp_path: Path) -> None:
    told = seen(dumped(QUEUE))
    told["node-a"]["ranks"]["0"].update(moved=5000, own_stacks={"0": dumped(QUEUE)})
    unheard = Unheard()
    assert [causes(unheard, kept(tmp_path), told, at) for at in (601.0, 1e6)] == [[SAID], []]
    blind = {"node-a": seen()["node-a"]}
    unheard = Unheard()
    assert [causes(unheard, kept(tmp_path), blind, at) for at in (601.0, 1e6)] == [[SAID], []]


def test_a_rank_of_a_launcher_is_named_too_unless_what_it_started_works(tmp_path: Path) -> None:
    """All ranks of a node are of one session there."""
    for whose, cpu, named in ((3, 0.0, True), (3, 0.3, False), (None, 0.3, False), (2, 0.3, True)):
        made, told, unheard = kept(tmp_path, attempt(launcher="torchrun")), seen(dumped(QUEUE)), Unheard()
        child = {**told["node-b"]["ranks"]["3"]["processes"][0], "pid": 33, "cpu": cpu, "rank": whose}
        told["node-b"]["ranks"]["3"]["processes"].append(child)
        for node in told.values():
            first, second = node["ranks"].values()
            first["processes"] += second["processes"]
            first["own_stacks"] |= second["own_stacks"]
            node["ranks"].popitem()
        found = [causes(unheard, made, told, at) for at in (601.0, 700.0)]
        assert found == [[SAID], ["node-b rank-behind"] if named else []]


def test_who_has_ended_is_no_reason_to_see_nobody(tmp_path: Path) -> None:
    made, told, unheard = kept(tmp_path), seen(dumped(QUEUE)), Unheard()
    ended(made, 0, 0, 110.0)
    del told["node-a"]["ranks"]["0"]
    assert [causes(unheard, made, told, at) for at in (601.0, 700.0)] == [[SAID], ["node-b rank-behind"]]


def test_a_step_and_a_limit_of_its_own_make_it_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    progress = StepProgress(Watch())
    assert not Unheard().due(progress.unheard_s(now[0]))
    progress.begin(5.0)
    assert progress.unheard_s(1100.0) == 105.0
    assert not Unheard().due(progress.unheard_s(float("-inf"))), "nobody knows what the ranks have written"
    progress.heard(0, ["step 1"])
    assert progress.unheard_s(1e6) is None
    progress = StepProgress(Watch(stall_s=30.0))
    progress.begin()
    assert progress.unheard_s(1e6) is None
