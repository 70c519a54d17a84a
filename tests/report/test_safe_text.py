"""No text of a node acts on the terminal of the person who reads it."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.model.safe_text import (
    ascii_text,
    pad_to_width,
    printable_line,
    printable_lines,
    terminal_columns,
    wrap_to_width,
)

from .strategies import UNHURRIED

TEXT = st.text(st.characters(codec=None, categories=None), max_size=80) | st.text(
    "\x1b\x9b[]0;31mKHP\\\x07\r\n\t a漢é\u202e\ud800", max_size=40
)


@UNHURRIED
@given(TEXT)
def test_nothing_acts(text: str) -> None:
    for line in [*printable_lines(text), printable_line(text)]:
        assert all(unicodedata.category(c) not in ("Cc", "Cs", "Zl", "Zp") for c in line)
        assert "\u202e" not in line
        line.encode("utf-8")


@UNHURRIED
@given(TEXT)
def test_ascii_is_ascii(text: str) -> None:
    assert ascii_text(printable_line(text)).isascii()


@UNHURRIED
@given(st.text("ab 漢e\u0301", max_size=60), st.integers(1, 30))
def test_wrapping_loses_no_word(text: str, width: int) -> None:
    text = printable_line(text)
    broken = wrap_to_width(text, width)
    assert " ".join(broken) == text
    assert all(terminal_columns(line) <= width or " " not in line for line in broken)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0\x1b\\sixel", "sixel"),
        ("\x9b1mC1", "C1"),
        ("bell\x07", "bell\\x07"),
        ("cut \x1b[", "cut"),
        ("10%\r20%", "10% 20%"),
        ("ok\u202etxt.exe", "ok\\u202etxt.exe"),
        ("family 👨‍👩‍👧", "family 👨‍👩‍👧"),
        ("half \ud83d", "half \\ud83d"),
        ("a  b\n\n c ", "a b c"),
    ],
)
def test_what_is_shown(raw: str, shown: str) -> None:
    assert printable_line(raw) == shown


def test_lines_keep_their_indent() -> None:
    assert printable_lines("if x:\r\n\tdo\n\n") == ["if x:", "    do"]


def test_wide_characters_take_two_cells() -> None:
    assert terminal_columns("漢字") == 4
    assert terminal_columns("e\u0301") == 1
    assert pad_to_width("漢", 4) == "漢  "
