"""Nobody is shown a button that answers 403, and everything that a page does has a button on one."""

from __future__ import annotations

import asyncio
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Match

from runbook.serve.guards import Guarded
from runbook.serve.page import ROLES, Page, Role, role_allows
from serve.server_in_process import World, world_of
from serve.used_folder import filled, heard, use

BY_LINK = {"/login", "/login/{secret}"}
"""For people who are not logged in."""


class Forms(HTMLParser):
    """Where the forms of a page that change something are sent to."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self._changes = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        if tag == "form":
            self._changes = told.get("method") == "post"
            if self._changes:
                self.targets.add(told.get("action") or "")
        if target := told.get("formaction"):
            self.targets.add(target)


def asked_for(world: World, target: str) -> Page:
    """The page that this form is for."""
    scope: Any = {"type": "http", "method": "POST", "path": target.partition("?")[0], "root_path": ""}
    (found,) = [route for route in world.app.routes if route.matches(scope)[0] is Match.FULL]
    guarded = getattr(found, "app", None)
    assert isinstance(guarded, Guarded)
    return guarded.page


async def forms_of(world: World, role: Role) -> set[Page]:
    """What the forms are for that somebody of this role finds, with a group that runs and with one that does not."""
    found = set()
    for page in world.app.state.pages:
        if page.kind != "page" or "GET" not in page.methods or not role_allows(role, page.role) or page.path in BY_LINK:
            continue
        for path in {filled(page.path), filled(page.path, name="idle") if "/groups/" in page.path else page.path}:
            answer = await world.ask("GET", path, world.as_page(role))
            if (answer.header("content-type") or "").startswith("text/html") and answer.status == 200:
                found |= {asked_for(world, target) for target in Forms(answer.body.decode()).targets}
    return found


@pytest.mark.parametrize("role", ROLES)
def test_whoever_sees_a_button_may_press_it(role: Role, tmp_path: Path) -> None:
    use(tmp_path)

    async def look() -> None:
        async with world_of(tmp_path) as world:
            heard(world.app.state.fleet)
            groups = world.app.state.workspace.groups
            before = groups.read("pool")
            groups.save("pool", before.text + "# later\n", before.hash, "ann", "a remark")
            seen = await forms_of(world, role)
            assert [page.path for page in seen if not role_allows(role, page.role)] == []
            changing = {page for page in world.app.state.pages if page.kind == "page" and "POST" in page.methods}
            offered = {page for page in changing if role_allows(role, page.role) and page.path not in BY_LINK}
            assert sorted({page.path for page in offered} - {page.path for page in seen}) == []

    asyncio.run(look())
