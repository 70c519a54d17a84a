"""Makes foreign text safe to show: on lines, without colours, with escapes for characters that would act on a terminal,
change the direction of writing, or be invisible. Also measures and pads text in columns. Anybody can choose names and
texts of nodes, files and logs; only this module decides how their characters look."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from runbook.model.errors import Unreachable

_NOT_PRINTABLE_ASCII = re.compile(r"[^ -~]")
_ESCAPED_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of characters that are always escaped: controls, formats, halves of surrogates, ends of lines and
paragraphs."""
_INVISIBLE_CHARACTER = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
"""Invisible letters and marks outside of these categories (Unicode: Default_Ignorable_Code_Point)."""
_ZERO_WIDTH_JOINERS = "\u200c\u200d"
_VARIATION_SELECTOR = re.compile("[\ufe00-\ufe0f]")
"""Joiners and selectors belong to scripts and emoji and are shown there; beside ASCII they only make two names look
alike, and are escaped."""


def visible_text(text: str) -> str:
    """The text on one line, with escapes such as `\\n`, `\\x1b`, `\\u202e`, `\\udcff` for characters that would act on
    a terminal or be invisible."""
    return text if text.isascii() and text.isprintable() else _NOT_PRINTABLE_ASCII.sub(_escape_if_hidden, text)


def visible_multiline_text(text: str) -> str:
    """The text with escapes as in `visible`, except that newlines stay."""
    return "\n".join(map(visible_text, text.split("\n")))


def visible_json(document: str) -> str:
    """The JSON document with JSON's own escapes for characters that would act on a terminal or be invisible; its
    strings stay the same."""
    return "\n".join(_NOT_PRINTABLE_ASCII.sub(_json_escape_if_hidden, line) for line in document.split("\n"))


def _escape_if_hidden(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii") if _is_hidden_character(found) else found[0]


def _json_escape_if_hidden(found: re.Match[str]) -> str:
    if not _is_hidden_character(found):
        return found[0]
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _is_hidden_character(found: re.Match[str]) -> bool:
    character, text, at = found[0], found.string, found.start()
    if character in _ZERO_WIDTH_JOINERS:
        return not (_is_visible_non_ascii(text[at - 1 : at]) and _is_visible_non_ascii(text[at + 1 : at + 2]))
    if _VARIATION_SELECTOR.match(character):
        return not _is_visible_non_ascii(text[at - 1 : at]) or _VARIATION_SELECTOR.match(text[at - 1]) is not None
    return unicodedata.category(character) in _ESCAPED_CATEGORIES or _INVISIBLE_CHARACTER.match(character) is not None


def _is_visible_non_ascii(character: str) -> bool:
    """Whether a character is visible and not ASCII, so that it may belong to a script or an emoji; False for the empty
    text."""
    return (
        character > "\x7f"
        and unicodedata.category(character) not in _ESCAPED_CATEGORIES | {"Zs"}
        and not _INVISIBLE_CHARACTER.match(character)
    )


# On lines and in columns.

# Escape sequences go whole, so that `ESC[31mred` reads `red`: CSI, then OSC/DCS/PM/APC/SOS strings, then short ones.
ESCAPE_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
LINE_END = re.compile(r"\r\n|[\n\r\v\f\x85\u2028\u2029]")
ASCII = str.maketrans(
    {"·": "-", "–": "-", "—": "-", "…": "...", "→": "->", "←": "<-", "×": "x", "µ": "u", "≤": "<=", "≥": ">=", "‘": "'",
     "’": "'", "“": '"', "”": '"', "\u00a0": " ", **dict(zip("▁▂▃▄▅▆▇█░▒▓", "_.,-=+*#.o%", strict=True))}
)  # fmt: skip


def printable_lines(text: str) -> list[str]:
    """The text's lines, each safe to print; empty ones at the end are dropped."""
    safe = [visible_text(line.expandtabs(4)).rstrip() for line in LINE_END.split(ESCAPE_SEQUENCE.sub("", text))]
    while safe and not safe[-1]:
        safe.pop()
    return safe


def printable_line(text: str) -> str:
    """The text on one line, safe to print."""
    return " ".join(" ".join(printable_lines(text)).split())


def unreachable_text(failure: Unreachable) -> str:
    """The failure as lines of text: for a person whose command got no answer from a node, a cluster or a server."""
    shown = [f"error[{failure.cause}]: {failure.says}", *(f"  evidence  {line}" for line in failure.evidence)]
    shown += [f"  fix       {failure.remedy}", f"  more      runbook explain {failure.cause}"]
    return "".join(" ".join(printable_lines(line)) + "\n" for line in shown)


def ascii_text(text: str) -> str:
    """The text in ASCII, for a stream without UTF-8: ASCII look-alikes, and backslash escapes for the rest."""
    return text.translate(ASCII).encode("ascii", "backslashreplace").decode("ascii")


def terminal_columns(text: str) -> int:
    """How many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(_character_columns(character) for character in text)


def pad_to_width(text: str, width: int) -> str:
    return text + " " * (width - terminal_columns(text))


def wrap_to_width(text: str, width: int | None) -> list[str]:
    """The text as lines no wider than `width` columns, broken at spaces; a longer word stays whole. None: one line."""
    if width is None or terminal_columns(text) <= width:
        return [text]
    broken = [""]
    for word in text.split(" "):
        longer = f"{broken[-1]} {word}" if broken[-1] else word
        if not broken[-1] or terminal_columns(longer) <= width:
            broken[-1] = longer
        else:
            broken.append(word)
    return broken


def aligned_table(rows: Iterable[Sequence[str]], *, widest: int | None = None) -> list[str]:
    """The rows as lines with aligned columns, safe to print; a column that is empty in every row is left out. `widest`:
    no column is padded beyond so many cells, and a longer text pushes the rest of its row to the right."""
    shown = [[visible_text(text) for text in row] for row in rows]
    widths = [max(map(terminal_columns, column)) for column in zip(*shown, strict=True)]
    if widest is not None:
        widths = [min(width, widest) for width in widths]
    padded = ((pad_to_width(text, width) for text, width in zip(row, widths, strict=True) if width) for row in shown)
    return ["  ".join(row).rstrip() for row in padded]


def _character_columns(character: str) -> int:
    if unicodedata.combining(character) or character in _ZERO_WIDTH_JOINERS or _VARIATION_SELECTOR.match(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
