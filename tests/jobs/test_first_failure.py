"""Which of several failures was the first: a killed process is, whatever those who lost it raised, and whoever is heard first."""

from __future__ import annotations

import itertools
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from runbook.causes.catalogue import finding_for
from runbook.jobs.failure import hidden_exception_texts, judge_attempt
from runbook.jobs.follow_launch import _is_stopped_on_request
from runbook.jobs.kept_processes import KeptProcess, KeptProcesses
from runbook.jobs.retry import decide_retry
from runbook.jobs.watch import WatchEnd, first_failed_process
from runbook.model.verdict import Finding, Verdict
from runbook.node.journal import STOPPED_BY_USER

from .made_up_attempts import ended, kept, wrote

LOST_A_PEER = (
    b"RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:3345",
    b"jaxlib.xla_extension.XlaRuntimeError: FAILED_PRECONDITION: Gloo all-reduce failed: Socket closed",
    b"",
)


def guilty(made: KeptProcesses, first: KeptProcess) -> tuple[str, Finding]:
    (outcome,) = [one for one in judge_attempt(made, WatchEnd("failed", first), {}) if one.verdict is Verdict.FAIL]
    return outcome.node, outcome.findings[0]


@pytest.mark.parametrize("said", LOST_A_PEER)
@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (-signal.SIGKILL, "rank-killed"),
        (128 + signal.SIGKILL, "rank-killed"),  # a shell in between
        (-signal.SIGTERM, "terminated-from-outside"),
        (-signal.SIGINT, "terminated-from-outside"),
    ],
)
def test_whoever_was_killed_is_the_first_however_late_that_is_noted(
    tmp_path: Path, said: bytes, code: int, cause: str
) -> None:
    for number, (late, heard_first) in enumerate(itertools.product((-0.5, 0.0, 0.2, 3.0), (True, False))):
        made = kept(tmp_path / str(number))
        if heard_first:
            killed, raised = ended(made, 2, code, 101.0 + late), ended(made, 0, 1, 101.0)
        else:
            raised, killed = ended(made, 0, 1, 101.0), ended(made, 2, code, 101.0 + late)
        for rank in (1, 3):
            ended(made, rank, -signal.SIGTERM, 102.0, why="rank 0 on node-a failed")
        wrote(made, raised, err=said)
        node, finding = guilty(made, first_failed_process(made.members) if late <= 0.2 else raised)
        assert (node, finding.cause) == (killed.place.node, cause)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_whom_runbook_ended_was_not_killed_before(tmp_path: Path, number: int) -> None:
    made = kept(tmp_path)
    first = ended(made, 0, 1, 101.0)
    for rank in (1, 2, 3):
        ended(made, rank, -number, 102.0, why="rank 0 on node-a failed")
    node, finding = guilty(made, first)
    assert (node, finding.cause) == ("node-a", "program-error")


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV])
def test_a_crash_may_follow_from_an_error_and_stays_behind_it(tmp_path: Path, number: int) -> None:
    made = kept(tmp_path)
    first = ended(made, 0, 1, 101.0)
    ended(made, 2, -number, 101.3)
    assert guilty(made, first)[1].cause == "program-error"


ABORTED = b"""\
terminate called after throwing an instance of 'std::runtime_error'
Fatal Python error: Aborted

Current thread 0x00007f1 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/_ops.py", line 1243 in __call__
  File "/srv/train.py", line 12 in forward
  File "/srv/train.py", line 90 in <module>

Extension modules: numpy._core._multiarray_umath, torch._C (total: 27)
"""


def test_who_crashed_is_told_with_its_python_line(tmp_path: Path) -> None:
    made = kept(tmp_path)
    first = ended(made, 2, -signal.SIGABRT, 101.0)
    wrote(made, first, err=ABORTED)
    node, finding = guilty(made, first)
    assert (node, finding.cause) == ("node-b", "rank-crashed")
    assert finding.says == "rank 2 on node-b crashed (signal 6, SIGABRT) after 1.0 s, in forward (/srv/train.py:12)"
    assert finding.evidence[0].startswith("terminate called after throwing")


