"""What nodes tell of their jobs is looked through in work that grows with its length, whatever it says."""

from __future__ import annotations

from typing import Any

import pytest

from runbook.jobs.known_jobs import KnownJob, _journals
from runbook.node.journal import Odd


class Counted(str):
    """A text that counts how often one of its kind was compared."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_name_that_comes_twice_is_found_among_many_by_few_comparisons() -> None:
    names = [Counted(f"rank-{number:05d}.node-a.l0") for number in range(5_000)]
    journal: dict[str, Any] = {
        "name": "ranks-0-4999.node-a.launcher",
        "job": "job",
        "attempt": 1,
        "node": "node-a",
        "ranks": [0],
        "keeper": 7,
        "state": "ended",
        "lives": False,
        "keeper_lives": False,
        "each": [*names, Counted(names[-1])],
    }
    Counted.comparisons = 0
    with pytest.raises(Odd, match="a name of its own"):
        _journals("attempt-01", [journal], "node-a", "job")
    assert 0 < Counted.comparisons < 10 * len(names)


@pytest.mark.parametrize(("told", "grace_s"), [(3600, 3600.0), (None, 30.0), (1e300, 86_400.0)])
def test_a_job_has_the_grace_that_its_nodes_tell_up_to_a_day(told: float | None, grace_s: float) -> None:
    """It may write its checkpoint for an hour; a node that lies holds nobody for ever."""
    assert KnownJob("job", {"grace_s": told}).grace_s == grace_s
