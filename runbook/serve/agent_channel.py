"""One byte stream, from the side of the server: a socket that an agent was asked to open, and its readers and
writers."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.websockets import WebSocket, WebSocketDisconnect

from runbook.agent.protocol import CHUNK, END, KILL, LONGEST_PIECE, ProtocolError, ended

CLOSE_S = 3.0
GONE = (RuntimeError, OSError, WebSocketDisconnect, TimeoutError, asyncio.TimeoutError)
"""What Starlette and the server below it raise for a socket whose other end is gone, or does not read."""


class Channel:
    """`arrived` is done when the agent has called, or will not. All but `id` and `node` belongs to the event loop."""

    def __init__(self, id: str, node: str) -> None:
        self.id = id
        self.node = node
        self.arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.refused: str | None = None
        self.over = asyncio.Event()
        """The socket is no longer used."""
        self._socket: WebSocket | None = None

    async def carry(self, socket: WebSocket) -> None:
        """Hold the agent's socket, which is accepted, until the stream is over."""
        self._socket = socket
        if not self.arrived.done():
            self.arrived.set_result(None)
        await self.over.wait()
        with contextlib.suppress(*GONE):
            await asyncio.wait_for(socket.close(), CLOSE_S)

    def refuse(self, why: str) -> None:
        if not self.arrived.done():
            self.refused = why
            self.arrived.set_result(None)

    def close(self) -> None:
        """The program on the node then sees the end of its stdin."""
        self.over.set()

    async def write(self, data: bytes) -> None:
        """Raises ConnectionError where the agent is gone."""
        for at in range(0, len(data), CHUNK):
            await self._send(data[at : at + CHUNK])

    async def end(self) -> None:
        await self._send(END)

    async def kill(self) -> None:
        await self._send(KILL)

    async def _send(self, message: bytes | str) -> None:
        if self._socket is None or self.over.is_set():
            raise ConnectionError("the stream is over")
        try:
            if isinstance(message, str):
                await self._socket.send_text(message)
            else:
                await self._socket.send_bytes(message)
        except GONE as error:
            raise ConnectionError(str(error)) from None

    async def read(self) -> bytes | int | None:
        """What the program wrote, its first byte STDOUT or STDERR; how it ended; None where the agent is gone. Raises
        ProtocolError."""
        if self._socket is None or self.over.is_set():
            return None
        try:
            message = await self._socket.receive()
        except GONE:
            return None
        if message["type"] != "websocket.receive":
            return None
        data, text = message.get("bytes"), message.get("text")
        if data is None:
            return ended(text).code
        if not 1 <= len(data) <= LONGEST_PIECE - 1:
            raise ProtocolError(f"a piece of {len(data)} bytes")
        return bytes(data)