@pytest.mark.parametrize("mistake", [b"KeyError: 'lr'", b"ModuleNotFoundError: No module named 'x'"])
def test_a_mistake_of_ones_own_is_no_lost_peer(tmp_path: Path, mistake: bytes) -> None:
    made = kept(tmp_path)
    first = ended(made, 0, 1, 101.0)
    ended(made, 2, -signal.SIGKILL, 101.3)
    wrote(made, first, err=b"Traceback (most recent call last):\n  x = y\n" + mistake + b"\n")
    assert guilty(made, first)[0] == "node-a"


def test_a_killed_keeper_ends_its_rank_and_is_before_those_who_lost_it(tmp_path: Path) -> None:
    made = kept(tmp_path)
    ended(made, 0, 1, 101.0)
    orphan = made.members[2]
    orphan.keeper_gone = True
    assert first_failed_process(made.members) is orphan
    assert guilty(made, orphan)[1].cause == "terminated-from-outside"


def test_of_two_that_crashed_the_earlier_is_the_first(tmp_path: Path) -> None:
    made = kept(tmp_path)
    ended(made, 0, -signal.SIGABRT, 101.5)
    first = ended(made, 3, -signal.SIGSEGV, 101.0)
    made.members[2].keeper_gone = True
    assert first_failed_process(made.members) is first


def test_who_ended_well_before_the_others_lost_it_is_named(tmp_path: Path) -> None:
    """A shorter data set on one rank: gloo tells the others only that a peer closed its connection, and its interpreter
    ends after that."""
    left = ("mismatched-collectives", "node-b")
    for late, (cause, node) in ((-2.0, left), (2.0, left), (20.0, ("program-error", "node-a"))):
        folder = tmp_path / str(late)
        folder.mkdir()
        made = kept(folder)
        ended(made, 3, 0, 101.0 + late)
        first = ended(made, 0, 1, 101.0)
        wrote(made, first, err=LOST_A_PEER[0] + b"\n")
        found = guilty(made, first)
        assert (found[0], found[1].cause) == (node, cause)
        assert ("rank 3 on node-b ended with code 0" in found[1].says) is (node == "node-b")


def test_an_exception_that_a_rank_caught_before_it_left_hides_nothing(tmp_path: Path) -> None:
    made = kept(tmp_path)
    left = ended(made, 3, 0, 100.9)
    wrote(made, left, err=b'Traceback (most recent call last):\n  File "/srv/a.py", line 3, in f\nKeyError: 1\n')
    left.ended = time.time() + 60.0
    first = ended(made, 0, 1, left.ended + 0.5)
    wrote(made, first, err=b"Traceback (most recent call last):\n" + LOST_A_PEER[0] + b"\n")
    found = guilty(made, first)
    assert (found[0], found[1].cause) == ("node-b", "mismatched-collectives")


RAISED = b"""[rank2]: Traceback (most recent call last):
[rank2]:   File "/srv/train.py", line 12, in <module>
[rank2]:     main()
[rank2]: ValueError: label 11 is out of range
"""


def test_an_exception_whose_exit_code_a_pipe_hides_is_told_where_it_was_raised(tmp_path: Path) -> None:
    made = kept(tmp_path)
    hidden = ended(made, 2, 0, 101.0)
    first = ended(made, 0, 1, 101.5)
    wrote(made, first, err=LOST_A_PEER[0])
    wrote(made, hidden, out=b"step 9\n" + RAISED)
    node, finding = guilty(made, first)
    assert (node, finding.cause) == ("node-b", "program-error")
    assert "rank 2 on node-b ended with code 0, and the last that it wrote is an exception: ValueError" in finding.says


def test_an_exception_of_long_before_is_not_the_last_word_of_a_rank_because_its_log_comes_now(tmp_path: Path) -> None:
    """Who attaches to a job that has ended gets all logs at once."""
    made = kept(tmp_path)
    hidden = ended(made, 2, 0, 90_101.0)
    first = ended(made, 0, 1, 90_101.5)
    wrote(made, first, err=b"RuntimeError: out of data\n", at=90_101.0)
    wrote(made, hidden, err=RAISED, at=3_000.0)
    assert guilty(made, first)[0] == "node-a"
    assert hidden_exception_texts(made, "node-b") == []
    made.written[f"{hidden.place.name}.err"] = 90_100.5
    assert guilty(made, first)[0] == "node-b"
    assert len(hidden_exception_texts(made, "node-b")) == 1


