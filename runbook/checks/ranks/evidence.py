"""What can be seen of ranks that make no progress, on all nodes at once, and how findings describe it.

The kernel's view, the stacks and the flight records are kept in RUN_DIR/hang. What a verdict needs of them is stored in
the RankMember of each rank."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from runbook.causes.catalogue import finding_for
from runbook.model.command_quoting import shell_word
from runbook.model.errors import Unreachable
from runbook.model.safe_files import BadName, write_file_below
from runbook.model.text_search import compile_bounded
from runbook.model.units import bytes_text
from runbook.model.verdict import Finding
from runbook.transport import node_answers
from runbook.transport.frames import UnexpectedAnswer
from runbook.transport.remote_program import ProgramNotStarted
from runbook.transport.session import Session

if TYPE_CHECKING:
    from runbook.checks.ranks.pool import RankMember, RankPool


RANK_OBSERVATION_S = 0.4
"""Seconds for which a node watches its ranks: whether they use a CPU, and whether their connections carry data."""

STACK_DUMP_WAIT_S = 0.25
"""Seconds that a rank usually takes at most to write down its stacks and its flight record."""
STACK_DUMP_TIMEOUT_S = 2.0
"""Seconds that a rank has for that: it may get no CPU."""

MAX_BUSY_PROGRAMS = 4
"""How many busy programs of a node are shown."""

SIGNAL_DEAF_STATES = "TtDZX"
"""States of a process that handles no signal: stopped, traced, waiting in the kernel, or dead."""


def gather_evidence(pool: RankPool, *, watch_s: float = RANK_OBSERVATION_S, timeout_s: float = 6.0) -> None:
    """Looks at every rank on every node that still answers, in parallel. Returns after `timeout_s` at the latest."""
    nodes = [name for name in dict.fromkeys(m.rank.node for m in pool.members) if name in pool.run.site.sessions]
    executor = ThreadPoolExecutor(max(1, min(64, len(nodes))), thread_name_prefix="evidence")
    wait([executor.submit(_gather_node, pool, name, watch_s) for name in nodes], timeout=timeout_s)
    executor.shutdown(wait=False, cancel_futures=True)
    pool.looked = time.monotonic()


def _gather_node(pool: RankPool, name: str, watch_s: float) -> None:
    """Looks at the ranks of one node, and has them write down their stacks and flight records."""
    session = pool.run.site.sessions[name]
    members = pool.on(name)
    alive = [member for member in members if member.remote and not member.over]
    leaders = {str(member.rank.rank): member.remote.pid for member in alive if member.remote}
    try:
        facts = session.call("rank_processes", {"leaders": leaders, "seconds": watch_s}, timeout_s=5.0)
    except (Unreachable, ProgramNotStarted, TimeoutError):
        return
    pool.seen[name] = facts
    _keep_evidence_file(pool, f"{name}.json", json.dumps(pool.run.redactor.anything(facts), indent=1))
    asked: list[RankMember] = []
    for member in alive:
        seen = facts["ranks"].get(str(member.rank.rank), {})
        member.processes = seen.get("processes", [])
        member.works = bool(seen.get("works"))
        awake = not any(process["state"] in SIGNAL_DEAF_STATES for process in member.processes)
        if awake and member.remote and "started" in member.steps:
            with contextlib.suppress(Unreachable):
                member.remote.signal("SIGUSR1")
                member.remote.tell({"do": "flight"})
                asked.append(member)
    # The files of a rank that was not asked and goes on are out of date.
    awaited = [member for member in members if member in asked or member.over or member.failure]
    ends = time.monotonic() + STACK_DUMP_TIMEOUT_S
    while awaited:
        if asked:
            time.sleep(STACK_DUMP_WAIT_S)
        for member in awaited:
            _read_rank_files(pool, session, member, facts["ranks"].get(str(member.rank.rank), {}).get("stack"))
        awaited = [member for member in awaited if member in asked and not member.stack and time.monotonic() < ends]


def _read_rank_files(pool: RankPool, session: Session, member: RankMember, native: str | None) -> None:
    """Reads what the rank wrote down itself: its stacks and its last collectives. `native`: the stack that py-spy saw,
    or None."""
    number = member.rank.rank
    place = member.rank.file_stem
    dump = _node_file_text(session, f"stack-{number}.txt")
    member.stack = last_dumped_stack(dump)
    if dump or native:
        _keep_evidence_file(pool, f"{place}.stack", dump + (f"\npy-spy:\n{native}" if native else ""))
    if "imported" in member.steps and (recorded := _node_file_text(session, f"flight-{number}.json")):
        _keep_evidence_file(pool, f"{place}.flight.json", recorded)
        with contextlib.suppress(UnexpectedAnswer):
            member.record = node_answers.decode_flight_record(recorded.encode())


def _node_file_text(session: Session, path: str) -> str:
    """The text of a file in the run's folder on the node; "" when it cannot be read."""
    try:
        return session.read_file(path).decode(errors="replace")
    except (Unreachable, ProgramNotStarted):
        return ""


