"""Expands sets of node names such as `gn[01-04]`, folds names back into them, and matches patterns such as
`rack1:!gn03`."""

from __future__ import annotations

import fnmatch
import itertools
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby, islice
from typing import NamedTuple

from runbook.files.suggestions import known_names_help, nearest_word
from runbook.model.errors import FilesWrong, Problem, Span
from runbook.model.inventory import Inventory, Node
from runbook.model.node_ranges import MAX_NAME_FIELDS, fold
from runbook.model.units import first_items_text

MAX_NAMES = 20_000  # nodes, and names from one expression; a typo such as [1-40000000] must not fill the memory

_BRACKETS = re.compile(r"\[([0-9,\- ]*)\]")
ANSIBLE_RANGE = re.compile(r"\[[A-Za-z0-9]*:[A-Za-z0-9]+(:[0-9]+)?\]")
_FOREIGN_RANGE = re.compile(r"[\[{(]([0-9]+)(?::|\.\.|-)([0-9]+)[\]})]")  # Ansible's and a shell's


def foreign_range(text: str) -> tuple[str, str] | None:
    """What is wrong with `gn[01:04]` of Ansible or `gn{01..04}` of a shell, and help; None for other text."""
    ours = convert_foreign_ranges(text)
    if not ANSIBLE_RANGE.search(text) and ours == text:
        return None
    whose = "Ansible" if ANSIBLE_RANGE.search(text) else "a shell"
    known = f"write {ours}" if ours != text else "ranges are written [1-4], [01-16] or [1,3-5], with both ends in them"
    return f"`{text}` has a range as {whose} writes it", known


def convert_foreign_ranges(text: str) -> str:
    """The text with ranges of numbers as runbook writes them: `[01:04]`, `{01..04}` and `(01-04)` become `[01-04]`."""
    return _FOREIGN_RANGE.sub(r"[\1-\2]", text)


def has_range(text: str) -> bool:
    """Whether the text holds brackets with only digits, dashes and commas; `[fd00::1]` and `gn[ab]` hold none."""
    return _BRACKETS.search(text) is not None


def without_ranges(text: str) -> str:
    return _BRACKETS.sub("", text)


def expand(text: str) -> list[str]:
    """Every name that a text such as `gn[01-04]` stands for, the leftmost range varying slowest. Raises ValueError with
    a sentence for people."""
    pieces = _BRACKETS.split(text)  # literal, inside of brackets, literal, …
    if len(pieces) == 1:
        return [text]
    bounds = _bracket_bounds(pieces, text)
    choices = [
        [str(number).zfill(width) for first, last, width in parts for number in range(first, last + 1)]
        for parts in bounds
    ]
    literals = pieces[0::2]
    return [
        literals[0] + "".join(number + literal for number, literal in zip(picked, literals[1:], strict=True))
        for picked in itertools.product(*choices)
    ]


def count_names(text: str) -> int:
    """How many names `expand` gives, without making them; 0 where it raises."""
    try:
        return _count_bounded_names(_bracket_bounds(_BRACKETS.split(text), text))
    except ValueError:
        return 0


def _bracket_bounds(pieces: list[str], text: str) -> list[list[tuple[int, int, int]]]:
    """The `_range_bounds` of each pair of brackets. Raises ValueError for a bad range, and for more than MAX_NAMES
    names."""
    bounds = [_range_bounds(inside, text) for inside in pieces[1::2]]
    if _count_bounded_names(bounds) > MAX_NAMES:
        raise ValueError(f"`{text}` stands for more than {MAX_NAMES:,} names")
    return bounds


_NAME_PARTS = re.compile(r"(?:[^\[\],\s]+|\[[^\[\]]*\]?|\])+")


def split_names(text: str) -> list[str]:
    """The parts of a list of names, three in `gn[01-04,07],login1 gn9`: a comma inside brackets separates numbers."""
    return _NAME_PARTS.findall(text)


def _count_bounded_names(bounds: list[list[tuple[int, int, int]]]) -> int:
    """How many names the brackets stand for together. Stops at the pair that leads beyond MAX_NAMES: the product of
    very many pairs would be a number of very many digits."""
    total = 1
    for parts in bounds:
        total *= sum(last - first + 1 for first, last, _ in parts)
        if total > MAX_NAMES:
            break
    return total


def _range_bounds(inside: str, text: str) -> list[tuple[int, int, int]]:
    """First number, last number and width (0: not padded) of each part of one pair of brackets. Raises ValueError."""
    found = []
    for part in inside.split(","):
        match = re.fullmatch(r" *([0-9]{1,18}) *(?:- *([0-9]{1,18}) *)?", part)
        if match is None:
            raise ValueError(f"`[{inside}]` in `{text}` is not a range: write [1-4], [01-16] or [1,3-5]")
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low):
            raise ValueError(f"the range [{low}-{high}] in `{text}` runs backwards: write [{high}-{low}]")
        if len(low) != len(high) and high.startswith("0"):
            raise ValueError(f"the range [{low}-{high}] in `{text}` is padded to two different widths")
        found.append((int(low), int(high), len(low) if low.startswith("0") else 0))
    return found


