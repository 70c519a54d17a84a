"""What `logs` and `attach` do with a rank that a job does not have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from runbook.cli.jobs import _refuse_unknown_ranks
from runbook.jobs.known_jobs import KnownJob
from runbook.model.errors import FilesWrong


def job(**changed: Any) -> KnownJob:
    known = {"id": "20261121-0330", "processes": [{"ranks": [0, 1]}, {"ranks": [2, 3]}], "absent": (), "damaged": {}}
    return cast(KnownJob, SimpleNamespace(**{**known, **changed}))


def test_silence_is_not_taken_for_a_rank_that_wrote_nothing() -> None:
    with pytest.raises(FilesWrong) as wrong:
        _refuse_unknown_ranks(job(), [1, 7])
    assert "--only-rank 7" in wrong.value.problems[0].message
    assert wrong.value.problems[0].help == "known here: 0-3"


@pytest.mark.parametrize("changed", [{"absent": ("node-b",)}, {"damaged": {"node-b": ["x"]}}, {"processes": []}])
def test_where_not_all_ranks_are_known_none_is_refused(changed: dict[str, Any]) -> None:
    _refuse_unknown_ranks(job(**changed), [7])
    _refuse_unknown_ranks(job(), [])
    _refuse_unknown_ranks(job(), [0, 3])
