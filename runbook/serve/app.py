"""The server as an ASGI application: the table of its pages, and what they share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from runbook.serve import admin, agents, description, events, health, login, static
from runbook.serve.audit import Audit
from runbook.serve.changed import Changed
from runbook.serve.fleet import pages as nodes
from runbook.serve.groups import pages as groups
from runbook.serve.guards import Guarded, OuterGuard, refusal
from runbook.serve.metrics import Metrics
from runbook.serve.page import Page, allows
from runbook.serve.people import People, Person
from runbook.serve.rate import TokenBucket
from runbook.serve.runs import pages as runs
from runbook.serve.settings import ServeSettings
from runbook.serve.store import Store
from runbook.serve.workspace import Workspace

DATABASE = "serve.db"
GUESSES = 10
GUESS_EVERY_S = 6.0
"""Logins that may be tried at once, by an address or for a name, and how soon one more."""
CHANGES = 120
CHANGE_EVERY_S = 0.25
"""The same of changes and previews of one person, and of one address where nobody is logged in."""


def all_pages() -> list[Page]:
    """Every page of the server. A room adds its own here."""
    return [
        *nodes.PAGES,
        *groups.PAGES,
        *runs.PAGES,
        *health.PAGES,
        *static.PAGES,
        *login.PAGES,
        *events.PAGES,
        *admin.PAGES,
        *agents.PAGES,
        *description.PAGES,
    ]


def create_app(settings: ServeSettings) -> Starlette:
    """The application; `settings.data` must be a folder. Its `state` has what handlers share: `settings`, `store`, `people`,
    `audit`, `changed` and `pages`. It is closed by its lifespan."""
    pages = all_pages()
    store = Store(settings.data / DATABASE)
    changed, people, audit = Changed(), People(store), Audit(store)
    metrics, fleet = Metrics(changed), agents.Fleet(store, settings, changed)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        changed.start()
        try:
            async with fleet.running(), agents.StreamSocket(fleet, settings.data).open():
                await asyncio.to_thread(app.state.workspace.processes.adopt)
                yield
        finally:
            app.state.workspace.processes.close()
            changed.close()
            store.close()

    async def wrong(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return refusal(request, error, _NOWHERE)

    routes = [_route(page, Guarded(page, settings, people, audit, metrics)) for page in pages]
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
    app.state.metrics, app.state.nav = metrics, _navigation(pages)
    app.state.workspace = Workspace(settings.data, store, changed.publish, fleet)
    app.state.guesses = TokenBucket(GUESSES, GUESS_EVERY_S)
    app.state.changes = TokenBucket(CHANGES, CHANGE_EVERY_S)
    return app


def _route(page: Page, guarded: Guarded) -> BaseRoute:
    if page.kind == "socket":
        return WebSocketRoute(page.path, guarded)
    route = Route(page.path, guarded, methods=list(page.methods))
    if page.kind == "events" and route.methods:
        route.methods.discard("HEAD")  # which would wait for a stream's end
    return route


def _navigation(pages: list[Page]) -> Callable[[Person | None], list[tuple[str, str]]]:
    named = [page for page in pages if page.nav]

    def of(person: Person | None) -> list[tuple[str, str]]:
        """Path and word of what this person may open."""
        return [(page.path, page.nav) for page in named if person is not None and allows(person.role, page.role)]

    return of


async def _nowhere(_request: Request) -> Response:
    raise HTTPException(404)


_NOWHERE = Page("/", ("GET",), _nowhere, "anyone")
"""Stands for a path that there is not."""
