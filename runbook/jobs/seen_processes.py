"""What do a training's processes do at one moment: their states, their CPU use, the stacks of their main threads, and
the variables of torch, NCCL and gloo whose values differ between them?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runbook.checks.context import Facts
from runbook.jobs.attempt import ProcessSpec
from runbook.jobs.kept_processes import KeptProcess, KeptProcesses
from runbook.jobs.logs import log_tail
from runbook.jobs.watch import exception_at_end
from runbook.launch.ranks import network_environment
from runbook.model.units import bytes_text, first_items_text
from runbook.node.proc import SHELL_PROCESSES
from runbook.parsers.python_stacks import (
    CHILD_WAIT_FILES,
    LIBRARY_FILES,
    MODEL_WRAPPER_FILES,
    PEER_WAIT_FILES,
    STDLIB_FILES,
    THREAD_BLOCK_START,
    StackFrame,
    all_frames,
    frame_lines,
    is_waiting_for_peers,
    main_thread_frames,
    program_frame,
)
from runbook.transport.node_answers import RankConnections

MIN_WORKING_CPU_SHARE = 0.05
"""The least share of one CPU that may be work. A process that only checks again and again for a file uses less."""

MIN_COMPUTING_CPU_SHARE = 0.2
"""The least share of one CPU that means computing, or waiting actively, on a CPU that other programs may use as
well."""

MIN_STARVED_TIME_SHARE = 0.5
"""The least part of the time for which a process that hardly gets a CPU waits for one, or is held back by the quota of
its control group."""

IDLE_GPU_PERCENT, MIN_COLLECTIVE_GPU_PERCENT = 0, 50
"""The use of a GPU in percent, as nvidia-smi reports it (the part of the last second in which a kernel ran): of an idle
GPU, and the least of a GPU that waits in a collective."""

MIN_COPY_BYTES_PER_S = 64 * 1024.0
"""The least bytes a second that a process has to read or write to count as working."""

CHILD_STATES = {"T": "is stopped", "t": "is held by a debugger"}
"""In words, the states of a child for which its parent may wait."""

QUEUE_FILES = re.compile(r"/(?:queue|multiprocessing/queues)\.py$")
"""Files of Python's queues, between threads and between processes."""

THREAD_EXCEPTION = re.compile(
    r"""(?mx)
    ^Exception\ in\ thread\ ([^\n]{1,100}?):?\n Traceback\ [^\n]*\n (?:[\ \t][^\n]*\n)* ([^\s][^\n]{0,300})
    """
)
"""The text that Python prints when an exception ends a thread, while the main thread goes on."""

LOG_TAIL_BYTES = 16384
"""Bytes at the end of a log that are searched."""

NO_PYTHON_FRAME = "<no Python frame>"
"""What faulthandler writes for a thread that runs no Python code, such as the main thread while the interpreter
ends."""


