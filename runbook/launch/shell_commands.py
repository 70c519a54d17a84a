"""Takes a line of a POSIX shell apart: its commands, and the operators before them. Nothing is filled in or run."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

_OPERATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|[;|\n]|&(?![>\d])")
_REDIRECTION = re.compile(r"(?:(?<![^\s])\d+|&)?(?:<<<|<<-?|<>|>>|>\||[<>]&?|>)(?!\()[ \t]*")
_WORD_END = re.compile(r"[\s;|&<>()]")


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One command of a line. `operator`: what stands between it and the command before it, such as `&&`; empty for the
    first one, and `(` or `)` where a subshell begins or ends. `text`: the command without redirections."""

    operator: str
    text: str

    def words(self) -> list[str]:
        """Its words, unquoted; `$(…)` and what stands in backticks, in quotes or not, are one word each."""
        try:
            words = shlex.split(self.text)
        except ValueError:
            return []
        return _with_whole_substitutions(words)


@dataclass(slots=True)
class _Scan:
    """How far a line was read: the commands found, and the one that is being read."""

    line: str
    at: int = 0
    operator: str = ""
    text: list[str] = field(default_factory=list)
    found: list[ShellCommand] = field(default_factory=list)
    depth: int = 0  # of `$(`, `<(`, `=(` and `name(`
    ticked: bool = False  # inside backticks
    blank: bool = True  # whether the command that is being read has nothing but white space yet

    def take(self, count: int) -> None:
        self.text.append(self.line[self.at : self.at + count])
        self.blank = self.blank and self.text[-1].isspace()
        self.at += count

    def end_command(self, operator: str, size: int) -> None:
        if text := "".join(self.text).strip():
            self.found.append(ShellCommand(self.operator, text))
            self.operator = operator
        elif operator not in (";", "\n", ")"):
            self.operator = operator
        self.text.clear()
        self.blank = True
        self.at += size

    @property
    def begins_word(self) -> bool:
        return not self.text or self.text[-1][-1:].isspace()


def shell_commands(line: str) -> list[ShellCommand]:
    """The commands of a line; none if a quote in it is not closed."""
    scan = _Scan(line)
    while scan.at < len(line):
        char = line[scan.at]
        if char == "\\":
            scan.take(2)
        elif char in "'\"":
            end = _quote_end(line, scan.at)
            if end < 0:
                return []
            scan.take(end - scan.at)
        elif char == "`":
            scan.ticked = not scan.ticked
            scan.take(1)
        elif char == "#" and scan.begins_word and not scan.depth:
            break
        elif char in "()":
            _read_bracket(scan)
        elif not scan.depth and not scan.ticked and (found := _OPERATOR.match(line, scan.at)):
            scan.end_command(found[0], len(found[0]))
        elif not scan.depth and not scan.ticked and (found := _REDIRECTION.match(line, scan.at)):
            scan.at = _target_end(line, found.end())
            scan.text.append(" ")
        else:
            scan.take(1)
    scan.end_command("", 0)
    return scan.found


def _quote_end(line: str, begin: int) -> int:
    """The index behind the quoted text that begins here; -1 if it does not end."""
    quote, at = line[begin], begin + 1
    while at < len(line):
        if line[at] == "\\" and quote == '"':
            at += 1
        elif line[at] == quote:
            return at + 1
        at += 1
    return -1


def _read_bracket(scan: _Scan) -> None:
    """Reads `(` or `)`: of a subshell, which is another command, or of something that is part of a word."""
    subshell = scan.line[scan.at] == "(" and not scan.depth and scan.blank
    if subshell and scan.line.startswith("((", scan.at):
        end = scan.line.find("))", scan.at)
        scan.take((end + 2 if end > 0 else len(scan.line)) - scan.at)
    elif subshell:
        scan.end_command("(" if scan.operator in ("", ";") else scan.operator, 1)
    elif scan.line[scan.at] == "(":
        scan.depth += 1
        scan.take(1)
    elif scan.depth:
        scan.depth -= 1
        scan.take(1)
    else:
        scan.end_command(")", 1)


def _target_end(line: str, begin: int) -> int:
    """The index behind the file, or the descriptor, to which a redirection leads."""
    at = begin
    while at < len(line):
        if line[at] == "\\":
            at += 1
        elif line[at] in "'\"":
            at = max(at, _quote_end(line, at) - 1)
        elif _WORD_END.match(line, at) and not (at == begin and line[at] == "&"):
            break
        at += 1
    return min(at, len(line))


def _with_whole_substitutions(words: list[str]) -> list[str]:
    """The words, in which those of `$(hostname -f)` and of backticks are joined; as they are if one is not closed."""
    found: list[str] = []
    depth = ticks = 0
    for word in words:
        if depth or ticks % 2:
            found[-1] += f" {word}"
        else:
            found.append(word)
        for at, char in enumerate(word):
            if char == "(" and (depth or word[at - 1 : at] == "$"):
                depth += 1
            elif char == ")" and depth:
                depth -= 1
        ticks += word.count("`")
    return words if depth or ticks % 2 else found
