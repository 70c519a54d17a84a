"""How answers are made: HTML from templates, static files, JSON, and errors as a page or as JSON."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from json import dumps
from typing import Any

import jinja2
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from runbook.model.units import bytes_text
from runbook.report.html.render import html_environment, prose
from runbook.serve.page import role_allows

STATIC_CONTENT_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@cache
def template_environment() -> jinja2.Environment:
    """The templates of `templates/`, and those of reports below `report/`."""
    loaded = html_environment(
        jinja2.ChoiceLoader(
            [
                jinja2.PackageLoader("runbook.serve", "templates"),
                jinja2.PrefixLoader({"report": jinja2.PackageLoader("runbook.report.html", "templates")}),
            ]
        )
    )
    loaded.filters["prose"] = prose
    loaded.globals["static"] = lambda name: f"/static/{name}?v={static_files()[name][1]}"
    loaded.globals |= {"moment": moment, "ago": ago, "size": bytes_text}
    return loaded


def ago(seconds: float | None) -> str:
    """A time span in short: `3 s`, `12 min`, `5 h`, `2 d`; empty if unknown."""
    if seconds is None:
        return ""
    seconds = max(0.0, seconds)
    for limit, divisor, unit in ((90, 1, "s"), (5400, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def moment(at: float | None) -> str:
    """A time in seconds since 1970 as text, with this machine's time zone, since people may be in another. Empty for
    None; a time that no calendar has stays in seconds."""
    try:
        return "" if at is None else time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return f"{at:.0f} s after 1970"


@cache
def static_files() -> dict[str, tuple[bytes, str, str]]:
    """Every file of `static/`, and the style sheet and script of reports, by name: its bytes, their hash, and its
    type."""
    found = {}
    reports = resources.files("runbook.report.html")
    for file in (reports / "style.css", reports / "copy.js", *(resources.files("runbook.serve") / "static").iterdir()):
        ending = file.name[file.name.rfind(".") :]
        if ending in STATIC_CONTENT_TYPES:
            data = file.read_bytes()
            found[file.name] = (data, hashlib.sha256(data).hexdigest()[:16], STATIC_CONTENT_TYPES[ending])
    return found


async def html_response(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """A page of HTML, made in a thread: a page about a thousand nodes takes a while. Besides `values`, templates are
    given `person`, `csrf` (for `<input name="csrf">` of every form), `nav` and `may_act` (this person may do more than
    look). `seen` is the id of the last change before anything of the page was read. `address` is the path by which the
    answer to a form can be loaded again."""
    return await run_in_threadpool(_render_html_response, request, template, status, values)


def _render_html_response(request: Request, template: str, status: int, values: Mapping[str, Any]) -> Response:
    given = {
        "person": request.state.person,
        "may_act": request.state.person is not None and role_allows(request.state.person.role, "operator"),
        "csrf": request.state.csrf,
        "nav": request.app.state.nav(request.state.person),
        "here": request.url.path,
        "seen": request.state.seen,
        "address": "",
        **values,
    }
    return HTMLResponse(template_environment().get_template(template).render(given), status)


class AsciiJson(JSONResponse):
    """JSON in ASCII, since files from elsewhere may hold a lone half of a surrogate pair, which UTF-8 cannot encode."""

    def render(self, content: object) -> bytes:
        return dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


async def json_response(make: Callable[[], object], headers: Mapping[str, str] | None = None) -> Response:
    """The JSON answer with what `make` returns; `make` is called in a thread."""
    return await run_in_threadpool(lambda: AsciiJson(make(), headers=headers))


def error_response(request: Request, status: int, says: str, help: str = "") -> Response:
    """The answer for an error: a page, or JSON if the request was not for an HTML page."""
    if request.state.kind != "page":
        return AsciiJson({"error": {"status": status, "says": says, "help": help}}, status)
    return _render_html_response(
        request, "error.html", status, {"code": status, "says": says, "help": help, "back": _referring_path(request)}
    )


def _referring_path(request: Request) -> str:
    """The path of the page of ours that the request came from; empty if it is not known."""
    origin = getattr(request.state, "origin", "")
    path = request.headers.get("referer", "").removeprefix(origin) if origin else ""
    return path if path.startswith("/") and not path.startswith("//") and path != request.url.path else ""
