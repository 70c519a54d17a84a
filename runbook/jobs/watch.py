"""Watches an attempt: fetches the output of its processes, learns how they end, or that a process lingers after an
exception, and stops at the first failure."""

from __future__ import annotations

import itertools
import math
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from runbook.causes.catalogue import unreachable_for
from runbook.checks.context import Facts
from runbook.jobs.kept_processes import ENDED_STATE, KeptProcess, KeptProcesses
from runbook.model.errors import Unreachable
from runbook.transport.remote_program import ProgramNotStarted
from runbook.transport.session import Session

FAILURE_SETTLE_S = 1.0
"""Seconds to wait after the first failure for other failures: the one that arrives first need not be the earliest."""

LAUNCHER_FAILURE_SETTLE_S = 3.0
"""The same wait when launchers start the ranks: a launcher notices the end of a rank late, and reports it later
still."""

NEWS_INTERVAL_S = 0.1
"""Seconds between a node's answer without more to send and the next question."""
UNREAD_NEWS_INTERVAL_S = 0.005
"""Seconds before a node that has more to send is asked again. Without a pause, such a node could keep a CPU busy."""

NEWS_ANSWER_TIMEOUT_S = 10.0
"""Seconds that a node may take to answer, beyond the wait for news that it was asked for."""
FETCH_THREADS_TIMEOUT_S = 3.0
"""Seconds that the end of a `Fetching` block waits for its threads."""
MAX_NEWS_WAIT_S = 0.5
"""Seconds for which a node waits for news before it answers without any."""
PROCESS_LOOK_INTERVAL_S = 2.0
"""Seconds between two questions for which a node goes through all of its processes."""
MAX_ANSWER_LOG_BYTES = 512 * 1024
"""The most bytes of logs that one answer should bring."""


HELD_UP_KINDS = ("stalled", "unmet")
"""Kinds of a WatchEnd with which no process has ended: the ranks no longer make steps, or have not met."""


@dataclass(frozen=True, slots=True)
class WatchEnd:
    """How watching ended. `kind`: finished, failed, stopped (on request), late (the deadline passed), lost (the
    connections to all nodes, so that no process's end is known), or one of HELD_UP_KINDS. `first`: the process that
    failed first, where one failed."""

    kind: str
    first: KeptProcess | None = None


class Fetching:
    """Fetches news from the nodes for as long as the `with` block lasts, with one thread for each node. Journals go to
    the kept processes, output to their logs.

    A node that has not answered for `patience_s` counts as lost.
    """

    def __init__(self, kept: KeptProcesses, *, patience_s: float = math.inf) -> None:
        self._kept = kept
        self._patience_s = patience_s
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._fetch, args=(name,), name=f"fetch {name}", daemon=True)
            for name in kept.folders
        ]

    def __enter__(self) -> Fetching:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        deadline = time.monotonic() + (0.0 if self._kept.at.hurry.is_set() else FETCH_THREADS_TIMEOUT_S)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _fetch(self, name: str) -> None:
        """Asks one node for news until the block ends, or the node is lost."""
        looked, answered = 0.0, time.monotonic()
        while not self._ending.is_set():
            session = self._kept.at.run.site.sessions.get(name)
            if session is None or session.lost:
                return
            look = time.monotonic() - looked > PROCESS_LOOK_INTERVAL_S
            looked = time.monotonic() if look else looked
            if fetch_news(self._kept, session, name, wait_s=MAX_NEWS_WAIT_S, look=look):
                answered = time.monotonic()
            elif (silent_s := time.monotonic() - answered) > self._patience_s:
                session.disbelieve(_silent_node_error(name, silent_s))
            self._ending.wait(UNREAD_NEWS_INTERVAL_S if self._kept.unread.get(name) else NEWS_INTERVAL_S)


def _silent_node_error(name: str, seconds: float) -> Unreachable:
    """The error of a node that is reached and has reported nothing about the job."""
    says = f"{name} can be reached, but has reported nothing about the job for {seconds:.0f} s"
    return unreachable_for("tool-output-unknown", says, way="job-late", name=name)


