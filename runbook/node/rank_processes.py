"""What does this node's kernel know about the processes of ranks that died or make no progress? Linux; elsewhere the
result is empty.

Argument: {"leaders": {rank: pid of the first process of its session}, "seconds": how long to watch, "stacks": the
folder in which processes of these sessions write their stacks when asked (stack_on_signal.py), or null, "gpus": the
indices of the GPUs whose use is wanted, or null}. Gives
{"ranks": {rank: {"processes": [{"pid", "state", "comm", "wchan", "rank" (RANK in its environment, or None), "cpu"
(share of one CPU meanwhile), "waited" (part of the time for which its main thread waited for a CPU, or None), "copied"
(bytes that it read and wrote meanwhile), "stays": whether it was in that state before as well, "ending": whether its
interpreter has ended, so that it cannot be asked any more}] of the session and their descendants, "throttled": the part
of the time for which the CPU quota of their control group held them back, or None, "works": whether they used a CPU or
read from a disk meanwhile, "connections": how many open TCP connections they have, or None if not known, "moved": bytes
that these connections carried meanwhile, or None, "queued": bytes that wait to be sent or acknowledged, "stack":
py-spy's output, or None, "own_stacks": {pid: the stacks that the process wrote itself, with the program's source line
below each innermost frame}}}, "busy": [{"pid", "user", "command", "cpu"}] of the other processes that use most of the
CPU, "carried": bytes that all interfaces but lo carried, "kernel_kills": how many processes the kernel killed for lack
of memory since boot, "kernel_says": [the kernel's lines about that], "gpu_use": {index: percent of the time in which a
kernel ran on it, as nvidia-smi reports} or null, "settings": {rank: its variables of torch, NCCL and gloo}, "seconds":
how long it watched}.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import stat as stat_module
import threading
import time

from runbook.node.cpu_waits import MAX_FAMILY_PROCESSES, cpu_quota, cpu_time, cpu_wait_share, throttled_share
from runbook.node.gpus import query_gpus
from runbook.node.proc import (
    Stat,
    account_name,
    all_pids,
    command_line,
    descriptor_targets,
    kernel_kills,
    process_arguments,
    process_rank,
    process_stat,
    process_uid,
    read,
    settings_of_ranks,
    sleep_seconds,
    socket_inodes,
    status_field,
)
from runbook.node.tcp_info import tcp_connections
from runbook.node.tools import find_tool, run, run_if_installed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from runbook.node.tcp_info import TcpInfo
    from runbook.transport.node_answers import BusyProcess, ProcessFacts, RankProcesses, RankSeen

    Processes = dict[int, "Process"]

MIN_BUSY_SHARE = 0.2  # the least share of a CPU of a process in `busy`
MIN_WORKING_SHARE = 0.05  # the least share of a CPU that is work
PY_SPY_TIMEOUT_S = 4.0  # seconds for all runs of py-spy
NVIDIA_SMI_TIMEOUT_S = 2.0  # seconds for nvidia-smi
STACK_SIGNAL = int(getattr(signal, "SIGRTMIN", 0)) + 7
ALL_STACKS_SIGNAL = STACK_SIGNAL + 1
"""The signals of stack_on_signal.py, which runs inside the training and cannot be imported here. The second asks for
the stacks of all threads, and may crash a process that works."""
THREADING_SHUTDOWN_FRAME = re.compile(r'/threading\.py", line \d+ in _shutdown$', re.MULTILINE)  # it waits for threads

STACK_TIMEOUT_S = 1.0
STARVED_STACK_TIMEOUT_S = 3.0
"""Seconds that a process has to write its stacks; the second, if it gets no CPU."""

STACK_FRAME = re.compile(r'^  File "([^"\n]{1,500})", line (\d{1,7}) in ')  # file and line of a frame
MAX_STACK_BYTES = 64 * 1024  # the most bytes of a stack that are read
MAX_SHOWN_CHARACTERS = 120  # the most characters of a command or a source line
TICKS_PER_SECOND: float = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
"""Clock ticks a second, the unit of times in /proc/PID/stat."""


def look(arguments: dict[str, Any]) -> RankProcesses:
    leaders = {rank: int(pid) for rank, pid in arguments["leaders"].items() if pid}
    before = Moment(leaders)
    stacks = py_spy_dumps(leaders)
    sleep_seconds(max(0.0, arguments["seconds"] - (time.monotonic() - before.clock)))
    after = Moment(leaders)
    note_cpu_shares(before.processes, after.processes, after.clock - before.clock)
    asked = [(entry.pid, entry.stat.state) for mine in after.ranks.values() for entry in mine]
    said = own_stacks(arguments["stacks"], asked, STARVED_STACK_TIMEOUT_S) if arguments.get("stacks") else {}
    ranks: dict[str, RankSeen] = {}
    for rank in leaders:
        ranks[rank] = rank_facts(rank, before, after, arguments.get("stacks"))
        ranks[rank]["stack"] = stacks.get(rank)
        told = {str(one.pid): said[one.pid] for one in after.ranks[rank] if one.pid in said}
        ranks[rank]["own_stacks"] = {pid: stacks_with_source(text) for pid, text in told.items()}
    return {
        "ranks": ranks,
        "busy": busy_processes(after.processes, leaders.values()),
        "carried": None if before.carried is None or after.carried is None else after.carried - before.carried,
        "kernel_kills": kernel_kills(),
        "kernel_says": kernel_says(),
        "gpu_use": gpu_use(arguments["gpus"]) if arguments.get("gpus") else None,
        "settings": settings_of_ranks(one.pid for mine in after.ranks.values() for one in mine),
        "seconds": after.clock - before.clock,
    }


class Moment:
    """The kernel's counts at one time. `ranks`: by rank, its processes."""

    def __init__(self, leaders: dict[str, int]) -> None:
        self.clock = time.monotonic()
        self.processes = processes_by_pid(set(leaders.values()))
        self.ranks = {rank: session_processes(self.processes, leader) for rank, leader in leaders.items()}
        self.cpu = {entry.pid: cpu_time(entry.pid) for mine in self.ranks.values() for entry in mine}
        self.copied = {entry.pid: bytes_copied(entry.pid) for mine in self.ranks.values() for entry in mine}
        self.quotas = {
            entry.pid: cpu_quota(entry.pid) for mine in self.ranks.values() for entry in mine[:MAX_FAMILY_PROCESSES]
        }
        self.tcp = tcp_connections()
        self.carried = interface_bytes()


