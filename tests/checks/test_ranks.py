"""What ranks leave behind, and what it means: calls that differ, slow links, rules that came, stragglers, endings."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runbook.checks.allreduce import straggler_outcomes
from runbook.checks.network.live_traffic import Between
from runbook.checks.ranks.collective_calls import ranks_with_altered_calls
from runbook.checks.ranks.evidence import gather_evidence
from runbook.checks.ranks.halts import outcomes_of_halt
from runbook.checks.ranks.own_failure import (
    SCRIPT_STOP_CAUSES,
    innermost_frame_text,
    own_failure_finding,
    shadowed_module_remedy,
)
from runbook.checks.ranks.pool import Halt, RankMember, RankPool
from runbook.launch.preconditions import STOP_EXIT_CODES
from runbook.model.verdict import Finding, Outcome, Verdict
from runbook.transport.remote_program import Remote

from .made_up_cluster import FakeRemote, Nobody, cluster, node, pool_of, verdicts

FAIL, UNKNOWN = Verdict.FAIL, Verdict.UNKNOWN
BYSTANDER = (UNKNOWN, ("peer-died",))
STALLED, DIED, FAILED = Halt("stalled", 4.0), Halt("died", 1.0), Halt("failed", 1.0)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Between]:
    """What a look between the nodes gives: nothing, unless a test says otherwise."""
    answers = {"now": Between()}
    monkeypatch.setattr("runbook.checks.ranks.evidence.STACK_DUMP_WAIT_S", 0.0)
    monkeypatch.setattr("runbook.checks.ranks.halts.examine_live_traffic", lambda _: answers["now"])
    return answers


@pytest.fixture
def pool(seen: dict[str, Between], tmp_path: Path) -> RankPool:
    pool = pool_of(cluster(node("node-a"), node("node-b"), node("node-c")))
    pool.run.run_dir = tmp_path
    return pool


def nobody(pool: RankPool, name: str) -> Nobody:
    return cast(Nobody, pool.run.site.sessions[name])


def leaves_record(
    pool: RankPool, number: int, made: int, *, name: str = "all_reduce", size: int = 256, **told: Any
) -> None:
    """A rank's flight record after so many calls, the last of which is not over."""
    entries = [
        {
            "collective_seq_id": at,
            "profiling_name": f"gloo:{name if at == made else 'all_reduce'}",
            "input_sizes": [[size if at == made else 256]],
            "input_dtypes": ["Float"],
            "process_group": ["0", "default_pg"],
            "pg_id": 0,
            "retired": at < made,
        }
        for at in range(1, made + 1)
    ]
    status = {"0": {"last_enqueued_collective": str(made), "last_completed_collective": str(made - 1)}}
    calling = {"operation": "all_reduce", "count": 256, "dtype": "float32"}
    record = {"rank": number, "calls": made, "recorded": 0, "calling": calling} | told
    member = pool.members[number]
    text = json.dumps({**record, "flight": {"pg_status": status, "entries": entries}})
    nobody(pool, member.rank.node).files[f"flight-{number}.json"] = text


def judged(pool: RankPool, halt: Halt = STALLED) -> dict[str, tuple[Verdict, tuple[str, ...]]]:
    return verdicts(outcomes_of_halt(pool, halt, "during full"))


def finding(pool: RankPool, name: str, halt: Halt = STALLED) -> Finding:
    return next(o for o in outcomes_of_halt(pool, halt, "during full") if o.node == name).findings[0]


# Calls.


def test_the_rank_that_called_another_operation(pool: RankPool) -> None:
    for number, name in enumerate(("all_reduce", "broadcast", "all_reduce")):
        leaves_record(pool, number, 7, name=name)
    assert judged(pool) == {"node-a": BYSTANDER, "node-b": (FAIL, ("mismatched-collectives",)), "node-c": BYSTANDER}
    told = finding(pool, "node-b")
    assert "broadcast of 256 Float, where runbook asked for all_reduce of 256 float32" in told.says
    assert "rank 0 on node-a called all_reduce of 256 Float" in told.evidence


