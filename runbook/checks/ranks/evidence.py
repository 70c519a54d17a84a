"""What can be seen of ranks that do not get on, from all nodes at once: the kernel's view, stacks, flight records.

Everything is kept in RUN_DIR/hang; what a verdict needs of it is put into the members.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from runbook.model.errors import Unreachable
from runbook.model.folder import BadName, write_below
from runbook.transport import ProgramNotStarted, Session, UnexpectedAnswer, answers

if TYPE_CHECKING:
    from runbook.checks.ranks.pool import RankMember, RankPool

WATCH_S = 0.4
"""How long a node watches its ranks: whether they use a CPU, and whether their connections carry anything."""

WRITE_S = 0.25
"""How long a rank gets to write its stacks and its flight record down."""

ASLEEP = "TtDZX"
"""States in which a process handles no signal: stopped, traced, in the kernel, dead."""


def gather(pool: RankPool, *, watch_s: float = WATCH_S, timeout_s: float = 6.0) -> None:
    """Look at every rank on every node that still answers, in parallel; back after `timeout_s` at the latest."""
    nodes = [name for name in dict.fromkeys(m.rank.node for m in pool.members) if name in pool.run.site.sessions]
    executor = ThreadPoolExecutor(max(1, min(64, len(nodes))), thread_name_prefix="evidence")
    wait([executor.submit(_gather_node, pool, name, watch_s) for name in nodes], timeout=timeout_s)
    executor.shutdown(wait=False, cancel_futures=True)
    pool.looked = time.monotonic()


def _gather_node(pool: RankPool, name: str, watch_s: float) -> None:
    session = pool.run.site.sessions[name]
    members = pool.on(name)
    alive = [member for member in members if member.remote and not member.over]
    leaders = {str(member.rank.rank): member.remote.pid for member in alive if member.remote}
    try:
        facts = session.call("halt", {"leaders": leaders, "seconds": watch_s}, timeout_s=5.0)
    except (Unreachable, ProgramNotStarted, TimeoutError):
        return
    pool.seen[name] = facts
    _keep(pool, f"{name}.json", json.dumps(pool.run.redactor.anything(facts), indent=1))
    asked: list[RankMember] = []
    for member in alive:
        seen = facts["ranks"].get(str(member.rank.rank), {})
        member.processes = seen.get("processes", [])
        member.works = bool(seen.get("works"))
        awake = not any(process["state"] in ASLEEP for process in member.processes)
        if awake and member.remote and "started" in member.steps:
            with contextlib.suppress(Unreachable):
                member.remote.signal("SIGUSR1")
                member.remote.tell({"do": "flight"})
                asked.append(member)
    if asked:
        time.sleep(WRITE_S)
    for member in members:
        if member in asked or member.over or member.failure:  # what a stopped rank once wrote down is of another time
            _read(pool, session, member, facts["ranks"].get(str(member.rank.rank), {}).get("stack"))


def _read(pool: RankPool, session: Session, member: RankMember, native: str | None) -> None:
    """What the rank wrote down by itself: its stacks, and its last collectives."""
    number = member.rank.rank
    place = f"rank-{number:05d}.{member.rank.node}"
    dump = _text_of(session, f"stack-{number}.txt")
    member.stack = main_stack(dump)
    if dump or native:
        _keep(pool, f"{place}.stack", dump + (f"\npy-spy:\n{native}" if native else ""))
    if "imported" in member.steps and (told := _text_of(session, f"flight-{number}.json")):
        _keep(pool, f"{place}.flight.json", told)
        with contextlib.suppress(UnexpectedAnswer):
            member.record = answers.flight(told.encode())


def _text_of(session: Session, path: str) -> str:
    try:
        return session.read_file(path).decode(errors="replace")
    except (Unreachable, ProgramNotStarted):
        return ""


def _keep(pool: RankPool, name: str, text: str) -> None:
    with contextlib.suppress(OSError, BadName):  # the verdict does not depend on the copy
        write_below(pool.run.run_dir, "hang", name, data=pool.run.redactor.text(text))


def main_stack(text: str) -> tuple[str, ...]:
    """The last dump of the main thread from what faulthandler wrote, innermost frame first."""
    dumps = re.split(r"^(?:(?:Current thread|Thread) 0x[0-9a-f]+|Stack \(most recent).*$", text, flags=re.MULTILINE)
    for block in reversed(dumps):
        frames = [line.strip() for line in block.splitlines() if line.strip().startswith("File ")]
        if any("rank.py" in frame and " in main" in frame for frame in frames):
            return tuple(frames[:8])
    return ()
