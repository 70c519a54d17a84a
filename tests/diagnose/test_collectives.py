"""Collectives of several ranks compared: who is behind, who called something else. Dumps here are in the form that
torch 2.13 writes for gloo; a lab test compares real ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.checks.ranks.collective_calls import (
    Call,
    Trace,
    compare_dumps,
    compare_traces,
    ranks_with_wrong_calls,
    read_dump,
)

REDUCE = Call("all_reduce", ((256,),), ("Float",))
TWICE = Call("all_reduce", ((512,),), ("Float",))
DOUBLE = Call("all_reduce", ((256,),), ("Double",))
BROADCAST = Call("broadcast", ((256,),), ("Float",))


def trace(rank: int, *calls: Call, completed: int | None = None) -> Trace:
    made = dict(enumerate(calls, 1))
    return Trace(rank, len(calls), len(calls) - 1 if completed is None else completed, made)


@pytest.mark.parametrize(
    ("traces", "kind", "number", "ranks"),
    [
        ([trace(0, REDUCE, REDUCE), trace(1, REDUCE, REDUCE)], "uniform", 2, (0, 1)),
        ([trace(0, REDUCE, REDUCE), trace(1, REDUCE, completed=1)], "behind", 2, (1,)),
        ([trace(r, REDUCE, REDUCE) for r in (0, 2)] + [trace(1, completed=0)], "behind", 1, (1,)),
        ([trace(0, REDUCE, REDUCE), trace(1, REDUCE, BROADCAST)], "differs", 2, (0, 1)),
        ([trace(0, REDUCE), trace(1, REDUCE), trace(2, TWICE)], "differs", 1, (2,)),
        ([trace(0, REDUCE), trace(1, DOUBLE), trace(2, REDUCE)], "differs", 1, (1,)),
        ([trace(0, REDUCE, completed=1), trace(1, REDUCE, completed=1)], "idle", 1, ()),
        # One rank is through and in the next call, the other waits for what does not arrive: nobody is behind.
        ([trace(0, REDUCE, REDUCE), trace(1, REDUCE, completed=0)], "uniform", 1, (1,)),
        # What differs comes first, however far some went on.
        ([trace(0, REDUCE, TWICE, REDUCE), trace(1, REDUCE, REDUCE)], "differs", 2, (0, 1)),
        # On a GPU calls are entered ahead of time: who has entered fewer is behind only if the call at hand is missing.
        ([trace(0, *[REDUCE] * 9, completed=3), trace(1, *[REDUCE] * 5, completed=3)], "uniform", 4, (0, 1)),
    ],
)
def test_two_or_three_ranks(traces: list[Trace], kind: str, number: int, ranks: tuple[int, ...]) -> None:
    found = compare_traces(traces)
    assert found is not None
    assert (found.kind, found.number, found.ranks) == (kind, number, ranks)


def test_one_rank_cannot_be_compared() -> None:
    assert compare_traces([]) is None
    assert compare_traces([trace(0, REDUCE)]) is None


@pytest.mark.parametrize("operation", ["all_to_all", "ALLTOALL_BASE", "gather", "scatter", "_all_to_all"])
def test_operations_whose_sizes_may_differ(operation: str) -> None:
    uneven = [trace(rank, Call(operation, ((rank,),), ("Float",))) for rank in range(3)]
    found = compare_traces(uneven)
    assert found
    assert found.kind == "uniform"


def test_an_operation_of_equal_sizes_is_not_taken_for_one_of_uneven_ones() -> None:
    found = compare_traces([trace(rank, Call("all_gather", ((rank + 1,),), ("Float",))) for rank in range(3)])
    assert found
    assert found.kind == "differs"


ranks_and_calls = (
    st.integers(2, 6),
    st.lists(st.sampled_from([REDUCE, TWICE, DOUBLE, BROADCAST]), min_size=1, max_size=8),
)


@given(*ranks_and_calls)
def test_ranks_that_do_the_same_are_never_blamed(ranks: int, calls: list[Call]) -> None:
    for completed in (len(calls), len(calls) - 1):
        found = compare_traces([trace(rank, *calls, completed=completed) for rank in range(ranks)])
        assert found
        assert found.kind in ("uniform", "idle")


@given(*ranks_and_calls, st.data())
def test_the_one_that_leaves_is_found_wherever_it_is(ranks: int, calls: list[Call], data: st.DataObject) -> None:
    """However the ranks are ordered, and whatever came before."""
    late = data.draw(st.integers(0, ranks - 1))
    traces = [
        trace(rank, *calls[:-1], completed=len(calls) - 1) if rank == late else trace(rank, *calls)
        for rank in range(ranks)
    ]
    found = compare_traces(data.draw(st.permutations(traces)))
    assert found
    assert (found.kind, found.number, found.ranks) == ("behind", len(calls), (late,))


@given(st.integers(3, 6), ranks_and_calls[1], st.data())
def test_the_one_that_calls_something_else_is_found_among_three(
    ranks: int, calls: list[Call], data: st.DataObject
) -> None:
    odd, at = data.draw(st.integers(0, ranks - 1)), data.draw(st.integers(0, len(calls) - 1))
    other = next(call for call in (REDUCE, BROADCAST) if call != calls[at])
    changed = [*calls[:at], other, *calls[at + 1 :]]
    found = compare_traces([trace(rank, *(changed if rank == odd else calls)) for rank in range(ranks)])
    assert found
    assert (found.kind, found.number, found.ranks) == ("differs", at + 1, (odd,))


def dump(enqueued: int, completed: int, *entries: dict[str, Any], key: str = "0") -> dict[str, Any]:
    status = {"last_enqueued_collective": str(enqueued), "last_completed_collective": str(completed)}
    config = {"": {"desc": "", "name": "", "ranks": "[0, 1]"}}
    return {"version": "2.10", "pg_status": {key: status}, "pg_config": config, "entries": list(entries)}


def entry(number: int, name: str = "gloo:all_reduce", size: int = 256, **other: Any) -> dict[str, Any]:
    return {
        "collective_seq_id": number,
        "profiling_name": name,
        "input_sizes": [[size]],
        "input_dtypes": ["Float"],
        "is_p2p": False,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "state": "scheduled",
        "retired": False,
        **other,
    }


def test_a_real_dump_is_read() -> None:
    found = read_dump(1, dump(5, 4, entry(4, retired=True), entry(5)))
    assert found == {"0": Trace(1, 5, 4, {4: REDUCE, 5: REDUCE})}
    assert str(found["0"].calls[5]) == "all_reduce of 256 Float"


def test_dumps_of_other_releases() -> None:
    """NCCL's have states instead of `retired`, numbers that are not text, and -1 for nothing yet."""
    status = {"last_enqueued_collective": 2, "last_completed_collective": -1}
    found = read_dump(
        0, {"pg_status": {"0": status}, "entries": [entry(1, "nccl:all_reduce", state="completed"), entry(2)]}
    )
    assert (found["0"].enqueued, found["0"].completed) == (2, 1)
    assert read_dump(0, {"entries": [entry(7)]})["0"].enqueued == 7
    assert read_dump(0, {}) == {}
    assert read_dump(0, {"entries": None, "pg_status": None, "pg_config": {"0": {"ranks": "[0, "}}}) == {}


