"""The ranks of a run: they are started once through the launch script, and one check after the other gives them orders.

Importing torch takes longer than all checks together, so ranks start while `reach` looks at the nodes, and
`connection`, `allreduce` and `links` use the same processes. A RankMember keeps what its rank says. A wait ends early
when a rank dies, reports a failure of its own, or when no rank makes progress any more.
"""

from __future__ import annotations

import queue
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from runbook.checks.capped_output import OutputFile
from runbook.checks.context import MAX_NODE_QUIET_S, Run
from runbook.launch.launchers import ranks_spec
from runbook.launch.preconditions import STOP_EXIT_CODES
from runbook.launch.ranks import Rank, rank_layout
from runbook.launch.script import make_script
from runbook.model.errors import Unreachable
from runbook.model.grouping import values_by_key
from runbook.model.inventory import Inventory, Node
from runbook.model.text_search import compile_bounded
from runbook.transport import node_answers
from runbook.transport.remote_program import Message, Remote
from runbook.transport.session import Session

RANK_MESSAGES = node_answers.Messages(
    {**node_answers.RANK_MESSAGE_TYPES, **dict.fromkeys(STOP_EXIT_CODES, node_answers.ScriptStopped)},
    among_foreign_output=True,
)
"""The messages about a rank: from the launch script that starts it, and from the program of the rank itself."""

RANK_0_MESSAGES = ("row", "world", "located")
"""Messages about all ranks, which rank 0 sends; from another rank they are ignored."""

MAX_BEAT_SILENCE_S = 2.5
"""Seconds. A rank that has sent no beat for longer is looked at; beats come twice a second."""

RANK_MESSAGE_TIMEOUT_S = 12.0
"""Seconds that a launch script may take to its first message (the activate line runs before it), and a rank between
messages."""

MAX_SHOWN_LINES = 8
"""How many of the last lines that a rank printed are shown."""

FAILURE_ORIGIN_WAIT_S = 0.6
"""Seconds to wait for the origin of the first failure: a survivor may report before the rank that died."""

PEER_FAILURE_MESSAGE = compile_bounded(
    r"closed by peer|connection reset|broken pipe|remote process exited|\bpeer\b|socket closed|pair closure"
    r"|connection (was |has been )?(closed|lost|refused|abort(ed)?|timed out)|failed to (recv|send)|remote rank"
    r"|gloo/transport/\S+ *(read|write|send|recv|connection)|no route to host|network is (unreachable|down)"
    r"|Dist(Network|Store)Error|recvValue failed|sendBytes failed|NCCL.*(remote|unhandled system) error",
    re.IGNORECASE,
)
"""What a surviving rank says when another rank or the network failed: a consequence, not a cause."""

UNCAUGHT_CPP_EXCEPTION = compile_bounded(
    r"^terminate called after throwing an instance of .*\n *what\(\): *(.*)", re.MULTILINE
)
"""What the C++ runtime prints about an exception in a thread of gloo or NCCL, before it aborts the process."""


@dataclass
class RankMember:
    """One rank: its node, what it said last, what was seen of its processes, and how it ended.

    `steps`: the last message of each step. `heard` and `moved`: when the rank last said anything, and last made
    progress, on the monotonic clock. `lost`: why its node can no longer be reached.
    """

    rank: Rank
    remote: Remote | None = None
    steps: dict[str, Message] = field(default_factory=dict)
    step: str = "not started"
    beat: Message = field(default_factory=dict)
    heard: float = 0.0
    moved: float = 0.0
    finished_size: int = 0
    failure: Message | None = None
    code: int | None = None
    over: bool = False
    lost: Unreachable | None = None
    processes: list[Message] = field(default_factory=list)
    works: bool = False
    stack: tuple[str, ...] = ()
    record: Message = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        return f"rank {self.rank.rank} on {self.rank.node}"

    @property
    def stopped(self) -> bool:
        """Whether a process of the rank was last seen stopped, or held by a debugger."""
        return any(process["state"] in "Tt" for process in self.processes)

    @property
    def asleep(self) -> Message | None:
        """A process of the rank that is stopped, or that waits in the kernel (D) and did so at both ends of the look:
        every process that reads a file is in D for an instant."""
        asleep = (one for one in self.processes if one["state"] in "Tt" or (one["state"] == "D" and one["stays"]))
        return next(asleep, None)

    @property
    def said(self) -> str:
        """What the rank reports of its failure, or the C++ exception that ended it before Python could report anything;
        else ""."""
        if self.failure is not None:
            return str(self.failure.get("text", ""))
        ended = UNCAUGHT_CPP_EXCEPTION.search("".join(self.log)) if self.over else None
        return ended[1] if ended else ""

    @property
    def aftermath(self) -> bool:
        """Whether the failure that the rank reports is likely to follow from another rank's death or a broken
        connection."""
        return not (self.failure or {}).get("cause") and bool(PEER_FAILURE_MESSAGE.search(self.said))

    def peers_among(self, members: Iterable[RankMember]) -> tuple[str, ...]:
        """The names of the nodes of these ranks, without this rank's own."""
        return tuple(sorted({member.rank.node for member in members} - {self.rank.node}))

    @property
    def place(self) -> tuple[int, int]:
        """How far the rank came in a sweep, comparable between ranks: the size in bytes and the iteration."""
        return int(self.beat.get("size", 0)), int(self.beat.get("turn", 0))