def rank_facts(rank: str, before: Moment, after: Moment, stacks: str | None) -> RankSeen:
    """The facts about a rank between two moments. Its stacks are added later; `stacks` is their folder, or None."""
    mine, seconds = after.ranks[rank], after.clock - before.clock
    now, past = after.tcp or {}, before.tcp or {}
    known = {inode for entry in mine for inode in socket_inodes(entry.pid)} & set(now)
    held = [throttled_share(before.quotas.get(one.pid), after.quotas.get(one.pid), seconds) for one in mine]
    return {
        "processes": [process_facts(entry, before, after, stacks) for entry in mine],
        "works": makes_progress(before.ranks[rank], mine, seconds * TICKS_PER_SECOND),
        "connections": None if after.tcp is None else len(known),
        "moved": sum(connection_bytes(now[one]) - connection_bytes(past.get(one)) for one in known) if known else None,
        "queued": sum(min(now[one].queued, past[one].queued) for one in known if one in past),
        "stack": None,
        "own_stacks": {},
        "throttled": max((part for part in held if part is not None), default=None),
    }


def process_facts(entry: Process, before: Moment, after: Moment, stacks: str | None) -> ProcessFacts:
    was = before.processes.get(entry.pid)
    stays = was is not None and was.stat.state == entry.stat.state
    seconds, runnable = after.clock - before.clock, stays and entry.stat.state == "R"
    return {
        "pid": entry.pid,
        "state": entry.stat.state,
        "comm": entry.stat.comm,
        "wchan": read("/proc/%d/wchan" % entry.pid) or "",
        "rank": process_rank(entry.pid),
        "cpu": entry.cpu,
        "waited": cpu_wait_share(before.cpu.get(entry.pid), after.cpu.get(entry.pid), seconds, runnable),
        "copied": after.copied[entry.pid] - before.copied.get(entry.pid, after.copied[entry.pid]),
        "stays": stays,
        "ending": stacks is not None and has_interpreter_ended(entry.pid, stack_file_path(stacks, entry.pid)),
    }


class Process:
    """A process at one moment. `cpu`: the share of one CPU that it used since the moment before. `fetched`: the bytes
    that it has read from disks."""

    def __init__(self, pid: int, its: Stat, fetched: int) -> None:
        self.pid = pid
        self.stat = its
        self.fetched = fetched
        self.cpu = 0.0


