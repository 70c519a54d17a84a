"""Logging in, by password or by a link that works once, and out."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from runbook.serve.guards import RequestRefused, TokenBucket, counted_as
from runbook.serve.page import Page
from runbook.serve.people import SESSION_LIFETIME_S, Person
from runbook.serve.rendering import html
from runbook.serve.workspace import people_of


async def ask(request: Request) -> Response:
    return await html(request, "login.html", next=_inside(request.query_params.get("next", "/")), wrong="")


async def log_in(request: Request) -> Response:
    form = request.state.form
    name, password, onward = (str(form.get(field, "")) for field in ("name", "password", "next"))
    _refuse_guessing(request, name)
    people = people_of(request)
    person = await asyncio.to_thread(people.by_password, name, password)
    if person is None:
        return await html(request, "login.html", status=403, next=_inside(onward), wrong="Name or password is wrong.")
    return _welcome(request, person, onward)


async def ask_link(request: Request) -> Response:
    """A page with a button that logs in. Opening the link does not log in by itself: programs that fetch links for a
    preview must not use it up."""
    return await html(request, "login_link.html")


async def log_in_by_link(request: Request) -> Response:
    _refuse_guessing(request)
    people = people_of(request)
    person = people.by_link(request.path_params["secret"])
    if person is None:
        raise RequestRefused(
            403, "this link was used, or is older than five minutes", "`runbook serve user link NAME` makes a new one"
        )
    return _welcome(request, person, "/")


async def log_out(request: Request) -> Response:
    _end_session(request)
    response = RedirectResponse("/login", 303)
    response.delete_cookie(_cookie(request), secure=_secure(request), httponly=True, samesite="lax")
    return response


def _welcome(request: Request, person: Person, onward: str) -> Response:
    people = people_of(request)
    _end_session(request)  # of the person who was logged in with this browser before
    request.state.person = person  # for the audit
    secret = people.begin_session(person, request.state.origin)
    response = RedirectResponse(_inside(onward), 303)
    response.set_cookie(
        _cookie(request),
        secret,
        max_age=int(SESSION_LIFETIME_S),
        secure=_secure(request),
        httponly=True,
        samesite="lax",
    )
    return response


def _end_session(request: Request) -> None:
    """End the session that this browser has, if it has one."""
    people = people_of(request)
    if request.state.person and request.state.person.session:
        people.end_session(request.state.person.session)


def _cookie(request: Request) -> str:
    name: str = request.app.state.settings.cookie(request.state.origin)
    return name


def _secure(request: Request) -> bool:
    return bool(request.state.origin.startswith("https:"))


def _inside(path: str) -> str:
    """The path if it is a place on this server, else `/`: a link may ask for any place after the login."""
    inside = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and len(path) < 2000
    return path if inside else "/"


def _refuse_guessing(request: Request, *names: str) -> None:
    """Raises RequestRefused when the client's address, or one of these names, has tried too many logins. The limit by
    name holds for guesses from many addresses too."""
    guesses: TokenBucket = request.app.state.guesses
    for who in (f"address {counted_as(request.scope)}", *(f"name {name[:64]}" for name in names)):
        wait = guesses.wait_s(who)
        if wait:
            raise RequestRefused(429, "too many logins: wait a minute", headers={"retry-after": str(int(wait) + 1)})


PAGES = [
    Page("/login", ("GET",), ask, "anyone", says="Log in"),
    Page("/login", ("POST",), log_in, "anyone", says="Log in", most_bytes=8192),
    Page("/login/{secret}", ("GET",), ask_link, "anyone", says="Log in by a link"),
    Page("/login/{secret}", ("POST",), log_in_by_link, "anyone", says="Log in by a link", most_bytes=8192),
    Page("/logout", ("POST",), log_out, "anyone", says="Log out", most_bytes=8192),
]