def fetch_news(kept: KeptProcesses, session: Session, name: str, *, wait_s: float = 0.0, look: bool = False) -> bool:
    """Asks one node for news; whether it answered. Afterwards `kept.unread` holds how many bytes of logs are still
    there. `wait_s`: how long the node may wait for news. `look`: the node also says which processes live."""
    files = (f"{voice.name}.{end}" for voice in kept.voices(name) for end in ("out", "err"))
    at = {file: kept.logs.at(file) for file in files}
    order = {
        "do": "watch",
        "folder": kept.folders[name],
        "at": at,
        "seen": kept.seen.get(name),
        "wait_s": wait_s,
        "most": MAX_ANSWER_LOG_BYTES,
        "look": look,
    }
    asked = time.monotonic()
    try:
        answer = session.call("job_control", order, timeout_s=NEWS_ANSWER_TIMEOUT_S + wait_s)
    except Unreachable as error:
        if all(member.remote is None for member in kept.on(name)):
            session.disbelieve(error)  # nothing else reports these processes, so their end would never be known
        return False
    except (ProgramNotStarted, TimeoutError):
        return False
    store_answer(kept, name, answer, at)
    kept.heard[name] = asked
    return True


def store_answer(kept: KeptProcesses, name: str, answer: Facts, at: Mapping[str, int]) -> None:
    """Stores a node's answer: logs, steps and journals. `at`: the bytes of each file that were here before."""
    kept.seen[name] = answer["seen"]
    offset = kept.offsets.get(name, (0.0, 0.0))[0]
    members = {member.place.name: member for member in kept.on(name)}
    voices = {voice.name: voice for voice in kept.voices(name)}
    ours = {file: size for file, size in answer["size"].items() if file.rpartition(".")[0] in voices}
    first = name not in kept.there
    kept.there.setdefault(name, sum(ours.values()))
    if first or kept.fetched(name) < kept.there[name]:
        kept.late.add(name)
    else:
        kept.late.discard(name)
    kept.written.update({file: at_ns / 1e9 - offset for file, _, at_ns in answer["seen"] if file in ours})
    kept.steps(name, {file.removesuffix(".step"): text for file, text in answer["steps"].items()})
    for file, data in answer["read"].items():
        if voice := voices.get(file.rpartition(".")[0]):
            kept.logs.take(voice, file, data, at.get(file, 0))
    kept.unread[name] = sum(max(0, size - kept.logs.at(file)) for file, size in ours.items())
    for journal in {str(journal["name"]): journal for journal in answer["kept"]}.values():
        member = members.get(str(journal["name"]))
        if member and journal != member.journal:  # unchanged journals of a thousand nodes would wake the reader often
            kept.news.put((member, {**journal, "event": "kept"}))


def watch_processes(
    kept: KeptProcesses,
    *,
    stopping: Callable[[], bool],
    deadline: float,
    on_loss: Callable[[str, Unreachable], None] | None = None,
    held_up: Callable[[], bool] = lambda: False,
) -> WatchEnd:
    """Watches until all processes have ended well, the first failure has settled, the run is to stop, the job is held
    up, or the deadline has passed. Without `on_loss` a lost node is a failure. With it, each lost node is reported to
    `on_loss` once, and the other nodes are watched on, as long as there are any."""
    reported: set[str] = set()
    bad_since: float | None = None
    settle_s = LAUNCHER_FAILURE_SETTLE_S if any(member.place.each for member in kept.members) else FAILURE_SETTLE_S
    while True:
        kept.take_news(0.1)
        now = time.monotonic()
        for name, error in kept.note_losses().items():
            if on_loss and name not in reported:
                reported.add(name)
                on_loss(name, error)
        judged = [member for member in kept.members if not (on_loss and member.lost)]
        if kept.members and not judged:
            return WatchEnd("lost")
        if all(member.state == ENDED_STATE and member.code == 0 for member in judged):
            return WatchEnd("finished")
        if any(member.failed for member in judged):
            bad_since = bad_since or now
            if now - bad_since > settle_s or all(member.over for member in judged):
                return WatchEnd("failed", first_failed_process(judged))
            continue
        if stopping():
            return WatchEnd("stopped")
        if held_up():
            return WatchEnd("stalled")
        if now > deadline:
            return WatchEnd("late")


def first_failed_process(members: Sequence[KeptProcess]) -> KeptProcess:
    """The process that failed first. A process on a lost node has no time of its end, so it counts only if no other
    failed. A process whose keeper was killed has none either, but it ends with its keeper: if the first process with a
    known end exited by itself, it had lost that peer. A process that lingers after an exception counts before all."""
    failed = [member for member in members if member.failed]
    if gave_up := next((member for member in failed if member.gave_up is not None), None):
        return gave_up  # the other processes ended because they lost this peer
    timed = [member for member in failed if member.ended is not None]
    if not timed:
        return failed[0]
    first = min(timed, key=lambda member: member.ended or 0.0)
    killed = next((member for member in failed if member.keeper_gone), None)
    return killed if killed is not None and first.raised else first


