"""What many nodes say in the same words but for names and numbers, said once. Pure; -v shows each as it was said."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from runbook.model.fold import fold

T = TypeVar("T")

MANY = 3
"""So many that are alike are told as one; two are told both."""

LONG = 48
"""Characters of a folded word that a sentence can bear."""

FEW = 4
"""Numbers that are still read one by one."""

WORD = re.compile(r"(?<![\w.-])[\w.-]*\w")
DIGITS = re.compile(r"\d+")
LIST = re.compile(r"#(?:(?:[.:/-]|,| and|, and) ?#)*")
_NUMBER = re.compile(r"([^\w.+-]*)([+-]?\d+(?:\.\d+)?)([^\d]*)")


class Gist:
    """A text without the names of these nodes and without numbers: what two nodes say alike has the same."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)

    def __call__(self, text: str) -> str:
        return LIST.sub("#", WORD.sub(self._word, text))

    def _word(self, word: re.Match[str]) -> str:
        return "#" if word[0] in self._names else DIGITS.sub("#", word[0])


@dataclass(frozen=True, slots=True)
class Likewise(Generic[T]):
    """Something of `nodes`, and the nodes whose own differs from it in names and numbers alone."""

    nodes: tuple[str, ...]
    what: T
    others: tuple[str, ...] = ()


def likewise(said: Iterable[tuple[tuple[str, ...], T]], gist: Callable[[T], object]) -> Iterator[Likewise[T]]:
    """In order of appearance; where MANY or more have one gist, the first stands for them."""
    kinds: dict[object, list[tuple[tuple[str, ...], T]]] = {}
    for nodes, what in said:
        kinds.setdefault(gist(what), []).append((nodes, what))
    for of in kinds.values():
        if len(of) < MANY:
            yield from (Likewise(nodes, what) for nodes, what in of)
        else:
            yield Likewise(*of[0], tuple(node for nodes, _ in of[1:] for node in nodes))


def in_one(texts: Sequence[str]) -> str | None:
    """Texts that are alike as one, each word that differs folded: `node-[01-64]: nothing answers at 10.0.0.[1-64] port 22`.
    None where that would be no sentence any more."""
    rows = [text.split(" ") for text in texts]
    if len({len(row) for row in rows}) > 1:
        return None
    words = [_word(list(dict.fromkeys(column))) for column in zip(*rows, strict=True)]
    return None if None in words else " ".join(word for word in words if word is not None)


def _word(values: list[str]) -> str | None:
    if len(values) == 1:
        return values[0]
    numbers = [_NUMBER.fullmatch(value) for value in values]
    if all(numbers):
        found = [number for number in numbers if number]
        if len({(number[1], number[3]) for number in found}) == 1:
            return found[0][1] + _numbers([number[2] for number in found]) + found[0][3]
    folded = fold(values)
    return folded if len(folded) <= LONG else None


def _numbers(values: list[str]) -> str:
    listed = sorted(values, key=float)
    return "/".join(listed) if len(listed) <= FEW else f"{listed[0]}…{listed[-1]}"
