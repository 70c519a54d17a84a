"""A byte stream to a node, from the server's side: the WebSocket that the node's agent was asked to open."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.websockets import WebSocket, WebSocketDisconnect

from runbook.agent.protocol import (
    CHANNEL_CHUNK_BYTES,
    END_ORDER,
    KILL_ORDER,
    MAX_CHANNEL_MESSAGE_BYTES,
    ProtocolError,
    parse_end_message,
)

CLOSE_TIMEOUT_S = 3.0
PEER_GONE_ERRORS = (RuntimeError, OSError, WebSocketDisconnect, TimeoutError, asyncio.TimeoutError)
"""The errors of Starlette and the HTTP server for a WebSocket whose other end is gone or does not read."""


class Channel:
    """A stream to a node. `arrived` is done when the agent has called, or has refused to (`refused` says why). All but
    `id` and `node` belongs to the event loop."""

    def __init__(self, id: str, node: str) -> None:
        self.id = id
        self.node = node
        self.arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.refused: str | None = None
        self.over = asyncio.Event()
        """Set when the stream has ended and its WebSocket is no longer used."""
        self._socket: WebSocket | None = None

    async def carry(self, socket: WebSocket) -> None:
        """Hold the agent's WebSocket, which is accepted already, until the stream is over; then close it."""
        self._socket = socket
        if not self.arrived.done():
            self.arrived.set_result(None)
        await self.over.wait()
        with contextlib.suppress(*PEER_GONE_ERRORS):
            await asyncio.wait_for(socket.close(), CLOSE_TIMEOUT_S)

    def refuse(self, why: str) -> None:
        """Note that the agent does not open the stream, and why."""
        if not self.arrived.done():
            self.refused = why
            self.arrived.set_result(None)

    def close(self) -> None:
        """End the stream; the program on the node then sees the end of its stdin."""
        self.over.set()

    async def write(self, data: bytes) -> None:
        """Send bytes to the program's stdin. Raises ConnectionError when the agent is gone."""
        for at in range(0, len(data), CHANNEL_CHUNK_BYTES):
            await self._send(data[at : at + CHANNEL_CHUNK_BYTES])

    async def end(self) -> None:
        await self._send(END_ORDER)

    async def kill(self) -> None:
        await self._send(KILL_ORDER)

    async def _send(self, message: bytes | str) -> None:
        if self._socket is None or self.over.is_set():
            raise ConnectionError("the stream is over")
        try:
            if isinstance(message, str):
                await self._socket.send_text(message)
            else:
                await self._socket.send_bytes(message)
        except PEER_GONE_ERRORS as error:
            raise ConnectionError(str(error)) from None

    async def read(self) -> bytes | int | None:
        """The next output of the program, behind a first byte STDOUT_TAG or STDERR_TAG; its exit code when it has
        ended; None when the agent is gone. Raises ProtocolError."""
        if self._socket is None or self.over.is_set():
            return None
        try:
            message = await self._socket.receive()
        except PEER_GONE_ERRORS:
            return None
        if message["type"] != "websocket.receive":
            return None
        data, text = message.get("bytes"), message.get("text")
        if data is None:
            return parse_end_message(text).code
        if not 1 <= len(data) <= MAX_CHANNEL_MESSAGE_BYTES - 1:
            raise ProtocolError(f"a piece of {len(data)} bytes")
        return bytes(data)
