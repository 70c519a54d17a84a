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
from runbook.node import cpu_waits, proc
from runbook.node.cpu_waits import CpuQuota, CpuTime, cpu_quota, cpu_wait_share, throttled_share, throttled_us

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
    assert cpu_wait_share(then, CpuTime(10**9, 10**9, 5), 2.0, runnable=True) == 1.0
    assert cpu_wait_share(then, CpuTime(10**9, 10**9, 5), 2.0, runnable=False) == 0.0
    assert cpu_wait_share(then, CpuTime(2 * 10**9, 2 * 10**9, 6), 2.0, runnable=True) == 0.5
    assert cpu_wait_share(then, CpuTime(3 * 10**9, 10**9, 5), 2.0, runnable=True) == 0.0
    assert cpu_wait_share(None, then, 2.0, runnable=True) is cpu_wait_share(then, None, 2.0, runnable=True) is None


@pytest.mark.parametrize(
    ("cpus", "spent", "held_us", "part"),
    [
        (0.02, 20, 1_960_000, 0.98),  # one thread that wants to run all the time
        (1.0, 20, 2_000_000, 0.5),  # two of them
        (0.5, 10, 500_000, 0.25),  # half of the time
        (15.52, 20, 960_000, 0.03),  # 16 CPUs that all lose 3 %
        (0.02, 1, 90_000, 0.05),  # it woke up once
        (1.0, 0, 0, 0.0),
        (0.01, 40, 40_000_000, 1.0),
    ],
)
def test_a_quota_holds_back_for_a_part_of_the_time(cpus: float, spent: int, held_us: int, part: float) -> None:
    """Of two seconds, in periods of 0.1 s. The kernel adds up what each CPU was held back."""
    allowed_us = int(cpus * 100_000)
    then, now = CpuQuota(allowed_us, 100_000, 7, 10**9), CpuQuota(allowed_us, 100_000, 7 + spent, 10**9 + held_us)
    assert throttled_share(then, now, 2.0) == pytest.approx(part, abs=0.005)


def test_a_quota_that_is_not_known_is_not_told() -> None:
    known = CpuQuota(1000, 100_000, 1, 1)
    assert throttled_share(None, known, 2.0) is throttled_share(known, None, 2.0) is None
    assert throttled_share(CpuQuota(1000, 100_000, 9, 9), known, 2.0) == 0.0  # of another group


STAT = "nr_periods 9\nnr_throttled 4\n"
SECOND = {
    "/proc/7/cgroup": "0::/pod/main/inner",
    "/sys/fs/cgroup/pod/main/inner/cpu.max": "max 100000",
    "/sys/fs/cgroup/pod/main/inner/cpu.stat": "usage_usec 5\nnr_throttled 0\nthrottled_usec 0",
    "/sys/fs/cgroup/pod/main/cpu.max": "2000 100000",
    "/sys/fs/cgroup/pod/main/cpu.stat": f"usage_usec 5\n{STAT}throttled_usec 380000",
    "/sys/fs/cgroup/pod/cpu.max": "9000 100000",
    "/sys/fs/cgroup/pod/cpu.stat": "nr_throttled 900\nthrottled_usec 900000000",
}
FIRST = {
    "/proc/7/cgroup": "5:memory:/other\n4:cpu,cpuacct:/job",
    "/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "2000",
    "/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000",
    "/sys/fs/cgroup/cpu,cpuacct/job/cpu.stat": f"{STAT}throttled_time 380000000",
    "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
}


def with_link(files: dict[str, str], controllers: str) -> dict[str, str]:
    """The same where the kernel lists the controllers so, and `cpu` is a link to their mount."""
    linked = {path.replace("/cpu,cpuacct/", "/cpu/"): text for path, text in files.items()}
    return {**files, **linked, "/proc/7/cgroup": files["/proc/7/cgroup"].replace("cpu,cpuacct", controllers)}


@pytest.mark.parametrize("files", [SECOND, FIRST, with_link(FIRST, "cpuacct,cpu"), with_link(FIRST, "cpu,cpuacct")])
def test_the_innermost_group_with_a_quota_counts(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cpu_waits, proc):
        monkeypatch.setattr(module, "read", files.get)
    quota = cpu_quota(7)
    assert quota is not None
    assert (quota.allowed_us, quota.period_us, quota.spent, quota.held_us) == (2000, 100_000, 4, 380_000)
    assert throttled_us([6, 7]) == 380_000
    assert cpu_quota(6) is None
    assert throttled_us([6]) is None
