"""One byte stream: a supervisor on this node, whose stdin and stdout a WebSocket to the server carries.

When the socket ends, however it does, the supervisor's stdin ends, and it cleans up by itself; nobody signals it, since
jobs that are to outlive it live on. Only an order to kill it does, for one that never began to listen.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from runbook.agent.order_filter import NotAllowed, OrderFilter
from runbook.agent.protocol import CHUNK, END, KILL, STDERR, STDOUT, Ended, said

OURS = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "INVOCATION_ID", "JOURNAL_STREAM", "LISTEN_FDS", "MAINPID")
"""What a service manager tells the agent, and is true of nothing that it starts."""

PIPES_S = 2.0


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """What a supervisor is started with: as in a login, the user's own."""
    return {name: value for name, value in base.items() if name not in OURS}


async def carry(
    socket: ClientConnection, command: str, prefix: Sequence[str] = (), gate: OrderFilter | None = None
) -> None:
    """Start `command` under /bin/sh and carry its bytes until it has ended. `prefix` is put before the shell. `gate`
    has its own command, and says what of the bytes gets through."""
    try:
        process = await asyncio.create_subprocess_exec(
            *(*prefix, "/bin/sh", "-c", gate.command if gate else command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=Path.home(),
            env=environment(os.environ),
            start_new_session=True,
        )
    except OSError as error:
        with contextlib.suppress(ConnectionClosed):
            await socket.send(STDERR + f"the agent could not start /bin/sh: {error}".encode())
            await socket.send(said(Ended(127)))
        return
    assert process.stdout is not None
    assert process.stderr is not None
    feeding = asyncio.create_task(_feed(socket, process, gate))
    pumps = [
        asyncio.create_task(_pump(socket, STDOUT, process.stdout)),
        asyncio.create_task(_pump(socket, STDERR, process.stderr)),
    ]
    try:
        code = await process.wait()
        await asyncio.wait(pumps, timeout=PIPES_S)  # something that it left running may hold the pipes
        with contextlib.suppress(ConnectionClosed):
            await socket.send(said(Ended(code)))
    finally:
        for task in (feeding, *pumps):
            task.cancel()
        await asyncio.gather(feeding, *pumps, return_exceptions=True)


async def _pump(socket: ClientConnection, kind: bytes, stream: asyncio.StreamReader) -> None:
    """Goes on reading when nobody hears it any more: a full pipe would keep the supervisor from ending."""
    heard = True
    while data := await stream.read(CHUNK):
        if heard:
            try:
                await socket.send(kind + data)
            except ConnectionClosed:
                heard = False


async def _feed(socket: ClientConnection, process: asyncio.subprocess.Process, gate: OrderFilter | None) -> None:
    assert process.stdin is not None
    try:
        async for message in socket:
            if isinstance(message, bytes):
                process.stdin.write(gate.feed(message) if gate else message)
                await process.stdin.drain()
            elif message == KILL:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            elif message == END:
                break
    except (ConnectionClosed, OSError):
        pass
    except NotAllowed as error:
        with contextlib.suppress(ConnectionClosed):
            await socket.send(STDERR + f"agent.yml of this node: {error}".encode("utf-8", "replace"))
    finally:
        process.stdin.close()
