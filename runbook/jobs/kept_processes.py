"""The processes of one attempt as they are known here: what their keepers wrote down, and what the nodes still
answer."""

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
from runbook.node.journal import BY_USER, SIGNALLED, STATES
from runbook.transport.remote_program import Message, Remote

OVER = "ended"


@dataclass
class KeptProcess:
    """One kept process. `journal` is what its keeper wrote last; times in it are of the node's own clock."""

    place: ProcessSpec
    remote: Remote | None = None
    journal: Facts = field(default_factory=dict)
    stop: Mapping[str, Any] | None = None  # why the launch script stopped before it started anything
    lost: Unreachable | None = None
    keeper_gone: bool = False
    restarted: float | None = None  # when its node was started again, by the controller's clock
    gave_up: str | None = None  # the exception that it printed before it stopped working
    started: float | None = None  # by the controller's clock
    ended: float | None = None

    def seen_in(self, frozen: Mapping[str, Facts]) -> Facts | None:
        """What its node answered about it, of the nodes' answers; None where it is in none."""
        ranks: Mapping[str, Facts] = (frozen.get(self.place.node) or {}).get("ranks", {})
        return ranks.get(str(self.place.ranks[0]))

    @property
    def state(self) -> str:
        return str(self.journal.get("state", "none"))

    @property
    def code(self) -> int | None:
        """The exit code; negative: the signal that ended it."""
        code = self.journal.get("code")
        return None if code is None else int(code)

    @property
    def over(self) -> bool:
        return self.state == OVER or self.keeper_gone or self.lost is not None

    @property
    def gone(self) -> bool:
        """Whether it has ended and nothing that it started still lives."""
        return self.over and not (self.state == OVER and self.journal.get("left"))

    @property
    def failed(self) -> bool:
        return self.gave_up is not None or (self.over and (self.state != OVER or self.code != 0))

    @property
    def end(self) -> ProcessEnd:
        return ProcessEnd(self.code)

    @property
    def raised(self) -> bool:
        """Whether it ended by itself with an error, perhaps only because another one had ended."""
        return self.state == OVER and self.end.raised

    @property
    def killed(self) -> bool:
        """Whether it was ended from outside and not by runbook, which does not follow from the end of another
        process."""
        return self.state == OVER and self.end.from_outside and not self.by_runbook

    @property
    def by_runbook(self) -> str:
        """Why runbook ended it; empty where it did not."""
        why = str(self.journal.get("why") or "")
        return "" if why.startswith(SIGNALLED) else why

    @property
    def by_user(self) -> bool:
        """Whether `runbook stop` ended it."""
        return self.by_runbook == BY_USER

    @property
    def label(self) -> str:
        return self.place.label


