"""Digits that Python takes for a number, or refuses to read, in whatever others write: a sentence, and never a crash."""

from __future__ import annotations

import ast
import contextlib
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import one_in
from syntax_trees import SOURCE, nodes

import runbook
from runbook.cli.main import main
from runbook.importers.pods import draft_of_pods
from runbook.model.errors import Unreachable
from runbook.model.inventory import Kubernetes
from runbook.model.units import MAX_NUMBER, parse_whole_number
from runbook.transport.kubernetes_pods import parse_pods, pod_failure
from runbook.transport.slurm import no_step_failure, node_fault, parse_slurm_job, parse_slurm_nodes

from .test_hostile_node import MISSING, altered, changes, places

PACKAGE = Path(runbook.__file__).parent
ODD = ("²", "٣", "9" * 5000, "0" * 5000, "１", "-1", "1e5", "", "1_0", " 1", "nan")


@given(st.text(max_size=20) | st.sampled_from(ODD) | st.integers().map(str))
def test_a_number_is_what_ascii_digits_write(text: str) -> None:
    found = parse_whole_number(text)
    assert (found is None) == (re.fullmatch("[0-9]+", text) is None)
    if found is not None and len(text) < 15:
        assert found == int(text)
    assert found is None or found <= MAX_NUMBER


