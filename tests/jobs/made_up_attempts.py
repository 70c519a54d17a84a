"""Made-up attempts of a job, without nodes: places, journals as keepers write them, and processes with real logs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any, cast

from checks.made_up_cluster import cluster, node

from runbook.checks.context import Context, Run
from runbook.jobs.attempt import Attempt, ProcessSpec, make_attempt
from runbook.jobs.kept_processes import KeptProcess, KeptProcesses
from runbook.jobs.logs import RankLogs
from runbook.launch.job import Job, JobProgram
from runbook.model.inventory import Inventory
from runbook.model.playbook import LaunchSettings, Stage
from runbook.model.redact import Redactor
from runbook.model.secrets import Secret
from runbook.transport.node_sessions import Site
from runbook.transport.pause_detector import Pace

PAIR = cluster(node("node-a", processes=2), node("node-b", processes=2))


def job(inventory: Inventory = PAIR, command: Sequence[str] = ("train.py",), **options: Any) -> Job:
    program = JobProgram(tuple(command), options.pop("env", {}), options.pop("workdir", "/srv"))
    spares = options.pop("spares", ())
    stage = Stage("train", "launch", launch=LaunchSettings(**options))
    return Job(stage, {one.name: program for one in inventory.nodes}, spares)


def attempt(number: int = 1, inventory: Inventory = PAIR, **options: Any) -> Attempt:
    return make_attempt(job(inventory, **options), inventory, number, number)


def kept(folder: Path, tried: Attempt | None = None, *, secrets: Sequence[str] = ()) -> KeptProcesses:
    tried = tried or attempt()
    redactor = Redactor([Secret(text, "TOKEN") for text in secrets])
    site = cast(Site, SimpleNamespace(sessions={}, failures={}, forks=64, pace=Pace()))
    site.each = MethodType(Site.each, site)  # type: ignore[method-assign]
    run = Run("job-1", folder, site, redactor=redactor)
    at = Context(run, tried.inventory, "train", time.monotonic() + 60.0, lambda *_, **__: None)
    made = KeptProcesses(at, tried.folder, tried.places, RankLogs(folder, tried.folder, redactor, lambda *_: None))
    made.folders = {name: f"/work/job-1/{name}/{tried.folder}" for name in made.nodes}
    return made


def journal(state: str, **facts: Any) -> dict[str, Any]:
    return {"event": "kept", "state": state, "code": None, "started": None, "ended": None, "why": None, **facts}


def ended(
    kept: KeptProcesses, rank: int, code: int | None, at: float, *, began: float = 100.0, **noted: str | None
) -> KeptProcess:
    """The rank has ended at this time of its node's clock, and this is noted beside that."""
    member = next(member for member in kept.members if rank in member.place.ranks)
    kept.learn(member, journal("ended", code=code, started=began, ended=at, **noted))
    return member


def wrote(
    kept: KeptProcesses,
    member: KeptProcess | ProcessSpec,
    err: bytes = b"",
    out: bytes = b"",
    *,
    at: float | None = None,
) -> None:
    """At this time of the controller's clock: now, unless given."""
    voice = member.place if isinstance(member, KeptProcess) else member
    for end, data in (("err", err), ("out", out)):
        if data:
            come(kept.logs, f"{voice.name}.{end}", data, voice)
            kept.written[f"{voice.name}.{end}"] = time.time() if at is None else at


def come(logs: RankLogs, name: str, data: bytes, voice: ProcessSpec | None = None) -> None:
    """The next bytes of a file."""
    logs.take(voice or place(0), name, data, logs.at(name))


def place(rank: int, name: str = "node-a") -> ProcessSpec:
    return ProcessSpec(f"rank-{rank:05d}.{name}.l{rank}", name, rank, (rank,))
