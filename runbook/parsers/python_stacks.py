"""Reads the stacks of Python processes, as faulthandler and py-spy print them, and tells who waits for other ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from runbook.model.units import count_text
from runbook.parsers.tool_reading import Reading

FAULTHANDLER_FRAME = re.compile(r'^  File "([^"\n]{1,500})", line (\d{1,9}) in ([^\n]{1,200})$')
"""A frame in a dump by faulthandler: file, line, function."""

SOURCE_LINE = re.compile(r"^ {4}([^\s][^\n]{0,200})$")
"""The source line that `node/rank_processes.py` adds below the innermost frame of a dump."""

PY_SPY_FRAME = re.compile(r"^ {4}([^\s(][^(\n]{0,200}) \(([^\n]{1,500}):(\d{1,9})\)$")
"""A frame in a dump by py-spy: function, file, line."""

THREAD_BLOCK_START = re.compile(r"^(?=(?:Current thread|Thread|Stack) )", re.MULTILINE)
"""The beginning of each thread's block in a dump."""

MAX_DUMPED_THREADS = 100
"""The most threads whose stacks faulthandler writes."""

FATAL_ERROR_PREFIX = "Fatal Python error: "
"""The beginning of faulthandler's dump when a fault of the process itself, such as a segmentation fault, ends it."""

PEER_WAIT_FILES = re.compile(
    r"""(?x)
    /torch/(?:distributed|nn/parallel|cuda|xpu|npu)/ | /torch/autograd/graph\.py | /torch/_tensor\.py
    | /(?:deepspeed/comm|horovod|oneccl_bindings_for_pytorch|torch_npu|torch_xla)/
    | /jax/_src/(?:array|dispatch|distributed|api|pjit|compiler|xla_bridge|interpreters/)
    | /jax/experimental/multihost_utils | /mpi4py/
    """
)
"""Files of calls that wait for other ranks, or for a GPU that waits for other ranks."""

MODEL_WRAPPER_FILES = re.compile(
    r"/torch/(?:nn/parallel|distributed/(?:fsdp|tensor|_tensor|_composable|algorithms|pipelining|optim))/"
)
"""Files that PEER_WAIT_FILES matches and that are also on the stack while a wrapped model computes: they alone do not
show a wait."""

CHILD_WAIT_FILES = re.compile(r"/torch/utils/data/dataloader\.py$|/multiprocessing/\w+\.py$|/concurrent/futures/")
"""Files of calls that wait for processes which a rank has started."""

STDLIB_FILES = re.compile(r"/lib/python\d[\d.]*/(?!(?:site|dist)-packages/)")
"""Files of Python's own library."""

LIBRARY_FILES = re.compile(r"/(?:site|dist)-packages/|/lib/python\d[\d.]*/|^<(?:frozen|string)")
"""Files of any library, and code without a file."""

PY_SPY_THREAD = re.compile(
    r"^Thread (?:0x)?([\da-fA-F]{1,16}) \((?:active|idle)[^)\n]{0,40}\): \"MainThread\"", re.MULTILINE
)
"""The heading of a process's main thread in a dump by py-spy; it numbers it as the process, or by its address."""

PY_SPY_PROCESS = re.compile(r"Process (\d{1,9}): ")
"""The heading of a process."""

MAX_HEADING_LINES = 4
"""The most lines from the heading of a process to that of its main thread."""

DATA_LOADER_FILES = re.compile(r"(?:^|/)torch/utils/data/dataloader\.py$")
DATA_LOADER_WORKER_FILES = re.compile(r"(?:^|/)torch/utils/data/_utils/worker\.py$")

COMMON_LIBRARY_FILES = re.compile(
    r"""(?x) ^(?:
    threading | queue | selectors | socket | ssl | subprocess | runpy | contextlib | functools | inspect | codecs
    | logging/\w+ | http/\w+ | urllib/\w+ | json/\w+ | pickle | asyncio/\w+ | multiprocessing/\w+ | concurrent/\S+
    | (?:torch|jax|numpy|requests|urllib3|fsspec|s3fs|aiohttp|httpx|huggingface_hub|datasets|transformers)/\S+
    )\.py$"""
)
"""Files of libraries as py-spy prints them: without the folder in which they are installed."""

