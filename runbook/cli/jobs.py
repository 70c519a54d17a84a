"""`runbook ps`, `logs`, `attach`, `stop` and `clean`: jobs that live on the nodes, from whichever machine they were
launched."""

from __future__ import annotations

import argparse
import json
import math
import secrets
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runbook.checks.context import Run
from runbook.cli.inventory_source import load_named_inventory
from runbook.engine.run_folder import run_folder
from runbook.files.node_sets import select_nodes
from runbook.jobs.attach import OutputCallback, follow_job, kept_processes_of, supervise_job
from runbook.jobs.attempt import ProcessSpec
from runbook.jobs.known_jobs import NODE_LEFT_OUT_TEXT, Cluster, KnownJob, clean, names_of_living, stop
from runbook.jobs.launch import Stall
from runbook.jobs.logs import JobSecrets, job_secrets
from runbook.jobs.stop_attempt import fetch_rest_of_logs
from runbook.jobs.watch import watch_processes
from runbook.launch.ranks import narrow_inventory
from runbook.model.command_quoting import shell_word
from runbook.model.errors import FilesWrong, Unreachable
from runbook.model.inventory import Inventory
from runbook.model.node_ranges import fold
from runbook.model.redact import Redactor, known_inventory_secrets
from runbook.model.safe_text import aligned_table, printable_line, printable_lines, unreachable_text, visible_text
from runbook.model.units import bytes_text, count_text, range_text, range_texts, seconds_text
from runbook.model.verdict import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_UNKNOWN, Outcome, Verdict
from runbook.report.folding import fold_unreached
from runbook.report.standard_streams import stderr, stdout


def jobs(arguments: argparse.Namespace) -> int:
    """0 done (ps: listed; logs, attach: the job ended well), 1 it failed, 2 no such job, 3 a node could not be
    asked."""
    if arguments.command == "attach" and arguments.run_dir is not None:
        from runbook.cli.attach_run import follow_run_to_end

        return follow_run_to_end(arguments, _limited_inventory(load_named_inventory(arguments)[0], arguments))
    commands = {"ps": _ps, "logs": _logs, "attach": _attach, "stop": _stop, "clean": _clean}
    whole, _ = load_named_inventory(arguments)
    inventory = _limited_inventory(whole, arguments)
    left_out = {node.name for node in whole.nodes} - {node.name for node in inventory.nodes}
    with Cluster(inventory, forks=arguments.forks, left_out=left_out) as cluster:
        return commands[arguments.command](cluster, arguments)


def _print_lost_nodes(cluster: Cluster, names: list[str]) -> None:
    for name in names:
        session = cluster.site.sessions.get(name)
        if session is not None and session.lost:
            stderr.tell(unreachable_text(session.lost))


def _limited_inventory(inventory: Inventory, arguments: argparse.Namespace) -> Inventory:
    return narrow_inventory(inventory, select_nodes(arguments.limit, inventory)) if arguments.limit else inventory


def _ps(cluster: Cluster, arguments: argparse.Namespace) -> int:
    redactor = Redactor(known_inventory_secrets(cluster.inventory))
    documents = [redactor.anything(job_document(job)) for job in cluster.jobs()]
    if arguments.output == "json":
        stdout.document(jobs_json(documents, cluster.unreached))
    else:
        all_silent = len(cluster.unreached) == len(cluster.inventory.nodes)
        none = "" if all_silent else f"no job on {'the other' if cluster.unreached else 'these'} nodes"
        stdout.tell(jobs_text(documents, cluster.unreached, ranks=arguments.verbose > 0, none=none))
    return EXIT_UNKNOWN if cluster.unreached or any(job["damaged"] for job in documents) else EXIT_DONE