def test_point_to_point_calls_are_not_compared() -> None:
    both = {0: dump(1, 0, entry(1), entry(9, "gloo:send", is_p2p=True)), 1: dump(1, 0, entry(1))}
    assert [one.kind for one in compare_dumps(both)] == ["uniform"]


def test_the_group_with_the_fault_comes_first() -> None:
    def two(rank: int, size: int) -> dict[str, Any]:
        return {"entries": [entry(1), entry(3, pg_id=1, size=size, process_group=["5", "tensor parallel"])]}

    found = compare_dumps({0: two(0, 8), 1: two(1, 16)})
    assert [(one.group, one.kind) for one in found] == [("5", "differs"), ("0", "uniform")]


def test_what_the_program_meant_decides_between_two() -> None:
    meant = {rank: Call("all_reduce", ((256,),), ("float32",)) for rank in (0, 1)}
    assert ranks_with_wrong_calls(meant, {0: REDUCE, 1: REDUCE}) == ()
    assert ranks_with_wrong_calls(meant, {0: REDUCE, 1: TWICE}) == (1,)
    assert ranks_with_wrong_calls(meant, {0: DOUBLE, 1: REDUCE}) == (0,)
    assert ranks_with_wrong_calls(meant, {0: REDUCE, 1: BROADCAST}) == (1,)
    assert ranks_with_wrong_calls(meant, {0: Call("all_reduce", ((16, 16),), ("Float",))}) == ()
    assert ranks_with_wrong_calls({}, {0: TWICE}) == ()
