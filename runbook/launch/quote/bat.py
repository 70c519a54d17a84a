"""Literals of cmd.exe, and of the C runtime that splits a command line after it.

Every value stands in double quotes, which protect `& | < > ^ ( )` and spaces; `%` is doubled; `!` is not special, since
the script turns delayed expansion off. A double quote would end the quotes and cannot be escaped, so it is refused.

Values are ASCII only: cmd reads a batch file in the code page of its console. `chcp 65001` in the file does not help:
without a console (a service, an SSH login without a terminal) it fails, and under Wine, where we test, it has no
effect."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runbook.launch.quote import CannotQuote, Dialect, Literal, Word, checked_name, not_empty, one_line

MAX_CMD_LINE_CHARACTERS = 8191
"""The most characters of a line that cmd takes, before and after it has put the variables in."""

FOLDER_RESERVE_CHARACTERS = 260
"""The characters kept free in a line for each folder or program that is known only on the machine (MAX_PATH)."""

CMD_VARIABLES = frozenset(
    ("CD", "CMDCMDLINE", "CMDEXTVERSION", "DATE", "ERRORLEVEL", "HIGHESTNUMANODENUMBER", "RANDOM", "TIME")
)
"""Names of variables that cmd computes: a variable of the same name would hide the computed one, such as the exit
code."""

_CMD_WORD = r'(?:"[^"]*"|[^\s"=&|()]+)'
_IF = (
    rf"if\s+(?:/i\s+)?(?:not\s+)?(?:(?:exist|defined|errorlevel)\s+{_CMD_WORD}"
    rf"|{_CMD_WORD}\s*(?:==|(?:equ|neq|lss|leq|gtr|geq)\s)\s*{_CMD_WORD})\s"
)
_FOR = r'for\s+(?:/[a-z]\s+(?:"[^"]*"\s+)?)?%%?\w\s+in\s*\([^)]*\)\s*do\s'
_LEADING_COMMAND = re.compile(  # where a command begins, and the command itself
    rf'((?:\A|&&?|\|\|)[\s@(]*(?:(?:{_IF}|{_FOR})[\s@(]*)*)((?:"[^"]*"?|\^.|>&|\|(?!\|)|[^"^&|])+)', re.IGNORECASE
)
_BUILTIN_COMMAND = re.compile(r"(?:call|cd|echo|exit|for|if|path|pushd|rem|set|start)(?:\s|\Z)", re.IGNORECASE)
"""Commands that are built into cmd, and need no `call`."""
_SWITCH = re.compile(r"/[A-Za-z0-9]+\Z")
"""A switch such as `/c`, which needs no quotes."""
_CALL_SPECIAL_CHARACTERS = re.compile(r"[%^!]|/\?")
"""Characters that `call` interprets once more."""
_BATCH_FILE_ENDINGS = (".bat", ".cmd")
"""The endings of batch files."""
ABSOLUTE_PATH_START = re.compile(r"~?[/\\]|[A-Za-z]:")
"""The beginning of a path that does not depend on the working directory."""
_OWN_VARIABLE_PREFIX, _SCRIPT_FOLDER, _USER_PROFILE = "%_runbook_", "%_runbook_here%", "%USERPROFILE%\\"
"""The beginning of the script's own variables, the script's folder, and the home folder."""


class Bat(Literal):
    """Text that is safe in a batch file."""

    __slots__ = ()


def plain(value: object) -> str:
    """The text of a value as it stands between double quotes. Raises CannotQuote."""
    text = one_line(value)
    if '"' in text:
        raise CannotQuote('contains a double quote ("), which a .bat cannot carry: use `shell: ps1`', text)
    if not (text.isascii() and text.isprintable()):
        for character in text:
            if not character.isascii():
                reason = (
                    f"contains {character!a}, and a .bat carries only ASCII, since cmd reads it in the console's code "
                    "page"
                )
                raise CannotQuote(f"{reason}: use `shell: ps1`", text)
            if not character.isprintable() and character != "\t":
                raise CannotQuote(f"contains the control character {character!a}, which a .bat cannot carry", text)
    return text.replace("%", "%%")


def word(value: object) -> Bat:
    """The literal for one argument of a program: backslashes before the closing quote are doubled, as the C runtime
    requires."""
    return _quoted(plain(value))


def argument(value: object) -> Bat:
    """The literal for a word of the command: `./x` lies beside the script, `~/x` in the home folder."""
    text = one_line(value)
    if isinstance(value, Word):
        return Bat(text) if _SWITCH.match(text) else word(text)
    # Both folders end with a backslash here; the dot keeps it from reaching the closing quote.
    if text.startswith("./"):
        return _quoted(f"{_SCRIPT_FOLDER}{_path(text[2:]) or '.'}")
    if text.startswith("~/"):
        return _quoted(f"{_USER_PROFILE}{_path(text[2:]) or '.'}")
    return Bat(text) if _SWITCH.match(text) else word(text)  # cmd, for example, knows its own /c only without quotes


def place(value: object) -> Bat:
    """The literal for a path in cmd's own commands; only `~/` at its beginning is interpreted."""
    return Bat(f'"{_place(one_line(value))}"')


