"""A node's answer to `collect`, checked field by field: a node is not trusted, and what it says becomes files here.

An answer as a whole that does not fit is refused; one tool's part that does not fit is left out, and the others stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

STATUSES = ("ok", "missing", "denied", "timeout", "failed")
MOST_ANSWERS = 400
MOST_TEXT = 512 * 1024
"""Characters of one tool's output: twice what the program on the node keeps."""
MOST_ERRORS = 64 * 1024
LONGEST_COMMAND = 8192
MOST_PEOPLE = 25_000
MOST_HOSTNAMES = 20_000
LONGEST_WORD = 256
_NAME = re.compile(r"(?:[a-z][a-z0-9-]{0,31}/)?[A-Za-z0-9](?:[A-Za-z0-9_.+@-]{0,78}[A-Za-z0-9_+-])?")


class DoesNotFit(ValueError):
    """Which field of an answer is not what the program on the node says."""


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What one tool or file gave. `left_out` counts bytes; `code` is None where nothing ended."""

    name: str
    command: str
    status: str
    code: int | None
    seconds: float
    out: str
    err: str
    left_out: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything of one node. `misfits`: the parts that were left out, each as a name to show and why."""

    tools: tuple[ToolAnswer, ...]
    misfits: tuple[tuple[str, str], ...]
    people: tuple[tuple[str, str, str], ...]  # login name, home, full name
    hostnames: tuple[str, ...]
    seconds: float


def checked(said: object) -> Answer:
    """Raises DoesNotFit where nothing of it can be used."""
    if not isinstance(said, Mapping):
        raise DoesNotFit("the answer is no mapping")
    parts = said.get("answers")
    if not isinstance(parts, list):
        raise DoesNotFit("`answers` is no list")
    tools: dict[str, ToolAnswer] = {}
    misfits: list[tuple[str, str]] = []
    for number, part in enumerate(parts[:MOST_ANSWERS], 1):
        try:
            tool = _tool(part)
        except DoesNotFit as wrong:
            misfits.append((f"answer-{number}", str(wrong)))
            continue
        if tools.setdefault(file_name(tool).casefold(), tool) is not tool:
            misfits.append((f"answer-{number}", f"there is a {file_name(tool)} already"))
    if len(parts) > MOST_ANSWERS:
        misfits.append(("answers", f"{len(parts) - MOST_ANSWERS} more than the {MOST_ANSWERS} that are taken"))
    return Answer(
        tuple(tools.values()),
        tuple(misfits),
        tuple(_people(said.get("users"))),
        tuple(_hostnames(said.get("hostnames"))),
        _number(said.get("seconds"), "seconds"),
    )


def file_name(tool: ToolAnswer) -> str:
    """Its place below the node's folder."""
    return tool.name + ("" if "." in tool.name.rpartition("/")[2] else ".txt")


def _tool(part: object) -> ToolAnswer:
    if not isinstance(part, Mapping):
        raise DoesNotFit("it is no mapping")
    name, status, code = part.get("name"), part.get("status"), part.get("code")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or ".." in name:
        raise DoesNotFit(f"`name` is none of a tool's: {_shown(name)}")
    if not isinstance(status, str) or status not in STATUSES:
        raise DoesNotFit(f"`status` of {name} is {_shown(status)}")
    if code is not None and (not isinstance(code, int) or isinstance(code, bool) or abs(code) > 1 << 32):
        raise DoesNotFit(f"`code` of {name} is {_shown(code)}")
    left_out = part.get("left_out")
    if not isinstance(left_out, int) or isinstance(left_out, bool) or not 0 <= left_out < 1 << 60:
        raise DoesNotFit(f"`left_out` of {name} is {_shown(left_out)}")
    out, more = _cut(_text(part, "out", name), MOST_TEXT)
    err, _ = _cut(_text(part, "err", name), MOST_ERRORS)
    command = on_one_line(_text(part, "command", name), LONGEST_COMMAND)
    seconds = _number(part.get("seconds"), f"`seconds` of {name}")
    return ToolAnswer(name, command, status, code, seconds, out, err, left_out + more)


def on_one_line(text: str, most: int) -> str:
    """The beginning, with a space for whatever is not shown."""
    return "".join(char if char.isprintable() else " " for char in text[:most])


def _text(part: Mapping[str, object], field: str, name: str) -> str:
    text = part.get(field)
    if not isinstance(text, str):
        raise DoesNotFit(f"`{field}` of {name} is {_shown(text)}")
    return text


def _cut(text: str, most: int) -> tuple[str, int]:
    """The beginning, whole lines of it, and how many characters are left out; half a secret is one."""
    if len(text) <= most:
        return text, 0
    kept = text[: text.rfind("\n", 0, most) + 1]
    return kept, len(text) - len(kept)


def _number(value: object, field: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1e6:  # nor NaN
        raise DoesNotFit(f"{field} is {_shown(value)}")
    return float(value)


def _people(said: object) -> Iterator[tuple[str, str, str]]:
    """Whose names are to be taken out: an answer that hides them is not used at all."""
    if not isinstance(said, list):
        raise DoesNotFit("`users` is no list")
    if len(said) > MOST_PEOPLE:
        raise DoesNotFit(f"`users` holds {len(said)}, more than {MOST_PEOPLE}")
    for person in said:
        if not (isinstance(person, list) and len(person) == 3 and all(isinstance(word, str) for word in person)):
            raise DoesNotFit(f"`users` holds {_shown(person)}")
        yield person[0][:LONGEST_WORD], person[1][: 16 * LONGEST_WORD], person[2][:LONGEST_WORD]


def _hostnames(said: object) -> Iterator[str]:
    if not isinstance(said, list):
        raise DoesNotFit("`hostnames` is no list")
    for name in said[:MOST_HOSTNAMES]:
        if not isinstance(name, str):
            raise DoesNotFit(f"`hostnames` holds {_shown(name)}")
        yield name[:LONGEST_WORD]


def _shown(value: object) -> str:
    """What stands in a field's place, short and harmless: of a text its beginning, of anything else its kind."""
    if isinstance(value, str):
        return ascii(value[:40])
    if value is None:
        return "missing"
    return f"of the kind {type(value).__name__}"
