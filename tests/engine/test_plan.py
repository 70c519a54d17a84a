"""From a playbook and what the command line picks to the stages that will run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runbook.checks.allreduce import AllReduce
from runbook.checks.shell import Shell
from runbook.engine.plan import Choice, Plan, _shell_quoted, make_plan, refuse_what_cannot_run
from runbook.jobs.launch import Launch
from runbook.model.errors import FilesWrong
from runbook.model.playbook import Expect

from .made_up_plans import NODES, inventory, playbook

TAGGED = """
    name: tagged
    stages:
      - check: ping
      - {check: port, tags: [net]}
      - {name: full, check: allreduce, tags: [perf, slow]}
      - {name: last, shell: uname, tags: [always]}
"""


def plan(folder: Path, text: str, *, nodes: str = NODES, **choice: Any) -> Plan:
    return make_plan(playbook(folder, text), inventory(folder, nodes), Choice(**choice))


def names(made: Plan) -> list[str]:
    assert made.stages[0].name == "reach"
    return [stage.name for stage in made.stages[1:]]


def problems(folder: Path, text: str, **choice: Any) -> list[str]:
    with pytest.raises(FilesWrong) as caught:
        plan(folder, text, **choice)
    return [problem.id for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({}, "ping port full last"),
        ({"tags": ["net"]}, "port last"),
        ({"tags": ["net", "perf"]}, "port full last"),
        ({"tags": ["ping"]}, "ping last"),
        ({"tags": ["tagged"]}, "port full last"),
        ({"tags": ["untagged"]}, "ping last"),
        ({"tags": ["all"]}, "ping port full last"),
        ({"skip_tags": ["perf"]}, "ping port last"),
        ({"skip_tags": ["always"]}, "ping port full"),
        ({"skip_tags": ["tagged"]}, "ping"),
        ({"tags": ["net", "perf"], "skip_tags": ["slow"]}, "port last"),
        ({"start_at": "port"}, "port full last"),
        ({"start_at": "full"}, "full last"),
        ({"start_at": "allreduce"}, "full last"),
        ({"start_at": "full", "tags": ["net"]}, "last"),
    ],
)
def test_what_is_picked(choice: dict[str, Any], expected: str, tmp_path: Path) -> None:
    assert names(plan(tmp_path, TAGGED, **choice)) == expected.split()


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"tags": ["perff"]}, ["arguments.unknown-tag"]),
        ({"skip_tags": ["a", "b"]}, ["arguments.unknown-tag"] * 2),
        ({"start_at": "prot"}, ["arguments.unknown-stage"]),
        ({"skip_tags": ["all"]}, ["arguments.empty-selection"]),
        ({"tags": ["net"], "skip_tags": ["net", "always"]}, ["arguments.empty-selection"]),
        ({"limit": "node-x"}, ["pattern.unknown-name"]),
        ({"limit": "rack1:&rack2"}, ["pattern.empty"]),
        ({"limit": "!all"}, ["pattern.empty"]),
    ],
)
def test_a_choice_that_means_nothing_is_an_error(choice: dict[str, Any], expected: list[str], tmp_path: Path) -> None:
    assert problems(tmp_path, TAGGED, **choice) == expected


def test_reach_runs_once_listed_or_not(tmp_path: Path) -> None:
    assert names(plan(tmp_path, "stages: [{check: reach}, {check: ping}, {check: reach}]")) == ["ping"]
    assert names(plan(tmp_path, "stages: [{check: reach}]")) == []


@pytest.mark.parametrize("setting", ["timeout: 5s", "nodes: a", "when: true", "on_failure: continue", "with: {}"])
def test_what_would_do_nothing_at_reach_is_refused(setting: str, tmp_path: Path) -> None:
    assert problems(tmp_path, f"stages: [{{check: reach, {setting}}}]") == ["playbook.misplaced-key"]


def test_near_misses_get_a_hint(tmp_path: Path) -> None:
    choices: list[dict[str, Any]] = [{"tags": ["perff"]}, {"start_at": "fulll"}]
    for choice in choices:
        with pytest.raises(FilesWrong) as caught:
            plan(tmp_path, TAGGED, **choice)
        assert "did you mean" in (caught.value.problems[0].help or "")


ON_RACK2 = "{name: x, nodes: 'rack2', stages: [{check: ping}]}"


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(None, "node-c node-d"), ("node-d", "node-d"), ("all:!node-c", "node-d"), ("node-a,node-c", "node-c")],
)
def test_the_nodes_are_those_of_the_playbook_that_the_limit_leaves(
    limit: str | None, expected: str, tmp_path: Path
) -> None:
    made = plan(tmp_path, ON_RACK2, limit=limit)
    assert {stage.nodes for stage in made.stages} == {tuple(expected.split())}
    assert made.inventory.rendezvous.master == expected.split()[0]


def test_a_limit_outside_the_playbooks_nodes(tmp_path: Path) -> None:
    assert problems(tmp_path, ON_RACK2, limit="rack1") == ["arguments.empty-selection"]


def test_a_stage_with_nodes_of_its_own(tmp_path: Path) -> None:
    text = "{name: x, stages: [{check: ping}, {name: few, check: allreduce, nodes: 'rack2'}]}"
    made = plan(tmp_path, text)
    assert [len(stage.nodes) for stage in made.stages] == [4, 4, 2]
    assert made.first_with_ranks is not None
    assert made.first_with_ranks.nodes == ("node-c", "node-d")


@pytest.mark.parametrize(("limit", "expected"), [("node-b,node-c", "node-c"), ("node-d", "node-d")])
def test_a_stage_may_name_nodes_that_the_limit_leaves_out(limit: str, expected: str, tmp_path: Path) -> None:
    text = "{name: x, stages: [{check: ping, nodes: 'node-c,node-d'}]}"
    assert plan(tmp_path, text, limit=limit).stages[1].nodes == (expected,)


def test_a_stage_that_the_limit_leaves_no_node_of(tmp_path: Path) -> None:
    text = "{name: x, stages: [{check: ping}, {name: few, check: allreduce, nodes: rack2}]}"
    made = plan(tmp_path, text, limit="rack1").stages[-1]
    assert (made.nodes, made.skip) == (("node-a", "node-b"), "-l leaves none of its nodes (rack2)")
    unseen = "{name: x, nodes: rack1, stages: [{check: ping}, {check: allreduce, nodes: rack2}]}"
    assert problems(tmp_path, unseen) == problems(tmp_path, unseen, limit="rack1") == ["pattern.empty"]
    launch = "{name: x, stages: [{nodes: rack2, launch: {command: [a.py]}}]}"
    assert problems(tmp_path, launch, limit="rack1") == ["pattern.empty"]


@pytest.mark.parametrize(
    ("when", "runs"),
    [
        ("true", True),
        ("false", False),
        ("node_count == 4", True),
        ("world_size > 4", False),
        ("backend == 'gloo'", True),
        ("infiniband", False),
        ("'node-a' in nodes", True),
        ("wanted", False),
        ("gpus == 0 and master == 'node-a'", True),
    ],
)
def test_when(when: str, runs: bool, tmp_path: Path) -> None:
    text = f"""
        name: x
        vars: {{wanted: false}}
        stages: [{{check: ping, when: "{when}"}}]
    """
    skip = plan(tmp_path, text).stages[1].skip
    assert (skip is None) is runs
    assert runs or f"when: {when} does not hold" == skip


def test_a_when_that_is_no_condition_or_names_nobody(tmp_path: Path) -> None:
    for when, id in {"node_count": "template.not-a-condition", "nobody": "template.undefined"}.items():
        assert problems(tmp_path, f"{{name: x, stages: [{{check: ping, when: '{when}'}}]}}") == [id]


def test_variables_strongest_last_and_typed(tmp_path: Path) -> None:
    text = """
        name: x
        vars: {iterations: 20, node_count: 7}
        stages:
          - check: allreduce
            with: {iterations: "{{ iterations }}", factor: "{{ node_count }}", max_bytes: "{{ size | default('2M') }}"}
    """

    def check(**extra: object) -> AllReduce:
        found = plan(tmp_path, text, extra=extra).stages[1].check
        assert isinstance(found, AllReduce)
        return found

    assert (check().iterations, check().factor, check().max_bytes) == (20, 7, 2 << 20)
    assert (check(iterations=3, size="4K").iterations, check(size="4K").max_bytes) == (3, 4096)


def test_every_wrong_argument_of_every_stage_is_told(tmp_path: Path) -> None:
    text = """
        name: x
        stages:
          - {name: one, check: allreduce, with: {factor: 1}}
          - {name: two, check: allreduce, with: {iterations: "{{ nobody }}", max_bytes: "{{ nothing }}"}}
          - {name: three, check: connection, with: {stall: "{{ 'soon' }}"}}
    """
    assert problems(tmp_path, text) == [
        "playbook.bad-argument",
        "template.undefined",
        "template.undefined",
        "playbook.bad-argument",
    ]


def test_a_stages_time(tmp_path: Path) -> None:
    text = """
        name: x
        stages:
          - check: ping
          - {check: port, timeout: 7s}
          - {check: allreduce, with: {budget: 100s}}
          - {name: b, check: allreduce, timeout: 9s, with: {budget: 100s}}
    """
    assert [stage.timeout_s for stage in plan(tmp_path, text).stages[1:]] == [60.0, 7.0, 400.0, 9.0]


def test_on_failure(tmp_path: Path) -> None:
    text = "{name: x, stages: [{check: ping, on_failure: continue}, {check: port}]}"
    assert [stage.stop_on_failure for stage in plan(tmp_path, text).stages] == [True, False, True]


def test_what_is_put_into_a_shell_line_stays_one_word(tmp_path: Path) -> None:
    text = """
        name: x
        vars: {who: "a b; rm -rf /", n: 3}
        stages: [{shell: "echo {{ who }} {{ n }}"}]
    """
    check = plan(tmp_path, text).stages[1].check
    assert isinstance(check, Shell)
    assert check.command == "echo 'a b; rm -rf /' 3"


def test_a_shell_line_is_filled_for_each_node(tmp_path: Path) -> None:
    nodes = """
        nodes:
          node-a: {address: 10.0.0.1, vars: {data: "/a b"}}
          node-b: {address: 10.0.0.2, vars: {data: /b}}
    """
    check = plan(tmp_path, '{name: x, stages: [{shell: "ls {{ data }} {{ node_rank }}"}]}', nodes=nodes).stages[1].check
    assert isinstance(check, Shell)
    assert check.of_node == {"node-a": "ls '/a b' 0", "node-b": "ls /b 1"}
    assert check.summary == "on node-a: ls '/a b' 0"
    one = plan(tmp_path, '{name: x, vars: {data: /c}, stages: [{shell: "ls {{ data }}"}]}', nodes=nodes).stages[1].check
    assert isinstance(one, Shell)
    assert (one.command, one.of_node) == ("ls /c", {})


LAUNCH = "{name: x, stages: [{check: ping}, {launch: {launcher: torchrun, command: [a, '{{ node }}']}}]}"


def test_a_launch_stage_is_planned_with_its_words_for_every_node(tmp_path: Path) -> None:
    made = plan(tmp_path, LAUNCH)
    job = made.stages[2].check.user_job
    assert job is not None
    assert {name: program.command for name, program in job.programs.items()} == {
        f"node-{letter}": ("a", f"node-{letter}") for letter in "abcd"
    }
    refuse_what_cannot_run(made)
    assert isinstance(made.stages[2].check, Launch)


def test_a_detached_job_over_slurm_is_refused_since_it_would_end_with_its_step(tmp_path: Path) -> None:
    nodes = NODES + "    defaults: {connection: slurm}\n"
    refuse_what_cannot_run(plan(tmp_path, LAUNCH, nodes=nodes))
    with pytest.raises(FilesWrong) as caught:
        refuse_what_cannot_run(plan(tmp_path, LAUNCH.replace("torchrun,", "torchrun, detach: true,"), nodes=nodes))
    assert [problem.id for problem in caught.value.problems] == ["playbook.detach-over-slurm"]


def test_windows_nodes_are_planned_and_refused_before_anything_is_touched(tmp_path: Path) -> None:
    nodes = NODES + "    defaults: {shell: bat}\n"
    made = plan(tmp_path, LAUNCH, nodes=nodes)
    with pytest.raises(FilesWrong) as caught:
        refuse_what_cannot_run(made)
    assert [problem.id for problem in caught.value.problems] == ["inventory.windows-node"]
    assert (caught.value.problems[0].help or "").startswith("`runbook render ")
    refuse_what_cannot_run(plan(tmp_path, "{name: x, stages: [{check: ping}]}"))


def test_what_leaves_windows_nodes_out_leaves_all_of_them_out(tmp_path: Path) -> None:
    windows = ("pc1", "pc3", "pc-x", "lab.a")
    nodes = "nodes:\n  node-a: {address: 10.0.0.1}\n"
    nodes += "".join(f"  {name}: {{address: 10.0.1.{last}, shell: bat}}\n" for last, name in enumerate(windows, 1))
    text = "{name: x, stages: [{check: ping}]}"
    with pytest.raises(FilesWrong) as caught:
        refuse_what_cannot_run(plan(tmp_path, text, nodes=nodes))
    pattern = (caught.value.problems[0].help or "").split("'")[1]
    left = plan(tmp_path, text, nodes=nodes, limit=pattern)
    assert [node.name for node in left.inventory.nodes] == ["node-a"]
    refuse_what_cannot_run(left)


def test_a_launch_stage_on_some_nodes_knows_its_own_world(tmp_path: Path) -> None:
    text = """
        name: x
        stages: [{nodes: rack2, launch: {command: ["{{ world_size }}", "{{ master }}", "{{ node_rank }}"]}}]
    """
    job = plan(tmp_path, text).stages[1].check.user_job
    assert job is not None
    assert [program.command for program in job.programs.values()] == [("2", "node-c", "0"), ("2", "node-c", "1")]


def test_everything_wrong_with_checks_and_launches_is_told_together(tmp_path: Path) -> None:
    text = """
        name: x
        stages:
          - {check: ping, with: {count: -1}}
          - launch:
              command: [train.py, "{{ nobody }}"]
              env: {A: "{{ nothing }}"}
    """
    with pytest.raises(FilesWrong) as caught:
        plan(tmp_path, text)
    assert [(p.id, p.span and p.span.line) for p in caught.value.problems] == [
        ("playbook.unknown-argument", 4),
        ("template.undefined", 6),
        ("template.undefined", 7),
    ]


def test_the_files_of_stages_are_called_alike_whatever_is_picked(tmp_path: Path) -> None:
    text = "{name: x, stages: [{name: a b, check: ping}, {name: a-b, check: port, tags: [t]}]}"
    assert [stage.script for stage in plan(tmp_path, text).stages[1:]] == ["a-b", "a-b-2"]
    assert [stage.script for stage in plan(tmp_path, text, tags=["t"]).stages[1:]] == ["a-b-2"]


def test_ranks_are_started_for_the_first_stage_that_will_need_them(tmp_path: Path) -> None:
    text = """
        name: x
        stages:
          - check: ping
          - {name: not now, check: allreduce, nodes: rack1, when: "false"}
          - {name: later, check: connection, nodes: rack2}
    """
    first = plan(tmp_path, text).first_with_ranks
    assert first is not None
    assert (first.name, first.nodes, first.script) == ("later", ("node-c", "node-d"), "later")
    assert plan(tmp_path, "{name: x, stages: [{check: ping}]}").first_with_ranks is None
    assert plan(tmp_path, LAUNCH).first_with_ranks is None


def ranked(made: Plan) -> list[str]:
    return [node.name for node in made.ranked.nodes]


def test_a_spare_is_not_among_those_that_have_ranks(tmp_path: Path) -> None:
    one = "{launch: {command: [a], retries: 1, spares: [node-b]}}"
    assert ranked(plan(tmp_path, f"{{name: x, stages: [{{check: ping}}, {one}]}}")) == ["node-a", "node-c", "node-d"]
    other = "{name: other, nodes: rack1, launch: {command: [b]}}"
    both = plan(tmp_path, f"{{name: x, stages: [{one}, {other}]}}")
    assert ranked(both) == ["node-a", "node-b", "node-c", "node-d"], "a spare of one launch has ranks in the other"
    assert ranked(plan(tmp_path, TAGGED)) == ["node-a", "node-b", "node-c", "node-d"]


RACKS = """
    nodes:
      node-a: {address: 10.0.0.1, vars: {rack: r1, disk: /d}}
      node-b: {address: 10.0.0.2, vars: {rack: r2}}
