"""What an agent carries to a program and back, also where the program does not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest
from websockets.asyncio.client import ClientConnection

from runbook.agent import agent
from runbook.agent.agent import carry_program
from runbook.agent.protocol import END_ORDER, KILL_ORDER, STDOUT_TAG, Ended, message_json

DEADLINE_S = 120.0
LARGE = b"x" * 1_000_000
"""More than a pipe and a buffer hold."""


class Channel:
    """Says these messages, and is over then, or stays open."""

    def __init__(self, *messages: bytes | str, stays: bool) -> None:
        self.messages = messages
        self.stays = stays
        self.heard = list[bytes | str]()

    async def __aiter__(self) -> AsyncIterator[bytes | str]:
        for message in self.messages:
            yield message
        if self.stays:
            await asyncio.Event().wait()

    async def send(self, data: bytes | str) -> None:
        self.heard.append(data)


def carried(channel: Channel, command: str) -> list[bytes | str]:
    async def run() -> None:
        await asyncio.wait_for(carry_program(cast("ClientConnection", channel), command), DEADLINE_S)

    asyncio.run(run())
    return channel.heard


@pytest.mark.parametrize("before", [(), (b"x",), (LARGE,), (LARGE, END_ORDER), (b"x", END_ORDER)])
def test_a_program_that_does_not_read_is_killed_when_that_is_asked(before: tuple[bytes | str, ...]) -> None:
    assert carried(Channel(*before, KILL_ORDER, stays=True), "exec sleep 600") == [message_json(Ended(-9))]


def test_a_program_that_does_not_read_ends_after_its_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "PROGRAMS_END_TIMEOUT_S", 0.5)
    assert carried(Channel(LARGE, stays=False), "exec sleep 600") == [message_json(Ended(-9))]


@pytest.mark.parametrize("stays", [True, False])
def test_a_program_that_reads_has_its_own_time_to_end(stays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "PROGRAMS_END_TIMEOUT_S", 0.5)
    *pieces, end = carried(Channel(LARGE, LARGE, END_ORDER, stays=stays), "wc -c; sleep 2; exit 3")
    assert (b"".join(map(bytes, pieces)).split(), end) == ([STDOUT_TAG + b"2000000"], message_json(Ended(3)))  # type: ignore[arg-type]
