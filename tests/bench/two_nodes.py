"""A healthy two-node run, all stages of the shipped playbook, against bare torchrun doing the same AllReduces."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import yaml
from lab import Host, Lab

from .cost import BenchError, Cost, measure, tail
from .table import ratio, table

GOAL = 1.3
DEADLINE_S = 180.0
SHIPPED = Path(__file__).resolve().parents[2] / "playbooks" / "two_node_allreduce.yml"
PORT = "29500"
LARGEST = 16 << 20
BUDGET = "10m"  # never the limit here: both do the same sizes and iterations, which is looked at afterwards


@dataclass(frozen=True, slots=True)
class Sweep:
    sizes: tuple[int, ...]
    iterations: int


SMALL = Sweep(tuple(1 << power for power in range(10, 21)), 3)
FULL = Sweep(tuple(1 << power for power in range(10, 25)), 20)
SWEEPS = (SMALL, FULL)


def two_nodes(lab: Lab, rounds: int) -> list[str]:
    playbook, inventory = write_playbook(lab), lab.inventory()
    for host in lab:
        host.write("~/bare_allreduce.py", Path(__file__).with_name("bare_allreduce.py").read_text(), user=lab.user)
    ours: list[Cost] = []
    theirs: list[Cost] = []
    for turn in range(rounds + 1):
        one, other = run_runbook(lab, playbook, inventory, turn), run_torchrun(lab)
        if turn:  # the first one reads torch from the disk
            ours.append(one)
            theirs.append(other)
    stages = "reach, " + ", ".join(str(stage.get("name", stage.get("check"))) for stage in shipped()["stages"])
    return [
        f"Two nodes over SSH, {sum(len(sweep.sizes) for sweep in SWEEPS)} sizes up to {LARGEST >> 20} MiB, {rounds} rounds",
        f"  runbook does: {stages}; torchrun does the AllReduces alone",
        *table({"runbook run": ours, "torchrun": theirs}, cpu_and_memory=False),
        ratio("runbook's wall time over torchrun's", ours, theirs, at_most=GOAL).line(),
    ]


def shipped() -> dict[str, list[dict[str, object]]]:
    content: dict[str, list[dict[str, object]]] = yaml.safe_load(SHIPPED.read_text())
    return content


def write_playbook(lab: Lab) -> Path:
    """The shipped playbook, its sweeps set to what torchrun will do, with time for all of it."""
    content = shipped()
    sweeps = [stage for stage in content["stages"] if stage.get("check") == "allreduce"]
    if len(sweeps) != len(SWEEPS):
        raise BenchError(f"the shipped playbook has {len(sweeps)} allreduce stages, the benchmark knows {len(SWEEPS)}")
    for stage, sweep in zip(sweeps, SWEEPS, strict=True):
        stage["with"] = {
            "min_bytes": sweep.sizes[0],
            "max_bytes": sweep.sizes[-1],
            "iterations": sweep.iterations,
            "budget": BUDGET,
        }
    content.pop("inventory")
    path = lab.tmp / "two_node_allreduce.yml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def run_runbook(lab: Lab, playbook: Path, inventory: Path, turn: int) -> Cost:
    folder = lab.tmp / f"run-{turn}"
    argv = [sys.executable, "-m", "runbook", "run", str(playbook), "-i", str(inventory), "--run-dir", str(folder)]
    log = lab.tmp / "runbook.log"
    cost = measure("runbook", argv, env=lab.environment(), cwd=lab.tmp, log=log, deadline_s=DEADLINE_S)
    result = json.loads((folder / "result.json").read_text())
    done = [stage["outcomes"][0]["metrics"]["rows"] for stage in result["stages"] if stage["check"] == "allreduce"]
    if result["verdict"] != "pass" or tuple(map(as_sweep, done)) != SWEEPS:
        raise BenchError(f"runbook did not do what it was asked{tail(log)}")
    return cost


def as_sweep(rows: list[dict[str, int]]) -> Sweep:
    return Sweep(tuple(row["size"] for row in rows), min(row["iterations"] for row in rows))


def run_torchrun(lab: Lab) -> Cost:
    """torchrun on both hosts, started at the same time, in place: without SSH and without a push."""
    work = json.dumps([[sweep.sizes, sweep.iterations] for sweep in SWEEPS])
    master = lab.hosts[0].address
    outputs = [(lab.tmp / f"torchrun-{host.name}.log") for host in lab]
    begun = time.monotonic()
    running = [
        start_torchrun(host, rank, master, work, log) for rank, (host, log) in enumerate(zip(lab, outputs, strict=True))
    ]
    codes = [wait(process, begun + DEADLINE_S) for process in running]
    wall = time.monotonic() - begun
    if codes != [0, 0]:
        raise BenchError(f"torchrun ended with {codes}" + "".join(map(tail, outputs)))
    lines = chain.from_iterable(log.read_text(errors="replace").splitlines() for log in outputs)
    told = [json.loads(line.partition(" ")[2]) for line in lines if line.startswith("sweep ")]
    if tuple(Sweep(tuple(each["sizes"]), each["iterations"]) for each in told) != SWEEPS:
        raise BenchError("torchrun did not do what it was asked" + "".join(map(tail, outputs)))
    return Cost(wall, 0.0, 0)


def start_torchrun(host: Host, rank: int, master: str, work: str, log: Path) -> subprocess.Popen[str]:
    # The same options that `torchrun` takes: it is this module.
    argv = [host.lab.python, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    argv += ["--node-rank", str(rank), "--master-addr", master, "--master-port", PORT]
    with log.open("w") as out:
        return host.popen(
            [*argv, f"{host.home}/bare_allreduce.py", work],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={"GLOO_SOCKET_IFNAME": host.interface},
        )


def wait(process: subprocess.Popen[str], deadline: float) -> int:
    try:
        return process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        raise BenchError(f"torchrun did not end within {DEADLINE_S:g} s") from None