def folder(value: object) -> Bat:
    """The literal for the folder to work in: absolute, under the home folder, or else beside the script."""
    text = one_line(value)
    if re.match(r"[/\\]{2}", text):
        reason = "is a network folder, which cmd cannot work in: give it a drive letter (net use), or use `shell: ps1`"
        raise CannotQuote(reason, text)
    return Bat(f'"{_folder(text)}"')


def beside(value: object) -> Bat:
    """The literal for a file beside the script."""
    return Bat(f'"{_SCRIPT_FOLDER}{plain(value)}"')


def programs(value: object) -> Bat:
    """Literals for the files that may be the command's program, in order of preference. A word without an ending may be
    a real program or a batch file."""
    text = one_line(value)
    return _files(
        text,
        ("",)
        if text.lower().endswith((".exe", ".com", *_BATCH_FILE_ENDINGS))
        else (".exe", ".com", *_BATCH_FILE_ENDINGS),
    )


def interpreters(value: object) -> Bat:
    """Literals for the files that may be Python: real programs, but no batch files."""
    text = one_line(value)
    stem = text[:-4] if text.lower().endswith((".exe", ".com", *_BATCH_FILE_ENDINGS)) else text
    return _files(stem, (".exe", ".com"))


def read_again(words: Sequence[str]) -> bool:
    """Whether a batch file as the program would get one of the words changed: `call` interprets words once more.

    (Double quotes would change as well, but no .bat can carry them.)
    """
    return any(_CALL_SPECIAL_CHARACTERS.search(one) for one in words)


def has_place(words: Sequence[str]) -> bool:
    """Whether one of the words begins with the script's folder or the home folder."""
    return any(one.startswith(("./", "~/")) for one in words if not isinstance(one, Word))


def has_folder(value: object) -> bool:
    """Whether the program is named with its folder, so that it is not looked up through PATH."""
    return any(separator in str(value) for separator in "/\\:")


def name(value: object) -> Bat:
    """The literal for the name of an environment variable. Raises CannotQuote for names of cmd and of the script."""
    text = checked_name(value)
    if text.upper() in CMD_VARIABLES or text.lower().startswith("_runbook_"):
        raise CannotQuote("is a variable of cmd's or of the script's own: give yours another name", text)
    return Bat(text)


def setting(key: object, value: object) -> Bat:
    """The statement that puts one variable into the environment. An empty value, which would remove it, is refused."""
    not_empty(key, value, "cmd")
    made = f'set "{name(key)}={plain(value)}"'
    if len(made) > MAX_CMD_LINE_CHARACTERS:
        reason = (
            f"makes a line of {len(made)} characters, and cmd takes {MAX_CMD_LINE_CHARACTERS} at most: use `shell: ps1`"
        )
        raise CannotQuote(reason, str(value))
    return Bat(made)


def cleared(key: object) -> Bat:
    """The argument with which `set` removes a variable."""
    return Bat(f'"{name(key)}="')


def sentence(key: object, value: object) -> Bat:
    """The statement that stores a sentence for people in a variable of the script. Characters that a .bat cannot carry
    become `?`."""
    kept = re.sub(r"[^\x20-\x7e]", "?", str(value)).replace('"', "'")
    return Bat(f'set "{checked_name(key)}={plain(kept)}"')


def number(value: object) -> Bat:
    """The literal for a whole number."""
    return Bat(int(str(value)))


def label(value: object) -> Bat:
    """The literal for a label of the script, for `goto`."""
    text = str(value)
    if not re.fullmatch(r"[a-z][a-z-]*", text):
        raise ValueError(f"{text!r} is not a label of ours")
    return Bat(text)


