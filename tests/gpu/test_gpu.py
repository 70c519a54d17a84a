"""What only a GPU can show: NCCL, CUDA's own clock, real text of nvidia-smi, and CUDA out of memory. All on this machine."""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import runbook
from runbook.checks.reach.gpus import judge_gpus
from runbook.diagnose.tool_outputs import read_paste
from runbook.model.inventory import Node
from runbook.parsers.nvidia_smi_facts import parse_gpus

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.xdist_group("gpu"),
    pytest.mark.filterwarnings("default"),  # what torch warns of when it looks for GPUs is not ours
]

CHECKOUT = Path(runbook.__file__).parents[1]
NODE_PROGRAMS = Path(runbook.__file__).parent / "node"
DEADLINE_S = 300.0

SWEEP = """\
name: on GPUs
stages:
  - check: connection
  - {name: sweep, check: allreduce, with: {min_bytes: 1K, max_bytes: 64M, iterations: 5, budget: 60s}}
"""

OUT_OF_MEMORY = """\
import torch
kept = []
print("step 1 loss 2.0", flush=True)
while True:
    kept.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
"""

TWO_ON_ONE = """\
import datetime, os
import torch
import torch.distributed as dist
torch.cuda.set_device(0)
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=60))
data = torch.ones(4, device="cuda")
dist.all_reduce(data)
torch.cuda.synchronize()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """runbook, by the Python that has the torch."""
    return subprocess.run(
        [sys.executable, "-m", "runbook", *map(str, words)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def run(folder: Path, playbook: str, nodes: dict[str, list[int]]) -> tuple[int, dict[str, Any], str]:
    """Exit code, result and all that was printed; every node is this machine, with these GPUs."""
    inventory = {
        "name": "gpus",
        "rendezvous": {"port": free_port(), "backend": "nccl"},
        "network": {"interface": "lo"},
        "defaults": {"connection": "local", "python": sys.executable, "workdir": str(folder / "work")},
        "nodes": {
            name: {"address": f"127.0.0.{number}", "gpus": gpus} for number, (name, gpus) in enumerate(nodes.items(), 1)
        },
    }
    (folder / "inventory.yml").write_text(json.dumps(inventory))  # which is YAML as well
    (folder / "playbook.yml").write_text(playbook)
    done = command(folder, "run", "playbook.yml", "-i", "inventory.yml", "--run-dir", "out")
    said = done.stdout + done.stderr
    result = folder / "out" / "result.json"
    assert result.is_file(), said
    return done.returncode, json.loads(result.read_text()), said


def diagnosed(folder: Path, log: Path) -> list[str]:
    done = command(folder, "diagnose", "-o", "json", log)
    return [cause["cause"] for cause in json.loads(done.stdout)["causes"]]


def nvidia_smi(*words: str) -> str:
    done = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


# NCCL.


def test_nccl_adds_up_over_every_gpu(gpus: int, tmp_path: Path) -> None:
    code, result, said = run(tmp_path, SWEEP, {"node-a": list(range(gpus))})
    assert (code, result["verdict"]) == (0, "pass"), said
    assert "nccl" in said
    events = [json.loads(line) for line in (tmp_path / "out" / "events.jsonl").read_text().splitlines()]
    rows = [event["data"]["row"] for event in events if event["event"] == "progress" and "row" in event.get("data", {})]
    assert len(rows) == 17, said  # 1 KiB to 64 MiB
    assert f"{gpus} rank{'s' * (gpus != 1)}" in said


def test_two_nodes_with_one_gpu_are_told_before_any_rank(gpus: int, tmp_path: Path) -> None:
    code, result, said = run(tmp_path, SWEEP, {"node-a": [0], "node-b": [0]})
    assert (code, result["causes"][:1]) == (1, ["duplicate-gpu"]), said


def test_what_nccl_says_of_two_ranks_on_one_gpu(gpus: int, tmp_path: Path) -> None:
    program, port = tmp_path / "train.py", free_port()
    program.write_text(TWO_ON_ONE)
    log = tmp_path / "job.log"
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "NCCL_SOCKET_IFNAME": "lo"}
    with log.open("wb") as file:
        ranks = [
            subprocess.Popen(
                [sys.executable, str(program)],
                env={**os.environ, **told, "NCCL_DEBUG": "WARN", "RANK": str(rank), "LOCAL_RANK": "0"},
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            for rank in range(2)
        ]
        try:
            codes = [rank.wait(DEADLINE_S) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    if codes == [0, 0]:
        pytest.skip("this NCCL lets two ranks share a GPU")
    assert diagnosed(tmp_path, log)[:1] == ["duplicate-gpu"], log.read_text(errors="replace")


# CUDA's clock.


def test_the_time_of_an_allreduce_is_that_of_the_gpu_and_not_of_its_launch(
    gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank's own code, with work of a known length in the place of the AllReduce, which one GPU alone need not do."""
    import torch

    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "RUNBOOK_BACKEND": "nccl"}.items():
        monkeypatch.setenv(name, value)
    source = (NODE_PROGRAMS / "rank.py").read_text()
    body, last = source.rstrip().rsplit("\n", 1)
    assert last == "main()"
    names: dict[str, Any] = {"__name__": "rank"}
    exec(compile(body, "rank.py", "exec"), names)
    worker = names["Worker"]()
    sleep: Callable[[], None] = functools.partial(torch.cuda._sleep, 200_000_000)
    worker.torch, worker.device = torch, torch.device("cuda", 0)
    worker.dist = SimpleNamespace(all_reduce=lambda data: sleep())
    sleep()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    sleep()
    torch.cuda.synchronize()
    whole = time.perf_counter() - begun
    times = worker.timed(torch.zeros(1, device=worker.device), 3)
    assert len(times) == 3
    assert all(0.5 * whole < seconds < 2 * whole for seconds in times), (whole, times)