def note_cpu_shares(before: Processes, after: Processes, seconds: float) -> None:
    """Notes for each process the share of one CPU that it used between two moments."""
    for pid, entry in after.items():
        used = entry.stat.ticks - before[pid].stat.ticks if pid in before else 0
        entry.cpu = round(used / TICKS_PER_SECOND / max(0.01, seconds), 2)


def busy_processes(entries: Processes, ours: Iterable[int]) -> list[BusyProcess]:
    """The processes outside of these sessions that use most of the CPU."""
    kin = {entry.pid for leader in ours for entry in session_processes(entries, leader)}
    others = [entry for pid, entry in entries.items() if pid not in kin and entry.cpu >= MIN_BUSY_SHARE]
    others.sort(key=lambda entry: -entry.cpu)
    return [
        {
            "pid": one.pid,
            "user": account_name(process_uid(one.pid)) or "?",
            "command": command_line(one.pid, MAX_SHOWN_CHARACTERS) or one.stat.comm,
            "cpu": one.cpu,
        }
        for one in others[:6]
    ]


def processes_by_pid(ours: set[int]) -> Processes:
    """Every process by pid; for the sessions in `ours` also the bytes that each has read."""
    found = {}
    for pid in all_pids():
        its = process_stat(pid)
        if its is not None:
            found[pid] = Process(pid, its, disk_bytes_read(pid) if its.session in ours else 0)
    return found


def session_processes(entries: Processes, leader: int) -> list[Process]:
    """The processes of a session and their descendants: a launcher gives each of its ranks a session of its own."""
    found = {pid for pid, entry in entries.items() if entry.stat.session == leader}
    while True:
        more = {pid for pid, entry in entries.items() if entry.stat.parent in found} - found
        if not more:
            return [entries[pid] for pid in sorted(found)]
        found |= more


def makes_progress(before: list[Process], after: list[Process], ticks: float) -> bool:
    """Whether a session makes progress of its own: it used CPU time, that of ended children included, or it read from a
    disk. `ticks`: the length of the time between."""
    used = sum(one.stat.ticks + one.stat.reaped for one in after) - sum(
        one.stat.ticks + one.stat.reaped for one in before
    )
    read_in = sum(one.fetched for one in after) - sum(one.fetched for one in before)
    return used >= MIN_WORKING_SHARE * ticks or read_in > 0


def disk_bytes_read(pid: int) -> int:
    """Bytes that a process has read from a disk or a file server; 0 if this user may not see that."""
    return io_counter(pid, "read_bytes")


def bytes_copied(pid: int) -> int:
    """Bytes that a process has read and written by system calls, from and to anything."""
    return io_counter(pid, "rchar") + io_counter(pid, "wchar")


def io_counter(pid: int, name: str) -> int:
    match = re.search(r"^%s: (\d+)$" % name, read("/proc/%d/io" % pid) or "", re.MULTILINE)
    return int(match.group(1)) if match else 0


def connection_bytes(connection: TcpInfo | None) -> int:
    return connection.acked + connection.received if connection else 0


def interface_bytes() -> int | None:
    """Bytes that all interfaces but lo have carried so far."""
    rows = [line.partition(":") for line in (read("/proc/net/dev") or "").splitlines() if ":" in line]
    if not rows:
        return None
    return sum(int(rest.split()[0]) + int(rest.split()[8]) for name, _, rest in rows if name.strip() != "lo")


def py_spy_dumps(leaders: dict[str, int]) -> dict[str, str]:
    """By rank, py-spy's dump of its threads, with native frames if possible; empty if py-spy is not installed."""
    said: dict[str, str] = {}

    def one(rank: str, pid: int) -> None:
        python = (process_arguments(pid) or [""])[0]
        beside = os.path.join(os.path.dirname(python), "py-spy")
        program = beside if os.path.isabs(beside) and os.access(beside, os.X_OK) else find_tool("py-spy")
        if program is None:
            return
        for options in (["--native"], []):
            answer = run([program, "dump", "--nonblocking"] + options + ["--pid", str(pid)], PY_SPY_TIMEOUT_S / 2)
            if answer.get("code") == 0 and answer["out"].strip():
                said[rank] = answer["out"]
                return

    threads = [threading.Thread(target=one, args=item, daemon=True) for item in leaders.items()]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PY_SPY_TIMEOUT_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(said)