TRACEBACK_FIRST_LINE = "Traceback (most recent call last)"
"""The first line of Python's traceback."""

TORCH_RANK_PREFIX = re.compile(r"^\[rank\d{1,7}\]: ?", re.MULTILINE)
"""The prefix that torch puts before each line of an exception."""

NONFATAL_TRACEBACK_PREFIXES = ("Exception in thread", "Exception ignored")
"""How the line before a traceback begins when the exception does not end the program."""
MAX_EXCEPTION_LINES = 5
"""The most lines from the exception to the end of the output: its message may have several, and libraries may add some
when the program ends."""

EXCEPTION_TYPE = re.compile(r"[A-Za-z_][\w.]{0,200}(?::|$)")
"""The beginning of the line with the exception below a traceback: its type."""
TRACEBACK_NOISE = re.compile(
    r"\s|$|-{20}|[IWEF]\d{4} [^\n\]]{0,200}\.(?:cc|h):\d+\]"
    r"|For simplicity, JAX has removed|The above exception|During handling of the above"
)
"""Lines in and around a traceback, and lines that JAX's C++ runtime logs while it waits: they do not show that the
program goes on. Python code that logs in the same form names no `.cc` or `.h` file, and does show it."""

MAX_EXCEPTION_MESSAGE_S = 1.0
"""Seconds for which the message of an exception may go on after its first line."""


def exception_at_end(text: str) -> str:
    """The first line of the exception whose traceback is the last output of a program; empty if there is none."""
    before, found, after = TORCH_RANK_PREFIX.sub("", text).rpartition(TRACEBACK_FIRST_LINE)
    whose = before.rstrip().rpartition("\n")[2]
    lines = [line for line in after.splitlines()[1:] if line.strip()]
    said = list(itertools.dropwhile(lambda line: line.startswith(" "), lines))
    if (
        found
        and said
        and len(said) <= MAX_EXCEPTION_LINES
        and EXCEPTION_TYPE.match(said[0])
        and not whose.startswith(NONFATAL_TRACEBACK_PREFIXES)
    ):
        return said[0]
    return ""


class Lingering:
    """Finds JAX programs that raised an exception and did not end: at its exit such a program waits five minutes for
    peers that never come. A traceback alone proves nothing, since a program may print one and go on. So a process
    counts as lost only when it has written nothing since the exception for as long as the job's grace, and no process
    has written to its stdout.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._open: set[str] = set()
        self._said: dict[str, tuple[str, float]] = {}  # by the name of the process: its exception, and when it came
        self._stdout = 0.0  # when any process last wrote to its stdout

    def heard(self, name: str, stream: str, lines: Sequence[str]) -> None:
        """Takes whole lines that the process called `name` wrote; `stream` is `out` or `err`."""
        now = time.monotonic()
        with self._lock:
            if stream == "out":
                self._stdout = now
                self._said.pop(name, None)
                return
            for line in lines:
                self._line(name, line, now)

    def _line(self, name: str, line: str, now: float) -> None:
        """Learns from a line of stderr: a traceback, its exception, or output after it."""
        if line.startswith(TRACEBACK_FIRST_LINE):
            self._open.add(name)
            self._said.pop(name, None)
        elif TRACEBACK_NOISE.match(line):
            return
        elif name in self._open and EXCEPTION_TYPE.match(line):
            self._open.discard(name)
            self._said[name] = (line, now)
        elif name in self._said and now - self._said[name][1] > MAX_EXCEPTION_MESSAGE_S:
            del self._said[name]  # the program goes on

    def who(self) -> tuple[str, str] | None:
        """The name of the process that has been silent for the grace since it raised, and its exception; None if there
        is none. Of several processes, the one that raised first."""
        now = time.monotonic()
        with self._lock:
            lost = [(at, name, says) for name, (says, at) in self._said.items() if now - at > self._grace_s]
            at, name, says = min(lost, default=(0.0, "", ""))
            return (name, says) if name and self._stdout <= at + MAX_EXCEPTION_MESSAGE_S else None