def own_file(value: object) -> Bat:
    """The literal for the name of a file of ours, which has no characters to quote."""
    text = str(value)
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", text):
        raise ValueError(f"{text!r} is not a file name of ours")
    return Bat(text)


def comment(value: object) -> Bat:
    """Text for people after `rem` or `echo`, where cmd still interprets `%`, `^`, `&` and the like; these become
    `?`."""
    return Bat(re.sub(r"[^A-Za-z0-9_ .,:;/\\@{}=+*\[\]~'#$-]", "?", str(value)))


def line(value: object) -> Bat:
    """The user's `activate:` line, to be run as it stands.

    A batch file that is started without `call` does not return to the script, so `call` is put before each command of
    the line that is not built into cmd.
    """
    text = one_line(value)
    if not text.isascii():
        raise CannotQuote("is not ASCII, which is all that a .bat carries: use `shell: ps1`", text)
    if text.rstrip().endswith("^"):
        raise CannotQuote("ends with ^, which would take the next line of the script into it", text)
    return Bat(
        _LEADING_COMMAND.sub(lambda one: one[0] if _BUILTIN_COMMAND.match(one[2]) else f"{one[1]}call {one[2]}", text)
    )


def check_names(names: Sequence[str]) -> None:
    """Raises CannotQuote for names that are the same variable on Windows."""
    seen: dict[str, str] = {}
    for one in names:
        other = seen.setdefault(one.upper(), one)
        if other != one:
            raise CannotQuote(f"is the same variable as {other} on Windows, which does not tell case apart", one)


def check_command(words: Sequence[str]) -> None:
    """Raises CannotQuote if the program is a batch file and would get words that are changed on the way to it."""
    if words and words[0].lower().endswith(_BATCH_FILE_ENDINGS) and read_again(words[1:]):
        reason = "is a batch file, which would read %, ^, ! and /? in its words a second time: name the program"
        raise CannotQuote(f"{reason} that it starts, and do in `activate:` what it prepares", words[0])


def encode(text: str) -> bytes:
    """The script's bytes: CRLF, ASCII, no BOM. Raises CannotQuote for a line that cmd would cut."""
    for one in text.replace(" ^\n", " ").split("\n"):  # a line continued with ^ counts as one line
        if (
            len(one) + FOLDER_RESERVE_CHARACTERS * (one.count(_OWN_VARIABLE_PREFIX) + one.count(_USER_PROFILE))
            > MAX_CMD_LINE_CHARACTERS
        ):
            raise CannotQuote(
                f"makes a line that is too long: cmd takes {MAX_CMD_LINE_CHARACTERS} characters at most, "
                "with its folders put in; "
                "use `shell: ps1`",
                one[:40],
            )
    return text.replace("\n", "\r\n").encode("ascii")


def _files(text: str, endings: Sequence[str]) -> Bat:
    """Literals for a program with each of these endings."""
    if set(text) & set('*?<>|"') or not text:
        raise CannotQuote('is not a valid program name on Windows: it is empty or has one of * ? < > | "', text)
    path = f"{_SCRIPT_FOLDER}{_path(text[2:])}" if text.startswith("./") else _place(text)
    return Bat(" ".join(f'"{path}{ending}"' for ending in endings))


def _quoted(inner: str) -> Bat:
    backslashes = len(inner) - len(inner.rstrip("\\"))
    return Bat(f'"{inner}{backslashes * chr(92)}"')


def _place(text: str) -> str:
    return f"{_USER_PROFILE}{_path(text[2:])}" if text.startswith(("~/", "~\\")) else _path(text)


def _folder(text: str) -> str:
    if text == "~":
        return _USER_PROFILE
    return _place(text) if ABSOLUTE_PATH_START.match(text) else f"{_SCRIPT_FOLDER}{_path(text.removeprefix('./'))}"


def _path(text: str) -> str:
    """The text of a path as it stands between double quotes, with backslashes."""
    return plain(text).replace("/", "\\")


DIALECT = Dialect(
    Bat,
    {
        one.__name__: one
        for one in (
            *(word, argument, place, folder, beside, programs, interpreters),
            *(has_folder, has_place, read_again),
            *(name, setting, cleared, sentence, number, label, own_file, comment, line),
        )
    },
    setting,
    check_names,
    check_command,
    encode,
)
