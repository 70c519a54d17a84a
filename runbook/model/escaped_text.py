"""Foreign text with escapes: for characters that would act on a terminal, change the direction of writing or hide.
Anybody can choose names and texts of nodes, files and logs. This is the one place that decides how their characters
look."""

from __future__ import annotations

import re
import unicodedata

_NOT_PLAIN = re.compile(r"[^ -~]")
_ACTS = frozenset(
    {"Cc", "Cf", "Cs", "Zl", "Zp"}
)  # controls, formats, halves of surrogates, ends of lines and paragraphs
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]")
"""Invisible letters and marks of other categories (Unicode: Default_Ignorable_Code_Point)."""
_JOINERS = "\u200c\u200d"
_SELECTORS = re.compile("[\ufe00-\ufe0f]")
"""Both belong to scripts and emoji, and hide nothing there; beside ASCII they only make two names look alike."""


def visible(text: str) -> str:
    """The text on one line, with escapes such as `\\n`, `\\x1b`, `\\u202e`, `\\udcff` for what would act or hide."""
    return text if text.isascii() and text.isprintable() else _NOT_PLAIN.sub(_seen, text)


def visible_lines(text: str) -> str:
    """As `visible`, but a newline ends a line."""
    return "\n".join(map(visible, text.split("\n")))


def json_visible(document: str) -> str:
    """A JSON document in which no character acts or hides: they stand as JSON's own escapes, so the strings are the
    same."""
    return "\n".join(_NOT_PLAIN.sub(_json_seen, line) for line in document.split("\n"))


def _seen(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii") if _hidden(found) else found[0]


def _json_seen(found: re.Match[str]) -> str:
    if not _hidden(found):
        return found[0]
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _hidden(found: re.Match[str]) -> bool:
    character, text, at = found[0], found.string, found.start()
    if character in _JOINERS:
        return not (_foreign(text[at - 1 : at]) and _foreign(text[at + 1 : at + 2]))
    if _SELECTORS.match(character):
        return not _foreign(text[at - 1 : at]) or _SELECTORS.match(text[at - 1]) is not None
    return unicodedata.category(character) in _ACTS or _BLANK.match(character) is not None


def _foreign(character: str) -> bool:
    """Whether it belongs to a script or an emoji, and is visible."""
    return character > "\x7f" and unicodedata.category(character) not in _ACTS | {"Zs"} and not _BLANK.match(character)
