"""When the ranks did not get there: who is guilty, who only suffered. The members are made by hand."""

from __future__ import annotations

from typing import Any, cast

import pytest

from runbook.checks.network.live_traffic import Between
from runbook.checks.ranks.evidence import gather_evidence, last_dumped_stack, rank_progress_text
from runbook.checks.ranks.halts import outcomes_of_halt
from runbook.checks.ranks.pool import Halt, RankMember, RankPool
from runbook.model.errors import Unreachable
from runbook.model.verdict import Outcome, Verdict
from runbook.transport.remote_program import ProgramNotStarted, Remote

from .made_up_cluster import FakeRemote, Nobody, at, cluster, node, pool_of, verdicts

DIED, FAILED, STALLED = Halt("died", 1.0), Halt("failed", 1.0), Halt("stalled", 4.0)
PASS, FAIL, UNKNOWN = Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN
BYSTANDER = (UNKNOWN, ("peer-died",))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at a rank waits for its stack to be written; ours lies there already. Nothing lies between these nodes."""
    monkeypatch.setattr("runbook.checks.ranks.evidence.STACK_DUMP_WAIT_S", 0.0)
    monkeypatch.setattr("runbook.checks.ranks.halts.examine_live_traffic", lambda _: Between())


@pytest.fixture
def pool() -> RankPool:
    return pool_of(cluster(node("node-a"), node("node-b"), node("node-c")))


def ended(member: RankMember, code: int | None) -> None:
    member.over, member.code = True, code


def survivor(member: RankMember, text: str = "Connection closed by peer [10.0.0.2]:41234") -> None:
    member.failure = {"event": "failed", "cause": None, "text": f"RuntimeError: {text}"}
    ended(member, 1)


def judged(pool: RankPool, halt: Halt) -> dict[str, tuple[Verdict, tuple[str, ...]]]:
    outcomes = outcomes_of_halt(pool, halt, "during full AllReduce")
    assert [outcome.node for outcome in outcomes] == [one.name for one in pool.inventory.nodes]
    assert not any(outcome.verdict is PASS for outcome in outcomes), "nothing was proven about anybody"
    return verdicts(outcomes)


def finding_of(pool: RankPool, halt: Halt, name: str) -> Outcome:
    return next(o for o in outcomes_of_halt(pool, halt, "during full AllReduce") if o.node == name)


def test_a_killed_rank_is_guilty_and_its_survivors_are_not(pool: RankPool) -> None:
    ended(pool.members[1], -9)
    survivor(pool.members[0])
    survivor(pool.members[2], "Connection reset by peer")
    assert judged(pool, DIED) == {"node-a": BYSTANDER, "node-b": (FAIL, ("rank-killed",)), "node-c": BYSTANDER}
    (finding,) = finding_of(pool, DIED, "node-b").findings
    assert (
        "rank 1 on node-b was killed (signal 9, SIGKILL) during full AllReduce, at 1 MiB, iteration 3 of 20"
        in finding.says
    )
    assert finding_of(pool, DIED, "node-a").findings[0].peers == ("node-b",)


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        *((code, "rank-crashed") for code in (-11, -6, -7)),
        *((code, "rank-killed") for code in (-9, 137, -64, -24)),
        *((code, "terminated-from-outside") for code in (-15, -2, 143)),
        (-1, "terminal-closed"),
        (139, "rank-crashed"),
        *((code, "program-error") for code in (0, 1, 127)),
    ],
)
def test_how_a_rank_ended(pool: RankPool, code: int, cause: str) -> None:
    ended(pool.members[2], code)
    pool.members[2].log = ["Fatal Python error\n", "\n", "last line\n"]
    assert judged(pool, DIED) == {"node-a": BYSTANDER, "node-b": BYSTANDER, "node-c": (FAIL, (cause,))}
    assert "last line" in finding_of(pool, DIED, "node-c").findings[0].evidence


@pytest.mark.parametrize(
    ("what", "causes"),
    [
        ("[/pytorch/gloo/transport/tcp/pair.cc:339] writev [10.0.0.1]:17280: Software caused connection abort", ()),
        ("[/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:17280", ()),
        ("CUDA error: out of memory", ("gpu-out-of-memory",)),
        ("vector::_M_range_check: __n (which is 3) >= this->size() (which is 3)", ("rank-crashed",)),
    ],
)
def test_an_exception_of_cplusplus_that_ends_a_rank_says_why(
    pool: RankPool, what: str, causes: tuple[str, ...]
) -> None:
    pool.members[2].log = ["terminate called after throwing an instance of 'some::Exception'\n", f"  what():  {what}\n"]
    ended(pool.members[2], -6)
    assert pool.members[2].aftermath == (not causes)
    if causes:
        assert judged(pool, DIED) == {"node-a": BYSTANDER, "node-b": BYSTANDER, "node-c": (FAIL, causes)}


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ({"event": "failed", "cause": "torch-missing", "text": "python3 has no torch"}, "torch-missing"),
        ({"event": "failed", "cause": "no-gpu-visible", "text": "torch sees no GPU"}, "no-gpu-visible"),
        ({"event": "failed", "cause": "port-in-use", "text": "taken"}, "port-in-use"),
        ({"event": "failed", "cause": None, "text": "RuntimeError: bind: Address already in use"}, "port-in-use"),
        (
            {"event": "failed", "cause": None, "text": "ValueError: no", "traceback": ["File x", "ValueError"]},
            "program-error",
        ),
        ({"event": "activation-failed", "code": 127}, "activation-failed"),
        ({"event": "program-missing"}, "python-missing"),
    ],
)
def test_what_a_rank_says_of_itself(pool: RankPool, said: dict[str, Any], cause: str) -> None:
    pool.members[0].failure = said
    ended(pool.members[0], 1)
    assert judged(pool, FAILED) == {"node-a": (FAIL, (cause,)), "node-b": BYSTANDER, "node-c": BYSTANDER}


def test_a_failure_that_talks_of_a_peer_and_has_a_cause_is_the_ranks_own(pool: RankPool) -> None:
    """`aftermath` goes by words; a rank that names its own cause is believed."""
    pool.members[0].failure = {"event": "failed", "cause": "torch-missing", "text": "the peer module of torch"}
    assert judged(pool, FAILED)["node-a"] == (FAIL, ("torch-missing",))


@pytest.mark.parametrize(("state", "says"), [("T", "is stopped"), ("t", "is stopped"), ("D", "uninterruptible sleep")])
def test_a_stopped_rank(pool: RankPool, state: str, says: str) -> None:
    pool.members[1].remote = cast(Remote, FakeRemote(state, pid=77))
    at(pool.members[1], 1 << 20, 2)
    assert judged(pool, STALLED) == {"node-a": BYSTANDER, "node-b": (FAIL, ("rank-stopped",)), "node-c": BYSTANDER}
    (finding,) = finding_of(pool, STALLED, "node-b").findings
    assert says in finding.says
    assert "77" in finding.remedy


def test_a_rank_that_was_in_the_kernel_for_an_instant_is_not_accused(pool: RankPool) -> None:
    remote = FakeRemote("D")
    remote.stays = False
    pool.members[1].remote = cast(Remote, remote)
    at(pool.members[1], 1 << 20, 2)
    assert "rank-stopped" not in str(judged(pool, STALLED))


def test_a_stopped_rank_is_not_sent_a_signal_that_it_cannot_handle(pool: RankPool) -> None:
    stopped, running = FakeRemote("T"), FakeRemote("S")
    pool.members[0].remote, pool.members[1].remote = cast(Remote, stopped), cast(Remote, running)
    gather_evidence(pool)
    assert (stopped.signals, running.signals) == ([], ["SIGUSR1"])


def test_the_rank_that_is_behind(pool: RankPool) -> None:
    at(pool.members[2], 1 << 19, 20)
    assert judged(pool, STALLED) == {"node-a": BYSTANDER, "node-b": BYSTANDER, "node-c": (FAIL, ("rank-behind",))}
    (finding,) = finding_of(pool, STALLED, "node-c").findings
    assert "at 512 KiB, iteration 20 of 20, the others at 1 MiB, iteration 3 of 20" in finding.says
    assert "rank 2 on node-c is in:" in finding.evidence
    assert any("all_reduce" in line for line in finding.evidence)


def test_no_rank_is_behind_one_whose_node_was_lost_before_its_ranks_learned_of_it(pool: RankPool) -> None:
    at(pool.members[2], 1 << 20, 1)
    cast(Nobody, pool.run.site.sessions["node-b"]).lost = Unreachable("ssh-unreachable", "nothing has come", "check it")
    assert judged(pool, STALLED) == {
        "node-a": BYSTANDER,
        "node-b": (UNKNOWN, ("ssh-unreachable",)),
        "node-c": BYSTANDER,
    }


def test_a_place_is_one_of_the_order_that_is_under_way(pool: RankPool) -> None:
    """A node may be cut off before its ranks tell of the new order: then they are where they began."""
    pool.order({"do": "allreduce"})
    at(pool.members[0], 2048, 41)
    assert [member.place for member in pool.members] == [(2048, 41), (0, 0), (0, 0)]


def test_several_ranks_behind_on_two_nodes() -> None:
    pool = pool_of(cluster(node("node-a", processes=2), node("node-b", processes=2)))
    for member in pool.members[1:3]:
        at(member, 1 << 20, 1)
    found = judged(pool, STALLED)
    assert found == {"node-a": (FAIL, ("rank-behind",)), "node-b": (FAIL, ("rank-behind",))}


def test_all_in_the_same_call(pool: RankPool) -> None:
    found = judged(pool, STALLED)
    assert set(found.values()) == {(FAIL, ("collective-stall-uniform",))}


@pytest.mark.parametrize("failed", [(0,), (0, 1, 2)])
def test_connections_that_broke_while_every_process_lives(pool: RankPool, failed: tuple[int, ...]) -> None:
    for number in failed:
        pool.members[number].failure = {"event": "failed", "cause": None, "text": "Connection reset by peer"}
    # The connection lies between all of them: whoever spoke first is not to blame for it.
    assert set(judged(pool, FAILED).values()) == {(FAIL, ("tcp-connection-lost-midrun",))}


def test_a_stopped_rank_explains_the_connections_that_broke(pool: RankPool) -> None:
    pool.members[0].failure = {"event": "failed", "cause": None, "text": "Socket closed"}
    pool.members[1].remote = cast(Remote, FakeRemote("T"))
    assert judged(pool, FAILED)["node-b"] == (FAIL, ("rank-stopped",))


def test_a_node_that_was_lost_is_unknown_and_the_others_wait_for_it(pool: RankPool) -> None:
    pool.members[1].lost = Unreachable("ssh-unreachable", "nothing has come for 6 s", "check node-b")
    ended(pool.members[1], None)
    survivor(pool.members[0])
    assert judged(pool, DIED) == {"node-a": BYSTANDER, "node-b": (UNKNOWN, ("ssh-unreachable",)), "node-c": BYSTANDER}
    assert finding_of(pool, DIED, "node-a").findings[0].peers == ("node-b",)


def test_a_node_on_which_nothing_could_be_started(pool: RankPool) -> None:
    pool.members[2].remote = None
    pool.failures["node-c"] = ProgramNotStarted({"errno": "ENOSPC", "text": "No space left on device", "path": "/r"})
    assert judged(pool, DIED)["node-c"] == (FAIL, ("disk-full",))


def test_a_rank_that_was_never_started(pool: RankPool) -> None:
    pool.members[2].remote = None
    assert judged(pool, DIED)["node-c"] == (UNKNOWN, ("tool-output-unknown",))
    pool.run.site.failures["node-c"] = Unreachable("ssh-refused", "no", "start sshd")
    assert judged(pool, DIED)["node-c"] == (UNKNOWN, ("ssh-refused",))


def test_every_fault_is_told_not_just_the_first(pool: RankPool) -> None:
    ended(pool.members[0], -9)
    pool.members[1].failure = {"event": "failed", "cause": "torch-missing", "text": "no torch"}
    assert judged(pool, DIED) == {
        "node-a": (FAIL, ("rank-killed",)),
        "node-b": (FAIL, ("torch-missing",)),
        "node-c": BYSTANDER,
    }


def test_progress_before_and_within_a_sweep(pool: RankPool) -> None:
    member = pool.members[0]
    assert rank_progress_text(member) == "at 1 MiB, iteration 3 of 20"
    member.finished_size = 1 << 19
    assert rank_progress_text(member).endswith("(last finished size 512 KiB)")
    member.beat, member.step = {}, "connected"
    assert rank_progress_text(member) == "last step: connected"


def test_the_main_threads_last_dump_is_the_stack() -> None:
    text = """\
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
Current thread 0x00007f02 (most recent call first):
  File "./rank.py", line 100 in old
  File "./rank.py", line 449 in main
Thread 0x00007f01 (most recent call first):
  File "./rank.py", line 88 in beat
Current thread 0x00007f02 (most recent call first):
  File "/torch/distributed_c10d.py", line 2501 in all_reduce
  File "./rank.py", line 449 in main
"""
    assert last_dumped_stack(text)[0] == 'File "/torch/distributed_c10d.py", line 2501 in all_reduce'
    assert last_dumped_stack("") == ()
    assert last_dumped_stack(text.partition("Current")[0]) == ()