# Names and addresses back into ranges that `expand` pairs one by one: `gn[01-04]` with `10.0.1.[1-4]`.

_DIGITS = re.compile(r"([0-9]{1,18})")
RowTexts = tuple[str, ...]


class _Box(NamedTuple):
    """Names with equal texts around fields of digits that vary: every combination of the fields' values, `size` of
    them, the leftmost field varying slowest."""

    texts: RowTexts
    fields: tuple[tuple[str, ...], ...]
    size: int


def folded_names(names: Sequence[str]) -> list[str]:
    """Expressions that `expand`, one after the other, turns back into exactly these names in this order."""
    return [_box_expression(box) for box in _name_boxes(names)]


def folded_rows(rows: Sequence[RowTexts]) -> list[tuple[RowTexts, int]]:
    """Rows of (name, address, …) as rows of expressions, each with the number of rows that it stands for.

    A column that is the same in every row stays as it is: one address may hold for a whole range.
    """
    if len(rows) <= 1:
        return [(row, 1) for row in rows]
    written: list[str] = []
    for column in zip(*rows, strict=True):
        if len(set(column)) == 1:
            written.append(column[0])
            continue
        boxes = _name_boxes(column)
        if len(boxes) > 1:
            return _fold_by_boxes(rows, boxes)
        written.append(_box_expression(boxes[0]))
    return [(tuple(written), len(rows))]


def _fold_by_boxes(rows: Sequence[RowTexts], boxes: list[_Box]) -> list[tuple[RowTexts, int]]:
    found: list[tuple[RowTexts, int]] = []
    at = 0
    for box in boxes:
        found += folded_rows(rows[at : at + box.size])
        at += box.size
    return found


def _name_boxes(names: Sequence[str]) -> list[_Box]:
    """The names as boxes: neighbours that differ in one field only are merged, in the last field first, so that the
    order stays."""
    boxes: list[_Box] = []
    for texts, alike in groupby(map(_split_digits, names), key=lambda parts: parts[0]):
        family = [_Box(texts, tuple((value,) for value in values), 1) for _, values in alike]
        for field in reversed(range(len(texts) - 1)):
            family = _merge_neighbours(family, field)
        boxes += family
    return boxes


def _split_digits(name: str) -> tuple[RowTexts, RowTexts]:
    parts = _DIGITS.split(name)
    if len(parts) > 2 * MAX_NAME_FIELDS:
        return (name,), ()
    return tuple(parts[0::2]), tuple(parts[1::2])


def _merge_neighbours(boxes: list[_Box], field: int) -> list[_Box]:
    """The boxes, with neighbours that differ only in this field merged into one."""

    def rest(box: _Box) -> object:
        return box.fields[:field], box.fields[field + 1 :]

    merged = []
    for _, alike in groupby(boxes, key=rest):
        group = list(alike)
        values = tuple(value for box in group for value in box.fields[field])
        fields = (*group[0].fields[:field], values, *group[0].fields[field + 1 :])
        merged.append(_Box(group[0].texts, fields, sum(box.size for box in group)))
    return merged


def _box_expression(box: _Box) -> str:
    text = box.texts[0]
    for values, following in zip(box.fields, box.texts[1:], strict=True):
        text += (_bracketed_ranges(values) if len(values) > 1 else values[0]) + following
    return text


def _bracketed_ranges(values: tuple[str, ...]) -> str:
    """The values of a field as `[01-04,07]`: a leading 0 of a range's first number sets the width of the whole
    range."""
    runs: list[list[str]] = []
    for value in values:
        if runs and value == _next_number(runs[-1][-1], runs[-1][0]):
            runs[-1].append(value)
        else:
            runs.append([value])
    return "[" + ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) + "]"


def _next_number(value: str, first: str) -> str:
    return str(int(value) + 1).zfill(len(first) if first.startswith("0") else 0)


# Which nodes a pattern means: `all`, a node, a group, `gn[01-04]`, `gn*`, `a:b` or `a,b`, `!c`, `&d`.

HIGHEST_CHARACTER = "\U0010ffff"
MAX_COMPARED_NAMES = 5000  # known names that an unknown name is compared with: difflib takes 20 microseconds a name
_MAX_SUGGESTIONS = 3  # unknown names of one pattern for which the nearest known name is looked up
_RANGE_NAME_COST = 16  # names that are matched with a glob in the time in which a range makes one name
_GLOB = re.compile(r"[*?\[]")
_BRACKETS_OR_SEPARATOR = re.compile(r"\[[^\[\]]*\]|[:,]")


def _pattern_parts(pattern: str) -> list[str]:
    """The parts of a pattern between its colons and commas; those inside brackets separate nothing."""
    begins = [0]
    ends = []
    for found in _BRACKETS_OR_SEPARATOR.finditer(pattern):
        if found[0] in (":", ","):
            ends.append(found.start())
            begins.append(found.end())
    return [pattern[begin:end].strip() for begin, end in zip(begins, [*ends, len(pattern)], strict=True)]


