"""A real browser for tests: Debian's chromium, driven by Playwright, and axe-core to look at what it shows."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from lab.needs import find_program
from playwright.sync_api import Browser as Browser
from playwright.sync_api import Page, sync_playwright

LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


@contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    """Without its own sandbox, which wants rights that root in a container has not: it shows only pages of these tests."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_program("chromium"), args=["--no-sandbox", *flags])
        try:
            yield browser
        finally:
            browser.close()


class Shown:
    """A file or an address shown in a window. `said` is what its console wrote, `asked` every address that it wanted."""

    def __init__(
        self, browser: Browser, shown: Path | str, *, width: int = 1280, scheme: Any = "light", script: bool = True
    ):
        self._context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=script
        )
        self.page: Page = self._context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("dialog", lambda dialog: self.said.append(f"dialog: {dialog.message}"))
        address = shown.as_uri() if isinstance(shown, Path) else shown
        self.page.goto(address)
        self.asked.remove(address)

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    def sideways(self) -> int:
        """By how many pixels the page is wider than its window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))

    def violations(self) -> list[str]:
        """What axe-core finds against WCAG 2.2 AA."""
        self.page.evaluate(_axe())
        found = self.page.evaluate("levels => axe.run({runOnly: levels})", LEVELS)
        return [
            f"{violation['id']}: {violation['help']}: {node['html'][:200]}"
            for violation in found["violations"]
            for node in violation["nodes"][:3]
        ]


@functools.cache
def _axe() -> str:
    return resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
