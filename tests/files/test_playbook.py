from __future__ import annotations

import re
from pathlib import Path

import pytest

from runbook.files.templating import fill_templates
from runbook.model.errors import Span
from runbook.model.playbook import Expect, LaunchSettings, Watch
from runbook.model.secrets import Secret

from .write import inventory, playbook, playbook_problems

CONTRACT = """\
# yaml-language-server: $schema=../schemas/playbook.schema.json
name: Two-node AllReduce
inventory: ../inventories/localhost.yml
nodes: all
vars: {iterations: 20}
stages:
  - check: ping
  - {check: port, timeout: 20s}
  - check: firewall
  - check: ibstat
  - check: connection
  - {name: small AllReduce, check: allreduce, with: {min_bytes: 1K, max_bytes: 1M, iterations: 3}}
  - {name: full AllReduce, check: allreduce, tags: [perf],
     with: {min_bytes: 1K, max_bytes: 1G, iterations: "{{ iterations }}", min_busbw_gbytes: 20}}
"""


def test_the_playbook_of_the_contract(tmp_path: Path) -> None:
    found = playbook(tmp_path, CONTRACT)
    file = str(tmp_path / "playbook.yml")
    assert (found.name, found.inventory, found.nodes) == ("Two-node AllReduce", "../inventories/localhost.yml", "all")
    assert found.vars == {"iterations": 20}
    assert [stage.name for stage in found.stages] == [
        *("ping", "port", "firewall", "ibstat", "connection", "small AllReduce", "full AllReduce")
    ]
    assert found.stages[1].timeout_s == 20
    full = found.stages[-1]
    assert (full.kind, full.check, full.tags) == ("check", "allreduce", ("perf",))
    assert full.arguments == {
        "min_bytes": "1K",
        "max_bytes": "1G",
        "iterations": "{{ iterations }}",
        "min_busbw_gbytes": 20,
    }
    assert full.span == Span(file, 13, 5, 54)
    assert full.argument_spans["iterations"] == Span(file, 14, 55, 18)
    assert found.source == file


def test_names_are_made_unique(tmp_path: Path) -> None:
    found = playbook(
        tmp_path,
        """\
        stages:
          - check: ping
          - {name: ping 2, check: ping}
          - check: ping
          - shell: "true"
          - shell: "true"
          - launch: {command: [x]}
          - {name: shell, shell: "true"}
        """,
    )
    assert [stage.name for stage in found.stages] == [
        *("ping", "ping 2", "ping 3", "shell 2", "shell 3", "launch", "shell")
    ]


def test_a_shell_stage(tmp_path: Path) -> None:
    found = playbook(
        tmp_path,
        """\
        stages:
          - shell: nvidia-smi -L
            expect: {exit: 0, stdout: "^GPU [0-7]"}
            tags: "gpu, smoke"
            when: true
            nodes: rack1
            on_failure: continue
          - {shell: "true", when: "x > 1"}
        """,
    )
    stage = found.stages[0]
    assert (stage.kind, stage.shell, stage.check) == ("shell", "nvidia-smi -L", None)
    assert stage.expect == Expect(0, "^GPU [0-7]")
    assert (stage.tags, stage.when, stage.nodes, stage.on_failure) == (("gpu", "smoke"), "true", "rack1", "continue")
    assert (found.stages[1].when, found.stages[1].expect) == ("x > 1", Expect())


