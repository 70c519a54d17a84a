"""What a real browser makes of it: a rebound name, another port, a frame, a socket get nothing; a person gets everything."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from agents.scripted_agents import server as agents_and_server
from browser.browser import Browser, Shown, chromium
from lab.needs import browser_missing
from ports import free_port

from runbook.model.events import Event, OutcomeReached, Progress, RunStarted, StageStarted
from runbook.model.verdict import Finding, Outcome
from runbook.report.run_json import event_to_json
from runbook.serve.page import Role, role_allows
from runbook.serve.pages import all_pages
from runbook.serve.people import People, csrf_token
from runbook.serve.run_logs import log_file_id
from runbook.serve.run_processes import process_start_mark
from runbook.serve.store import Store
from serve.running import Running, running
from serve.server_in_process import filled
from serve.used_folder import filled as filled_in
from serve.used_folder import heard, use

if TYPE_CHECKING:
    from playwright.sync_api import Route

pytestmark = [
    pytest.mark.skipif(bool(browser_missing()), reason="; ".join(browser_missing()) or "no browser"),
    pytest.mark.xdist_group("browser"),
]
ATTACK = """
async ([url, sockets]) => {
  const tried = {};
  const attempt = async (name, deed) => {
    try { tried[name] = String(await deed()); } catch (error) { tried[name] = "refused: " + error.name; }
  };
  const body = (response) => response.text().then((text) => response.status + " " + text);
  await attempt("read", () => fetch(url + "/admin", {credentials: "include"}).then(body));
  await attempt("blind", () => fetch(url + "/logout", {method: "POST", mode: "no-cors", credentials: "include"}).then((r) => r.type));
  await attempt("json", () => fetch(url + "/api/v1/people", {method: "POST", mode: "no-cors", credentials: "include",
    headers: {"content-type": "text/plain"}, body: JSON.stringify({name: "mallory", role: "admin"})}).then((r) => r.type));
  await attempt("stream", () => new Promise((done, failed) => {
    const stream = new EventSource(url + "/events", {withCredentials: true});
    stream.onopen = () => done("opened"); stream.onerror = () => { stream.close(); failed(new Error("closed")); };
  }));
  await attempt("script", () => new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = url + "/api/v1/me"; script.onload = () => done("loaded"); script.onerror = () => failed(new Error("no"));
    document.head.append(script);
  }));
  for (const path of sockets) await attempt("socket " + path, () => new Promise((done, failed) => {
    const socket = new WebSocket(url.replace(/^http/, "ws") + path);
    socket.onopen = () => done("opened " + path); socket.onerror = () => failed(new Error("no"));
  }));
  await attempt("frame", () => new Promise((done) => {
    const frame = document.createElement("iframe");
    frame.src = url + "/admin"; frame.onload = () => done(frame.contentDocument ? "readable" : "opaque, " + frame.contentWindow.length);
    document.body.append(frame);
  }));
  return tried;
}
"""


REBOUND = """
async () => ({
  read: await fetch("/admin").then((response) => response.status, () => 0),
  stream: await new Promise((done) => {
    const stream = new EventSource("/events");
    stream.onopen = () => done("opened"); stream.onerror = () => { stream.close(); done("refused"); };
  }),
})
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One that finds every name below `.test` on this machine."""
    with chromium("--host-resolver-rules=MAP *.test 127.0.0.1") as started:
        yield started


@contextmanager
def logged_in(browser: Browser, server: Running, **look: Any) -> Iterator[Shown]:
    with Shown(browser, server.login, **look) as shown:
        shown.page.set_default_timeout(60_000)
        shown.page.get_by_role("button", name="Log in").click()
        shown.page.wait_for_url(lambda url: "/login" not in url)
        del shown.said[:], shown.asked[:]
        yield shown


@contextmanager
def foreign_site() -> Iterator[int]:
    """Somebody else's web server on this machine: its port."""

    class Plain(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>x</title>")

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Plain) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_other_pages_of_this_machine_get_nothing(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path) as server, foreign_site() as port, logged_in(browser, server) as shown:
        tab = shown.page
        sockets = [filled(page) for page in all_pages() if page.kind == "socket"]

        def is_admin() -> bool:
            tab.goto(server.url + "/admin")
            return tab.get_by_role("heading", name="People").is_visible()

        assert is_admin()
        for foreign in (f"http://127.0.0.1:{port}", f"http://evil.test:{port}"):
            tab.goto(foreign)
            tried = tab.evaluate(ATTACK, [server.url, sockets])
            assert tried["read"].startswith("refused"), tried
            assert tried["stream"].startswith("refused"), tried
            assert tried["script"].startswith("refused"), tried
            assert all(tried[f"socket {path}"].startswith("refused") for path in sockets), tried
            assert tried["frame"] == "opaque, 0", tried
        tab.goto(f"http://evil.test:{server.port}/admin")  # the name is rebound to this server
        assert "does not answer to that name" in tab.content()
        tried = tab.evaluate(REBOUND)
        assert tried["read"] == 421, tried
        assert tried["stream"] == "refused", tried
        assert is_admin()  # still logged in, with nobody added
        assert "mallory" not in tab.content()


