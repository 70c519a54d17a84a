"""`runbook agent run`: holds the control socket, sends heartbeats, and opens a channel whenever the server asks.

A lost server ends only the channels that it held. Every wait has a deadline. The node is looked at (nvidia-smi, the
journals) in a thread of its own: a slow tool delays what is reported, never the heartbeat.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

import runbook
from runbook.agent.folder import AgentFolder, Identity, State, machine_identity, short_hostname
from runbook.agent.heartbeat import MAX_LOOK_AGE_S, aged_heartbeat, make_heartbeat
from runbook.agent.permissions import NotAllowed, OrderFilter, OwnerRules
from runbook.agent.protocol import (
    CHANNEL_CHUNK_BYTES,
    END_ORDER,
    HEARTBEAT_INTERVAL_S,
    KILL_ORDER,
    MAX_AGENT_CHANNELS,
    MAX_CHANNEL_MESSAGE_BYTES,
    MAX_CONTROL_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    REPLACED_CLOSE_CODE,
    REVOKED_CLOSE_CODE,
    SERVER_DIAL_TIMEOUT_S,
    SERVER_WATCHDOG_TIMEOUT_S,
    STDERR_TAG,
    STDOUT_TAG,
    AgentHello,
    ChannelRefused,
    Denied,
    Ended,
    Heard,
    Heartbeat,
    Leaving,
    Open,
    ProtocolError,
    Welcome,
    message_json,
    parse_server_message,
)
from runbook.agent.systemd import Notify, scope_prefix

FIRST_REDIAL_INTERVAL_S, MAX_REDIAL_INTERVAL_S = 1.0, 30.0
"""The pause before dialling again is drawn at random, up to FIRST_REDIAL_INTERVAL_S at first, up to twice as long after
each failure, and never longer than MAX_REDIAL_INTERVAL_S."""

T = TypeVar("T")

MIN_STEADY_CONNECTION_S = 60.0
"""After a connection that lasted this long, failures are counted from one again."""

SOCKET_CLOSE_TIMEOUT_S = 3.0
PROGRAMS_END_TIMEOUT_S = 10.0
"""How long supervisors may take to end what they started, when the agent ends."""

MAX_WORKDIRS = 32
"""The most workdirs in which the agent looks for jobs."""

MAX_REFUSAL_CHARACTERS = 1000
"""The most characters of a reason to refuse a channel: rules may list thousands of names."""

FINAL_CLOSE_CODES = (REPLACED_CLOSE_CODE, REVOKED_CLOSE_CODE)
"""Close codes of a server that will never accept this agent again: the agent ends."""


class Turned(Exception):
    """The server refuses this agent, and says why."""

    def __init__(self, denied: Denied) -> None:
        super().__init__(denied.why)
        self.denied = denied


def redial_delay(failures: int, chance: Callable[[float, float], float] = random.uniform) -> float:
    """The seconds to wait before dialling again, after so many failures in a row: exponential, with full jitter."""
    return chance(0.0, min(MAX_REDIAL_INTERVAL_S, FIRST_REDIAL_INTERVAL_S * 2.0 ** min(failures, 10)))


class Agent:
    """One incarnation of a node's agent. `tell` prints a line into its log."""

    def __init__(self, folder: AgentFolder, identity: Identity, rules: OwnerRules, tell: Callable[[str], None]) -> None:
        self.folder = folder
        self.identity = identity
        self.rules = rules
        self.tell = tell
        self.incarnation = os.urandom(16).hex()
        self.workdirs = dict.fromkeys(("~/.runbook", *rules.workdirs))
        self._draining = False
        with contextlib.suppress(OSError):
            self._draining = folder.drained
        self._beat = Heartbeat(0)  # the latest look at the node; the number 0 means that there was none yet
        self._looked = time.monotonic()  # when that look ended
        self._channels: set[asyncio.Task[None]] = set()
        self._sockets: set[ClientConnection] = set()
        self._stopping = asyncio.Event()
        self._scope: tuple[str, ...] = ()
        self._notify = Notify()

    async def run(self) -> int:
        """Run until SIGTERM, or until the server refuses for good; returns the exit code: 0 for SIGTERM, 1 for
        refused."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stopping.set)
        self._scope = await scope_prefix()
        if "INVOCATION_ID" in os.environ and not self._scope:
            self.tell(
                "jobs will end with this service: `loginctl enable-linger` gives them scopes of their own, then "
                "restart it"
            )
        looking = asyncio.create_task(self._look())
        staying = asyncio.create_task(self._stay())
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((looking, staying, stopped), return_when=asyncio.FIRST_COMPLETED)
            for task in (looking, staying):
                if task.done():
                    task.result()
            return 0 if stopped.done() else 1
        finally:
            self._stopping.set()
            self._notify.say("STOPPING=1")
            # Supervisors see the end of their streams, and clean up. All sockets are closed at the same time, since a
            # server that is away answers none of them.
            await asyncio.gather(*(socket.close() for socket in self._sockets), return_exceptions=True)
            await _cancel_tasks(looking, staying, stopped)
            if self._channels:
                await asyncio.wait(self._channels, timeout=PROGRAMS_END_TIMEOUT_S)

    async def _stay(self) -> None:
        """Dial, again and again, until the server refuses for good or the agent stops. Cancelling this task would not
        be enough: a dial that ends at that moment may take the cancellation for its own."""
        failures = 0
        self._says("dialling", connected=False)
        self._notify.say("READY=1")
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                async with self._dial("/agent/control", MAX_CONTROL_MESSAGE_BYTES) as socket:
                    await self._converse(socket)
                why = "the server closed the connection"
            except Turned as turned:
                self._says(f"{turned.denied.why}: {turned.denied.fix}", connected=False)
                if turned.denied.code in FINAL_CLOSE_CODES:
                    return
                failures, why = 10, ""
            except InvalidStatus as error:
                failures, why = 10, f"the server refuses this agent (HTTP {error.response.status_code})"
            except (OSError, WebSocketException, asyncio.TimeoutError, ProtocolError) as error:
                why = f"{type(error).__name__}: {error}".rstrip(": ")
            failures = 1 if time.monotonic() - began > MIN_STEADY_CONNECTION_S else failures + 1
            pause = redial_delay(failures)
            if why:
                self._says(f"not connected: {why}; again in {pause:.0f} s", connected=False)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    def _dial(self, path: str, most: int) -> connect:
        """A context that gives a WebSocket to the server; `most` is the longest message in bytes. Entering it raises
        OSError, WebSocketException, TimeoutError."""
        url = "ws" + self.identity.url.removeprefix("http") + path
        return connect(
            url,
            ssl=self.identity.context(),
            additional_headers={"Authorization": f"Bearer {self.identity.token}"},
            user_agent_header=f"runbook-agent/{runbook.__version__}",
            compression=None,
            open_timeout=SERVER_DIAL_TIMEOUT_S,
            ping_interval=HEARTBEAT_INTERVAL_S,
            ping_timeout=SERVER_WATCHDOG_TIMEOUT_S,
            close_timeout=SOCKET_CLOSE_TIMEOUT_S,
            max_size=most,
            max_queue=8,
        )

    async def _converse(self, socket: ClientConnection) -> None:
        """Greet the server and obey it until the socket ends. Raises TimeoutError when the server says nothing for
        SERVER_WATCHDOG_TIMEOUT_S, Turned when it refuses this agent, and ProtocolError."""
        user = str(os.getuid())
        hello = AgentHello(
            PROTOCOL_VERSION, runbook.__version__, self.incarnation, short_hostname()[:200], machine_identity(), user
        )
        await socket.send(message_json(hello))
        beating = asyncio.create_task(self._beats(socket))
        try:
            while True:
                message = parse_server_message(await asyncio.wait_for(socket.recv(), SERVER_WATCHDOG_TIMEOUT_S))
                if isinstance(message, Denied):
                    raise Turned(message)
                if isinstance(message, Welcome):
                    self._says(f"connected as {message.name}", connected=True)
                elif isinstance(message, Open):
                    await self._opened(socket, message)
                assert isinstance(message, Welcome | Heard | Open)
        except ConnectionClosed:
            return
        finally:
            if self._stopping.is_set():
                with contextlib.suppress(ConnectionClosed, asyncio.TimeoutError):
                    await asyncio.wait_for(socket.send(message_json(Leaving())), SOCKET_CLOSE_TIMEOUT_S)
            await _cancel_tasks(beating)

    async def _beats(self, socket: ClientConnection) -> None:
        """Send a heartbeat every HEARTBEAT_INTERVAL_S until the socket ends; with fewer jobs if it would be too
        long."""
        with contextlib.suppress(ConnectionClosed):
            for number in itertools.count(1):
                seen = aged_heartbeat(self._beat, time.monotonic() - self._looked)
                beat = msgspec.structs.replace(seen, number=number, draining=self._draining)
                text = message_json(beat)
                if len(text) > MAX_CONTROL_MESSAGE_BYTES // 2:
                    text = message_json(msgspec.structs.replace(beat, jobs=beat.jobs[:16]))
                await socket.send(text)
                await asyncio.sleep(HEARTBEAT_INTERVAL_S)

    async def _look(self) -> None:
        """Look at the node every HEARTBEAT_INTERVAL_S, one look at a time, and tell the service manager that the agent
        lives. A look that hangs, as on a dead file server, is said once."""
        looking: Future[tuple[Heartbeat, bool]] | None = None
        told = False
        while True:
            self._notify.say("WATCHDOG=1")
            if looking is not None and looking.done():
                if (error := looking.exception()) is None:
                    (self._beat, self._draining), self._looked, told = looking.result(), time.monotonic(), False
                else:
                    self.tell(f"the node could not be looked at: {type(error).__name__}: {error}")
                looking = None
            if looking is None:
                looking = _look_in_daemon_thread(self._look_now)
            elif not told and (age_s := time.monotonic() - self._looked) > MAX_LOOK_AGE_S:
                told = True
                self.tell(
                    f"a look at the node has not ended for {age_s:.0f} s: nothing newer is reported until it does"
                )
            await asyncio.sleep(HEARTBEAT_INTERVAL_S if self._beat.number else FIRST_REDIAL_INTERVAL_S)

    def _look_now(self) -> tuple[Heartbeat, bool]:
        """What is seen of the node, and whether it was drained on the node itself; what cannot be read is as before."""
        draining = self._draining
        with contextlib.suppress(OSError):
            draining = self.folder.drained
        return make_heartbeat(self.identity.name, tuple(self.workdirs)), draining

    async def _opened(self, socket: ClientConnection, order: Open) -> None:
        """Open the channel that the server asks for, in a task of its own, or tell the server why not."""
        why = self.rules.against(order)
        if len(self._channels) >= MAX_AGENT_CHANNELS:
            why = f"{MAX_AGENT_CHANNELS} channels are open on this node already"
        if why:
            self.tell(f"refused a channel for {order.person or 'somebody'}: {why}")
            await socket.send(message_json(ChannelRefused(order.channel, why[:MAX_REFUSAL_CHARACTERS])))
            return
        if order.workdir and len(self.workdirs) < MAX_WORKDIRS:
            self.workdirs.setdefault(order.workdir)
        task = asyncio.create_task(self._channel(order))
        self._channels.add(task)
        task.add_done_callback(self._channels.discard)

    async def _channel(self, order: Open) -> None:
        """Dial the server for a channel, and carry the bytes of a supervisor on it until it ends."""
        try:
            async with self._dial(f"/agent/channel/{order.channel}", MAX_CHANNEL_MESSAGE_BYTES) as socket:
                self._sockets.add(socket)
                try:
                    gate = OrderFilter(self.rules) if self.rules.looks_only else None
                    await carry_program(socket, order.command, self._scope, gate)
                finally:
                    self._sockets.discard(socket)
        except (OSError, WebSocketException, TimeoutError, asyncio.TimeoutError) as error:
            self.tell(f"a channel ended: {type(error).__name__}: {error}")

    def _says(self, text: str, *, connected: bool) -> None:
        """Report the agent's state: to its log, its folder and the service manager."""
        self.tell(text)
        self.folder.write_state(State(os.getpid(), time.time(), connected, text))
        self._notify.say(f"STATUS={text}")


