"""Changes values of a YAML file and keeps all else as it was written: comments, order, quotes, blank lines. The text is
changed at the place of a value, and the result is read again: the data must differ by the intended change only.
Otherwise (an alias, a merge) nothing changes, and Uneditable says why."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

from runbook.files.scalars import flow_yaml, scalar_yaml
from runbook.files.yaml_document import Document, KeyPath, LineColumn, parse_document

_END_OF_LINE = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]|\Z")


class Uneditable(ValueError):
    """The change cannot be made at one single place of the file."""


class Text:
    """The text of a YAML mapping, and changes to it. Every method raises Uneditable, and then nothing has changed.

    `order` lists the top-level keys in the order in which new keys are inserted.
    """

    def __init__(self, text: str, file: str, order: Sequence[str] = ()) -> None:
        self._file = file
        self._order = list(order)
        self._take(text)

    @property
    def text(self) -> str:
        return self._document.text

    @property
    def data(self) -> dict[str, Any]:
        """The data of the present text."""
        return self._document.mapping

    def get(self, *keys: str | int) -> Any:
        """The value at `keys`, None where there is none."""
        found: Any = self.data
        for key in keys:
            try:
                found = found[key]
            except (KeyError, IndexError, TypeError):
                return None
        return found

    def set(self, keys: KeyPath, value: object) -> None:
        """Sets the value at `keys`. In a mapping that exists only the entries that differ are changed; missing mappings
        are made."""
        old = self.get(*keys)
        if self._has(keys) and old == value and type(old) is type(value):
            return
        above = keys[:-1]
        if not isinstance(self.get(*above), dict):
            self.set(above, {keys[-1]: value})
        elif not self._has(keys):
            self._insert(keys, value)
        elif isinstance(old, dict) and old and isinstance(value, Mapping) and value:
            for key in [key for key in old if key not in value]:
                self.remove((*keys, key))
            for key, inner in value.items():
                self.set((*keys, key), inner)
        else:
            self._replace(keys, value)

    def remove(self, keys: KeyPath) -> None:
        """Removes a key from its mapping, with the comment on its line; `{}` is left in place of the last key."""
        if not self._has(keys):
            return
        wanted = self._copy()
        del _value_at(wanted, keys[:-1])[keys[-1]]
        siblings = list(self.get(*keys[:-1]))
        start, end = self._key_start(keys), self._end(keys)
        text = self.text
        if len(siblings) == 1:
            if self._is_flow(keys[:-1]):
                start, end = self._start(keys[:-1]) + 1, self._end(keys[:-1]) - 1
                self._accept(text[:start] + text[end:], wanted)
                return
            self._accept(text[:start] + "{}" + text[end:], wanted)
            return
        if self._is_flow(keys[:-1]):
            place = siblings.index(keys[-1])
            if place + 1 < len(siblings):
                end = self._key_start((*keys[:-1], siblings[place + 1]))
            else:
                start = self._end((*keys[:-1], siblings[place - 1]))
            self._accept(text[:start] + text[end:], wanted)
            return
        line = self._line_start(start)
        if text[line:start].strip():
            raise Uneditable(f"`{keys[-1]}` does not begin its line")
        after = _END_OF_LINE.search(text, end)
        assert after is not None
        self._accept(text[:line] + text[after.end() :], wanted)

    def rename(self, keys: KeyPath, name: str) -> None:
        """Renames the key at `keys`; its value and its place stay."""
        siblings = self.get(*keys[:-1])
        if not isinstance(siblings, dict) or keys[-1] not in siblings:
            raise Uneditable(f"there is no `{keys[-1]}`")
        if name in siblings:
            raise Uneditable(f"there is `{name}` already")
        wanted = self._copy()
        inside = _value_at(wanted, keys[:-1])
        renamed = {name if key == keys[-1] else key: value for key, value in inside.items()}
        inside.clear()
        inside.update(renamed)
        place = self._document.key_extent(*keys)
        assert place is not None
        start, end = map(self._offset, place)
        self._accept(self.text[:start] + scalar_yaml(name) + self.text[end:], wanted)

    def replace_entry(self, keys: KeyPath, entries: Mapping[str, object]) -> None:
        """Replaces the entry at `keys` by several entries."""
        wanted = self._copy()
        inside = _value_at(wanted, keys[:-1])
        renamed: dict[str, object] = {}
        for key, value in inside.items():
            renamed |= entries if key == keys[-1] else {key: value}
        inside.clear()
        inside.update(copy.deepcopy(renamed))
        start, end = self._key_start(keys), self._end(keys)
        if re.search(r"(?m)(^|\s)#", self.text[start:end]):
            raise Uneditable(f"there are comments inside of `{keys[-1]}`")
        words = [f"{scalar_yaml(key)}: {flow_yaml(value)}" for key, value in entries.items()]
        between = ", " if self._is_flow(keys[:-1]) else self._newline + " " * (start - self._line_start(start))
        self._accept(self.text[:start] + between.join(words) + self.text[end:], wanted)

    def exchange(self, keys: KeyPath, other: str | int) -> None:
        """Swaps the places of this key and of the key `other` of the same mapping, with the comments on their lines."""
        above = keys[:-1]
        order = list(self.get(*above))
        one, two = sorted((order.index(keys[-1]), order.index(other)))
        first, second = order[one], order[two]
        order[one], order[two] = second, first
        (a, b), (c, d) = self._lines_of((*above, first)), self._lines_of((*above, second))
        text = self.text
        self._accept(text[:a] + text[c:d] + text[b:c] + text[a:b] + text[d:], self._copy())
        if list(self.get(*above)) != order:
            raise Uneditable(f"`{first}` and `{second}` cannot be exchanged here")

    def _lines_of(self, keys: KeyPath) -> tuple[int, int]:
        """The offsets of the start and the end of a key with its value; in a block it ends with its line, comment
        included."""
        start, end = self._key_start(keys), self._end(keys)
        if self._is_flow(keys[:-1]):
            return start, end
        after = _END_OF_LINE.search(self.text, end)
        assert after is not None
        return start, after.start()

    def _take(self, text: str) -> None:
        """Reads a text as the present one. Raises Uneditable if it holds no mapping."""
        document = parse_document(text, self._file)
        if document.data is None:
            says = document.problems[0].message if document.problems else "it is empty"
            raise Uneditable(f"the file cannot be read: {says}")
        if not isinstance(document.data, dict):
            raise Uneditable("the file holds no mapping")
        self._document: Document = document
        self._newline = "\r\n" if "\r\n" in text else "\n"
        breaks = [match.end() for match in _END_OF_LINE.finditer(text)]
        self._line_starts = [0, *breaks]

    def _accept(self, text: str, wanted: object) -> None:
        """Takes the changed text if it reads as `wanted`; otherwise raises Uneditable, and keeps the old text."""
        before = self._document, self._newline, self._line_starts
        try:
            self._take(text)
        except Uneditable:
            self._document, self._newline, self._line_starts = before
            raise
        if not _is_same_value(self._document.data, wanted):
            self._document, self._newline, self._line_starts = before
            raise Uneditable("the file says this in several places at once (an alias, or a merge)")

    def _copy(self) -> dict[str, Any]:
        return copy.deepcopy(self.data)

    def _has(self, keys: KeyPath) -> bool:
        above = self.get(*keys[:-1])
        return isinstance(above, dict) and keys[-1] in above

    def _replace(self, keys: KeyPath, value: object) -> None:
        wanted = self._copy()
        _value_at(wanted, keys[:-1])[keys[-1]] = copy.deepcopy(_plain_data(value))
        start, end = self._start(keys), self._end(keys)
        words = flow_yaml(value)
        if start == end or self.text[start - 1] == ":":  # a key without a value
            words = f" {words}"
        elif self._line_start(start) != self._line_start(self._key_start(keys)):
            key_column = self._key_start(keys) - self._line_start(self._key_start(keys))
            missing = key_column + 1 - (start - self._line_start(start))
            words = " " * max(0, missing) + words
        self._accept(self.text[:start] + words + self.text[end:], wanted)

    def _insert(self, keys: KeyPath, value: object) -> None:
        wanted = self._copy()
        _value_at(wanted, keys[:-1])[keys[-1]] = copy.deepcopy(_plain_data(value))
        siblings = list(self.get(*keys[:-1]))
        words = f"{scalar_yaml(str(keys[-1]))}: {flow_yaml(value)}"
        if len(keys) == 1 and siblings and isinstance(value, Mapping) and value and not self._is_flow(()):
            inner = [f"{self._newline}  {scalar_yaml(str(key))}: {flow_yaml(one)}" for key, one in value.items()]
            words = f"{scalar_yaml(str(keys[0]))}:{''.join(inner)}"
        text = self.text
        if not siblings:
            start, end = self._start(keys[:-1]), self._end(keys[:-1])
            alone = not text[self._line_start(start) : start].strip()  # on a line of its own: a block may begin there
            self._accept(text[:start] + (words if alone else "{" + words + "}") + text[end:], wanted)
            return
        if self._is_flow(keys[:-1]):
            end = self._end((*keys[:-1], siblings[-1]))
            self._accept(text[:end] + ", " + words + text[end:], wanted)
            return
        first = self._key_start((*keys[:-1], siblings[0]))
        indent = " " * (first - self._line_start(first))
        last = self._before(keys, siblings)
        if last is None:
            at = self._line_start(first)
            self._accept(text[:at] + indent + words + self._newline + text[at:], wanted)
            return
        after = _END_OF_LINE.search(text, self._end((*keys[:-1], last)))
        assert after is not None
        self._accept(text[: after.start()] + self._newline + indent + words + text[after.start() :], wanted)

    def _before(self, keys: KeyPath, siblings: list[Any]) -> Any:
        """The key that a new one is to stand behind; None where it comes first."""
        if len(keys) > 1 or keys[0] not in self._order:
            return siblings[-1]
        earlier = self._order[: self._order.index(str(keys[0]))]
        return next((key for key in reversed(siblings) if key in earlier), None)

    def _is_flow(self, keys: KeyPath) -> bool:
        return self.text[self._start(keys) :][:1] == "{"

    def _start(self, keys: KeyPath) -> int:
        place = self._document.extent(*keys)
        if place is None:
            raise Uneditable(f"`{keys[-1] if keys else ''}` has no place of its own")
        return self._behind_colon(keys) if self._is_empty(keys) else self._offset(place[0])

    def _is_empty(self, keys: KeyPath) -> bool:
        """Whether nothing stands after the colon: the reader then gives the key as the place."""
        return bool(keys) and self._document.extent(*keys) == self._document.key_extent(*keys)

    def _behind_colon(self, keys: KeyPath) -> int:
        place = self._document.key_extent(*keys)
        assert place is not None
        return self.text.index(":", self._offset(place[1])) + 1

    def _key_start(self, keys: KeyPath) -> int:
        place = self._document.key_extent(*keys)
        if place is None:
            raise Uneditable(f"`{keys[-1]}` has no place of its own")
        return self._offset(place[0])

    def _end(self, keys: KeyPath) -> int:
        """The offset after a value, without the comments and blank lines behind a block, which YAML counts as part of
        it."""
        value = self.get(*keys)
        start = self._start(keys)
        if self._is_empty(keys):
            return start
        if isinstance(value, dict | list) and value and self.text[start] not in "{[":
            inner = value if isinstance(value, dict) else range(len(value))
            return max(self._end((*keys, key)) for key in inner)
        place = self._document.extent(*keys)
        assert place is not None
        end = self._offset(place[1])
        return start + len(self.text[start:end].rstrip())

    def _offset(self, point: LineColumn) -> int:
        return self._line_starts[point[0] - 1] + point[1] - 1

    def _line_start(self, offset: int) -> int:
        return max(start for start in self._line_starts if start <= offset)


def _value_at(data: Any, keys: KeyPath) -> Any:
    for key in keys:
        data = data[key]
    return data


def _plain_data(value: object) -> object:
    """The value as a file holds it: of dictionaries and lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain_data(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_data(inner) for inner in value]
    return value


def _is_same_value(one: object, other: object) -> bool:
    """Whether two values are equal, with 1 and true held apart; the order of keys does not count."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same_value(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same_value, one, other))
    return type(one) is type(other) and one == other