def job_document(job: KnownJob) -> dict[str, Any]:
    """A job as plain data: what `ps -o json` prints."""
    ranks = []
    for journal in job.processes:
        now, use = job.clocks[journal["node"]], journal.get("use") or {}
        began, ended = journal.get("started"), journal.get("ended")
        seconds = None if began is None else max(0.0, (ended or now) - began)
        ranks.append(
            {
                "name": journal["name"],
                "ranks": journal["ranks"],
                "node": journal["node"],
                "state": _process_state(journal),
                "alive": journal["lives"],
                "code": journal.get("code"),
                "why": journal.get("why"),
                "pid": journal.get("pid"),
                "seconds": seconds,
                "cpu": (use.get("cpu_s") or 0.0) / seconds if seconds else 0.0,
                "rss": use.get("rss") or 0,
                "gpu_bytes": use.get("gpu_bytes"),
                **_step_facts(use, seconds),
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
        "absent": list(job.silent),
        "left_out": list(job.left_out),
        "damaged": {node: [f"{one['name']}: {one['why']}" for one in found] for node, found in job.damaged.items()},
        "ranks": ranks,
    }


def _step_facts(use: Mapping[str, Any], seconds: float | None) -> dict[str, Any]:
    """How far a process came: its step, how long ago it reported that, and steps a second since it was started."""
    step, age = use.get("step"), use.get("step_age_s")
    if step is None or age is None:
        return {"step": None, "step_age_s": None, "steps_per_s": None}
    made, took = step - (use.get("first_step") or 0), (seconds or 0.0) - age
    return {"step": int(step), "step_age_s": age, "steps_per_s": made / took if made > 0 and took > 0 else None}


def _process_state(journal: dict[str, Any]) -> str:
    if journal["state"] != "ended" and not journal["keeper_lives"]:
        return "keeper lost" if journal["lives"] else "lost"
    return str(journal["state"])


def _logs(cluster: Cluster, arguments: argparse.Namespace) -> int:
    job = cluster.job(arguments.job)
    _refuse_unknown_ranks(job, arguments.only_rank)
    known = _job_secrets_with_warnings(cluster, job)
    kept = kept_processes_of(cluster, job, None, _make_output_printer(arguments), known, only=arguments.only_rank)
    if not arguments.follow:
        left = fetch_rest_of_logs(kept, enough=lambda: stdout.unread)
        if stdout.unread:  # the reader, such as `head`, has gone
            return EXIT_INTERRUPTED
        _print_lost_nodes(cluster, left)
        return _exit_code_for_missing([*left, *job.silent, *job.damaged])
    stopping, (lost, on_loss) = _stop_event_on_signals(kept.at.run), _make_loss_recorder()
    end, left = follow_job(kept, stopping=lambda: stopping.is_set() or stdout.unread, on_loss=on_loss)
    _print_lost_nodes(cluster, [name for name in left if name not in lost])
    if end.kind == "finished" and stopping.is_set() and left:
        return EXIT_INTERRUPTED
    code = {"finished": EXIT_DONE, "lost": EXIT_DONE, "failed": EXIT_FAILED}.get(end.kind, EXIT_INTERRUPTED)
    return code or _exit_code_for_missing([*left, *lost, *job.silent, *job.damaged])


def _attach(cluster: Cluster, arguments: argparse.Namespace) -> int:
    job = cluster.job(arguments.job, alive=True)
    _refuse_unknown_ranks(job, arguments.only_rank)
    with run_folder(None, f"{job.id}-attached-{secrets.token_hex(3)}") as run_dir:
        known = _job_secrets_with_warnings(cluster, job)
        kept = kept_processes_of(cluster, job, run_dir, _make_output_printer(arguments), known)
        stopping, (lost, on_loss) = _stop_event_on_signals(kept.at.run), _make_loss_recorder()
        end, outcomes, left = supervise_job(
            kept,
            grace_s=job.grace_s,
            watched=lambda: (
                watch_processes(kept, stopping=stopping.is_set, deadline=math.inf, on_loss=on_loss),
                Stall(),
            ),
        )
        if end.kind == "stopped":
            stderr.line(
                f"left it running; `runbook attach {shell_word(job.id)}` comes back, `runbook "
                f"stop {shell_word(job.id)}` ends it"
            )
            return EXIT_INTERRUPTED
        for outcome in outcomes:
            _print_outcome(known.of_nodes.get(outcome.node, known.everywhere).anything(outcome))
        over_here = end.kind in ("finished", "lost")
        how = "may still run" if lost and over_here else end.kind
        stdout.line(f"{job.id} {how}; logs in {kept.logs.folder}")
        missing = _exit_code_for_missing([*left, *lost, *job.absent, *job.damaged])
        if over_here:
            return missing
        return EXIT_FAILED if any(outcome.verdict is Verdict.FAIL for outcome in outcomes) else EXIT_UNKNOWN


def _refuse_unknown_ranks(job: KnownJob, only: Sequence[int]) -> None:
    """Raises FilesWrong for a rank that the job has not: silence would look like a rank that wrote nothing. If a node
    gives no answer, its ranks are not known, and nothing is raised."""
    known = sorted({rank for journal in job.processes for rank in journal["ranks"]})
    unknown = next((rank for rank in only if rank not in known), None)
    if unknown is not None and known and not job.absent and not job.damaged:
        message = f"--only-rank {unknown}: {job.id} has no such rank here"
        raise FilesWrong.of("arguments.only-rank", message, help=f"known here: {', '.join(range_texts(known))}")


def _make_loss_recorder() -> tuple[list[str], Callable[[str, Unreachable], None]]:
    """A list that gets the names of nodes lost from now on, and the function to call when a node is lost. The ranks of
    a lost node may live, so the other nodes are followed further."""
    lost: list[str] = []

    def on_loss(node: str, error: Unreachable) -> None:
        lost.append(node)
        stderr.tell(unreachable_text(error))

    return lost, on_loss


def _job_secrets_with_warnings(cluster: Cluster, job: KnownJob) -> JobSecrets:
    """The secrets of a job, after a warning on stderr about those that cannot be masked."""
    found = job_secrets(cluster, job)
    for unknown in found.unknown:
        stderr.line(f"warning: {printable_line(unknown)}")
    return found


def _print_outcome(outcome: Outcome) -> None:
    for finding in outcome.findings:
        if finding.cause == "peer-died":
            continue
        stdout.line("")
        stdout.line(f"{outcome.node}: {finding.cause}")
        stdout.line(f"   {printable_line(finding.says)}")
        stdout.line(f"   fix       {printable_line(finding.remedy)}")
        for line in finding.evidence[:12]:
            stdout.line(f"   evidence  {' '.join(printable_lines(line))}")


def _stop(cluster: Cluster, arguments: argparse.Namespace) -> int:
    job = cluster.job(arguments.job, alive=True)
    done = stop(cluster, job, now=arguments.now)
    lived = sum(map(len, names_of_living(job).values()))
    stdout.line(f"{job.id}: {done.ended} of {lived} processes that lived were ended")
    for name, names in done.left.items():
        stuck = "a process in state D ends only when its device answers"
        stdout.line(f"{name}: {', '.join(names)} still lives, though it was killed: {stuck}")
    for name, why in done.unsure.items():
        stdout.line(f"{name}: {printable_line(why)}")
    return EXIT_FAILED if done.left else EXIT_UNKNOWN if done.unsure else EXIT_DONE


def _clean(cluster: Cluster, arguments: argparse.Namespace) -> int:
    chosen = cluster.jobs() if arguments.all else [cluster.job(arguments.job)]
    code = EXIT_DONE
    for job in chosen:
        done = clean(cluster, job)
        if done.alive:
            lives = f"{count_text(sum(map(len, done.alive.values())), 'rank')} on {fold(done.alive)}"
            stdout.line(f"{job.id}: not removed, it lives with {lives}; `runbook stop {shell_word(job.id)}` first")
        for name, why in done.unsure.items():
            stdout.line(f"{job.id}: {name}: {printable_line(why)}")
        if done.removed:
            stdout.line(f"{job.id}: removed from {fold(done.removed)}")
        code = max(code, EXIT_FAILED if done.alive else EXIT_UNKNOWN if done.unsure else EXIT_DONE)
    silent = cluster.unreached if arguments.all else {}
    if not chosen and not silent:
        stdout.line("no job on these nodes")
    for silent_ones, error in fold_unreached(silent):
        stdout.line(f"{silent_ones} gave no answer: {printable_line(error.says)}")
    return max(code, EXIT_UNKNOWN) if silent else code


def _exit_code_for_missing(names: list[str]) -> int:
    """The exit code for logs that are whole or not; says on stderr what was not read."""
    if names:
        stderr.line(f"not everything was read: {', '.join(sorted(set(names)))}")
    return EXIT_UNKNOWN if names else EXIT_DONE


def _make_output_printer(arguments: argparse.Namespace) -> OutputCallback:
    """The function that prints the lines of ranks, of all or of those of --only-rank."""
    only = set(arguments.only_rank)
    lock = threading.Lock()

    def tell(place: ProcessSpec, stream: str, lines: list[str]) -> None:
        if only and not only & set(place.ranks):
            return
        lead = f"[{range_text(place.ranks[0], place.ranks[-1])} {place.node}] "
        text = "".join(f"{lead}{' '.join(printable_lines(line))}\n" for line in lines)
        with lock:
            (stdout if stream == "out" else stderr).tell(text)

    return tell


def _stop_event_on_signals(run: Run) -> threading.Event:
    """An event that Ctrl-C and SIGTERM set from now on: they end the command, not the job."""

    def enough(*_: object) -> None:
        run.stopping.set()
        run.hurry.set()

    for name in ("SIGINT", "SIGTERM"):
        signal.signal(getattr(signal, name), enough)
    return run.stopping


JobTableRow = Sequence[str]


def jobs_text(
    jobs: Sequence[Mapping[str, Any]], unreached: Mapping[str, Unreachable], *, ranks: bool, none: str
) -> str:
    """The text of `ps`. `jobs` are as `job_document` gives them; `none` is the line for no jobs."""
    rows: list[JobTableRow] = [
        ("JOB", "STAGE", "STATE", "ALIVE", "NODES", "STARTED", "CORES", "MEMORY", "GPU MEMORY", "STEP")
    ]
    lines = aligned_table([*rows, *map(_job_row, jobs)]) if jobs else [none] * bool(none)
    for job in jobs if ranks else ():
        lines += [
            "",
            visible_text(f"{job['job']}, {job['attempt']}:"),
            *aligned_table([RANK_HEADINGS, *map(_process_row, job["ranks"])]),
        ]
    for job in jobs:
        mute = [name for name in job["absent"] if name in unreached]
        if mute:
            lines.append(visible_text(f"{job['job']}: {fold(mute)} of it gives no answer"))
        if gone := [name for name in job["absent"] if name not in mute]:
            why = "cleaned there, or not in this inventory"
            lines.append(visible_text(f"{job['job']}: {fold(gone)} of it knows nothing of it now: {why}"))
        if job.get("left_out"):
            lines.append(visible_text(f"{job['job']}: {fold(job['left_out'])} of it {NODE_LEFT_OUT_TEXT}"))
        for node, damaged in job["damaged"].items():
            lines += [visible_text(f"{job['job']}: on {node} damaged: {printable_line(file)}") for file in damaged]
    lines += [
        visible_text(f"{names} gave no answer: {printable_line(why.says)}") for names, why in fold_unreached(unreached)
    ]
    return "\n".join(lines) + "\n"


def jobs_json(jobs: Sequence[Mapping[str, Any]], unreached: Mapping[str, Unreachable]) -> str:
    silent = {name: error.says for name, error in unreached.items()}
    return json.dumps({"version": 1, "jobs": list(jobs), "unreached": silent}, indent=2) + "\n"


RANK_HEADINGS = ("  RANK", "NODE", "STATE", "EXIT", "PID", "RAN", "CORES", "MEMORY", "GPU MEMORY", "STEP")


def _job_row(job: Mapping[str, Any]) -> JobTableRow:
    alive = [one for one in job["ranks"] if one["alive"]]
    count = f"{sum(len(one['ranks']) for one in alive)}/{sum(len(one['ranks']) for one in job['ranks'])}"
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(job["began"])) if job["began"] else "?"
    cpu = f"{sum(one['cpu'] for one in alive):.1f}" if alive else "-"
    memory = bytes_text(sum(one["rss"] for one in alive)) if alive else "-"
    gpu = [one["gpu_bytes"] for one in alive if one["gpu_bytes"] is not None]
    where = fold(job["nodes"])
    return (
        job["job"],
        job["stage"] or "?",
        job["state"],
        count,
        where,
        started,
        cpu,
        memory,
        bytes_text(sum(gpu)) if gpu else "-",
        _step_text(job["ranks"]),
    )


def _step_text(ranks: Sequence[Mapping[str, Any]]) -> str:
    """The highest step of these processes, steps a second since they were started, and how long ago it was reported."""
    known = [one for one in ranks if one.get("step") is not None]
    if not known:
        return "-"
    one = max(known, key=lambda one: (one["step"], -one["step_age_s"]))
    speed = "" if one["steps_per_s"] is None else f", {one['steps_per_s']:.3g}/s"
    return f"{one['step']:,}{speed}, {seconds_text(one['step_age_s'])} ago"


def _process_row(one: Mapping[str, Any]) -> JobTableRow:
    return (
        f"  {range_text(one['ranks'][0], one['ranks'][-1])}",
        one["node"],
        one["state"],
        "-" if one["code"] is None else str(one["code"]),
        str(one["pid"] or "-"),
        seconds_text(one["seconds"]) if one["seconds"] is not None else "-",
        f"{one['cpu']:.1f}" if one["alive"] else "-",
        bytes_text(one["rss"]) if one["alive"] else "-",
        bytes_text(one["gpu_bytes"]) if one["gpu_bytes"] is not None else "-",
        _step_text([one]),
    )