@dataclass(frozen=True, slots=True)
class SeenProcess:
    """The main process of a rank as a look saw it. None means unknown in every field.

    `frames`: the stack of the main thread, the innermost frame first; empty if it could not be asked. `gpu_use`: in
    percent. `waited`, `throttled`: the parts of the time for which the process waited for a CPU, and its control group
    had used up its quota. `stays`: it was in this state at the beginning of the look as well. `connections`: how many
    open TCP connections it and its children have. `copied`: bytes a second that it and its children read and wrote.
    `moves`: it computed, and its stack differs from the look before. `ending`: its program is over, and its interpreter
    ends. `beside`: in words, what its other processes and threads do, if that is why it waits. `stopped_pid`: the pid
    of a child that is stopped, or 0. `raised`: the exception that ended its program, while it waits at its exit."""

    node: str
    label: str
    pid: int
    state: str
    wchan: str
    cpu: float
    has_gpu: bool
    frames: tuple[StackFrame, ...]
    gpu_use: int | None = None
    waited: float | None = None
    throttled: float | None = None
    stays: bool = True
    comm: str = ""
    connections: int | None = None
    copied: float = 0.0
    moves: bool = False
    ending: bool = False
    beside: tuple[str, ...] = ()
    stopped_pid: int = 0
    raised: str = ""

    @property
    def starved(self) -> bool:
        """Whether the process could run and hardly gets a CPU."""
        return self.cpu < MIN_COMPUTING_CPU_SHARE and (self.waited or 0.0) >= MIN_STARVED_TIME_SHARE

    @property
    def held_back(self) -> bool:
        """Whether the quota of its control group keeps the process from working."""
        return (self.throttled or 0.0) >= MIN_STARVED_TIME_SHARE

    @property
    def works(self) -> bool:
        """Whether the process makes progress of its own: it reads or writes data, or it computes in changing places. A
        process that could run and hardly gets a CPU counts too, unless a quota holds it back."""
        return self.moves or self.copied >= MIN_COPY_BYTES_PER_S or (self.starved and not self.held_back)

    @property
    def sleeps(self) -> bool:
        """Whether the main thread slept throughout the look, and the process used hardly any CPU."""
        return self.state == "S" and self.stays and self.cpu < MIN_COMPUTING_CPU_SHARE

    @property
    def together(self) -> bool:
        """Whether the main thread is in a call that waits for other ranks."""
        return self.awaits or is_waiting_for_peers(self.frames)

    @property
    def awaits(self) -> bool:
        """Whether the main thread waits, with `.wait()`, for a call that was begun before. That wait is no Python
        function and has no frame of its own, so the program's source line shows it."""
        if not self.frames or ".wait(" not in self.frames[0].source:
            return False
        return not any(files.search(self.frames[0].file) for files in (PEER_WAIT_FILES, LIBRARY_FILES))

    @property
    def elsewhere(self) -> bool:
        """Whether the main thread is certainly in no call that waits for other ranks. A line of the program may wait
        for a GPU without showing it: `loss.item()` is no Python function and has no frame."""
        may_wait = self.has_gpu and self.gpu_use != IDLE_GPU_PERCENT and not STDLIB_FILES.search(self.frames[0].file)
        return not self.together and not may_wait

    @property
    def waits(self) -> bool:
        """Whether the main thread is in a call that waits for other ranks, or its GPU is."""
        return self.together or (
            not self.elsewhere and self.gpu_use is not None and self.gpu_use >= MIN_COLLECTIVE_GPU_PERCENT
        )

    @property
    def surely_waits(self) -> bool:
        """Whether the main thread is in a call that waits for other ranks and computes nothing there: it is in a call
        of torch.distributed, or it has no GPU and uses hardly any CPU."""
        sleeps = self.cpu < MIN_COMPUTING_CPU_SHARE and self.state != "R" and not self.has_gpu
        return bool(self.called) or (self.together and sleeps)

    @property
    def called(self) -> str:
        """The name of the torch.distributed call that the main thread is in; empty if it is in none."""
        calls = (f.function for f in self.frames if "/torch/distributed/distributed_c10d.py" in f.file)
        return next(calls, "") if self.together else ""

    @property
    def own(self) -> StackFrame:
        """The program's own frame: where it stands, whatever library it has called."""
        return program_frame(self.frames)

    @property
    def place(self) -> str:
        """In words, where the program stands and which call that waits for other ranks it is in."""
        calls = (f for f in self.frames if PEER_WAIT_FILES.search(f.file) and not MODEL_WRAPPER_FILES.search(f.file))
        inner = next((f"in {frame.function} " for frame in calls), "in wait " if self.awaits else "")
        inner = inner if self.together else ""
        return f"{inner}at {self.own.file}:{self.own.line}, in {self.own.function}" if inner else f"in {self.own}"

    @property
    def does(self) -> str:
        """In words, what the process, its GPU and its children do."""
        words = [*(["its GPU is idle"] if self.gpu_use == IDLE_GPU_PERCENT else []), self._runs, *self.beside[:2]]
        return ", and ".join(words)

    @property
    def _runs(self) -> str:
        """In words, what the process does with CPUs and files."""
        quota = f", {self.throttled:.0%} out of the quota of its control group" if self.held_back else ""
        if self.starved:
            return f"it gets {self.cpu:.0%} of a CPU, and waits for one {self.waited:.0%} of the time{quota}"
        if self.held_back:
            return f"the quota of its control group holds it back {self.throttled:.0%} of the time"
        if self.copied >= MIN_COPY_BYTES_PER_S:
            return f"it reads or writes {bytes_text(round(self.copied))}/s"
        return (
            f"it computes ({self.cpu:.0%} of a CPU)"
            if self.cpu >= MIN_COMPUTING_CPU_SHARE or self.state == "R"
            else "it sleeps"
        )

    def shown(self) -> list[str]:
        return frame_lines(self.label, self.frames)


