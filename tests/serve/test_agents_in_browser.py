"""What an admin does with agents, in a real browser and with a real agent: enrol, drain, undrain, revoke, enrol again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser.browser import chromium
from lab.needs import browser_missing

from serve.running import running
from serve.test_browser import logged_in

pytestmark = [
    pytest.mark.skipif(bool(browser_missing()), reason="; ".join(browser_missing()) or "no browser"),
    pytest.mark.xdist_group("browser"),
    pytest.mark.thorough,
]
SOON_MS = 120_000


@contextmanager
def agent(home: Path, *enrol: str) -> Iterator[subprocess.Popen[bytes]]:
    """Enrolled with these words, which the page tells to type, and running."""
    assert enrol[:3] == ("runbook", "agent", "enrol")
    command = [sys.executable, "-m", "runbook", "agent"]
    subprocess.run([*command, *enrol[2:], "--dir", str(home)], check=True, capture_output=True)
    as_root = ["--as-root"] if os.geteuid() == 0 else []
    process = subprocess.Popen([*command, "run", "--dir", str(home), *as_root], stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_an_admin_enrols_drains_and_revokes_an_agent(tmp_path: Path) -> None:
    with chromium() as browser, running(tmp_path) as server, logged_in(browser, server) as shown:
        tab = shown.page

        def enrolment() -> list[str]:
            tab.get_by_label("Name of the node").fill("gn01")
            tab.get_by_role("button", name="Enrol a node").click()
            return tab.get_by_label("Enrolment string").locator("code").first.inner_text().split()

        def press(word: str, state: str) -> None:
            """Press a button of the agent's row, and wait until the table tells this state."""
            row.get_by_role("button", name=word).click()
            row.get_by_text(state, exact=False).first.wait_for(timeout=SOON_MS)

        tab.goto(server.url + "/admin")
        row = tab.locator("#table-of-agents tr", has=tab.get_by_role("rowheader", name="gn01"))
        with agent(tmp_path / "home", *enrolment()) as running_agent:
            row.get_by_text("ONLINE").wait_for(timeout=SOON_MS)  # on the page that shows the string, by itself
            assert shown.violations() == []
            press("Drain gn01", "DRAINING")
            press("Undrain gn01", "ONLINE")
            row.get_by_text("Revoke").first.click()
            press("Revoke it", "REVOKED")
            assert running_agent.wait(60) == 1
        with agent(tmp_path / "home", *enrolment(), "--again"):
            row.get_by_text("ONLINE").wait_for(timeout=SOON_MS)
        tab.goto(server.url + "/nodes/gn01")
        tab.get_by_role("button", name="Drain").click()
        tab.get_by_role("button", name="Undrain").wait_for()
        tab.goto(server.url + "/admin")
        audit = tab.get_by_label("Audit").inner_text()
        assert audit.count("Make a string that enrols a node") == 2
        assert audit.count("Drain or undrain a node") == 3
        assert audit.count("Revoke an agent") == 1
        assert shown.said == []
