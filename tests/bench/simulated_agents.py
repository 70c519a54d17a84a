"""Agents of a fleet, all in one process: what their nodes do is made up, what they say to the server is what agents say. They
end at SIGTERM.

On stdin, JSON: {"url", "tokens": {name: token}, "ranks", "writes": name of the node of which a rank
writes 10 MB/s to whoever opens a stream to it}. Prints one JSON object at the end: {"beats": seconds from each heartbeat to its
answer, "written": bytes}.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import signal
import sys
import time
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from runbook.agent.protocol import (
    HEARTBEAT_INTERVAL_S,
    PROTOCOL_VERSION,
    STDOUT_TAG,
    AgentHello,
    GpuLoad,
    Heard,
    Heartbeat,
    JobProcess,
    Open,
    Welcome,
    message_json,
    parse_server_message,
)

PIECE = 64 << 10
BYTES_A_SECOND = 10_000_000
JOB = "20261123-120000-abcdef"
LONGEST_WAIT_S = 30.0


class Fleet:
    def __init__(self, given: dict[str, Any]) -> None:
        self.url = given["url"].replace("http", "ws", 1)
        self.ranks: int = given["ranks"]
        self.ending = False
        self.writes: str = given["writes"]
        self.beats: list[float] = []
        self.welcomed: list[tuple[float, str]] = []
        self.written = 0
        self._channels: set[asyncio.Task[None]] = set()

    async def agent(self, number: int, name: str, token: str) -> None:
        """Dial, and dial again with full jitter, as `runbook agent run` does."""
        headers = {"Authorization": f"Bearer {token}"}
        incarnation, wait_s = secrets.token_hex(16), 1.0
        await asyncio.sleep(number * 0.01)
        while not self.ending:
            try:
                async with connect(
                    f"{self.url}/agent/control", additional_headers=headers, compression=None, ping_interval=None
                ) as socket:
                    await socket.send(message_json(AgentHello(PROTOCOL_VERSION, "0.1.0", incarnation, name, name)))
                    assert isinstance(parse_server_message(await socket.recv()), Welcome)
                    self.welcomed.append((time.monotonic(), name))
                    wait_s = 1.0
                    await self.speak(number, name, headers, socket)
            except (OSError, WebSocketException, TimeoutError):
                await asyncio.sleep(random.uniform(0, wait_s))
                wait_s = min(LONGEST_WAIT_S, wait_s * 2)

    async def speak(self, number: int, name: str, headers: dict[str, str], socket: ClientConnection) -> None:
        sent: dict[int, float] = {}

        async def hear() -> None:
            async for text in socket:
                message = parse_server_message(text)
                if isinstance(message, Heard) and message.number in sent:
                    self.beats.append(time.perf_counter() - sent.pop(message.number))
                elif isinstance(message, Open):
                    task = asyncio.create_task(self.channel(name, headers, message.channel))
                    self._channels.add(task)
                    task.add_done_callback(self._channels.discard)

        hearing = asyncio.create_task(hear())
        try:
            count = 0
            await asyncio.sleep(random.uniform(0, HEARTBEAT_INTERVAL_S))
            while not self.ending and not hearing.done():
                count += 1
                sent[count] = time.perf_counter()
                await socket.send(message_json(self.beat(number, count)))
                await asyncio.sleep(HEARTBEAT_INTERVAL_S)
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)

    def beat(self, number: int, count: int) -> Heartbeat:
        ranks = range(number * self.ranks, (number + 1) * self.ranks)
        jobs = [
            JobProcess(JOB, 1, f"rank-{rank:05d}", [rank], 4000 + rank, step=str(count), step_age_s=0.4)
            for rank in ranks
        ]
        gpus = [GpuLoad(index, "NVIDIA H100 80GB HBM3", 97.0, 70_000.0, 81_559.0) for index in range(self.ranks)]
        return Heartbeat(count, load=[8.0, 8.0, 8.0], cpus=192, gpus=gpus, jobs=jobs)

    async def channel(self, name: str, headers: dict[str, str], id: str) -> None:
        try:
            async with connect(
                f"{self.url}/agent/channel/{id}", additional_headers=headers, compression=None, ping_interval=None
            ) as socket:
                if name == self.writes:
                    await self.write(socket)
                async for _ in socket:
                    pass
        except (OSError, WebSocketException):
            pass  # whoever wanted it has enough

    async def write(self, socket: ClientConnection) -> None:
        piece, begun, own = STDOUT_TAG + b"x" * (PIECE - 1), time.monotonic(), 0
        while not self.ending:
            await socket.send(piece)
            self.written += PIECE
            own += PIECE
            await asyncio.sleep(max(0.0, begun + own / BYTES_A_SECOND - time.monotonic()))


async def main(given: dict[str, Any]) -> None:
    fleet = Fleet(given)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, setattr, fleet, "ending", True)
    await asyncio.gather(*(fleet.agent(number, *one) for number, one in enumerate(given["tokens"].items())))
    print(json.dumps({"beats": fleet.beats, "welcomed": fleet.welcomed, "written": fleet.written}))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.stdin.read())))
