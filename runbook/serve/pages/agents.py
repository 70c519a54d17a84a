"""The pages for agents: enrolment, the control socket, and a WebSocket for each stream. An agent's token opens these
pages and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import time

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket

import runbook
from runbook.agent.protocol import (
    AgentHello,
    ChannelRefused,
    Denied,
    FromServer,
    Heard,
    Heartbeat,
    Leaving,
    ProtocolError,
    Welcome,
    message_json,
    parse_agent_message,
)
from runbook.serve.agent_channel import PEER_GONE_ERRORS
from runbook.serve.agent_fleet import ControlSocket, EnrolledNode, Fleet, NotEnrolled
from runbook.serve.guards import client_address, single_header
from runbook.serve.page import Page

HELLO_TIMEOUT_S = 10.0
"""How long an agent may take to send its hello."""
AGENT_SEND_TIMEOUT_S = 10.0
"""How long an agent may take to read a message."""
MAX_MESSAGES_PER_SECOND = 20
"""The most messages that are read from a control socket in a second; further ones wait."""

CLOSE_PROTOCOL_ERROR, CLOSE_GOING_AWAY = 1002, 1001


class _Wanted(msgspec.Struct, frozen=True):
    secret: str
    name: str


async def _exchange_enrolment_secret(request: Request) -> Response:
    """Exchange the secret of an enrolment string for the token of a new agent."""
    fleet: Fleet = request.app.state.fleet
    try:
        wanted = msgspec.json.decode(await request.body(), type=_Wanted)
        name, token = await asyncio.to_thread(fleet.enrol_host, wanted.secret, wanted.name)
        request.state.about = name
    except msgspec.MsgspecError:
        return JSONResponse({"error": "a secret and a name are wanted"}, 422)
    except NotEnrolled as refused:
        return JSONResponse({"error": str(refused)}, refused.status)
    return JSONResponse({"name": name, "token": token})


async def _hold_control_socket(socket: WebSocket) -> None:
    """Hold the control socket of an agent until it ends."""
    fleet: Fleet = socket.app.state.fleet
    node = _enrolled_node(fleet, socket)
    if node is None:
        await socket.close()  # before it is accepted: the agent sees HTTP 403
        return
    await socket.accept()
    control = _make_control_socket(socket)
    try:
        hello = await _receive_hello(socket)
        control.incarnation, control.machine = hello.incarnation, hello.machine
        denied = await asyncio.to_thread(fleet.greet, node, hello, client_address(socket.scope), control)
        if denied is not None:
            await control.close(denied)
            return
        await control.send(Welcome(node.name, runbook.__version__))
        await _answer_agent_messages(fleet, node, control, socket)
    except (ProtocolError, KeyError):  # Starlette raises KeyError for a binary message in place of a text
        await _close_socket(socket, CLOSE_PROTOCOL_ERROR)
    except PEER_GONE_ERRORS:
        await _close_socket(socket, CLOSE_GOING_AWAY)
    finally:
        fleet.note_disconnect(node, control)


async def _receive_hello(socket: WebSocket) -> AgentHello:
    hello = parse_agent_message(await asyncio.wait_for(socket.receive_text(), HELLO_TIMEOUT_S))
    if not isinstance(hello, AgentHello):
        raise ProtocolError("no greeting")
    return hello


async def _answer_agent_messages(fleet: Fleet, node: EnrolledNode, control: ControlSocket, socket: WebSocket) -> None:
    """Read and answer an agent's messages until it leaves, or another control socket takes the place of this one."""
    count, since = 0, time.monotonic()
    while True:
        message = parse_agent_message(await socket.receive_text())
        count += 1
        if count >= MAX_MESSAGES_PER_SECOND:
            await asyncio.sleep(max(0.0, since + 1.0 - time.monotonic()))
            count, since = 0, time.monotonic()
        if isinstance(message, ChannelRefused):
            fleet.note_refusal(node, message.channel, message.why)
        if isinstance(message, Leaving | AgentHello) or not fleet.note_message(
            node, control, message if isinstance(message, Heartbeat) else None
        ):
            return
        if isinstance(message, Heartbeat):
            await control.send(Heard(message.number))


async def _hold_channel_socket(socket: WebSocket) -> None:
    """Hold the WebSocket of a stream that the node's agent was asked to open."""
    fleet: Fleet = socket.app.state.fleet
    node = _enrolled_node(fleet, socket)
    channel = None if node is None else fleet.channel(node, socket.path_params["id"])
    if channel is None:
        await socket.close()
        return
    await socket.accept()
    try:
        await channel.carry(socket)
    finally:
        fleet.forget(channel)


def _enrolled_node(fleet: Fleet, socket: WebSocket) -> EnrolledNode | None:
    kind, _, token = (single_header(socket.scope, "authorization") or "").partition(" ")
    return fleet.by_token(token.strip()) if kind.lower() == "bearer" and token.strip() else None


def _make_control_socket(socket: WebSocket) -> ControlSocket:
    turn = asyncio.Lock()

    async def send(message: FromServer) -> None:
        async with turn:
            try:
                await asyncio.wait_for(socket.send_text(message_json(message)), AGENT_SEND_TIMEOUT_S)
            except PEER_GONE_ERRORS as error:
                raise ConnectionError(str(error)) from None

    async def close(denied: Denied | None) -> None:
        if denied is not None:
            with contextlib.suppress(ConnectionError):
                await send(denied)
        await _close_socket(socket, CLOSE_GOING_AWAY if denied is None else denied.code)

    return ControlSocket("", "", send, close)


async def _close_socket(socket: WebSocket, code: int) -> None:
    with contextlib.suppress(*PEER_GONE_ERRORS):
        await asyncio.wait_for(socket.close(code), AGENT_SEND_TIMEOUT_S)


PAGES = [
    Page("/agent/enrol", ("POST",), _exchange_enrolment_secret, "agent", says="Enrol a node", most_bytes=4096),
    Page("/agent/control", (), _hold_control_socket, "agent", "socket", "Hear an agent"),
    Page("/agent/channel/{id}", (), _hold_channel_socket, "agent", "socket", "Carry a stream to a node"),
]
