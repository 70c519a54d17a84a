"""A page: its row in the table from which routes, guards, the OpenAPI test and the attack tests are made; and who may
use it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response

Role = Literal["viewer", "operator", "admin"]
"""What a person may: look; start and stop things; change people, tokens and enrolments. Each includes those before
it."""
Needed = Literal["anyone", "viewer", "operator", "admin", "agent"]
"""Who is let through to a page. `agent`: no browser at all; the handler itself checks the agent's secret."""
Kind = Literal["page", "api", "events", "socket"]
"""HTML and forms; JSON; a stream of server-sent events; a WebSocket."""

ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")
READS = frozenset({"GET", "HEAD"})
KIB = 1024

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Page:
    """`path` as Starlette writes it (`/groups/{name}`), `methods` in capitals, none for a socket.

    `handler` takes a Request and returns a Response; that of a socket takes a WebSocket and returns nothing. `says` is
    a sentence for people and for the audit: "Stop a run". `nav` is its word in the navigation, empty for none. No body
    longer than `most_bytes` reaches the handler.
    """

    path: str
    methods: tuple[str, ...]
    handler: Callable[[Any], Awaitable[Any]]
    role: Needed
    kind: Kind = "page"
    says: str = ""
    nav: str = ""
    most_bytes: int = 256 * KIB

    def __post_init__(self) -> None:
        if self.kind == "socket" and (self.methods or self.role != "agent"):
            raise ValueError(f"{self.path}: a socket has no methods, and is for agents alone")
        if self.kind != "socket" and not self.methods:
            raise ValueError(f"{self.path}: which methods?")
        if self.kind == "api" and not self.path.startswith("/api/v1/"):
            raise ValueError(f"{self.path}: what speaks JSON lies below /api/v1/")


def allows(role: Role, needed: Needed) -> bool:
    """Whether a person of this role may use a page that needs `needed`; never one that is for agents."""
    if needed == "anyone":
        return True
    return needed != "agent" and ROLES.index(role) >= ROLES.index(needed)
