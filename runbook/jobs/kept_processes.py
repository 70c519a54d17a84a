"""The controller's knowledge of one attempt's processes: their keepers' journals, and the connections to their
nodes."""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runbook.causes.catalogue import finding_for
from runbook.checks.context import Context, Facts
from runbook.jobs.attempt import ProcessSpec
from runbook.jobs.logs import RankLogs
from runbook.model.errors import Unreachable
from runbook.model.process_end import ProcessEnd
from runbook.model.verdict import Finding
from runbook.node.journal import PROCESS_STATES, SIGNAL_WHY_PREFIX, STOPPED_BY_USER
from runbook.transport.remote_program import Message, Remote

ENDED_STATE = "ended"
"""The journal's state of a process that has ended."""


@dataclass
class KeptProcess:
    """One process of an attempt, with its keeper. `journal` is the latest that the keeper wrote; its times are by the
    node's own clock. `remote` is the keeper as a program that this controller started; None if another one did."""

    place: ProcessSpec
    remote: Remote | None = None
    journal: Facts = field(default_factory=dict)
    stop: Mapping[str, Any] | None = None  # why the launch script stopped before it started anything
    lost: Unreachable | None = None
    keeper_gone: bool = False
    restarted: float | None = None  # when its node was started again, by the controller's clock
    gave_up: str | None = None  # the exception that the process printed, after which it lingers without working
    started: float | None = None  # by the controller's clock
    ended: float | None = None

    def seen_in(self, frozen: Mapping[str, Facts]) -> Facts | None:
        """What its node said about this process, out of the answers of `freeze`; None if there is no such answer."""
        ranks: Mapping[str, Facts] = (frozen.get(self.place.node) or {}).get("ranks", {})
        return ranks.get(str(self.place.ranks[0]))

    @property
    def state(self) -> str:
        return str(self.journal.get("state", "none"))

    @property
    def code(self) -> int | None:
        """The exit code, or minus the number of the signal that ended the process; None if it is not known."""
        code = self.journal.get("code")
        return None if code is None else int(code)

    @property
    def over(self) -> bool:
        """Whether nothing more is to come from this process: it ended, its keeper is gone, or its node is lost."""
        return self.state == ENDED_STATE or self.keeper_gone or self.lost is not None

    @property
    def gone(self) -> bool:
        """Whether the process is over, and no process that it started is known to live."""
        return self.over and not (self.state == ENDED_STATE and self.journal.get("left"))

    @property
    def failed(self) -> bool:
        """Whether the process ended badly, or lingers after an exception."""
        return self.gave_up is not None or (self.over and (self.state != ENDED_STATE or self.code != 0))

    @property
    def end(self) -> ProcessEnd:
        return ProcessEnd(self.code)

    @property
    def raised(self) -> bool:
        """Whether the process ended by itself with an error, perhaps only because another process had ended."""
        return self.state == ENDED_STATE and self.end.raised

    @property
    def killed(self) -> bool:
        """Whether the process was ended from outside, and not by runbook. Such an end does not follow from the end of
        another process."""
        return self.state == ENDED_STATE and self.end.from_outside and not self.by_runbook

    @property
    def by_runbook(self) -> str:
        """Why runbook ended the process; empty if runbook did not."""
        why = str(self.journal.get("why") or "")
        return "" if why.startswith(SIGNAL_WHY_PREFIX) else why

    @property
    def by_user(self) -> bool:
        """Whether `runbook stop` ended the process."""
        return self.by_runbook == STOPPED_BY_USER

    @property
    def label(self) -> str:
        return self.place.label


