"""A `launch:` stage on its nodes: templates, launchers, and the real torch started by what they make."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from ports import free_port

from runbook.files.playbook import load_playbook
from runbook.launch.job import Job, JobProgram, make_job
from runbook.launch.launchers import CannotLaunch, launch_spec, program_words, ranks_spec
from runbook.launch.quote import Word
from runbook.launch.ranks import rank_layout
from runbook.launch.script import ScriptProcess, ScriptSpec, make_script
from runbook.model.errors import FilesWrong
from runbook.model.inventory import Inventory
from runbook.model.playbook import LaunchSettings, Stage

from .inventories import cluster, loaded, node


def job(folder: Path, launch: str, inventory: Inventory, **above: object) -> Job:
    """The job of a launch stage; `launch` is what stands below it."""
    file = folder / "playbook.yml"
    file.write_text("stages:\n- launch:\n" + "".join(f"    {line}\n" for line in dedent(launch).strip().splitlines()))
    facts = {"node_count": len(inventory.nodes), "world_size": inventory.world_size}
    stage = load_playbook(file, environ={"KEY": "{{ nobody }}"}).stages[0]
    return make_job(stage, rank_layout(inventory), facts, above)


def specs(inventory: Inventory, made: Job | None) -> list[ScriptSpec]:
    by_node = rank_layout(inventory)
    return [
        launch_spec(by_node, node_ranks, made, name="launch", made_from=("x",))
        for node_ranks in by_node.by_node.values()
    ]


TWO = cluster(
    node("node-a", vars={"data": "/a", "depth": 2}), node("node-b", "10.0.0.2", processes=3, vars={"data": "/b"})
)


def test_templates_see_the_cluster_the_node_its_vars_and_the_playbooks(tmp_path: Path) -> None:
    text = """
        command: [train.py, "{{ node }}:{{ address }}:{{ node_rank }}:{{ first_rank }}:{{ ranks_here }}:{{ gpus_here }}",
                  "{{ world_size }}", "{{ data }}", 1e-4, 0644, "{{ epochs }}", "-x={{ amp }}", "{{ amp }}", plain]
        env: {DATA: "{{ data }}/x", N: 3, SECRET: {env: KEY}}
        workdir: "{{ data }}"
    """
    made = job(tmp_path, text, TWO, epochs=0.5, amp=True)
    a, b = made.programs["node-a"], made.programs["node-b"]
    rest = ("1e-4", "0644", "0.5", "-x=true", "true", "plain")
    assert a.command == ("train.py", "node-a:10.0.0.1:0:0:1:0", "4", "/a", *rest)
    assert b.command == ("train.py", "node-b:10.0.0.2:1:1:3:0", "4", "/b", *rest)
    assert ({k: str(v) for k, v in b.env.items()}, b.workdir) == ({"DATA": "/b/x", "N": "3", "SECRET": "***"}, "/b")


def test_the_playbooks_vars_and_e_win_over_the_nodes_and_those_over_the_facts(tmp_path: Path) -> None:
    text = "command: [x, '{{ data }}', '{{ node }}', '{{ world_size }}', '{{ address }}']"
    one = cluster(node("node-a", vars={"data": "/a", "node": "mine", "world_size": 7}))
    made = job(tmp_path, text, one, data="/above")
    assert made.programs["node-a"].command == ("x", "/above", "mine", "7", "10.0.0.1")


def test_python_is_the_one_that_runs_a_program(tmp_path: Path) -> None:
    made = job(tmp_path, "command: ['{{ python }}', x.py]", cluster(node("node-a", connection="local")))
    assert made.programs["node-a"].command == (sys.executable, "x.py")


def test_nodes_with_the_same_words_share_them(tmp_path: Path) -> None:
    made = job(tmp_path, "{command: [x, '{{ world_size }}', '{{ data }}']}", TWO, data="/above")
    assert made.programs["node-a"] is made.programs["node-b"]


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        ("command: [x, '{{ nobody }}']", ["template.undefined 3:18 the variable `nobody` is not defined"]),
        ("command: [x, '{{ nodee }}', '{{ 1 + }}']", ["template.undefined 3:18 the ", "template.syntax 3:33 "]),
        ("{command: [x], env: {A: b, C: '{{ d }}'}}", ["template.undefined 3:35 the variable `d` is not"]),
        ("{command: [x], workdir: '{{ d }}'}", ["template.undefined 3:29 the variable `d` is not"]),
        ("command: [x, '{{ depth }}']", ["template.undefined 3:18 the variable `depth` is not defined on node-b"]),
        ("command: ['{{ [1] }}', '{{ none }}']", ["template.not-text 3:15 ", "template.not-text 3:28 "]),
    ],
)
def test_a_template_that_cannot_be_filled_is_told_with_its_own_place(
    launch: str, expected: list[str], tmp_path: Path
) -> None:
    with pytest.raises(FilesWrong) as caught:
        job(tmp_path, launch, TWO)
    said = [f"{p.id} {p.span.line}:{p.span.column} {p.message}" for p in caught.value.problems if p.span]
    assert len(said) == len(expected)
    assert all(one.startswith(start) for one, start in zip(said, expected, strict=True)), said


def test_many_nodes_with_one_mistake_are_one_problem(tmp_path: Path) -> None:
    nodes = [node(f"n{number}", f"10.0.0.{number + 1}") for number in range(9)]
    inventory = cluster(node("n9", "10.0.1.1", vars={"x": 1}), *nodes)
    with pytest.raises(FilesWrong) as caught:
        job(tmp_path, "command: [a, '{{ x }}']", inventory)
    (problem,) = caught.value.problems
    assert problem.message.endswith(" on n[0-8]")


# What the launchers make of it.


def launched(launcher: str, *command: str, inventory: Inventory = TWO) -> list[ScriptSpec]:
    programs = {one.name: JobProgram(command, {"MY": "1"}, None) for one in inventory.nodes}
    return specs(inventory, Job(Stage("train", "launch", launch=LaunchSettings(launcher)), programs))


def test_direct_starts_one_process_a_rank() -> None:
    a, b = launched("direct", "python", "train.py", "-x")
    assert (a.command, b.command) == (("python", "train.py", "-x"),) * 2
    assert a.processes == (ScriptProcess(0, {"RANK": "0", "LOCAL_RANK": "0"}),)
    assert b.processes == tuple(ScriptProcess(n, {"RANK": str(n + 1), "LOCAL_RANK": str(n)}) for n in range(3))
    assert (b.environment["WORLD_SIZE"], b.environment["MY"]) == ("4", "1")
    assert set(a.unset_prefixes) == {"TORCHELASTIC_", "PET_"}


@pytest.mark.parametrize(
    ("python", "activate", "connection", "ends"),
    [
        ("/opt/venv/bin/python", None, "ssh", "/opt/venv/bin/python"),
        ("python3", "conda activate x", "local", "python3"),
        ("python3", None, "ssh", "python3"),
    ],
)
def test_a_script_is_run_by_the_nodes_python(python: str, activate: str | None, connection: str, ends: str) -> None:
    one = cluster(node("node-a", python=python, activate=activate, connection=connection))
    for launcher in ("direct", "jax"):
        (spec,) = launched(launcher, "src/train.py", "x.py", inventory=one)
        assert spec.command == (ends, "src/train.py", "x.py")


@pytest.mark.parametrize("launcher", ["torchrun", "torch.distributed.launch"])
def test_torch_starts_the_ranks_of_a_node(launcher: str) -> None:
    a, b = launched(launcher, "python", "train.py", "-x")
    dash = "-" if launcher == "torchrun" else "_"
    options = [f"--nnodes=2 --nproc{dash}per{dash}node={n} --node{dash}rank={r}" for n, r in ((1, 0), (3, 1))]
    where = f"--master{dash}addr=10.0.0.1 --master{dash}port=29500"
    module = "torch.distributed.run" if launcher == "torchrun" else launcher
    for spec, own in zip((a, b), options, strict=True):
        assert " ".join(spec.command or ()) == f"python3 -m {module} {own} {where} train.py -x"
        assert spec.processes == (ScriptProcess(0),)
        assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"} & spec.environment.keys()
        assert {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"} <= set(spec.unset)
        assert "PET_" in spec.unset_prefixes
    assert (b.environment["NODE_RANK"], b.environment["MY"]) == ("1", "1")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("python train.py -x", "train.py -x"),
        ("python3.11 -u train.py", "train.py"),
        ("/opt/bin/python -m pkg.train -x", "-m pkg.train -x"),
        ("train.py -x", "train.py -x"),
        ("./train.py", "./train.py"),
        ("python ./train", "./train"),
        ("python -O train.py", "--no-python python -O train.py"),
        ("python -c pass", "--no-python python -c pass"),
        ("python", "--no-python python"),
        ("python -m", "--no-python python -m"),
        ("./a.out -x", "--no-python ./a.out -x"),
        ("pythonista x.py", "--no-python pythonista x.py"),
    ],
)
def test_a_command_as_torch_launchers_take_it(command: str, words: str) -> None:
    assert program_words("torchrun", tuple(command.split())) == tuple(words.split())
    if words.startswith("--no-python"):
        with pytest.raises(CannotLaunch, match="script or a module"):
            program_words("torch.distributed.launch", tuple(command.split()))
    else:
        assert program_words("torch.distributed.launch", tuple(command.split())) == tuple(words.split())


def test_the_python_that_a_command_names_by_its_path_runs_the_launcher() -> None:
    assert (launched("torchrun", "/opt/bin/python", "t.py")[0].command or ())[:2] == ("/opt/bin/python", "-m")
    assert (launched("torchrun", "python", "t.py")[0].command or ())[:2] == ("python3", "-m")


@pytest.mark.parametrize(
    ("address", "coordinator"), [("10.0.0.1", "10.0.0.1:29500"), ("fd00::1", "[fd00::1]:29500"), ("h", "h:29500")]
)
def test_jax_is_told_the_coordinator_and_its_devices(address: str, coordinator: str) -> None:
    inventory = cluster(node("node-a", address, gpus=(4, 2)), node("node-b", "10.0.0.2"))
    a, b = launched("jax", "train.py", inventory=inventory)
    assert a.environment["JAX_COORDINATOR_ADDRESS"] == b.environment["JAX_COORDINATOR_ADDRESS"] == coordinator
    # CUDA_VISIBLE_DEVICES=2,4 makes them devices 0 and 1 for the program.
    assert [process.environment for process in a.processes] == [
        {"RANK": "0", "LOCAL_RANK": "0", "JAX_LOCAL_DEVICE_IDS": "0"},
        {"RANK": "1", "LOCAL_RANK": "1", "JAX_LOCAL_DEVICE_IDS": "1"},
    ]
    assert [dict(process.environment) for process in b.processes] == [{"RANK": "2", "LOCAL_RANK": "0"}]


def test_what_the_guards_are_told() -> None:
    here = cluster(node("a", "127.0.0.1", connection="local"), node("b", "127.0.0.2", connection="local"))
    (a, b), (c, d) = specs(TWO, None), specs(here, None)
    for spec, port, several in ((a, 29500, True), (b, None, True), (c, 29500, False), (d, None, False)):
        assert spec.guards is not None
        assert (spec.guards.port, spec.guards.several_nodes) == (port, several)
    by_hand = cluster(node("a", env={"MASTER_PORT": "1234", "MASTER_ADDR": "10.9.9.9"}), node("b", "10.0.0.2"))
    guards = specs(by_hand, None)[0].guards
    assert guards is not None
    assert (guards.address, guards.port) == ("10.9.9.9", 1234)


def test_without_a_job_the_command_comes_later() -> None:
    assert [(spec.command, len(spec.processes)) for spec in specs(TWO, None)] == [(None, 1), (None, 3)]


def test_the_script_of_our_own_ranks() -> None:
    by_node = rank_layout(TWO)
    spec = ranks_spec(by_node, by_node.by_node["node-b"], name="full", made_from=("x",))
    assert spec.command == ("python3", "-u", "./rank.py")
    assert (spec.guards, spec.workdir, len(spec.processes)) == (None, None, 3)


# The real thing.

PROGRAM = """\
import json, os, sys
import torch
import torch.distributed as dist
dist.init_process_group(os.environ["RUNBOOK_BACKEND"])
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK")
told = {name: int(os.environ[name]) for name in names}
say = {"argv": sys.argv[1:], "sum": total.item(), **told}
with open("said-%d.json" % dist.get_rank(), "w") as file:
    json.dump(say, file)
