"""Literals of a POSIX shell (sh, dash, bash, ksh): single quotes carry every character but NUL."""

from __future__ import annotations

import re

from runbook.launch.quote import (
    CannotQuote,
    Dialect,
    Literal,
    Word,
    checked_name,
    nothing_to_check,
    one_line,
    printable,
)

MAX_ARGUMENT_BYTES = 131_071
"""The most bytes of an argument or a `NAME=value` that Linux passes to a program (MAX_ARG_STRLEN)."""

SHELL_VARIABLES = frozenset(
    """BASHOPTS BASHPID BASH_ALIASES BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_CMDS BASH_COMMAND BASH_LINENO BASH_SOURCE
    BASH_SUBSHELL BASH_VERSINFO DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME GROUPS HISTCMD IFS LINENO OLDPWD
    OPTIND PIPESTATUS PPID PWD RANDOM SECONDS SHELLOPTS SHLVL SRANDOM UID _""".split()
)
"""Names of variables that dash or bash set or use themselves: a value for one would not arrive, or break the script."""

SHELL_KEYWORDS = frozenset("case do done elif else esac fi for function if in select then time until while".split())
"""Reserved words of a shell; they are quoted for the sake of people who read the script."""

_SHELL_SAFE_WORD = re.compile(r"\A[A-Za-z0-9_./:,@%+-][A-Za-z0-9_./:,@%+=-]*\Z")
"""A word that needs no quotes."""


class Sh(Literal):
    """Text that is safe in a POSIX shell."""

    __slots__ = ()


def word(value: object) -> Sh:
    """The literal for one word, whatever it contains. Raises CannotQuote if it is too long."""
    text = one_line(value)
    if len(text) > MAX_ARGUMENT_BYTES // 4 and len(text.encode()) > MAX_ARGUMENT_BYTES:
        raise CannotQuote(f"is longer than {MAX_ARGUMENT_BYTES} bytes: Linux hands no program such a word", text)
    return Sh(
        text
        if _SHELL_SAFE_WORD.match(text) and text not in SHELL_KEYWORDS
        else "'" + text.replace("'", "'\"'\"'") + "'"
    )


def argument(value: object) -> Sh:
    """The literal for a word of the command: `./x` lies beside the script, `~/x` in the home folder."""
    text = one_line(value)
    if isinstance(value, Word):
        return word(text)
    return Sh(f'"$runbook_here"/{_rest(text[2:])}') if text.startswith("./") else place(text)


def place(value: object) -> Sh:
    """The literal for a path; only `~/` at its beginning is interpreted."""
    text = one_line(value)
    return Sh(f'"$HOME"/{_rest(text[2:])}') if text.startswith("~/") else word(text)


def folder(value: object) -> Sh:
    """The literal for the folder to work in: absolute, under the home folder, or else beside the script."""
    text = one_line(value)
    if text == "~":
        return Sh('"$HOME"')
    return place(text) if text.startswith(("/", "~/")) else argument(f"./{text.removeprefix('./')}")


def name(value: object) -> Sh:
    """The literal for the name of an environment variable. Raises CannotQuote for names of the shell and of the
    script."""
    text = checked_name(value)
    if text in SHELL_VARIABLES or text.startswith("runbook_"):
        raise CannotQuote("is a variable of the shell's or of the script's own: give yours another name", text)
    return Sh(text)


def setting(key: object, value: object) -> Sh:
    """The statement that puts one variable into the environment."""
    if len(str(value)) > MAX_ARGUMENT_BYTES // 5 and len(f"{key}={one_line(value)}".encode()) > MAX_ARGUMENT_BYTES:
        raise CannotQuote(
            f"is, with its name, longer than {MAX_ARGUMENT_BYTES} bytes: Linux hands on no more", str(value)
        )
    return Sh(f"export {name(key)}={word(value)}")


def comment(value: object) -> Sh:
    """Text inside a comment."""
    return Sh(printable(value))


def line(value: object) -> Sh:
    """The literal for the user's `activate:` line, to be run by `eval` as it stands."""
    text = one_line(value)
    if text.endswith("\\"):
        raise CannotQuote("ends with a backslash, as a line that goes on, and nothing comes after it", text)
    return word(text)


def encode(text: str) -> bytes:
    """The script's bytes: LF, UTF-8, no BOM."""
    return text.encode()


def _rest(path: str) -> str:
    return word(path) if path else ""


DIALECT = Dialect(
    Sh,
    {one.__name__: one for one in (word, argument, place, folder, name, setting, comment, line)},
    setting,
    nothing_to_check,
    nothing_to_check,
    encode,
)
