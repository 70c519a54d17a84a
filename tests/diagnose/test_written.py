"""Short logs written by hand for what cannot fail for real here: hardware, drivers, fabrics, Windows, old versions."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from cases import try_each
from profiles import one_in

from runbook.diagnose.log_lines import BrokenLine, may_continue, names_in_a_loop, section_speaker
from runbook.diagnose.tool_outputs import read_paste

from .read import causes_in, first_in

BLOCKS = Path(__file__).with_name("written.txt").read_text().split("\n## ")[1:]
CASES = [(block.partition("\n")[0], block.partition("\n")[2].strip("\n")) for block in BLOCKS]


def test_the_first_cause() -> None:
    def check(case: tuple[str, str]) -> None:
        causes, text = case
        assert (first_in(text) or "no-failure") in causes.split(), text

    try_each(((f"{at}-{case[0]}", case) for at, case in enumerate(CASES)), check)


def tells_who_speaks(text: str) -> bool:
    """Lines of it say that from there on somebody else speaks: headings, prompts of several hosts, a loop over hosts."""
    lines = text.split("\n")
    speakers = {section_speaker(line) for line in lines} - {None}
    return "### " in text or len(speakers) > 1 or any(map(names_in_a_loop, lines))


SPOKEN = [text for _, text in CASES if not tells_who_speaks(text) and not read_paste(text).found]
"""Those in which no line tells who speaks from there on (a prefix before every line says it again), and that no tool wrote:
what a tool prints is known by its layout."""


def is_whole(text: str) -> bool:
    """No line of it goes on with another: a logger that packs lines packs whole ones."""
    return not any(
        may_continue(line) and BrokenLine(1, line).takes(after) for line, after in pairwise(text.encode().split(b"\n"))
    )


def docker(line: str) -> str:
    return json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-11-20T10:00:00.1Z"})


@pytest.mark.parametrize(
    "worn",
    one_in(7, [
        "> {}".format, "    {}".format, "{}\r".format, "\x1b[36m{}\x1b[0m".format, "[36m{}[0m".format, "2026-11-20T10:00:00.123Z {}".format, "3: {}".format, "[1,3]<stderr>:{}".format,
        "worker-1  | {}".format, "(RayTrainWorker pid=12, ip=10.0.0.9) {}".format, "Nov 20 10:00:00 gn1 train.sh[99]: {}".format, "    7  {}".format, docker,
    ]),
)  # fmt: skip
def test_what_stands_around_every_line_changes_nothing(worn: Callable[[str], str]) -> None:
    spoken = [text for text in SPOKEN[::6] if worn is not docker or is_whole(text)]
    changed = [text for text in spoken if first_in("\n".join(map(worn, text.split("\n")))) != first_in(text)]
    assert not changed


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


def test_many_silent_ranks_are_an_excerpt_or_another_machines() -> None:
    found = causes_in(job=watchdogs(*((rank, 9, "ALLREDUCE", 64) for rank in (4, 5, 6, 7))))
    assert found[0].cause == "collective-stall-uniform"


def test_a_log_that_breaks_off_says_nothing_against_the_ranks_that_are_not_in_it() -> None:
    state = "[rank{rank}]:[E ProcessGroupNCCL.cpp:1664] [PG 1 Rank {rank}] Exception (either an error or timeout) detected by watchdog at work: 9, last enqueued NCCL work: 9, last completed NCCL work: 8.\n"
    lines = [watchdogs((rank, 9, "ALLREDUCE", 64)) + state.format(rank=rank) for rank in (0, 1, 2, 4)]
    assert causes_in(job="".join(lines))[0].cause == "rank-behind"
    assert causes_in(job="".join(lines)[: -len(state)])[0].cause == "collective-stall-uniform"


def test_who_still_prepares_while_others_wait_is_behind_also_where_the_log_breaks_off() -> None:
    state = "[rank1]:[E ProcessGroupNCCL.cpp:1664] [PG 1 Rank 1] Exception (either an error or timeout) detected by watchdog at work: 9, last enqueued NCCL work: 9, last completed NCCL work: 8.\n"
    waiting = watchdogs(*((rank, 9, "ALLREDUCE", 1) for rank in (1, 2, 3))) + state
    bar = "Map:  24%|██▍       | 12000/50000 [09:58<31:20, 20.21 examples/s]\n"
    assert causes_in(job=bar + waiting)[0].cause == "collective-stall-uniform"
    assert causes_in(job=bar + waiting + bar)[0].says.startswith("rank 0")


def test_a_line_that_breaks_off_is_no_other_call() -> None:
    cut = watchdogs((1, 9, "ALLREDUCE", 64)).partition(", NumelIn")[0]
    assert causes_in(job=watchdogs((0, 9, "ALLREDUCE", 64)) + cut)[0].cause == "collective-stall-uniform"


@pytest.mark.parametrize(
    ("counts", "late"),
    [
        ("7 ranks have launched up to operation 64\n  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1 on node gn2", "rank 7 "),
        ("6 ranks have launched up to operation 9\n  2 ranks have not launched any operations\n  Rank 2 -- GPU 2 managed by process 1 on node gn1\n  Rank 3 -- GPU 3 managed by process 2 on node gn1", "rank 2-3 "),
        ("6 ranks have launched up to operation 8\n  2 ranks have launched up to operation 9\n  Rank 2 -- GPU 2 managed by process 1 on node gn1\n  Rank 3 -- GPU 3 managed by process 2 on node gn1", "6 ranks (not rank 2-3) "),
    ],
)  # fmt: skip
def test_nccls_own_report_names_who_is_behind(counts: str, late: str) -> None:
    found = causes_in(
        job=f"#0-0 (ab12) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n  {counts}\n"
    )
    assert found[0].cause == "rank-behind"
    assert found[0].says.startswith(late)


def test_the_port_is_named_where_the_line_does() -> None:
    assert "8016" in causes_in(job="[Errno 13] error while attempting to bind on address ('0.0.0.0', 8016)")[0].says
    assert (
        "8017"
        in causes_in(job="[Errno 98] error while attempting to bind on address ('0.0.0.0', 8017): 地址已在使用")[0].says
    )


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


def test_last_words_count_with_the_line_ends_of_windows() -> None:
    assert first_in(b"Started training service on gn1, running\r\nworker 3 evaporated\r\n") == "insufficient-evidence"


def test_a_step_between_a_kill_and_a_good_end_shows_that_it_was_survived() -> None:
    killed = (
        "Memory cgroup out of memory: Killed process 88120 (jupyter-lab) total-vm:21349468kB, anon-rss:16164992kB\n"
    )
    step, end = "step 30000 loss 1.8871\n", "71190    petra  COMPLETED      0:0 2025-09-03T18:44:02\n"
    assert causes_in(job=killed + step + end) == causes_in(job=killed + end + step) == []
    for failed in (killed, killed + step, killed + end, step + killed + end, "[rank3]: " + killed + step + end):
        assert first_in(failed) == "rank-killed"


def test_a_line_that_another_rank_still_printed_is_no_recovery() -> None:
    ran_out = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    assert first_in("step 1 loss 2.0\n" * 20 + ran_out + "step 21 loss 2.0\n") == "gpu-out-of-memory"


def test_a_run_that_went_on_after_the_first_of_two_failures_failed() -> None:
    refused = "RuntimeError: Connection refused\n"
    assert causes_in(job=refused + "step 1 loss 2.0\n" * 20) == []
    assert first_in(refused + "step 1 loss 2.0\n" * 20 + refused) == "master-not-listening"


@pytest.mark.parametrize(
    "line", ["[node0] giving up on shard 3", "worker 7 crashed", "E: no such device, cannot continue"]
)
def test_no_log_is_called_healthy_over_a_line_that_no_rule_knows(line: str) -> None:
    assert first_in(line) == "insufficient-evidence"
    assert first_in("step 1 loss 2.0\n" * 20 + line) == "insufficient-evidence"
    assert causes_in(job=line + "\n" + "step 1 loss 2.0\n" * 20) == []


def test_a_local_rank_is_not_the_jobs_first_rank() -> None:
    line = "[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to (192.168.1.1, 1234).\n"
    assert first_in("[rank0]: " + line) == "master-addr-wrong-host"
    assert first_in("[default0]: " + line) == "master-not-listening"


def test_a_firewall_answers_at_once_and_an_address_that_nobody_has_after_seconds() -> None:
    line = "[W1120 22:13:{at} socket.cpp:764] [c10d] The client socket has failed to connect to 10.0.0.77:29500 (errno: 113 - No route to host).\n"
    slow = "".join(line.format(at=at) for at in ("17.8", "20.9", "23.9", "27.0"))
    fast = "".join(line.format(at=at) for at in ("17.801", "17.802", "23.901", "23.902"))
    assert first_in(slow) == "master-addr-wrong-host"
    assert first_in(fast) == "no-route-or-reject"


def test_numbers_of_enqueued_work_tell_who_is_behind() -> None:
    line = "[rank{rank}]:[E ProcessGroupNCCL.cpp:1785] [PG ID 2 PG GUID 9 Rank {rank}] {says}last enqueued NCCL work: {number}, last completed NCCL work: 4.\n"
    late = line.format(rank=1, says="Received a dump signal due to a collective timeout from rank 0, ", number=4)
    others = [line.format(rank=rank, says="Timeout at NCCL work: 5, ", number=9) for rank in (0, 2)]
    found = causes_in(job="".join((others[0], late, others[1])))
    assert found[0].cause == "rank-behind"
    assert "rank 1" in found[0].says


CAUGHT = "batch 64: CUDA out of memory. Tried to allocate 2 GiB, trying 32\n"


def test_a_program_that_caught_it_and_came_to_its_end_is_healthy() -> None:
    assert causes_in(job=CAUGHT + "step 1 loss 2.0\n" * 3) == []
    assert causes_in(job=CAUGHT + "step 1 loss 2.0\nTraining finished in 9 s\n") == []
    assert first_in(CAUGHT + "step 1 loss 2.0\n") == "gpu-out-of-memory"
    assert first_in("[rank3]: " + CAUGHT + "step 1 loss 2.0\nTraining finished in 9 s\n") == "gpu-out-of-memory"
    raised = "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    assert first_in(raised + "Training finished in 9 s\n") == "gpu-out-of-memory"


@pytest.mark.parametrize(
    ("summary", "healthy"),
    [
        ("----------\nRan 3 tests in 0.512s\n\nOK\n", True),
        ("======== 3 passed, 1 skipped in 4.12s ========\n", True),
        ("======== 1 failed, 2 passed in 4.12s ========\n", False),
        ("----------\nRan 3 tests in 0.512s\n\nFAILED (errors=1)\n", False),
    ],
)
def test_what_tests_print_on_purpose_is_judged_by_their_summary(summary: str, healthy: bool) -> None:
    chaos = "test_kill (chaos.Kill) ... [E] RuntimeError: Connection refused\nTraceback (most recent call last):\ntorch.distributed.DistBackendError: NCCL error, remote process exited\nCUDA out of memory. Tried to allocate 2 GiB\n"
    assert (causes_in(job=chaos + summary) == []) is healthy


@pytest.mark.parametrize(
    ("line", "sure"),
    [
        ("train.py exits with return code = 1", True),
        ("RuntimeError: NCCL error in: ../ProcessGroupNCCL.cpp:45, unhandled system error, NCCL version 2.20.5", True),
        ("CUDA_ERROR_STRANGE_THING in expression cuDoSomething(&handle) failed", False),
        ("RuntimeError: HIP error: something nobody has met", False),
    ],
)
def test_only_lines_that_are_known_to_tell_nothing_are_surely_too_little(line: str, sure: bool) -> None:
    found = causes_in(job=line + "\nrank 0 exited with exit code 1\n")
    assert (found[0].cause, found[0].confidence == "high") == ("insufficient-evidence", sure)


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: Broken pipe",
        "RuntimeError: [/opt/gloo/pair.cc:598] Connection closed by peer [10.0.0.2]:4123",
        "gn1:15:91 [3] include/socket.h:398 NCCL WARN Call to recv failed : Connection reset by peer",
        "[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=9, NumelOut=9, Timeout(ms)=600000) ran for 600012 milliseconds",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 812 got signal: 15",
        "Root Cause (first observed failure):\n[0]:\n  rank      : 3 (local_rank: 3)\n  exitcode  : -15 (pid: 812)",
    ],
)
def test_what_only_follows_is_never_sure(line: str) -> None:
    assert causes_in(job=line)[0].confidence != "high"


def test_a_pod_that_failed_after_another_ran_is_not_lost_sight_of() -> None:
    started = "Normal   Started  2m  kubelet  Started container pytorch\n"
    missing = 'Warning  Failed  1m  kubelet  Failed to pull image "repo.local/train:v3": not found\n'
    assert first_in(started + missing) == "pod-not-running"
    assert first_in(missing + started) != "pod-not-running"


@pytest.mark.parametrize(
    "speed", ["train_tokens/s=51", "avg_samples/s: 51", "5120tokens/s", "1.2ktokens/s", "51 img/s"]
)
def test_a_speed_that_goes_on_shows_that_a_refused_connection_was_no_end(speed: str) -> None:
    refused = "[W socket.cpp:764] [c10d] The client socket has failed to connect to [n1]:29500 (errno: 111 - Connection refused).\n"
    assert first_in(refused) == "master-not-listening"
    assert first_in(refused + f"12:00:01 | {speed}\n" * 30) is None
