"""Reads Ansible's files, INI, YAML and JSON, into one tree: groups in groups, hosts in groups, variables of both."""

from __future__ import annotations

import ast
import re
import shlex
import string
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from runbook.files.address import is_ip, strip_brackets
from runbook.files.node_sets import MAX_NAMES
from runbook.files.problems import NumberedLines
from runbook.files.suggestions import did_you_mean
from runbook.files.yaml_document import Document, KeyPath, parse_document
from runbook.importers.foreign_inventory import MAX_LINE_CHARACTERS, check_host_count
from runbook.model.errors import FilesWrong, Problem

BUILTIN_GROUPS = ("all", "ungrouped")
_RANGE = re.compile(r"\[([^\[\]]*)\]")
_HOST_AND_PORT = re.compile(
    r"\A(?:(?P<host>(?:[^:\[\]]|\[[^\]]*\])*):(?P<port>[0-9]+)|\[(?P<inside>.+)\]:(?P<number>[0-9]+))"
)


@dataclass(frozen=True, slots=True)
class GivenVariable:
    """A variable as it was given to a group or to hosts. `vault`: its value is encrypted, and `value` is None."""

    key: str
    value: object
    line: int
    vault: bool = False


@dataclass(slots=True)
class AnsibleGroup:
    """A group: its first line, its own hosts, the groups in it, and its variables."""

    line: int
    hosts: dict[str, None] = field(default_factory=dict)
    children: dict[str, None] = field(default_factory=dict)
    given: list[GivenVariable] = field(default_factory=list)


@dataclass(slots=True)
class AnsibleHost:
    """A host: its first line, and its variables."""

    line: int
    given: list[GivenVariable] = field(default_factory=list)


class Tree:
    """The groups and hosts of one inventory. It is built line by line; `members` and `weakest_first` are right once all
    lines are in."""

    def __init__(self, lines: NumberedLines) -> None:
        self.lines = lines
        self.groups: dict[str, AnsibleGroup] = {name: AnsibleGroup(1) for name in BUILTIN_GROUPS}
        self.hosts: dict[str, AnsibleHost] = {}

    def group(self, name: str, line: int) -> AnsibleGroup:
        return self.groups.setdefault(name, AnsibleGroup(line))

    def add_hosts(self, group: str, pattern: str, line: int) -> list[AnsibleHost]:
        """The hosts of a pattern such as `gn[01:04]:2222`. Raises FilesWrong."""
        names, port = expand_host_pattern(self.lines, pattern, line)
        entries = []
        for name in names:
            if name not in self.hosts:
                # As in ansible-core, a port behind the name counts where the host is first named, and nowhere else.
                first = [] if port is None else [GivenVariable("ansible_port", port, line)]
                self.hosts[name] = AnsibleHost(line, first)
            entry = self.hosts[name]
            self.group(group, line).hosts[name] = None
            entries.append(entry)
        check_host_count(self.hosts, self.lines, line, pattern)
        return entries

    def members(self, name: str) -> dict[str, None]:
        """The hosts of a group and of all groups in it."""
        found: dict[str, None] = {}
        for each in self._within(name):
            found.update(self.groups[each].hosts)
        return found

    def weakest_first(self) -> list[str]:
        """Groups in the order in which later ones win: by depth, then priority, then name."""
        depth = self._depths()
        return sorted(self.groups, key=lambda name: (depth[name], self._priority(name), name))

    def _within(self, name: str) -> list[str]:
        found = dict.fromkeys([name])
        todo = [name]
        while todo:
            for child in self.groups[todo.pop()].children:
                if child not in found:
                    found[child] = None
                    todo.append(child)
        return list(found)

    def _depths(self) -> dict[str, int]:
        """The depth of each group: `all` is 0, others one more than the deepest group that holds them. Raises
        FilesWrong."""
        depth = {name: 0 if name == "all" else 1 for name in self.groups}
        waiting = dict.fromkeys(self.groups, 0)
        for group in self.groups.values():
            for child in group.children:
                waiting[child] += 1
        ready = [name for name, parents in waiting.items() if parents == 0]
        for name in ready:  # grows while we walk: a group is ready when all that hold it are done
            for child in self.groups[name].children:
                depth[child] = max(depth[child], depth[name] + 1)
                waiting[child] -= 1
                if waiting[child] == 0:
                    ready.append(child)
        stuck = next((name for name, parents in waiting.items() if parents), None)
        if stuck is not None:
            line = self.groups[stuck].line
            raise self.lines.wrong(
                line, stuck, "ansible-loop", f"the group `{stuck}` is, over its children, part of itself"
            )
        return depth

    def _priority(self, name: str) -> int:
        values = [given.value for given in self.groups[name].given if given.key == "ansible_group_priority"]
        return int(str(values[-1])) if values and re.fullmatch(r"-?[0-9]{1,9}", str(values[-1])) else 1


