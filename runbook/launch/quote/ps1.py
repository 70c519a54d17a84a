"""Literals of PowerShell, for Windows PowerShell 5.1 and 7 alike: text in single quotes, with quotes inside doubled,
typographic ones too."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runbook.launch.quote import CannotQuote, Dialect, Literal, Word, checked_name, not_empty, one_line, printable
from runbook.launch.quote.bat import ABSOLUTE_PATH_START, check_names

SINGLE_QUOTES = "'\u2018\u2019\u201a\u201b"
"""The characters that end a single-quoted string in PowerShell."""

MAX_UTF16_UNITS = 32_766
"""The most UTF-16 units of a variable or a command line in Windows."""

_SINGLE_QUOTE = re.compile(f"([{SINGLE_QUOTES}])")


class Ps1(Literal):
    """Text that is safe in PowerShell."""

    __slots__ = ()


def word(value: object) -> Ps1:
    """The literal for one string, whatever it contains. Raises CannotQuote if it is too long."""
    text = one_line(value)
    if _units(text) > MAX_UTF16_UNITS:
        raise CannotQuote(f"is longer than {MAX_UTF16_UNITS} characters: Windows hands no program such a word", text)
    return Ps1("'" + _SINGLE_QUOTE.sub(r"\1\1", text) + "'")


def argument(value: object) -> Ps1:
    """The literal for a word of the command: `./x` lies beside the script, `~/x` in the home folder."""
    text = one_line(value)
    if isinstance(value, Word):
        return word(text)
    return Ps1(f"($runbookHere + {word(_path(text[1:]))})") if text.startswith("./") else _home(text)


def place(value: object) -> Ps1:
    """The literal for a path; only `~/` at its beginning is interpreted."""
    text = one_line(value)
    return _home(f"~/{text[2:]}") if text.startswith("~\\") else _home(text)


def folder(value: object) -> Ps1:
    """The literal for the folder to work in: absolute, under the home folder, or else beside the script."""
    text = one_line(value)
    if text == "~":
        return Ps1("$HOME")
    return place(text) if ABSOLUTE_PATH_START.match(text) else argument(f"./{text.removeprefix('./')}")


def name(value: object) -> Ps1:
    """The literal for the name of an environment variable."""
    return Ps1(checked_name(value))


def setting(key: object, value: object) -> Ps1:
    """The statement that puts one variable into the environment. An empty value, which would remove it, is refused."""
    not_empty(key, value, "PowerShell")
    return Ps1(f"$env:{name(key)} = {word(value)}")


def number(value: object) -> Ps1:
    """The literal for a whole number."""
    return Ps1(int(str(value)))


def comment(value: object) -> Ps1:
    """Text inside a comment."""
    return Ps1(printable(value))


def line(value: object) -> Ps1:
    """The user's `activate:` line, to be run as it stands."""
    text = one_line(value)
    if text.endswith("`"):
        raise CannotQuote("ends with a backtick, which would take the next line of the script into it", text)
    return Ps1(text)


def check_command(words: Sequence[str]) -> None:
    """Raises CannotQuote for a command that is too long for Windows. Each word counts with the most quoting it may
    need."""
    length = sum(_units(one) + one.count('"') + one.count("\\") + 3 for one in words)
    if length > MAX_UTF16_UNITS:
        raise CannotQuote(
            f"makes a command line of {length} characters, and Windows takes {MAX_UTF16_UNITS} at most", words[0]
        )


def encode(text: str) -> bytes:
    """The script's bytes: CRLF, and UTF-8 with a BOM, without which PowerShell 5.1 reads the ANSI code page."""
    return text.replace("\n", "\r\n").encode("utf-8-sig")


def _home(text: str) -> Ps1:
    return Ps1(f"($HOME + {word(_path(text[1:]))})") if text.startswith("~/") else word(text)


def _path(text: str) -> str:
    return text.replace("/", "\\")


def _units(text: str) -> int:
    """The length of a text in UTF-16 units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2


DIALECT = Dialect(
    Ps1,
    {one.__name__: one for one in (word, argument, place, folder, name, setting, number, comment, line)},
    setting,
    check_names,
    check_command,
    encode,
)