def _keep_evidence_file(pool: RankPool, name: str, text: str) -> None:
    """Writes a file into RUN_DIR/hang, without secrets."""
    with contextlib.suppress(OSError, BadName):  # the verdict does not need the copy
        write_file_below(pool.run.run_dir, "hang", name, data=pool.run.redactor.text(text))


def last_dumped_stack(text: str) -> tuple[str, ...]:
    """The last stack of the main thread in a dump by faulthandler, innermost frame first; empty when there is none."""
    dumps = re.split(r"^(?:(?:Current thread|Thread) 0x[0-9a-f]+|Stack \(most recent).*$", text, flags=re.MULTILINE)
    for block in reversed(dumps):
        frames = [line.strip() for line in block.splitlines() if line.strip().startswith("File ")]
        if any("rank.py" in frame and " in main" in frame for frame in frames):
            return tuple(frames[:8])
    return ()


PASSTHROUGH_FRAME = compile_bounded(
    r"/torch/(?:\S*/)?(?:c10d_logger|_ops|_contextlib|_tensor|_compile|eval_frame|external_utils)\.py\""
    r"|/torch/.* in (?:wrapper|wrapped|inner|_fn|decorate_\w+|__torch_function__"
    r"|__call__|_call_impl|_wrapped_call_impl)$"
)
"""A frame in which torch only logs, decorates or dispatches a call."""


def rank_progress_text(member: RankMember) -> str:
    """How far a rank came, in words."""
    size, turn = member.place
    if size:
        text = f"at {bytes_text(size)}, iteration {turn} of {member.beat.get('turns', '?')}"
        return text + (f" (last finished size {bytes_text(member.finished_size)})" if member.finished_size else "")
    early = {"not started": "before its first line", "done": "before its first size"}
    return early.get(member.step, f"last step: {member.step}")


def rank_stopped(label: str, node: str, pid: object, state: str, wchan: object, when: str) -> Finding:
    """A finding for a rank whose process is in state T, t or D. `when` says what the others wait for, or for how long
    they wait."""
    if state == "D":
        waits = str(wchan or "").strip("0") or "the kernel"
        says = f"{label} is in uninterruptible sleep: the kernel waits for a device or a file system; {when}"
        seen = (f"pid {pid} is in state D, waiting in {waits}",)
        return finding_for("rank-stopped", says, seen, way="waits", node=node, pid=shell_word(pid))
    says = f"{label} is stopped, by SIGSTOP or by a debugger; {when}"
    seen = (f"pid {pid} is in state {state} (stopped)",)
    return finding_for("rank-stopped", says, seen, way="stopped", node=node, pid=shell_word(pid))


def stack_lines(members: Sequence[RankMember]) -> tuple[str, ...]:
    """The stacks of these ranks as lines of evidence, five frames each; ranks without a known stack are left out."""
    lines: list[str] = []
    for member in members:
        if member.stack:
            lines.append(f"{member.label} is in:")
            lines.extend(f"  {frame}" for frame in telling_frames(member.stack)[:5])
    return tuple(lines)


def busy_program_lines(seen: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Other programs that used a CPU of a node when its ranks were last looked at, the busiest first, as lines of
    evidence. `seen`: what was seen there, if anything."""
    return tuple(
        f"pid {one['pid']} of {one['user']} uses {one['cpu']:.0%} of a CPU: {one['command']}"
        for one in (seen or {}).get("busy", ())[:MAX_BUSY_PROGRAMS]
    )


def telling_frames(stack: Sequence[str]) -> list[str]:
    """The frames of a stack without those in which torch only passes a call on; all frames if there are no others."""
    return [frame for frame in stack if not PASSTHROUGH_FRAME.search(frame)] or list(stack)


def rank_log_path(pool: RankPool, member: RankMember) -> str:
    """The file on this machine that keeps what a rank printed."""
    return str(pool.run.run_dir / "logs" / f"{member.rank.file_stem}.log")


def kept_evidence_line(pool: RankPool) -> str:
    """A line of evidence that says in which folder the stacks and records are kept."""
    return f"kept: stacks, flight records and process states of every rank: {pool.run.run_dir / 'hang'}"


def stopped_process_finding(member: RankMember, process: dict[str, object], doing: str) -> Finding:
    """The finding for a rank with this process in state T, t or D."""
    when = f"{doing}, {rank_progress_text(member)}"
    return rank_stopped(
        member.label, member.rank.node, process["pid"], str(process["state"]), process.get("wchan"), when
    )
