"""`when_bad: drop`: who is left out, what runs again for the others, and when the run stops all the same."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.checks.context import Context
from runbook.engine import plan as planning
from runbook.engine.bad_nodes import (
    MAX_EXACT_PAIRS,
    NotDroppedError,
    fewest_nodes_to_drop,
    plan_for_rest,
    suspected_nodes,
)
from runbook.engine.plan import Choice, Plan, PlannedStage, make_plan
from runbook.engine.run import RunSettings, run_plan
from runbook.files.inventory import load_inventory
from runbook.model.errors import FilesWrong
from runbook.model.events import Event, NodesDropped, StageStarted
from runbook.model.verdict import Finding, Outcome, Verdict

from .made_up_plans import NODES, RUN_ID, Fake, Told, Work, inventory, local, playbook

NAMES = [f"n{number}" for number in range(1, 9)]


def found(cause: str, *peers: str) -> Finding:
    return Finding(cause, "it is broken", "mend it", (), peers)


def stage_of(told: Mapping[str, Outcome], names: Sequence[str] = NAMES) -> list[Outcome]:
    return [told.get(name) or Outcome.passed(name, "fine") for name in names]


def failed(**findings: Finding) -> dict[str, Outcome]:
    return {name: Outcome.failed(name, finding) for name, finding in findings.items()}


def unknown(**findings: Finding) -> dict[str, Outcome]:
    return {name: Outcome.unknown(name, finding) for name, finding in findings.items()}


def test_only_a_finding_of_its_own_makes_a_node_bad() -> None:
    told = suspected_nodes(stage_of(failed(n2=found("firewall-drop", "n1", "n3"), n5=found("no-torch"))))
    assert (told.bad, told.ends, told.unknown) == ({"n2": "firewall-drop", "n5": "no-torch"}, {}, {})


def test_what_is_unknown_is_not_bad_and_goes_only_where_nobody_is_to_blame() -> None:
    silent = unknown(n4=found("ssh-unreachable"), n5=found("peer-died"))
    told = suspected_nodes(stage_of(silent))
    assert (told.bad, told.leaving) == ({}, {"n4": "ssh-unreachable"})
    assert suspected_nodes(stage_of({**silent, **failed(n2=found("gpu-busy"))})).leaving == {"n2": "gpu-busy"}


def test_nobody_goes_for_what_only_followed_or_for_a_pause_of_the_controller() -> None:
    assert not suspected_nodes(stage_of(unknown(n4=found("peer-died"), n5=found("ranks-missing")))).leaving
    assert not suspected_nodes(stage_of(unknown(n1=found("controller-paused")))).leaving


def test_where_all_fail_alike_nobody_goes() -> None:
    names = ["n1", "n2", "n3"]
    all_of_them = failed(**{name: found("allreduce-slow") for name in names})
    assert not suspected_nodes(stage_of(all_of_them, names)).leaving
    assert suspected_nodes(stage_of(all_of_them)).leaving.keys() == set(names)


def test_a_bad_link_costs_one_of_its_ends_and_the_master_stays() -> None:
    link = failed(n1=found("link-slow", "n4"), n4=found("link-slow", "n1"))
    told = suspected_nodes(stage_of(link))
    assert (told.bad, told.ends) == ({}, {"n4": "link-slow with n1"})


def test_a_node_with_several_bad_links_goes_and_their_other_ends_stay() -> None:
    star = failed(
        n2=found("link-slow", "n5"),
        n5=found("link-slow", "n2", "n7"),
        n7=found("link-slow", "n5"),
    )
    assert suspected_nodes(stage_of(star)).ends == {"n5": "link-slow with n[2,7]"}


def test_a_link_to_a_node_that_goes_anyway_costs_nobody_else() -> None:
    told = suspected_nodes(
        stage_of(
            {
                "n3": Outcome.failed("n3", found("link-slow", "n6"), found("gpu-busy")),
                **failed(n6=found("link-slow", "n3")),
            }
        )
    )
    assert (told.bad, told.ends) == ({"n3": "gpu-busy"}, {})


def test_the_smaller_side_of_a_bad_way_between_two_leaves_goes() -> None:
    here, there = NAMES[:5], NAMES[5:]
    way = {name: found("leaf-slow", *(there if name in here else here)) for name in NAMES}
    told = suspected_nodes(stage_of(failed(**way), [*NAMES, "n9"]))
    assert set(told.ends) == set(there)


PAIRS = st.lists(
    st.sampled_from([frozenset(pair) for pair in combinations(NAMES, 2)]), max_size=MAX_EXACT_PAIRS, unique=True
)
RANK = {name: place for place, name in enumerate(NAMES)}


@given(PAIRS)
def test_no_smaller_choice_clears_all_pairs(pairs: list[frozenset[str]]) -> None:
    going = fewest_nodes_to_drop(pairs, RANK)
    assert all(pair & going for pair in pairs)
    assert going == fewest_nodes_to_drop(pairs[::-1], RANK)
    for smaller in combinations(NAMES, max(0, len(going) - 1)):
        assert not all(pair & set(smaller) for pair in pairs) or not going


def test_of_very_many_pairs_enough_go() -> None:
    names = [f"n{number}" for number in range(64)]
    pairs = [frozenset((one, other)) for one in names[:24] for other in names[24:]]
    assert fewest_nodes_to_drop(pairs, {name: place for place, name in enumerate(names)}) == set(names[:24])


# The plan of the rest.


def made(folder: Path, text: str, nodes: str = NODES, **choice: Any) -> Plan:
    return make_plan(playbook(folder, text), inventory(folder, nodes), Choice(**choice))


DROPPING = """
    name: x
    when_bad: drop
    stages:
      - check: ping
      - {check: port, when_bad: stop, min_nodes: 3}
      - {check: firewall, on_failure: continue}
      - {name: train, launch: {command: [train.py, "{{ world_size }}"]}}