@pytest.mark.parametrize("odd", [0, 1])
def test_between_two_the_one_that_did_not_do_what_it_was_told(odd: int, seen: object, tmp_path: Path) -> None:
    pool = pool_of(cluster())
    pool.run.run_dir = tmp_path
    for number in (0, 1):
        leaves_record(pool, number, 3, size=512 if number == odd else 256)
    guilty = ("node-a", "node-b")[odd]
    assert judged(pool)[guilty] == (FAIL, ("mismatched-collectives",))
    assert list(judged(pool).values()).count(BYSTANDER) == 1


def test_a_rank_that_left_a_call_out_has_made_fewer_than_it_was_told(seen: object, tmp_path: Path) -> None:
    pool = pool_of(cluster())
    pool.run.run_dir = tmp_path
    leaves_record(pool, 0, 5)
    leaves_record(pool, 1, 5, name="barrier", calls=6)
    gather_evidence(pool)
    assert ranks_with_altered_calls(pool) == (1,)
    assert judged(pool)["node-b"] == (FAIL, ("mismatched-collectives",))


def test_the_rank_that_never_came_to_the_call(pool: RankPool) -> None:
    for number, calls in enumerate((9, 9, 8)):
        leaves_record(pool, number, calls)
    nobody(pool, "node-c").files["flight-2.json"] = (
        nobody(pool, "node-c")
        .files["flight-2.json"]
        .replace('"last_completed_collective": "7"', '"last_completed_collective": "8"')
    )
    assert judged(pool) == {"node-a": BYSTANDER, "node-b": BYSTANDER, "node-c": (FAIL, ("rank-behind",))}
    assert "rank 2 on node-c never called all_reduce of 256 Float" in finding(pool, "node-c").says


def test_a_rank_whose_connection_broke_in_the_call_before_is_not_behind(seen: object, tmp_path: Path) -> None:
    """Its peer had all data of that call, and waits in the next one."""
    pool = pool_of(cluster())
    pool.run.run_dir = tmp_path
    for number, (calls, said) in enumerate([(9, "reset by peer"), (8, "closed by peer [10.0.0.1]:41234")]):
        leaves_record(pool, number, calls)
        pool.members[number].failure = {"event": "failed", "cause": None, "text": f"RuntimeError: Connection {said}"}
    nobody(pool, "node-b").files["flight-1.json"] = (
        nobody(pool, "node-b")
        .files["flight-1.json"]
        .replace('"last_completed_collective": "7"', '"last_completed_collective": "8"')
    )
    assert judged(pool, FAILED) == dict.fromkeys(("node-a", "node-b"), (FAIL, ("tcp-connection-lost-midrun",)))


def test_without_any_record_the_stack_tells_who_is_not_in_a_collective(pool: RankPool) -> None:
    nobody(pool, "node-b").files["stack-1.txt"] = (
        'Current thread 0x1 (most recent call first):\n  File "data.py", line 9 in load\n  File "./rank.py", line 449 in main\n'
    )
    assert judged(pool) == {"node-a": BYSTANDER, "node-b": (FAIL, ("rank-behind",)), "node-c": BYSTANDER}


def test_everybody_in_the_same_call_says_what_was_ruled_out_and_what_is_next(pool: RankPool) -> None:
    for number in range(3):
        leaves_record(pool, number, 4)
    assert set(judged(pool).values()) == {(FAIL, ("collective-stall-uniform",))}
    evidence = finding(pool, "node-a").evidence
    assert any(line.startswith("ruled out: different calls; collective number 4") for line in evidence)
    assert any(line.startswith("next: ") for line in evidence)


def test_a_rank_that_waits_in_an_earlier_call_than_others_is_not_behind_if_it_called_it(pool: RankPool) -> None:
    """Its peers got their data and went on; what it waits for was lost."""
    for number, calls in enumerate((9, 9, 8)):
        leaves_record(pool, number, calls)
    assert set(judged(pool).values()) == {(FAIL, ("collective-stall-uniform",))}


def aborts(member: RankMember) -> None:
    member.over, member.code = True, -6
    member.log = ["terminate called\n", "what(): Received data size doesn't match expected size. Is there a mismatch\n"]


