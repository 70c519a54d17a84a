"""schemas/api.openapi.json says what the route table says, and answers look as it says."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from runbook.files.shipped_files import shipped_path
from serve.server_in_process import World, world_of
from serve.used_folder import filled, heard, use

DESCRIPTION: dict[str, Any] = json.loads(shipped_path("schemas", "api.openapi.json").read_text(encoding="utf-8"))
OPERATIONS = {
    (path, method.upper()): operation
    for path, methods in DESCRIPTION["paths"].items()
    for method, operation in methods.items()
}


def on(folder: Path, look: Any) -> Any:
    async def run() -> Any:
        async with world_of(folder) as world:
            return await look(world)

    return asyncio.run(run())


def test_it_describes_every_operation_of_the_table_and_no_other(tmp_path: Path) -> None:
    async def look(world: World) -> None:
        table = {(page.path, m): page for page in world.app.state.pages if page.kind == "api" for m in page.methods}
        assert OPERATIONS.keys() == table.keys()
        for operation, page in table.items():
            told = OPERATIONS[operation]
            assert (told["summary"], told["x-role"]) == (page.says, page.role), operation
            names = {part[1:-1] for part in page.path.split("/") if part.startswith("{")}
            assert {one["name"] for one in told.get("parameters", []) if one["in"] == "path"} == names, operation
            assert {"401", "403"} <= set(told["responses"]), operation

    on(tmp_path, look)


def test_nothing_but_the_api_lies_below_its_path(tmp_path: Path) -> None:
    async def look(world: World) -> None:
        assert [
            page.path for page in world.app.state.pages if page.path.startswith("/api/") and page.kind != "api"
        ] == []

    on(tmp_path, look)


SAID_OTHERWISE = {
    "Preview a change of a group": "Preview a change",
    "Stop a group": "Stop or kill a group",
    "Kill a group": "Stop or kill a group",
    "Stop a run": "Stop or kill a run",
    "Kill a run": "Stop or kill a run",
    "The logs of a run": "The files of a run",
    "People, tokens, agents and the audit": "Who changed what",
    "One's own account": "The person who asks, and the role",
    "Order the nodes of a group": "Change a group",
}
NO_JSON = {
    "Scripts of a group": "an archive, from the page's own path",
    "The script of a node": "a script, likewise",
    "A file of a run": "bytes, likewise",
    "Change the own password": "not with a token",
}


def test_whatever_a_page_shows_or_does_the_api_does_as_well(tmp_path: Path) -> None:
    async def look(world: World) -> None:
        pages = [page for page in world.app.state.pages if page.role not in ("anyone", "agent")]
        told = {page.says for page in pages if page.kind == "api"}
        shown = {page.says for page in pages if page.kind == "page" and page.path != "/metrics"}
        assert shown >= {*SAID_OTHERWISE, *NO_JSON}
        assert sorted({SAID_OTHERWISE.get(says, says) for says in shown} - told - {*NO_JSON}) == []

    on(tmp_path, look)


HOLDS = {
    "/api/v1/nodes/{name}": ("groups", "states", "runs"),
    "/api/v1/links": ("pairs",),
    "/api/v1/compare": ("busbw",),
    "/api/v1/groups/{name}": ("ranks",),
    "/api/v1/runs/{id}/logs": ("files", "search"),
    "/api/v1/runs/{id}/logs/{file}": ("lines", "search"),
}
QUERIES = {
    "/api/v1/compare": "?a=two&b=three",
    "/api/v1/links": "?pair=gn",
    "/api/v1/runs/{id}/logs": "?q=line",
    "/api/v1/runs/{id}/logs/{file}": "?q=line",
}


@pytest.mark.parametrize("path", sorted(path for path, method in OPERATIONS if method == "GET"), ids=str)
def test_an_answer_is_as_described(path: str, tmp_path: Path) -> None:
    use(tmp_path)

    async def look(world: World) -> None:
        heard(world.app.state.fleet)
        await world.ask("GET", "/api/v1/groups/pool", world.as_program("viewer"))  # its first state is noticed
        answer = await world.ask("GET", filled(path) + QUERIES.get(path, ""), world.as_program("admin"))
        assert answer.status == 200
        check(OPERATIONS[path, "GET"]["responses"]["200"], answer.json())
        assert all(answer.json()[name] for name in HOLDS.get(path, ())), "nothing is seen of what it holds"
        refused = await world.ask("GET", path, [("host", "127.0.0.1:8400")])
        assert refused.status == 401
        check(DESCRIPTION["components"]["responses"]["LogIn"], refused.json())

    on(tmp_path, look)


def check(response: dict[str, Any], document: object) -> None:
    schema = response["content"]["application/json"]["schema"]
    validator = Draft202012Validator({**schema, "components": DESCRIPTION["components"]})
    assert [error.message for error in validator.iter_errors(document)] == []


def test_the_api_does_what_it_says(tmp_path: Path) -> None:
    async def look(world: World) -> None:
        async def ask(method: str, path: str, body: object = None) -> tuple[int, Any]:
            data = b"" if body is None else json.dumps(body).encode()
            headers = world.as_program("admin", content_type="application/json")
            answer = await world.ask(method, path, headers, data)
            return answer.status, answer.json() if answer.body else None

        assert await ask("GET", "/api/v1/me") == (200, {"name": "admin", "role": "admin"})
        assert (await ask("POST", "/api/v1/people", {"name": "eve", "role": "viewer"}))[0] == 201
        assert (await ask("POST", "/api/v1/people", {"name": "eve", "role": "viewer"}))[0] == 422
        assert (await ask("POST", "/api/v1/people", {"name": "<b>", "role": "viewer"}))[0] == 422
        assert (await ask("POST", "/api/v1/people", {"name": "mallory", "role": "root"}))[0] == 422
        assert (await ask("POST", "/api/v1/people", ["eve"]))[0] == 400
        names = [one["name"] for one in (await ask("GET", "/api/v1/people"))[1]["people"]]
        assert names == ["admin", "eve", "operator", "viewer"]
        assert await ask("PUT", "/api/v1/people/eve", {"role": "operator"}) == (
            200,
            {"name": "eve", "role": "operator"},
        )
        assert (await ask("PUT", "/api/v1/people/eve", {"role": "root"}))[0] == 422
        link = (await ask("POST", "/api/v1/people/eve/link"))[1]["link"]
        page = [("host", "127.0.0.1:8400"), ("origin", "http://127.0.0.1:8400")]
        assert (await world.ask("POST", link.removeprefix("http://127.0.0.1:8400"), page)).status == 303
        assert (await ask("DELETE", "/api/v1/people/eve"))[0] == 204
        assert (await ask("DELETE", "/api/v1/people/eve"))[0] == 422
        assert (await ask("DELETE", "/api/v1/people/admin"))[0] == 422  # the last one
        status, made = await ask("POST", "/api/v1/tokens", {"role": "viewer", "purpose": "Prometheus"})
        assert status == 201
        headers = [("host", "127.0.0.1:8400"), ("authorization", f"Bearer {made['token']}")]
        assert (await world.ask("GET", "/metrics", headers)).status == 200
        assert (await world.ask("GET", "/api/v1/people", headers)).status == 403  # its person may, but it may not
        assert (await ask("DELETE", f"/api/v1/tokens/{made['id']}"))[0] == 204
        assert (await world.ask("GET", "/metrics", headers)).status == 401
        done = [
            (entry["person"], entry["what"], entry["status"])
            for entry in (await ask("GET", "/api/v1/audit"))[1]["audit"]
        ]
        assert done[:2] == [("admin", "Revoke a token", 204), ("admin", "Make a token: viewer, Prometheus", 201)]
        assert ("admin", "Remove a person", 422) in done
        assert ("admin", "Add a person: eve, viewer", 201) in done

    on(tmp_path, look)