def test_a_launch_stage_keeps_every_word_as_typed(tmp_path: Path) -> None:
    found = playbook(
        tmp_path,
        """\
        stages:
          - launch:
              launcher: torchrun
              command: [train.py, --lr, 1e-4, --wd, 1.50, --amp, true, --mode, 0644, "{{ x }}"]
              env: {OMP_NUM_THREADS: 08, LR: 1.50, KEY: {env: MY_KEY}}
              workdir: /srv
              retries: 2
              start_timeout: 2m
          - launch: {command: [a]}
        """,
        MY_KEY="hunter2",
    )
    launch = found.stages[0].launch
    env = launch.env
    assert launch == LaunchSettings(
        launcher="torchrun",
        command=("train.py", "--lr", "1e-4", "--wd", "1.50", "--amp", "true", "--mode", "0644", "{{ x }}"),
        env=env,
        workdir="/srv",
        retries=2,
        start_timeout_s=120.0,
    )
    assert (env["OMP_NUM_THREADS"], env["LR"]) == ("08", "1.50")
    assert isinstance(env["KEY"], Secret)
    assert found.stages[1].launch == LaunchSettings(
        launcher="direct",
        command=("a",),
        env={},
        workdir=None,
        retries=0,
        start_timeout_s=None,
        rendezvous_timeout_s=120.0,
        grace_s=30.0,
        detach=False,
        barrier="controller",
        barrier_folder=None,
        watch=None,
        spares=(),
    )


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("name: x", ["playbook.missing-key"]),
        ("stages: []", ["playbook.empty"]),
        ("stages:", ["playbook.wrong-type"]),
        ("stages: {check: ping}", ["playbook.wrong-type"]),
        ("stages: [{}]", ["playbook.stage-kind"]),
        ("stages: [{check: ping, launch: {command: [x]}}]", ["playbook.stage-kind"]),
        ("stages: [{check: ping, timeout: 0}]", ["playbook.duration"]),
        ("stages: [{check: ping, when: [x]}]", ["playbook.wrong-type"]),
        ("stages: [{check: ping, nodes: 5}]", ["playbook.wrong-type"]),
        ("stages: [{launch: {command: []}}]", ["playbook.empty"]),
        ("stages: [{launch: {command: [[x]], env: {A: }}}]", ["playbook.wrong-type", "playbook.wrong-type"]),
        ("stages: [{launch: {command: [x], start_timeout: soon}}]", ["playbook.duration"]),
        ("stages: [{launch: {command: [x], watch: {stall: soon}}}]", ["playbook.duration"]),
        ("stages: [{launch: {command: [x], watch: {progress: 'step ('}}}]", ["playbook.bad-regex"]),
        ("stages: [{launch: {command: [x], watch: {progress: 'step'}}}]", ["playbook.bad-regex"]),
        (
            "stages: [{name: a, check: ping}, {name: a, check: ping}, {name: a, check: ping}]",
            ["playbook.duplicate-stage"] * 2,
        ),
        ("stages: [ping, 5, null, [x]]", ["playbook.wrong-type"] * 4),
    ],
)
def test_what_is_refused(text: str, ids: list[str]) -> None:
    assert playbook_problems(text) == ids


def test_pairs_of_a_stage_is_an_argument_of_its_check(tmp_path: Path) -> None:
    stages = "stages:\n  - {check: links, pairs: all}\n  - {check: links, with: {seconds: 2s}}\n"
    first, second = playbook(tmp_path, stages).stages
    assert first.arguments == {"pairs": "all"}
    assert first.argument_spans["pairs"] == Span(str(tmp_path / "playbook.yml"), 2, 27, 3)
    assert second.arguments == {"seconds": "2s"}


def test_pairs_is_auto_or_all_and_of_a_check() -> None:
    text = "stages:\n  - {check: links, pairs: some}\n  - {shell: ls, pairs: all}\n  - {check: reach, pairs: all}\n"
    assert playbook_problems(text) == ["playbook.bad-value", "playbook.misplaced-key", "playbook.misplaced-key"]


@pytest.mark.parametrize(
    "key",
    [
        "with: {}",
        "pairs: all",
        "expect: {exit: 7}",
        "when: 'true'",
        "timeout: 1m",
        "nodes: all",
        "on_failure: continue",
    ],
)
def test_what_does_nothing_at_reach_is_refused(key: str) -> None:
    assert playbook_problems(f"stages:\n  - {{check: reach, {key}}}\n") == ["playbook.misplaced-key"]


def test_what_a_launch_is_watched_for(tmp_path: Path) -> None:
    text = r"""
        stages:
          - launch: {command: [a], watch: {}}
          - launch: {command: [a], watch: {stall: 10m, progress: 'it (\d+)', on_stall: retry, stacks: false}}
        """
    watched, more = (stage.launch.watch for stage in playbook(tmp_path, text).stages)
    assert watched == Watch(stall_s=None, progress=None, on_stall="report", stacks=True, baseline_s=600.0)
    assert more == Watch(600.0, re.compile(r"it (\d+)"), on_stall="retry", stacks=False, baseline_s=600.0)


def test_a_version_in_vars_keeps_its_last_zero(tmp_path: Path) -> None:
    of_node = inventory(tmp_path, "defaults: {vars: {torch: 2.10, list: [1.20]}}\nnodes: {a: }\n").nodes[0].vars
    own = playbook(tmp_path, "vars: {python: 3.10}\nstages: [{check: ping}]\n").vars
    assert (
        fill_templates("{{ torch }} {{ list[0] }} {{ python }} {{ python > 3 }}", {**of_node, **own})
        == "2.10 1.20 3.10 true"
    )
