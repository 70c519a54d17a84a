"""Which nodes a pattern means: `all`, a node, a group, `gn[01-04]`, `gn*`, `a:b` or `a,b`, `!c`, `&d`.

As in Ansible, names are joined first, then `&` keeps what both sides have, then `!` takes away; the order in which
they are written does not matter. `!c` alone means all but c.
"""

from __future__ import annotations

import fnmatch
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

from runbook.load.didyoumean import known_here, nearest
from runbook.load.ranges import expand, size, without_ranges
from runbook.model.errors import FilesWrong, Problem, Span
from runbook.model.inventory import Inventory, Node

LAST_SIGN = "\U0010ffff"
COMPARED = 5000  # names, with one that is unknown: difflib takes 20 microseconds a name
_GUESSED = 3  # unknown names of one pattern for which the nearest is looked up
_OF_A_RANGE = 5  # names that are held against a glob in the time of one that a range makes
_GLOB = re.compile(r"[*?\[]")
_BETWEEN = re.compile(r"[:,](?![^\[]*\])")  # a separator, not one inside brackets


def select(pattern: str, inventory: Inventory, span: Span | None = None) -> tuple[Node, ...]:
    """The nodes in rank order, at least one. Raises FilesWrong; `span` is where the pattern was written."""
    chosen = matching(pattern, Names(node.name for node in inventory.nodes), inventory.groups, span)
    return tuple(node for node in inventory.nodes if node.name in chosen)


class Names(dict[str, None]):
    """Names to be matched, of which those with one beginning are found at once."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(dict.fromkeys(names))
        self._in_order = sorted(self)

    def that_begin_like(self, glob: str) -> Sequence[str]:
        """Those that begin as the glob does before its first special sign."""
        head = glob[: found.start()] if (found := _GLOB.search(glob)) else glob
        first = bisect_left(self._in_order, head)
        return self._in_order[first : bisect_left(self._in_order, head + LAST_SIGN, first)]


def names_looked_at(pattern: str, names: Names) -> int:
    """What `matching` costs, in names that are held against a glob; one that a range makes takes the time of some."""
    parts = [part.strip() for part in _BETWEEN.split(pattern)]
    total = len(names) if all(part[:1] in ("!", "&") for part in parts) else 0  # it starts from all of them
    for part in parts:
        name = part.lstrip("!&").strip()
        if name in names:
            total += 1
        elif name == "all":
            total += len(names)
        elif _GLOB.search(plain := without_ranges(name)):
            total += len(names.that_begin_like(name) if plain == name else names) * max(1, size(name))
        else:
            total += _OF_A_RANGE * size(name)
    return total


def matching(
    pattern: str,
    names: Names,
    groups: Mapping[str, Collection[str]],
    span: Span | None = None,
    *,
    guess: bool = True,
) -> set[str]:
    """The names that `pattern` means, at least one. Raises FilesWrong with every part that is wrong.

    `guess`: it says which name is nearest to an unknown one, which may take a tenth of a second.
    """
    parts = [part.strip() for part in _BETWEEN.split(pattern)]
    problems: list[Problem] = []
    joined: set[str] = set()
    kept: list[set[str]] = []
    taken: set[str] = set()
    starts_from_all = True
    for part in parts:
        sign, name = (part[:1], part[1:].strip()) if part[:1] in ("!", "&") else ("", part)
        try:
            found = _one(name, names, groups, guess=guess and len(problems) < _GUESSED)
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
        raise FilesWrong([Problem("pattern.empty", f"no node is left of the pattern `{pattern}`", span, help)])
    return chosen


class _Unknown(Exception):
    def __init__(self, id: str, message: str, help: str | None) -> None:
        self.id = id
        self.help = help
        super().__init__(message)


def _nearest_to(missing: str, names: Names, groups: Mapping[str, Collection[str]]) -> str | None:
    shape = _shape(missing)
    others = (name for name in (*groups, *names) if _shape(name) != shape)
    near = nearest(missing, islice(others, COMPARED))
    return f"did you mean `{near}`?" if near else known_here((*groups, *sorted(names)))


def _shape(name: str) -> str:
    """The name without its digits: gn05 is no misspelt gn04."""
    return re.sub(r"[0-9]+", "#", name)


def _one(name: str, names: Names, groups: Mapping[str, Collection[str]], *, guess: bool) -> set[str]:
    if not name:
        raise _Unknown("pattern.syntax", "a name is missing", "write for example `rack1:!gn03`")
    if name == "all":
        return set(names)
    if name in groups:
        return set(groups[name])
    if name in names:
        return {name}
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
        shown = ", ".join(f"`{one}`" for one in missing[:3]) + (f" and {len(missing) - 3} more" * (len(missing) > 3))
        verb = "is" if len(missing) == 1 else "are"
        help = _nearest_to(missing[0], names, groups) if guess else None
        raise _Unknown("pattern.unknown-name", f"{shown} {verb} neither a node nor a group", help)
    return found
