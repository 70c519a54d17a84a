"""All agents: which are enrolled, which are online, and the byte streams to their nodes.

The database has only what has to outlive the server: which agents may connect, their latest incarnations, and their
changes of state. Methods may be called from any thread; coroutines belong to the server's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import runbook
from runbook.agent.protocol import (
    AGENT_LOST_TIMEOUT_S,
    ELSEWHERE_CLOSE_CODE,
    MAX_AGENT_CHANNELS,
    REPLACED_CLOSE_CODE,
    REVOKED_CLOSE_CODE,
    TOO_OLD_CLOSE_CODE,
    AgentHello,
    Denied,
    Enrolment,
    FromServer,
    Heartbeat,
    Open,
)
from runbook.files.inventory import natural_sort_key
from runbook.model.inventory import NODE_NAME, NODE_NAME_HELP
from runbook.serve.agent_channel import Channel
from runbook.serve.agent_states import (
    OLD_AGENT_REMEDY,
    AgentState,
    AgentStateName,
    AwakeClock,
    RankState,
    agent_state_name,
    drained_status,
    is_supported_protocol,
    never_enrolled_status,
    no_stream_status,
    not_connected_status,
    reported_rank_states,
    stream_not_opened_status,
)
from runbook.serve.change_stream import Changed
from runbook.serve.people import secret_hash
from runbook.serve.settings import ServeSettings
from runbook.serve.store import Store
from runbook.transport.agent import StreamRequest, StreamStatus

STATE_CHECK_INTERVAL_S = 1.0
"""How often the states of all agents are judged."""
ENROLMENT_LIFETIME_S = 3600.0
"""How long an enrolment string can be used."""
CHANNEL_OPEN_TIMEOUT_S = 15.0
"""How long an agent may take to call after the order to open a channel."""

MAX_KEPT_INCARNATIONS = 20
"""How many incarnations of a node's agent the database keeps."""
MAX_KEPT_STATE_CHANGES = 1000
"""How many changes of state of a node the database keeps."""
log = logging.getLogger("runbook.serve")


class NoAgent(LookupError):
    """No agent has this name."""


class InvalidNodeName(ValueError):
    """The text is no valid name for a node."""


class NotEnrolled(Exception):
    """A host is not enrolled: the HTTP status and the sentence for the answer."""

    def __init__(self, status: int, says: str) -> None:
        super().__init__(says)
        self.status = status


class NoStreamError(Exception):
    """There is no stream to a node; `status` says why."""

    def __init__(self, status: StreamStatus) -> None:
        super().__init__(status.says)
        self.status = status


@dataclass(eq=False)
class ControlSocket:
    """The control socket of an agent. `send` and `close` belong to the event loop."""

    incarnation: str
    machine: str
    send: Callable[[FromServer], Coroutine[Any, Any, None]]
    close: Callable[[Denied | None], Coroutine[Any, Any, None]]


@dataclass(eq=False)
class EnrolledNode:
    """An enrolled node. `token` is the hash of its agent's token. `heard` is when the agent last sent something, on the
    fleet's clock; None if not since the server began. `replaced` are incarnations that a newer one has replaced.
    `ranks` are those of `beat`, its latest heartbeat. `order` is the key by which nodes are sorted."""

    name: str
    token: str
    revoked: bool = False
    draining: bool = False
    version: str = ""
    hostname: str = ""
    address: str = ""
    incarnation: str = ""
    replaced: set[str] = field(default_factory=set)
    control: ControlSocket | None = None
    heard: float | None = None
    beat: Heartbeat = field(default_factory=partial(Heartbeat, 0))
    ranks: tuple[RankState, ...] = ()
    too_old: bool = False
    state: AgentStateName = "SUSPECT"
    since: float = field(default_factory=time.time)
    order: Any = None

    def __post_init__(self) -> None:
        self.order = natural_sort_key(self.name)


def make_enrolment_string(store: Store, settings: ServeSettings, by: str, name: str | None = None) -> str:
    """A string with which one host can be enrolled within the hour. With a `name`, the host is enrolled as that node,
    which it replaces if it is enrolled already. Raises InvalidNodeName."""
    if name is not None and not NODE_NAME.match(name):
        raise InvalidNodeName(f"a node cannot be called {name!r}: {NODE_NAME_HELP}")
    secret, now = secrets.token_urlsafe(32), time.time()
    with store.write() as db:
        db.execute("DELETE FROM enrolments WHERE expires_at < ?", (now,))
        db.execute(
            "INSERT INTO enrolments VALUES (?, ?, ?, ?)", (secret_hash(secret), name, by, now + ENROLMENT_LIFETIME_S)
        )
    return str(Enrolment(settings.url_of_agents, settings.tls.fingerprint if settings.tls else None, secret))


