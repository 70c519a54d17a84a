"""A real server of this process on loopback, and agents of which a test writes every word."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.processes import wait_until
from websockets.sync.client import ClientConnection, connect

from runbook.agent.protocol import (
    PROTOCOL_VERSION,
    AgentHello,
    Enrolment,
    FromAgent,
    FromServer,
    Welcome,
    message_json,
    parse_server_message,
)
from runbook.serve.agent_fleet import Fleet
from runbook.serve.server import create_app, make_server, open_listening_socket
from runbook.serve.settings import ServeSettings

DEADLINE_S = 60.0


@dataclass
class World:
    fleet: Fleet
    data: Path
    url: str
    held: contextlib.ExitStack
    """Sockets that end with the test."""

    def token(self, name: str) -> str:
        """Enrol a node; its token."""
        return self.fleet.enrol_host(Enrolment.of(self.fleet.make_enrolment_string("ann")).secret, name)[1]

    def dial(self, token: str, path: str = "/agent/control") -> contextlib.AbstractContextManager[ClientConnection]:
        """Entered, it is a socket; raises InvalidStatus where the server will not have it."""
        headers = {"Authorization": f"Bearer {token}"}
        url = self.url.replace("http", "ws") + path
        return connect(url, additional_headers=headers, compression=None, max_size=1 << 21, close_timeout=2)

    def connected(self, name: str) -> Agent:
        """A new node whose agent has been let in."""
        token = self.token(name)
        agent = Agent(self, token, self.held.enter_context(self.dial(token)))
        agent.say(AgentHello(PROTOCOL_VERSION, "0.1.0", "ab" * 16, name, "here"))
        assert isinstance(agent.hear(), Welcome)
        return agent

    def state(self, name: str) -> str:
        found = self.fleet.node(name)
        assert found is not None
        return found.state


@dataclass
class Agent:
    """One control socket. `say` takes a message, or whatever else a test wants to send."""

    world: World
    token: str
    socket: ClientConnection

    def say(self, message: FromAgent | str | bytes) -> None:
        self.socket.send(message if isinstance(message, str | bytes) else message_json(message))

    def hear(self) -> FromServer:
        return parse_server_message(self.socket.recv(DEADLINE_S))


@contextlib.contextmanager
def server(data: Path) -> Iterator[World]:
    listener = open_listening_socket("127.0.0.1", 0)
    settings = ServeSettings(data, "127.0.0.1", listener.getsockname()[1])
    app = create_app(settings)
    running = make_server(app, settings)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_until("the server listens", lambda: running.started and (data / "agents.sock").exists())
        with contextlib.ExitStack() as held:
            yield World(app.state.fleet, data, settings.url, held)
    finally:
        running.should_exit = True
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "the server does not end"
