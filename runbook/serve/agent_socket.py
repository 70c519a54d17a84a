"""`DATA/agents.sock`: the Unix socket where a `runbook` on this machine asks for a stream to a node. The server carries
the bytes of the stream without looking at them.

Only this account and root can open the socket, and they can already do everything that the server may.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from runbook.agent.protocol import STDOUT_TAG, ProtocolError
from runbook.serve.agent_channel import Channel
from runbook.serve.agent_fleet import Fleet, InvalidNodeName, NoStreamError
from runbook.serve.people import Audit
from runbook.transport.agent import (
    AGENT_SOCKET_FILE,
    ASK_FRAME,
    DATA_FRAME,
    END_FRAME,
    ENROL_FRAME,
    FRAME_HEADER,
    KILL_FRAME,
    MAX_FRAME_BYTES,
    OPENED_FRAME,
    OVER_FRAME,
    STDERR_FRAME,
    EnrolmentRequest,
    StreamRequest,
    StreamStatus,
    agent_frame,
    short_socket_address,
)

REQUEST_TIMEOUT_S = 5.0
"""How long a client may take to send its request."""
CLIENT_SEND_TIMEOUT_S = 60.0
"""How long a client may take to read; a controller that reads nothing for this long is stopped or dead."""

AFTER_STDIN_TIMEOUT_S = 15.0
"""How long a stream may go on after the end of its stdin: programs may have a grace in which to end."""

log = logging.getLogger("runbook.serve")
_STREAM_REQUEST_DECODER = msgspec.json.Decoder(StreamRequest)
_ENROLMENT_REQUEST_DECODER = msgspec.json.Decoder(EnrolmentRequest)


class StreamSocket:
    """Serves the socket in a data folder while `open` is held."""

    def __init__(self, fleet: Fleet, data: Path, audit: Audit) -> None:
        self._fleet = fleet
        self._audit = audit
        self._path = data / AGENT_SOCKET_FILE
        self._connections: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """A context in which the socket is served. Raises OSError when the socket cannot be made."""
        self._path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            with short_socket_address(self._path) as address:
                server = await asyncio.start_unix_server(self._serve, address, limit=MAX_FRAME_BYTES)
        finally:
            os.umask(before)
        try:
            yield
        finally:
            server.close()
            self._path.unlink(missing_ok=True)
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if _is_allowed_client(writer):
                await self._answer(reader, writer)
        except (OSError, ValueError, TimeoutError, asyncio.TimeoutError, asyncio.IncompleteReadError):
            pass  # the client is gone, or is not a runbook
        except Exception:
            log.exception("a stream to a node")
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the one request of a client; carry the bytes of a stream if it asks for one."""
        kind, data = await asyncio.wait_for(_read_frame(reader), REQUEST_TIMEOUT_S)
        if kind == ENROL_FRAME:
            await _send_frame(
                writer, OVER_FRAME, msgspec.json.encode(await self._enrol(_ENROLMENT_REQUEST_DECODER.decode(data)))
            )
        if kind != ASK_FRAME:
            return
        request = _STREAM_REQUEST_DECODER.decode(data)
        if not request.open:
            await _send_frame(writer, OVER_FRAME, msgspec.json.encode(self._fleet.status(request.node)))
            return
        try:
            channel = await self._fleet.open(request)
        except NoStreamError as refused:
            await _send_frame(writer, OVER_FRAME, msgspec.json.encode(refused.status))
            return
        try:
            await _send_frame(writer, OPENED_FRAME)
            await _carry_both_ways(channel, reader, writer)
        finally:
            self._fleet.forget(channel)

    async def _enrol(self, wanted: EnrolmentRequest) -> StreamStatus:
        try:
            string = await asyncio.to_thread(self._fleet.make_enrolment_string, wanted.by, wanted.name)
        except InvalidNodeName as error:
            return StreamStatus("agent-lost", str(error), "name it as an inventory does")
        self._audit.note(wanted.by, "command line", f"serve enrol {wanted.name or ''}".rstrip(), "")
        return StreamStatus(says=string)


async def _carry_both_ways(channel: Channel, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes in both directions until the program has ended, or the client or the agent is gone."""
    up = asyncio.create_task(_carry_to_node(channel, reader))
    down = asyncio.create_task(_carry_to_client(channel, writer))
    try:
        await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        if up.done() and up.exception() is None and up.result():
            await asyncio.wait((down,), timeout=AFTER_STDIN_TIMEOUT_S)
        for task in (up, down):
            if task.done() and (error := task.exception()) is not None:
                raise error
    finally:
        up.cancel()
        down.cancel()
        await asyncio.gather(up, down, return_exceptions=True)


async def _carry_to_node(channel: Channel, reader: asyncio.StreamReader) -> bool:
    """Carry the client's bytes to the node until they end. Whether the client said END_FRAME, and so still reads the
    program's output; False if it is gone."""
    while True:
        try:
            kind, data = await _read_frame(reader)
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        if kind == DATA_FRAME:
            await channel.write(data)
        elif kind == KILL_FRAME:
            await channel.kill()
        elif kind == END_FRAME:
            await channel.end()
            return True
        else:
            raise ValueError(f"a frame {kind!r}")


async def _carry_to_client(channel: Channel, writer: asyncio.StreamWriter) -> None:
    """Carry the program's output to the client until it ends, and say OVER_FRAME."""
    while True:
        try:
            said = await channel.read()
        except ProtocolError as error:
            fix = f"look at the agent on {channel.node}: it sends what no agent sends"
            status = StreamStatus("tool-output-unknown", f"the agent of {channel.node}: {error}", fix)
            await _send_frame(writer, OVER_FRAME, msgspec.json.encode(status))
            return
        if not isinstance(said, bytes):
            await _send_frame(writer, OVER_FRAME, msgspec.json.encode(StreamStatus(code=said)))
            return
        await _send_frame(writer, DATA_FRAME if said[:1] == STDOUT_TAG else STDERR_FRAME, said[1:])


async def _read_frame(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The kind and data of the next frame. Raises IncompleteReadError at the end, and ValueError for a frame that is
    too long."""
    kind, length = FRAME_HEADER.unpack(await reader.readexactly(FRAME_HEADER.size))
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes")
    return kind, await reader.readexactly(length)


async def _send_frame(writer: asyncio.StreamWriter, kind: bytes, data: bytes = b"") -> None:
    writer.write(agent_frame(kind, data))
    if writer.transport.is_closing() or writer.transport.get_write_buffer_size():  # the kernel did not take all of it
        await asyncio.wait_for(writer.drain(), CLIENT_SEND_TIMEOUT_S)


def _is_allowed_client(writer: asyncio.StreamWriter) -> bool:
    """Whether the client runs as this account or as root. The socket's mode demands this too, but some systems ignore
    the mode."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    given = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", given)[1] in (0, os.geteuid())