def seen_processes(kept: KeptProcesses, frozen: Mapping[str, Facts]) -> Iterator[SeenProcess]:
    """The main process of each rank that was seen, from the nodes' answers in `frozen`."""
    for member in kept.members:
        if (seen := member.seen_in(frozen)) is not None:
            facts = frozen[member.place.node]
            log = log_tail(kept.log_of(member.place), LOG_TAIL_BYTES)
            ended = [f"its thread {name} has ended with {error}" for name, error in THREAD_EXCEPTION.findall(log)[-1:]]
            for one in _member_rank_processes(member, seen, facts.get("gpu_use") or {}, facts["seconds"]):
                raised = exception_at_end(log) if one.ending or _is_at_exit(one.frames) else ""
                yield replace(one, beside=(*one.beside, *ended), raised=raised) if not member.place.each else one


def _member_rank_processes(
    member: KeptProcess, seen: Mapping[str, Any], gpu_use: Mapping[str, int], seconds: float
) -> Iterator[SeenProcess]:
    """The main process of each rank of one kept process, which is a rank or a launcher."""
    stacks = {int(pid): main_thread_frames(text) for pid, text in seen["own_stacks"].items()}
    of_ranks: dict[int, list[Mapping[str, Any]]] = {}
    for process in sorted(seen["processes"], key=lambda one: int(one["pid"])):
        if process["rank"] in member.place.ranks and process["comm"] not in SHELL_PROCESSES:
            of_ranks.setdefault(process["rank"], []).append(process)
    spied = main_thread_frames(seen["stack"] or "") if len(of_ranks) == 1 else ()
    for of_rank in of_ranks.values():
        process = _main_process(of_rank, stacks)
        label = f"rank {process['rank']} on {member.place.node}" if member.place.each else member.label
        frames = stacks.get(process["pid"]) or spied
        yield SeenProcess(
            node=member.place.node,
            label=label,
            pid=process["pid"],
            state=process["state"],
            wchan=process["wchan"],
            cpu=process["cpu"],
            has_gpu=bool(member.place.gpus),
            frames=frames,
            gpu_use=gpu_use.get(str(_gpu_of_rank(member.place, process["rank"]))),
            waited=process["waited"],
            throttled=seen["throttled"],
            stays=process["stays"],
            ending=not frames
            and (process["ending"] or NO_PYTHON_FRAME in seen["own_stacks"].get(str(process["pid"]), "")),
            comm=process["comm"],
            connections=seen["connections"],
            copied=sum(one["copied"] for one in of_rank) / max(0.1, seconds),
            beside=(
                *_stopped_child_texts(process, of_rank),
                *_child_place_texts(process, of_rank, stacks),
                *_exit_wait_texts(frames, seen["own_stacks"].get(str(process["pid"]), "")),
                *_queue_wait_texts(frames, seen["own_stacks"].get(str(process["pid"]), "")),
            ),
            stopped_pid=next(
                (one["pid"] for one in of_rank if _is_stopped_child(process, one) and one["state"] == "T"), 0
            ),
        )