def expand_host_pattern(lines: NumberedLines, pattern: str, line: int) -> tuple[list[str], int | None]:
    """The names and the port that a pattern such as `web[01:10:2].example:2222` stands for. Raises FilesWrong."""
    port = None
    match = _HOST_AND_PORT.fullmatch(pattern)
    if match and not is_ip(pattern):
        pattern = match["host"] if match["inside"] is None else match["inside"]
        port = int(match["port"] or match["number"])
        if not 1 <= port <= 65535:
            raise lines.wrong(line, str(port), "bad-port", f"{port} is not a port: ports run from 1 to 65535")
    pattern = strip_brackets(pattern) if is_ip(strip_brackets(pattern)) else pattern
    try:
        names = list(_expanded_names(pattern)) if "[" in pattern else [pattern]
    except ValueError as error:
        help = "Ansible writes ranges as [01:04], [a:c] and [1:9:2]"
        raise lines.wrong(line, pattern, "range", f"`{pattern}`: {error}", help) from None
    return names, port


def _expanded_names(pattern: str) -> Iterator[str]:
    """Yields the names of a pattern as Ansible expands it, the leftmost range varying slowest. Raises ValueError."""
    match = _RANGE.search(pattern)
    if match is None:
        if "[" in pattern or "]" in pattern:
            raise ValueError("a bracket is not closed")
        yield pattern
        return
    head, tail = pattern[: match.start()], pattern[match.end() :]
    rest = list(_expanded_names(tail))
    for value in _range_values(match[1], len(rest)):
        for end in rest:
            yield head + value + end


def _range_values(inside: str, times: int) -> list[str]:
    """The values of one range; each of them makes `times` names. Raises ValueError, also for too many names."""
    bounds = inside.split(":")
    if len(bounds) not in (2, 3):
        raise ValueError(f"[{inside}] is not begin:end or begin:end:step")
    first, last, step = bounds[0] or "0", bounds[1], bounds[2] if len(bounds) == 3 else "1"
    if not re.fullmatch(r"0*[1-9][0-9]{0,5}", step):
        raise ValueError(f"the step of [{inside}] is not a number above 0")
    letters = string.ascii_letters
    if len(first) == len(last) == 1 and first in letters and last in letters:
        found = letters[letters.index(first) : letters.index(last) + 1 : int(step)]
        if not found:
            raise ValueError(f"[{inside}] runs backwards")
        return list(found)
    if not (re.fullmatch(r"[0-9]{1,18}", first) and re.fullmatch(r"[0-9]{1,18}", last)):
        raise ValueError(f"[{inside}] has neither two numbers nor two letters")
    padded = first.startswith("0") and len(first) > 1
    if padded and len(first) != len(last):
        raise ValueError(f"[{inside}] is padded to two different widths")
    if int(last) < int(first):
        raise ValueError(f"[{inside}] runs backwards")
    numbers = range(int(first), int(last) + 1, int(step))
    if len(numbers) * times > MAX_NAMES:
        raise ValueError(f"it stands for more than {MAX_NAMES:,} names")
    return [str(number).zfill(len(first) if padded else 0) for number in numbers]


# Ansible's INI inventories, read as ansible-core's own plugin reads them.

_SECTION = re.compile(r"\[([^:\]\s]+)(?::(\w+))?\]\s*(?:#.*)?")
_GROUP = re.compile(r"([^:\]\s]+)\s*(?:#.*)?")
_KINDS = ("hosts", "children", "vars")


def read_ini_inventory(text: str, file: str) -> Tree:
    """The tree of an INI inventory. Raises FilesWrong at the first line that Ansible would refuse."""
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
                raise lines.wrong(number, kind, "ansible-section", f"`[{group}:{kind}]` is not a kind of section", help)
            tree.group(group, number)
            if kind == "vars":
                used.setdefault(group, (number, f"[{group}:vars]"))
            else:
                declared.add(group)
        elif line.startswith("[") and line.endswith("]"):
            help = "a section is `[group]`, `[group:children]` or `[group:vars]`, without spaces"
            raise lines.wrong(number, line, "ansible-section", f"`{line}` is not the name of a section", help)
        elif kind == "hosts":
            _add_host_line(tree, group, raw, line, number)
        elif kind == "vars":
            key, equals, value = line.partition("=")
            if not equals:
                help = "a line of [group:vars] is `name=value`"
                raise lines.wrong(number, line, "ansible-syntax", f"`{_first_word(line)}` is not `name=value`", help)
            tree.group(group, number).given.append(GivenVariable(key.strip(), _parse_ini_value(value.strip()), number))
        else:
            child = _GROUP.fullmatch(line)
            if child is None:
                help = "a line of [group:children] is the name of a group"
                raise lines.wrong(
                    number, line, "ansible-syntax", f"`{_first_word(line)}` is not the name of a group", help
                )
            tree.group(child[1], number)
            tree.group(group, number).children[child[1]] = None
            used.setdefault(child[1], (number, f"[{group}:children]"))
    for name, (number, where) in used.items():
        if name not in declared:
            message = f"{where} names the group `{name}`, which no [{name}] declares"
            help = did_you_mean(name, declared - {"all", "ungrouped"})
            raise lines.wrong(number, name, "ansible-unknown-group", message, help)
    return tree