"""


def test_a_condition_that_asks_for_a_nodes_variable_is_told_of_the_stages_nodes(tmp_path: Path) -> None:
    for when, told in (("rack == 'r2'", "`nodes: PATTERN` chooses nodes"), ("rak == 'r2'", "known here")):
        with pytest.raises(FilesWrong) as caught:
            plan(tmp_path, f'{{name: x, stages: [{{shell: ls, when: "{when}"}}]}}', nodes=RACKS)
        assert told in (caught.value.problems[0].help or "")
    set_above = "{name: x, vars: {rack: r1}, stages: [{shell: ls, when: \"rack == 'r2'\"}]}"
    assert plan(tmp_path, set_above, nodes=RACKS).stages[1].skip == "when: rack == 'r2' does not hold"


@pytest.mark.parametrize(("name", "where"), [("disk", " on node-b"), ("dsik", "")])
def test_a_variable_that_some_nodes_lack_is_said_of_these(name: str, where: str, tmp_path: Path) -> None:
    with pytest.raises(FilesWrong) as caught:
        plan(tmp_path, f'{{name: x, stages: [{{shell: "ls {{{{ {name} }}}}{{{{ node }}}}"}}]}}', nodes=RACKS)
    (problem,) = caught.value.problems
    assert problem.message == f"the variable `{name}` is not defined{where}"


def test_what_a_shell_stage_expects_is_told_where_it_is_not_the_usual() -> None:
    assert Shell("ls").summary == "ls"
    assert Shell("ls", Expect(2, "^a")).summary == "ls  (expects exit code 2, /^a/ in its output)"


def test_values_in_a_shell_line_are_single_words_however_deep_they_lie() -> None:
    values = {"files": ["a b", "c"], "by": {"name": "$(id)", "count": 3}}
    assert _shell_quoted(values) == {"files": ["'a b'", "c"], "by": {"name": "'$(id)'", "count": 3}}
