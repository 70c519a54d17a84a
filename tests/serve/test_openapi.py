"""schemas/api.openapi.json says what the route table says, and answers look as it says."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from runbook.files.shipped_files import shipped
from serve.server_in_process import World, world_of

DESCRIPTION: dict[str, Any] = json.loads(shipped("schemas", "api.openapi.json").read_text(encoding="utf-8"))
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


@pytest.mark.parametrize(
    "path", sorted(path for path, method in OPERATIONS if method == "GET" and "{" not in path), ids=str
)
def test_an_answer_is_as_described(path: str, tmp_path: Path) -> None:
    async def look(world: World) -> None:
        answer = await world.ask("GET", path, world.as_program("admin"))
        assert answer.status == 200
        check(OPERATIONS[path, "GET"]["responses"]["200"], answer.json())
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
        assert done[:2] == [("admin", "Revoke a token", 204), ("admin", "Make a token", 201)]
        assert ("admin", "Remove a person", 422) in done

    on(tmp_path, look)