def _stopped_child_texts(process: Mapping[str, Any], of_rank: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """In words, each child that is stopped or held by a debugger."""
    for one in of_rank:
        if _is_stopped_child(process, one):
            yield f"process {one['pid']}, which it started, {CHILD_STATES[one['state']]}"


def _is_stopped_child(process: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether another process of the rank is a stopped child of this process."""
    return bool(other["pid"] > process["pid"] and other["state"] in CHILD_STATES)


def _child_place_texts(
    process: Mapping[str, Any], of_rank: Sequence[Mapping[str, Any]], stacks: Mapping[int, Sequence[StackFrame]]
) -> Iterator[str]:
    """In words, where the children stand for which the main thread of a process waits."""
    frames = stacks.get(process["pid"], ())
    if any(CHILD_WAIT_FILES.search(frame.file) for frame in frames):
        for one in of_rank:
            its = stacks.get(one["pid"], ())
            if one["pid"] != process["pid"] and any(map(_is_child_start, its)):
                yield f"process {one['pid']}, which it started, is in {_non_library_frame(its) or its[0]}"


def _non_library_frame(frames: Sequence[StackFrame]) -> StackFrame | None:
    """The innermost frame that is the program's own and not a library's."""
    return next((frame for frame in frames if not LIBRARY_FILES.search(frame.file)), None)


def _is_at_exit(frames: Sequence[StackFrame]) -> bool:
    """Whether the program is over, and its interpreter waits for its threads."""
    return any(frame.function == "_shutdown" and frame.file.endswith("/threading.py") for frame in frames)


def _exit_wait_texts(frames: Sequence[StackFrame], text: str) -> Iterator[str]:
    """In words, the thread that keeps a process alive whose program is over."""
    if _is_at_exit(frames):
        others = (all_frames(block) for block in THREAD_BLOCK_START.split(text))
        held = [each for each in others if each and not any(frame.function == "_shutdown" for frame in each)]
        places = [frame for frame in map(_non_library_frame, held) if frame]
        yield "at its exit it waits for a thread of its own" + (f", in {places[0]}" if places else "")


def _queue_wait_texts(frames: Sequence[StackFrame], text: str) -> Iterator[str]:
    """In words, that the main thread waits for a queue. A thread that ended silently (`sys.exit`) never fills it."""
    if any(frame.function == "get" and QUEUE_FILES.search(frame.file) for frame in frames):
        alone = ": no other thread of it runs Python" if len(THREAD_BLOCK_START.split(text)) == 2 else ""
        yield f"waits for what another thread or process is to put into a queue{alone}"


def _gpu_of_rank(place: ProcessSpec, rank: int) -> int | None:
    """The index of the GPU that a rank uses; None if it has none, or several."""
    of_rank = dict(zip(place.ranks, place.gpus, strict=False)) if len(place.gpus) == len(place.ranks) else {}
    return of_rank.get(rank)


def _main_process(
    of_rank: Sequence[Mapping[str, Any]], stacks: Mapping[int, Sequence[StackFrame]]
) -> Mapping[str, Any]:
    """The main process of a rank: of the processes whose stack was read or cannot be asked for, the first started that
    is no child of multiprocessing, such as a data loader. If only such children qualify, the first process of all; if
    none qualifies, the process that uses most of the CPU. `of_rank` is in the order of pids."""
    of_loaders = {pid for pid, frames in stacks.items() if any(map(_is_child_start, frames))}
    readable = [one for one in of_rank if stacks.get(one["pid"]) or one["state"] in "TtD"]
    mains = [one for one in readable if one["pid"] not in of_loaders]
    if mains:
        return mains[0]
    return of_rank[0] if readable else max(of_rank, key=lambda process: process["cpu"])


def _is_child_start(frame: StackFrame) -> bool:
    """Whether this frame is the one in which Python's multiprocessing begins the work of a child."""
    return frame.function == "_bootstrap" and frame.file.endswith("/multiprocessing/process.py")


MAX_REPORTED_VARIABLES = 6
"""The most variables that are reported."""
MAX_VALUE_CHARACTERS = 60
"""The most characters of a value that are shown."""

EnvironmentValues = Mapping[str, str]
"""Values of environment variables by name."""


def rank_variables(kept: KeptProcesses, told: Mapping[str, Facts | RankConnections]) -> dict[str, EnvironmentValues]:
    """The variables of each rank, by the rank's label, with secrets masked. `told`: the answers of the nodes."""
    found: dict[str, EnvironmentValues] = {}
    for node, answer in told.items():
        masked = kept.logs.redactor_of(node).text
        for rank, settings in sorted((answer.get("settings") or {}).items(), key=lambda one: int(one[0])):
            found[f"rank {rank} on {node}"] = {name: masked(value) for name, value in settings.items()}
    return found


def unlike_settings(kept: KeptProcesses, told: Mapping[str, Facts | RankConnections]) -> list[str]:
    """A line for each variable of torch, NCCL or gloo whose value differs between the ranks that were seen. Variables
    that the inventory's network settings explain are left out."""
    seen, inventory = rank_variables(kept, told), kept.at.inventory
    explained = {name for node in inventory.nodes for name in network_environment(inventory, node)}
    lines = []
    for name in sorted({name for settings in seen.values() for name in settings} - explained):
        labels: dict[str | None, list[str]] = {}
        for label, settings in seen.items():
            labels.setdefault(settings.get(name), []).append(label)
        if len(labels) > 1:
            each = (f"{_value_text(value)} for {first_items_text(those, 4)}" for value, those in labels.items())
            lines.append(f"{name} is not the same everywhere: {', '.join(each)}")
    return lines[:MAX_REPORTED_VARIABLES]


def _value_text(value: str | None) -> str:
    if value is None:
        return "not set"
    return f"`{value if len(value) <= MAX_VALUE_CHARACTERS else value[:MAX_VALUE_CHARACTERS] + '…'}`"