class Fleet:
    """All enrolled nodes and the streams to them. `running` has to be entered in the server's event loop. `now` is a
    monotonic clock."""

    def __init__(
        self, store: Store, settings: ServeSettings, changed: Changed, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._settings = settings
        self._changed = changed
        self._now = now
        self._lock = threading.RLock()
        self._awake = AwakeClock(now(), STATE_CHECK_INTERVAL_S)
        self._nodes: dict[str, EnrolledNode] = {}
        self._by_token: dict[str, EnrolledNode] = {}
        self._channels: dict[str, Channel] = {}
        self._transitions: list[tuple[str, float, str]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        for row in store.read("SELECT * FROM agents"):
            node = EnrolledNode(row["name"], row["token"], row["revoked_at"] is not None, bool(row["draining"]))
            node.version, node.hostname, node.address = row["version"], row["hostname"], row["address"]
            known = store.read("SELECT incarnation FROM agent_incarnations WHERE name = ? ORDER BY rowid", node.name)
            node.replaced = {one["incarnation"] for one in known[:-1]}
            node.incarnation = known[-1]["incarnation"] if known else ""
            node.state = agent_state_name(0.0, revoked=node.revoked) if node.revoked else "SUSPECT"
            self._nodes[node.name] = self._by_token[node.token] = node

    # For people: what they see and decide.

    def nodes(self) -> list[AgentState]:
        """Every enrolled node, in natural order of the names."""
        with self._lock:
            self._judge()
            nodes = list(self._nodes.values())
        # Outside of the lock: a thousand nodes take a while, and agents must be answered meanwhile.
        return [self._seen(node) for node in sorted(nodes, key=lambda node: node.order)]

    def node(self, name: str) -> AgentState | None:
        with self._lock:
            self._judge()
            node = self._nodes.get(name)
            return None if node is None else self._seen(node)

    def reachable(self, names: Iterable[str]) -> bool:
        """Whether a stream could be opened to each of these nodes that has an agent."""
        with self._lock:
            self._judge()
            known = [self._nodes[name] for name in names if name in self._nodes]
            return all(node.control is not None and node.state in ("ONLINE", "DRAINING") for node in known)

    def unheard(self, names: Iterable[str]) -> list[AgentState]:
        """The nodes among these whose agent is SUSPECT or LOST."""
        with self._lock:
            self._judge()
            known = [self._nodes[name] for name in names if name in self._nodes]
            return [self._seen(node) for node in known if node.state in ("SUSPECT", "LOST")]

    def history(self, name: str) -> list[tuple[float, str]]:
        """The latest 200 changes of a node's state, the last one first: the time in seconds since 1970, and the new
        state."""
        self._flush()
        rows = self._store.read("SELECT at, state FROM agent_states WHERE name = ? ORDER BY id DESC LIMIT 200", name)
        return [(row["at"], row["state"]) for row in rows]

    def make_enrolment_string(self, by: str, name: str | None = None) -> str:
        return make_enrolment_string(self._store, self._settings, by, name)

    def drain(self, name: str, on: bool) -> None:
        """Let no new run begin on the node (`on`), or let runs begin there again; what runs goes on. Raises NoAgent."""
        with self._lock:
            node = self._node_named(name)
            node.draining = on
            with self._store.write() as db:
                db.execute("UPDATE agents SET draining = ? WHERE name = ?", (int(on), name))
            self._judge()

    def revoke(self, name: str) -> None:
        """Make the node's token invalid, and end its streams; detached jobs there go on. Raises NoAgent."""
        with self._lock:
            node = self._node_named(name)
            node.revoked = True
            with self._store.write() as db:
                db.execute("UPDATE agents SET revoked_at = ? WHERE name = ?", (time.time(), name))
            control, node.control = node.control, None
            self._judge()
        fix = "`runbook serve enrol` on the server makes a new string; here: runbook agent enrol STRING --again"
        self._end(control, Denied(REVOKED_CLOSE_CODE, "this agent was revoked on the server", fix))

        def closed() -> None:  # in the loop, to which the channels belong
            for channel in [one for one in self._channels.values() if one.node == name]:
                channel.close()

        self._soon(closed)

    def _node_named(self, name: str) -> EnrolledNode:
        if name not in self._nodes:
            raise NoAgent(name)
        return self._nodes[name]

    # Enrolment.
    def enrol_host(self, secret: str, name: str) -> tuple[str, str]:
        """Enrol a host by the secret of an enrolment string, which is spent; returns the node's name and its new token.
        Raises NotEnrolled."""
        if not NODE_NAME.match(name):
            raise NotEnrolled(400, "that is not a valid name of a node")
        token, now = secrets.token_urlsafe(32), time.time()
        with self._lock:  # held until the node is in `_nodes`: of two strings for one name the first one counts
            with self._store.write() as db:
                found = db.execute("SELECT * FROM enrolments WHERE secret = ?", (secret_hash(secret),)).fetchone()
                if found is None or found["expires_at"] < now:
                    raise NotEnrolled(403, "this string was used already, or is older than an hour: take a new one")
                if found["name"] not in (None, name):
                    raise NotEnrolled(409, f"this string is for {found['name']}: add `--name {found['name']}`")
                known = self._nodes.get(name)
                if known is not None and not known.revoked and found["name"] is None:
                    raise NotEnrolled(
                        409, f"a node {name} is enrolled already: take another --name, or a string made for {name}"
                    )
                draining = known is not None and known.draining  # a new token lifts no drain
                db.execute("DELETE FROM enrolments WHERE secret = ?", (secret_hash(secret),))
                db.execute("DELETE FROM agent_incarnations WHERE name = ?", (name,))
                db.execute("DELETE FROM agents WHERE name = ?", (name,))
                db.execute(
                    "INSERT INTO agents (name, token, enrolled_at, enrolled_by, draining) VALUES (?, ?, ?, ?, ?)",
                    (name, secret_hash(token), now, found["made_by"], int(draining)),
                )
            self._adopt(EnrolledNode(name, secret_hash(token), draining=draining))
        return name, token

    def _adopt(self, node: EnrolledNode) -> None:
        """Take a newly enrolled node into the fleet, in place of an earlier one of the same name."""
        with self._lock:
            before = self._nodes.get(node.name)
            if before is not None:
                self._by_token.pop(before.token, None)
                self._end(before.control, _enrolled_again_denial())
            self._nodes[node.name] = self._by_token[node.token] = node
            node.heard = self._awake.seconds
            self._judge()
        self._changed.publish("fleet")

    # From agents.

    def by_token(self, token: str) -> EnrolledNode | None:
        """The node that has this token, revoked or not; None if no node has it."""
        return self._by_token.get(secret_hash(token))

    def greet(self, node: EnrolledNode, hello: AgentHello, address: str, control: ControlSocket) -> Denied | None:
        """Accept an agent's connection in place of an earlier one; returns None, or why the agent is refused."""
        with self._lock:
            denied = self._against(node, hello)
            if denied is not None:
                return denied
            if node.incarnation and node.incarnation != hello.incarnation:
                node.replaced.add(node.incarnation)
            before, node.control = node.control, control
            new = node.incarnation != hello.incarnation
            given = (hello.version, hello.hostname, address)
            if new or given != (node.version, node.hostname, node.address):
                node.incarnation = hello.incarnation
                node.version, node.hostname, node.address = given
                self._remember(node)
            node.too_old, node.heard = False, self._awake.tick(self._now())
            self._judge()
        if before is not None:
            other = None if before.incarnation == hello.incarnation else _replaced_denial()
            self._end(before, other)
        return None

    def _against(self, node: EnrolledNode, hello: AgentHello) -> Denied | None:
        """Why an agent that says this hello is refused; None if it may connect."""
        if node.revoked:
            return Denied(
                REVOKED_CLOSE_CODE, "this agent was revoked on the server", "runbook agent enrol STRING --again"
            )
        if self._nodes.get(node.name) is not node:
            return _enrolled_again_denial()
        if not is_supported_protocol(hello.protocol):
            node.too_old, node.version, node.heard = True, hello.version, self._awake.tick(self._now())
            self._judge()
            says = f"runbook {hello.version} here and {runbook.__version__} on the server differ too much"
            return Denied(TOO_OLD_CLOSE_CODE, says, OLD_AGENT_REMEDY)
        if hello.incarnation in node.replaced:
            return _replaced_denial()
        there = node.control
        if there is not None and there.machine != hello.machine and self._silent(node) < AGENT_LOST_TIMEOUT_S:
            fix = f"enrol this host on its own: `runbook agent enrol STRING --again --name …` (it is {hello.hostname})"
            says = f"an agent with this identity is online on {node.hostname}: its files were copied from there"
            return Denied(ELSEWHERE_CLOSE_CODE, says, fix)
        return None

    def note_message(self, node: EnrolledNode, control: ControlSocket, beat: Heartbeat | None) -> bool:
        """Note that the agent has sent something, and remember its heartbeat if it was one. Whether `control` is still
        the node's control socket; if not, nothing is noted."""
        with self._lock:
            if node.control is not control:
                return False
            node.heard = self._awake.tick(self._now())
            if beat is not None:
                if _published_heartbeat_part(beat) != _published_heartbeat_part(node.beat):
                    self._changed.publish("fleet")
                node.beat, node.ranks = beat, reported_rank_states(beat.jobs)
            self._judge_one(node)
            return True

    def note_disconnect(self, node: EnrolledNode, control: ControlSocket) -> None:
        """Note that a node's control socket has ended: no stream can be opened. Nothing else follows from that."""
        with self._lock:
            if node.control is control:
                node.control = None
        self._changed.publish("fleet")

    # Streams.

    def status(self, name: str) -> StreamStatus:
        """Why no stream can be opened to a node; a status without a cause if its agent is online."""
        with self._lock:
            self._judge()
            node = self._nodes.get(name)
            if node is None:
                return never_enrolled_status(name)
            if node.state in ("ONLINE", "DRAINING") and node.control is not None:
                return StreamStatus()
            if node.control is None and node.state in ("ONLINE", "DRAINING", "SUSPECT"):
                return not_connected_status(name, self._silent(node))
            return no_stream_status(name, node.state, self._silent(node), node.version)

    async def open(self, request: StreamRequest) -> Channel:
        """A stream to a supervisor on a node. Raises NoStreamError."""
        with self._lock:
            status, node = self.status(request.node), self._nodes.get(request.node)
            if node is None or node.control is None or node.state in ("LOST", "REVOKED", "TOO_OLD"):
                raise NoStreamError(status if status.cause else never_enrolled_status(request.node))
            if node.state == "DRAINING" and not request.looks:
                raise NoStreamError(drained_status(node.name))
            mine = sum(1 for channel in self._channels.values() if channel.node == node.name)
            if mine >= MAX_AGENT_CHANNELS:
                raise NoStreamError(
                    stream_not_opened_status(node.name, f"{MAX_AGENT_CHANNELS} streams to it are open already")
                )
            channel = Channel(secrets.token_hex(16), node.name)
            self._channels[channel.id] = channel
            control = node.control
        order = Open(channel.id, request.command, request.python, request.workdir, request.person)
        try:
            await asyncio.wait_for(control.send(order), CHANNEL_OPEN_TIMEOUT_S)
            await asyncio.wait_for(asyncio.shield(channel.arrived), CHANNEL_OPEN_TIMEOUT_S)
        except (TimeoutError, asyncio.TimeoutError, ConnectionError, RuntimeError):
            self.forget(channel)
            raise NoStreamError(
                stream_not_opened_status(node.name, f"it did not call within {CHANNEL_OPEN_TIMEOUT_S:g} s")
            ) from None
        except BaseException:
            self.forget(channel)
            raise
        if channel.refused is not None:
            self.forget(channel)
            raise NoStreamError(stream_not_opened_status(node.name, channel.refused))
        return channel

    def note_refusal(self, node: EnrolledNode, channel: str, why: str) -> None:
        """Note that an agent does not open a channel, and why."""
        found = self._channels.get(channel)
        if found is not None and found.node == node.name:
            found.refuse(why)

    def channel(self, node: EnrolledNode, number: str) -> Channel | None:
        """The channel with this id, if this node was asked to open it and has not called yet."""
        found = self._channels.get(number)
        ours = found is not None and found.node == node.name and not found.arrived.done() and not node.revoked
        return found if ours else None

    def forget(self, channel: Channel) -> None:
        self._channels.pop(channel.id, None)
        channel.close()

    @property
    def streams(self) -> int:
        """How many streams to nodes are open now."""
        return len(self._channels)

    # Time.

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """A context in which the states of all agents are judged every second, in this event loop."""
        self._loop = asyncio.get_running_loop()
        ticking = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
            for channel in list(self._channels.values()):
                self.forget(channel)
            self._flush()

    async def _tick(self) -> None:
        while True:
            try:
                with self._lock:
                    self._judge()
                if self._transitions:
                    await asyncio.to_thread(self._flush)
            except Exception:
                log.exception("judging the agents")
            await asyncio.sleep(STATE_CHECK_INTERVAL_S)

    def _judge(self) -> None:
        """Work out the state of every node anew; the caller holds the lock."""
        self._awake.tick(self._now())
        for node in self._nodes.values():
            self._judge_one(node)

    def _judge_one(self, node: EnrolledNode) -> None:
        """Work out the state of a node anew, and note a change of it; the caller holds the lock."""
        draining = node.draining or node.beat.draining
        silent = self._silent(node)
        state = agent_state_name(silent, revoked=node.revoked, too_old=node.too_old, draining=draining)
        if node.heard is None and state in ("ONLINE", "DRAINING"):
            state = "SUSPECT"  # the agent has sent nothing since this server began
        if state != node.state:
            node.state, node.since = state, time.time()
            self._transitions.append((node.name, node.since, state))
            self._changed.publish("fleet")

    def _silent(self, node: EnrolledNode) -> float:
        """The seconds for which a node has sent nothing; since the server began if it never has."""
        return self._awake.seconds - (node.heard or 0.0)

    def _flush(self) -> None:
        """Write the changes of state into the database."""
        with self._lock:
            rows, self._transitions = self._transitions, []
        if not rows:
            return
        try:
            with self._store.write() as db:
                db.executemany("INSERT INTO agent_states (name, at, state) VALUES (?, ?, ?)", rows)
                for name in {name for name, _, _ in rows}:
                    oldest = "SELECT id FROM agent_states WHERE name = ? ORDER BY id DESC LIMIT 1 OFFSET ?"
                    kept = (name, name, MAX_KEPT_STATE_CHANGES)
                    db.execute(f"DELETE FROM agent_states WHERE name = ? AND id <= ({oldest})", kept)
        except sqlite3.Error:
            with self._lock:
                self._transitions = [*rows, *self._transitions]  # to be tried again
            raise

    def _remember(self, node: EnrolledNode) -> None:
        """Write a node's version, host name, address and incarnation into the database."""
        with self._store.write() as db:
            db.execute(
                "UPDATE agents SET version = ?, hostname = ?, address = ? WHERE name = ?",
                (node.version, node.hostname, node.address, node.name),
            )
            db.execute(
                "INSERT OR IGNORE INTO agent_incarnations VALUES (?, ?, ?)",
                (node.name, node.incarnation, time.time()),
            )
            db.execute(
                "DELETE FROM agent_incarnations WHERE name = ? AND incarnation NOT IN (SELECT incarnation "
                "FROM agent_incarnations WHERE name = ? ORDER BY rowid DESC LIMIT ?)",
                (node.name, node.name, MAX_KEPT_INCARNATIONS),
            )

    def _seen(self, node: EnrolledNode) -> AgentState:
        """The state of a node for people."""
        beat, age = node.beat, None if node.heard is None else self._silent(node)
        return AgentState(
            name=node.name,
            state=node.state,
            since=node.since,
            beat_age_s=age,
            version=node.version,
            hostname=node.hostname,
            address=node.address,
            gpus=tuple(beat.gpus),
            load=beat.load[0] if beat.load else None,
            jobs=node.ranks,
            incarnation=node.incarnation,
            connected=node.control is not None,
            drained_here=node.draining,
        )

    def _end(self, control: ControlSocket | None, denied: Denied | None) -> None:
        """Close a control socket soon, in the event loop; `denied` is sent before."""
        if control is not None:
            self._soon(lambda: asyncio.ensure_future(control.close(denied)))

    def _soon(self, call: Callable[[], object]) -> None:
        """Have the event loop call a function; nothing happens if the server has stopped."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the server has stopped meanwhile
                self._loop.call_soon_threadsafe(call)


def _replaced_denial() -> Denied:
    fix = "`ps -ef | grep 'runbook agent'` shows both; the newer one goes on"
    return Denied(REPLACED_CLOSE_CODE, "another agent of this node has taken its place", fix)


def _enrolled_again_denial() -> Denied:
    fix = "`runbook agent uninstall`, if this host is no longer that node"
    return Denied(REPLACED_CLOSE_CODE, "this node was enrolled again", fix)


def _published_heartbeat_part(beat: Heartbeat) -> object:
    """The part of a heartbeat whose change updates open pages at once; the rest is shown when a page is loaded."""
    return beat.draining, [(job.job, job.attempt, job.name, job.state, job.code) for job in beat.jobs]