@pytest.mark.parametrize(
    "text",
    [
        b"",
        RAISED + b"caught, and on we go\n" * 6,
        b"Exception in thread Thread-1 (run):\n" + RAISED,
        b"Exception ignored in: <function f>\n" + RAISED,
        b"Traceback (most recent call last):\n  File",
    ],
)
def test_what_a_program_prints_of_exceptions_that_did_not_end_it_is_nothing_odd(tmp_path: Path, text: bytes) -> None:
    made = kept(tmp_path)
    for rank, said in ((2, text), (3, RAISED)):
        wrote(made, ended(made, rank, 0, 101.0), err=said)
    (told,) = hidden_exception_texts(made, "node-b")
    assert told.startswith("rank 3 on node-b ended with code 0")
    assert hidden_exception_texts(made, "node-a") == []
    for member in made.on("node-b"):
        member.ended = time.time() + 60.0  # it went on for a minute, and wrote nothing
    assert hidden_exception_texts(made, "node-b") == []


@pytest.mark.parametrize(
    ("last", "cause"),
    [
        (b"ConnectionResetError: [Errno 104] Connection reset by peer", "tcp-connection-lost-midrun"),
        (b"[rank0]: ConnectionResetError: [Errno 104] Connection reset by peer", "tcp-connection-lost-midrun"),
        (
            b"requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))",
            "tcp-connection-lost-midrun",
        ),
        (b"ConnectionError: Couldn't reach 'data' on the Hub", "program-error"),
        (b"ValueError: Connection reset by peer", "program-error"),
    ],
)
def test_a_connection_of_the_programs_own_that_was_reset_may_be_gone(tmp_path: Path, last: bytes, cause: str) -> None:
    made = kept(tmp_path)
    first = ended(made, 0, 1, 101.0)
    trace = b'Traceback (most recent call last):\n  File "/srv/train.py", line 3, in <module>\n    fetch()\n'
    wrote(made, first, err=trace + last + b"\n")
    assert guilty(made, first)[1].cause == cause
    assert decide_retry([cause], 1).again is (cause != "program-error")


def test_who_crashes_because_ranks_differ_need_not_be_the_odd_one(tmp_path: Path) -> None:
    """The smaller buffer is too small, whichever of the two ranks has the wrong size."""
    made = kept(tmp_path)
    first = ended(made, 0, -signal.SIGABRT, 101.0)
    said = b"terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 1092 vs 4\n"
    wrote(made, first, err=said)
    outcomes = judge_attempt(made, WatchEnd("failed", first), {})
    failed = {one.node: one.findings[0].cause for one in outcomes if one.verdict is Verdict.FAIL}
    assert failed == {"node-a": "mismatched-collectives", "node-b": "mismatched-collectives"}
    assert "rank 0 on node-a crashed" in outcomes[0].findings[0].says
    made.unlike = {
        "node-b": finding_for("program-differs", "model.py is another file on node-b", ("seen",), path="model.py")
    }
    outcomes = judge_attempt(made, WatchEnd("failed", first), {})
    ((node, finding),) = [(one.node, one.findings[0]) for one in outcomes if one.verdict is Verdict.FAIL]
    assert (node, finding.cause) == ("node-b", "program-differs")
    assert "model.py is another file on node-b, and ranks give different sizes" in finding.says
    assert "sha256sum model.py" in finding.remedy


def test_a_program_that_goes_into_the_background_is_told_as_that(tmp_path: Path) -> None:
    made = kept(tmp_path)
    background = ended(made, 3, 0, 70.0)
    made.learn(background, {**background.journal, "swept": 1})
    first = ended(made, 0, 1, 101.0)
    wrote(made, first, err=LOST_A_PEER[0] + b"\n")
    node, finding = guilty(made, first)
    assert (node, finding.cause) == ("node-b", "program-error")
    assert "left processes running (1)" in finding.says


def test_who_goes_on_when_most_have_ended_well_makes_more_calls_than_they(tmp_path: Path) -> None:
    made = kept(tmp_path)
    for rank in (0, 1, 2):
        ended(made, rank, 0, 100.5)
    first = ended(made, 3, 1, 101.0)
    wrote(made, first, err=LOST_A_PEER[0] + b"\n")
    found = guilty(made, first)
    assert (found[0], found[1].cause) == ("node-b", "mismatched-collectives")


