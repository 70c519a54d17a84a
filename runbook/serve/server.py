"""The server: the application with the objects that its pages share, and the HTTP server (uvicorn) that it runs in.

The HTTP server has limits for clients that never finish a request or never read an answer, and stops within seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import FrameType
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from uvicorn import Config, Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from runbook.agent.protocol import MAX_CHANNEL_MESSAGE_BYTES
from runbook.serve.agent_fleet import Fleet
from runbook.serve.agent_socket import StreamSocket
from runbook.serve.change_stream import Changed
from runbook.serve.group_actions import start_group
from runbook.serve.guards import Guarded, Metrics, OuterGuard, TokenBucket, refusal_response
from runbook.serve.page import Page, role_allows
from runbook.serve.pages import all_pages
from runbook.serve.pages.nodes import Grid
from runbook.serve.people import Audit, People, Person
from runbook.serve.settings import ServeSettings
from runbook.serve.shared_cache import Recent
from runbook.serve.store import Store
from runbook.serve.workspace import Workspace

DATABASE_FILE = "serve.db"
MAX_FLEET_PAGE_AGE_S = 1.0
"""The age at which the fleet's page is made again; a page that is shown is at most twice as old. A change that is
published makes it again at once."""
MAX_CONCURRENT_SEARCHES = 2
"""How many searches of logs run at the same time."""
MAX_LOGIN_BURST = 10
LOGIN_INTERVAL_S = 6.0
"""From one address, or for one name, MAX_LOGIN_BURST logins may be tried at once, and then one every
LOGIN_INTERVAL_S."""
MAX_CHANGE_BURST = 120
CHANGE_INTERVAL_S = 0.25
"""A person (without a login: an address) may make MAX_CHANGE_BURST changes and previews at once, and then one every
CHANGE_INTERVAL_S."""


def create_app(settings: ServeSettings) -> Starlette:
    """The application; `settings.data` must be a folder. Its `state` has the objects that handlers share, such as
    `settings`, `store`, `people`, `audit`, `changed` and `pages`. The end of its lifespan closes them."""
    pages = all_pages()
    store = Store(settings.data / DATABASE_FILE)
    changed, people, audit = Changed(), People(store), Audit(store)
    metrics, fleet = Metrics(changed), Fleet(store, settings, changed)
    workspace = Workspace(settings.data, store, changed.publish, fleet)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        changed.start()
        try:
            async with fleet.running(), StreamSocket(fleet, settings.data, audit).open():
                await asyncio.to_thread(_adopt_earlier_runs, workspace)
                yield
        finally:
            workspace.processes.close()
            changed.close()
            store.close()

    async def wrong(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return refusal_response(request, error, _NOT_FOUND_PAGE)

    routes = [_make_route(page, Guarded(page, settings, people, audit, metrics)) for page in pages]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(OuterGuard, settings=settings)],
        exception_handlers={HTTPException: wrong},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.settings, app.state.store, app.state.people = settings, store, people
    app.state.audit, app.state.changed, app.state.pages = audit, changed, pages
    app.state.fleet = fleet
    app.state.metrics, app.state.nav = metrics, _make_navigation(pages)
    app.state.workspace = workspace
    app.state.grids = Recent[Grid](MAX_FLEET_PAGE_AGE_S, partial(changed.latest, "fleet", "groups", "runs"))
    app.state.searches = asyncio.Semaphore(MAX_CONCURRENT_SEARCHES)
    app.state.guesses = TokenBucket(MAX_LOGIN_BURST, LOGIN_INTERVAL_S)
    app.state.changes = TokenBucket(MAX_CHANGE_BURST, CHANGE_INTERVAL_S)
    return app


def _adopt_earlier_runs(workspace: Workspace) -> None:
    """Take over the runs, and the restarts asked for, of an earlier server."""
    workspace.processes.adopt()
    workspace.restarts.adopt(partial(start_group, workspace))


def _make_route(page: Page, guarded: Guarded) -> BaseRoute:
    if page.kind == "socket":
        return WebSocketRoute(page.path, guarded)
    route = Route(page.path, guarded, methods=list(page.methods))
    if page.kind == "events" and route.methods:
        route.methods.discard("HEAD")  # it would wait for the end of the stream
    return route


def _make_navigation(pages: list[Page]) -> Callable[[Person | None], list[tuple[str, str]]]:
    """A function that gives the pages in the navigation of a person."""
    named = [page for page in pages if page.nav]

    def of(person: Person | None) -> list[tuple[str, str]]:
        """The path and the word of each page that this person may open."""
        return [(page.path, page.nav) for page in named if person is not None and role_allows(person.role, page.role)]

    return of


async def _raise_not_found(_request: Request) -> Response:
    raise HTTPException(404)


_NOT_FOUND_PAGE = Page("/", ("GET",), _raise_not_found, "anyone")
"""The page for paths that do not exist."""


HEADERS_TIMEOUT_S = 15.0
"""How long a request's headers may take, from its first byte, or from the connection for the first request."""
MAX_HEADER_BYTES = 64 * 1024
KEEP_ALIVE_TIMEOUT_S = 30
CLIENT_READ_TIMEOUT_S = 60.0
"""How long a client may take to read what was written to it (at most 64 KiB); a slower client counts as gone."""
MAX_NON_MESSAGE_FRAMES = 50
"""The most frames a second of a socket that bring no message: pings, pongs, parts of messages."""
PARSE_PIECE_BYTES = 16 * 1024
"""Bytes of a socket that are parsed at once."""
SHUTDOWN_TIMEOUT_S = 5
"""How long the server waits for answers in progress when it stops."""
MAX_CONNECTIONS = 8000
log = logging.getLogger("runbook.serve")


