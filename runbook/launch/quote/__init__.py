"""How a value becomes a literal of a shell, or is refused. Nothing else may put a value into a script.

`sh`, `bat` and `ps1` each say what their shell carries; what they have in common stands here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

from runbook.files.environment_values import UNCARRIABLE

NAME = re.compile(r"\A[A-Za-z_][A-Za-z0-9_]*\Z")


class Literal(str):
    """Text that is safe in the shell it was made for, which is what its subclass says."""

    __slots__ = ()


class Word(str):
    """A word of the command that reaches the program as it is, whatever it begins with."""

    __slots__ = ()


class CannotQuote(ValueError):
    """The shell has no way to carry this value: `reason` says which character and why, without the value itself.

    `place` is where in the spec the value stands: ("environment", NAME), ("process", LOCAL_RANK, NAME),
    ("unset", NAME), ("command", NUMBER), ("activate",), ("workdir",), ("address",) or ("python",).
    """

    def __init__(self, reason: str, value: str | None = None, place: tuple[str, ...] = ()) -> None:
        super().__init__(reason if value is None else f"{shown(value)} {reason}")
        self.reason = reason
        self.value = value
        self.place = place


@dataclass(frozen=True, slots=True)
class Dialect:
    """One shell: its kind of literal, the filters its templates print values through, and the bytes of its scripts.

    `setting` makes the statement that puts NAME and VALUE into the environment. `check_names` and `check_command`
    refuse combinations of values.
    """

    literal: type[Literal]
    filters: Mapping[str, Callable[..., object]]
    setting: Callable[[object, object], Literal]
    check_names: Callable[[Sequence[str]], None]
    check_command: Callable[[Sequence[str]], None]
    encode: Callable[[str], bytes]


def dialect_of(shell: str) -> Dialect:
    """That of sh, bat or ps1: the DIALECT of the module of its name here."""
    found: Dialect = import_module(f"{__name__}.{shell}").DIALECT
    return found


def one_line(value: object) -> str:
    """The text of a value that some shell could carry: NUL, CR, LF and half of a surrogate pair are refused."""
    text = str(value)
    refused = UNCARRIABLE.search(text)
    if refused:
        what = {"\0": "NUL", "\r": "a carriage return", "\n": "a line break"}.get(
            refused[0], "half of a surrogate pair"
        )
        raise CannotQuote(f"contains {what}, which a launch script cannot carry", text)
    return text


def not_empty(name: object, value: object, shell: str) -> None:
    """Refuses an empty value where the shell would remove the variable instead. Raises CannotQuote."""
    if str(value) == "":
        instead = "for no GPU at all write -1" if str(name).upper() == "CUDA_VISIBLE_DEVICES" else "leave it out"
        raise CannotQuote(f"is nothing, and {shell} removes a variable that is set to nothing: {instead}", "")


def shown(text: str) -> str:
    """A value as an error message shows it: escaped and shortened."""
    quoted = ascii(text)
    return quoted if len(quoted) <= 60 else f"{quoted[:40]}…{quoted[-16:]}"


def checked_name(value: object) -> str:
    """The name of an environment variable that every shell can set."""
    text = str(value)
    if not NAME.match(text):
        raise CannotQuote("is not a name for an environment variable: letters, digits and _, no digit first", text)
    return text


def printable(value: object) -> str:
    """Text for people: one line, nothing that moves the cursor."""
    text = str(value)
    return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)


def nothing_to_check(_: Sequence[str]) -> None:
    """For shells in which values need no special form."""
