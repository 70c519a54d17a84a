"""What many nodes say alike is said once, and no two things that differ in more than names and numbers are."""

from __future__ import annotations

import pytest

from runbook.report.folding import Gist, Likewise, fold_similar_entries, fold_texts

NAMES = ("node-a", "node-b", "gn01", "gn02")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("node-a: no answer", "node-b: no answer", True),
        ("gn01 drops TCP 29500", "gn02 drops TCP 29501", True),
        ("gn01 drops TCP", "gn01 rejects TCP", False),
        ("lost node-a", "lost node-a, node-b and gn01", True),
        ("lost node-ab", "lost node-a", False),
        ("connect(10.0.0.1 port 22)", "connect(10.0.12.4 port 2222)", True),
        ("a is slow", "b is slow", False),
    ],
)
def test_the_gist_is_what_is_left_without_names_and_numbers(one: str, other: str, same: bool) -> None:
    gist = Gist(NAMES)
    assert (gist(one) == gist(other)) is same


@pytest.mark.parametrize(
    ("texts", "one"),
    [
        (["n1 is down", "n2 is down", "n3 is down"], "n[1-3] is down"),
        (["n1: 10.0.0.1 port 22", "n2: 10.0.0.2 port 22"], "n[1-2]: 10.0.0.[1-2] port 22"),
        (["from n1 (10.0.0.1), n9", "from n2 (10.0.0.2), n9"], "from n[1-2] (10.0.0.[1-2]), n9"),
        (["took 3.5 s", "took 12 s", "took 9 s", "took 1 s", "took 7 s"], "took 1…12 s"),
        (["exited with 1, not 0", "exited with -9, not 0"], "exited with -9/1, not 0"),
        (["lost n1", "lost n1 and n2"], None),
        ([f"at {'x' * 9}{n}{'y' * 9}{n * n}" for n in range(12)], None),
    ],
)
def test_texts_that_are_alike_make_one(texts: list[str], one: str | None) -> None:
    assert fold_texts(texts) == one


def test_two_are_told_both_and_three_by_the_first() -> None:
    gist = Gist(())
    assert list(fold_similar_entries([(("a",), "x 1"), (("b",), "x 2")], gist)) == [
        Likewise(("a",), "x 1"),
        Likewise(("b",), "x 2"),
    ]
    said = [(("a",), "x 1"), (("b",), "y"), (("c",), "x 2"), (("d", "e"), "x 3")]
    assert list(fold_similar_entries(said, gist)) == [Likewise(("a",), "x 1", ("c", "d", "e")), Likewise(("b",), "y")]
