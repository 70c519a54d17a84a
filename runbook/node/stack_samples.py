"""Samples the states and stacks of this node's ranks: a rank that waits for others does so in most samples.

Argument: {"leaders": {rank: pid of the first process of its session}, "looks": int, "every_s": seconds between looks,
"stacks": the folder in which processes write their stacks when asked (stack_on_signal.py), or null: ask for none}.
Gives {"ranks": {rank: {"states": one letter a look, as in proc(5), "stacks": [one text a look, of the main thread],
"waited": the part of the time for which its main thread waited for a CPU, or null}}, "busy": as in rank_processes.py,
"sent": {address: {"bytes": that the ranks sent there meanwhile, "busy_s": seconds for which data was on its way, on the
busiest connection}} or null, "seconds": how long it looked}."""

from __future__ import annotations

import time

from runbook.node.cpu_waits import cpu_time, cpu_wait_share
from runbook.node.proc import SHELL_PROCESSES, process_rank, process_stat, sleep_seconds, socket_inodes
from runbook.node.rank_processes import busy_processes, note_cpu_shares, own_stacks, processes_by_pid, session_processes
from runbook.node.tcp_info import sent_to_each_address, tcp_connections

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from runbook.transport.node_answers import RankSamples, StackSamples

MAX_STACK_CHARACTERS = 8192  # the most characters of a stack


def look(arguments: dict[str, Any]) -> StackSamples:
    leaders = [int(pid) for pid in arguments["leaders"].values() if pid]
    before, tcp_before, begun = processes_by_pid(set(leaders)), tcp_connections(), time.monotonic()
    chosen: dict[int, int] = {}
    for leader in leaders:
        for entry in session_processes(before, leader):
            rank = process_rank(entry.pid)
            if rank is not None and entry.stat.comm not in SHELL_PROCESSES:
                chosen.setdefault(rank, entry.pid)  # processes with a higher pid are the rank's data loaders
    found: dict[int, RankSamples] = {rank: {"states": "", "stacks": [], "waited": None} for rank in chosen}
    cpu_before = {pid: cpu_time(pid) for pid in chosen.values()}
    for number in range(arguments["looks"]):
        sleep_seconds(max(0.0, begun + number * arguments["every_s"] - time.monotonic()))
        states = {rank: main_thread_state(pid) for rank, pid in chosen.items()}
        asked = [(pid, states[rank]) for rank, pid in chosen.items()]
        said = own_stacks(arguments["stacks"], asked) if arguments.get("stacks") else {}
        for rank, pid in chosen.items():
            found[rank]["states"] += states[rank]
            found[rank]["stacks"].append(main_thread_stack(said.get(pid, "")))
    after, tcp_after, seconds = processes_by_pid(set(leaders)), tcp_connections(), time.monotonic() - begun
    note_cpu_shares(before, after, seconds)
    for rank, pid in chosen.items():
        told = found[rank]
        told["waited"] = cpu_wait_share(cpu_before[pid], cpu_time(pid), seconds, set(told["states"]) == {"R"})
    ours = {
        inode for leader in leaders for entry in session_processes(after, leader) for inode in socket_inodes(entry.pid)
    }
    return {
        "ranks": {str(rank): told for rank, told in found.items()},
        "busy": busy_processes(after, leaders),
        "sent": sent_to_each_address(tcp_before, tcp_after, ours),
        "seconds": seconds,
    }


def main_thread_state(pid: int) -> str:
    """The state of a process's main thread; X if the process is gone."""
    its = process_stat(pid)
    return its.state if its else "X"


def main_thread_stack(text: str) -> str:
    """The last stack in a dump, which is the main thread's; empty if there is none."""
    at = max(text.rfind("Stack ("), text.rfind("Current thread "), text.rfind("\nThread "))
    return text[at:].partition("\n\n")[0][:MAX_STACK_CHARACTERS] if at >= 0 else ""