def test_a_size_that_does_not_fit_ends_one_rank_and_another_is_to_blame(pool: RankPool) -> None:
    aborts(pool.members[0])
    for number in (1, 2):
        leaves_record(pool, number, 4, size=512 if number == 1 else 256)
    assert judged(pool, DIED)["node-b"] == (FAIL, ("mismatched-collectives",))


def test_if_all_others_did_as_they_were_told_the_one_that_was_ended_did_not(pool: RankPool) -> None:
    aborts(pool.members[0])
    for number in (1, 2):
        leaves_record(pool, number, 4)
    assert judged(pool, DIED) == {
        "node-a": (FAIL, ("mismatched-collectives",)),
        "node-b": BYSTANDER,
        "node-c": BYSTANDER,
    }


def test_what_was_seen_is_kept_beside_the_run(pool: RankPool, tmp_path: Path) -> None:
    leaves_record(pool, 1, 4)
    gather_evidence(pool)
    kept = {path.name for path in (tmp_path / "hang").iterdir()}
    assert {"rank-00001.node-b.stack", "rank-00001.node-b.flight.json", "node-b.json"} <= kept
    assert cast(FakeRemote, pool.members[0].remote).told == [{"do": "flight"}]


def test_a_record_of_a_rank_that_is_stopped_now_is_not_believed(pool: RankPool) -> None:
    leaves_record(pool, 1, 4, name="broadcast")
    pool.members[1].remote = cast(Remote, FakeRemote("T"))
    gather_evidence(pool)
    assert pool.members[1].record == {}


def test_a_session_that_cannot_answer_does_not_stop_the_looking(pool: RankPool) -> None:
    nobody(pool, "node-b").pool = None
    gather_evidence(pool)
    assert set(pool.seen) == {"node-a", "node-c"}


# The network.

RULE = Finding("firewall-drop", "node-b drops TCP: rule 7", "sudo nft delete rule …", ("seen",), ("node-a",))


def test_a_rule_that_came_meanwhile_is_the_cause(pool: RankPool, seen: dict[str, Between]) -> None:
    seen["now"] = Between({"node-b": (RULE,)}, ("node-a → node-b: 128 KiB not acknowledged",))
    assert judged(pool) == {"node-a": BYSTANDER, "node-b": (FAIL, ("firewall-drop",)), "node-c": BYSTANDER}
    assert "the ranks stand still during full, at 1 MiB, iteration 3 of 20" in finding(pool, "node-b").evidence


def test_a_rule_explains_connections_that_were_reset(pool: RankPool, seen: dict[str, Between]) -> None:
    seen["now"] = Between({"node-b": (RULE,)})
    pool.members[0].failure = {"event": "failed", "cause": None, "text": "Connection reset by peer"}
    assert judged(pool, FAILED)["node-b"] == (FAIL, ("firewall-drop",))


def test_connections_that_stand_still_and_no_rule(pool: RankPool, seen: dict[str, Between]) -> None:
    seen["now"] = Between({}, ("node-a → node-b: 128 KiB not acknowledged, sent again 4 times",))
    assert set(judged(pool).values()) == {(FAIL, ("tcp-connection-lost-midrun",))}


def test_a_lost_connection_lies_between_the_two_that_it_joined(pool: RankPool) -> None:
    text = "gloo/transport/tcp/pair.cc:537] Read error [10.0.0.3]:41234: Software caused connection abort"
    pool.members[0].failure = {"event": "failed", "cause": None, "text": text}
    lost = (FAIL, ("tcp-connection-lost-midrun",))
    assert judged(pool, FAILED) == {"node-a": lost, "node-b": BYSTANDER, "node-c": lost}


def flows(pool: RankPool, **queued: int) -> None:
    for member in pool.members:
        waiting = queued.get(member.rank.node.replace("-", "_"), 0)
        member.remote = cast(Remote, FakeRemote(moved=4 << 20, queued=waiting))


FAR_LESS = Halt("stalled", 4.0, promised=1e9)