@pytest.mark.thorough
def test_an_admin_does_everything_by_mouse_and_no_name_is_markup(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path) as server, logged_in(browser, server) as shown:
        tab = shown.page
        tab.goto(server.url + "/admin")
        people = tab.locator("section", has=tab.get_by_role("heading", name="People"))
        people.get_by_label("Name", exact=True).fill("eve")
        people.get_by_role("button", name="Add a person").click()
        link = tab.locator(".made code").inner_text()
        assert link.startswith(server.url + "/login/")
        tokens = tab.locator("section", has=tab.get_by_role("heading", name="Tokens"))
        tokens.get_by_label("What for").fill("<img src=x onerror=document.title='owned'>")
        tokens.get_by_role("button", name="Make a token").click()
        token = tab.locator(".made code").inner_text()
        assert server.ask("GET", "/api/v1/me", {"Authorization": f"Bearer {token}"})[0] == 200
        assert tab.title() == "Admin · runbook"
        assert tab.locator("main img").count() == 0
        tab.get_by_role("button", name="Remove eve").click()
        tab.wait_for_url(server.url + "/admin")
        assert "eve" not in people.inner_text()
        tab.get_by_role("button", name="Log out").click()
        tab.get_by_role("heading", name="Log in").wait_for()
        tab.goto(server.url + "/admin")
        assert tab.url == server.url + "/login?next=%2Fadmin"
        assert shown.said == []
        assert [address for address in shown.asked if not address.startswith(server.url + "/")] == []


def add(server: Running, cookie: str, name: str) -> None:
    """Add a person, as another admin's browser does."""
    headers = {"Cookie": cookie, "Origin": server.url, "X-CSRF-Token": csrf_token(cookie.partition("=")[2])}
    headers["Content-Type"] = "application/json"
    status, said = server.ask("POST", "/api/v1/people", headers, f'{{"name": "{name}", "role": "viewer"}}')
    assert status == 201, said


@pytest.mark.thorough
def test_a_tab_shows_what_changes_while_it_loads_and_while_all_the_time_something_does(
    browser: Browser, tmp_path: Path
) -> None:
    with running(tmp_path) as server, logged_in(browser, server) as shown:
        tab = shown.page
        cookie = "; ".join(f"{one['name']}={one['value']}" for one in tab.context.cookies(server.url))
        late = iter(["ann", "bob"])  # each is added when a page is made and not there yet

        def held(route: Route) -> None:
            answer = route.fetch()
            if name := next(late, ""):
                add(server, cookie, name)
                time.sleep(1)
            route.fulfill(response=answer)

        tab.route("**/admin", held)
        tab.goto(server.url + "/admin")
        for name in ("ann", "bob"):
            tab.get_by_role("rowheader", name=name, exact=True).wait_for(timeout=60_000)
        first = tab.get_by_role("rowheader", name="p0", exact=True)
        for number in range(100):
            add(server, cookie, f"p{number}")
            time.sleep(0.1)
            if first.is_visible():
                break
        else:
            raise AssertionError("it is shown only when nothing changes any more")
        tab.unroute_all(behavior="ignoreErrors")  # one of them may be held still


def under_way(data: Path) -> Path:
    """A run that this process stands for, so that it goes on: the file of its events."""
    run = data / "runs" / "one"
    (run / "logs").mkdir(parents=True)
    about = {"pid": os.getpid(), "began": process_start_mark(os.getpid()), "group": "pool", "person": "ann"}
    (run / "started.json").write_text(json.dumps(about))
    found = Finding("firewall-drop", "n1 drops TCP 29500", "let it in")
    told: list[Event] = [
        RunStarted(1.0, "job-1", "0.1.0", "pool.yml", "pool.yml", ("n1", "n2"), ("firewall", "train"), str(run)),
        StageStarted(1.0, "firewall", "firewall", ("n1", "n2")),
        OutcomeReached(2.0, "firewall", Outcome.failed("n1", found)),
    ]
    (run / "events.jsonl").write_text("".join(f"{event_to_json(event)}\n" for event in told))
    (run / "console.txt").write_text("".join(f"line {number}\n" for number in range(500)))
    return run