"""


def test_what_the_playbook_the_stage_and_the_command_line_say(tmp_path: Path) -> None:
    def said(**choice: Any) -> list[tuple[bool, int]]:
        return [(stage.drop_bad, stage.min_nodes) for stage in made(tmp_path, DROPPING, **choice).stages]

    assert said() == [(True, 2), (True, 2), (False, 3), (False, 2), (False, 2)]
    assert said(without_bad=True, min_nodes=1) == [(True, 1), (True, 1), (True, 1), (False, 1), (False, 1)]
    plain = made(tmp_path, "stages: [{check: ping}]")
    assert not any(stage.drop_bad for stage in plain.stages)


def test_ranks_master_and_templates_are_those_of_the_rest(tmp_path: Path) -> None:
    plan = made(tmp_path, DROPPING)
    rest = plan_for_rest(plan, plan.stages[1], {"node-a", "node-c"})
    assert [stage.nodes for stage in rest.stages] == [("node-b", "node-d")] * 5
    rendezvous = rest.inventory.rendezvous
    assert (rendezvous.master, rendezvous.address, rendezvous.port) == ("node-b", "10.0.0.2", 29500)
    job = rest.stages[-1].check.user_job
    assert job.programs["node-d"].command[-1] == "2"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("leaving", "nodes", "why"),
    [
        ({"node-a", "node-b", "node-c"}, NODES, "only 1 of 4 nodes would be left, and `min_nodes` is 2"),
        (set(), NODES, "no single node of ping is to blame"),
        ({"node-a"}, NODES.replace("master: node-a", "master: node-a, address: 10.9.0.1"), "10.9.0.1"),
        ({"node-a"}, NODES + "\n    env: {MASTER_ADDR: 10.9.0.1}", "MASTER_ADDR"),
    ],
)
def test_where_the_run_cannot_go_on_it_says_why(leaving: set[str], nodes: str, why: str, tmp_path: Path) -> None:
    plan = made(tmp_path, DROPPING, nodes)
    with pytest.raises(NotDroppedError) as caught:
        plan_for_rest(plan, plan.stages[1], leaving)
    assert why in str(caught.value)


def test_an_address_of_the_rendezvous_stays_where_its_master_does(tmp_path: Path) -> None:
    plan = made(tmp_path, DROPPING, NODES.replace("master: node-a", "master: node-a, address: 10.9.0.1"))
    assert plan_for_rest(plan, plan.stages[1], {"node-b"}).inventory.rendezvous.address == "10.9.0.1"


def test_a_stage_that_would_have_no_node_stops_the_run(tmp_path: Path) -> None:
    plan = made(tmp_path, "{when_bad: drop, stages: [{check: ping}, {check: port, nodes: rack1}]}")
    with pytest.raises(NotDroppedError) as caught:
        plan_for_rest(plan, plan.stages[1], {"node-a", "node-b"})
    assert "none of the nodes of the stage `port`" in str(caught.value)


@pytest.mark.parametrize("text", ["{min_nodes: 5, stages: [{check: ping}]}", "stages: [{check: ping, min_nodes: 5}]"])
def test_more_nodes_than_there_are_cannot_be_left(text: str, tmp_path: Path) -> None:
    with pytest.raises(FilesWrong) as caught:
        made(tmp_path, text)
    (problem,) = caught.value.problems
    assert (problem.id, problem.span is not None) == ("playbook.too-few-nodes", True)
    assert len(made(tmp_path, text, min_nodes=3).stages) == 2


# A run.


@dataclasses.dataclass(frozen=True)
class OfTheMaster(Fake):
    looks_at_rendezvous: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class Together(Fake):
    judges_together: ClassVar[bool] = True


LOCAL = """
    rendezvous: {master: a}
    defaults: {connection: local, workdir: FOLDER}
    nodes: {a: {address: 127.0.0.1}, b: {address: 127.0.0.1}, c: {address: 127.0.0.1}, d: {address: 127.0.0.1}}
