"""How a value becomes a literal of a shell, or is refused. Nothing else may put a value into a script."""

from __future__ import annotations

import re
import shlex

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Literal(str):
    """Text that is already safe in the shell it was made for. The renderer prints nothing else."""

    __slots__ = ()


class CannotQuote(ValueError):
    """The shell has no way to carry this value; the message says which character and why."""


def sh(value: object) -> Literal:
    """A POSIX shell word. NUL, CR and LF are refused: no shell carries them the same way."""
    text = str(value)
    for character, name in (("\0", "NUL"), ("\r", "a carriage return"), ("\n", "a line break")):
        if character in text:
            raise CannotQuote(f"the value {text!r} contains {name}, which a launch script cannot carry")
    return Literal(shlex.quote(text))


def name(value: object) -> Literal:
    """The name of an environment variable."""
    text = str(value)
    if not NAME.match(text):
        raise CannotQuote(f"{text!r} is not a name for an environment variable: letters, digits and _ only")
    return Literal(text)


def comment(value: object) -> Literal:
    """Text inside a comment: one line, printable."""
    return Literal("".join(character if character.isprintable() else "?" for character in str(value)))


def raw(value: object) -> Literal:
    """A line of shell that the user wrote to be run as shell: `activate`. Still only one line."""
    text = str(value)
    if any(character in text for character in "\0\r\n"):
        raise CannotQuote(f"the line {text!r} must be one line")
    return Literal(text)
