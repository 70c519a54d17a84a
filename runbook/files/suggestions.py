"""Suggests what was meant by a mistyped word: the nearest known word, or a colon or a space that was left out."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence

from runbook.model.safe_text import visible_text

_ASCII_EQUIVALENTS = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u2039\u203a", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
        "\u3001": ",",
        "\u3002": ".",
        "\u3010": "[",
        "\u3011": "]",
    }
)


def nearest_word(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like `word`, upper and lower case alike; None if none is close."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A help sentence with the nearest known word, or else with all known words if they are few; None otherwise."""
    names = list(known)
    near = nearest_word(word, names[:5000])  # difflib takes 20 microseconds a name
    if near is not None:
        odd = odd_letter_help(word)
        return f"did you mean `{near}`?" + (f" {odd}" if odd else "")
    return known_names_help(names)


def odd_letter_help(word: str) -> str | None:
    """A sentence that names the first sign beyond ASCII in a word that is ASCII otherwise: it may look like a sign of
    ASCII, or be invisible. None if there is no such sign."""
    odd = next((char for char in word if not char.isascii()), None)
    if odd is None or not any(char.isascii() and char.isalnum() for char in word):
        return None
    return f"`{visible_text(odd)}` in it is {unicodedata.name(odd, 'no letter')} (U+{ord(odd):04X})"


def with_ascii_signs(text: str) -> str:
    """The text with the signs of wide keyboards and word processors as ASCII has them, and without invisible signs."""
    narrow = unicodedata.normalize("NFKC", text).translate(_ASCII_EQUIVALENTS)
    return "".join(char for char in narrow if unicodedata.category(char) != "Cf").strip()


def known_names_help(names: Sequence[str]) -> str | None:
    """A help sentence that lists all names; None if there are none, or more than 20."""
    return "known here: " + ", ".join(names) if 0 < len(names) <= 20 else None


# A colon or a space that was left out between a key and its value: `port 29500`, `address:10.0.0.1`, `gpus=8`.

_NAME_AND_VALUE = re.compile(r"(?P<name>[A-Za-z_][\w.-]*)(?P<between>\s*[:=\uff1a]\s*|\s+)(?P<value>\S.*)", re.DOTALL)
_NEXT_KEY = re.compile(r"(?<!\s)\s+(?=[A-Za-z_][\w-]*[:=])")
_BARE_KEY = re.compile(r"[A-Za-z_][\w.-]*")
_FULLWIDTH_COLON = "\uff1a"  # of Chinese and Japanese keyboards
_MAX_SHOWN_CHARACTERS = 60  # characters of a line that is written out as it should be


def split_joined_key(text: str, *, name: bool = False) -> tuple[str, str] | None:
    """The key that was meant and the help, for a text that is a key and a value without the `: ` between; None for
    other text. With `name` the text is a name that the user chose, in which a blank may have been meant.
    """
    found = _NAME_AND_VALUE.fullmatch(text.strip())
    if found is None or found["value"].startswith("//"):
        return None
    between = found["between"].strip()
    if name and not between and found["value"][0] not in "[{":
        return None
    if between == ":":
        missing = "a space is missing after the colon"
    elif between == _FULLWIDTH_COLON:
        missing = f"`{_FULLWIDTH_COLON}` is not a colon in YAML"
    elif between == "=":
        missing = "a key is followed by a colon and a space, not by `=`"
    else:
        missing = "a colon is missing"
    value = found["value"]
    if between and _NEXT_KEY.search(value):  # YAML joins the lines of such a mapping into one text
        return found["name"], f"{missing}, on every line of it: `{found['name']}: {_NEXT_KEY.split(value)[0]}`"
    bracket = re.match(r"[\[{]", value)
    shown = (
        f"{bracket.group()}…"
        if bracket
        else value
        if len(value) <= _MAX_SHOWN_CHARACTERS
        else f"{value[:_MAX_SHOWN_CHARACTERS]}…"
    )
    return found["name"], f"{missing}: `{found['name']}: {shown}`"


def missing_colon_help(line: str) -> str | None:
    """The help for a line that was meant as a key, with or without a value, but lacks its colon; None for a line that
    may be right."""
    text = re.sub(r"^\s*(- +)*", "", line)
    text = re.sub(r"(?<!\S)#.*$", "", text).rstrip()
    if _BARE_KEY.fullmatch(text):
        return f"a colon is missing: `{text}:`"
    if text.endswith(_FULLWIDTH_COLON) and _BARE_KEY.fullmatch(text[:-1]):
        return f"`{_FULLWIDTH_COLON}` is not a colon in YAML: `{text[:-1]}:`"
    if ": " in text or text.endswith(":"):
        return None
    found = split_joined_key(text)
    return None if found is None else found[1]