@pytest.mark.thorough
def test_what_a_person_does_on_a_page_outlasts_its_changes(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    run = under_way(tmp_path / "data")

    def happens(text: str) -> None:
        with (run / "console.txt").open("a") as console:
            console.write(f"{text}\n")
        with (run / "events.jsonl").open("a") as events:
            events.write(event_to_json(Progress(3.0, "firewall", text)) + "\n")

    with running(tmp_path) as server, logged_in(browser, server) as shown:
        tab = shown.page
        tab.goto(server.url + "/runs/one")
        details = tab.locator("#run details", has=tab.locator("summary", has_text="About firewall-drop"))
        assert not details.evaluate("one => one.open")
        details.locator("summary").click()
        tab.get_by_role("link", name="Logs", exact=True).focus()
        happens("a first moment")
        tab.locator("#run", has_text="a first moment").wait_for(timeout=60_000)
        assert details.evaluate("one => one.open")
        assert tab.evaluate("document.activeElement.textContent") == "Logs"

        tab.goto(server.url + "/runs/one/logs?file=" + log_file_id("console.txt"))
        log = tab.locator("pre.log")
        assert log.evaluate("one => one.scrollTop > 0")  # the end of the file
        happens("a second moment")
        log.get_by_text("a second moment").wait_for(timeout=60_000)
        assert log.evaluate("one => one.scrollTop + one.clientHeight >= one.scrollHeight - 4")
        log.evaluate("one => { one.scrollTop = 100; }")
        happens("a third moment")
        log.get_by_text("a third moment").wait_for(timeout=60_000)
        assert log.evaluate("one => one.scrollTop") == 100
        assert shown.said == []


@pytest.mark.thorough
def test_a_tab_shows_what_others_change_also_after_the_server_was_away(browser: Browser, tmp_path: Path) -> None:
    port = free_port()

    with running(tmp_path, listen=f"127.0.0.1:{port}") as server:
        cookie = server.log_in()
        with Shown(browser, server.url + "/login") as shown:
            tab = shown.page
            name, _, value = cookie.partition("=")
            tab.context.add_cookies([{"name": name, "value": value, "url": server.url}])
            tab.goto(server.url + "/admin")
            tab.get_by_label("Name", exact=True).fill("half a na")
            add(server, cookie, "eve")
            tab.get_by_role("rowheader", name="eve", exact=True).wait_for(timeout=60_000)
            assert tab.get_by_label("Name", exact=True).input_value() == "half a na"
            server.stop()
            tab.get_by_text("Admin").first.wait_for()
            tab.wait_for_function("document.documentElement.hasAttribute('data-away')", timeout=60_000)
            with running(tmp_path, listen=f"127.0.0.1:{port}") as again:
                add(again, cookie, "bob")
                tab.get_by_role("rowheader", name="bob", exact=True).wait_for(timeout=60_000)
                assert not tab.evaluate("document.documentElement.hasAttribute('data-away')")


@pytest.mark.thorough
def test_pages_of_a_folder_that_is_used_fit_as_well(browser: Browser, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    use(tmp_path)
    pages = [page for page in all_pages() if page.kind == "page" and "GET" in page.methods and page.role != "anyone"]
    with agents_and_server(tmp_path) as world, contextlib.closing(Store(tmp_path / "serve.db")) as store:
        people = People(store)
        for name in ("gn6", "gn8"):
            heard(world.fleet, name)
        looks: list[tuple[Role, int, str]] = [("admin", 360, "light"), ("admin", 1920, "dark"), ("viewer", 360, "dark")]
        for role, width, scheme in looks:
            if not any(one.name == role for one in people.all()):
                people.add(role, role)
            with Shown(browser, f"{world.url}/login/{people.link(role)}", width=width, scheme=scheme) as shown:
                shown.page.get_by_role("button", name="Log in").click()
                shown.page.wait_for_url(lambda url: "/login" not in url)
                seen = 0
                for page in pages:
                    if not role_allows(role, page.role) or page.path.endswith(
                        ("/raw", "/{shell}", "/{node}", "/metrics")
                    ):
                        continue
                    answer = shown.page.goto(
                        world.url + filled_in(page.path, version="2")
                    )  # the fleet has read `idle` before `pool`
                    assert answer is not None
                    assert answer.status == 200, page.path
                    assert (shown.sideways(), shown.violations()) == (0, []), (page.path, role, width, scheme)
                    seen += 1
                assert seen >= 10
                assert shown.said == []


@pytest.mark.thorough
def test_every_page_fits_its_window_and_everybody_can_use_it(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path) as server:
        for width, scheme in ((360, "light"), (1920, "dark")):
            with Shown(browser, server.url + "/login", width=width, scheme=scheme) as shown:
                assert (shown.sideways(), shown.violations()) == (0, [])
        cookie = server.log_in()
        for width, scheme in ((360, "light"), (360, "dark"), (1920, "light"), (1920, "dark")):
            with Shown(browser, server.url + "/login", width=width, scheme=scheme) as shown:
                name, _, value = cookie.partition("=")
                shown.page.context.add_cookies([{"name": name, "value": value, "url": server.url}])
                for path in ("/admin", "/account", "/nowhere"):
                    shown.page.goto(server.url + path)
                    assert (shown.sideways(), shown.violations()) == (0, []), (path, width, scheme)