@pytest.mark.parametrize(("at", "why"), [(101.0, None), (400.0, "rank 1 on node-a failed")])
def test_who_ended_minutes_before_or_was_ended_left_nobody(tmp_path: Path, at: float, why: str | None) -> None:
    made = kept(tmp_path)
    ended(made, 3, 0, at, why=why)
    first = ended(made, 0, 1, 401.0)
    wrote(made, first, err=LOST_A_PEER[0] + b"\n")
    found = guilty(made, first)
    assert (found[0], found[1].cause) == ("node-a", "program-error")


def test_an_error_of_ones_own_beside_one_that_ended_well_is_ones_own(tmp_path: Path) -> None:
    made = kept(tmp_path)
    ended(made, 3, 0, 99.0)
    first = ended(made, 0, 1, 101.0)
    wrote(made, first, err=b"Traceback (most recent call last):\n  x = y\nKeyError: 'lr'\n")
    assert guilty(made, first)[0] == "node-a"


SLEEPS = (
    "Current thread 0x1 (most recent call first):\n"
    '  File "/srv/data.py", line 12 in load\n    time.sleep(300)\n  File "/srv/train.py", line 90 in <module>\n'
)
REDUCES = (
    "Current thread 0x1 (most recent call first):\n"
    '  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2806 in all_reduce\n'
    '  File "/srv/train.py", line 90 in <module>\n'
)


def lived(rank: int, stack: str, *, connections: int | None = 2) -> dict[str, Any]:
    """What was seen of a rank after the first failure."""
    process = {"pid": 100 + rank, "state": "S", "comm": "python", "wchan": "", "rank": rank, "cpu": 0.0}
    process |= {"waited": 0.0, "copied": 0, "stays": True, "ending": False}
    own = {str(100 + rank): stack} if stack else {}
    seen = {"processes": [process], "own_stacks": own, "stack": None, "throttled": None, "moved": 0}
    return {"ranks": {str(rank): {**seen, "connections": connections}}, "gpu_use": None, "seconds": 0.3, "busy": []}


TIMED_OUT = b"RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 10000ms for recv operation to complete\n"
BARRIER = b"RuntimeError: Rank 3 failed to pass monitoredBarrier in 4000 ms\n"


@pytest.mark.parametrize(
    ("said", "frozen", "raised", "cause", "nodes"),
    [
        (TIMED_OUT, {"node-b": lived(3, SLEEPS)}, b"", "rank-behind", {"node-b"}),
        (TIMED_OUT, {"node-b": lived(3, REDUCES)}, b"", "rank-behind", {"node-a", "node-b"}),
        (TIMED_OUT, {"node-b": lived(3, SLEEPS)}, LOST_A_PEER[0], "rank-behind", {"node-a", "node-b"}),
        (TIMED_OUT, {}, b"", "rank-behind", {"node-a", "node-b"}),
        (BARRIER, {}, b"", "rank-behind", {"node-b"}),
    ],
)
def test_who_gave_up_waiting_is_not_the_one_that_was_late(
    tmp_path: Path, said: bytes, frozen: dict[str, Any], raised: bytes, cause: str, nodes: set[str]
) -> None:
    """Who stood elsewhere then is named, or who the log names; an exception on its way up is no such place."""
    made = kept(tmp_path)
    first = ended(made, 0, 1, 111.0)
    wrote(made, first, err=b"Traceback (most recent call last):\n  x()\n" + said)
    if raised:
        wrote(made, made.members[3], err=b"Traceback (most recent call last):\n  y()\n" + raised)
    outcomes = judge_attempt(made, WatchEnd("failed", first), frozen)
    found = {one.node: one.findings[0] for one in outcomes if one.verdict is Verdict.FAIL}
    assert set(found) == nodes
    assert {finding.cause for finding in found.values()} == {cause}
    if frozen and nodes == {"node-b"}:
        says = found["node-b"].says
        assert (
            "rank 3 on node-b stood in load (/srv/data.py:12), where it sleeps, when rank 0 on node-a gave up" in says
        )


