"""The living face on a real pseudo-terminal, judged by the screen that is left."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pty = pytest.importorskip("pty", reason="needs a Unix")

ROOT = Path(__file__).parents[2]
DRIVER = textwrap.dedent(
    """
    import sys, time
    sys.path[:0] = [{root!r}, {tests!r}]
    from runbook.report.console import Console
    from report.made_up_runs import STORIES
    with Console(sys.stdout) as console:
        for event in STORIES[sys.argv[1]]():
            console(event)
            time.sleep(float(sys.argv[2]))
    print("after")
    """
)
CONTROL = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


class Screen:
    """As much of a terminal as rich speaks to; a sequence it does not know fails the test."""

    def __init__(self) -> None:
        self.rows: list[str] = [""]
        self.row = self.column = 0
        self.cursor_shown = True

    def feed(self, text: str) -> None:
        place = 0
        while place < len(text):
            token = CONTROL.match(text, place)
            assert token, f"a stray control: {text[place : place + 12]!r}"
            self._act(*token.groups())
            place = token.end()

    def _act(self, numbers: str | None, letter: str | None, move: str | None, words: str | None) -> None:
        if words is not None:
            row = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = row[: self.column] + words + row[self.column + len(words) :]
            self.column += len(words)
        elif move == "\r":
            self.column = 0
        elif move == "\n":
            self.row += 1
            self.rows += [""] * (self.row + 1 - len(self.rows))
        elif letter == "A":
            self.row -= int(numbers or 1)
        elif letter == "K":
            assert numbers == "2"
            self.rows[self.row] = ""
        elif letter in ("h", "l"):
            assert numbers == "?25"
            self.cursor_shown = letter == "h"
        else:
            assert letter == "m", f"a stray control: {numbers}{letter}"

    @property
    def lines(self) -> list[str]:
        return [row.rstrip() for row in self.rows]


def shown(story: str, pace: float = 0.03, **environ: str) -> str:
    """What a program on a pseudo-terminal writes."""
    driver = DRIVER.format(root=str(ROOT), tests=str(ROOT / "tests"))
    inherited = {key: value for key, value in os.environ.items() if key not in ("CI", "NO_COLOR", "FORCE_COLOR")}
    environment = {**inherited, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40", "PYTHONUTF8": "1", **environ}
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", driver, story, str(pace)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment,
        start_new_session=True,
    ) as program:
        os.close(terminal)
        written = b"".join(iter(lambda: _read(controller), b""))
    os.close(controller)
    text = written.decode("utf-8")
    assert program.returncode == 0, text
    return text


def _read(controller: int) -> bytes:
    try:
        return os.read(controller, 65536)
    except OSError:  # how Linux says that the other end has closed
        return b""


def golden(case: str) -> list[str]:
    path = Path(__file__).parent / "golden" / f"{case}.txt"
    return [line for line in path.read_text(encoding="utf-8").splitlines() if "..." not in line]


@pytest.mark.parametrize("story", ["healthy", "firewall", "interrupted"])
def test_the_screen_that_is_left_is_the_page(story: str) -> None:
    screen = Screen()
    screen.feed(shown(story))
    page = "\n".join(golden(story)).split()
    left = "\n".join(screen.lines).split()
    assert left == [*page, "after"]  # the terminal is narrower than the golden page: words, not line ends
    assert screen.cursor_shown


def test_a_stage_lives_while_it_runs() -> None:
    written = shown("interrupted", pace=0.6)
    assert "1/2 nodes · waiting for node-b" in written
    assert "node-a rank 0: listening on 10.0.0.1:29500" in written
    assert any(frame in written for frame in "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")


def test_a_run_that_breaks_off_leaves_the_terminal_as_it_was() -> None:
    screen = Screen()
    screen.feed(shown("broken_off"))
    assert screen.cursor_shown
    assert screen.lines[-2:] == ["after", ""]
    assert any("no verdict was given" in line for line in screen.lines)


def test_no_colour_is_honoured() -> None:
    assert "\x1b[1;31m" in shown("firewall")
    written = shown("firewall", NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*m", written)
    assert "\x1b[?25h" in written


def test_a_dumb_terminal_gets_plain_lines() -> None:
    assert "\x1b" not in shown("firewall", TERM="dumb")


def test_a_remedy_is_not_broken_by_us() -> None:
    command = "sudo nft insert rule inet filter input position 7 ip saddr 10.0.0.2 tcp dport 29500 accept"
    assert command in shown("firewall", COLUMNS="60")