def _add_host_line(tree: Tree, group: str, raw: str, line: str, number: int) -> None:
    """Enters a line of hosts and their variables: `gn[01:04] ansible_user=ubuntu x="two words"  # comment`."""
    lines = tree.lines
    if len(line) > MAX_LINE_CHARACTERS:
        raise lines.wrong(
            number, line[:40], "ansible-syntax", f"this line has more than {MAX_LINE_CHARACTERS:,} characters"
        )
    try:
        pattern, *words = shlex.split(line, comments=True)
    except ValueError as error:
        message = f"the quotes of this line do not match: {error}"
        raise lines.wrong(number, raw.strip(), "ansible-syntax", message) from None
    given = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            help = "a line is a host and then `name=value` pairs; a value with spaces needs quotes"
            raise lines.wrong(number, word, "ansible-syntax", f"`{_first_word(word)}` is not `name=value`", help)
        given.append(GivenVariable(key, _parse_ini_value(value), number))
    if not pattern or pattern.endswith(":") or pattern == "---":
        help_yaml = "a file of YAML needs the suffix .yml or .yaml to be taken for one"
        raise lines.wrong(
            number, pattern, "ansible-syntax", f"`{pattern}` is not a host", help_yaml if pattern else None
        )
    for entry in tree.add_hosts(group, pattern, number):
        entry.given += given


def _parse_ini_value(text: str) -> object:
    """The value that Ansible makes of a text: a Python literal if it is one, or else the text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            return _plain_data(ast.literal_eval(text))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):  # `{{1}}` is a set that cannot be
        return text


def _plain_data(value: object) -> object:
    """The value as plain data, as YAML has it. Raises ValueError for half of a character, which no file can hold."""
    if isinstance(value, str):
        value.encode()
    if isinstance(value, dict):
        return {str(_plain_data(str(key))): _plain_data(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain_data(inner) for inner in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return value.decode(errors="replace") if isinstance(value, bytes) else "..." if value is ... else str(value)


def _first_word(text: str) -> str:
    """The first word of a line, without what stands after a `=`: it may be a secret."""
    return text.split()[0].partition("=")[0] if text.split() else text


# Ansible's YAML inventories, and the JSON that `ansible-inventory --list` prints.

_YAML11_BOOLEANS = {
    **dict.fromkeys(("yes", "Yes", "YES", "on", "On", "ON", "True", "TRUE"), True),
    **dict.fromkeys(("no", "No", "NO", "off", "Off", "OFF", "False", "FALSE"), False),
}
"""What YAML 1.1, and so Ansible, takes for true and false besides `true` and `false`."""


_SURROGATE_PAIR = re.compile(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
"""The two escapes by which JSON writes a character beyond the first 65536; YAML has none such."""


def read_yaml_inventory(text: str, file: str) -> Tree:
    """The tree of a YAML or JSON inventory. Raises FilesWrong with all mistakes of YAML, or at the first part that does
    not belong into an inventory of Ansible's."""
    document = parse_document(
        _SURROGATE_PAIR.sub(_join_surrogate_pair, text) if text.lstrip().startswith("{") else text, file
    )
    tagged = [problem for problem in document.problems if problem.id == "yaml.tag"]
    others = [problem for problem in document.problems if problem.id != "yaml.tag"]
    if others:
        raise FilesWrong(others)
    return _AnsibleReader(document, tagged).tree()


def _join_surrogate_pair(pair: re.Match[str]) -> str:
    return (bytes.fromhex(pair[1]) + bytes.fromhex(pair[2])).decode("utf-16-be")


