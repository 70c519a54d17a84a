"""Where a remedy is to be done: on the nodes that have the fault, on those that it names, or wherever its reader sits."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from runbook.model.fold import fold

QUOTED = re.compile(r"`[^`]*`")
COMMAND = re.compile(r"(?:^|[|;&] *)sudo ")
"""A remedy is a sentence with its commands in backticks, or nothing but a command. What changes a node wants root there."""


def is_command(remedy: str) -> bool:
    """Whether it is surely nothing but a command."""
    return COMMAND.search(QUOTED.sub("", remedy)) is not None


def is_sentence(remedy: str) -> bool:
    """Whether it is surely more than a command."""
    return QUOTED.search(remedy) is not None and not is_command(remedy)


def placed(remedy: str, nodes: Sequence[str], known: Collection[str]) -> Iterator[tuple[str, str]]:
    """(where, what) for each part: `on node-a: COMMAND; on node-b: COMMAND` has two. `where` is empty for what is done in
    the inventory, on the controller or in several places. `nodes` have the fault, none of them where nobody gets there; `known` are all nodes of the run."""
    names = "|".join(re.escape(name) for name in sorted({*known, fold(nodes)} - {""}, key=len, reverse=True)) or r"\b\B"
    first, *parts = re.split(rf"(?:^|; )on ({names}): ", remedy)
    if parts and not first:
        yield from ((where, _bare(what)) for where, what in zip(parts[::2], parts[1::2], strict=True))
    elif is_command(remedy):
        yield fold(nodes), remedy
    else:
        yield "", remedy


def commands(remedy: str, node: str, known: Collection[str]) -> Iterator[tuple[str, str]]:
    """(node, command) for what is surely a command to be typed on that node; of a sentence, nothing. `node` has the fault."""
    for where, what in placed(remedy, [node], known):
        if where and not is_sentence(what):
            yield where, what


def _bare(text: str) -> str:
    """A command alone without its backticks, ready to be copied; a sentence as it is."""
    return text[1:-1] if QUOTED.fullmatch(text) else text
