"""The whole of seed 003 in a real browser: a group, its nodes, its settings, what each rank will have, start, log and stop; by
mouse, and by keyboard without a script."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser.browser import Browser, chromium
from lab.needs import browser_missing

from serve.running import running
from serve.test_browser import logged_in

pytestmark = [
    pytest.mark.skipif(bool(browser_missing()), reason="; ".join(browser_missing()) or "no browser"),
    pytest.mark.xdist_group("browser"),
    pytest.mark.thorough,
]
POOL = """\
name: pool
defaults: {{connection: local, python: {python}, workdir: {work}}}
nodes:
  "gn[6-7]": {{address: "127.0.0.[6-7]"}}
  gn39: {{address: 127.0.0.39}}
  gn40: {{address: 127.0.0.40}}
"""
TELLS = (
    "sh -c 'echo [Rank $RANK] World Size: $WORLD_SIZE, Local Rank: $LOCAL_RANK, Master Addr: $MASTER_ADDR; sleep 600'"
)
TOLD = "[Rank 0] World Size: 4, Local Rank: 0, Master Addr: 127.0.0.6"
SOON_MS = 120_000
TABLE = ["gn6-0 0 0 0 CPU", "gn39-0 1 0 1 CPU", "gn40-0 2 0 2 CPU", "gn7-0 3 0 3 CPU"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def pool(data: Path) -> None:
    """In the folder that `running` gives the server, which is for its user alone."""
    (data / "data").mkdir(mode=0o700)
    (data / "data" / "groups").mkdir()
    (data / "data" / "groups" / "pool.yml").write_text(POOL.format(python=sys.executable, work=data / "work"))


def again(seen: Callable[[], bool], load: Callable[[], object]) -> None:
    """Load the page until it shows something, as somebody without a script does."""
    deadline = time.monotonic() + SOON_MS / 1000
    while not seen():
        assert time.monotonic() < deadline, "it is never shown"
        time.sleep(0.5)
        load()


def test_by_mouse(browser: Browser, tmp_path: Path) -> None:
    pool(tmp_path)
    with running(tmp_path) as server, logged_in(browser, server) as shown:
        tab = shown.page
        tab.get_by_role("link", name="Groups").click()
        tab.get_by_label("New group").fill("train")
        tab.get_by_role("button", name="Create").click()
        tab.wait_for_url("**/groups/train")
        tab.get_by_role("link", name="Groups").click()
        tab.get_by_role("link", name="Select all").click()
        tab.get_by_label("Move to").select_option("train")
        tab.get_by_role("button", name="Move", exact=True).click()
        tab.wait_for_load_state()
        tab.get_by_role("link", name="train", exact=True).first.click()
        tab.get_by_label("Master", exact=True).fill("gn6")
        tab.get_by_label("World size", exact=True).fill("5")
        tab.locator("#preview", has_text="a world size of 5 does not fit").wait_for()
        tab.get_by_label("World size", exact=True).fill("4")
        tab.locator("#preview .ranks").wait_for()
        assert [" ".join(row.split()) for row in tab.locator("#preview .ranks tbody tr").all_inner_texts()] == TABLE
        tab.get_by_label("Command", exact=True).fill(TELLS)
        tab.get_by_role("button", name="Save", exact=True).click()
        tab.wait_for_load_state()
        tab.locator("#rank-3 summary").click()
        assert "RANK=3\n" in tab.locator("#env-3").inner_text()
        assert shown.violations() == []
        tab.get_by_role("button", name="Launch without checks").click()
        tab.wait_for_url("**/runs/*")
        tab.locator("#run", has_text="launch").wait_for(timeout=SOON_MS)
        tab.get_by_role("link", name="Logs", exact=True).click()
        again(lambda: tab.locator("pre.log", has_text=TOLD).is_visible(), lambda: tab.goto(tab.url.partition("?")[0]))
        tab.get_by_role("searchbox", name="Search").fill("Master Addr")
        tab.get_by_label("Where to search").select_option("all")
        tab.get_by_role("button", name="Show").click()
        holding = tab.get_by_label("Matches by file").locator("a", has_text="rank-")
        holding.first.wait_for()
        assert holding.count() == 4
        assert shown.violations() == []
        tab.goto(server.url + "/groups/train")
        tab.get_by_role("button", name="Stop", exact=True).click()
        tab.locator("#state", has_text="unknown").wait_for(timeout=SOON_MS)
        assert tab.get_by_role("button", name="Launch without checks").is_visible()
        assert shown.said == []
    assert "master: gn6" in (tmp_path / "data" / "groups" / "train.yml").read_text()


def test_by_keyboard_without_a_script(browser: Browser, tmp_path: Path) -> None:
    pool(tmp_path)
    with running(tmp_path) as server, logged_in(browser, server, script=False, width=360) as shown:
        tab = shown.page

        def to(name: str) -> None:
            """Press Tab until the element of this name, or with this value, has the focus."""
            for _ in range(120):
                tab.keyboard.press("Tab")
                at = tab.locator("*:focus")
                if at.count() == 0:  # the browser's own bars have it
                    continue
                words = [at.get_attribute("name"), at.get_attribute("value"), at.inner_text().strip()]
                if name in words:
                    return
            raise AssertionError(f"no way to {name} by keyboard")

        tab.goto(server.url + "/groups")
        to("name")
        tab.keyboard.type("train")
        tab.keyboard.press("Enter")
        tab.wait_for_url("**/groups/train")
        tab.goto(server.url + "/groups")
        for node in ("gn6", "gn7", "gn39", "gn40"):
            to(f"pool/{node}")
            tab.keyboard.press("Space")
        tab.goto(server.url + "/groups?select=all")
        to("target")
        tab.keyboard.type("train")
        to("Move")
        with tab.expect_navigation():
            tab.keyboard.press("Enter")
        tab.goto(server.url + "/groups/train")
        to("master")
        tab.keyboard.type("gn6")
        to("command")
        tab.keyboard.press("Control+a")
        tab.keyboard.type(TELLS)
        with tab.expect_navigation():
            tab.keyboard.press("Enter")
        assert [" ".join(row.split()) for row in tab.locator("#preview .ranks tbody tr").all_inner_texts()] == TABLE
        to("Launch without checks")
        with tab.expect_navigation():
            tab.keyboard.press("Enter")
        logs = tab.url + "/logs"
        tab.goto(logs)
        again(lambda: tab.locator("pre.log", has_text=TOLD).is_visible(), lambda: tab.goto(logs))
        tab.goto(server.url + "/groups/train")
        to("Stop")
        with tab.expect_navigation():
            tab.keyboard.press("Enter")
        again(lambda: tab.locator("#state", has_text="unknown").is_visible(), tab.reload)
    assert "master: gn6" in (tmp_path / "data" / "groups" / "train.yml").read_text()
