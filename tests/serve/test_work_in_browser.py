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
from ports import free_port

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
        tab.get_by_label("Port", exact=True).fill(str(free_port()))
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
        tab.get_by_role("button", name="Launch without checks").wait_for()
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
        to("port")
        tab.keyboard.press("Control+a")
        tab.keyboard.type(str(free_port()))
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


ODD = """\

# begins with an empty line
name: train
order: inventory
defaults: {{connection: local, python: {python}, workdir: {work}}}
rendezvous: {{backend: gloo, port: {port}}}
env: {{A: one, B: "two words"}}
nodes:
  gn6: {{address: 127.0.0.6}}
launch:
  command: [sh, -c, echo told=$A; sleep 600]
  launcher: direct
"""
"""What a browser would send back changed, if it could: an empty line in front, a choice that is the default."""


@pytest.mark.parametrize("script", [True, False], ids=["with a script", "without"])
def test_what_was_typed_and_is_not_saved_is_not_passed_over(browser: Browser, tmp_path: Path, script: bool) -> None:
    (tmp_path / "data" / "groups").mkdir(mode=0o700, parents=True)
    (tmp_path / "data").chmod(0o700)
    path = tmp_path / "data" / "groups" / "train.yml"
    before = ODD.format(python=sys.executable, work=tmp_path / "work", port=free_port())
    path.write_text(before)
    with running(tmp_path) as server, logged_in(browser, server, script=script) as shown:
        tab = shown.page
        page = server.url + "/groups/train"
        state = tab.get_by_role("region", name="State")

        def press(name: str) -> None:
            with tab.expect_navigation():
                state.get_by_role("button", name=name, exact=True).click()

        for press_this in ("Launch without checks", "Start: checks, then launch"):
            tab.goto(page)
            tab.get_by_label("Environment of every rank").fill("A=other")
            press(press_this)
            assert "Not started: what you changed is not saved (env)" in tab.get_by_role("alert").inner_text()
            assert tab.get_by_label("Environment of every rank").input_value() == "A=other"
            assert "+env: {A: other}" in tab.get_by_label("What changes in the file").inner_text()
            assert not list((tmp_path / "data" / "runs").iterdir())
            tab.get_by_role("link", name="Undo").click()
            tab.wait_for_load_state()
            assert tab.get_by_label("Environment of every rank").input_value() == "A=one\nB=two words"

        tab.locator("#text summary").click()  # the file as text is a part of what is shown
        tab.locator("textarea[name=text]").fill(before.replace("two words", "three"))
        press("Launch without checks")
        assert "is not saved (the text of the file)" in tab.get_by_role("alert").inner_text()
        tab.get_by_label("Interface", exact=True).fill("lo")
        tab.get_by_role("button", name="Save", exact=True).first.click()
        tab.wait_for_load_state()
        assert "interface: lo" in path.read_text()
        assert [line for line in path.read_text().splitlines() if "interface" not in line and line != "network:"] == (
            before.replace("two words", "three").splitlines()
        )

        path.write_text(path.read_text() + "# by another\n")  # meanwhile, elsewhere
        press("Launch without checks")
        assert "Not started: the file of this group was changed meanwhile" in tab.get_by_role("alert").inner_text()
        tab.get_by_role("link", name="Undo").click()
        tab.wait_for_load_state()
        press("Launch without checks")  # nothing typed: what is shown is started
        assert "/runs/" in tab.url
        run = tab.url
        again(lambda: tab.locator("pre.log", has_text="told=one").is_visible(), lambda: tab.goto(run + "/logs"))

        tab.goto(page)
        tab.get_by_label("Port", exact=True).fill("29777")
        press("Restart")
        assert "Not restarted: what you changed is not saved (port)" in tab.get_by_role("alert").inner_text()
        press("Stop")  # is done at once, and keeps what was typed
        assert tab.get_by_label("Port", exact=True).input_value() == "29777"
        assert "29777" not in path.read_text()
        tab.get_by_role("link", name="Undo").click()
        tab.wait_for_load_state()
        again(lambda: tab.locator("#state", has_text="unknown").is_visible(), lambda: tab.goto(page))
        tab.get_by_label("Port", exact=True).fill("29778")
        with tab.expect_navigation():
            tab.get_by_label("Port", exact=True).press("Enter")  # saves, and starts nothing
        assert "29778" in path.read_text()
        assert len(list((tmp_path / "data" / "runs").iterdir())) == 1
        assert [line for line in shown.said if "the server responded with a status of 4" not in line] == []


def test_a_page_with_something_typed_is_left_only_on_purpose(browser: Browser, tmp_path: Path) -> None:
    pool(tmp_path)
    with running(tmp_path) as server, logged_in(browser, server) as shown:
        tab = shown.page
        tab.goto(server.url + "/groups/pool")
        tab.get_by_label("Port", exact=True).click()
        tab.get_by_role("link", name="Groups").click()  # nothing was typed
        tab.get_by_role("link", name="pool", exact=True).first.click()
        answers = iter([False, True])
        tab.on("dialog", lambda dialog: dialog.accept() if next(answers) else dialog.dismiss())
        tab.get_by_label("Port", exact=True).click()
        tab.keyboard.type("29777")
        tab.get_by_role("link", name="Groups").click()
        again(lambda: shown.said == ["dialog: "], lambda: None)
        assert tab.get_by_label("Port", exact=True).input_value() == "29777"
        tab.get_by_role("link", name="Groups").click()
        tab.wait_for_url("**/groups")
        assert len(shown.said) == 2
