"""Makes text from nodes safe to print: in lines, without colours, with all characters escaped that would act on a
terminal or hide; and its width in columns."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from runbook.model.errors import Unreachable
from runbook.model.escaped_text import visible

# Escape sequences go whole, so that `ESC[31mred` reads `red`: CSI, then OSC/DCS/PM/APC/SOS strings, then short ones.
ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
LINE_ENDS = re.compile(r"\r\n|[\n\r\v\f\x85\u2028\u2029]")
JOINERS = "\u200c\u200d"
ASCII = str.maketrans(
    {"·": "-", "–": "-", "—": "-", "…": "...", "→": "->", "←": "<-", "×": "x", "µ": "u", "≤": "<=", "≥": ">=", "‘": "'",
     "’": "'", "“": '"', "”": '"', "\u00a0": " ", **dict(zip("▁▂▃▄▅▆▇█░▒▓", "_.,-=+*#.o%", strict=True))}
)  # fmt: skip


def lines(text: str) -> list[str]:
    """The text's lines, each safe to print; empty ones at the end are dropped."""
    safe = [visible(line.expandtabs(4)).rstrip() for line in LINE_ENDS.split(ESCAPES.sub("", text))]
    while safe and not safe[-1]:
        safe.pop()
    return safe


def one_line(text: str) -> str:
    """The text on one line, safe to print."""
    return " ".join(" ".join(lines(text)).split())


def unreached(failure: Unreachable) -> str:
    """Lines for people who asked for something of a node, a cluster or a server that gave no answer."""
    shown = [f"error[{failure.cause}]: {failure.says}", *(f"  evidence  {line}" for line in failure.evidence)]
    shown += [f"  fix       {failure.remedy}", f"  more      runbook explain {failure.cause}"]
    return "".join(" ".join(lines(line)) + "\n" for line in shown)


def ascii_only(text: str) -> str:
    """What a stream without UTF-8 can carry."""
    return text.translate(ASCII).encode("ascii", "backslashreplace").decode("ascii")


def cells(text: str) -> int:
    """How many columns a terminal gives the text."""
    if text.isascii():
        return len(text)
    return sum(_cells(character) for character in text)


def pad(text: str, width: int) -> str:
    return text + " " * (width - cells(text))


def wrap(text: str, width: int | None) -> list[str]:
    """Break at spaces so that no line is wider than `width`; a longer word stays whole. `None` never breaks."""
    if width is None or cells(text) <= width:
        return [text]
    broken = [""]
    for word in text.split(" "):
        longer = f"{broken[-1]} {word}" if broken[-1] else word
        if not broken[-1] or cells(longer) <= width:
            broken[-1] = longer
        else:
            broken.append(word)
    return broken


def table(rows: Iterable[Sequence[str]], *, widest: int | None = None) -> list[str]:
    """Rows in columns, safe to print; one in which nothing stands is left out. No column is made wider than `widest`
    cells: a longer text pushes the rest of its row."""
    shown = [[visible(text) for text in row] for row in rows]
    widths = [max(map(cells, column)) for column in zip(*shown, strict=True)]
    if widest is not None:
        widths = [min(width, widest) for width in widths]
    padded = ((pad(text, width) for text, width in zip(row, widths, strict=True) if width) for row in shown)
    return ["  ".join(row).rstrip() for row in padded]


def _cells(character: str) -> int:
    if unicodedata.combining(character) or character in JOINERS or "\ufe00" <= character <= "\ufe0f":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
