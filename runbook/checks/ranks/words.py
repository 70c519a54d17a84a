"""How ranks are spoken of in findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runbook.model.commands import word
from runbook.model.regex import bounded
from runbook.model.units import bytes_text
from runbook.model.verdict import Finding

if TYPE_CHECKING:
    from runbook.checks.ranks.pool import RankMember, RankPool


PASSES_ON = bounded(
    r"/torch/(?:\S*/)?(?:c10d_logger|_ops|_contextlib|_tensor|_compile|eval_frame|external_utils)\.py\""
    r"|/torch/.* in (?:wrapper|wrapped|inner|_fn|decorate_\w+|__torch_function__|__call__|_call_impl|_wrapped_call_impl)$"
)
"""A frame in which torch only logs, decorates or dispatches somebody's call."""


def progress(member: RankMember) -> str:
    """How far a rank came, for people."""
    size, turn = member.place
    if size:
        text = f"at {bytes_text(size)}, iteration {turn} of {member.beat.get('turns', '?')}"
        return text + (f" (last finished size {bytes_text(member.finished_size)})" if member.finished_size else "")
    early = {"not started": "before its first line", "done": "before its first size"}
    return early.get(member.step, f"last step: {member.step}")


def rank_stopped(label: str, node: str, pid: object, state: str, wchan: object, when: str) -> Finding:
    """A rank whose process is in state T, t or D. `when` says what the others wait for, or for how long."""
    if state == "D":
        waits = str(wchan or "").strip("0") or "the kernel"
        return Finding(
            "rank-stopped",
            f"{label} sits in uninterruptible sleep: the kernel waits for a device or a file system; {when}",
            f"on {node}: `sudo cat /proc/{word(pid)}/stack`; a hung NFS mount or GPU driver needs the node's owner",
            (f"pid {pid} is in state D, waiting in {waits}",),
        )
    return Finding(
        "rank-stopped",
        f"{label} is stopped: somebody sent SIGSTOP, or a debugger holds it; {when}",
        f"on {node}: `kill -CONT {word(pid)}`, or detach the debugger",
        (f"pid {pid} is in state {state} (stopped)",),
    )


def stack_lines(members: Sequence[RankMember]) -> tuple[str, ...]:
    lines: list[str] = []
    for member in members:
        if member.stack:
            lines.append(f"{member.label} is in:")
            lines.extend(f"  {frame}" for frame in telling(member.stack)[:5])
    return tuple(lines)


def telling(stack: Sequence[str]) -> list[str]:
    """The frames without those by which torch passes a call on; all of them where it has no others."""
    return [frame for frame in stack if not PASSES_ON.search(frame)] or list(stack)


def log_name(pool: RankPool, member: RankMember) -> str:
    return str(pool.run.run_dir / "logs" / f"rank-{member.rank.rank:05d}.{member.rank.node}.log")


def kept(pool: RankPool) -> str:
    """Where the stacks and records lie that were taken."""
    return f"kept: stacks, flight records and process states of every rank: {pool.run.run_dir / 'hang'}"
