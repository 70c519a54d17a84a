"""What a run over hundreds of nodes costs the controller, and whether that grows like their number.

The nodes are those of a farm, a program beside it that answers as their supervisors would, so all of it is the controller's own work: no
login, no network. CPU time, since the farm has the machine as well.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .cost import BenchError, tail
from .farm import address_of, name_of
from .table import verdict

SIZES = (250, 500, 1000)
STAGES = ("port", "firewall", "ibstat")
DEADLINE_S = 600.0
TESTS = Path(__file__).resolve().parents[1]

MOST_CPU_S = 60.0
MOST_MS = 25.0
BASE_MIB, MIB_A_NODE = 60.0, 0.3
LINEAR = 1.15

PAIRS = re.compile(r"([\d,]+) of [\d,]+ pairs")


def farmed(nodes: int, stages: tuple[str, ...] = STAGES, *, count_calls: bool = False) -> dict[str, Any]:
    """One run over so many nodes, as `simulated` tells it."""
    with tempfile.TemporaryDirectory(prefix="runbook-farm-") as name:
        folder = Path(name)
        inventory, playbook, socket, log = (
            folder / part for part in ("inventory.yml", "playbook.yml", "socket", "log")
        )
        inventory.write_text(
            "name: farm\nrendezvous: {port: 29500, backend: gloo}\nnetwork: {interface: eth0, ports: 29500-29510}\n"
            "infiniband: {hca: mlx5, min_rate_gbps: 200}\ndefaults: {workdir: /home/x/.runbook}\nnodes:\n"
            + "".join(f"  {name_of(one)}: {{address: {address_of(one)}}}\n" for one in range(1, nodes + 1))
        )
        playbook.write_text("name: farm\nstages:\n" + "".join(f"  - check: {stage}\n" for stage in stages))
        farm = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("farm.py")), str(socket)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert farm.stdin is not None
        assert farm.stdout is not None
        try:
            farm.stdout.readline()
            argv = [
                sys.executable,
                str(Path(__file__).with_name("simulated.py")),
                *map(str, (socket, inventory, playbook, folder)),
            ]
            with log.open("wb") as errors:
                done = subprocess.run(
                    [*argv, *(["--calls"] if count_calls else [])],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env={**os.environ, "HOME": name, "PYTHONPATH": str(TESTS)},
                    timeout=DEADLINE_S,
                    check=False,
                )
            if done.returncode != 0:
                raise BenchError(f"the controller of {nodes} nodes failed{tail(log)}")
        except subprocess.TimeoutExpired:
            raise BenchError(f"the controller of {nodes} nodes did not end within {DEADLINE_S:g} s") from None
        finally:
            farm.stdin.close()
            farm.wait(10)
            farm.stdout.close()
    found: dict[str, Any] = json.loads(done.stdout)
    if found["code"] != 0:
        raise BenchError(f"{nodes} healthy nodes were told as exit {found['code']}:\n{found['shown']}")
    return found


def thousand() -> list[str]:
    runs = {size: farmed(size) for size in SIZES}
    names = ("reach", *STAGES)
    lines = [
        f"Nodes that only answer, over sockets: {', '.join(names)}; the controller's CPU, memory and threads",
        "  nodes   CPU s    MiB  threads   " + "".join(f"{name:>10}" for name in names) + "   (ms of CPU a node)",
    ]
    for size, run in runs.items():
        each = "".join(f"{1000 * run['stages'][name] / size:>10.1f}" for name in names)
        lines.append(f"  {size:>5} {run['cpu_s']:>7.1f} {run['peak_bytes'] / 2**20:>6.0f} {run['threads']:>8}   {each}")
    few, many = SIZES[0], SIZES[-1]
    least, most = runs[few], runs[many]
    dearest = max(1000 * most["stages"][name] / many for name in names)
    memory, room = most["peak_bytes"] / 2**20, BASE_MIB + MIB_A_NODE * many
    lines += [
        f"  {many} nodes: {most['cpu_s']:.1f} s  (goal <= {MOST_CPU_S:g} s)  {verdict(most['cpu_s'] <= MOST_CPU_S)}",
        f"  the dearest stage: {dearest:.1f} ms a node  (goal <= {MOST_MS:g} ms)  {verdict(dearest <= MOST_MS)}",
        f"  memory: {memory:.0f} MiB  (goal <= {room:g} MiB)  {verdict(memory <= room)}",
    ]
    plain = tuple(name for name in names if name != "firewall")
    growth = sum(most["stages"][n] for n in plain) / many / (sum(least["stages"][n] for n in plain) / few)
    lines.append(
        f"  a node of {many} costs {growth:.2f} times what one of {few} does in {', '.join(plain)}"
        f"  (goal <= {LINEAR:g})  {verdict(growth <= LINEAR)}"
    )
    if all(PAIRS.search(run["shown"]) for run in runs.values()):
        pairs = {size: int(PAIRS.findall(run["shown"])[0].replace(",", "")) for size, run in runs.items()}
        growth = most["stages"]["firewall"] / pairs[many] / (least["stages"]["firewall"] / pairs[few])
        lines.append(
            f"  a pair of {pairs[many]:,} costs {growth:.2f} times what one of {pairs[few]:,} does in firewall"
            f"  (goal <= {LINEAR:g})  {verdict(growth <= LINEAR)}"
        )
    return lines
