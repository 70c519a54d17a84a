"""Lines as they were printed: what a terminal or a forum broke is joined, what a logger packed into JSON is unpacked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from runbook.diagnose.line import ESCAPES, unprefixed

OPENERS = (
    ".cpp:",
    ".cc:",
    ".hpp:",
    ".h:",
    ".c:",
    "nccl warn",
    "error",
    "exception",
    "fail",
    "barrier",
    "connect to",
    "socket",
)
"""Literals of messages that are long enough to be broken."""
ENDED = re.compile(r"(?:[.!?;)\]}>\"'`]|\w(?:Error|Exception): ?)$")
GOES_ON = re.compile(
    r"\A(?:(?:Work\w+\(|SeqNum|OpType|Numel|Timeout\(ms|Rank \d+\]|NCCL work|Connection (?:refused|timed|reset)|Address already|No route|Broken pipe|Name or service"
    r"|\[[\w:.]+\]:\d|\[\.\./)"
    r"|(?![a-z_]+ +: |(?=\S*[\d.A-Z/-])[\w./-]+: |[\w.-]+:\d|frame #|terminate called|[\w.]+ ?=[ =]|[\w.]+\(|raise |return |exitcode|time |at /|in <|self\.|from |import |with )"
    r"(?:[a-z(,;&]|\d+(?:\)|,| [a-z])))"
)
"""How the rest of a sentence begins, and no line of its own does."""
DIGITS = re.compile(r"\d+")
PIECES = 5  # of one line
PIECE = 400  # bytes; who prints longer lines does not break them

KEYS = frozenset({"message", "msg", "log", "textPayload", "line", "text", "error", "exception", "exc_info", "traceback", "py_callstack", "stack", "stderr", "stdout", "output"})  # fmt: skip
"""Under which loggers put what a program printed."""
LEVELS = frozenset({"info", "debug", "notice", "trace", "warn", "warning"})
KEYED = re.compile(rb"[\"'] ?: ?b?[\"']")
BREAK = re.compile(rb"(?<!\\)(?:\\\\)?(?:\\r)?\\n")
TAB = re.compile(rb"(?<!\\)\\t")


class Whole:
    """A line that may not be over yet, and where it began."""

    def __init__(self, number: int, raw: bytes) -> None:
        self.number = number
        self.begun = raw
        self._pieces = [_text(raw)]

    def takes(self, raw: bytes) -> bool:
        """Whether `raw` is the rest of this line; it is added then."""
        if len(self._pieces) == PIECES or len(raw) > PIECE or ENDED.search(self._pieces[-1].rstrip()):
            return False
        piece = _text(raw)
        prefix = _prefix(piece)
        if not GOES_ON.match(piece[len(prefix) :].lstrip()):
            return False
        # What puts a name before every line also does so before the rest of one.
        if not _worn(_prefix(self._pieces[0])).startswith(_worn(prefix)):
            return False
        self._pieces.append(piece[len(prefix) :])
        return True

    @property
    def readings(self) -> list[bytes]:
        """The line as its pieces may have belonged together, cut between words or in mid-word, and its first piece."""
        if len(self._pieces) == 1:
            return [self.begun]
        between, within = " ".join(piece.strip() for piece in self._pieces), "".join(self._pieces)
        return [*(text.encode() for text in dict.fromkeys((between, within))), self.begun]


def may_go_on(raw: bytes) -> bool:
    """Whether a line with one of OPENERS may have its end on the next."""
    return len(raw) <= PIECE and not ENDED.search(_text(raw).rstrip())


def unpacked(raw: bytes) -> list[bytes]:
    """The lines inside of a line of JSON, or of a printed dict that has several in a string; else none."""
    line = raw.strip()
    if line.startswith(b"{") and line.endswith(b"}"):
        try:
            return list(_printed(json.loads(line)))
        except (ValueError, RecursionError):
            pass
    if b"\\n" not in raw or not KEYED.search(raw):
        return []
    lines = BREAK.split(raw)
    return [TAB.sub(b"\t", line).replace(b'\\"', b'"') for line in lines] if len(lines) > 1 else []


def _printed(document: object, level: str = "") -> Iterator[bytes]:
    """What stands under KEYS, line by line, behind the time and the level at which it was logged."""
    if not isinstance(document, dict):
        return
    told = document.get("level", document.get("levelname"))
    lesser = f"{told.upper()} " if isinstance(told, str) and told.lower() in LEVELS else level
    at = next((document[key] for key in ("time", "timestamp", "ts") if isinstance(document.get(key), str)), "")
    for key, value in document.items():
        if key in KEYS and isinstance(value, str):
            yield from (f"{at} {lesser}{line}".strip().encode("utf-8", "replace") for line in value.split("\n"))
        elif isinstance(value, dict):
            yield from _printed(value, lesser)


def _text(raw: bytes) -> str:
    return ESCAPES.sub("", raw.decode("utf-8", "replace"))


def _prefix(piece: str) -> str:
    return piece[: len(piece) - len(unprefixed(piece)[0])]


def _worn(prefix: str) -> str:
    """A prefix without what changes from line to line."""
    return DIGITS.sub("", prefix).strip()