dist.barrier()
dist.destroy_process_group()
sys.exit(int(sys.argv[-1]))
"""

INVENTORY = """
    rendezvous: {port: PORT, backend: gloo}
    network: {interface: lo}
    defaults: {connection: local}
    nodes:
      node-b: {address: 127.0.0.2, processes: 3}
      node-a: {address: 127.0.0.1}
"""


def run_on_both(folder: Path, launch: str, stale: Mapping[str, str]) -> tuple[list[int], list[dict[str, Any]], str]:
    """Exit codes of the two nodes' scripts, what every rank said, and what they printed."""
    text = INVENTORY.replace("PORT", str(free_port())).replace("rendezvous: {", "rendezvous: {master: node-a, ")
    inventory = loaded(folder, text)
    made = job(folder, launch, inventory)
    started: list[subprocess.Popen[str]] = []
    for spec in specs(inventory, made):
        here = folder / spec.node
        here.mkdir()
        (here / "train.py").write_text(PROGRAM)
        script = make_script(spec, "sh")
        for name, data in script.files.items():
            (here / name).write_bytes(data)
        started.append(
            subprocess.Popen(
                ["sh", str(here / script.name)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                env={"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder), **stale},
            )
        )
    try:
        printed = "".join(process.communicate(timeout=120)[0] for process in started)
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    codes = [process.returncode for process in started]
    said = sorted(folder.glob("*/said-*.json"))
    return codes, sorted((json.loads(file.read_text()) for file in said), key=lambda one: int(one["RANK"])), printed


def told(rank: int, argv: Sequence[str]) -> dict[str, Any]:
    node_rank, local_rank, here = (0, 0, 1) if rank == 0 else (1, rank - 1, 3)
    numbers = {"RANK": rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": here}
    return {"argv": list(argv), "sum": 10.0, **numbers, "NODE_RANK": node_rank, "GROUP_RANK": node_rank}


STALE = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "old", "PET_NNODES": "7", "RANK": "5"}
"""What a shell inside another job still has set."""


@pytest.mark.parametrize(
    ("launcher", "command", "passed"),
    [
        pytest.param("direct", "[train.py, a b, 0]", (), marks=pytest.mark.thorough),
        pytest.param("torchrun", "[python, train.py, a b, 0]", (), marks=pytest.mark.thorough),
        pytest.param("torchrun", "[python, -m, train, a b, 0]", (), marks=pytest.mark.thorough),
        pytest.param(
            *("torchrun", '[sh, -c, \'exec "$0" train.py "$@"\', PYTHON, a b, 0]', ()), marks=pytest.mark.thorough
        ),
        pytest.param(
            *("torch.distributed.launch", "[train.py, a b, 0]", ("--local-rank={}",)), marks=pytest.mark.thorough
        ),
    ],
)
def test_four_uneven_ranks_meet_in_order_whoever_starts_them(
    launcher: str, command: str, passed: tuple[str, ...], tmp_path: Path
) -> None:
    launch = f"{{launcher: {launcher}, command: {command.replace('PYTHON', sys.executable)}}}"
    codes, said, printed = run_on_both(tmp_path, launch, STALE)
    assert codes == [0, 0], printed
    local_ranks = [0, 0, 1, 2]
    assert said == [told(r, [*(p.format(local_ranks[r]) for p in passed), "a b", "0"]) for r in range(4)]


@pytest.mark.thorough
@pytest.mark.parametrize(("launcher", "code"), [("direct", 7), ("torchrun", 1)])
def test_the_exit_code_of_a_failed_rank_comes_back(launcher: str, code: int, tmp_path: Path) -> None:
    codes, said, printed = run_on_both(tmp_path, f"{{launcher: {launcher}, command: [train.py, 7]}}", {})
    assert len(said) == 4
    assert codes == [code, code], printed


def test_only_the_program_of_a_job_is_a_place_and_arguments_arrive_as_written(tmp_path: Path) -> None:
    one = cluster(node("node-a"))

    def made(workdir: str | None, *command: str) -> tuple[str, ...]:
        launch = f"command: {json.dumps(list(command))}\n" + (f"workdir: {workdir}\n" if workdir else "")
        return specs(one, job(tmp_path, launch, one))[0].command or ()

    words = made("/srv", "./train", "./conf.yml", "~/data")
    assert words == ("/srv/train", "./conf.yml", "~/data")
    assert [isinstance(word, Word) for word in words] == [False, True, True]
    words = made("/srv", "python", "-u", "~/train.py", "~/conf.py")
    assert [isinstance(word, Word) for word in words] == [False, True, False, True]
    words = made("/srv", "~/train.py", "~/data")
    assert [isinstance(word, Word) for word in words] == [False, False, True]
    assert made("work", "./train")[0] == "./work/train"
    assert made("~/work", "./train")[0] == "~/work/train"
    assert made(None, "./train")[0] == "./train"


@pytest.mark.parametrize("launcher", ["direct", "jax"])
def test_a_bare_python_is_the_one_that_the_inventory_names(tmp_path: Path, launcher: str) -> None:
    launch = f"launcher: {launcher}\ncommand: [python, train.py]"
    for python, first in (("/opt/venv/bin/python", "/opt/venv/bin/python"), ("python3", "python")):
        one = cluster(node("node-a", python=python))
        assert (specs(one, job(tmp_path, launch, one))[0].command or ())[0] == first
