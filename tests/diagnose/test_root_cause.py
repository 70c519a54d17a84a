"""Which cause is told first, and which ones only follow from it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runbook.causes.catalogue import cause_pages as known_causes
from runbook.causes.catalogue import ordered_causes, root_cause_among


def test_a_consequence_comes_after_its_root() -> None:
    found = ["no-gpu-visible", "clock-skew", "driver-library-mismatch"]
    assert ordered_causes(found) == ["clock-skew", "driver-library-mismatch", "no-gpu-visible"]
    assert root_cause_among("no-gpu-visible", found) == "driver-library-mismatch"
    assert root_cause_among("clock-skew", found) is None


def test_a_survivors_view_follows_from_whatever_is_known() -> None:
    assert root_cause_among("peer-died", ["peer-died", "rank-killed"]) == "rank-killed"
    assert root_cause_among("peer-died", ["peer-died", "ranks-missing"]) is None


def test_two_that_could_each_be_the_root_stand_side_by_side() -> None:
    assert root_cause_among("tcp-connection-lost-midrun", ["tcp-connection-lost-midrun", "peer-died"]) is None


@given(st.lists(st.sampled_from(sorted(known_causes())), max_size=8))
def test_nothing_is_lost_and_roots_come_first(found: list[str]) -> None:
    ordered = ordered_causes(found)
    assert sorted(ordered) == sorted(set(found))
    for place, cause in enumerate(ordered):
        root = root_cause_among(cause, ordered)
        assert root is None or ordered.index(root) < place or root_cause_among(root, ordered) is not None
