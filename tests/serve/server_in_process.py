"""A server without a network: requests are handed to the application as they come off the wire, however malformed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette

from runbook.serve.page import Page, Role
from runbook.serve.people import Person, csrf_token
from runbook.serve.server import create_app
from runbook.serve.settings import ServeSettings

HOST = "127.0.0.1:8400"
ORIGIN = f"http://{HOST}"
Headers = Sequence[tuple[str, str | bytes]]


@dataclass
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key == name]
        assert len(found) < 2, found
        return found[0] if found else None


@dataclass
class World:
    """A server's application, and one person of each role with a session and a token."""

    app: Starlette
    sessions: dict[Role, str] = field(default_factory=dict)
    tokens: dict[Role, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        people = self.app.state.people
        for role in ("viewer", "operator", "admin"):
            people.add(role, role)
            self.sessions[role] = people.begin_session(Person(role, role), ORIGIN)
            self.tokens[role] = people.make_token(role, role, "tests")[1]

    def as_page(self, role: Role, **more: str) -> list[tuple[str, str | bytes]]:
        """The headers of a page of ours that somebody of this role looks at."""
        cookie = f"runbook-8400={self.sessions[role]}"
        given = {
            "host": HOST,
            "cookie": cookie,
            "origin": ORIGIN,
            "x-csrf-token": csrf_token(self.sessions[role]),
            **more,
        }
        return [(name.replace("_", "-"), value) for name, value in given.items()]

    def as_program(self, role: Role, **more: str) -> list[tuple[str, str | bytes]]:
        given = {"host": HOST, "authorization": f"Bearer {self.tokens[role]}", **more}
        return [(name.replace("_", "-"), value) for name, value in given.items()]

    async def ask(
        self, method: str, path: str, headers: Headers, body: bytes | Iterable[bytes] = b"", *, kind: str = "http"
    ) -> Answer:
        """One request. `kind` "websocket": a handshake, of which the status is 101 where it was accepted."""
        where, _, query = path.partition("?")
        raw = [(name.encode(), value if isinstance(value, bytes) else value.encode()) for name, value in headers]
        scope: dict[str, Any] = {
            "type": kind,
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": where,
            "raw_path": where.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "scheme": "ws" if kind == "websocket" else "http",
            "headers": raw,
            "server": ("127.0.0.1", 8400),
            "client": ("127.0.0.1", 50000),
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}},
        }
        if kind == "websocket":
            del scope["method"]
        pieces = iter([body] if isinstance(body, bytes) else body)
        waiting = asyncio.Event()
        began = False

        async def receive() -> dict[str, Any]:
            nonlocal began
            if kind == "websocket":
                if began:
                    return {"type": "websocket.disconnect", "code": 1001}
                began = True
                return {"type": "websocket.connect"}
            try:
                return {"type": "http.request", "body": next(pieces), "more_body": True}
            except StopIteration:
                if not began:
                    began = True
                    return {"type": "http.request", "body": b"", "more_body": False}
                await waiting.wait()  # the client stays
                return {"type": "http.disconnect"}

        sent: list[dict[str, Any]] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await asyncio.wait_for(self.app(scope, receive, send), 30)
        return _answer(sent)


def _answer(sent: list[dict[str, Any]]) -> Answer:
    first = sent[0]
    if first["type"] == "websocket.accept":
        return Answer(101, [], b"")
    if first["type"] == "websocket.close":
        return Answer(403, [], b"")
    headers = [(name.decode(), value.decode()) for name, value in first["headers"]]
    return Answer(first["status"], headers, b"".join(message.get("body", b"") for message in sent[1:]))


@asynccontextmanager
async def world_of(folder: Path, **settings: Any) -> AsyncIterator[World]:
    app = create_app(ServeSettings(folder, **settings))
    async with app.router.lifespan_context(app):
        yield World(app)


def filled(page: Page) -> str:
    """A path that the page's route matches."""
    return "/".join("x" if part.startswith("{") else part for part in page.path.split("/"))
