"""Whether a process gets a CPU, as the kernel of this machine counts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lab.cpu import limited_cpu

import runbook.node
from runbook.node.cpu_waits import CpuTime, waited

ROOT = Path(runbook.node.__file__).parents[2]


def looked_at(pid: int) -> dict[str, Any]:
    """What the program tells of the rank that this process leads, run as on a node."""
    order = json.dumps({"leaders": {"0": pid}, "seconds": 2.0, "stacks": None, "gpus": None})
    code = (
        f"import json; from runbook.node import rank_processes as r; print(json.dumps(r.look(json.loads({order!r}))))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)["ranks"]["0"]
    return found


@pytest.mark.lab
def test_a_process_out_of_its_quota_waits_for_a_cpu() -> None:
    spins = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"], start_new_session=True)
    try:
        with limited_cpu([spins.pid], 0.02):
            told = looked_at(spins.pid)
        (process,) = told["processes"]
        assert process["waited"] > 0.5
        assert process["cpu"] < 0.2
        assert told["throttled"] > 0.5
    finally:
        spins.kill()
        spins.wait()


def test_a_process_that_sleeps_waits_for_none() -> None:
    sleeps = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        told = looked_at(sleeps.pid)
        (process,) = told["processes"]
        assert (process["state"], process["stays"], process["waited"]) == ("S", True, 0.0)
    finally:
        sleeps.kill()
        sleeps.wait()


def test_a_wait_that_has_not_ended_counts() -> None:
    """The kernel counts one when it is over, and who gets no CPU at all has none that is."""
    then = CpuTime(10**9, 10**9, 5)
    assert waited(then, CpuTime(10**9, 10**9, 5), 2.0, runnable=True) == 1.0
    assert waited(then, CpuTime(10**9, 10**9, 5), 2.0, runnable=False) == 0.0
    assert waited(then, CpuTime(2 * 10**9, 2 * 10**9, 6), 2.0, runnable=True) == 0.5
    assert waited(then, CpuTime(3 * 10**9, 10**9, 5), 2.0, runnable=True) == 0.0
    assert waited(None, then, 2.0, runnable=True) is waited(then, None, 2.0, runnable=True) is None
