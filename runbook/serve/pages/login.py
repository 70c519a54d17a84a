"""Logging in, by password or by a link that works once, and out."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from runbook.serve.guards import RequestRefused, TokenBucket, rate_limit_key
from runbook.serve.page import Page
from runbook.serve.people import SESSION_LIFETIME_S, Person
from runbook.serve.rendering import html_response
from runbook.serve.workspace import people_of


async def show_login(request: Request) -> Response:
    return await html_response(request, "login.html", next=_local_path(request.query_params.get("next", "/")), wrong="")


async def log_in(request: Request) -> Response:
    form = request.state.form
    name, password, onward = (str(form.get(field, "")) for field in ("name", "password", "next"))
    _refuse_guessing(request, name)
    people = people_of(request)
    person = await asyncio.to_thread(people.by_password, name, password)
    if person is None:
        return await html_response(
            request, "login.html", status=403, next=_local_path(onward), wrong="Name or password is wrong."
        )
    return _begin_session(request, person, onward)


async def show_login_by_link(request: Request) -> Response:
    """A page with a button that logs in. Opening the link does not log in by itself: programs that fetch links for a
    preview must not use it up."""
    return await html_response(request, "login_link.html")


async def log_in_by_link(request: Request) -> Response:
    _refuse_guessing(request)
    people = people_of(request)
    person = people.by_link(request.path_params["secret"])
    if person is None:
        raise RequestRefused(
            403, "this link was used, or is older than five minutes", "`runbook serve user link NAME` makes a new one"
        )
    return _begin_session(request, person, "/")


async def log_out(request: Request) -> Response:
    _end_session(request)
    response = RedirectResponse("/login", 303)
    response.delete_cookie(_session_cookie_name(request), secure=_is_https(request), httponly=True, samesite="lax")
    return response


def _begin_session(request: Request, person: Person, onward: str) -> Response:
    people = people_of(request)
    _end_session(request)  # of the person who was logged in with this browser before
    request.state.person = person  # for the audit
    secret = people.begin_session(person, request.state.origin)
    response = RedirectResponse(_local_path(onward), 303)
    response.set_cookie(
        _session_cookie_name(request),
        secret,
        max_age=int(SESSION_LIFETIME_S),
        secure=_is_https(request),
        httponly=True,
        samesite="lax",
    )
    return response


def _end_session(request: Request) -> None:
    """End the session that this browser has, if it has one."""
    people = people_of(request)
    if request.state.person and request.state.person.session:
        people.end_session(request.state.person.session)


def _session_cookie_name(request: Request) -> str:
    name: str = request.app.state.settings.cookie(request.state.origin)
    return name


def _is_https(request: Request) -> bool:
    return bool(request.state.origin.startswith("https:"))


def _local_path(path: str) -> str:
    """The path if it is a place on this server, else `/`: a link may ask for any place after the login."""
    inside = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and len(path) < 2000
    return path if inside else "/"


def _refuse_guessing(request: Request, *names: str) -> None:
    """Raises RequestRefused when the client's address, or one of these names, has tried too many logins. The limit by
    name holds for guesses from many addresses too."""
    guesses: TokenBucket = request.app.state.guesses
    for who in (f"address {rate_limit_key(request.scope)}", *(f"name {name[:64]}" for name in names)):
        wait = guesses.wait_s(who)
        if wait:
            raise RequestRefused(429, "too many logins: wait a minute", headers={"retry-after": str(int(wait) + 1)})


PAGES = [
    Page("/login", ("GET",), show_login, "anyone", says="Log in"),
    Page("/login", ("POST",), log_in, "anyone", says="Log in", most_bytes=8192),
    Page("/login/{secret}", ("GET",), show_login_by_link, "anyone", says="Log in by a link"),
    Page("/login/{secret}", ("POST",), log_in_by_link, "anyone", says="Log in by a link", most_bytes=8192),
    Page("/logout", ("POST",), log_out, "anyone", says="Log out", most_bytes=8192),
]
