"""Ansible's YAML inventories, and the JSON that `ansible-inventory --list` prints."""

from __future__ import annotations

import re
from collections.abc import Mapping

from runbook.load.document import Document, Keys, parse_document
from runbook.load.file_kinds import NumberedLines
from runbook.load.foreign.ansible_tree import AnsibleHost, GivenVariable, Tree
from runbook.model.errors import FilesWrong, Problem

_TRUTHS = {
    **dict.fromkeys(("yes", "Yes", "YES", "on", "On", "ON", "True", "TRUE"), True),
    **dict.fromkeys(("no", "No", "NO", "off", "Off", "OFF", "False", "FALSE"), False),
}
"""What YAML 1.1, and so Ansible, takes for true and false besides `true` and `false`."""


_PAIR = re.compile(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
"""How JSON writes a character beyond the first 65536, and YAML does not."""


def read_yaml(text: str, file: str) -> Tree:
    """Raises FilesWrong with everything that is not YAML, or at the first thing that is no inventory of Ansible's."""
    document = parse_document(_PAIR.sub(_joined, text) if text.lstrip().startswith("{") else text, file)
    tagged = [problem for problem in document.problems if problem.id == "yaml.tag"]
    others = [problem for problem in document.problems if problem.id != "yaml.tag"]
    if others:
        raise FilesWrong(others)
    return _AnsibleReader(document, tagged).tree()


def _joined(pair: re.Match[str]) -> str:
    return (bytes.fromhex(pair[1]) + bytes.fromhex(pair[2])).decode("utf-16-be")


class _AnsibleReader:
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

    def _group(self, name: str, body: object, keys: Keys) -> None:
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
                raise self._wrong(here, f"`{section}` is no key of a group", help)

    def _listed(self, data: Mapping[str, object], hostvars: object) -> None:
        """`ansible-inventory --list`: groups with lists of hosts, and the variables of all hosts in one place."""
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
            keys: Keys = ("_meta", "hostvars", host)
            self._tree.hosts.setdefault(host, AnsibleHost(self._line(keys))).given += self._given(values, keys)

    def _given(self, values: object, keys: Keys) -> list[GivenVariable]:
        found = []
        for name, value in self._mapping(values, keys, "the variables").items():
            here = (*keys, name)
            vault = self._vaulted(value, here)
            found.append(GivenVariable(name, None if vault else self._value(value, here), self._line(here), vault))
        return found

    def _vaulted(self, value: object, keys: Keys) -> bool:
        if isinstance(value, dict):
            return "__ansible_vault" in value or any(self._vaulted(v, (*keys, k)) for k, v in value.items())
        if isinstance(value, list):
            return any(self._vaulted(v, (*keys, k)) for k, v in enumerate(value))
        return self._document.span(*keys) in self._vaults

    def _value(self, value: object, keys: Keys) -> object:
        if isinstance(value, dict):
            if set(value) == {"__ansible_unsafe"}:
                return value["__ansible_unsafe"]
            return {key: self._value(inner, (*keys, key)) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._value(inner, (*keys, index)) for index, inner in enumerate(value)]
        if isinstance(value, str) and value in _TRUTHS and not self._quoted(keys):
            return _TRUTHS[value]
        return value

    def _quoted(self, keys: Keys) -> bool:
        span = self._document.span(*keys)
        return span is not None and self._lines[span.line - 1][span.column - 1] in "\"'|>!"

    def _mapping(self, value: object, keys: Keys, what: str) -> Mapping[str, object]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._wrong(
                keys,
                f"{what} must be a mapping, and this is {'a list' if isinstance(value, list) else 'a single value'}",
            )
        return value

    def _line(self, keys: Keys) -> int:
        span = self._document.key_span(*keys)
        return span.line if span else 1

    def _wrong(self, keys: Keys, message: str, help: str | None = None) -> FilesWrong:
        return FilesWrong([Problem("import.ansible-syntax", message, self._document.key_span(*keys), help)])
