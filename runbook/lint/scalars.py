"""The texts, numbers and keys of a document with their places, for rules that look at how something was typed."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator

from runbook.load.document import Document, Keys

_BLOCK = re.compile(r"(?:[&!]\S*\s+)*[|>]")  # what begins a block, with or without an anchor


def scalars(document: Document) -> Iterator[tuple[Keys, object]]:
    """Every value that is neither a mapping nor a list, in the order of the file."""
    todo: list[tuple[Keys, object]] = [((), document.data)]
    while todo:
        keys, value = todo.pop()
        if isinstance(value, dict):
            todo.extend([((*keys, key), inner) for key, inner in value.items()][::-1])
        elif isinstance(value, list):
            todo.extend([((*keys, index), inner) for index, inner in enumerate(value)][::-1])
        else:
            yield keys, value


class Comments:
    """Tells a `#` that begins a comment from one that stands inside a text."""

    def __init__(self, document: Document) -> None:
        self._lines = document.lines
        places = [document.extent(*keys) for keys, _ in scalars(document)]
        places += [document.key_extent(*keys) for keys in document.key_spans]
        self._places = sorted(place for place in places if place is not None)

    def begins(self, line: int, column: int) -> bool:
        """Whether the `#` there (both from 1) begins a comment."""
        if column > 1 and not self._lines[line - 1][column - 2].isspace():
            return False
        at = bisect_right(self._places, ((line, column), (1 << 60, 0)))
        if at == 0:
            return True
        start, end = self._places[at - 1]
        if not start <= (line, column) < end:
            return True
        # `key: |  # comment`: the text of a block begins on the next line.
        return start[0] == line and _BLOCK.match(self._lines[line - 1], start[1] - 1) is not None