class KeptProcesses:
    """All processes of an attempt. `offsets`: by node, its clock minus the controller's, and the uncertainty, both in
    seconds."""

    def __init__(self, at: Context, folder: str, places: Sequence[ProcessSpec], logs: RankLogs) -> None:
        """`folder` is the name of the attempt's folder, on the nodes and in the run folder."""
        self.at = at
        self.folder = folder
        self.logs = logs
        self.members = [KeptProcess(place) for place in places]
        self._by_node: dict[str, list[KeptProcess]] = {}
        for member in self.members:
            self._by_node.setdefault(member.place.node, []).append(member)
        self.nodes = tuple(self._by_node)
        self.offsets: dict[str, tuple[float, float]] = {}
        self.folders: dict[str, str] = {}  # by node, the path of the attempt's folder there
        self.stacks: dict[str, str] = {}  # by node, the folder where its ranks write their stacks when asked
        self.steps: Callable[[str, Mapping[str, str]], None] = lambda node, steps: None
        """Called with a node, and the contents of its step files by the names of its processes."""
        self.only: frozenset[int] = frozenset()  # the ranks whose logs are wanted; empty: all
        self.seen: dict[str, object] = {}  # by node, the state of its files in its last answer
        self.unread: dict[str, int] = {}  # bytes of logs that are still on the node
        self.written: dict[str, float] = {}
        """By file, the time of the last write into it on its node, by the controller's clock."""
        self.there: dict[str, int] = {}  # by node, bytes of logs that it had when it was first asked
        self.unlike: dict[str, Finding] = {}
        """By node, the finding that a module of the program is another file there than on most nodes."""
        self.late: set[str] = set()  # nodes whose logs are here only up to some time before they were first asked
        self.heard: dict[str, float] = {}  # by node, the time on our monotonic clock up to which its state is known
        self.news: queue.SimpleQueue[tuple[KeptProcess, Message | None]] = queue.SimpleQueue()

    @property
    def living(self) -> list[KeptProcess]:
        """The processes that are not over."""
        return [member for member in self.members if not member.over]

    @property
    def ranks(self) -> int:
        """The number of ranks on all nodes."""
        return sum(len(member.place.ranks) for member in self.members)

    @property
    def seconds(self) -> float:
        """Seconds from the first known start of a process to the last known end; 0 if one of them is not known."""
        started = [one.started for one in self.members if one.started is not None]
        ended = [one.ended for one in self.members if one.ended is not None]
        return max(0.0, max(ended) - min(started)) if started and ended else 0.0

    @property
    def heard_until(self) -> float:
        """The time, on our monotonic clock, up to which the state of all nodes is known. Silence after it proves
        nothing: news may still be on its way."""
        return min(self.heard.get(name, -math.inf) for name in self.nodes)

    def log_of(self, place: ProcessSpec, stream: str = "err") -> Path:
        """The path of the log in the run folder with the output of a process to `out` or `err`."""
        return self.logs.folder / f"{place.name}.{stream}"

    def on(self, node: str) -> list[KeptProcess]:
        """The processes on a node."""
        return self._by_node.get(node, [])

    def place_of(self, label: str) -> ProcessSpec:
        """The process with this label, or the rank with this label that a launcher started."""
        places = (place for member in self.members for place in member.place.voices)
        return next(place for place in places if place.label == label)

    def voices(self, node: str) -> list[ProcessSpec]:
        """The sources of output on a node whose logs are wanted."""
        voices = (voice for member in self.on(node) for voice in member.place.voices)
        return [voice for voice in voices if not self.only or self.only & {*voice.ranks}]

    def fetched(self, node: str) -> int:
        """How many bytes of a node's logs have been fetched."""
        return sum(self.logs.at(f"{voice.name}.{end}") for voice in self.voices(node) for end in ("out", "err"))

    def take_news(self, timeout_s: float) -> bool:
        """Processes the messages from keepers that have arrived; False if none came within `timeout_s`."""
        try:
            item = self.news.get(timeout=timeout_s)
        except queue.Empty:
            return False
        more = self.news.qsize()  # a bound, since nodes may send messages for ever
        while True:
            member, message = item
            if message is None:
                self._remote_over(member)
            elif message.get("event") == "kept":
                self.learn(member, message)
            if not more:
                return True
            more -= 1
            item = self.news.get()

    def learn(self, member: KeptProcess, journal: Message) -> None:
        """Stores a journal. A journal with an earlier state than the known one is ignored: it came by a slower way."""
        if PROCESS_STATES.index(str(journal.get("state", "none"))) < PROCESS_STATES.index(member.state):
            return
        member.journal = {name: value for name, value in journal.items() if name != "event"}
        # Without its keeper no journal is written any more, so the end of the process would never be known.
        member.keeper_gone = member.state != ENDED_STATE and (
            member.keeper_gone or journal.get("keeper_lives") is False
        )
        offset = self.offsets.get(member.place.node, (0.0, 0.0))[0]
        for name in ("started", "ended", "restarted"):
            if journal.get(name) is not None:
                setattr(member, name, float(journal[name]) - offset)

    def _remote_over(self, member: KeptProcess) -> None:
        """Notes that a keeper's messages have ended: its node is lost, or the keeper is gone."""
        remote = member.remote
        if remote is not None and remote.lost:
            member.lost = None if member.state == ENDED_STATE else remote.lost
        elif member.state != ENDED_STATE:
            member.keeper_gone = True

    def ends(self) -> list[Facts]:
        """How long each process ran and how it ended, for reports. `ended` is None if the end was not seen."""
        return [
            {
                "node": member.place.node,
                "ranks": list(member.place.ranks),
                "started": member.started,
                "ended": member.ended,
                "code": member.code,
                "state": "lost" if member.lost else member.state,
                "why": member.by_runbook,
            }
            for member in self.members
        ]

    def lose(self, node: str, error: Unreachable) -> None:
        """Marks the processes of a node whose end is not known as lost."""
        for member in self.on(node):
            if member.state != ENDED_STATE:
                member.lost = error

    def note_losses(self) -> dict[str, Unreachable]:
        """Marks the processes of nodes whose connection is lost. By node, the reason of the loss, for the nodes with
        processes whose end is not known."""
        sessions = self.at.run.site.sessions
        losses = {name: lost for name in self.nodes if (one := sessions.get(name)) and (lost := one.lost)}
        for name, error in losses.items():
            self.lose(name, error)
        return {name: error for name, error in losses.items() if any(member.lost for member in self.on(name))}

    def live_nodes(self) -> list[str]:
        """The nodes whose connection is not lost."""
        sessions = self.at.run.site.sessions
        return [name for name in self.nodes if name in sessions and not sessions[name].lost]


def user_stop_finding(kept: KeptProcesses) -> Finding:
    """The finding that the user stopped the job."""
    logs = (f"logs: {kept.logs.folder}",)
    return finding_for("terminated-from-outside", "the job was stopped by the user", logs, way="asked")


def peer_failure_finding(guilty: tuple[str, ...]) -> Finding:
    """The finding for all nodes other than the `guilty` ones, whose ranks failed."""
    names = ", ".join(guilty)
    return finding_for("peer-died", f"its ranks were ended because of {names}", (), guilty, node=names)


def wait_until_done(kept: KeptProcesses, done: Callable[[], bool], timeout_s: float) -> bool:
    """Processes messages until `done()`; False if `timeout_s` has passed, or the run is to end, before that."""
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline or kept.at.stopping.is_set():
            return False
        kept.take_news(0.05)
    return True