def _tests_and_reads(function: ast.AST) -> list[str]:
    """Texts that are asked for digits, and given to `int` in the same function."""
    asked, read = set(), set()
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("isdigit", "isdecimal", "isnumeric"):
                asked.add(ast.unparse(node.func.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "int" and node.args:
            read.add(ast.unparse(node.args[0]))
    return sorted(asked & read)


BOUNDED = {
    "model/units.py": "it is the one place",
    "model/node_ranges.py": "FIELD takes 18 digits 0 to 9",
    "serve/guards.py": "asked by `len` as well, of a query",
    "serve/settings.py": "the command line's, whose error is caught",
    "serve/pages/groups.py": "asked by `len` as well",
    "lint/rules/commands.py": "asked by `isascii` and `len` as well",
    "checks/network/ephemeral_ports.py": "asked by `len` as well",
    "diagnose/all_rules.py": "our own rules",
    "firewall/collected_rules.py": "asked by `len` as well",
    "agent/permissions.py": "ASCII bytes, of which 12 are read",
}


@SOURCE
def test_nothing_that_others_write_is_read_by_int_because_it_is_digits() -> None:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if name.startswith("node/"):  # runs on the node, and reads its kernel
            continue
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        texts = [text for one in nodes(path) if isinstance(one, functions) for text in _tests_and_reads(one)]
        if texts and name not in BOUNDED:
            found[name] = texts
    assert not found, "whole_number() of model/units.py reads these"


SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=NUMBER
#SBATCH --nodelist=gn[1-2]
#SBATCH --ntasks=NUMBER
#SBATCH --ntasks-per-node=NUMBER
#SBATCH --gres=gpu:NUMBER
export MASTER_PORT=NUMBER
srun torchrun --nnodes NUMBER --nproc_per_node NUMBER --rdzv-endpoint h:NUMBER train.py
"""
IMPORTED = {
    "a batch script": SCRIPT,
    "a shell script": SCRIPT.replace("#SBATCH", "#").replace("srun ", ""),
    "a hostfile": "gn1 slots=NUMBER\ngn2:NUMBER\nroot@gn3\n",
    "an Ansible inventory": "[g]\ngn1 ansible_port=NUMBER gpus=NUMBER\n[g:vars]\nansible_ssh_common_args='-o ConnectTimeout=NUMBER -p NUMBER -o Port=NUMBER'\n",
    "a host list": "gn[NUMBER-NUMBER],x[1-NUMBER]\n",
    "Ansible's ranges": "[g]\ngn[NUMBER:NUMBER:NUMBER].x\n",
}
COMMANDS = {
    "lint of an inventory": (
        "name: x\nnodes: {a: {address: 10.0.0.1, gpus: NUMBER, ssh: {port: NUMBER}}, 'n[1-NUMBER]': {}}\n"
        "env: {NCCL_IB_HCA: 'mlx5_0:NUMBER', NCCL_IB_GID_INDEX: NUMBER, NCCL_DEBUG: NUMBER, CUDA_VISIBLE_DEVICES: NUMBER}\n"
        "network: {ports: NUMBER-NUMBER}\nrendezvous: {port: NUMBER}\n"
    ),
    "lint of a playbook": (
        "name: x\ninventory: x.yml\nstages:\n- {check: ping, timeout: NUMBERs}\n- {check: allreduce, with: {min_bytes: NUMBERK, budget: NUMBER}}\n"
        "- {shell: 'torchrun --nproc_per_node NUMBER --master_port NUMBER x.py', expect: {exit: NUMBER}}\n"
    ),
}


def _ends(*words: str) -> None:
    with contextlib.suppress(SystemExit):
        assert main([*words]) in (0, 1, 2)


@pytest.mark.parametrize("number", one_in(3, ODD))
@pytest.mark.parametrize("kind", IMPORTED)
def test_odd_numbers_in_what_is_imported(
    kind: str, number: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text(IMPORTED[kind].replace("NUMBER", number))
    _ends("inventory", "import", str(tmp_path / "file"))
    assert "Traceback" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("number", one_in(3, ODD))
@pytest.mark.parametrize("kind", COMMANDS)
def test_odd_numbers_in_our_own_files(
    kind: str, number: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.yml").write_text(COMMANDS[kind].replace("NUMBER", number))
    _ends("lint", str(tmp_path))
    _ends("inventory", "list", "-i", str(tmp_path / "x.yml"))
    assert "Traceback" not in "".join(capsys.readouterr())


# What the programs say that know a cluster.

POD: dict[str, Any] = {
    "kind": "Pod",
    "metadata": {"name": "train-0", "namespace": "ml", "uid": "u", "labels": {"a": "b"}, "annotations": {"c": "d"}},
    "spec": {
        "nodeName": "m1",
        "restartPolicy": "Always",
        "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8"}}}, {"name": "beside"}],
    },
    "status": {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "hostIP": "10.0.1.1",
        "reason": "r",
        "message": "m",
        "conditions": [{"type": "PodScheduled", "status": "True", "message": "x"}],
        "containerStatuses": [
            {
                "name": "main",
                "restartCount": 1,
                "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
                "lastState": {"terminated": {"exitCode": 1, "message": "m"}},
            }
        ],
    },
}
JOB = """\
JobId=7 JobName=train
   UserId=ann(1000) GroupId=ann(1000)
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 TimeLimit=01:00:00
   NodeList=gn[01-02]
     Nodes=gn[01-02] CPU_IDs=0-3 Mem=0 GRES=gpu:a100:2(IDX:0-1)
"""
NODE = (
    "NodeName=gn01 Arch=x86_64\n   NodeAddr=10.0.0.1 NodeHostName=gn01\n   State=IDLE+DRAIN*\n   Reason=bad disk [x]\n"
)


def _every_pod(text: str) -> None:
    pods = []
    with contextlib.suppress(Unreachable):
        pods = parse_pods(text)
    for pod in pods:
        pod_failure(pod, Kubernetes(namespace=pod.namespace), f"the pod {pod.name}")
        assert isinstance(pod.says, str)
        assert pod.restarts_soon in (True, False)
    if pods:
        draft_of_pods(pods, "a=b", None)


def test_a_pod_as_no_cluster_describes_it() -> None:
    _every_pod(json.dumps(POD))
    assert parse_pods(json.dumps(POD))[0].gpus == 8
    for at in places(POD):
        value: Any = POD
        for step in at:
            value = value[step]
        for _, change in changes(value):
            made = altered(POD, at, change)
            if made is not MISSING:
                _every_pod(json.dumps(made))
    for text in ("[" * 100_000, '{"kind": ' * 50_000, "7", "null", '{"kind": "List", "items": 7}'):
        _every_pod(text)


def test_a_job_as_no_slurm_describes_it() -> None:
    """Also such that are far too large: GPUs and nodes stand there as ranges."""
    chance = random.Random(7)
    job = parse_slurm_job(JOB, "7")
    assert (job.nodes, job.gpus["gn02"]) == (("gn01", "gn02"), (0, 1))
    texts = [re.sub(r"[0-9]+", odd, text) for text in (JOB, NODE) for odd in ODD]
    texts += [
        text.replace("0-1", wide) for text in (JOB,) for wide in ("0-999999999999", "5-1", ",".join(["0-900"] * 9999))
    ]
    for text in (JOB, NODE):
        for _ in range(300):
            at = chance.randrange(len(text))
            texts.append(
                text[:at]
                + chance.choice(["", "\0", "[", "=", "\n", "²", "(", "9" * 99])
                + text[at + chance.randrange(9) :]
            )
    for text in texts:
        with contextlib.suppress(Unreachable):
            no_step_failure(parse_slurm_job(text, "7"), "gn01")
        with contextlib.suppress(Unreachable):
            for node in parse_slurm_nodes(text).values():
                node_fault(node)