class ReadOrEnded(asyncio.Protocol):
    """A connection that ends unless the other end reads within CLIENT_READ_TIMEOUT_S what is written to it."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _untaken: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._taken()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._untaken = self.loop.call_later(CLIENT_READ_TIMEOUT_S, discard_connection, self.transport)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._taken()

    def _taken(self) -> None:
        if self._untaken is not None:
            self._untaken.cancel()


class BoundedProtocol(ReadOrEnded, HttpToolsProtocol):
    """A connection of a client. It ends when the headers of a request take longer than HEADERS_TIMEOUT_S or more than
    MAX_HEADER_BYTES, and when answers are not read."""

    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            log.warning("more than %d connections: one is refused", MAX_CONNECTIONS)
            transport.abort()
        self._deadline = self.loop.call_later(HEADERS_TIMEOUT_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._no_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data) if self._in_head else 0
        super().data_received(data)
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return
        if self._in_head and self._head_bytes > MAX_HEADER_BYTES:
            self.transport.abort()
        if self._deadline is None and self.cycle.response_complete:
            # These bytes belong to no request that is still answered: blank lines, or the body of an answered request.
            self._deadline = self.loop.call_later(HEADERS_TIMEOUT_S, self.transport.abort)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEADERS_TIMEOUT_S, self.transport.abort)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # headers behind a chunked body (its trailer) are ignored: they may be endless
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._no_deadline()
        super().on_headers_complete()

    def drop_unfinished(self) -> None:
        """End the connection if the body of its request has not arrived whole."""
        if getattr(self.cycle, "more_body", False) and not self.cycle.response_complete:  # None at first
            self.transport.abort()

    def _no_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class BoundedSocket(ReadOrEnded, WebSocketsSansIOProtocol):
    """A WebSocket of an agent. It ends when it gets more than MAX_NON_MESSAGE_FRAMES frames a second that bring no
    message, since nothing else would hold back their sender, and when messages to it are not read."""

    _frames = 0
    _since = 0.0

    def data_received(self, data: bytes) -> None:
        for at in range(0, len(data), PARSE_PIECE_BYTES):  # a piece is parsed whole before its first frame is handled
            if not self.transport.is_closing():
                super().data_received(data[at : at + PARSE_PIECE_BYTES])

    def handle_cont(self, event: Frame) -> None:
        if self._expected():
            super().handle_cont(event)

    def handle_ping(self) -> None:
        if self._expected():
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        if self._expected():
            super().handle_pong(event)

    def _expected(self) -> bool:
        """Count a frame that brings no message; whether it may be handled. Ends the connection if they are too many."""
        now = self.loop.time()
        if now - self._since > 1.0:
            self._frames, self._since = 0, now
        self._frames += 1
        if self._frames > MAX_NON_MESSAGE_FRAMES:
            self.transport.abort()
        return not self.transport.is_closing()


def discard_connection(transport: asyncio.Transport) -> None:
    """End a connection and drop the bytes that the kernel still holds for it, which it would go on trying to
    deliver."""
    with contextlib.suppress(OSError):
        own = transport.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


class GracefulServer(Server):
    """A server that ends its event streams when it has to stop, and then waits for answers in progress. A request that
    has not arrived whole shortly before SHUTDOWN_TIMEOUT_S is dropped."""

    def __init__(self, config: Config, app: Starlette) -> None:
        super().__init__(config)
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.force_exit = self.should_exit  # a second signal ends the server at once
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.state.changed.close()
        late = asyncio.get_running_loop().call_later(SHUTDOWN_TIMEOUT_S - 1, self._drop_unfinished)
        try:
            await super().shutdown(sockets)
        finally:
            late.cancel()

    def _drop_unfinished(self) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, BoundedProtocol):
                connection.drop_unfinished()


def open_listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens on this address; on `::` for IPv4 as well. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=family, backlog=1024, dualstack_ipv6=both)


def make_server(app: Starlette, settings: ServeSettings) -> GracefulServer:
    """The HTTP server for the application. Run it with `.run(sockets=[listening(…)])`; SIGINT, SIGTERM and
    `should_exit = True` end it."""
    tls: dict[str, Any] = {}
    if settings.tls is not None:
        tls = {"ssl_certfile": settings.tls.certificate, "ssl_keyfile": settings.tls.key}
    config = Config(
        app,
        http=BoundedProtocol,
        ws=BoundedSocket,
        ws_per_message_deflate=False,
        ws_max_size=MAX_CHANNEL_MESSAGE_BYTES,
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_TIMEOUT_S,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
        **tls,
    )
    return GracefulServer(config, app)


def tune_interpreter() -> None:
    """Set up the interpreter so that agents are heard quickly. Threads that compute, such as for the page of a large
    fleet, give way every half millisecond. With Python's usual five milliseconds, each message would take several such
    times, since every call on a socket waits for its turn anew.

    While the garbage collector goes through all objects nobody is served: with a thousand agents for a third of a
    second. So it goes through new objects as often as usual, but through all objects a thousand times less often."""
    sys.setswitchinterval(0.0005)
    gc.set_threshold(700, 10, 10_000)