MIN_SLOW_DATA_FACTOR = 6.0
"""Data that flows this many times more slowly than promised is slow; without a promise no data is."""


@dataclass(frozen=True)
class Halt:
    """Why a wait ended early. `kind`: died, failed, stalled or late; suspected: this may become a stall; silent: a rank
    sends no beats. The last two prove nothing yet: a program may be busy while Python's other threads wait. `seconds`:
    how long the wait was.

    `promised`: bytes a second that all ranks together should send meanwhile, or None."""

    kind: str
    seconds: float
    promised: float | None = None


MAX_UNBATCHED_RANKS = 64
"""With more ranks than this, messages are collected for a while before the ranks are looked at again."""
BATCHING_PER_RANK_S = 20e-6
"""Seconds for each rank, for which messages are collected then."""


class RankPool:
    """All ranks of an inventory. Only one thread at a time may use it."""

    def __init__(self, run: Run, inventory: Inventory, script: str) -> None:
        self.inventory = inventory
        self.run = run
        self.script = script
        self.layout = rank_layout(inventory)
        self.members = [RankMember(rank) for rank in self.layout.ranks]
        self._on_node = values_by_key((member.rank.node, member) for member in self.members)
        self.joined = False
        self.extra: dict[str, Message] = {}
        self.failures: dict[str, BaseException] = {}
        self.seen: dict[str, Message] = {}
        self.looked = 0.0  # when, on the monotonic clock
        self._suspected = True
        self._news: queue.SimpleQueue[tuple[RankMember, Message | None]] = queue.SimpleQueue()
        self._logs: list[OutputFile] = []
        self._on_message: Callable[[RankMember, Message], None] = lambda member, message: None

    def on(self, node: str) -> list[RankMember]:
        """The ranks of one node."""
        return self._on_node.get(node, [])

    # Starting.

    def start(self) -> None:
        """Pushes the script and the program to every reached node and starts the ranks there. Does not wait for the
        ranks."""
        nodes = [node for node in self.inventory.nodes if node.name in self.run.site.sessions]
        for name, result in self.run.site.each(nodes, self._start_node, timeout_s=30.0).items():
            if isinstance(result, BaseException):
                self.failures[name] = result

    def _start_node(self, node: Node) -> None:
        session = self.run.site.sessions[node.name]
        node_ranks = self.layout.by_node[node.name]
        spec = ranks_spec(self.layout, node_ranks, name=self.script, made_from=self.run.made_from)
        script = make_script(spec, "sh")
        for path, data in script.files.items():
            session.push(path, data, mode=0o700 if path.endswith(".sh") else 0o600)
        session.push_program("rank")
        for member in self.on(node.name):
            self._start_rank(session, member, script.name)

    def _start_rank(self, session: Session, member: RankMember, script: str) -> None:
        log = OutputFile(self.run.run_dir, f"{member.rank.file_stem}.log", self.run.redactor)
        self._logs.append(log)

        def on_log(text: str) -> None:
            keep(log.write(text))

        def keep(text: str) -> None:
            if text:
                member.log = [*member.log[-40:], text]

        def on_end() -> None:
            keep(log.end())
            self._news.put((member, None))

        member.heard = member.moved = time.monotonic()
        member.remote = session.start(
            ["/bin/sh", f"{session.folder}/{script}", str(member.rank.local_rank)],
            says=RANK_MESSAGES,
            on_message=lambda message: self._news.put((member, message)),
            on_log=on_log,
            on_end=on_end,
        )

    # Orders and waiting.

    def order(self, message: Mapping[str, Any], own: Callable[[Rank], Mapping[str, Any]] = lambda _: {}) -> None:
        """Sends an order to every living rank, together with the part of the order that is the rank's `own`. If a
        rank's node is lost, the next wait ends with that."""
        self.extra = {}
        self._suspected = False
        now = time.monotonic()
        for member in self.members:
            for step in ("done", "wrong"):
                member.steps.pop(step, None)
            member.finished_size = 0
            member.beat = {}  # its place was one in the order before
            member.moved = now
            if member.remote and not member.over:
                try:
                    member.remote.tell({**message, **own(member.rank)})
                except Unreachable as error:
                    member.lost, member.over = error, True

    def until(
        self,
        step: str,
        *,
        timeout_s: float,
        stall_s: Callable[[], float],
        on_message: Callable[[RankMember, Message], None] | None = None,
        suspicions: bool = False,
        silence_s: float = MAX_BEAT_SILENCE_S,
    ) -> Halt | None:
        """Waits until every rank has made `step`; returns None then.

        Ends early when a rank died or reported a failure (after FAILURE_ORIGIN_WAIT_S), when no rank moved for
        `stall_s()` seconds, or when a rank sends no beats for `silence_s`. A rank whose node could not be reached
        counts as dead. With `suspicions` it also ends once an order after half of `stall_s()` without a move: a caller
        that can judge by then need not wait longer."""
        self._on_message = on_message or (lambda member, message: None)
        begun = time.monotonic()
        bad_since: float | None = None
        while True:
            self._drain()
            now = time.monotonic()
            if any(member.over or member.failure or member.remote is None for member in self.members):
                bad_since = bad_since or now
                settled = all(member.over or member.failure for member in self.members)
                blamed = any(member.over and not member.aftermath for member in self.members)
                if self._being_lost():
                    continue
                # Only survivors have reported: a rank that died, or whose node is being lost, needs time to be noticed.
                if settled or now - bad_since > (FAILURE_ORIGIN_WAIT_S if blamed else 4 * FAILURE_ORIGIN_WAIT_S):
                    return Halt("died" if any(m.over for m in self.members) else "failed", now - begun)
                continue
            if all(step in member.steps for member in self.members):
                return None
            if now - begun > timeout_s:
                return Halt("late", now - begun)
            if self._being_lost():
                continue  # a node that sends nothing at all will soon count as lost
            waiting = [member for member in self.members if step not in member.steps]
            still_s = now - max(member.moved for member in self.members)
            if still_s > stall_s():
                return Halt("stalled", now - begun)
            if suspicions and not self._suspected and still_s > stall_s() / 2:
                self._suspected = True
                return Halt("suspected", now - begun)
            if any("imported" in m.steps and now - m.heard > silence_s for m in waiting):
                return Halt("silent", now - begun)

    def go_on(self, halt: Halt) -> None:
        """Resets the clocks after a stall or a silence that proved to be none, so that the next `until` counts anew."""
        now = time.monotonic()
        for member in self.members:
            member.heard = now
            if halt.kind == "stalled":
                member.moved = now

    def gather(self, step: str, *, timeout_s: float, look: Callable[..., None] | None = None) -> None:
        """Waits until every rank that was started has made `step`, has failed or has ended: one failure hides no other.

        `look` fills in the processes of the ranks; it is called when a rank falls silent. A rank that is stopped is not
        waited for; a rank that works is."""
        begun = looked = time.monotonic()
        waiting = [member for member in self.members if member.remote]
        while waiting and time.monotonic() - begun < timeout_s:
            self._drain()
            now = time.monotonic()
            waiting = [m for m in waiting if step not in m.steps and not m.failure and not m.over and not m.stopped]
            silent = any("started" in m.steps and now - m.heard > MAX_BEAT_SILENCE_S for m in waiting)
            if look and silent and now - looked > MAX_BEAT_SILENCE_S:
                look(watch_s=0.05)
                looked = time.monotonic()
            # Beats come from the first moment on, even while torch is imported. Without beats a rank may still be at
            # work: in the activate line, or in code that keeps Python's other threads waiting.
            late = [m for m in waiting if now - m.heard > RANK_MESSAGE_TIMEOUT_S]
            if waiting and len(late) == len(waiting):
                if look:
                    look()
                busy = [member for member in late if member.works]
                if not busy:
                    return
                for member in busy:
                    member.heard = time.monotonic()

    def _being_lost(self) -> bool:
        """Whether some node with a living rank is silent, but does not count as lost yet."""
        names = {member.rank.node for member in self.members if member.remote and not member.over}
        sessions = [self.run.site.sessions[name] for name in names if name in self.run.site.sessions]
        return any(session.silence_s > MAX_NODE_QUIET_S and not session.lost for session in sessions)

    def _drain(self) -> None:
        """Takes in all messages of ranks that have arrived; waits a moment for the first."""
        try:
            item = self._news.get(timeout=0.05)
            if len(self.members) > MAX_UNBATCHED_RANKS:
                time.sleep(
                    BATCHING_PER_RANK_S * len(self.members)
                )  # each look is at all ranks, so there are fewer looks
            while True:
                self._learn(*item)
                item = self._news.get_nowait()
        except queue.Empty:
            return

    def _learn(self, member: RankMember, message: Message | None) -> None:
        """Takes in one message of a rank; None means that its program has ended."""
        now = time.monotonic()
        member.heard = now
        if message is None:
            assert member.remote is not None
            member.over, member.code, member.lost = True, member.remote.code, member.remote.lost
            return
        event = message.get("event")
        if "started" not in member.steps and message.get("step") != "started" and event not in STOP_EXIT_CODES:
            return  # no rank speaks yet: what `activate` prints may look like any message
        if not self._may_say(member, message):
            return
        if event == "beat":
            if any(message.get(key) != member.beat.get(key) for key in ("phase", "size", "turn", "work")):
                member.moved = now
            member.beat = message
            return
        member.moved = now
        if event == "step":
            member.step = message["step"]
            member.steps[member.step] = message
        elif event == "failed" or event in STOP_EXIT_CODES:
            member.failure = message
        elif event in ("row", "finished"):
            member.finished_size = int(message["row"]["size"] if event == "row" else message["size"])
            self.extra[event] = message
        else:
            self.extra[f"{event}"] = message
            if event in ("wrong", "looking-up"):
                member.steps[event] = message
            elif event == "looked-up":
                member.steps.pop("looking-up", None)
        self._on_message(member, message)

    def _may_say(self, member: RankMember, message: Message) -> bool:
        """Whether this rank may send that message: a rank may not speak for other ranks."""
        event, own, ranks = message.get("event"), member.rank.rank, len(self.members)
        if event in RANK_0_MESSAGES and own != 0:
            return False
        if event == "located":
            return all(rank < ranks for rank in message["ranks"])
        if event == "world":
            return len(message["hosts"]) == ranks
        if event == "moved":
            return bool(message["destination"] == own and message["source"] < ranks)
        return event != "alone" or bool(message["rank"] == own)

    # Looking.

    def lines(self, member: RankMember) -> tuple[str, ...]:
        """The last lines that a rank printed besides its messages."""
        text = "".join(member.log)
        return tuple(line.rstrip() for line in text.splitlines() if line.strip())[-MAX_SHOWN_LINES:]

    # Ending.

    def dismiss(self) -> None:
        """Lets the ranks end, which they do when stdin ends, and stops those that have not ended after a second."""
        alive: list[Remote] = []
        for member in self.members:
            if member.remote and not member.over:
                try:
                    member.remote.feed(b"", end=True)
                    alive.append(member.remote)
                except Unreachable:
                    member.over = True
        alive = programs_still_running(alive, 1.0)
        for remote in alive:
            with suppress(Unreachable):
                remote.stop(0.5)
        programs_still_running(alive, 2.0)
        self.close()

    def close(self) -> None:
        """Closes the files that keep what the ranks print."""
        for log in self._logs:
            log.close()


def programs_still_running(remotes: Sequence[Remote], seconds: float) -> list[Remote]:
    """The programs that have not ended after `seconds`, counted for all together."""
    deadline = time.monotonic() + seconds
    return [remote for remote in remotes if not remote.over.wait(max(0.0, deadline - time.monotonic()))]


def start_pool(run: Run, inventory: Inventory, script: str) -> RankPool:
    """The pool that is up, if it has the same nodes and rendezvous and all its ranks live; else a new pool, started
    through `SCRIPT.sh`."""
    pool = run.pool
    if isinstance(pool, RankPool):
        alive = all(member.remote and not member.over and not member.failure for member in pool.members)
        if alive and pool.inventory.nodes == inventory.nodes and pool.inventory.rendezvous == inventory.rendezvous:
            return pool
    dismiss_pool(run)
    run.pool = pool = RankPool(run, inventory, script)
    pool.start()
    return pool


def dismiss_pool(run: Run) -> None:
    """Ends the ranks that are up, if any: for a stage that needs their port free, or at the end of the run."""
    if run.pool is not None:
        run.pool.dismiss()
        run.pool = None
