"""A training that has become slower, or a node that the others wait for: who it is, and why, where that can be seen.

In synchronous training all ranks make a step together, so that the late one does not show by its steps: it is the one that does
not wait. Main threads are looked at again and again, by their state, and by their stack where they can be asked. Whoever sleeps in
a call that all have to make waits for another rank. A node is accused only where one of its ranks hardly ever waits and all
ranks of all other nodes do, most clearly. Ranks with GPUs accuse nobody: their main threads wait for their own GPU as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from runbook.checks.context import Facts
from runbook.jobs.counters import clocks, gpus_of, held_back, rise
from runbook.jobs.pace import Slower
from runbook.jobs.stalled import TOGETHER, frames_of
from runbook.model.units import seconds_text
from runbook.model.verdict import Finding
from runbook.parsers.nvidia import Gpu

LOOKS = 24
EVERY_S = 0.4

HARDLY = 0.1
MUCH = 0.35
"""Of two ranks that wait alike, for a quarter of the time, 24 looks show one below and one above in one case of a hundred."""

BUSY = 0.5
"""A process that uses so much of a CPU, and is none of ours, is worth being named."""

HELD_BACK = 0.1
WAITED = 0.3
MEMORY = 0.05
"""Parts of the time: a control group out of its quota, processes that wait for a CPU, and for memory."""

PAGES = 1000
"""Pages a second that are swapped: 4 MB."""


@dataclass(frozen=True, slots=True)
class Waits:
    """A rank, and for what part of the looks it waited for others; None where too few of them told."""

    node: str
    label: str
    share: float | None


@dataclass(frozen=True, slots=True)
class Late:
    """The node that the others wait for."""

    node: str
    says: str


def waits(node: str, label: str, states: str, stacks: Sequence[str], *, by_stack: bool) -> Waits:
    """From the states, and where `by_stack` from the stacks, of a rank's main thread, one a look."""
    told: list[bool] = []
    for state, text in zip(states, stacks, strict=False):
        frames = frames_of(text) if by_stack else ()
        if state in "RD":
            told.append(False)
        elif state == "S" and (frames or not by_stack):
            told.append(not by_stack or any(TOGETHER.search(frame.file) for frame in frames))
    return Waits(node, label, sum(told) / len(told) if len(told) >= LOOKS / 2 else None)


def late(seen: Sequence[Waits]) -> Late | None:
    """The node that all others wait for; None where none can be told from the others."""
    shares = [(one, one.share) for one in seen if one.share is not None]
    if len(shares) < len(seen):
        return None
    guilty = {one.node for one, share in shares if share <= HARDLY}
    waiting = [share for one, share in shares if one.node not in guilty]
    if len(guilty) != 1 or not waiting or min(waiting) < MUCH:
        return None
    one, least = min(shares, key=lambda pair: pair[1])
    return Late(
        one.node,
        f"the others wait for {one.node}: {one.label} waits for others {least:.0%} of the time, and every rank of the other "
        f"nodes at least {min(waiting):.0%}",
    )


def reasons(node: str, then: Facts | None, now: Facts | None, busy: Sequence[Facts]) -> Iterator[str]:
    """What slows a node down, as far as its own counters tell. `busy`: the processes of others that use its CPUs."""
    if then is not None and now is not None:
        yield from _of_machine(node, then, now)
    for gpu in gpus_of(now) if now is not None else ():
        if held := held_back(gpu):
            yield f"GPU {gpu.index} of {node} is slowed down: {', '.join(held)}{clocks(gpu)}"
    for one in busy:
        if one["cpu"] >= BUSY:
            yield f"another process on {node} uses {one['cpu']:.0%} of a CPU: pid {one['pid']} of {one['user']}, {one['command']}"


def _of_machine(node: str, then: Facts, now: Facts) -> Iterator[str]:
    seconds = max(0.001, now["clock"] - then["clock"])

    def risen(name: str) -> float:
        return (rise(then["machine"].get(name), now["machine"].get(name)) or 0) / seconds

    if (share := risen("quota_us") / 1e6) >= HELD_BACK:
        yield f"the ranks of {node} are held back by the CPU quota of their control group, {share:.1f} s in each second"
    if (share := risen("memory_waited_us") / 1e6) >= MEMORY:
        yield f"processes on {node} wait for memory {share:.0%} of the time"
    if (pages := risen("pswpin") + risen("pswpout")) >= PAGES:
        yield f"{node} swaps {pages:,.0f} pages a second"
    if (share := risen("cpu_waited_us") / 1e6) >= WAITED:
        yield f"processes on {node} wait for a CPU {share:.0%} of the time"


def unlike(gpus: Mapping[str, Sequence[Gpu]]) -> list[str]:
    """Nodes of which a GPU is held back, where others are not."""
    held = [node for node, found in gpus.items() if any(held_back(gpu) for gpu in found)]
    return held if len(held) < len(gpus) else []


def judge(
    slower: Slower | None, found: Late | None, why: Mapping[str, Sequence[str]], nodes: Sequence[str]
) -> dict[str, Finding]:
    """A finding by node; none where nothing is to be said. `why`: reasons by node. `slower` is None where the training was
    looked at for late nodes alone."""
    pace = pace_text(slower) if slower else ""
    if found is not None:
        own = why.get(found.node, ())
        says = "; ".join([*([pace] if pace else []), found.says, *own[:2]])
        remedy = _remedy(found.node, own)
        return {found.node: Finding("training-slowed", says, remedy, tuple(own))}
    if slower is None:
        return {}
    evidence = [line for node in nodes for line in why.get(node, ())]
    if not evidence and not slower.at_once:
        return {}  # the steps themselves may have grown
    suspects = [node for node in nodes if why.get(node)]
    if len(suspects) == 1:
        node = suspects[0]
        says = f"{pace}; no node is seen to be late, and of {node} alone there is something to say: {why[node][0]}"
        return {node: Finding("training-slowed", says, _remedy(node, why[node]), tuple(evidence))}
    says = f"{pace}; no node can be told from the others" + (f": {'; '.join(evidence[:2])}" if evidence else "")
    remedy = (
        "see what changed then: more work a step (longer sequences, a larger batch), data that comes more slowly, the network "
        "that all share; the stage `links`, run beside it, tells of the network"
    )
    return {node: Finding("training-slowed", says, remedy, tuple(evidence)) for node in nodes[:1]}


def pace_text(slower: Slower) -> str:
    how = "at once" if slower.at_once else "by and by"
    was, now = seconds_text(slower.before_s), seconds_text(slower.now_s)
    return f"the training is {slower.lost:.0%} slower than in its first minutes, {how}: {now} a step, {was} before"


def _remedy(node: str, why: Sequence[str]) -> str:
    first = why[0] if why else ""
    if "quota" in first:
        return f"on {node}: raise that quota (`cpu.max`, a pod's `limits: cpu`), or start fewer processes there"
    if first.startswith("GPU "):
        return f"on {node}: `nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`; its cooling and power; drain it if it stays so"
    if "swap" in first or "memory" in first:
        return f"on {node}: `free -m`, `vmstat 1`; less work a rank, or more memory"
    return f"see what {node} is doing: `top`, `vmstat 1`, `nvidia-smi`, the interface's counters; leave it out if it stays so"
