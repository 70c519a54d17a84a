"""Where the ranks of this node stand, looked at again and again: who waits for others does so most of the time.

Argument: {"leaders": {rank: pid of the first process of its session}, "looks": int, "every_s": seconds between them,
"stacks": the folder where its processes write theirs when asked (stack_on_signal.py), or null: then nobody is asked}.
Gives {"ranks": {rank: {"pid", "states": a letter a look, as proc(5) has them, "stacks": [text of its main thread, a
look]}}, "busy": as halt.py tells it}.
"""

from __future__ import annotations

import threading
import time

from runbook.node.halt import busy, family, own_stacks, processes, tell_cpu
from runbook.node.proc import own_rank, stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from runbook.transport.answers import RankStanding, StandingAnswer

SHELLS = ("sh", "bash", "dash")
LONGEST = 8192


def look(arguments: dict[str, Any]) -> StandingAnswer:
    leaders = [int(pid) for pid in arguments["leaders"].values() if pid]
    before, begun = processes(set(leaders)), time.monotonic()
    chosen: dict[int, int] = {}
    for leader in leaders:
        for entry in family(before, leader):
            rank = own_rank(entry.pid)
            if rank is not None and entry.stat.comm not in SHELLS:
                chosen.setdefault(rank, entry.pid)  # those that come later are its data loaders
    found: dict[int, RankStanding] = {rank: {"pid": pid, "states": "", "stacks": []} for rank, pid in chosen.items()}
    for number in range(arguments["looks"]):
        threading.Event().wait(max(0.0, begun + number * arguments["every_s"] - time.monotonic()))
        states = {rank: state(pid) for rank, pid in chosen.items()}
        asked = [(pid, states[rank]) for rank, pid in chosen.items()]
        said = own_stacks(arguments["stacks"], asked) if arguments.get("stacks") else {}
        for rank, pid in chosen.items():
            found[rank]["states"] += states[rank]
            found[rank]["stacks"].append(current(said.get(str(pid), "")))
    after = processes(set(leaders))
    tell_cpu(before, after, time.monotonic() - begun)
    return {"ranks": {str(rank): told for rank, told in found.items()}, "busy": busy(after, leaders)}


def state(pid: int) -> str:
    """That of its main thread; X where it has gone."""
    its = stat(pid)
    return its.state if its else "X"


def current(text: str) -> str:
    """Of a dump of all threads the one that was asked."""
    at = text.rfind("Current thread ")
    return text[at:].partition("\n\n")[0][:LONGEST] if at >= 0 else ""
