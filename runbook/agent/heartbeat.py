"""What an agent reports of its node with each heartbeat: load, GPUs, and the jobs in its workdirs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from runbook.agent.protocol import (
    MAX_REPORTED_GPUS,
    MAX_REPORTED_PROCESSES,
    MAX_REPORTED_RANKS,
    GpuLoad,
    Heartbeat,
    JobProcess,
)
from runbook.model.units import parse_whole_number
from runbook.node import own_files
from runbook.node.job_control import attempt_journals, attempts_of, folders_of_jobs, is_same_process
from runbook.node.journal import serial_of
from runbook.node.tools import run_if_installed

HEARTBEAT_SMI_TIMEOUT_S = 4.0
"""How long nvidia-smi may take."""

MAX_ENDED_PROCESS_AGE_S = 24 * 3600.0
"""A process that ended longer ago is no longer reported."""

NVIDIA_SMI_FIELDS = "index,name,utilization.gpu,memory.used,memory.total"


MAX_LOOK_AGE_S = 60.0
"""Seconds after which what a look saw of GPUs and load says nothing about the present."""


def aged_heartbeat(beat: Heartbeat, age_s: float) -> Heartbeat:
    """What a look that ended `age_s` seconds ago still says: the last steps are that much older."""
    jobs = [
        job if job.step_age_s is None else msgspec.structs.replace(job, step_age_s=job.step_age_s + age_s)
        for job in beat.jobs
    ]
    fresh = age_s <= MAX_LOOK_AGE_S
    return msgspec.structs.replace(beat, jobs=jobs, gpus=beat.gpus if fresh else [], load=beat.load if fresh else [])


def make_heartbeat(name: str, workdirs: Iterable[str]) -> Heartbeat:
    """The content of the next heartbeats of the node `name`. Takes as long as nvidia-smi does, at most
    HEARTBEAT_SMI_TIMEOUT_S."""
    load: list[float] = []
    with contextlib.suppress(OSError):
        load = [round(one, 2) for one in os.getloadavg()]
    running = kept_job_processes(name, workdirs)[:MAX_REPORTED_PROCESSES]
    return Heartbeat(1, draining=False, load=load, cpus=os.cpu_count() or 0, gpus=gpu_loads(), jobs=running)


def gpu_loads() -> list[GpuLoad]:
    """The GPUs that nvidia-smi lists; none if there is no such tool, or it does not answer."""
    try:
        said = run_if_installed(
            "nvidia-smi", [f"--query-gpu={NVIDIA_SMI_FIELDS}", "--format=csv,noheader,nounits"], HEARTBEAT_SMI_TIMEOUT_S
        )
    except (OSError, RuntimeError):  # no more processes or threads can be started: the jobs are still reported
        return []
    found = []
    for line in said.get("out", "").splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 5 and (index := parse_whole_number(words[0])) is not None:
            found.append(GpuLoad(index, words[1][:200], *map(_parse_number, words[2:])))
    return found[:MAX_REPORTED_GPUS]


def _parse_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:  # [N/A]
        return None
    return _allowed_number(number)


def _allowed_number(number: float) -> float | None:
    """The number if the protocol allows it, else None."""
    return number if 0 <= number <= 1e9 else None


def kept_job_processes(name: str, workdirs: Iterable[str]) -> list[JobProcess]:
    """The kept processes of the node `name`, of the latest attempt of every job in these workdirs; those that live come
    first. Other nodes may share the workdirs, and are left out by name."""
    found, seen = list[JobProcess](), set[str]()
    for one in workdirs:
        with contextlib.suppress(OSError, ValueError):  # ValueError: no path at all
            workdir = os.path.realpath(own_files.expanded_path(one))
            if workdir in seen:
                continue
            seen.add(workdir)
            own_files.require_safe_path(workdir)
            for folder in folders_of_jobs(workdir, name):
                found += _latest_attempt_processes(folder)
    found.sort(
        key=lambda job: (job.job, job.ranks), reverse=True
    )  # latest jobs first: only MAX_REPORTED_PROCESSES are reported
    return sorted(found, key=lambda job: job.state in ("ended", "gone"))


def _latest_attempt_processes(folder: str) -> list[JobProcess]:
    """The kept processes of the latest attempt in a job's folder, without those that ended longer than
    MAX_ENDED_PROCESS_AGE_S ago."""
    attempts = sorted(attempts_of(folder), key=serial_of)
    now, found = time.time(), list[JobProcess]()
    for attempt in attempts[-1:]:
        for journal in attempt_journals(f"{folder}/{attempt}")[0]:
            if now - (journal.get("ended") or now) < MAX_ENDED_PROCESS_AGE_S:
                with contextlib.suppress(msgspec.ValidationError):  # the server would refuse the whole heartbeat
                    found.append(msgspec.convert(_job_process_fields(f"{folder}/{attempt}", journal), JobProcess))
    return found


def _job_process_fields(folder: str, journal: dict[str, Any]) -> dict[str, Any]:
    """The fields of a JobProcess, from a journal and from what lives now."""
    state, pid = journal["state"], journal.get("pid")
    kept = is_same_process(journal["keeper"], journal.get("keeper_born")) or is_same_process(pid, journal.get("born"))
    if state != "ended" and not kept:
        state = "gone"
    step, age = None, None
    with (
        contextlib.suppress(OSError),
        own_files.open_own_file(f"{folder}/{journal['name']}.step", strict=False) as file,
    ):
        age = _allowed_number(max(0.0, time.time() - os.fstat(file.fileno()).st_mtime))  # None for an absurd age
        step = file.read(64).decode("utf-8", "replace").strip()
    code, ranks = journal.get("code"), journal["ranks"][:MAX_REPORTED_RANKS]
    seen = {"ranks": ranks, "pid": pid, "state": state, "code": code, "step": step, "step_age_s": age}
    return {"job": journal["job"], "attempt": journal["attempt"], "name": journal["name"], **seen}
