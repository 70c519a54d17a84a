"""`runbook ps`, `logs`, `attach`, `stop` and `clean`: jobs that live on the nodes, whoever launched them, from wherever."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from runbook.checks.training.attempt import Place
from runbook.cli.inventory import load
from runbook.cli.run import make_run_dir
from runbook.engine.jobs.follow import Tell, crew_of, follow, read, supervise
from runbook.engine.jobs.known import Cluster, KnownJob
from runbook.engine.jobs.stop import clean, stop
from runbook.launch.ranks import narrow
from runbook.load.patterns import select
from runbook.model.inventory import Inventory
from runbook.model.verdict import Outcome
from runbook.report.jobs import as_json, as_text
from runbook.report.text import lines as safe_lines

DONE, FAILED, WRONG, UNKNOWN, INTERRUPTED = 0, 1, 2, 3, 130


def jobs(arguments: argparse.Namespace) -> int:
    """0 done (ps: told; logs, attach: the job ended well), 1 it failed, 2 no such job, 3 a node could not be asked."""
    commands = {"ps": _ps, "logs": _logs, "attach": _attach, "stop": _stop, "clean": _clean}
    with Cluster(_inventory(arguments), forks=arguments.forks) as cluster:
        return commands[arguments.command](cluster, arguments)


def _inventory(arguments: argparse.Namespace) -> Inventory:
    inventory, _ = load(arguments)
    return narrow(inventory, select(arguments.limit, inventory)) if arguments.limit else inventory


def _ps(cluster: Cluster, arguments: argparse.Namespace) -> int:
    told = [facts(job) for job in cluster.jobs()]
    unreached = {name: error.says for name, error in cluster.unreached.items()}
    text = (
        as_json(told, unreached)
        if arguments.output == "json"
        else as_text(told, unreached, ranks=arguments.verbose > 0)
    )
    sys.stdout.write(text)
    return UNKNOWN if unreached else DONE


def facts(job: KnownJob) -> dict[str, Any]:
    """A job as plain data: what `ps -o json` prints."""
    ranks = []
    for journal in job.processes:
        now, use = job.clocks[journal["node"]], journal.get("use") or {}
        began, ended = journal.get("started"), journal.get("ended")
        seconds = None if began is None else (ended or now) - began
        ranks.append(
            {
                "name": journal["name"],
                "ranks": journal["ranks"],
                "node": journal["node"],
                "state": _state(journal),
                "alive": journal["lives"],
                "code": journal.get("code"),
                "why": journal.get("why"),
                "pid": journal.get("pid"),
                "seconds": seconds,
                "cpu": use.get("cpu_s", 0.0) / seconds if seconds else 0.0,
                "rss": use.get("rss", 0),
                "gpu_bytes": use.get("gpu_bytes"),
            }
        )
    about = job.about
    return {
        "job": job.id,
        "stage": about.get("stage"),
        "state": job.state,
        "attempt": job.attempt,
        "began": about.get("began"),
        "command": about.get("command"),
        "port": about.get("port"),
        "nodes": list(job.nodes),
        "absent": list(job.absent),
        "ranks": ranks,
    }


def _state(journal: dict[str, Any]) -> str:
    if journal["state"] != "ended" and not journal["keeper_lives"]:
        return "keeper lost" if journal["lives"] else "lost"
    return str(journal["state"])


def _logs(cluster: Cluster, arguments: argparse.Namespace) -> int:
    job = cluster.job(arguments.job)
    crew = crew_of(cluster, job, Path(make_run_dir(None, f"{job.id}-logs")), _printer(arguments))
    if not arguments.follow:
        left = [*read(crew), *job.absent]
        return _missing(left)
    stopping = _until_ctrl_c()
    end = follow(crew, stopping=stopping.is_set)
    return {"finished": DONE, "failed": FAILED}.get(end.kind, INTERRUPTED) or _missing(list(job.absent))


def _attach(cluster: Cluster, arguments: argparse.Namespace) -> int:
    job = cluster.job(arguments.job, alive=True)
    run_dir = Path(make_run_dir(None, f"{job.id}-attached"))
    crew = crew_of(cluster, job, run_dir, _printer(arguments))
    stopping = _until_ctrl_c()
    end, outcomes = supervise(crew, grace_s=float(job.about.get("grace_s") or 30.0), stopping=stopping.is_set)
    if end.kind == "stopped":
        sys.stderr.write(f"left it running; `runbook attach {job.id}` comes back, `runbook stop {job.id}` ends it\n")
        return INTERRUPTED
    for outcome in outcomes:
        _tell(outcome)
    sys.stdout.write(f"{job.id} {end.kind}; logs in {crew.logs.folder}\n")
    return DONE if end.kind == "finished" else FAILED


def _tell(outcome: Outcome) -> None:
    for finding in outcome.findings:
        if finding.cause == "peer-died":
            continue
        sys.stdout.write(f"\n{outcome.node}: {finding.cause}\n   {finding.says}\n   fix       {finding.remedy}\n")
        for line in finding.evidence[:12]:
            sys.stdout.write(f"   evidence  {' '.join(safe_lines(line))}\n")


def _stop(cluster: Cluster, arguments: argparse.Namespace) -> int:
    job = cluster.job(arguments.job, alive=True)
    done = stop(cluster, job, now=arguments.now)
    sys.stdout.write(f"{job.id}: {done.ended} of {len(job.alive)} processes that lived were ended\n")
    for name, names in done.left.items():
        sys.stdout.write(
            f"{name}: {', '.join(names)} still lives, though it was killed: a process in state D ends with its device\n"
        )
    for name, why in done.unsure.items():
        sys.stdout.write(f"{name}: {why}\n")
    return FAILED if done.left else UNKNOWN if done.unsure else DONE


def _clean(cluster: Cluster, arguments: argparse.Namespace) -> int:
    chosen = cluster.jobs() if arguments.all else [cluster.job(arguments.job)]
    code = DONE
    for job in chosen:
        done = clean(cluster, job)
        for name, journals in done.alive.items():
            living = ", ".join(journal["name"] for journal in journals)
            sys.stdout.write(f"{job.id}: not removed: {living} lives on {name}; `runbook stop {job.id}` first\n")
        for name, why in done.unsure.items():
            sys.stdout.write(f"{job.id}: {name}: {why}\n")
        if done.removed:
            sys.stdout.write(f"{job.id}: removed from {', '.join(done.removed)}\n")
        code = max(code, FAILED if done.alive else UNKNOWN if done.unsure else DONE)
    return code


def _missing(names: list[str]) -> int:
    if names:
        sys.stderr.write(f"not everything was read: {', '.join(sorted(set(names)))}\n")
    return UNKNOWN if names else DONE


def _printer(arguments: argparse.Namespace) -> Tell:
    only = set(arguments.only_rank)
    lock = threading.Lock()

    def tell(place: Place, stream: str, lines: list[str]) -> None:
        if only and not only & set(place.ranks):
            return
        numbers = str(place.ranks[0]) if len(place.ranks) == 1 else f"{place.ranks[0]}-{place.ranks[-1]}"
        text = "".join(f"[{numbers} {place.node}] {' '.join(safe_lines(line))}\n" for line in lines)
        with lock:
            (sys.stdout if stream == "out" else sys.stderr).write(text)
            sys.stdout.flush()

    return tell


def _until_ctrl_c() -> threading.Event:
    """Ctrl-C ends the looking, not the job."""
    enough = threading.Event()
    for name in ("SIGINT", "SIGTERM"):
        signal.signal(getattr(signal, name), lambda *_: enough.set())
    return enough