MAX_SHOWN_FRAMES = 6
"""The most frames of a stack that are shown as evidence."""


@dataclass(frozen=True, slots=True)
class StackFrame:
    """A frame of a stack. `source`: the text of the source line, if it is known."""

    file: str
    line: int
    function: str
    source: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


def main_thread_frames(text: str) -> tuple[StackFrame, ...]:
    """The main thread's frames in a dump by faulthandler or py-spy, the innermost first; empty for another text.
    Faulthandler writes the oldest thread last, whichever thread took the signal: a thread that blocks signals leaves
    them to another."""
    threads = THREAD_BLOCK_START.split(text)[1:]
    named = [one for one in threads if '"MainThread"' in one.partition("\n")[0]]
    dumped = [one for one in threads if one.partition("\n")[0].endswith("(most recent call first):")]
    if len(dumped) >= MAX_DUMPED_THREADS:
        dumped = [one for one in dumped if one.startswith("Current ")]
    return _frames_of_thread((named or dumped[-1:] or [""])[0])


def crashed_thread_frames(log: str) -> tuple[StackFrame, ...]:
    """The frames of the thread in which the process crashed, if Python wrote them at the end of the log; else empty."""
    threads = THREAD_BLOCK_START.split(log.rpartition(FATAL_ERROR_PREFIX)[2])[1:] if FATAL_ERROR_PREFIX in log else []
    return _frames_of_thread(next((one for one in threads if not one.startswith("Thread ")), ""))


def all_frames(text: str) -> list[StackFrame]:
    """All frames in a text."""
    found = map(_parse_frame, text.splitlines())
    return [frame for frame in found if frame is not None]


def _frames_of_thread(text: str) -> tuple[StackFrame, ...]:
    """The frames in one thread's block of a dump, with the source of the innermost."""
    found: list[StackFrame] = []
    for line in text.splitlines():
        if frame := _parse_frame(line):
            found.append(frame)
        elif len(found) == 1 and (match := SOURCE_LINE.match(line)):
            found[0] = replace(found[0], source=match[1])
    return tuple(found)


def _parse_frame(line: str) -> StackFrame | None:
    """The frame in a line of a dump by faulthandler or py-spy; None if the line is no frame."""
    if match := FAULTHANDLER_FRAME.match(line):
        return StackFrame(match[1], int(match[2]), match[3])
    if match := PY_SPY_FRAME.match(line):
        return StackFrame(match[2], int(match[3]), match[1])
    return None


def is_waiting_for_peers(frames: Sequence[StackFrame]) -> bool:
    """Whether a thread is in a call that waits for other ranks, by PEER_WAIT_FILES. If that call has called back into
    the program, as for the forward of a wrapped model or a gradient's hook, the thread is in the program again. Files
    installed beside the library count as libraries."""
    for at, frame in enumerate(frames):
        if match := PEER_WAIT_FILES.search(frame.file):
            libraries = f"{frame.file[: match.start()]}/"
            return all(LIBRARY_FILES.search(one.file) or one.file.startswith(libraries) for one in frames[:at])
    return False


def program_frame(frames: Sequence[StackFrame]) -> StackFrame:
    """The innermost frame in the folder of the program's main file that is no library's; else the outermost frame."""
    main = next((frame for frame in reversed(frames) if not frame.file.startswith("<")), frames[-1])
    home = main.file.rpartition("/")[0]
    within = [one for one in frames if one.file.startswith(f"{home}/") and not LIBRARY_FILES.search(one.file)]
    return within[0] if within else main


