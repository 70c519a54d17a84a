"""Who may reach a page, and the headers of every answer.

`OuterGuard` stands before everything, also before unknown paths: the Host must be one that this server answers to
(which protects against DNS rebinding), and every answer gets SECURITY_HEADERS. `Guarded` stands before each handler: it
limits the body and the time of a request, identifies the client and checks its role, and accepts changes only from
pages of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import math
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, quote

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

import runbook
from runbook.model import units
from runbook.model.errors import FilesWrong
from runbook.serve.agent_fleet import InvalidNodeName, NoAgent
from runbook.serve.change_stream import Changed
from runbook.serve.group_actions import Refused
from runbook.serve.group_files import ChangedMeanwhile, NameTaken, NoGroup
from runbook.serve.page import READ_METHODS, Page, role_allows
from runbook.serve.people import Audit, People, Person, csrf_token
from runbook.serve.rendering import error_response
from runbook.serve.run_folders import NoRun
from runbook.serve.run_logs import NoFile
from runbook.serve.run_processes import Busy, NotRunning
from runbook.serve.settings import ServeSettings

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with `no-referrer` a form of ours is sent with `Origin: null`
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
ERROR_ANSWERS: dict[type[Exception], tuple[int, str, str]] = {
    NoGroup: (404, "there is no such group, or its file cannot be read here", ""),
    NoRun: (404, "there is no such run", ""),
    NoFile: (404, "the run has no such file", ""),
    NoAgent: (404, "no agent has this name", ""),
    NameTaken: (409, "", ""),
    Busy: (409, "", ""),
    NotRunning: (409, "nothing that was started here is running", ""),
    ChangedMeanwhile: (412, "", "load the page again: it shows what it is now; what you wrote is not saved"),
    Refused: (422, "", ""),
    InvalidNodeName: (422, "", ""),
}
"""The answer for each error that a handler may raise: status, sentence (empty: the text of the error), and help."""
BODY_TIMEOUT_S = 30.0
"""How long a request's body may take to arrive."""
MAX_FORM_FIELDS = 5000
"""The most fields of a form."""
log = logging.getLogger("runbook.serve")


class RequestRefused(HTTPException):
    """A request that is refused. `says` and `help` are shown to the client, and hold nothing of the request."""

    def __init__(self, status: int, says: str, help: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, says, dict(headers or {}))
        self.help = help


class OuterGuard:
    """The outermost layer: Host, headers, and a plain answer for any error inside."""

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self._app = app
        self._hosts = settings.hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        begun = False

        async def guarded_send(message: Message) -> None:
            nonlocal begun
            begun = True
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                given = {name.lower() for name, _ in message.get("headers", ())}
                more = [(n.encode(), v.encode()) for n, v in SECURITY_HEADERS.items() if n.encode() not in given]
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await _send_response(refusal, scope, receive, guarded_send)
            return
        state = scope.setdefault("state", {})
        seen = scope["app"].state.changed.now
        state.update(
            origin=self._hosts[host_header(scope) or ""], person=None, csrf="", kind="page", seen=seen, about=""
        )
        try:
            await self._app(scope, receive, guarded_send)
        except Exception:
            page: Page | None = state.get("page")
            log.exception("%s %s", scope.get("method", "socket"), page.path if page else "an unknown path")
            if begun:
                raise ConnectionError("the answer ends here") from None
            await _send_response(
                PlainTextResponse("a bug of runbook: see the server's log\n", 500), scope, receive, guarded_send
            )

    def _refusal(self, scope: Scope) -> Response | None:
        host = host_header(scope)
        if host is None:
            return PlainTextResponse("exactly one Host header is needed\n", 400)
        if host not in self._hosts:
            says = "this server does not answer to that name; `origins:` of its serve.yml lists those that it does\n"
            return PlainTextResponse(says, 421)
        return None


