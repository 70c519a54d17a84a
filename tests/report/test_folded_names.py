"""Folded names say exactly the names that went in: an expander of the tests' own reads them back."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.model.node_ranges import fold

from .strategies import UNHURRIED


def expand(text: str) -> list[str]:
    return [name for part in re.split(r",(?![^\[]*\])", text) if part for name in product(part)]


def product(part: str) -> list[str]:
    pieces = re.split(r"\[([^\]]*)\]", part)
    choices = [[piece] if place % 2 == 0 else list(values(piece)) for place, piece in enumerate(pieces)]
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def values(ranges: str) -> Iterator[str]:
    for item in ranges.split(","):
        first, dash, last = item.partition("-")
        if not dash:
            yield first
        elif first.isdigit():
            yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
        else:
            yield from map(chr, range(ord(first), ord(last) + 1))


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], ""),
        (["node1"], "node1"),
        (["node-a", "node-b"], "node-[a-b]"),
        ([f"node{n:02d}" for n in range(1, 17)], "node[01-16]"),
        (["gn1", "gn3", "gn4", "gn5", "login"], "gn[1,3-5],login"),
        (["login", "gn5", "gn4"], "login,gn[4-5]"),
        (["gn8", "gn9", "gn10", "gn11"], "gn[8-11]"),
        (["gn08", "gn09", "gn10", "gn11"], "gn[08-11]"),
        (["gn1", "gn01"], "gn[1,01]"),
        (["gn2", "gn2"], "gn2"),
        (["gpu1", "cpu1", "gpu2"], "gpu[1-2],cpu1"),
        (["r1-n1", "r1-n2", "r2-n1", "r2-n2"], "r[1-2]-n[1-2]"),
        (["r1-n1", "r1-n2", "r2-n1"], "r1-n[1-2],r2-n1"),
        (["gn01-ib", "gn02-ib"], "gn[01-02]-ib"),
        (["10.0.0.1", "10.0.0.2", "10.0.1.1"], "10.0.0.[1-2],10.0.1.1"),
        (["data", "datb"], "data,datb"),
        (["odd[1]", "odd[2]"], "odd[1],odd[2]"),
    ],
)
def test_names_are_folded(names: list[str], folded: str) -> None:
    assert fold(names) == folded


NAMES = st.one_of(
    st.from_regex(r"(gn|node-|r[0-3]-n|10\.0\.[0-2]\.)[0-9]{1,3}(-ib)?", fullmatch=True),
    st.from_regex(r"(node|rack1)[-._][a-f]", fullmatch=True),
    st.text("ab-._0129z", min_size=1, max_size=25),
)


@UNHURRIED
@given(st.lists(NAMES, max_size=60))
def test_nothing_is_lost_and_nothing_invented(names: list[str]) -> None:
    told = expand(fold(names))
    assert sorted(told) == sorted(set(names))


def test_a_thousand_nodes_fold_at_once() -> None:
    assert fold(f"rack{r:02d}-gn{n:03d}" for r in range(1, 11) for n in range(1, 101)) == "rack[01-10]-gn[001-100]"