class KeptProcesses:
    """All kept processes of an attempt. `offsets`: each node's clock minus ours, and the doubt, in seconds."""

    def __init__(self, at: Context, folder: str, places: Sequence[ProcessSpec], logs: RankLogs) -> None:
        """`folder` is the name of the attempt's, on the nodes and here."""
        self.at = at
        self.folder = folder
        self.logs = logs
        self.members = [KeptProcess(place) for place in places]
        self._by_node: dict[str, list[KeptProcess]] = {}
        for member in self.members:
            self._by_node.setdefault(member.place.node, []).append(member)
        self.nodes = tuple(self._by_node)
        self.offsets: dict[str, tuple[float, float]] = {}
        self.folders: dict[str, str] = {}  # of the attempt, by node
        self.stacks: dict[str, str] = {}  # by node, the folder where its ranks write their stacks when asked
        self.steps: Callable[[str, Mapping[str, str]], None] = lambda node, steps: None
        """Called with a node and the steps that its processes have written, by the names of their files."""
        self.only: frozenset[int] = frozenset()  # the ranks whose logs are wanted; empty: all
        self.seen: dict[str, object] = {}
        self.unread: dict[str, int] = {}  # bytes of logs that are still on the node
        self.written: dict[str, float] = {}
        """By file, when its node's last write into it was, by the controller's clock."""
        self.there: dict[str, int] = {}  # by node, bytes of logs that it had when it was first asked
        self.unlike: dict[str, Finding] = {}
        """By node, a module of the program that is another file there than on most nodes."""
        self.late: set[str] = set()  # nodes whose latest answer still describes the time before they were first asked
        self.heard: dict[str, float] = {}  # by node, up to which time, on our monotonic clock, its state is known
        self.news: queue.SimpleQueue[tuple[KeptProcess, Message | None]] = queue.SimpleQueue()

    @property
    def living(self) -> list[KeptProcess]:
        return [member for member in self.members if not member.over]

    @property
    def ranks(self) -> int:
        """How many ranks there are on all nodes."""
        return sum(len(member.place.ranks) for member in self.members)

    @property
    def seconds(self) -> float:
        """From the first start to the last end, as far as they were seen."""
        started = [one.started for one in self.members if one.started is not None]
        ended = [one.ended for one in self.members if one.ended is not None]
        return max(0.0, max(ended) - min(started)) if started and ended else 0.0

    @property
    def heard_until(self) -> float:
        """Up to this time the state of all nodes is known: a later silence proves nothing, however late it is here."""
        return min(self.heard.get(name, -math.inf) for name in self.nodes)

    def log_of(self, place: ProcessSpec, stream: str = "err") -> Path:
        """The file here with what it wrote to `out` or `err`."""
        return self.logs.folder / f"{place.name}.{stream}"

    def on(self, node: str) -> list[KeptProcess]:
        return self._by_node.get(node, [])

    def place_of(self, label: str) -> ProcessSpec:
        """The process, or the rank that a launcher started, that messages call so."""
        places = (place for member in self.members for place in member.place.voices)
        return next(place for place in places if place.label == label)

    def voices(self, node: str) -> list[ProcessSpec]:
        """The sources of output of a node that are wanted."""
        voices = (voice for member in self.on(node) for voice in member.place.voices)
        return [voice for voice in voices if not self.only or self.only & {*voice.ranks}]

    def fetched(self, node: str) -> int:
        """Bytes of the logs of a node that are here."""
        return sum(self.logs.at(f"{voice.name}.{end}") for voice in self.voices(node) for end in ("out", "err"))

    def drain(self, timeout_s: float) -> bool:
        """Process the messages of keepers that have arrived; False when none came in time."""
        try:
            item = self.news.get(timeout=timeout_s)
        except queue.Empty:
            return False
        more = self.news.qsize()  # and no more than that: nodes may send messages for ever
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
        """Store a journal. One that is older than the known one is ignored: it came by the slower way."""
        if STATES.index(str(journal.get("state", "none"))) < STATES.index(member.state):
            return
        member.journal = {name: value for name, value in journal.items() if name != "event"}
        # Without its keeper nothing more is written: how its process ends would never be told.
        member.keeper_gone = member.state != OVER and (member.keeper_gone or journal.get("keeper_lives") is False)
        offset = self.offsets.get(member.place.node, (0.0, 0.0))[0]
        for name in ("started", "ended", "restarted"):
            if journal.get(name) is not None:
                setattr(member, name, float(journal[name]) - offset)

    def _remote_over(self, member: KeptProcess) -> None:
        remote = member.remote
        if remote is not None and remote.lost:
            member.lost = None if member.state == OVER else remote.lost
        elif member.state != OVER:
            member.keeper_gone = True

    def ends(self) -> list[Facts]:
        """How long each process ran and how it ended, for reports; `ended` null: its end was not seen."""
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
        for member in self.on(node):
            if member.state != OVER:
                member.lost = error

    def note_losses(self) -> dict[str, Unreachable]:
        """Mark the processes of nodes whose connection is lost; returns why, by node, where their end is not known."""
        sessions = self.at.run.site.sessions
        losses = {name: lost for name in self.nodes if (one := sessions.get(name)) and (lost := one.lost)}
        for name, error in losses.items():
            self.lose(name, error)
        return {name: error for name, error in losses.items() if any(member.lost for member in self.on(name))}

    def live_nodes(self) -> list[str]:
        """Nodes that still answer."""
        sessions = self.at.run.site.sessions
        return [name for name in self.nodes if name in sessions and not sessions[name].lost]


def stopped_by_user(kept: KeptProcesses) -> Finding:
    logs = (f"logs: {kept.logs.folder}",)
    return finding_for("terminated-from-outside", "the job was stopped by the user", logs, way="asked")


def ended_because_of(guilty: tuple[str, ...]) -> Finding:
    """For the other nodes than these, whose ranks failed."""
    names = ", ".join(guilty)
    return finding_for("peer-died", f"its ranks were ended because of {names}", (), guilty, node=names)


def wait_for(kept: KeptProcesses, done: Callable[[], bool], timeout_s: float) -> bool:
    """Process messages until `done()`; False when the time is up, or the run is to end, before that."""
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline or kept.at.stopping.is_set():
            return False
        kept.drain(0.05)
    return True
