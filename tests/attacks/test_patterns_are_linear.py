"""No regular expression of the package takes worse than linear time, whatever text it meets.

Each is pumped with texts made from its own tree (what it takes before a repetition, what it repeats, what it does not
take) and with what logs are made of; four times the text must not take eight times the CPU time.
"""

from __future__ import annotations

import re

import pytest
from syntax_trees import SOURCE

from .patterns import Found, every_pattern, slow

NOT_JUDGED = ("runbook.model.text_search.",)
"""Their texts are patterns of ours."""


@SOURCE
def test_they_are_found() -> None:
    """By value and by source; a walk that finds few of them would prove nothing."""
    assert len(every_pattern()) > 700
    places = " ".join(found.place for found in every_pattern())
    for part in ("diagnose.all_rules.RULES", "files.file_kinds", "lint.", "node.", "collect.", "transport."):
        assert f"runbook.{part}" in places


@pytest.mark.cost
@pytest.mark.parametrize(
    ("pattern", "asked"),
    [(r"\d+x", "search"), (r"a.*b", "search"), (r"(?:a|a)*b", "match"), (r",(?![^\[\]]*\])", "finditer")],
)
def test_a_bad_one_would_be_found(pattern: str, asked: str) -> None:
    assert slow(Found(re.compile(pattern), "here", asked), size=3000, most=12)


@pytest.mark.cost
def test_none_is_worse_than_linear() -> None:
    assert not _slow(size=3000, most=12)


@pytest.mark.cost
def test_none_is_worse_than_linear_on_long_texts() -> None:
    assert not _slow(size=25_000, most=6, one_in=8)


def _slow(*, size: int, most: int, one_in: int = 1) -> list[str]:
    judged = [found for found in every_pattern()[::one_in] if not found.place.startswith(NOT_JUDGED)]
    told = [(found, slow(found, size=size, most=most)) for found in judged]
    return [f"{found.place} {found.pattern.pattern!r}: {text}" for found, text in told if text]