def own_stacks(folder: str, asked_of: Iterable[tuple[int, str]], starved_s: float = STACK_TIMEOUT_S) -> dict[int, str]:
    """By pid, the stack of the main thread of each process that can be asked for it; if the process is over and waits
    for its threads, the stacks of all threads. `asked_of`: pids and states. `starved_s`: seconds without a CPU."""
    awake = [pid for pid, state in asked_of if state not in "TtZ"]
    said = stacks_at_signal(STACK_SIGNAL, folder, awake, starved_s)
    over = [pid for pid, text in said.items() if THREADING_SHUTDOWN_FRAME.search(text)]
    said.update(stacks_at_signal(ALL_STACKS_SIGNAL, folder, over, starved_s))
    return said


def stacks_at_signal(number: int, folder: str, pids: Iterable[int], starved_s: float) -> dict[int, str]:
    """By pid, what processes write when they get a signal. Not asked: processes that would die of the signal, or whose
    main thread blocks it, so that another thread would answer."""
    asked = {}
    for pid in pids:
        path = stack_file_path(folder, pid)
        if not catches_signal(pid, number) or has_signal_bit("SigBlk", pid, number):
            continue
        try:
            asked[pid] = path, os.stat(path).st_size
            os.kill(pid, number)
        except OSError:
            asked.pop(pid, None)
    said: dict[int, str] = {}
    begun, told = time.monotonic(), "Current thread " if number == ALL_STACKS_SIGNAL else "  File "
    while asked and time.monotonic() - begun < starved_s:
        sleep_seconds(0.05)
        for pid, (path, size) in asked.items():
            try:
                with open(path, "rb") as file:
                    file.seek(size)
                    said[pid] = file.read(MAX_STACK_BYTES).decode("utf-8", "replace")
            except OSError:
                continue
        silent = [pid for pid in asked if told not in said.get(pid, "")]
        if time.monotonic() - begun > STACK_TIMEOUT_S:
            silent = [pid for pid in silent if (its := process_stat(pid)) and its.state == "R"]
        if not silent:
            break
    return {pid: text for pid, text in said.items() if text}


def stack_file_path(folder: str, pid: int) -> str:
    return os.path.join(folder, "%d.stack" % pid)


def catches_signal(pid: int, number: int = STACK_SIGNAL) -> bool:
    """Whether a process can be asked for its stacks by this signal: a process that does not catch it would die."""
    return has_signal_bit("SigCgt", pid, number)


def has_signal_bit(field: str, pid: int, number: int) -> bool:
    """Whether a signal is in a set of signals in /proc/PID/status, which describes the main thread."""
    return bool(int(status_field(pid, field) or "0", 16) >> (number - 1) & 1)


def has_interpreter_ended(pid: int, path: str) -> bool:
    """Whether a process had an interpreter that could be asked, and the interpreter has ended while C++ libraries still
    end. `path` is the file of its stacks: open for as long as the process lives, but closed if the process has become
    another program."""
    try:
        return os.path.exists(path) and not catches_signal(pid) and os.path.realpath(path) in descriptor_targets(pid)
    except OSError:
        return False


def stacks_with_source(text: str) -> str:
    """A dump of stacks with the source line added below the innermost frame of each thread."""
    lines: list[str] = []
    innermost = False
    for line in text.splitlines():
        lines.append(line)
        match = STACK_FRAME.match(line) if innermost else None
        if match and (source := source_line(match.group(1), int(match.group(2)))):
            lines.append("    " + source)
        innermost = line.endswith("(most recent call first):")
    return "\n".join(lines)


def source_line(path: str, number: int) -> str:
    """A line of a source file; empty if it cannot be read."""
    try:
        if not stat_module.S_ISREG(os.stat(path).st_mode):
            return ""
        with open(path, encoding="utf-8", errors="replace") as file:
            found = next(itertools.islice(file, number - 1, number), "")
    except (OSError, ValueError):
        return ""
    return found.strip()[:MAX_SHOWN_CHARACTERS]


def gpu_use(indices: Iterable[int]) -> dict[str, int] | None:
    smi = find_tool("nvidia-smi")
    if smi is None:
        return None
    said = query_gpus(smi, ("index", "utilization.gpu"), NVIDIA_SMI_TIMEOUT_S, indices)
    rows = re.findall(r"^(\d+), *(\d+)(?: %)?$", said.get("out", ""), re.MULTILINE)
    return {index: int(percent) for index, percent in rows} or None


def kernel_says() -> list[str]:
    """The kernel's last lines about processes that it killed for lack of memory, if this user may read them."""
    answer = run_if_installed("dmesg", [], 2)
    lines = [
        line
        for line in answer.get("out", "").splitlines()
        if re.search(r"out of memory|oom-kill|Killed process", line, re.I)
    ]
    return lines[-3:]
