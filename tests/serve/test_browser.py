"""What a real browser makes of it: a rebound name, another port, a frame, a socket get nothing; a person gets everything."""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from serve.running import Running, running

if TYPE_CHECKING:
    from playwright.sync_api import Page as Tab

CHROMIUM = Path("/usr/bin/chromium")
ATTACK = """
async (url) => {
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
  await attempt("frame", () => new Promise((done) => {
    const frame = document.createElement("iframe");
    frame.src = url + "/admin"; frame.onload = () => done(frame.contentDocument ? "readable" : "opaque, " + frame.contentWindow.length);
    document.body.append(frame);
  }));
  return tried;
}
"""


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    """A tab of a browser that finds every name below `.test` on this machine."""
    if not CHROMIUM.exists():
        _missing("Debian's chromium is not installed")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("playwright is not installed (pip install -e '.[browser]')")
    flags = ["--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP *.test 127.0.0.1"]
    with sync_playwright() as play, play.chromium.launch(executable_path=str(CHROMIUM), args=flags) as browser:
        context = browser.new_context()
        context.set_default_timeout(60_000)
        yield context.new_page()


def _missing(reason: str) -> None:
    if os.environ.get("RUNBOOK_BROWSER") == "required":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


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


def log_in(tab: Tab, server: Running) -> None:
    tab.goto(server.login)
    tab.get_by_role("button", name="Log in").click()
    tab.wait_for_url(lambda url: "/login" not in url)


def test_other_pages_of_this_machine_get_nothing(tab: Tab, tmp_path: Path) -> None:
    with running(tmp_path) as server, foreign_site() as port:
        log_in(tab, server)
        tab.goto(server.url + "/admin")
        assert tab.get_by_role("heading", name="People").is_visible()
        for foreign in (f"http://127.0.0.1:{port}", f"http://evil.test:{port}"):
            tab.goto(foreign)
            tried = tab.evaluate(ATTACK, server.url)
            assert tried["read"].startswith("refused"), tried
            assert tried["stream"].startswith("refused"), tried
            assert tried["script"].startswith("refused"), tried
            assert tried["frame"] == "opaque, 0", tried
        tab.goto(f"http://evil.test:{server.port}/admin")  # the name is rebound to this server
        assert "does not answer to that name" in tab.content()
        tried = tab.evaluate(ATTACK, "")
        assert tried["read"].startswith("421 "), tried
        assert tried["stream"].startswith("refused"), tried
        tab.goto(server.url + "/admin")  # and still logged in, with nobody added
        assert tab.get_by_role("heading", name="People").is_visible()
        assert "mallory" not in tab.content()


@pytest.mark.thorough
def test_an_admin_does_everything_by_mouse_and_no_name_is_markup(tab: Tab, tmp_path: Path) -> None:
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    with running(tmp_path) as server:
        log_in(tab, server)
        tab.goto(server.url + "/admin")
        people = tab.locator("section", has=tab.get_by_role("heading", name="People"))
        people.get_by_label("Name").fill("eve")
        people.get_by_role("button", name="Add a person").click()
        link = tab.locator(".made code").inner_text()
        assert link.startswith(server.url + "/login/")
        tokens = tab.locator("section", has=tab.get_by_role("heading", name="Tokens"))
        tokens.get_by_label("What for").fill("<img src=x onerror=document.title='owned'>")
        tokens.get_by_role("button", name="Make a token").click()
        token = tab.locator(".made code").inner_text()
        assert server.ask("GET", "/api/v1/me", {"Authorization": f"Bearer {token}"})[0] == 200
        assert tab.title() == "Admin · runbook"
        assert tab.locator("img").count() == 0
        tab.get_by_role("button", name="Remove eve").click()
        assert "eve" not in people.inner_text()
        tab.get_by_role("button", name="Log out").click()
        assert tab.get_by_role("heading", name="Log in").is_visible()
        tab.goto(server.url + "/admin")
        assert tab.url == server.url + "/login?next=%2Fadmin"
        assert [line for line in said if "favicon" not in line] == []


@pytest.mark.thorough
@pytest.mark.parametrize("width", [360, 1920])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_scrolls_sideways(tab: Tab, tmp_path: Path, width: int, scheme: str) -> None:
    with running(tmp_path) as server:
        tab.set_viewport_size({"width": width, "height": 800})
        tab.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        log_in(tab, server)
        for path in ("/admin", "/account", "/login", "/nowhere"):
            tab.goto(server.url + path)
            assert tab.evaluate("document.documentElement.scrollWidth") <= width, path