async def _send_response(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an answer. To a client that wants a WebSocket it can be sent only by an HTTP server with the extension
    `websocket.http.response`; without it the socket is closed instead."""
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    await response(scope, receive, send)


def single_header(scope: Scope, name: str) -> str | None:
    """The value of a header; None if the header is missing, is there more than once, or is not ASCII."""
    values = [value for key, value in scope["headers"] if key.lower() == name.encode()]
    if len(values) != 1 or not values[0].isascii():
        return None
    text: str = values[0].decode("ascii")
    return text


def has_header(scope: Scope, name: str) -> bool:
    return any(key.lower() == name.encode() for key, _ in scope["headers"])


def host_header(scope: Scope) -> str | None:
    """The Host header in lower case; None unless there is exactly one."""
    host = single_header(scope, "host")
    return None if host is None else host.lower()


class Guarded:
    """A page behind its guards: the ASGI application of the page's route."""

    def __init__(self, page: Page, settings: ServeSettings, people: People, audit: Audit, metrics: Metrics) -> None:
        self.page = page
        self._settings = settings
        self._people = people
        self._audit = audit
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["kind"] = self.page.kind
        scope["state"]["page"] = self.page
        if scope["type"] == "websocket":
            await self._socket(scope, receive, send)
            return
        request = Request(scope, receive, send)
        began = time.perf_counter()
        response: Response | None = None
        try:
            response = await self._respond(request)
        finally:
            status = 500 if response is None else response.status_code
            self._metrics.measure(self.page, request.method, status, time.perf_counter() - began)
            await self._remember(request, status)
        await response(scope, receive, send)

    async def _remember(self, request: Request, status: int) -> None:
        """Write an entry into the audit for every change that a known person made or tried. A handler puts into
        `state.about` what the path does not tell about the change. Unknown clients leave no entry: they could fill the
        audit."""
        person, agent = request.state.person, self.page.role == "agent" and status < 400
        if request.method in READ_METHODS or not request.state.passed or not (person or agent):
            return
        who = person.name if person else "an agent"
        path = self.page.path if self.page.role == "anyone" else request.url.path  # a login link's path is a secret
        what = f"{self.page.says}: {request.state.about}" if request.state.about else self.page.says
        try:
            await run_in_threadpool(self._audit.note, who, client_address(request.scope), what, path, status)
        except sqlite3.Error:  # the change was made, so the client gets no error
            log.exception("the audit lacks that %s did this: %s (%s)", who, what, path)
        request.app.state.changed.publish("audit")

    async def _respond(self, request: Request) -> Response:
        """The handler's answer, or the one for an error. `state.passed`: the guards let the request through."""
        request.state.passed = False
        try:
            try:
                await asyncio.wait_for(self._let_through(request), BODY_TIMEOUT_S)
            except (TimeoutError, asyncio.TimeoutError):
                raise RequestRefused(408, "the request took too long", headers={"connection": "close"}) from None
            request.state.passed = True
            answer: Response = await self.page.handler(request)
            return answer
        except FilesWrong as wrong:
            problem = wrong.problems[0]
            return error_response(request, 422, problem.message, problem.help or "")
        except HTTPException as refused:
            return refusal_response(request, refused, self.page)
        except tuple(ERROR_ANSWERS) as error:
            status, says, help = ERROR_ANSWERS[type(error)]
            return error_response(request, status, says or str(error), help)

    async def _let_through(self, request: Request) -> None:
        """Raises RequestRefused if the request may not reach the handler; sets `state.person`, `.csrf` and `.form`."""
        scope, page = request.scope, self.page
        refuse_foreign_context(scope, page)
        changing = request.method not in READ_METHODS
        self._identify(scope)
        refused = self._refusal_of_role(scope)
        body = await read_bounded_body(request, page.most_bytes, keep=changing and refused is None)
        if refused is not None:
            raise refused
        if changing:
            request.state.form = parse_form(request, page, body)
            self._refuse_forged(scope, request.state.form.get("csrf"))
            # Last, so that requests that others forge in a person's name do not count against that person.
            _refuse_too_many_changes(request)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            refuse_foreign_context(scope, self.page)
        except RequestRefused as refused:
            await _send_response(PlainTextResponse(f"{refused.detail}\n", refused.status_code), scope, receive, send)
            return
        await self.page.handler(WebSocket(scope, receive, send))

    def _identify(self, scope: Scope) -> None:
        """Find the person who asks, by a token, or else by the cookie of a session that was made for this origin; sets
        `state.person`, and `state.still`, a function that finds the person anew. Raises RequestRefused for an unknown
        token."""
        state = scope["state"]
        state["bearer"] = False
        if self.page.role == "agent":
            return
        if has_header(scope, "authorization"):
            kind, _, secret = (single_header(scope, "authorization") or "").partition(" ")
            ask = partial(self._people.by_token, secret.strip())
            state["person"], state["bearer"], state["still"] = ask() if kind.lower() == "bearer" else None, True, ask
            if state["person"] is None:
                raise RequestRefused(401, "this token is not known here", headers={"www-authenticate": "Bearer"})
            return
        secret = cookie_value(scope, self._settings.cookie(state["origin"]))
        ask = partial(self._people.by_session, secret, state["origin"])
        state["person"], state["still"] = ask() if secret else None, ask
        if state["person"] is not None:
            state["csrf"] = csrf_token(secret)

    def _refusal_of_role(self, scope: Scope) -> RequestRefused | None:
        """Why the person may not use this page; None if they may."""
        person: Person | None = scope["state"]["person"]
        if self.page.role in ("anyone", "agent"):
            return None
        if person is None:
            help = "a program sends `Authorization: Bearer TOKEN`; tokens are made on /admin"
            return RequestRefused(401, "log in first", help, headers={"www-authenticate": "Bearer"})
        if not role_allows(person.role, self.page.role):
            return RequestRefused(403, f"this needs the role {self.page.role}; yours is {person.role}")
        return None

    def _refuse_forged(self, scope: Scope, field: object) -> None:
        """Raises RequestRefused for a change that comes neither from a page of ours nor from a program with a token.
        `field` is the form's CSRF token."""
        state = scope["state"]
        if self.page.role == "agent":
            return
        if state["bearer"] and not has_header(scope, "origin"):
            return
        if single_header(scope, "origin") != state["origin"]:
            raise RequestRefused(403, "this did not come from a page of this server")
        if state["person"] is not None and not state["bearer"]:
            given = single_header(scope, "x-csrf-token") or (field if isinstance(field, str) else "")
            if not hmac.compare_digest(given.encode("utf-8", "replace"), state["csrf"].encode()):
                raise RequestRefused(403, "this form is too old: load the page again")


def _refuse_too_many_changes(request: Request) -> None:
    """Raises RequestRefused when this person, or this address without a login, makes changes too fast."""
    changes: TokenBucket = request.app.state.changes
    person: Person | None = request.state.person
    wait = changes.wait_s(f"person {person.name}" if person else f"address {rate_limit_key(request.scope)}")
    if wait > 0:
        raise RequestRefused(429, "too many changes at once", headers={"retry-after": str(math.ceil(wait))})


def refuse_foreign_context(scope: Scope, page: Page) -> None:
    """Raises RequestRefused by what a browser says about the page that a request comes from. A browser may not use
    pages for agents. From another site only a click on a link is accepted."""
    if page.role == "agent":
        if has_header(scope, "origin") or has_header(scope, "sec-fetch-site"):
            raise RequestRefused(403, "this is for agents, not for browsers")
        return
    if not has_header(scope, "sec-fetch-site") or single_header(scope, "sec-fetch-site") in ("same-origin", "none"):
        return
    clicked = (
        single_header(scope, "sec-fetch-mode") == "navigate" and single_header(scope, "sec-fetch-dest") == "document"
    )
    if not (clicked and scope.get("method") == "GET" and page.kind == "page"):
        raise RequestRefused(403, "this did not come from a page of this server")


async def read_bounded_body(request: Request, most: int, *, keep: bool = True) -> bytes:
    """The whole body of a request; without `keep` it is read and dropped, so that a client without access gets an
    answer. Raises RequestRefused for more than `most` bytes, at once if the header says so."""
    long = RequestRefused(413, f"at most {most} bytes", headers={"connection": "close"})
    length = request.headers.get("content-length", "0")
    told = units.parse_whole_number(length)
    if told is None or told > most:
        raise long
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise long
            if keep:
                parts.append(part)
    except ClientDisconnect:
        raise RequestRefused(400, "the request ends before its body does") from None
    body = b"".join(parts)
    request._body = body  # so that the handler's `request.body()` finds it
    return body


def parse_form(request: Request, page: Page, body: bytes) -> FormData:
    """The fields of a form that a page of ours sent; none for a body of JSON. Raises RequestRefused for a body of
    another type."""
    kind = (single_header(request.scope, "content-type") or "").partition(";")[0].strip().lower()
    if not body:
        return FormData()
    wanted = "application/json" if page.kind == "api" or page.role == "agent" else "application/x-www-form-urlencoded"
    if kind != wanted:
        raise RequestRefused(415, f"the body must be {wanted}")
    if kind == "application/json":
        return FormData()
    try:
        text = body.decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FORM_FIELDS)
    except ValueError:
        raise RequestRefused(400, "the form cannot be read") from None
    return FormData([*pairs])