def select_nodes(pattern: str, inventory: Inventory, span: Span | None = None) -> tuple[Node, ...]:
    """The nodes in rank order, at least one. Raises FilesWrong; `span` is where the pattern was written."""
    chosen = matching_names(pattern, Names(node.name for node in inventory.nodes), inventory.groups, span)
    return tuple(node for node in inventory.nodes if node.name in chosen)


class Names(dict[str, None]):
    """Node names to match patterns with, sorted as well, so that all names with one beginning are found at once."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(dict.fromkeys(names))
        self._in_order = sorted(self)

    def that_begin_like(self, glob: str) -> Sequence[str]:
        """The names that begin with the text of the glob before its first special sign."""
        head = glob[: found.start()] if (found := _GLOB.search(glob)) else glob
        first = bisect_left(self._in_order, head)
        return self._in_order[first : bisect_left(self._in_order, head + HIGHEST_CHARACTER, first)]


def matching_cost(pattern: str, names: Names) -> int:
    """The cost of `matching`, counted in names that are matched with a glob; a name that a range makes counts as
    _RANGE_NAME_COST of these."""
    parts = _pattern_parts(pattern)
    total = len(names) if all(part[:1] in ("!", "&") for part in parts) else 0  # such a pattern starts from all names
    for part in parts:
        name = part.lstrip("!&").strip()
        if name in names:
            total += 1
        elif name == "all":
            total += len(names)
        elif _GLOB.search(plain := without_ranges(name)):
            total += len(names.that_begin_like(name) if plain == name else names) * max(1, count_names(name))
        else:
            total += _RANGE_NAME_COST * count_names(name)
    return total


def matching_names(
    pattern: str, names: Names, groups: Mapping[str, Collection[str]], span: Span | None = None, *, guess: bool = True
) -> set[str]:
    """The names that `pattern` means, at least one. Raises FilesWrong with every part that is wrong.

    With `guess`, a problem suggests the known name nearest to an unknown one, which may take a tenth of a second.
    """
    parts = _pattern_parts(pattern)
    problems: list[Problem] = []
    joined: set[str] = set()
    kept: list[set[str]] = []
    taken: set[str] = set()
    starts_from_all = True
    for part in parts:
        sign, name = (part[:1], part[1:].strip()) if part[:1] in ("!", "&") else ("", part)
        try:
            found = _names_of_part(name, names, groups, guess=guess and len(problems) < _MAX_SUGGESTIONS)
        except _Unknown as unknown:
            problems.append(Problem(unknown.id, f"{unknown} (in the pattern `{pattern}`)", span, unknown.help))
            continue
        if sign == "!":
            taken |= found
        elif sign == "&":
            kept.append(found)
        else:
            starts_from_all = False
            joined |= found
    if problems:
        raise FilesWrong(problems)
    chosen = (set(names) if starts_from_all else joined).intersection(*kept) - taken
    if not chosen:
        help = "an empty selection would be an empty success; widen the pattern"
        raise FilesWrong.of("pattern.empty", f"no node is left of the pattern `{pattern}`", span=span, help=help)
    return chosen


class _Unknown(Exception):
    """A part of a pattern is unreadable, or names no node and no group."""

    def __init__(self, id: str, message: str, help: str | None) -> None:
        self.id = id
        self.help = help
        super().__init__(message)


def _unknown_name_help(missing: str, names: Names, groups: Mapping[str, Collection[str]]) -> str | None:
    shape = _digits_masked(missing)
    others = (name for name in (*groups, *names) if _digits_masked(name) != shape)
    near = nearest_word(missing, islice(others, MAX_COMPARED_NAMES))
    if near:
        return f"did you mean `{near}`?"
    return known_names_help((*groups, *sorted(names))) or known_names_help((*groups, *split_names(fold(names))))


def _digits_masked(name: str) -> str:
    """The name without its digits: gn05 is no misspelt gn04."""
    return re.sub(r"[0-9]+", "#", name)


def _names_of_part(name: str, names: Names, groups: Mapping[str, Collection[str]], *, guess: bool) -> set[str]:
    """The nodes that one part of a pattern means, without its sign. Raises _Unknown."""
    if not name:
        raise _Unknown("pattern.syntax", "a name is missing", "write for example `rack1:!gn03`")
    if name == "all":
        return set(names)
    if name in groups:
        return set(groups[name])
    if name in names:
        return {name}
    if foreign := foreign_range(name):  # fnmatch would take Ansible's for any one of its characters
        raise _Unknown("pattern.syntax", *foreign)
    try:
        wanted = expand(name)
    except ValueError as error:
        raise _Unknown("pattern.syntax", str(error), None) from None
    found: set[str] = set()
    missing = []
    for one in wanted:
        if one in names:
            found.add(one)
        elif _GLOB.search(one) and (globbed := fnmatch.filter(names.that_begin_like(one), one)):
            found.update(globbed)
        else:
            missing.append(one)
    if missing:
        shown = first_items_text([f"`{one}`" for one in missing], 3)
        verb = "is" if len(missing) == 1 else "are"
        help = _unknown_name_help(missing[0], names, groups) if guess else None
        raise _Unknown("pattern.unknown-name", f"{shown} {verb} neither a node nor a group", help)
    return found