def test_data_that_flows_far_below_what_was_promised_is_slow(pool: RankPool) -> None:
    flows(pool)
    assert set(judged(pool, FAR_LESS).values()) == {(FAIL, ("allreduce-slow",))}
    assert "12 MiB/s, far below the 954 MiB/s" in finding(pool, "node-a", FAR_LESS).says


@pytest.mark.parametrize("promised", [None, 13e6, 60e6])
def test_data_that_flows_as_promised_is_no_stall(pool: RankPool, promised: float | None) -> None:
    flows(pool)
    assert outcomes_of_halt(pool, Halt("stalled", 4.0, promised=promised), "during full") == []
    late = judged(pool, Halt("late", 300.0, promised=promised))
    assert set(late.values()) == {(FAIL, ("allreduce-slow",))}, "and yet there is an end to every stage"


def test_the_node_whose_packets_queue_up_has_the_slow_link(pool: RankPool) -> None:
    flows(pool, node_b=2 << 20)
    assert judged(pool, FAR_LESS) == {"node-a": BYSTANDER, "node-b": (FAIL, ("allreduce-slow",)), "node-c": BYSTANDER}


def test_beats_of_the_store_are_no_data(pool: RankPool) -> None:
    for member in pool.members:
        member.remote = cast(Remote, FakeRemote(moved=2000))
    assert set(judged(pool).values()) == {(FAIL, ("collective-stall-uniform",))}


# Stragglers.


def lags(pool: RankPool, *each: dict[str, float]) -> list[Outcome] | None:
    for member, lag in zip(pool.members, each, strict=True):
        member.steps["done"] = {"event": "step", "lag": {"timed": 4.0, "own": 0.0, "paused": 0.0, "queued": 0.0} | lag}
    return straggler_outcomes(pool, "during full")


@pytest.mark.parametrize(("kind", "says"), [("own", "its own code"), ("paused", "SIGSTOP"), ("queued", "got no CPU")])
def test_the_rank_for_which_all_wait(pool: RankPool, kind: str, says: str) -> None:
    busy = {"pid": 7, "user": "bob", "command": "burn", "cpu": 0.99}
    nobody(pool, "node-b").kernel = {"busy": [busy]}
    outcomes = lags(pool, {"own": 0.1}, {kind: 3.4}, {"own": 0.2})
    assert outcomes
    assert verdicts(outcomes) == {"node-a": BYSTANDER, "node-b": (FAIL, ("rank-behind",)), "node-c": BYSTANDER}
    assert says in outcomes[1].findings[0].says
    assert "pid 7 of bob uses 99% of a CPU: burn" in outcomes[1].findings[0].evidence


def test_a_rank_in_its_own_code_is_named_though_others_are_short_of_a_cpu(pool: RankPool) -> None:
    outcomes = lags(pool, {"queued": 1.0}, {"own": 3.0, "queued": 0.4}, {"queued": 2.0})
    assert outcomes
    assert verdicts(outcomes) == {"node-a": BYSTANDER, "node-b": (FAIL, ("rank-behind",)), "node-c": BYSTANDER}
    assert "its own code, for 2.6 of 4.0 s" in outcomes[1].findings[0].says


@pytest.mark.parametrize(
    "each",
    [
        ({}, {}, {}),
        ({"queued": 1.0}, {"own": 3.0, "queued": 1.5}, {"queued": 1.0}),  # it had no CPU in its own code
        ({"own": 0.9}, {"own": 0.9}, {"own": 0.9}),  # all slow alike
        ({"own": 0.1}, {"own": 0.8}, {"own": 0.1}),  # less than half of the time
        ({"queued": 1.0}, {"queued": 3.8}, {"queued": 0.1}),  # a loaded machine
        ({"timed": 1.8, "queued": 0.3}, {"timed": 1.8, "queued": 1.4}, {"timed": 1.8}),  # and for a moment only
        ({"timed": 0.1}, {"timed": 0.1, "own": 0.09}, {"timed": 0.1}),  # too short to tell
    ],
)
def test_what_may_be_noise_blames_nobody(pool: RankPool, each: tuple[dict[str, float], ...]) -> None:
    assert lags(pool, *each) is None