# nvidia-smi.


@pytest.fixture(scope="module")
def facts(gpus: int) -> dict[str, Any]:
    """What the node program tells of the GPUs."""
    order = json.dumps({"run_id": "test", "deadline_s": 60})
    program = [sys.executable, str(NODE_PROGRAMS / "gpus.py"), order]
    done = subprocess.run(program, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1].partition("runbook ")[2])
    return told


def test_every_gpu_of_nvidia_smi_is_read_whole(gpus: int, facts: dict[str, Any]) -> None:
    listing = parse_gpus(facts["gpu"]["out"], facts["gpu"]["fields"], facts["gpu"]["err"])
    assert len(listing.gpus) >= gpus, facts["gpu"]
    assert (listing.garbled, listing.other, listing.lost) == ((), (), ()), facts["gpu"]
    for gpu in listing.gpus:
        assert gpu.number("memory.total"), gpu
        assert gpu.value("driver_version"), gpu


def test_real_gpus_are_judged_and_nothing_about_them_is_unknown(gpus: int, facts: dict[str, Any]) -> None:
    node = Node("node-a", "127.0.0.1", gpus=tuple(range(gpus)))
    judged = judge_gpus(node, facts)
    assert judged.unknown == (), facts
    assert judged.driver
    assert judged.cuda, facts["all"]["out"][:2000]
    assert {finding.cause for finding in judged.findings} <= {"gpu-busy"}, judged.findings  # others may compute here


@pytest.mark.parametrize("words", ["", "-q", "-L", "topo -m", "--query-gpu=index,name,memory.total --format=csv"])
def test_pasted_text_of_nvidia_smi_is_known_for_what_it_is(gpus: int, words: str) -> None:
    line = f"nvidia-smi {words}".strip()
    text = nvidia_smi(*words.split())
    found = read_paste(f"$ {line}\n{text}", "").found
    assert found, text
    reading = found[0].reading
    assert reading.tool.startswith("nvidia-smi"), reading
    assert not reading.unknown, (reading, text)
    assert not reading.faults, (reading, text)


# Out of memory.


def test_cuda_out_of_memory_has_its_name_in_a_log(gpus: int, tmp_path: Path) -> None:
    program, log = tmp_path / "train.py", tmp_path / "job.log"
    program.write_text(OUT_OF_MEMORY)
    with log.open("wb") as file:
        done = subprocess.run(
            [sys.executable, str(program)], stdout=file, stderr=subprocess.STDOUT, timeout=DEADLINE_S, check=False
        )
    assert done.returncode != 0
    assert diagnosed(tmp_path, log)[:1] == ["gpu-out-of-memory"], log.read_text(errors="replace")


def test_cuda_out_of_memory_has_its_name_in_a_launch(gpus: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OUT_OF_MEMORY)
    launch = f"{{command: [train.py], workdir: {json.dumps(str(tmp_path))}, grace: 5s}}"
    playbook = f"name: out of memory\nstages:\n  - {{name: train, launch: {launch}}}\n"
    code, result, said = run(tmp_path, playbook, {"node-a": [0]})
    assert (code, result["causes"][:1]) == (1, ["gpu-out-of-memory"]), said