async def read_json_body(request: Request) -> dict[str, Any]:
    """The JSON object in the body of a request, an empty one without a body. Raises RequestRefused."""
    try:
        return msgspec.json.decode(await request.body() or b"{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):  # also for a lone half of a surrogate pair, which no file can hold
        raise RequestRefused(400, "the body is not a JSON object") from None


def query_number(request: Request, name: str) -> int | None:
    """The whole number that the query gives for `name`; None if it gives none."""
    return units.parse_whole_number(request.query_params.get(name, ""))


def cookie_value(scope: Scope, name: str) -> str:
    """The value of our cookie; empty if no cookie, or more than one, has that name."""
    values = []
    for key, raw in scope["headers"]:
        if key.lower() == b"cookie":
            for part in raw.decode("latin-1").split(";"):
                word, _, value = part.strip().partition("=")
                values += [value] if word == name else []
    return values[0] if len(values) == 1 and values[0].isascii() else ""


def client_address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else "?"


def rate_limit_key(scope: Scope) -> str:
    """The name under which attempts from the client's address are counted. With IPv6 it is the address's /64, since one
    host may have all of a /64."""
    address = client_address(scope)
    with contextlib.suppress(ValueError):
        known = ipaddress.ip_address(address)
        if isinstance(known, ipaddress.IPv6Address) and known.ipv4_mapped is None:
            return f"{ipaddress.IPv6Address(int(known) >> 64 << 64)}/64"
    return address


def refusal_response(request: Request, refused: HTTPException, page: Page) -> Response:
    """The answer to a refused request: a page or JSON, or, for a person who has not logged in, the way to the login."""
    stranger = refused.status_code == 401 and not has_header(request.scope, "authorization")
    if stranger and page.kind == "page" and request.method in READ_METHODS:
        where = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        response: Response = RedirectResponse(f"/login?next={quote(where, safe='')}", 303)
    else:
        response = error_response(request, refused.status_code, refused.detail, getattr(refused, "help", ""))
    for name, value in (refused.headers or {}).items():
        response.headers[name] = value
    return response


MAX_REMEMBERED_NAMES = 10_000
"""The most names that a TokenBucket remembers; the one whose last attempt is the oldest is forgotten first."""


class TokenBucket:
    """Limits attempts by name: `burst` at once, and then one every `every_s` seconds. Belongs to one event loop."""

    def __init__(self, burst: int, every_s: float) -> None:
        self._burst = burst
        self._every_s = every_s
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def wait_s(self, who: str) -> float:
        """Count an attempt by `who`, and return 0 if it may be made. Otherwise return the seconds until it may be made,
        and do not count it."""
        now = time.monotonic()
        full_at = max(now, self._full_at.pop(who, now))
        wait = full_at - now - (self._burst - 1) * self._every_s  # not above 0 for a first attempt, by rounding either
        self._full_at[who] = full_at + self._every_s if wait <= 0 else full_at
        while len(self._full_at) > MAX_REMEMBERED_NAMES:
            self._full_at.popitem(last=False)
        return max(0.0, wait)


LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """The counters for Prometheus. `registry` takes further ones: `Gauge(…, registry=metrics.registry)`."""

    def __init__(self, changed: Changed) -> None:
        self.registry = CollectorRegistry()
        labels = ["path", "method"]
        self._requests = Counter(
            "runbook_http_requests", "Requests that were answered.", [*labels, "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "runbook_http_seconds",
            "Until the answer begins.",
            labels,
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        streams = Gauge("runbook_event_streams", "Event streams that are open.", registry=self.registry)
        streams.set_function(lambda: len(changed))
        about = Gauge("runbook_build_info", "The version that runs.", ["version"], registry=self.registry)
        about.labels(runbook.__version__).set(1)

    def measure(self, page: Page, method: str, status: int, seconds: float) -> None:
        self._requests.labels(page.path, method, str(status)).inc()
        self._seconds.labels(page.path, method).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)
