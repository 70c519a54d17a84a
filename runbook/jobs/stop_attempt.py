"""End an attempt: evidence first, then TERM to all, grace, KILL; only what was seen to end counts as ended."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait

from runbook.checks.context import Facts
from runbook.jobs.processes import OVER, KeptProcesses
from runbook.jobs.watch import NEXT_S, fetch
from runbook.model.errors import Unreachable
from runbook.model.safe_files import BadName, write_below
from runbook.transport import ProgramNotStarted

LOOK_S = 9.0
DRAIN_S = 4.0
"""How long a node may answer with too little of the logs that it has, before the rest is left there."""
LEAST = 4096
"""Bytes that `node/job_control.py` sends at least of a log that goes on behind them. A node that sends fewer does not
have what it says."""

DRAIN_MOST_S = 1800.0


def freeze(kept: KeptProcesses, *, seconds: float = 0.3) -> dict[str, Facts]:
    """What the survivors do, from all nodes at once: states, stacks, and their CPU time and traffic for this long. Kept
    in RUN_DIR/hang; returns after LOOK_S and that time."""
    found: dict[str, Facts] = {}

    def look(name: str) -> None:
        alive = {str(m.place.ranks[0]): m.journal["pid"] for m in kept.on(name) if not m.over and m.journal.get("pid")}
        session = kept.at.run.site.sessions.get(name)
        if session is None or not alive:
            return
        with contextlib.suppress(Unreachable, ProgramNotStarted, TimeoutError):
            gpus = sorted({gpu for m in kept.on(name) if not m.over for gpu in m.place.gpus})
            order = {"leaders": alive, "seconds": seconds, "stacks": kept.stacks.get(name), "gpus": gpus}
            found[name] = session.call("rank_processes", order, timeout_s=LOOK_S + seconds)

    _everywhere(kept, look, LOOK_S + seconds, at_once=len(kept.folders))
    for name, facts in found.items():
        text = json.dumps(kept.logs.redactor_of(name).anything(facts), indent=1)
        with contextlib.suppress(OSError, BadName):
            write_below(kept.at.run.run_dir, "hang", f"{kept.folder}.{name}.json", data=text)
    return found


def end(kept: KeptProcesses, *, grace_s: float, why: str, hurry: Callable[[], bool] = lambda: False) -> list[str]:
    """Stop every process that lives, on every node that answers. Gives the names of nodes where that is not certain.

    `hurry` is asked meanwhile: true cuts the grace short.
    """
    for member in kept.members:
        if member.remote is None or member.gone:
            continue
        with contextlib.suppress(Unreachable):
            if member.state == "none":  # it never sent anything, and has started nothing
                member.remote.signal("SIGKILL")
            else:
                member.remote.feed(f"stop {grace_s:g} {why}\n".encode())
    if kept.members and all(member.remote is None for member in kept.members):
        _order(kept, {"do": "stop"})
    deadline = time.monotonic() + grace_s + 6.0
    while time.monotonic() < deadline and not hurry() and not all(member.gone for member in kept.members):
        kept.drain(0.1)
        for name in kept.nodes:
            session = kept.at.run.site.sessions.get(name)
            if session is not None and session.lost:
                kept.lose(name, session.lost)
    unsure = {name for name in kept.nodes if name not in kept.live_nodes()}
    gone = {m.place.node for m in kept.members if m.keeper_gone or m.state != OVER or not m.gone}
    if gone:
        for name, answer in _order(kept, {"do": "kill"}, gone - unsure).items():
            if not isinstance(answer, dict) or any(journal["lives"] for journal in answer["kept"]):
                unsure.add(name)
    return sorted(unsure)


def drain(kept: KeptProcesses) -> list[str]:
    """Fetch every log as far as it has been written by now, for as long as data comes and the user does not press for
    an end. Returns the names of nodes that still have some of it."""
    end = time.monotonic() + DRAIN_MOST_S

    def rest(name: str) -> None:
        session = kept.at.run.site.sessions.get(name)
        deadline, wanted, here = time.monotonic() + DRAIN_S, None, kept.fetched(name)
        while session is not None and not session.lost and time.monotonic() < min(deadline, end):
            if not fetch(kept, session, name) or kept.at.hurry.is_set():
                return
            if wanted is None:
                wanted = kept.fetched(name) + kept.unread[name]  # what is written meanwhile is fetched another time
            if kept.fetched(name) >= wanted or not kept.unread[name]:
                kept.unread[name] = 0
                return
            enough = kept.fetched(name) - here >= LEAST
            here = kept.fetched(name)
            deadline = time.monotonic() + DRAIN_S if enough else deadline
            time.sleep(NEXT_S if enough else 0.05)

    for name in kept.nodes:
        kept.unread[name] = 1  # until the node has said that there is nothing
        kept.seen.pop(name, None)
    _everywhere(kept, rest, DRAIN_MOST_S, unless=kept.at.hurry.is_set)
    kept.drain(0.0)
    kept.logs.close()
    return [name for name in kept.nodes if kept.unread.get(name)]


def clean(kept: KeptProcesses, names: Collection[str]) -> None:
    """Remove what the attempts wrote on these nodes: all of it is here."""
    sessions = kept.at.run.site.sessions

    def one(name: str) -> None:
        with contextlib.suppress(Unreachable, ProgramNotStarted, TimeoutError):
            sessions[name].call("job_control", {"do": "clean", "folder": sessions[name].folder}, timeout_s=5.0)

    _everywhere(kept, one, 8.0, {name for name in names if name in sessions and not sessions[name].lost})


def _order(kept: KeptProcesses, order: Facts, names: set[str] | None = None) -> dict[str, object]:
    found: dict[str, object] = {}

    def one(name: str) -> None:
        session = kept.at.run.site.sessions.get(name)
        if session is None:
            return
        try:
            found[name] = session.call("job_control", {**order, "folder": kept.folders[name]}, timeout_s=10.0)
        except (Unreachable, ProgramNotStarted, TimeoutError) as error:
            found[name] = error

    _everywhere(kept, one, 12.0, names)
    return found


def _everywhere(
    kept: KeptProcesses,
    work: Callable[[str], None],
    timeout_s: float,
    names: set[str] | None = None,
    *,
    at_once: int = 64,
    unless: Callable[[], bool] = lambda: False,
) -> None:
    """Do this for each node, so many `at_once`, until the time is up or `unless` is true."""
    chosen = [name for name in kept.folders if names is None or name in names]
    pool = ThreadPoolExecutor(max(1, min(at_once, len(chosen))), thread_name_prefix="job")
    working: Collection[Future[None]] = [pool.submit(work, name) for name in chosen]
    deadline = time.monotonic() + timeout_s
    while working and not unless() and (left_s := deadline - time.monotonic()) > 0:
        working = wait(working, timeout=min(0.2, left_s)).not_done
    pool.shutdown(wait=False, cancel_futures=True)
