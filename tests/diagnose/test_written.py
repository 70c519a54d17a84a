"""Short logs written by hand for what cannot fail for real here: hardware, drivers, fabrics, Windows, old versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from .read import causes_in, first_in

BLOCKS = Path(__file__).with_name("written.txt").read_text().split("\n## ")[1:]
CASES = [(block.partition("\n")[0], block.partition("\n")[2].strip("\n")) for block in BLOCKS]


@pytest.mark.parametrize(("causes", "text"), CASES, ids=[f"{at}-{causes}" for at, (causes, _) in enumerate(CASES)])
def test_the_first_cause(causes: str, text: str) -> None:
    assert (first_in(text) or "no-failure") in causes.split()


WATCHDOG = (
    "[rank{rank}]:[E318 07:39:53.7 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={size}, NumelOut={size}, Timeout(ms)=600000) ran for 600007 milliseconds before timing out.\n"
)


def watchdogs(*calls: tuple[int, int, str, int]) -> str:
    return "".join(WATCHDOG.format(rank=rank, seq=seq, op=op, size=size) for rank, seq, op, size in calls)


def test_equal_calls_on_every_rank_are_a_stall_of_the_transport() -> None:
    found = causes_in(job=watchdogs(*((rank, 9, "ALLREDUCE", 64) for rank in range(4))))
    assert found[0].cause == "collective-stall-uniform"


def test_the_rank_that_printed_no_timeout_is_the_suspect() -> None:
    found = causes_in(job=watchdogs(*((rank, 9, "ALLREDUCE", 64) for rank in (0, 1, 3))))
    assert found[0].cause == "rank-behind"
    assert "rank 2" in found[0].says


def test_the_lowest_number_is_behind() -> None:
    found = causes_in(job=watchdogs((0, 9, "ALLREDUCE", 64), (1, 9, "ALLREDUCE", 64), (2, 4, "ALLREDUCE", 64)))
    assert found[0].cause == "rank-behind"
    assert "rank 2" in found[0].says


@pytest.mark.parametrize("other", [(1, 9, "BROADCAST", 64), (1, 9, "ALLREDUCE", 65)])
def test_one_number_and_different_calls_are_a_mismatch(other: tuple[int, int, str, int]) -> None:
    found = causes_in(job=watchdogs((0, 9, "ALLREDUCE", 64), other))
    assert found[0].cause == "mismatched-collectives"
    assert "rank 0: ALLREDUCE of 64 elements" in found[0].says


def test_sizes_may_differ_where_the_operation_allows_it() -> None:
    found = causes_in(job=watchdogs((0, 9, "ALLTOALL_BASE", 64), (1, 9, "ALLTOALL_BASE", 70)))
    assert found[0].cause == "collective-stall-uniform"


def test_a_fatal_error_on_one_rank_beats_a_timeout_on_the_others() -> None:
    out_of_memory = "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    found = causes_in(job=watchdogs((0, 9, "ALLREDUCE", 64), (1, 9, "ALLREDUCE", 64)), other=out_of_memory)
    assert (found[0].cause, found[0].rank) == ("gpu-out-of-memory", 2)
    assert all(cause.follows == "gpu-out-of-memory" for cause in found[1:])


def test_of_two_faults_the_earlier_by_the_clock_is_the_root() -> None:
    late = "2026-11-20 10:00:09,000 KeyError: 'late'\n"
    early = "2026-11-20 10:00:01,000 [rank1]: FileNotFoundError: [Errno 2] No such file or directory: '/data/early'\n"
    assert "early" in causes_in(a=late, b=early)[0].says


def test_a_run_that_went_on_is_healthy() -> None:
    retried = "RuntimeError: Connection refused\nretry\n" + "step 1 loss 2.0\n" * 20
    assert causes_in(job=retried) == []
    assert causes_in(job=retried + "Traceback (most recent call last):\nKeyError: 'x'\n")[0].cause == "program-error"


def test_a_firewall_answers_at_once_and_an_address_that_nobody_has_after_seconds() -> None:
    line = "[W1120 22:13:{at} socket.cpp:764] [c10d] The client socket has failed to connect to 10.0.0.77:29500 (errno: 113 - No route to host).\n"
    slow = "".join(line.format(at=at) for at in ("17.8", "20.9", "23.9", "27.0"))
    fast = "".join(line.format(at=at) for at in ("17.801", "17.802", "23.901", "23.902"))
    assert first_in(slow) == "master-addr-wrong-host"
    assert first_in(fast) == "no-route-or-reject"


def test_numbers_of_enqueued_work_tell_who_is_behind() -> None:
    line = "[rank{rank}]:[E ProcessGroupNCCL.cpp:1785] [PG ID 2 PG GUID 9 Rank {rank}] Timeout at NCCL work: 5, last enqueued NCCL work: {number}, last completed NCCL work: 4.\n"
    found = causes_in(job="".join(line.format(rank=rank, number=number) for rank, number in ((0, 9), (1, 5), (2, 9))))
    assert found[0].cause == "rank-behind"
    assert "rank 1" in found[0].says
