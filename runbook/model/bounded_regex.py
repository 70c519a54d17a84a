"""Regular expressions that take time in proportion to their text, whatever it is."""

from __future__ import annotations

import re
from typing import AnyStr

LONGEST = 300  # repetitions: a gap in a sentence, a name, a number; longer ones do not occur
_QUANTIFIER = r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(?P<least>[0-9]+),\}|(?P<open>[*+])"
_FIRST = r"(?:\(\?[:=!]|\|)\.\*|"
_SOMEWHERE = re.compile(_QUANTIFIER, re.DOTALL)
_AT_THE_START = re.compile(_FIRST + _QUANTIFIER, re.DOTALL)


def bounded(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """As `re.compile`, but nothing is repeated more than LONGEST times.

    A search begins anew at every character: `a.*b` on a text of many a and no b reads all of it for each of them.
    Of a pattern that begins with `^`, what a group or a branch begins with, `^(?!.*a)`, is left as it is: that is tried
    once. Where two repetitions that stand side by side take the same characters this helps little; do not write them.
    """
    if isinstance(pattern, bytes):
        return re.compile(_limited(pattern.decode("latin-1")).encode("latin-1"), flags)
    return re.compile(_limited(pattern), flags)


def _limited(pattern: str) -> str:
    def limit(found: re.Match[str]) -> str:
        if found["open"]:
            return f"{{{int(found['open'] == '+')},{LONGEST}}}"
        return f"{{{found['least']},{max(LONGEST, int(found['least']))}}}" if found["least"] else found[0]

    return (_AT_THE_START if pattern.startswith("^") else _SOMEWHERE).sub(limit, pattern)