class _AnsibleReader:
    """Reads a parsed document into a Tree."""

    def __init__(self, document: Document, tagged: list[Problem]) -> None:
        self._document = document
        self._lines = document.lines
        self._tree = Tree(NumberedLines(document.text, document.path))
        # `!vault |` is the one tag that changes what we do: its value must not be copied, not even encrypted.
        self._vaults = {problem.span for problem in tagged if "vault" in problem.message}

    def tree(self) -> Tree:
        data = self._document.data
        if not isinstance(data, dict):
            raise self._wrong((), "an inventory of Ansible's is a mapping of groups")
        meta = data.get("_meta")
        if isinstance(meta, dict):
            self._listed(data, meta.get("hostvars"))
            return self._tree
        for name, body in data.items():
            self._group(name, body, (name,))
        return self._tree

    def _group(self, name: str, body: object, keys: KeyPath) -> None:
        group = self._tree.group(name, self._line(keys))
        for section, content in self._mapping(body, keys, f"the group `{name}`").items():
            here = (*keys, section)
            if isinstance(content, str) and section in ("hosts", "children", "vars"):
                content = {content: None}
            if section == "vars":
                group.given += self._given(content, here)
            elif section == "hosts":
                for pattern, values in self._mapping(content, here, "`hosts`").items():
                    given = self._given(values, (*here, pattern))
                    for entry in self._tree.add_hosts(name, pattern, self._line((*here, pattern))):
                        entry.given += given
            elif section == "children":
                for child, inner in self._mapping(content, here, "`children`").items():
                    group.children[child] = None
                    self._group(child, inner, (*here, child))
            else:
                help = f"a group has hosts, children and vars; if `{section}` is a group, put it under `children:`"
                raise self._wrong(here, f"`{section}` is not a key of a group", help)

    def _listed(self, data: Mapping[str, object], hostvars: object) -> None:
        """Reads what `ansible-inventory --list` prints: groups with lists of hosts, and the variables of all hosts in
        one place."""
        for name, body in data.items():
            if name == "_meta":
                continue
            group = self._tree.group(name, self._line((name,)))
            for section, content in self._mapping(body, (name,), f"the group `{name}`").items():
                if section == "vars":
                    group.given += self._given(content, (name, section))
                    continue
                for item in content if isinstance(content, list) else []:
                    if section == "children":
                        self._tree.group(str(item), self._line((name,)))
                        group.children[str(item)] = None
                    elif section == "hosts":
                        self._tree.hosts.setdefault(str(item), AnsibleHost(self._line((name, section))))
                        group.hosts[str(item)] = None
        for host, values in self._mapping(hostvars, ("_meta", "hostvars"), "`hostvars`").items():
            keys: KeyPath = ("_meta", "hostvars", host)
            self._tree.hosts.setdefault(host, AnsibleHost(self._line(keys))).given += self._given(values, keys)

    def _given(self, values: object, keys: KeyPath) -> list[GivenVariable]:
        found = []
        for name, value in self._mapping(values, keys, "the variables").items():
            here = (*keys, name)
            vault = self._vaulted(value, here)
            found.append(GivenVariable(name, None if vault else self._value(value, here), self._line(here), vault))
        return found

    def _vaulted(self, value: object, keys: KeyPath) -> bool:
        if isinstance(value, dict):
            return "__ansible_vault" in value or any(self._vaulted(v, (*keys, k)) for k, v in value.items())
        if isinstance(value, list):
            return any(self._vaulted(v, (*keys, k)) for k, v in enumerate(value))
        return self._document.span(*keys) in self._vaults

    def _value(self, value: object, keys: KeyPath) -> object:
        if isinstance(value, dict):
            if set(value) == {"__ansible_unsafe"}:
                return value["__ansible_unsafe"]
            return {key: self._value(inner, (*keys, key)) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._value(inner, (*keys, index)) for index, inner in enumerate(value)]
        if isinstance(value, str) and value in _YAML11_BOOLEANS and not self._quoted(keys):
            return _YAML11_BOOLEANS[value]
        return value

    def _quoted(self, keys: KeyPath) -> bool:
        span = self._document.span(*keys)
        return span is not None and self._lines[span.line - 1][span.column - 1] in "\"'|>!"

    def _mapping(self, value: object, keys: KeyPath, what: str) -> Mapping[str, object]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            this = "a list" if isinstance(value, list) else "a single value"
            raise self._wrong(keys, f"{what} must be a mapping, and this is {this}")
        return value

    def _line(self, keys: KeyPath) -> int:
        span = self._document.key_span(*keys)
        return span.line if span else 1

    def _wrong(self, keys: KeyPath, message: str, help: str | None = None) -> FilesWrong:
        return FilesWrong.of("import.ansible-syntax", message, span=self._document.key_span(*keys), help=help)