def frame_lines(label: str, frames: Sequence[StackFrame]) -> list[str]:
    """Lines of evidence for where the process called `label` stands; none without frames."""
    lines = (f"  {frame}{f': {frame.source}' if frame.source else ''}" for frame in frames[:MAX_SHOWN_FRAMES])
    return [f"{label} is in:", *lines] if frames else []


def read_py_spy(text: str) -> Reading | None:
    """Reads dumps of py-spy, of one process or several. Where some processes wait for other ranks and others do not,
    those that do not are behind."""
    stacks = list(_main_stacks(text))
    if not stacks:
        return None
    found = Reading("stacks tell where processes stand, and not whether they go on")
    ranks = [one for one in stacks if not one.is_loader]
    workers = [one for one in stacks if one.is_loader]
    waiting = [one for one in ranks if one.call]
    outside = [one for one in ranks if not one.call]
    if waiting and outside:
        for one in outside:
            others = f"{count_text(len(waiting), 'other')} wait{'s' if len(waiting) == 1 else ''} for it"
            says = f"process {one.pid} stands in {one.own}, and {others} in {waiting[0].call}"
            found.proves("rank-behind", says, (one.line, one.line + 1, waiting[0].line), "medium", way="")
    elif len(waiting) > 1 and len({one.call for one in waiting}) == 1:
        says = f"the {len(waiting)} processes whose stacks are here all wait for other ranks in {waiting[0].call}"
        found.proves("collective-stall-uniform", says, [one.line for one in waiting[:4]], "low", way="")
    elif len(outside) > 1 and all(one.loads for one in outside):
        says = f"the {len(outside)} processes whose stacks are here all wait for a batch from their data loaders"
        says += "".join(f"; process {one.pid} of a loader stands in {one.own}" for one in workers[:1])
        found.proves("training-stalled", says, [one.line for one in (*outside, *workers)][:4], "medium", way="")
    return found


def _main_stacks(text: str) -> Iterator[_MainStack]:
    """The main thread's stack of each process in dumps of py-spy."""
    pid, named_at = "", -MAX_HEADING_LINES
    open_stack: tuple[str, int, list[StackFrame]] | None = None
    for number, line in enumerate((*text.split("\n"), "Thread "), 1):
        process, starts = PY_SPY_PROCESS.match(line), THREAD_BLOCK_START.match(line)
        if open_stack and (process or starts):
            if open_stack[2]:
                yield _MainStack(open_stack[0], open_stack[1], tuple(open_stack[2]))
            open_stack = None
        if process:
            pid, named_at = process[1], number
        elif starts and (main := PY_SPY_THREAD.match(line)):
            open_stack = (pid if number - named_at <= MAX_HEADING_LINES else main[1], number, [])
        elif open_stack and (frame := _parse_frame(line)):
            open_stack[2].append(frame)


@dataclass(frozen=True, slots=True)
class _MainStack:
    """The main thread's stack of one process, whose heading is line `line` of the text."""

    pid: str
    line: int
    frames: tuple[StackFrame, ...]

    @property
    def call(self) -> str:
        """The innermost function that waits for other ranks; empty without one."""
        calls = (
            frame.function
            for frame in self.frames
            if PEER_WAIT_FILES.search(f"/{frame.file}") and not MODEL_WRAPPER_FILES.search(f"/{frame.file}")
        )
        return next(calls, "")

    @property
    def loads(self) -> bool:
        """Whether it waits for a batch from its data loader."""
        return any(DATA_LOADER_FILES.search(frame.file) for frame in self.frames)

    @property
    def is_loader(self) -> bool:
        """Whether the process is a worker of a data loader."""
        return any(DATA_LOADER_WORKER_FILES.search(frame.file) for frame in self.frames)

    @property
    def own(self) -> StackFrame:
        """The innermost frame that is of no common library; else the innermost of all."""
        files = (COMMON_LIBRARY_FILES, LIBRARY_FILES)
        own = (one for one in self.frames if not any(pattern.search(one.file) for pattern in files))
        return next(own, self.frames[0])