async def _cancel_tasks(*tasks: asyncio.Task[object] | asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


SERVICE_MANAGER_VARIABLES = (
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "LISTEN_FDS",
    "MAINPID",
)
"""Variables that a service manager sets for the agent, and that the agent's children must not get."""

OPEN_PIPES_TIMEOUT_S = 2.0
"""How long output is still read after a program has ended: a child of it may hold the pipes open."""

MAX_UNREAD_STDIN_BYTES = 16 << 20
"""Bytes that are held for a program that does not read. So orders behind them, such as the one to kill it, are
heard."""

UNREAD_STDIN_TIMEOUT_S = 300.0
"""A program that does not read for this long, while more than MAX_UNREAD_STDIN_BYTES waits for it, is given up."""


def supervisor_environment(base: Mapping[str, str]) -> dict[str, str]:
    """The environment of a supervisor: the user's own, as in a login, without the variables for the agent
    (SERVICE_MANAGER_VARIABLES)."""
    return {name: value for name, value in base.items() if name not in SERVICE_MANAGER_VARIABLES}


def _look_in_daemon_thread(look_now: Callable[[], T]) -> Future[T]:
    """A look at the node, under way in a thread that does not keep the agent from ending if it hangs. No thread, while
    no more can be started, is a failed look."""
    found: Future[T] = Future()

    def look() -> None:
        try:
            found.set_result(look_now())
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to whoever waits for the look
            found.set_exception(error)

    try:
        threading.Thread(target=look, name="look", daemon=True).start()
    except RuntimeError as error:
        found.set_exception(error)
    return found


async def carry_program(
    socket: ClientConnection, command: str, prefix: Sequence[str] = (), gate: OrderFilter | None = None
) -> None:
    """Start `command` under /bin/sh and carry its bytes until it has ended. `prefix` is put before the shell. With a
    `gate`, the gate's own command is started, and only the bytes that the gate lets through reach it."""
    try:
        process = await asyncio.create_subprocess_exec(
            *(*prefix, "/bin/sh", "-c", gate.command if gate else command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=Path.home(),
            env=supervisor_environment(os.environ),
            start_new_session=True,
        )
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: no home; ValueError: a NUL in the command
        with contextlib.suppress(ConnectionClosed):
            await socket.send(STDERR_TAG + f"the agent could not start /bin/sh: {error}".encode())
            await socket.send(message_json(Ended(127)))
        return
    assert process.stdout is not None
    assert process.stderr is not None
    feeding = asyncio.create_task(_feed_stdin(socket, process, gate))
    pumps = [
        asyncio.create_task(_send_output(socket, STDOUT_TAG, process.stdout)),
        asyncio.create_task(_send_output(socket, STDERR_TAG, process.stderr)),
    ]
    try:
        code = await process.wait()
        await asyncio.wait(pumps, timeout=OPEN_PIPES_TIMEOUT_S)  # a child of the program may still hold the pipes
        with contextlib.suppress(ConnectionClosed):
            await socket.send(message_json(Ended(code)))
    finally:
        await _cancel_tasks(feeding, *pumps)


async def _send_output(socket: ClientConnection, kind: bytes, stream: asyncio.StreamReader) -> None:
    """Send a program's output, each piece behind its `kind` byte. Reads on when the channel is closed: a full pipe
    would keep the supervisor from ending."""
    heard = True
    while data := await stream.read(CHANNEL_CHUNK_BYTES):
        if heard:
            try:
                await socket.send(kind + data)
            except ConnectionClosed:
                heard = False


async def _feed_stdin(socket: ClientConnection, process: asyncio.subprocess.Process, gate: OrderFilter | None) -> None:
    """Feed the program's stdin, and obey orders about it, until the channel is over. A program that has read its input
    to the end ends by itself, in its own time; a program that does not read it is killed after
    PROGRAMS_END_TIMEOUT_S."""
    stdin = process.stdin
    assert stdin is not None
    stdin.transport.set_write_buffer_limits(high=MAX_UNREAD_STDIN_BYTES)
    try:
        async for message in socket:
            if message == KILL_ORDER:
                _kill_group(process)
            elif message == END_ORDER:
                stdin.close()
            elif isinstance(message, bytes) and not stdin.is_closing():
                await _write_stdin(socket, stdin, message, gate)
    except (ConnectionClosed, asyncio.TimeoutError):
        pass
    finally:
        stdin.close()
    try:
        await asyncio.wait_for(stdin.wait_closed(), PROGRAMS_END_TIMEOUT_S)
    except asyncio.TimeoutError:
        _kill_group(process)
    except OSError:  # the program has closed its input, or has ended
        pass


async def _write_stdin(
    socket: ClientConnection, stdin: asyncio.StreamWriter, data: bytes, gate: OrderFilter | None
) -> None:
    """Write to the program's stdin what the gate lets through. Closes stdin when the gate ends the stream or the
    program has closed its input. Raises TimeoutError when the program does not read."""
    try:
        stdin.write(gate.feed(data) if gate else data)
        await asyncio.wait_for(stdin.drain(), UNREAD_STDIN_TIMEOUT_S)
    except NotAllowed as error:
        stdin.close()
        with contextlib.suppress(ConnectionClosed):
            await socket.send(STDERR_TAG + f"agent.yml of this node: {error}".encode("utf-8", "replace"))
    except ConnectionError:  # it has closed its input
        stdin.close()


def _kill_group(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
