"""What an agent reports of its node with each heartbeat: load, GPUs, and the jobs in its workdirs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runbook.agent.protocol import GpuLoad, Heartbeat, JobProcess
from runbook.node import own_files
from runbook.node.journal import ATTEMPT, JOURNAL, PLAIN, WRITTEN, checked

ASKED_S = 4.0
TOLD_S = 24 * 3600.0
"""A process that ended longer ago is no longer reported."""

MOST_JOBS, MOST_GPUS = 512, 64
QUERY = "index,name,utilization.gpu,memory.used,memory.total"


def facts(name: str, workdirs: Iterable[str]) -> Heartbeat:
    """What the next heartbeats of the node of this name report. Takes as long as nvidia-smi does, at most ASKED_S."""
    load: list[float] = []
    with contextlib.suppress(OSError):
        load = [round(one, 2) for one in os.getloadavg()]
    told = jobs(name, workdirs)[:MOST_JOBS]
    return Heartbeat(1, draining=False, load=load, cpus=os.cpu_count() or 0, gpus=gpus(), jobs=told)


def gpus() -> list[GpuLoad]:
    """Those that nvidia-smi lists; none where there is no such tool, or it does not answer."""
    try:
        argv = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=ASKED_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    found = []
    for line in done.stdout.decode(errors="replace").splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 5 and words[0].isdecimal():
            found.append(GpuLoad(int(words[0]), words[1][:200], *map(_number, words[2:])))
    return found[:MOST_GPUS]


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:  # [N/A]
        return None
    return number if 0 <= number <= 1e9 else None


def jobs(name: str, workdirs: Iterable[str]) -> list[JobProcess]:
    """The node's kept processes of the latest attempt of every job in these workdirs, those that live first. Other
    nodes may have the same home."""
    found = []
    for workdir in dict.fromkeys(os.path.realpath(Path.home() / Path(one).expanduser()) for one in workdirs):
        with contextlib.suppress(OSError):
            own_files.safe(workdir)
            found += [job for folder in _folders(workdir, name) for job in _attempt(folder)]
    return sorted(found, key=lambda job: (job.state in ("ended", "gone"), job.job, job.ranks))


def _folders(workdir: str, name: str) -> list[str]:
    """`workdir/JOB/NAME/attempt-NN`, the last one of each job that is ours."""
    found = []
    for above in _ours(workdir):
        node = Path(above) / name
        if own_files.is_ours(str(node)) and (node / "job.json").exists():
            attempts = [one for one in _ours(str(node)) if ATTEMPT.match(Path(one).name)]
            found += sorted(attempts, key=lambda path: int(path.rpartition("-")[2]))[-1:]
    return found


def _ours(folder: str) -> list[str]:
    paths = [f"{folder}/{name}" for name in own_files.listed(folder) if PLAIN.match(name)]
    return [path for path in paths if own_files.is_ours(path)]


def _attempt(folder: str) -> list[JobProcess]:
    found = []
    for name in own_files.listed(folder):
        with contextlib.suppress(OSError, ValueError, KeyError):
            if name.endswith(".json"):
                journal: dict[str, Any] = checked(own_files.document(f"{folder}/{name}"), JOURNAL, WRITTEN)
                if time.time() - (journal.get("ended") or time.time()) < TOLD_S:
                    found.append(_job(folder, journal))
    return found


def _job(folder: str, journal: dict[str, Any]) -> JobProcess:
    state, pid = journal["state"], journal.get("pid")
    keeper = _born(journal["keeper"]) == journal.get("keeper_born")
    if state != "ended" and not keeper and not (pid and _born(pid) == journal.get("born")):
        state = "gone"
    step, age = None, None
    with contextlib.suppress(OSError), own_files.opened(f"{folder}/{journal['name']}.step", strict=False) as file:
        age = max(0.0, time.time() - os.fstat(file.fileno()).st_mtime)
        step = file.read(64).decode("utf-8", "replace").strip()
    code, ranks = journal.get("code"), journal["ranks"][:1024]
    return JobProcess(
        job=journal["job"],
        attempt=journal["attempt"],
        name=journal["name"],
        ranks=ranks,
        pid=pid,
        state=state,
        code=code,
        step=step,
        step_age_s=age,
    )


def _born(pid: int) -> int | None:
    """When a living process started, in ticks since boot."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[19]) if fields[0] not in (b"Z", b"X") else None
    return None