"""


class Blames:
    """A check that fails those who are to blame, as long as they take part."""

    def __init__(self, **outcomes: Outcome) -> None:
        self.outcomes = outcomes
        self.seen: list[tuple[str, ...]] = []

    def __call__(self, at: Context) -> list[Outcome]:
        self.seen.append(tuple(node.name for node in at.nodes))
        return [self.outcomes.get(node.name) or Outcome.passed(node.name, "fine") for node in at.nodes]


def ran(folder: Path, monkeypatch: pytest.MonkeyPatch, *checks: tuple[type[Fake], Work], **choice: Any) -> Told:
    """A run of these checks, in place of the playbook's: planned again for the rest as any other."""
    (folder / "inventory.yml").write_text(LOCAL.replace("FOLDER", str(folder)))
    whole, _ = load_inventory(folder / "inventory.yml", environ={})
    text = "when_bad: drop\nstages: [" + ", ".join(f"{{name: s{at}, check: ibstat}}" for at in range(len(checks))) + "]"
    events: list[Event] = []
    real = planning._plan_for_nodes

    def planned(*given: Any) -> Plan:
        made = real(*given)
        stages: list[PlannedStage] = [
            dataclasses.replace(one, check=kind(work))
            for one, (kind, work) in zip(made.stages[1:], checks, strict=True)
        ]
        return dataclasses.replace(made, stages=tuple(stages))

    monkeypatch.setattr(planning, "_plan_for_nodes", planned)
    plan = make_plan(playbook(folder, text), whole, Choice(**choice))
    code = run_plan(plan, RunSettings(RUN_ID, folder), events.append)
    return Told(code, events)


def stages(told: Told) -> list[str]:
    return [f"{e.stage}:{''.join(e.nodes)}" for e in told.events if isinstance(e, StageStarted)]


def test_a_run_goes_on_without_the_bad_and_is_no_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Blames(c=Outcome.failed("c", found("gpu-busy")))
    told = ran(tmp_path, monkeypatch, (Fake, bad), (Fake, Blames()))
    assert stages(told) == ["s0:abcd", "s1:abd"]
    assert (told.code, told.end.verdict, told.end.stopped_at) == (1, Verdict.FAIL, None)
    assert (told.end.bad, told.end.dropped, told.end.unknown) == (("c",), ("c",), ())
    assert [(e.reasons, e.left) for e in told.events if isinstance(e, NodesDropped)] == [
        ({"c": "gpu-busy"}, ("a", "b", "d"))
    ]


