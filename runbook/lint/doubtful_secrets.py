"""What may be a secret on a line that no YAML reader understands: all that stands behind, or below, a name that says
so.

A line that is shown with too many stars can still be found by its number; one with too few cannot be taken back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from runbook.collect.known_names import Place
from runbook.model.secrets import may_name_secret

_ABOVE = 60  # lines that are looked at above one
_LONGEST = 2000  # characters of each of these
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_HINT = re.compile(r"(?i)pass|pwd|token|secret|credential|key|auth|jwt|cookie|session")
_JOINT = re.compile(r"[\s\"'`:=,>)\]]*")
_HARMLESS = re.compile(
    r"[\"']?(?:\$\{?(?:[A-Z_][A-Z0-9_]*|[a-z_]+)\}?|\{\{\s*[a-z_.]+\s*\}\}|\{\s*env:\s*[A-Za-z_]+[A-Z0-9_]*\s*\}"
    r"|<[a-z _-]*>|\*+|[Tt]rue|[Ff]alse|[Nn]ull|[Nn]one|yes|no|~|[a-z](?=\s*[,}])|[0-9]{1,5})"
    r"[\"']?(?=\s*(?:[,}\])#&|;]|$))"
)
_KEY = re.compile(r"\s*(?:-\s+)*[\"']?(?P<key>[\w.-]+)[\"']?\s*:(?:\s|$)")
_OF_A_NAME = {"value", "val", "default", "content", "data", "literal"}
_QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"")
_WORD = re.compile(r"[^\s\"'`,;:=\[\]{}()<>&*!|#%@?\\/$-]{6,}")


def doubtful_places(lines: Sequence[str], number: int) -> Iterator[Place]:
    """Of the line of this number, which counts from 1."""
    line = lines[number - 1]
    login, host = line.find("://") + 3, line.rfind("@")
    if 2 < login < host and (colon := line.find(":", login, host)) > 0 and not _HARMLESS.match(line[colon + 1 : host]):
        yield colon + 1, host
    begins = _behind_a_name(line)
    if begins is None and _below_a_name(lines, number):
        begins = len(line) - len(line.lstrip(" \t-\"'"))
    if begins is not None:
        yield begins, max(begins, len(line.rstrip(" \t\r,;)}]\"'")))


def words_of(text: str) -> list[str]:
    """Those of a doubtful text that another sentence may quote."""
    return [word for word in _WORD.findall(text) if any(char.isdigit() for char in word)]


def without_doubtful(message: str) -> str:
    """A message that quotes a value, which may go on behind the line that is shown."""
    return _QUOTED.sub(lambda match: _starred(match[0]), message) if _HINT.search(message) else message


def _starred(quoted: str) -> str:
    begins = _behind_a_name(quoted[:-1])
    return quoted if begins is None else f"{quoted[:begins]}***{quoted[-1]}"


def _behind_a_name(line: str) -> int | None:
    """Where the first thing begins that may be a secret."""
    if not _HINT.search(line):
        return None
    for match in _NAME.finditer(line):
        if may_name_secret(match[0].strip(".-")) is None:
            continue
        start = _joint_end(line, match.end())
        if (
            line[max(0, match.start() - 2) : match.start()].endswith(("$", "${"))
            and "=" not in line[match.end() : start]
        ):
            continue  # it stands for one
        if start < len(line) and not _HARMLESS.match(line, start) and not _HARMLESS.match(line, match.end()):
            return start
    return None


def _joint_end(line: str, at: int) -> int:
    joint = _JOINT.match(line, at)
    return joint.end() if joint else at


def _below_a_name(lines: Sequence[str], number: int) -> bool:
    line = lines[number - 1]
    level, key = _indent(line), _KEY.match(line[:_LONGEST])
    dash = line.lstrip().startswith("- ")
    for above in reversed(lines[max(0, number - 1 - _ABOVE) : number - 1]):
        text = above[:_LONGEST]
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        indent = _indent(text)
        if dash and text.lstrip().startswith("- ") and indent >= level:
            continue  # a neighbour in the same list
        if key is None or key["key"].lower() in _OF_A_NAME or indent < level:
            if _leaves_open(text):
                return True
            if _KEY.match(text) and (key is None or indent < level):
                if indent == 0 or key is None:
                    return False
                level = indent
            elif key is not None and indent < level:
                level = indent
    return False


def _leaves_open(line: str) -> bool:
    """Whether a line names a secret that may stand below it."""
    if not _HINT.search(line):
        return False
    if _behind_a_name(line) is not None:
        return True
    names = [match for match in _NAME.finditer(line) if may_name_secret(match[0].strip(".-"))]
    return bool(names) and not line[_joint_end(line, names[-1].end()) :].strip()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