def test_ranks_of_an_older_stage_or_only_one_rank() -> None:
    one = pool_of(cluster(node("node-a")))
    assert lags(one, {"own": 1.9}) is None


# Endings.


def test_every_stop_of_a_launch_script_has_a_cause(pool: RankPool) -> None:
    assert {"activation-failed", "program-missing", *SCRIPT_STOP_CAUSES} == set(STOP_EXIT_CODES)
    member = pool.members[1]
    for event in STOP_EXIT_CODES:
        member.failure = {"event": event, "code": 1}
        assert own_failure_finding(pool, member, "while joining")


def test_a_killed_rank_where_the_kernel_has_killed_for_memory(pool: RankPool) -> None:
    member = pool.members[1]
    member.over, member.code = True, -9
    member.steps["started"]["kernel_kills"] = 3
    nobody(pool, "node-b").kernel = {
        "kernel_kills": 4,
        "kernel_says": ["[1.0] Out of memory: Killed process 77 (python)"],
    }
    assert "killed by the kernel for lack of memory" in finding(pool, "node-b", DIED).says
    nobody(pool, "node-b").kernel = {"kernel_kills": 3}
    assert "killed (signal 9, SIGKILL)" in finding(pool, "node-b", DIED).says
    nobody(pool, "node-b").kernel = {"kernel_kills": None}
    assert "killed (signal 9, SIGKILL)" in finding(pool, "node-b", DIED).says


QUEUE = ("    import queue", '  File "/opt/site/queue.py", line 1, in <module>', "    import gone")


@pytest.mark.parametrize(
    ("lines", "file"),
    [
        (QUEUE, "/opt/site/queue.py"),
        (
            ("    from random import Random", '  File "/home/me/work/random.py", line 1, in <module>'),
            "/home/me/work/random.py",
        ),
        (("cannot import name 'Random' from 'random' (/opt/site/random.py)",), "/opt/site/random.py"),
        (("No module named 'torch.distributed' from 'torch' (/x/torch/__init__.py)",), "/x/torch/__init__.py"),
        (("    from .queue import Q", '  File "/me/models/queue.py", line 1, in <module>'), ""),
        (("cannot import name 'Q' from 'models.queue' (/me/models/queue.py)",), ""),
        (("    import helper", '  File "/me/helper.py", line 1, in <module>'), ""),
        (("    import queue", '  File "/usr/lib/python3.11/queue.py", line 1, in <module>'), ""),
        (("    import torch", '  File "/v/lib/python3.11/site-packages/torch/__init__.py", line 9, in <module>'), ""),
    ],
)
def test_a_file_that_is_taken_for_a_module_of_python(lines: tuple[str, ...], file: str) -> None:
    remedy = shadowed_module_remedy(lines, "node-b")
    assert (file in remedy and "PYTHONPATH" in remedy) if file else not remedy


def test_the_last_place_of_a_traceback() -> None:
    lines = ('  File "/a/run.py", line 3, in main', '  File "/a/data.py", line 17, in load', "KeyError: 'lr'")
    assert innermost_frame_text(lines) == " at /a/data.py:17 in load"
    assert innermost_frame_text(("KeyError: 'lr'",)) == ""


def test_ranks_that_do_not_end_are_stopped_together() -> None:
    """One after the other, a job of thousands that hangs would take an hour to end."""
    pool = pool_of(cluster(node("node-a", processes=3), node("node-b", processes=3)))
    did: list[str] = []

    class Hanging:
        over = SimpleNamespace(wait=lambda seconds: did.append("wait"))

        def feed(self, *_: object, **__: object) -> None:
            did.append("feed")

        def stop(self, *_: object) -> None:
            did.append("stop")

    for member in pool.members:
        member.remote = cast(Remote, Hanging())
    pool.dismiss()
    assert [(what, len(list(those))) for what, those in itertools.groupby(did)] == [
        ("feed", 6),
        ("wait", 6),
        ("stop", 6),
        ("wait", 6),
    ]
