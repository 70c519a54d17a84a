"""Clients of the server that say nothing of use for ever: what they hold is bounded, and nobody else waits for them."""

from __future__ import annotations

import contextlib
import io
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette")

from agents.scripted_agents import World
from agents.scripted_agents import server as serving
from agents.test_hostile import hear_all
from serve.test_running import closed
from websockets.exceptions import ConnectionClosed

from runbook.agent.protocol import Heard, Heartbeat
from runbook.serve import run_logs
from runbook.serve import server as server_module


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(server_module, "HEADERS_TIMEOUT_S", 0.5)
    monkeypatch.setattr(server_module, "CLIENT_READ_TIMEOUT_S", 0.5)
    data = tmp_path / "data"
    data.mkdir(0o700)
    with serving(data) as made:
        yield made


def dialled(world: World) -> socket.socket:
    host, _, port = world.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def asked(world: World, method: str = "GET", path: str = "/healthz", more: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: {world.url.removeprefix('http://')}\r\n{more}\r\n".encode()


def trickled(connection: socket.socket, piece: bytes) -> None:
    """Sent again and again, until the server has enough of it."""
    until = time.monotonic() + 60
    with contextlib.suppress(OSError):
        while time.monotonic() < until:
            connection.sendall(piece)
            time.sleep(0.05)
    assert time.monotonic() < until, "it may be held for ever"


@pytest.mark.parametrize("piece", [b"\r\n", b"\n"])
def test_blank_lines_after_an_answer(piece: bytes, world: World) -> None:
    with dialled(world) as connection:
        connection.sendall(asked(world))
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        trickled(connection, piece)


@pytest.mark.parametrize("length", ["Content-Length: 1000000000", "Transfer-Encoding: chunked"])
def test_a_body_of_what_is_answered_already(length: str, world: World) -> None:
    with dialled(world) as connection:
        connection.sendall(asked(world, "POST", "/nowhere", f"{length}\r\n"))
        assert connection.recv(65536).startswith(b"HTTP/1.1 4")
        trickled(connection, b"1\r\nx\r\n" if "chunked" in length else b"x")


def test_a_connection_that_is_kept_goes_on_being_answered(world: World) -> None:
    with dialled(world) as connection:
        for number in range(8):
            connection.sendall(b"\r\n" * (number % 2) + asked(world))
            said = b""
            while not said.endswith(b"}"):
                said += connection.recv(65536)
            assert said.startswith(b"HTTP/1.1 200 ")
            time.sleep(0.2)
        connection.sendall(asked(world, more="Connection: close\r\n"))
        assert closed(connection).startswith(b"HTTP/1.1 200 ")


def _frame(opcode: int, data: bytes, *, final: bool = True) -> bytes:
    """As a client sends it; the mask is of zeros, which changes nothing."""
    return struct.pack("!BB4x", opcode | 0x80 * final, 0x80 | len(data)) + data


FLOODS = {
    "pings": _frame(9, b"x" * 125),
    "pongs": _frame(10, b"x" * 125),
    "empty parts of a message": _frame(0, b"", final=False),
}


@pytest.mark.parametrize("what", FLOODS)
def test_an_agent_that_floods_is_cut_off_and_others_are_answered(what: str, world: World) -> None:
    bad, good = world.connected("bad"), world.connected("good")
    if what == "empty parts of a message":
        bad.socket.socket.sendall(_frame(1, b"", final=False))
    sent = threading.Thread(target=_sent, args=(bad.socket.socket, FLOODS[what]))
    sent.start()
    for number in range(1, 6):
        good.say(Heartbeat(number))
        assert good.hear() == Heard(number)
    with pytest.raises(ConnectionClosed):
        hear_all(bad.socket)
    sent.join(60)
    assert not sent.is_alive()


def _sent(connection: socket.socket, frame: bytes) -> None:
    with contextlib.suppress(OSError):
        for _ in range(2000):
            connection.sendall(frame * 100)


def test_pings_of_an_ordinary_agent_are_answered(world: World) -> None:
    agent = world.connected("good")
    for _ in range(server_module.MAX_NON_MESSAGE_FRAMES // 2):
        assert agent.socket.ping().wait(60)
    agent.say(Heartbeat(7))
    assert agent.hear() == Heard(7)


@pytest.mark.parametrize("text", [b"a" * (1 << 18), (b"A" * 99 + b"\n") * (1 << 11)], ids=["one line", "many lines"])
def test_every_place_in_a_log_of_one_letter_is_found(text: bytes) -> None:
    assert run_logs.search_log_file(io.BytesIO(text), "a", any_case=True).count == text.lower().count(b"a")


@pytest.mark.cost
def test_a_search_in_one_long_line_costs_no_more_than_in_proportion() -> None:
    spent = []
    for size in (1 << 19, 1 << 21):
        text = io.BytesIO(b"a" * size)
        begun = time.process_time()
        run_logs.search_log_file(text, "a", any_case=True)
        spent.append(time.process_time() - begun)
    assert spent[1] < 8 * spent[0]


def test_of_two_strings_for_one_name_the_first_one_counts(world: World) -> None:
    from runbook.agent.protocol import Enrolment
    from runbook.serve.agent_fleet import NotEnrolled

    secrets = [Enrolment.of(world.fleet.make_enrolment_string("ann")).secret for _ in range(12)]
    tokens: list[str] = []
    refused: list[int] = []
    begin = threading.Barrier(len(secrets))

    def spend(secret: str) -> None:
        begin.wait(60)
        try:
            tokens.append(world.fleet.enrol_host(secret, "n1")[1])
        except NotEnrolled as error:
            refused.append(error.status)

    threads = [threading.Thread(target=spend, args=(secret,)) for secret in secrets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(tokens), refused) == (1, [409] * (len(secrets) - 1))
    assert world.fleet.by_token(tokens[0]) is not None


def test_who_was_replaced_between_its_call_and_its_greeting_is_told_so(world: World) -> None:
    from runbook.agent.protocol import PROTOCOL_VERSION, REPLACED_CLOSE_CODE, AgentHello, Enrolment, message_json

    token = world.token("n1")
    with world.dial(token) as stale:
        secret = Enrolment.of(world.fleet.make_enrolment_string("ann", "n1")).secret
        newer = world.fleet.enrol_host(secret, "n1")[1]
        stale.send(message_json(AgentHello(PROTOCOL_VERSION, "9.9.9", "cd" * 16, "stranger", "elsewhere")))
        with pytest.raises(ConnectionClosed) as told:
            hear_all(stale)
        assert told.value.rcvd is not None
        assert told.value.rcvd.code == REPLACED_CLOSE_CODE
    found = world.fleet.node("n1")
    assert found is not None
    assert found.hostname != "stranger"
    assert world.fleet.by_token(newer) is not None
