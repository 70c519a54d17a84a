"""Reports in a real browser: no error, no request, nothing wider than the window, nothing that WCAG 2.2 AA forbids."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from lab.needs import browser_missing
from report.varied import VARIED, launched, swept, write_run

from runbook.report.html.render import render, render_comparison

from .browser import Browser, Shown, chromium

pytestmark = [
    pytest.mark.skipif(bool(browser_missing()), reason="; ".join(browser_missing()) or "no browser"),
    pytest.mark.xdist_group("browser"),
]
EVERY_VIEW = tuple((scheme, width) for scheme in ("light", "dark") for width in (360, 768, 1920))
IN_TURNS = (("light", 1920), ("dark", 360))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def report(tmp_path: Path, name: str) -> Path:
    file = tmp_path / "report.html"
    file.write_text(render(VARIED[name](tmp_path / "run")))
    return file


def looked_at(browser: Browser, file: Path, views: Iterable[tuple[str, int]] = EVERY_VIEW) -> None:
    for scheme, width in views:
        with Shown(browser, file, width=width, scheme=scheme) as shown:
            assert shown.sideways() == 0, (scheme, width)
            assert shown.violations() == [], (scheme, width)
            assert shown.said == []
            assert shown.asked == []


def test_a_report_is_sound_at_every_width_in_light_and_dark(browser: Browser, tmp_path: Path, thorough: bool) -> None:
    looked_at(browser, report(tmp_path, "a hang"), EVERY_VIEW if thorough else IN_TURNS)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "view"), zip(VARIED, itertools.cycle(IN_TURNS)))
def test_so_is_every_kind_of_report(browser: Browser, tmp_path: Path, name: str, view: tuple[str, int]) -> None:
    looked_at(browser, report(tmp_path, name), [view])


@pytest.mark.thorough
def test_a_comparison_is_too(browser: Browser, tmp_path: Path) -> None:
    one, other = write_run(tmp_path / "one", swept()), write_run(tmp_path / "other", swept(times=0.5))
    file = tmp_path / "two.html"
    file.write_text(render_comparison(one, other))
    looked_at(browser, file)
    cut = write_run(tmp_path / "cut", launched(killed=True))
    file.write_text(render_comparison(one, cut))
    looked_at(browser, file)


def test_a_command_is_copied_by_mouse_and_by_keyboard_and_is_there_without_a_script(
    browser: Browser, tmp_path: Path
) -> None:
    file = report(tmp_path, "firewall")
    with Shown(browser, file) as shown:
        command = shown.page.locator(".command pre").inner_text()
        assert command.startswith("sudo nft insert rule")
        button = shown.page.get_by_role("button", name="Copy the command")
        button.click()
        shown.page.get_by_text("Copied").wait_for()
        shown.page.evaluate(
            "document.body.insertAdjacentHTML('beforeend', '<textarea id=pasted aria-label=pasted></textarea>')"
        )
        shown.page.locator("#pasted").focus()
        shown.page.keyboard.press("Control+V")
        assert shown.page.locator("#pasted").input_value() == command
    with Shown(browser, file) as shown:
        shown.page.keyboard.press("Tab")
        assert shown.page.evaluate("document.activeElement.textContent") == "Skip to the report"
        for _ in range(40):
            shown.page.keyboard.press("Tab")
            if shown.page.evaluate("document.activeElement.getAttribute('aria-label')") == "Copy the command":
                break
        shown.page.keyboard.press("Enter")
        shown.page.get_by_text("Copied").wait_for()
    with Shown(browser, file, script=False) as shown:
        assert shown.page.locator("button").count() == 0
        assert shown.page.get_by_text(command).is_visible()


@pytest.mark.thorough
def test_details_and_wide_tables_are_reached_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    with Shown(browser, report(tmp_path, "256 nodes"), width=360) as shown:
        reached = set()
        for _ in range(200):
            shown.page.keyboard.press("Tab")
            reached.add(
                shown.page.evaluate("document.activeElement.tagName + (document.activeElement.className || '')")
            )
        assert {"A", "SUMMARY", "DIVscroll"} <= reached


@pytest.mark.thorough
def test_hostile_markup_does_nothing(browser: Browser, tmp_path: Path) -> None:
    with Shown(browser, report(tmp_path, "hostile markup")) as shown:
        assert shown.page.locator("img, script:not(body > script)").count() == 0
        assert shown.said == []


@pytest.mark.thorough
def test_it_prints_in_light_colours_without_buttons(browser: Browser, tmp_path: Path) -> None:
    with Shown(browser, report(tmp_path, "firewall"), scheme="dark") as shown:
        shown.page.emulate_media(media="print", color_scheme="dark")
        assert shown.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not shown.page.get_by_role("button").first.is_visible()
        assert shown.page.pdf()[:5] == b"%PDF-"
