"""Run folders that somebody or something has changed, and requests that no page of ours makes: every page answers with what can be
told, and markup stays text."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from profiles import one_in
from serve.server_in_process import ORIGIN, World, world_of
from serve.used_folder import filled, use

from runbook.serve.guards import TokenBucket
from runbook.serve.page import READ_METHODS

from .test_hostile_node import MISSING, STRINGS, altered, changes, places

FILES = ("result.json", "events.jsonl", "started.json", "follower.json", "ending.json")
RUNS = ("one", "two", "goes-on")
MARK = "<script>owned</script><img src=x onerror=owned>"
PAGES = (
    "/runs", "/runs/{id}", "/runs/{id}/logs", "/api/v1/runs", "/api/v1/runs/{id}", "/api/v1/runs/{id}/logs", "/compare?a={id}&b=three",
    "/compare?a=three&b={id}", "/api/v1/compare?a={id}&b=three", "/links", "/links?from=node-a&to=node-b", "/api/v1/links", "/",
    "/groups/pool", "/api/v1/groups/pool", "/nodes/gn6", "/api/v1/nodes/gn6", "/api/v1/fleet", "/api/v1/groups", "/groups",
)  # fmt: skip


def _at(value: Any, at: tuple[Any, ...]) -> Any:
    for step in at:
        value = json.loads(value) if step == "the JSON in this text" else value[step]
    return value


def changed(document: Any, chance: random.Random) -> Any:
    at = chance.choice(list(places(document)))
    kinds = [("markup", lambda _: MARK), *changes(_at(document, at))]
    made = altered(document, at, chance.choice(kinds)[1])
    return {} if made is MISSING else made


def spoil(path: Path, chance: random.Random) -> str:
    """Change this file in one place; what it is then."""
    lines = (
        path.read_text().splitlines()
        if path.name == "events.jsonl"
        else [path.read_text()]
        if path.exists()
        else ["{}"]
    )
    number = chance.randrange(len(lines))
    try:
        made = changed(json.loads(lines[number]), chance)
        lines[number] = json.dumps(made)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        lines[number] = chance.choice(STRINGS)
    text = "\n".join(lines) + "\n"
    path.unlink(missing_ok=True)
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    return text


def spoilt(folder: Path, seed: str, count: int) -> None:
    async def run() -> None:
        chance = random.Random(seed)
        use(folder)
        async with world_of(folder) as world:
            for number in range(count):
                id, name = chance.choice(RUNS), chance.choice(FILES)
                path = folder / "runs" / id / name
                before = path.read_bytes() if path.exists() else None
                text = spoil(path, chance)
                world.app.state.workspace.runs.forget()
                for page in chance.sample(PAGES, 8):
                    answer = await world.ask("GET", page.replace("{id}", id), world.as_page("admin"))
                    assert answer.status in (200, 303, 404, 409, 422), (
                        page,
                        answer.status,
                        number,
                        id,
                        name,
                        text[:3000],
                    )
                    kind = answer.header("content-type") or ""
                    assert "html" not in kind or b"<script>owned" not in answer.body, (page, text[:3000])
                    assert "html" not in kind or b"<img src=x" not in answer.body, (page, text[:3000])
                path.unlink()
                if before is not None:
                    path.write_bytes(before)

    asyncio.run(run())


@pytest.mark.parametrize("seed", one_in(10, range(30)))
def test_a_spoilt_run_is_shown_as_far_as_it_goes(seed: int, tmp_path: Path) -> None:
    spoilt(tmp_path, f"spoilt {seed}", 12)


# Requests.

WORDS = (
    *STRINGS, "²", "٣", "-1", "1e5", "0", "18446744073709551616", "true", "null", "[]", "{}", "*", "%", "?", "..", "/", ";", "'", '"', "gn6",
    "pool", "goes-on", "one", "2026-11-23", "0001-01-01", "9999-12-31", "admin", "viewer", "all:!gn6", "gn[1-999999999]", "{{ 9**9**9 }}",
)  # fmt: skip
QUERIES = (
    "page q from to pair a b at before after around rank file in case skip host cause playbook person group verdict since until topic next id "
    "name sort show hash version"
).split()
FIELDS = (
    "name new text hash node nodes role password person purpose csrf shift target chosen group world_size gpus now undo on again moved what "
    "only_launch by from to fields seen version draining secret order spares detach command"
).split()
VALUES: tuple[Any, ...] = (
    *WORDS,
    0,
    -1,
    10**30,
    1e308,
    None,
    True,
    [],
    {},
    [[]],
    [{}],
    ["gn6"],
    [["pool", "gn6"]],
    {"text": "nodes: ["},
)


def _typed(text: str) -> str:
    from urllib.parse import quote

    return quote(text.encode("utf-8", "replace"), safe="")


async def _asked_oddly(world: World, chance: random.Random) -> None:
    pages = [page for page in world.app.state.pages if page.kind in ("page", "api") and page.role != "agent"]
    page = chance.choice(pages)
    method = chance.choice(page.methods)
    path = filled(page.path) if chance.random() < 0.6 else "/".join(
        chance.choice(WORDS).replace("/", "").replace("?", "").encode("utf-8", "replace").decode() or "x" if part.startswith("{") else part for part in page.path.split("/")
    )  # fmt: skip
    query = "&".join(
        f"{name}={_typed(str(chance.choice(WORDS)))}" for name in chance.sample(QUERIES, chance.randrange(4))
    )
    headers, body = world.as_page("admin"), b""
    if method not in READ_METHODS:
        if page.kind == "api":
            document = {name: chance.choice(VALUES) for name in chance.sample(FIELDS, chance.randrange(6))}
            body = json.dumps(chance.choice([document, document, document, *VALUES])).encode()
            headers.append(("content-type", "application/json"))
        else:
            fields = chance.choices(FIELDS, k=chance.randrange(8))
            body = "&".join(f"{name}={_typed(str(chance.choice(WORDS)))}" for name in fields).encode()
            headers.append(("content-type", "application/x-www-form-urlencoded"))
        if chance.random() < 0.3:
            headers.append(("if-match", str(chance.choice(WORDS)).encode("utf-8", "replace")))
    answer = await world.ask(method, f"{path}?{query}" if query else path, headers, body)
    assert answer.status < 500, (method, path, query, body[:2000], answer.status, answer.body[:500])


def asked_oddly(folder: Path, seed: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        chance = random.Random(seed)
        use(folder)
        async with world_of(folder) as world:
            world.app.state.changes = world.app.state.guesses = TokenBucket(1_000_000, 0.0)
            for _ in range(count):
                if world.app.state.people.by_session(world.sessions["admin"], ORIGIN) is None:
                    people = world.app.state.people  # that was changed by a request that was in order
                    world.sessions["admin"] = people.begin_session(
                        next(p for p in people.all() if p.role == "admin"), ORIGIN
                    )
                await _asked_oddly(world, chance)

    from runbook.serve.run_processes import Processes

    monkeypatch.setattr(Processes, "_child", lambda *_: pytest.fail("a process was started"))
    monkeypatch.setattr(Processes, "start", lambda *_: "started")
    monkeypatch.setattr(Processes, "end", lambda *_, **__: "ended")
    monkeypatch.setattr(Processes, "_watch", lambda *_: None)
    asyncio.run(run())


@pytest.mark.parametrize("seed", one_in(10, range(30)))
def test_an_odd_request_is_refused_in_order(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_oddly(tmp_path, f"odd {seed}", 40, monkeypatch)
