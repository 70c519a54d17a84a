"""Agents, servers and callers at the socket in somebody else's hands: each is refused or left, and nothing else suffers."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import http.client
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.processes import wait_until
from profiles import one_in

pytest.importorskip("starlette")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection
from websockets.sync.server import ServerConnection, serve

from runbook.agent import agent as agent_module
from runbook.agent.enrolment import enrol_host, fetch_certificate
from runbook.agent.folder import AgentFolder, Identity
from runbook.agent.permissions import OwnerRules
from runbook.agent.protocol import (
    KILL_ORDER,
    PROTOCOL_VERSION,
    REPLACED_CLOSE_CODE,
    STDERR_TAG,
    STDOUT_TAG,
    AgentHello,
    ChannelRefused,
    Denied,
    Ended,
    Enrolment,
    Heard,
    Heartbeat,
    Open,
    Welcome,
    message_json,
)
from runbook.model.errors import FilesWrong, Unreachable
from runbook.model.inventory import Node
from runbook.serve import agent_fleet as fleet_module
from runbook.transport.agent import (
    ASK_FRAME,
    DATA_FRAME,
    ENROL_FRAME,
    FRAME_HEADER,
    OVER_FRAME,
    AgentStream,
    agent_frame,
)
from runbook.transport.session import Session

from .scripted_agents import Agent, World, server


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    data = tmp_path / "data"
    data.mkdir(0o700)
    monkeypatch.setenv("RUNBOOK_DATA", str(data))
    with server(data) as made:
        yield made
        status = http.client.HTTPConnection(made.url.removeprefix("http://"), timeout=30)
        status.request("GET", "/healthz")
        assert status.getresponse().status == 200
        status.close()


def node(name: str) -> Node:
    return Node(name, "10.0.0.1", connection="agent")


def in_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """What returns what the call gives, or raises it, once that has ended."""
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(call())
        except Unreachable as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()

    def result() -> Any:
        thread.join(60)
        assert found, "it hangs"
        return found[0]

    return result


def hear_all(socket: ClientConnection) -> None:
    """Raises ConnectionClosed at the end."""
    while True:
        socket.recv(30)


# Agents


def test_a_token_opens_its_own_sockets_and_no_other(world: World) -> None:
    one, other = world.connected("n1"), world.connected("n2")
    for token in ("", "x", one.token[:-1], one.token.swapcase()):
        with pytest.raises(InvalidStatus), world.dial(token):
            raise AssertionError("it was let in")
    opening = in_thread(lambda: AgentStream(node("n1"), "", looks=False))
    order = one.hear()
    assert isinstance(order, Open)
    for token in (other.token, "x"):
        with pytest.raises(InvalidStatus), world.dial(token, f"/agent/channel/{order.channel}"):
            raise AssertionError("it was let in")
    with pytest.raises(InvalidStatus), world.dial(one.token, f"/agent/channel/{'0' * 32}"):
        raise AssertionError("it was let in")
    other.say(ChannelRefused(order.channel, "not mine to refuse"))
    with world.dial(one.token, f"/agent/channel/{order.channel}") as channel:
        stream = opening()
        channel.send(STDOUT_TAG + b"it is mine")
        assert stream.read() == b"it is mine"
        with pytest.raises(InvalidStatus), world.dial(one.token, f"/agent/channel/{order.channel}"):
            raise AssertionError("it was let in")
        stream.close()


WORDS: list[str | bytes] = [
    b"\x00",
    "",
    "{}",
    "[" * 100_000,
    message_json(Heartbeat(1)),
    message_json(Welcome("x", "y")),
    "x" * 300_000,
]


def test_what_no_agent_says_ends_its_own_socket_and_no_other(world: World) -> None:
    good = world.connected("good")
    for at, words in enumerate(WORDS):
        bad = world.connected(f"bad-{at}")
        if words != message_json(Heartbeat(1)):
            bad.say(words)
            with pytest.raises(ConnectionClosed):
                hear_all(bad.socket)
        with world.dial(bad.token) as first:
            first.send(words)
            with pytest.raises(ConnectionClosed):
                hear_all(first)
    good.say(Heartbeat(5))
    assert good.hear() == Heard(5)
    assert world.state("good") == "ONLINE"


def test_a_flood_of_beats_is_read_slowly_and_holds_up_nobody(world: World) -> None:
    bad, good = world.connected("bad"), world.connected("good")
    flood = threading.Thread(target=_flood, args=(bad,))
    flood.start()
    for number in range(1, 11):
        good.say(Heartbeat(number))
        assert good.hear() == Heard(number)
    bad.socket.close()
    flood.join(60)
    assert not flood.is_alive()


def _flood(agent: Agent) -> None:
    with contextlib.suppress(ConnectionClosed, OSError):
        for number in range(100_000):
            agent.say(Heartbeat(number))


def test_a_replaced_agent_is_told_so_and_cannot_come_back(world: World) -> None:
    agent = world.connected("n1")
    with world.dial(agent.token) as newer:
        newer.send(message_json(AgentHello(PROTOCOL_VERSION, "0.1.0", "cd" * 16, "n1", "here")))
        told = agent.hear()
        assert isinstance(told, Denied)
        assert told.code == REPLACED_CLOSE_CODE
        with world.dial(agent.token) as back:
            back.send(message_json(AgentHello(PROTOCOL_VERSION, "0.1.0", "ab" * 16, "n1", "here")))
            with pytest.raises(ConnectionClosed) as closed:
                hear_all(back)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == REPLACED_CLOSE_CODE


def test_an_agent_that_refuses_or_does_not_call_is_told_as_that(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = world.connected("n1")
    opening = in_thread(lambda: AgentStream(node("n1"), "", looks=False))
    order = agent.hear()
    assert isinstance(order, Open)
    agent.say(ChannelRefused(order.channel, "agent.yml \x1b[31m says no"))
    refused = opening()
    assert isinstance(refused, Unreachable)
    assert refused.cause == "agent-lost"
    assert "says no" in refused.says
    monkeypatch.setattr(fleet_module, "CHANNEL_OPEN_TIMEOUT_S", 0.5)
    silent = in_thread(lambda: AgentStream(node("n1"), "", looks=False))()
    assert isinstance(silent, Unreachable)
    assert "did not call" in silent.says
    assert world.fleet.streams == 0
    nobody = in_thread(lambda: AgentStream(node("nobody"), "", looks=False))()
    assert "ever enrolled" in nobody.says


@pytest.mark.parametrize(
    ("said_there", "cause"),
    one_in(
        3,
        [
            (STDOUT_TAG + b'\x1erunbook-supervisor {"event":"hello","bytes":99999999}\n', "tool-output-unknown"),
            (STDOUT_TAG + b"\x1erunbook-supervisor " + b"x" * 100_000 + b"\n", "tool-output-unknown"),
            (b"z", "agent-lost"),
            ("no json", "tool-output-unknown"),
            (b"", "tool-output-unknown"),
            (message_json(Ended(3)), "agent-lost"),
        ],
    ),
)
def test_what_no_supervisor_says_makes_that_node_unknown(world: World, said_there: str | bytes, cause: str) -> None:
    agent = world.connected("n1")

    def opened() -> object:
        return Session("n1", AgentStream(node("n1"), "", looks=False), {"run_id": "r"}, "python3", 20.0)

    opening = in_thread(opened)
    order = agent.hear()
    assert isinstance(order, Open)
    with world.dial(agent.token, f"/agent/channel/{order.channel}") as channel:
        channel.recv(30)
        channel.send(STDERR_TAG + b"a word on stderr")
        channel.send(said_there)
        if said_there == b"z":
            channel.close()
        reason = opening()
    assert isinstance(reason, Unreachable)
    assert reason.cause == cause, reason
    wait_until("no stream is left", lambda: world.fleet.streams == 0)


def test_a_controller_that_dies_ends_its_channel_and_one_that_kills_says_so(world: World) -> None:
    agent = world.connected("n1")
    for deed in ("kill", "die"):
        opening = in_thread(lambda: AgentStream(node("n1"), "", looks=False))
        order = agent.hear()
        assert isinstance(order, Open)
        with world.dial(agent.token, f"/agent/channel/{order.channel}") as channel:
            stream = opening()
            if deed == "kill":
                stream.kill()
                assert channel.recv(30) == KILL_ORDER
            stream._socket.shutdown(socket.SHUT_RDWR)
            with pytest.raises(ConnectionClosed):
                channel.recv(30)
            stream.close()
    wait_until("no stream is left", lambda: world.fleet.streams == 0)


# At the socket


def test_what_no_runbook_asks_gets_no_answer(world: World) -> None:
    for data in (
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        agent_frame(ASK_FRAME, b"{}"),
        agent_frame(ASK_FRAME, b"[" * 5000),
        agent_frame(ENROL_FRAME, b"null"),
        agent_frame(DATA_FRAME, b"x"),
        FRAME_HEADER.pack(ASK_FRAME, 0xFFFFFFFF),
        struct.pack(">cI", b"?", 10) + b"abc",
        agent_frame(OVER_FRAME),
    ):
        with socket.socket(socket.AF_UNIX) as caller:
            caller.settimeout(30)
            caller.connect(str(world.data / "agents.sock"))
            caller.sendall(data)
            caller.shutdown(socket.SHUT_WR)
            assert caller.recv(100) == b"", data


def test_the_door_is_for_this_account_alone(world: World) -> None:
    assert (world.data / "agents.sock").stat().st_mode & 0o777 == 0o600


# Servers


@pytest.mark.thorough
def test_an_agent_survives_whatever_a_server_says(tmp_path: Path) -> None:
    heard: list[str] = []
    words: list[str | bytes] = [
        b"\x00\x01",
        "no json",
        "[" * 50_000,
        "x" * 400_000,
        '{"say":"open","channel":"../../etc","command":"touch x","python":"","workdir":""}',
        message_json(Heartbeat(1)),
        message_json(Open("ab" * 16, "true", "", "/scratch")),
        *(message_json(Open("ab" * 16, "tr\0ue", "", workdir)) for workdir in ("~/\0", "~nobody-knows/x", "/scratch")),
        message_json(Denied(4999, "no \x1b]0;title\x07", "do this")),
    ]

    def handle(connection: ServerConnection) -> None:
        assert connection.request is not None
        heard.append(connection.request.path)
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            connection.recv(10)
            if words:
                connection.send(words.pop(0))
            connection.recv(2)

    with serve(handle, "127.0.0.1", 0) as listener:
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        home = AgentFolder(tmp_path / "agent")
        port = listener.socket.getsockname()[1]
        home.remember(Identity("n1", f"http://127.0.0.1:{port}", "token"))
        home.rules.write_text("workdirs: [/scratch]\n")
        argv = [sys.executable, "-m", "runbook", "agent", "run", "--as-root", "--dir", str(home.path)]
        agent = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env={**os.environ, "HOME": str(tmp_path)})
        try:
            wait_until("it heard all but two", lambda: len(words) <= 2 or agent.poll() is not None, timeout=120)
            assert agent.poll() is None, agent.stderr and agent.stderr.read()
            assert set(heard) <= {"/agent/control", f"/agent/channel/{'ab' * 16}"}
            assert list(tmp_path.iterdir()) == [tmp_path / "agent"]
        finally:
            agent.terminate()
            _, told = agent.communicate(timeout=60)
            listener.shutdown()
            thread.join(30)
        assert agent.returncode == 0, told
        assert "Traceback" not in told
        assert "\x1b" not in told


class LateDial:
    """A dial whose time is over at the moment in which it is cancelled: it says that, and the cancellation is lost."""

    lost = 0

    async def __aenter__(self) -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            LateDial.lost += 1
            if LateDial.lost > 1:
                raise
            raise asyncio.TimeoutError from None

    async def __aexit__(self, *_: object) -> None:
        raise AssertionError("it is never entered")


def test_an_agent_ends_though_its_dial_loses_the_cancellation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module.Agent, "_dial", lambda *_: LateDial())
    said: list[str] = []
    agent = agent_module.Agent(
        AgentFolder(tmp_path), Identity("n1", "http://127.0.0.1:9", "token"), OwnerRules(), said.append
    )

    async def ended() -> int:
        asyncio.get_running_loop().call_later(1.0, agent._stopping.set)
        return await asyncio.wait_for(agent.run(), 30)

    assert asyncio.run(ended()) == 0
    assert any("not connected: TimeoutError" in line for line in said)


def certificate(folder: Path, name: str, *, days: int) -> tuple[Path, Path, bytes]:
    """Files of a certificate and its key, and the certificate in DER. It ended, or ends, in so many days."""
    key = ec.generate_private_key(ec.SECP256R1())
    called = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=days)
    made = (
        x509.CertificateBuilder()
        .subject_name(called)
        .issuer_name(called)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - datetime.timedelta(days=30))
        .not_valid_after(end)
        .sign(key, hashes.SHA256())
    )
    files = folder / f"{name}.pem", folder / f"{name}.key"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret = serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret))
    return *files, made.public_bytes(serialization.Encoding.DER)


@contextlib.contextmanager
def tls_server(files: tuple[Path, Path, bytes], got: list[bytes]) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files[0], files[1])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)

        def work() -> None:
            with contextlib.suppress(OSError):
                while True:
                    plain, _ = listener.accept()
                    with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as wrapped:
                        wrapped.settimeout(5)
                        got.append(wrapped.recv(10_000))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(30)


def test_another_certificate_hears_no_secret_and_the_right_one_needs_no_date(tmp_path: Path) -> None:
    real, false = certificate(tmp_path, "old", days=-400), certificate(tmp_path, "false", days=400)
    pin = hashes.Hash(hashes.SHA256())
    pin.update(real[2])
    digest = pin.finalize().hex()
    got: list[bytes] = []
    with tls_server(false, got) as port:
        told = Enrolment(f"https://127.0.0.1:{port}", digest, "a secret")
        with pytest.raises(FilesWrong, match="not the one"):
            enrol_host(AgentFolder(tmp_path / "home"), str(told), "n1")
        identity = Identity("n1", told.url, "a token", ssl.DER_cert_to_PEM_cert(real[2]))
        context = identity.context()
        assert context is not None
        with socket.create_connection(("127.0.0.1", port), 30) as plain, pytest.raises(ssl.SSLCertVerificationError):
            context.wrap_socket(plain)
    assert not any(b"secret" in one or b"token" in one for one in got)
    got.clear()
    with tls_server(real, got) as port:
        assert fetch_certificate(Enrolment(f"https://127.0.0.1:{port}", digest, "s")) == identity.certificate
        with socket.create_connection(("127.0.0.1", port), 30) as plain, context.wrap_socket(plain) as wrapped:
            wrapped.sendall(b"hello")
        wait_until("the program spoke", lambda: b"hello" in got)


def test_a_folder_that_others_can_write_holds_no_identity(tmp_path: Path) -> None:
    home = AgentFolder(tmp_path / "agent")
    home.remember(Identity("n1", "http://127.0.0.1:1", "t"))
    assert (home.path / "identity.json").stat().st_mode & 0o777 == 0o600
    assert home.identity() == Identity("n1", "http://127.0.0.1:1", "t")
    home.path.chmod(0o777)
    with pytest.raises(FilesWrong):
        home.identity()
