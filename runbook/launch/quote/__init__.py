"""Turns a value into a literal of a shell, or refuses it. Nothing else may put a value into a script.

The modules `sh`, `bat` and `ps1` say what each shell can carry; this module holds what they have in common.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

from runbook.files.environment_values import UNQUOTABLE_CHARACTER

VARIABLE_NAME = re.compile(r"\A[A-Za-z_][A-Za-z0-9_]*\Z")
"""The names of environment variables that every shell can set."""


class Literal(str):
    """Text that is safe in one shell; each shell has a subclass of its own."""

    __slots__ = ()


class Word(str):
    """A word of a command that reaches the program as it is, even if it begins with `./` or `~/`."""

    __slots__ = ()


class CannotQuote(ValueError):
    """The shell cannot carry a value. `reason` says which character is refused and why, without the value itself.

    `place` is where in the spec the value stands: ("environment", VARIABLE_NAME), ("process", LOCAL_RANK,
    VARIABLE_NAME), ("unset", VARIABLE_NAME), ("command", NUMBER), ("activate",), ("workdir",), ("address",) or
    ("python",).
    """

    def __init__(self, reason: str, value: str | None = None, place: tuple[str, ...] = ()) -> None:
        super().__init__(reason if value is None else f"{shown(value)} {reason}")
        self.reason = reason
        self.value = value
        self.place = place


@dataclass(frozen=True, slots=True)
class Dialect:
    """One shell: its kind of literal, the filters through which its templates print values, and the bytes of its
    scripts (`encode`).

    `setting` makes the statement that puts VARIABLE_NAME and VALUE into the environment. `check_names` and
    `check_command` refuse combinations of values. All of them raise CannotQuote.
    """

    literal: type[Literal]
    filters: Mapping[str, Callable[..., object]]
    setting: Callable[[object, object], Literal]
    check_names: Callable[[Sequence[str]], None]
    check_command: Callable[[Sequence[str]], None]
    encode: Callable[[str], bytes]


def dialect_of(shell: str) -> Dialect:
    """The dialect of sh, bat or ps1: DIALECT in the module of that name."""
    found: Dialect = import_module(f"{__name__}.{shell}").DIALECT
    return found


def one_line(value: object) -> str:
    """The text of a value. Raises CannotQuote for NUL, CR, LF and half of a surrogate pair, which no shell can
    carry."""
    text = str(value)
    refused = UNQUOTABLE_CHARACTER.search(text)
    if refused:
        what = {"\0": "NUL", "\r": "a carriage return", "\n": "a line break"}.get(
            refused[0], "half of a surrogate pair"
        )
        raise CannotQuote(f"contains {what}, which a launch script cannot carry", text)
    return text


def not_empty(name: object, value: object, shell: str) -> None:
    """Raises CannotQuote for an empty value: `shell` would remove the variable instead of setting it."""
    if str(value) == "":
        instead = "for no GPU at all write -1" if str(name).upper() == "CUDA_VISIBLE_DEVICES" else "leave it out"
        raise CannotQuote(f"is nothing, and {shell} removes a variable that is set to nothing: {instead}", "")


def shown(text: str) -> str:
    """A value as an error message shows it: escaped and shortened."""
    quoted = ascii(text)
    return quoted if len(quoted) <= 60 else f"{quoted[:40]}…{quoted[-16:]}"


def checked_name(value: object) -> str:
    """The name of an environment variable, if every shell can set it. Raises CannotQuote."""
    text = str(value)
    if not VARIABLE_NAME.match(text):
        raise CannotQuote("is not a name for an environment variable: letters, digits and _, no digit first", text)
    return text


def printable(value: object) -> str:
    """The value as text for people: one line, with `?` for characters that would move the cursor."""
    text = str(value)
    return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)


def nothing_to_check(_: Sequence[str]) -> None:
    """A check that refuses nothing, for shells in which no combination of values is a problem."""