@pytest.mark.parametrize(
    ("connections", "stack", "node"),
    [(0, "", "node-b"), (0, SLEEPS, "node-b"), (0, REDUCES, "node-a"), (3, SLEEPS, "node-a"), (None, "", "node-a")],
)
def test_who_closed_its_connections_and_lives_on_left_the_others(
    tmp_path: Path, connections: int | None, stack: str, node: str
) -> None:
    """It became another program, or works on by itself after the end of its process group."""
    made = kept(tmp_path)
    first = ended(made, 0, 1, 101.0)
    wrote(made, first, err=LOST_A_PEER[0] + b"\n")
    outcomes = judge_attempt(made, WatchEnd("failed", first), {"node-b": lived(3, stack, connections=connections)})
    (outcome,) = [one for one in outcomes if one.verdict is Verdict.FAIL]
    assert outcome.node == node
    assert (outcome.findings[0].cause == "mismatched-collectives") is (node == "node-b")


@pytest.mark.parametrize(("rank", "world"), [(1, 1), (4, 4)])
def test_a_rank_that_its_world_has_no_place_for_was_given_a_smaller_world(
    tmp_path: Path, rank: int, world: int
) -> None:
    """Where its number is another than it was given, no world is too small."""
    made = kept(tmp_path)
    first = ended(made, 1, 1, 101.0)
    wrote(
        made,
        first,
        err=b"RuntimeError: [enforce fail at ../gloo/context.cc:23] rank < size. %d vs %d\n" % (rank, world),
    )
    outcomes = judge_attempt(made, WatchEnd("failed", first), {})
    smaller = {one.node for one in outcomes if one.findings[0].cause == "world-size-mismatch"}
    assert smaller == ({"node-a", "node-b"} if world == 1 else set())
    assert ("a world of 1, and the job has 4 ranks" in outcomes[0].findings[0].says) == (world == 1)


def test_the_code_of_a_time_limit_says_what_ended_it(tmp_path: Path) -> None:
    made = kept(tmp_path)
    first = ended(made, 2, 124, 101.0)
    node, finding = guilty(made, first)
    assert (node, finding.cause) == ("node-b", "program-error")
    assert "124 is what `timeout` exits with" in finding.says
    assert "more time" in str(finding.remedy)


@pytest.mark.parametrize("error", [b"", b'Traceback (most recent call last):\n  File "/srv/tr'])
def test_a_rank_whose_error_finds_no_room_was_ended_by_the_full_disk(tmp_path: Path, error: bytes) -> None:
    """What Python wanted to print of it is lost; the keeper, which writes beside it, saw why."""
    made = kept(tmp_path)
    first = ended(made, 2, 1, 101.0, no_room="No space left on device")
    wrote(made, first, err=error)
    wrote(made, ended(made, 0, 1, 101.5), err=b"RuntimeError: Connection closed by peer [10.0.0.2]:4711\n")
    node, finding = guilty(made, first)
    assert (node, finding.cause) == ("node-b", "disk-full")
    assert "its output cannot be written on node-b: No space left on device" in finding.says
    wrote(made, first, err=b'Traceback (most recent call last):\n  File "/srv/train.py", line 3\nValueError: no\n')
    assert guilty(made, first)[1].cause == "program-error", "it had room for that"


def test_what_logs_show_without_a_remedy_has_that_of_its_page(tmp_path: Path) -> None:
    made = kept(tmp_path)
    first = ended(made, 2, 1, 101.0)
    wrote(made, first, err=b"OSError: [Errno 28] No space left on device\n")
    _, finding = guilty(made, first)
    assert finding.cause == "disk-full"
    assert "runbook explain" not in str(finding.remedy)


def test_a_job_that_somebody_stopped_meanwhile_accuses_no_node(tmp_path: Path) -> None:
    """`runbook stop` in another window, while this run holds the job: not a stranger's signal."""
    made = kept(tmp_path)
    first = ended(made, 1, -signal.SIGTERM, 101.0, why=STOPPED_BY_USER)
    ended(made, 2, -signal.SIGTERM, 101.1, why="rank 1 failed")
    outcomes = judge_attempt(made, WatchEnd("failed", first), {})
    assert {(one.node, one.verdict) for one in outcomes} == {(name, Verdict.UNKNOWN) for name in made.nodes}
    assert {one.findings[0].says for one in outcomes} == {"the job was stopped by the user"}
    assert _is_stopped_on_request(made, ending=False), "so a follower makes no other attempt"
    ended(made, 3, 1, 100.9)
    assert not _is_stopped_on_request(made, ending=False), "it had failed before"
