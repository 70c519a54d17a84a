"""Ansible's inventory as it stands in memory: groups in groups, hosts in groups, variables of both."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from dataclasses import dataclass, field

from runbook.load.address import is_ip, strip_brackets
from runbook.load.file_kinds import NumberedLines
from runbook.load.node_sets import LARGEST

TOP = ("all", "ungrouped")
_RANGE = re.compile(r"\[([^\[\]]*)\]")
_PORT = re.compile(r"\A(?:(?P<host>(?:[^:\[\]]|\[[^\]]*\])*):(?P<port>[0-9]+)|\[(?P<inside>.+)\]:(?P<number>[0-9]+))")


@dataclass(frozen=True, slots=True)
class GivenVariable:
    """A variable as it was given to a group or to hosts. `vault`: its value is encrypted, and not here."""

    key: str
    value: object
    line: int
    vault: bool = False


@dataclass(slots=True)
class AnsibleGroup:
    line: int
    hosts: dict[str, None] = field(default_factory=dict)
    children: dict[str, None] = field(default_factory=dict)
    given: list[GivenVariable] = field(default_factory=list)


@dataclass(slots=True)
class AnsibleHost:
    line: int
    given: list[GivenVariable] = field(default_factory=list)


class Tree:
    """Built line by line; `members` and `weakest_first` answer once all is in."""

    def __init__(self, lines: NumberedLines) -> None:
        self.lines = lines
        self.groups: dict[str, AnsibleGroup] = {name: AnsibleGroup(1) for name in TOP}
        self.hosts: dict[str, AnsibleHost] = {}

    def group(self, name: str, line: int) -> AnsibleGroup:
        return self.groups.setdefault(name, AnsibleGroup(line))

    def add_hosts(self, group: str, pattern: str, line: int) -> list[AnsibleHost]:
        """The hosts of a pattern such as `gn[01:04]:2222`. Raises FilesWrong."""
        names, port = host_pattern(self.lines, pattern, line)
        entries = []
        for name in names:
            if name not in self.hosts:
                # As in ansible-core, a port behind the name counts where the host is first named, and nowhere else.
                first = [] if port is None else [GivenVariable("ansible_port", port, line)]
                self.hosts[name] = AnsibleHost(line, first)
            entry = self.hosts[name]
            self.group(group, line).hosts[name] = None
            entries.append(entry)
        if len(self.hosts) > LARGEST:
            raise self.lines.wrong(line, pattern, "too-many-nodes", f"there are more than {LARGEST:,} hosts")
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


def host_pattern(lines: NumberedLines, pattern: str, line: int) -> tuple[list[str], int | None]:
    """The names and the port of `web[01:10:2].example:2222`."""
    port = None
    match = _PORT.fullmatch(pattern)
    if match and not is_ip(pattern):
        pattern = match["host"] if match["inside"] is None else match["inside"]
        port = int(match["port"] or match["number"])
        if not 1 <= port <= 65535:
            raise lines.wrong(line, str(port), "bad-port", f"{port} is no port: ports run from 1 to 65535")
    pattern = strip_brackets(pattern) if is_ip(strip_brackets(pattern)) else pattern
    try:
        names = list(_expanded(pattern)) if "[" in pattern else [pattern]
    except ValueError as error:
        help = "Ansible writes ranges as [01:04], [a:c] and [1:9:2]"
        raise lines.wrong(line, pattern, "range", f"`{pattern}`: {error}", help) from None
    return names, port


def _expanded(pattern: str) -> Iterator[str]:
    """As Ansible expands, the leftmost range varying slowest. Raises ValueError."""
    match = _RANGE.search(pattern)
    if match is None:
        if "[" in pattern or "]" in pattern:
            raise ValueError("a bracket is not closed")
        yield pattern
        return
    head, tail = pattern[: match.start()], pattern[match.end() :]
    rest = list(_expanded(tail))
    for value in _values(match[1], len(rest)):
        for end in rest:
            yield head + value + end


def _values(inside: str, times: int) -> list[str]:
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
    if len(numbers) * times > LARGEST:
        raise ValueError(f"it stands for more than {LARGEST:,} names")
    return [str(number).zfill(len(first) if padded else 0) for number in numbers]
