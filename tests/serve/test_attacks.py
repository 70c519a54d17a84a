"""What an attacker tries, tried on every row of the route table: a new page cannot be forgotten here.

Every attack carries the session and the token of an admin where a browser would send them, and each has a counterpart that
is let through, so that nothing here passes because of something else.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.websockets import WebSocket

from runbook.serve import guards
from runbook.serve.guards import SECURITY_HEADERS, Guarded, TokenBucket
from runbook.serve.page import READ_METHODS, ROLES, Page, role_allows
from runbook.serve.people import Person, csrf_token
from serve.server_in_process import HOST, ORIGIN, Answer, Headers, World, filled, world_of

FOREIGN_HOSTS = [
    "evil.test:8400",
    "127.0.0.1",
    "127.0.0.1:8401",
    "127.0.0.1:8400.evil.test",
    "127.0.0.1:8400@evil.test",
    "127.0.0.1:8400/",
    "127.0.0.1:8400 ",
    "127.0.0.1:8400,evil.test",
    "localhost:8400.",
    "0.0.0.0:8400",
    "[::1]:8400",
    "",
    "\x00",
    b"\xff127.0.0.1:8400",
]
FOREIGN_ORIGINS = [
    "null",
    "",
    "http://evil.test",
    "http://127.0.0.1:8401",
    "http://127.0.0.1",
    "https://127.0.0.1:8400",
    "http://localhost:8400",
    "http://127.0.0.1:8400.evil.test",
    "http://127.0.0.1:8400/",
    "HTTP://127.0.0.1:8400",
]


@dataclasses.dataclass
class Attacked:
    """A world whose handlers only note that they were reached."""

    world: World
    reached: list[str]
    pages: list[Page]

    async def let_through(self, page: Page, method: str, headers: Headers, **more: Any) -> Answer | None:
        """The answer where the handler was reached; None, and a sound refusal, where it was not."""
        del self.reached[:]
        kind = "websocket" if page.kind == "socket" else "http"
        answer = await self.world.ask(method, more.pop("path", filled(page)), headers, kind=kind, **more)
        for name, value in SECURITY_HEADERS.items():
            assert answer.header(name) == value or answer.status in (101, 403), (page.path, name)
        if self.reached:
            return answer
        assert answer.status in (303, 400, 401, 403, 405, 408, 413, 415, 421), (page.path, method, answer.status)
        return None

    def cases(self) -> Iterator[tuple[Page, str]]:
        for page in self.pages:
            if page.kind == "socket":
                yield page, "GET"
            for method in page.methods:
                yield page, method
                if method == "GET" and page.kind != "events":
                    yield page, "HEAD"

    def changes(self) -> Iterator[tuple[Page, str]]:
        """What a page of ours may change."""
        for page, method in self.cases():
            if page.role != "agent" and method not in READ_METHODS:
                yield page, method

    def proper(self, page: Page) -> list[tuple[str, str | bytes]]:
        """The headers of a request that is let through."""
        if page.role == "agent":
            return [("host", HOST)]
        return self.world.as_page("admin")


def attack(folder: Path, tried: Callable[[Attacked], Awaitable[None]]) -> None:
    async def run() -> None:
        async with world_of(folder) as world:
            reached: list[str] = []

            async def handler(request: Any) -> Any:
                reached.append(request.url.path)
                if isinstance(request, WebSocket):
                    await request.accept()
                    return None
                return PlainTextResponse("reached")

            for route in world.app.routes:
                guarded = getattr(route, "app", None)
                assert isinstance(guarded, Guarded), f"{route} is not behind the guards"
                guarded.page = dataclasses.replace(guarded.page, handler=handler)
            world.app.state.changes = TokenBucket(1_000_000, 0.0)
            await tried(Attacked(world, reached, world.app.state.pages))

    asyncio.run(run())


def without(headers: Headers, *names: str) -> list[tuple[str, str | bytes]]:
    return [(name, value) for name, value in headers if name not in names]


def test_whoever_changes_things_too_fast_waits_and_nobody_else(tmp_path: Path) -> None:
    async def tried(attacked: Attacked) -> None:
        for page, method in attacked.cases():
            if method in READ_METHODS:
                continue
            attacked.world.app.state.changes = TokenBucket(1, 60.0)
            headers = attacked.proper(page)
            forged = [(name, "http://evil.test" if name == "origin" else value) for name, value in headers]
            for _ in range(3 if page.role != "agent" else 0):
                assert not await attacked.let_through(page, method, forged)
            assert await attacked.let_through(page, method, headers), (page, method)
            answer = await attacked.world.ask(method, filled(page), headers)
            assert answer.status == 429, (page, method)
            assert 0 < int(answer.header("retry-after") or 0) <= 60
            if page.role not in ("agent", "admin"):
                assert await attacked.let_through(page, method, attacked.world.as_page("operator"))

    attack(tmp_path, tried)


def test_every_page_is_reached_by_whom_it_is_for(tmp_path: Path) -> None:
    async def tried(attacked: Attacked) -> None:
        for page, method in attacked.cases():
            headers = attacked.proper(page)
            assert await attacked.let_through(page, method, headers), (page, method)
            if page.role != "agent":
                headers = attacked.world.as_program("admin")
                assert await attacked.let_through(page, method, headers), (page, method)

    attack(tmp_path, tried)


@pytest.mark.parametrize("host", FOREIGN_HOSTS, ids=ascii)
def test_no_page_answers_to_a_host_that_is_not_ours(host: str | bytes, tmp_path: Path) -> None:
    async def tried(attacked: Attacked) -> None:
        for page, method in attacked.cases():
            headers = [("host", host), *without(attacked.proper(page), "host")]
            assert await attacked.let_through(page, method, headers) is None, (page, method)

    attack(tmp_path, tried)


@pytest.mark.parametrize("hosts", [(), (HOST, HOST), (HOST, "evil.test"), ("evil.test", HOST)], ids=str)
def test_no_page_answers_without_exactly_one_host(hosts: tuple[str, ...], tmp_path: Path) -> None:
    async def tried(attacked: Attacked) -> None:
        for page, method in attacked.cases():
            headers = [*(("host", host) for host in hosts), *without(attacked.proper(page), "host")]
            assert await attacked.let_through(page, method, headers) is None

    attack(tmp_path, tried)


@pytest.mark.parametrize("origins", [(), (ORIGIN, ORIGIN), *((origin,) for origin in FOREIGN_ORIGINS)], ids=str)
def test_nothing_is_changed_from_another_origin(origins: tuple[str, ...], tmp_path: Path) -> None:
    async def tried(attacked: Attacked) -> None:
        for page, method in attacked.changes():
            for proof in (attacked.world.as_page("admin"), attacked.world.as_program("admin")):
                if not origins and proof[1][0] == "authorization":
                    continue  # a program that has a token, and is no browser
                headers = [*without(proof, "origin"), *(("origin", origin) for origin in origins)]
                assert await attacked.let_through(page, method, headers) is None

    attack(tmp_path, tried)


@pytest.mark.parametrize("token", [None, "", "x", "0" * 64], ids=str)
def test_nothing_is_changed_without_the_token_of_the_session(token: str | None, tmp_path: Path) -> None:
    async def tried(attacked: Attacked) -> None:
        other = csrf_token(attacked.world.sessions["viewer"])
        for page, method in attacked.changes():
            for wrong in (token, other):
                headers = without(attacked.world.as_page("admin"), "x-csrf-token")
                headers += [("x-csrf-token", wrong)] if wrong is not None else []
                assert await attacked.let_through(page, method, headers) is None, (page, method)

    attack(tmp_path, tried)


def test_the_token_may_also_be_in_the_form(tmp_path: Path) -> None:
    async def tried(attacked: Attacked) -> None:
        kind = ("content-type", "application/x-www-form-urlencoded")
        headers = [*without(attacked.world.as_page("admin"), "x-csrf-token"), kind]
        right = f"a=1&csrf={csrf_token(attacked.world.sessions['admin'])}".encode()
        for page, method in attacked.changes():
            if page.kind == "page":
                assert await attacked.let_through(page, method, headers, body=right)
                assert await attacked.let_through(page, method, headers, body=b"csrf=x") is None

    attack(tmp_path, tried)


@pytest.mark.parametrize(
    "kind", ["text/plain", "multipart/form-data; boundary=x", "application/xml", "", "application/json, text/plain"]
)
def test_only_the_one_type_of_content_is_read(kind: str, tmp_path: Path) -> None:
    """Forms and text/plain are what a foreign page can send without being asked whether it may."""

    async def tried(attacked: Attacked) -> None:
        for page, method in attacked.cases():
            if method in READ_METHODS:
                continue
            json, form = "application/json", "application/x-www-form-urlencoded"
            right, swapped = (json, form) if page.kind == "api" or page.role == "agent" else (form, json)
            for wrong in (kind, swapped):
                headers = [*attacked.proper(page), ("content-type", wrong)]
                assert await attacked.let_through(page, method, headers, body=b'{"a": 1}') is None
            assert await attacked.let_through(
                page, method, [*attacked.proper(page), ("content-type", right)], body=b"{}"
            )

    attack(tmp_path, tried)


@pytest.mark.parametrize("site", ["same-site", "cross-site", "odd"])
@pytest.mark.parametrize(("mode", "dest"), [("cors", "empty"), ("no-cors", "script"), ("navigate", "iframe")])
def test_a_browser_that_tells_of_another_page_gets_nothing(site: str, mode: str, dest: str, tmp_path: Path) -> None:
    """Another port of this host is `same-site`, and cookies are sent along: shared head nodes are that case."""

    async def tried(attacked: Attacked) -> None:
        told = [("sec-fetch-site", site), ("sec-fetch-mode", mode), ("sec-fetch-dest", dest)]
        for page, method in attacked.cases():
            headers = [*attacked.proper(page), *told]
            assert await attacked.let_through(page, method, headers) is None

    attack(tmp_path, tried)


def test_a_link_from_elsewhere_opens_a_page_and_nothing_else(tmp_path: Path) -> None:
    async def tried(attacked: Attacked) -> None:
        told = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")]
        for page, method in attacked.cases():
            through = await attacked.let_through(page, method, [*attacked.proper(page), *told])
            assert bool(through) == (page.kind == "page" and method == "GET" and page.role != "agent"), (page, method)

    attack(tmp_path, tried)


def test_nobody_does_what_the_role_does_not_allow(tmp_path: Path) -> None:
    async def tried(attacked: Attacked) -> None:
        for page, method in attacked.cases():
            if page.role == "agent":
                continue
            stranger: Headers = [("host", HOST), ("origin", ORIGIN)]
            assert bool(await attacked.let_through(page, method, stranger)) == (page.role == "anyone")
            for role in ROLES:
                for headers in (attacked.world.as_page(role), attacked.world.as_program(role)):
                    through = await attacked.let_through(page, method, headers)
                    assert bool(through) == role_allows(role, page.role), (page, method, role)

    attack(tmp_path, tried)


def test_a_session_holds_for_no_other_origin_and_a_token_must_be_whole(tmp_path: Path) -> None:
    async def tried(attacked: Attacked) -> None:
        people = attacked.world.app.state.people
        elsewhere = people.begin_session(Person("admin", "admin"), "http://127.0.0.1:9000")
        right = attacked.world.sessions["admin"]
        cookies = [f"runbook-8400={elsewhere}", f"runbook-8400={right}x", f"runbook-8401={right}"]
        cookies += [f"runbook-8400={right}; runbook-8400={elsewhere}", f"__Host-runbook-8400={right}"]
        token = attacked.world.tokens["admin"]
        proofs = [("cookie", cookie) for cookie in cookies]
        words = [token, f"Basic {token}", "Bearer", f"Bearer {token}x", f"Bearer {token[4:]}", f"Bearer {right}"]
        proofs += [("authorization", word) for word in words]
        for page, method in attacked.cases():
            if page.role in ("anyone", "agent"):
                continue
            for proof in proofs:
                csrf = ("x-csrf-token", csrf_token(elsewhere))
                headers: Headers = [("host", HOST), ("origin", ORIGIN), csrf, proof]
                assert await attacked.let_through(page, method, headers) is None, (page, method, proof)

    attack(tmp_path, tried)


def test_guesses_are_counted(tmp_path: Path) -> None:
    async def tried() -> None:
        async with world_of(tmp_path) as world:
            world.app.state.people.add("eve", "viewer", "correct horse")
            world.app.state.guesses = TokenBucket(3, 3600.0)
            form = ("content-type", "application/x-www-form-urlencoded")

            async def guess(password: str) -> int:
                body = f"name=eve&password={password}".encode()
                return (await world.ask("POST", "/login", [("host", HOST), ("origin", ORIGIN), form], body)).status

            assert await guess("correct+horse") == 303
            assert [await guess("wrong") for _ in range(3)] == [403, 403, 429]
            assert await guess("correct+horse") == 429  # also the right one: else a guesser is told

    asyncio.run(tried())


def test_whoever_logs_in_anew_leaves_no_session_behind(tmp_path: Path) -> None:
    async def tried() -> None:
        async with world_of(tmp_path) as world:
            people = world.app.state.people
            path = f"/login/{people.link('viewer')}"
            assert (await world.ask("POST", path, world.as_page("admin"))).status == 303
            assert people.by_session(world.sessions["admin"], ORIGIN) is None
            assert people.by_session(world.sessions["viewer"], ORIGIN) is not None  # of another browser

    asyncio.run(tried())


def test_a_token_does_not_change_its_persons_password(tmp_path: Path) -> None:
    """Else one that allows to look would let its holder log in with all that the person may."""

    async def tried() -> None:
        async with world_of(tmp_path) as world:
            people = world.app.state.people
            _, little = people.make_token("admin", "viewer", "to look")
            form = ("content-type", "application/x-www-form-urlencoded")
            for secret in (little, world.tokens["admin"]):
                headers = [("host", HOST), ("authorization", f"Bearer {secret}"), form]
                assert (await world.ask("GET", "/api/v1/me", headers[:2])).status == 200
                assert (await world.ask("POST", "/account/password", headers, b"password=0123456789")).status == 403
            assert people.by_password("admin", "0123456789") is None
            mine = [*world.as_page("admin"), form]
            assert (await world.ask("POST", "/account/password", mine, b"password=0123456789")).status == 303
            assert people.by_password("admin", "0123456789") is not None

    asyncio.run(tried())


def test_a_browser_does_not_speak_as_an_agent_and_an_agents_secret_opens_no_page(tmp_path: Path) -> None:
    async def tried(attacked: Attacked) -> None:
        for page, method in attacked.cases():
            if page.role == "agent":
                for origin in (ORIGIN, "null", "http://evil.test"):
                    headers = [("host", HOST), ("origin", origin)]
                    assert await attacked.let_through(page, method, headers) is None, (page, method)

    attack(tmp_path, tried)


def test_a_method_that_is_not_in_the_table_reaches_nothing(tmp_path: Path) -> None:
    async def tried(attacked: Attacked) -> None:
        known: dict[str, set[str]] = {}
        for page, method in attacked.cases():
            known.setdefault(page.path, set()).add(method)
        for page in attacked.pages:
            methods = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "X"}
            for method in methods - known[page.path] if page.kind != "socket" else ():
                assert await attacked.let_through(page, method, attacked.world.as_page("admin")) is None

    attack(tmp_path, tried)


def test_no_body_is_longer_than_its_page_takes(tmp_path: Path) -> None:
    async def tried(attacked: Attacked) -> None:
        for page, method in attacked.cases():
            if page.kind == "socket":
                continue
            kind = (
                "application/json"
                if page.kind == "api" or page.role == "agent"
                else "application/x-www-form-urlencoded"
            )
            headers = [*attacked.proper(page), ("content-type", kind)]
            for length in (str(page.most_bytes + 1), "9" * 30, "-1", "1e3", ""):
                assert await attacked.let_through(page, method, [*headers, ("content-length", length)]) is None
            pieces = [b"a" * 65536] * (page.most_bytes // 65536 + 1)
            assert await attacked.let_through(page, method, headers, body=pieces) is None

    attack(tmp_path, tried)


def test_nothing_is_kept_of_what_somebody_sends_who_may_not(tmp_path: Path) -> None:
    """Else whoever reaches the port could fill the memory, a connection at a time."""

    async def tried(attacked: Attacked) -> None:
        kept = list[int]()
        whole = guards.read_bounded_body

        async def counted(*arguments: Any, **more: Any) -> bytes:
            kept.append(len(body := await whole(*arguments, **more)))
            return body

        guards.read_bounded_body = counted
        try:
            for page, method in attacked.cases():
                if page.kind == "socket" or page.role in ("anyone", "agent"):
                    continue
                below = [role for role in ROLES if not role_allows(role, page.role)]
                stranger: Headers = [("host", HOST)]
                proofs = [stranger, *map(attacked.world.as_page, below), *map(attacked.world.as_program, below)]
                for proof in proofs:
                    assert await attacked.let_through(page, method, proof, body=[b"a" * 1000] * 100) is None
                    assert kept.pop() == 0, (page, method)
                kind = "application/json" if page.kind == "api" else "application/x-www-form-urlencoded"
                headers = [*attacked.proper(page), ("content-type", kind)]
                assert await attacked.let_through(page, method, headers, body=b"{}")
                assert kept.pop() == (0 if method in READ_METHODS else 2)
        finally:
            guards.read_bounded_body = whole

    attack(tmp_path, tried)


def test_a_network_of_version_6_has_the_attempts_of_one_address() -> None:
    def counted(address: str) -> str:
        return guards.rate_limit_key({"client": (address, 50000)})

    assert counted("2001:db8::1") == counted("2001:db8::ffff:1") == "2001:db8::/64"
    assert counted("2001:db8:0:1::1") != counted("2001:db8::1")
    for address in ("10.0.0.1", "::ffff:10.0.0.1", "a socket"):
        assert counted(address) == address


@pytest.mark.parametrize(
    "path", ["/nowhere", "//evil.test/", "/static/../store.py", "/static/%2e%2e/x", "/api/v1/", "/" + "a" * 5000]
)
def test_what_is_not_in_the_table_is_not_there_and_says_so_under_the_same_headers(path: str, tmp_path: Path) -> None:
    async def tried(attacked: Attacked) -> None:
        answer = await attacked.world.ask("GET", path, attacked.world.as_page("admin"))
        assert answer.status == 404
        assert all(answer.header(name) == value for name, value in SECURITY_HEADERS.items())
        assert (await attacked.world.ask("GET", path, [("host", "evil.test")])).status == 421
        assert not attacked.reached

    attack(tmp_path, tried)
