"""Views of a text as its readers would decode it: a secret written as `\\u0041` or `%41` is a secret all the same.

Each view undoes one layer of encoding of the view before: backslash escapes, percent signs, HTML's entities, the
shell's `'\\''`, and terminal colours. Every place in a view can be traced back to its place in the text itself.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from html import unescape

MAX_ENCODING_LAYERS = 4
"""The most layers that are undone, such as JSON in a shell word in JSON in a URL: deeper than in any real log."""

_ENCODED_PIECE = re.compile(
    r"(?P<colour>\x1b\[[0-?]*[ -/]*[@-~]|\\(?:x1b|u001[bB]|033|e)\[[0-?]*[ -/]*[@-~])"
    r"|(?P<quote>'\\''|'\"'\"')"
    r"|(?P<pair>\\u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2})"
    r"|\\u(?P<unit>[0-9A-Fa-f]{4})|\\u\{(?P<braced>[0-9A-Fa-f]{1,6})\}|\\U(?P<long>[0-9A-Fa-f]{8})"
    r"|(?P<bytes>(?:\\x[0-9A-Fa-f]{2})+)|(?P<octal>(?:\\[0-3][0-7]{2})+)|\\(?P<plain>.)"
    r"|(?P<percent>(?:%[0-9A-Fa-f]{2})+)"
    r"|(?P<entity>&(?:amp|lt|gt|quot|apos|\#[0-9]{1,7}|\#[xX][0-9A-Fa-f]{1,6});)",
    re.DOTALL,
)
_ENCODING_SIGNS = ("\\", "%", "&", "\x1b", "'\"'\"'")  # a text that holds none of these needs no decoding
_BACKSLASH_ESCAPES = {
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "a": "\a",
    "e": "\x1b",
    "0": "\0",
}
COLOUR_PLACEHOLDER = "\N{WORD JOINER}"
"""The character that a view has in place of a terminal colour: it is no part of a word, and is left out when a secret's
halves are joined."""
JOINT_CHARACTERS = "\"'\\`" + COLOUR_PLACEHOLDER
_JOINT_RUN = re.compile("[" + re.escape(JOINT_CHARACTERS) + "]+")


class View:
    """A text with some layers of encoding undone. `raw` translates a place in it into the place in the original."""

    def __init__(
        self, text: str, parent: View | None = None, pieces: list[tuple[int, int, int, bool]] | None = None
    ) -> None:
        self.text = text
        self._parent = parent
        self._pieces = pieces or []  # (start in this text, start and end in the parent, whether copied)
        self._starts = [piece[0] for piece in self._pieces]

    def raw(self, start: int, end: int) -> tuple[int, int]:
        """The span of the original text that `start:end` (not empty) of this view was decoded from."""
        if self._parent is None:
            return start, end
        here, begin, _, same = self._pieces[bisect_right(self._starts, start) - 1]
        first = begin + (start - here) if same else begin
        here, begin, stop, same = self._pieces[bisect_right(self._starts, end - 1) - 1]
        last = begin + (end - here) if same else stop
        return self._parent.raw(first, last)


def decoded_views(text: str) -> Iterator[View]:
    """The text itself, then a view for each further layer undone, until nothing is encoded any more or
    MAX_ENCODING_LAYERS are."""
    view: View | None = View(text)
    for _ in range(MAX_ENCODING_LAYERS + 1):
        if view is None:
            return
        yield view
        view = (
            _substituted_view(view, _ENCODED_PIECE, _decode_piece)
            if any(sign in view.text for sign in _ENCODING_SIGNS)
            else None
        )


def unquoted_view(view: View) -> View:
    """The view without its quotes, backslashes and colours, so that a word is found however it is put together."""
    return _substituted_view(view, _JOINT_RUN, lambda _: "") or view


def fully_decoded_text(text: str) -> str:
    """The text with every layer of encoding undone."""
    return list(decoded_views(text))[-1].text


def _substituted_view(view: View, pattern: re.Pattern[str], read: Callable[[re.Match[str]], str]) -> View | None:
    """A view with `read` applied to every match of the pattern; None if that changes nothing."""
    parts: list[str] = []
    pieces: list[tuple[int, int, int, bool]] = []
    at = length = 0
    for match in pattern.finditer(view.text):
        decoded = read(match)
        if decoded == match[0]:
            continue
        if match.start() > at:
            parts.append(view.text[at : match.start()])
            pieces.append((length, at, match.start(), True))
            length += match.start() - at
        if decoded:
            parts.append(decoded)
            pieces.append((length, match.start(), match.end(), False))
            length += len(decoded)
        at = match.end()
    if at == 0:
        return None
    if at < len(view.text):
        parts.append(view.text[at:])
        pieces.append((length, at, len(view.text), True))
    return View("".join(parts), view, pieces) if pieces else None


def _decode_piece(match: re.Match[str]) -> str:
    kind, found = match.lastgroup, match[match.lastgroup or 0]
    if kind == "colour":
        return COLOUR_PLACEHOLDER
    if kind == "quote":
        return "'"
    if kind == "pair":
        return chr(0x10000 + ((int(found[2:6], 16) - 0xD800) << 10) + (int(found[8:12], 16) - 0xDC00))
    if kind in ("unit", "braced", "long"):
        code = int(found, 16)
        return chr(code) if code < 0x110000 else found
    if kind == "bytes":
        return _decode_bytes(bytes.fromhex(found.replace("\\x", "")))
    if kind == "octal":
        return _decode_bytes(bytes(int(part, 8) for part in found.split("\\")[1:]))
    if kind == "percent":
        return _decode_bytes(bytes.fromhex(found.replace("%", "")))
    if kind == "entity":
        return unescape(found)
    return _BACKSLASH_ESCAPES.get(found, found)


def _decode_bytes(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")
