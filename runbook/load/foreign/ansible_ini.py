"""Ansible's INI inventories, read as ansible-core's own plugin reads them."""

from __future__ import annotations

import ast
import re
import shlex
import warnings

from runbook.load.file_kinds import NumberedLines
from runbook.load.foreign.ansible_tree import GivenVariable, Tree
from runbook.load.hints import did_you_mean

_SECTION = re.compile(r"\[([^:\]\s]+)(?::(\w+))?\]\s*(?:#.*)?")
_GROUP = re.compile(r"([^:\]\s]+)\s*(?:#.*)?")
_KINDS = ("hosts", "children", "vars")


def read_ini(text: str, file: str) -> Tree:
    """Raises FilesWrong at the first line that Ansible would refuse."""
    lines = NumberedLines(text, file)
    tree = Tree(lines)
    group, kind = "ungrouped", "hosts"
    declared = {"all", "ungrouped"}
    used: dict[str, tuple[int, str]] = {}  # groups that must be declared somewhere: line, and how they are used
    for number, raw in enumerate(lines.lines, 1):
        line = raw.strip()
        if not line or line[0] in ";#":
            continue
        section = _SECTION.fullmatch(line)
        if section:
            group, kind = section[1], section[2] or "hosts"
            if kind not in _KINDS:
                help = did_you_mean(kind, _KINDS)
                raise lines.wrong(number, kind, "ansible-section", f"`[{group}:{kind}]` is no kind of section", help)
            tree.group(group, number)
            if kind == "vars":
                used.setdefault(group, (number, f"[{group}:vars]"))
            else:
                declared.add(group)
        elif line.startswith("[") and line.endswith("]"):
            help = "a section is `[group]`, `[group:children]` or `[group:vars]`, without spaces"
            raise lines.wrong(number, line, "ansible-section", f"`{line}` is not the name of a section", help)
        elif kind == "hosts":
            _hosts(tree, group, raw, line, number)
        elif kind == "vars":
            key, equals, value = line.partition("=")
            if not equals:
                help = "a line of [group:vars] is `name=value`"
                raise lines.wrong(number, line, "ansible-syntax", f"`{_first(line)}` is no `name=value`", help)
            tree.group(group, number).given.append(GivenVariable(key.strip(), _value(value.strip()), number))
        else:
            child = _GROUP.fullmatch(line)
            if child is None:
                help = "a line of [group:children] is the name of a group"
                raise lines.wrong(number, line, "ansible-syntax", f"`{_first(line)}` is no name of a group", help)
            tree.group(child[1], number)
            tree.group(group, number).children[child[1]] = None
            used.setdefault(child[1], (number, f"[{group}:children]"))
    for name, (number, where) in used.items():
        if name not in declared:
            help = did_you_mean(name, declared - {"all", "ungrouped"})
            raise lines.wrong(
                number,
                name,
                "ansible-unknown-group",
                f"{where} names the group `{name}`, which no [{name}] declares",
                help,
            )
    return tree


def _hosts(tree: Tree, group: str, raw: str, line: str, number: int) -> None:
    """A line of hosts and their variables: `gn[01:04] ansible_user=ubuntu x="two words"  # comment`."""
    lines = tree.lines
    try:
        pattern, *words = shlex.split(line, comments=True)
    except ValueError as error:
        raise lines.wrong(
            number, raw.strip(), "ansible-syntax", f"the quotes of this line do not match: {error}"
        ) from None
    given = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            help = "a line is a host and then `name=value` pairs; a value with spaces needs quotes"
            raise lines.wrong(number, word, "ansible-syntax", f"`{_first(word)}` is no `name=value`", help)
        given.append(GivenVariable(key, _value(value), number))
    if not pattern or pattern.endswith(":") or pattern == "---":
        help_yaml = "a file of YAML needs the suffix .yml or .yaml to be taken for one"
        raise lines.wrong(number, pattern, "ansible-syntax", f"`{pattern}` is no host", help_yaml if pattern else None)
    for entry in tree.add_hosts(group, pattern, number):
        entry.given += given


def _value(text: str) -> object:
    """What Ansible makes of it: a Python literal if it is one, else the text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            return _plain(ast.literal_eval(text))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return value.decode(errors="replace") if isinstance(value, bytes) else "..." if value is ... else str(value)


def _first(text: str) -> str:
    """The beginning of a line, never what stands after a `=`."""
    return text.split()[0].partition("=")[0] if text.split() else text
