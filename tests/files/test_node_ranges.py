from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.files.node_sets import count_names, expand, has_range


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gn", ["gn"]),
        ("gn[01-04]", ["gn01", "gn02", "gn03", "gn04"]),
        ("gn[1,3-5]", ["gn1", "gn3", "gn4", "gn5"]),
        ("gn[8-11]", ["gn8", "gn9", "gn10", "gn11"]),
        ("gn[08-11]x", ["gn08x", "gn09x", "gn10x", "gn11x"]),
        ("gn[99-101]", ["gn99", "gn100", "gn101"]),
        ("gn[098-101]", ["gn098", "gn099", "gn100", "gn101"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("10.0.[0-1].[1-2]", ["10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.1.2"]),
        ("[5]", ["5"]),
        ("gn[ 1 - 2 , 4 ]", ["gn1", "gn2", "gn4"]),
        ("fd00::1", ["fd00::1"]),
        ("[fd00::1]", ["[fd00::1]"]),
        ("fd00::[1-2]", ["fd00::1", "fd00::2"]),
        ("gn[ab]", ["gn[ab]"]),
    ],
)
def test_expansion(text: str, names: list[str]) -> None:
    assert expand(text) == names
    assert has_range(text) == (names != [text])


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("gn[4-1]", "backwards"),
        ("gn[1-010]", "two different widths"),
        ("gn[]", "not a range"),
        ("gn[1-]", "not a range"),
        ("gn[-1]", "not a range"),
        ("gn[1-2-3]", "not a range"),
        ("gn[1,]", "not a range"),
        ("gn[1-20001]", "20,000"),
        ("gn[1-99999999999999999999]", "not a range"),
        ("[1-1000][1-1000][1-1000]", "20,000"),
        ("gn[0-999999999999999999]", "20,000"),
    ],
)
def test_what_is_no_range_is_refused(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        expand(text)


@given(st.integers(0, 2000), st.integers(0, 300), st.integers(1, 6))
def test_every_number_is_there_once_in_order_and_padded(first: int, more: int, width: int) -> None:
    low, high = str(first).zfill(width), str(first + more).zfill(width)
    names = expand(f"n[{low}-{high}]")
    assert [int(name[1:]) for name in names] == list(range(first, first + more + 1))
    assert all(len(name[1:]) >= len(low) for name in names)


@given(st.text(alphabet="gn[]0123-, .:", max_size=20))
def test_nothing_else_is_raised(text: str) -> None:
    try:
        names = expand(text)
    except ValueError:
        return
    assert names


def test_very_many_brackets_cost_no_more_than_their_length() -> None:
    """Their product has a million digits: `str` of it would raise, and making it takes seconds."""
    assert count_names("a" + "[1-999999999999999999]" * 50_000) == 0
    with pytest.raises(ValueError, match="stands for more than"):
        expand("[1-999999999999999999]" * 50)
