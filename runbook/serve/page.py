"""A page as a row of the table from which routes, guards, the OpenAPI test and the attack tests are made; and the roles
that may use it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response

Role = Literal["viewer", "operator", "admin"]
"""The role of a person. A viewer may look; an operator may also start and stop things; an admin may also change people,
tokens and enrolments."""
NeededRole = Literal["anyone", "viewer", "operator", "admin", "agent"]
"""The role that a page needs. `agent` admits no browser at all; the handler itself checks the agent's secret."""
PageKind = Literal["page", "api", "events", "socket"]
"""What a page speaks: `page` HTML and forms, `api` JSON, `events` server-sent events, `socket` a WebSocket."""

ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")
READ_METHODS = frozenset({"GET", "HEAD"})
KIB = 1024

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page. `path` is written as Starlette does (`/groups/{name}`), `methods` in capitals; a socket has no methods.

    `handler` takes a Request and returns a Response; the handler of a socket takes a WebSocket and returns nothing.
    `says` is a phrase for people and for the audit: "Stop a run". `nav` is the page's word in the navigation, or empty.
    No body longer than `most_bytes` reaches the handler.
    """

    path: str
    methods: tuple[str, ...]
    handler: Callable[[Any], Awaitable[Any]]
    role: NeededRole
    kind: PageKind = "page"
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


def role_allows(role: Role, needed: NeededRole) -> bool:
    """Whether a person of this role may use a page that needs `needed`. Nobody may use a page for agents."""
    if needed == "anyone":
        return True
    return needed != "agent" and ROLES.index(role) >= ROLES.index(needed)