def test_without_what_is_unknown_as_well_and_it_is_never_called_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = Blames(b=Outcome.unknown("b", found("ssh-unreachable")))
    told = ran(tmp_path, monkeypatch, (Fake, silent), (Fake, Blames()))
    assert stages(told) == ["s0:abcd", "s1:acd"]
    assert (told.code, told.end.verdict) == (3, Verdict.UNKNOWN)
    assert (told.end.bad, told.end.dropped, told.end.unknown) == ((), ("b",), ("b",))


def test_what_is_judged_together_is_judged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Blames(c=Outcome.failed("c", found("gpu-busy")))
    told = ran(tmp_path, monkeypatch, (Fake, Blames()), (Together, bad))
    assert stages(told) == ["s0:abcd", "s1:abcd", "s1:abd"]


def test_whoever_waited_for_the_bad_one_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Waits(Blames):
        def __call__(self, at: Context) -> list[Outcome]:
            there = "c" in [node.name for node in at.nodes]
            self.outcomes = {"a": Outcome.unknown("a", found("peer-died")), **self.first} if there else {}
            return super().__call__(at)

        first = failed(c=found("rank-killed"))

    told = ran(tmp_path, monkeypatch, (Fake, Waits()), (Fake, Blames()))
    assert stages(told) == ["s0:abcd", "s0:abd", "s1:abd"]
    assert (told.code, told.end.bad, told.end.unknown) == (1, ("c",), ())


def test_another_master_is_looked_at_before_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Blames(a=Outcome.failed("a", found("gpu-busy")))
    checks = ((OfTheMaster, Blames()), (Fake, Blames()), (Fake, bad), (Fake, Blames()))
    told = ran(tmp_path, monkeypatch, *checks)
    assert stages(told) == ["s0:abcd", "s1:abcd", "s2:abcd", "s0:bcd", "s3:bcd"]


def test_one_after_the_other_down_to_the_fewest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (Blames(**failed(**{name: found("gpu-busy")})) for name in "abc")
    told = ran(tmp_path, monkeypatch, (Fake, first), (Fake, second), (Fake, third), (Fake, Blames()))
    assert stages(told) == ["s0:abcd", "s1:bcd", "s2:cd"]
    assert (told.code, told.end.stopped_at, told.end.dropped) == (1, "s2", ("a", "b"))
    assert told.end.bad == ("a", "b", "c")
    assert told.end.not_dropped == "without c only 1 of 2 nodes would be left, and `min_nodes` is 2"


def test_what_a_program_of_the_users_meets_proves_no_node_bad(tmp_path: Path) -> None:
    """A launch is a job, and no check that looks at nodes."""
    nodes = local("a", "b", "c", workdir=tmp_path)
    text = "stages: [{name: train, launch: {command: [/bin/false]}}]"
    plan = make_plan(playbook(tmp_path, text), nodes, Choice(without_bad=True))
    events: list[Event] = []
    code = run_plan(plan, RunSettings(RUN_ID, tmp_path), events.append)
    told = Told(code, events)
    assert (told.code, told.end.stopped_at, told.end.bad, told.end.not_dropped) == (1, "train", (), None)


def test_each_node_has_one_outcome_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Blames(c=Outcome.failed("c", found("gpu-busy")))
    told = ran(tmp_path, monkeypatch, (Together, bad))
    reached = Counter(event.outcome.node for event in told.events if hasattr(event, "outcome"))
    assert reached == {"a": 2, "b": 2, "c": 1, "d": 2}


def test_very_many_pairs_without_a_node_in_common_lose_the_later_of_each() -> None:
    pairs = [frozenset({f"a{place}", f"b{place}"}) for place in range(2000)]
    rank = {name: place for place, name in enumerate([f"{letter}{place}" for letter in "ab" for place in range(2000)])}
    assert fewest_nodes_to_drop(pairs, rank) == {f"b{place}" for place in range(2000)}
