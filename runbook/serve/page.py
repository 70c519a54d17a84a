"""A page: its row in the table from which routes, guards, the OpenAPI test and the attack tests are made; and what it
answers with."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

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
        if self.kind == "socket" and self.methods:
            raise ValueError(f"{self.path}: a socket has no methods")
        if self.kind != "socket" and not self.methods:
            raise ValueError(f"{self.path}: which methods?")
        if self.kind == "api" and not self.path.startswith("/api/v1/"):
            raise ValueError(f"{self.path}: what speaks JSON lies below /api/v1/")


def allows(role: Role, needed: Needed) -> bool:
    """Whether a person of this role may use a page that needs `needed`; never one that is for agents."""
    if needed == "anyone":
        return True
    return needed != "agent" and ROLES.index(role) >= ROLES.index(needed)


STATIC = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@cache
def environment() -> jinja2.Environment:
    """Templates of `templates/`, and those of reports below `report/`: everything escaped, and a name that nobody gave
    is an error."""
    loaded = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [
                jinja2.PackageLoader("runbook.serve", "templates"),
                jinja2.PrefixLoader({"report": jinja2.PackageLoader("runbook.report.html", "templates")}),
            ]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    loaded.globals["static"] = lambda name: f"/static/{name}?v={static_files()[name][1]}"
    loaded.globals |= {"moment": moment, "ago": ago, "size": size}
    return loaded


def ago(seconds: float | None) -> str:
    """How long ago, short: `3 s`, `12 min`, `5 h`, `2 d`; empty for what is not known."""
    if seconds is None:
        return ""
    seconds = max(0.0, seconds)
    for limit, divisor, unit in ((90, 1, "s"), (5400, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def size(count: int) -> str:
    """Bytes for people: 1.2 MB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


def moment(at: float | None) -> str:
    """A time of this machine's clock, for people."""
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


@cache
def static_files() -> dict[str, tuple[bytes, str, str]]:
    """Every file of `static/`, and the look of reports and their script: its bytes, a hash of them, its type."""
    found = {}
    reports = resources.files("runbook.report.html")
    for file in (reports / "style.css", reports / "copy.js", *(resources.files("runbook.serve") / "static").iterdir()):
        ending = file.name[file.name.rfind(".") :]
        if ending in STATIC:
            data = file.read_bytes()
            found[file.name] = (data, hashlib.sha256(data).hexdigest()[:16], STATIC[ending])
    return found


def html(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """A page. Templates are given `person`, `csrf` (for `<input name="csrf">` of every form) and `nav` beside
    `values`. `address` is where a page that answers a form is found afterwards."""
    given = {
        "person": request.state.person,
        "csrf": request.state.csrf,
        "nav": request.app.state.nav(request.state.person),
        "here": request.url.path,
        "address": "",
        **values,
    }
    return HTMLResponse(environment().get_template(template).render(given), status)


def failure(request: Request, status: int, says: str, help: str = "") -> Response:
    """An error as a page, or as JSON where the client speaks that."""
    if request.state.kind != "page":
        return JSONResponse({"error": {"status": status, "says": says, "help": help}}, status)
    return html(request, "error.html", status=status, code=status, says=says, help=help)
