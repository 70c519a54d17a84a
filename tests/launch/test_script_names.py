"""What a stage's script is called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.launch.script import script_names, slug


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("full AllReduce", "full-allreduce"),
        ("../../x", "x"),
        ("Ü", "stage"),
        ("", "stage"),
        ("CON", "stage-con"),
        ("lpt1", "stage-lpt1"),
        ("console", "console"),
        ("a" * 300, "a" * 60),
    ],
)
def test_a_stages_name_as_a_file_name(text: str, name: str) -> None:
    assert slug(text) == name


def test_no_two_stages_share_a_file_and_none_takes_the_jobs() -> None:
    assert script_names(["launch", "a b", "a-b", "A.B", "ü", "é"]) == {
        "launch": "launch-2",
        "a b": "a-b",
        "a-b": "a-b-2",
        "A.B": "a-b-3",
        "ü": "stage",
        "é": "stage-2",
    }


@given(st.lists(st.text(), unique=True, max_size=8))
def test_names_are_different_and_harmless(stages: list[str]) -> None:
    names = script_names(stages)
    assert list(names) == stages
    assert len(set(names.values()) | {"launch"}) == len(stages) + 1
    assert all(name.isascii() and name.replace("-", "").isalnum() and name == name.lower() for name in names.values())
