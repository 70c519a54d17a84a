"""Which rank is accused of a stall, and which is not: from stacks and states as nodes tell them."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runbook.checks.context import Facts
from runbook.checks.network.live_traffic import Between
from runbook.jobs.progress import StepProgress
from runbook.jobs.seen_processes import SeenProcess
from runbook.jobs.stall import accused_rank_findings, judge_stall
from runbook.model.playbook import Watch
from runbook.model.verdict import Finding
from runbook.node.training_steps import step_in_line
from runbook.parsers.python_stacks import StackFrame, main_thread_frames

from .made_up_attempts import ended, kept, wrote

MAIN = StackFrame("/srv/train.py", 90, "<module>")
STEP = StackFrame("/srv/train.py", 46, "main")
REDUCE = (
    StackFrame("/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 2806, "all_reduce"),
    STEP,
    MAIN,
)
BARRIER = (REDUCE[0].__class__(REDUCE[0].file, 4159, "barrier"), StackFrame("/srv/train.py", 80, "save"), MAIN)
QUEUE = (StackFrame("/usr/lib/python3.11/threading.py", 327, "wait"), StackFrame("/srv/data.py", 12, "load"), MAIN)
ITEM = (StackFrame("/srv/train.py", 50, "main"), MAIN)


def standing(
    rank: int,
    frames: tuple[StackFrame, ...],
    state: str = "S",
    *,
    gpu: bool = False,
    cpu: float = 0.0,
    use: int | None = None,
    **more: Any,
) -> SeenProcess:
    label = f"rank {rank} on node-{rank}"
    return SeenProcess(f"node-{rank}", label, 100 + rank, state, "futex", cpu, gpu, frames, gpu_use=use, **more)


def told(*ranks: SeenProcess) -> dict[str, list[str]]:
    return {
        node: [finding.cause for finding in found]
        for node, found in accused_rank_findings(ranks, "no step for 1 min").items()
    }


def test_who_stands_outside_of_the_call_that_others_wait_in_is_behind() -> None:
    assert told(standing(0, REDUCE), standing(1, QUEUE), standing(2, REDUCE)) == {"node-1": ["rank-behind"]}
    assert told(standing(0, REDUCE), standing(1, ITEM)) == {"node-1": ["rank-behind"]}


def test_a_line_that_may_wait_for_a_gpu_accuses_nobody() -> None:
    assert told(standing(0, REDUCE, gpu=True), standing(1, ITEM, gpu=True, cpu=1.0)) == {}
    assert told(standing(0, REDUCE, gpu=True), standing(1, QUEUE, gpu=True)) == {"node-1": ["rank-behind"]}


@pytest.mark.parametrize("others", [ITEM, REDUCE])
def test_whose_gpu_is_idle_while_those_of_others_are_kept_busy_is_behind(others: tuple[StackFrame, ...]) -> None:
    waiting = [standing(rank, others, gpu=True, cpu=1.0, use=100) for rank in (0, 1)]
    for state, cpu in (("S", 0.0), ("R", 1.0)):  # in a lock, and spinning
        assert told(*waiting, standing(2, ITEM, state, gpu=True, cpu=cpu, use=0)) == {"node-2": ["rank-behind"]}


def test_busy_gpus_and_those_that_nobody_knows_of_accuse_nobody() -> None:
    assert told(*(standing(rank, ITEM, gpu=True, use=100) for rank in range(3))) == {}
    assert told(standing(0, ITEM, gpu=True, use=100), standing(1, ITEM, gpu=True)) == {}
    assert told(*(standing(rank, ITEM, gpu=True, use=0) for rank in range(3))) == {}  # all compute, or wait for data
    assert told(standing(0, ITEM, gpu=True, use=10), standing(1, ITEM, gpu=True, use=0)) == {}
    assert told(standing(0, REDUCE, gpu=True, use=0), standing(1, REDUCE, gpu=True, use=100)) == {}


def test_another_call_than_most_is_named_and_of_two_both_are() -> None:
    most = [standing(rank, REDUCE) for rank in range(3)]
    assert told(*most, standing(3, BARRIER)) == {"node-3": ["mismatched-collectives"]}
    assert set(told(standing(0, REDUCE), standing(1, BARRIER))) == {"node-0", "node-1"}


def test_all_alike_or_unseen_accuse_nobody() -> None:
    assert told(*(standing(rank, REDUCE) for rank in range(4))) == {}
    assert told(*(standing(rank, QUEUE) for rank in range(4))) == {}
    assert told(standing(0, REDUCE), standing(1, ())) == {}
    assert told(standing(0, REDUCE), standing(1, BARRIER), standing(2, ())) == {}


@pytest.mark.parametrize(
    ("state", "frames", "accuses"), [("T", REDUCE, True), ("t", (), True), ("D", (), True), ("D", REDUCE, False)]
)
def test_a_process_that_is_stopped_is_named_whatever_the_others_do(
    state: str, frames: tuple[StackFrame, ...], accuses: bool
) -> None:
    assert told(standing(0, REDUCE), standing(1, frames, state)) == ({"node-1": ["rank-stopped"]} if accuses else {})


def test_a_child_that_is_stopped_is_the_one_to_let_go() -> None:
    (finding,) = accused_rank_findings([standing(0, REDUCE), standing(1, ITEM, stopped_pid=114)], "no step")["node-1"]
    assert "kill -CONT 114" in str(finding.remedy)


HUNGRY: dict[str, Any] = {"cpu": 0.04, "waited": 0.96}


def test_who_gets_no_cpu_and_cannot_tell_where_it_stands_is_behind() -> None:
    waiting = [standing(rank, REDUCE) for rank in (0, 1)]
    assert told(*waiting, standing(2, (), "R", **HUNGRY)) == {"node-2": ["rank-behind"]}
    (finding,) = accused_rank_findings([*waiting, standing(2, (), "R", **HUNGRY, throttled=0.9)], "no step")["node-2"]
    assert "2 others wait for rank 2 on node-2 in all_reduce" in finding.says
    assert "4% of a CPU, and waits for one 96% of the time, 90% out of the quota of its control group" in finding.says
    assert "cpu.max" in finding.remedy
    (finding,) = accused_rank_findings([*waiting, standing(2, ITEM, "R", **HUNGRY)], "no step")["node-2"]
    assert "waits for one 96% of the time" in finding.says
    assert "cpu.max" in finding.remedy


def test_who_shares_a_busy_machine_is_not_accused_of_it() -> None:
    waiting = [standing(rank, REDUCE) for rank in (0, 1)]
    for innocent in (
        standing(2, (), "R", cpu=0.3, waited=0.6),  # it gets some
        standing(2, (), "R", cpu=0.0),  # nobody counts
        standing(2, (), "S", cpu=0.0, waited=0.0),  # it did not answer, and does not want a CPU
        standing(2, (), "R", gpu=True, use=100, **HUNGRY),
        standing(2, (), "R", gpu=True, **HUNGRY),
        standing(2, REDUCE, "R", **HUNGRY),  # it waits actively
        standing(2, REDUCE, "R", **HUNGRY, throttled=0.9),
    ):
        assert told(*waiting, innocent) == {}
    assert told(standing(0, REDUCE), standing(1, (), "R", **HUNGRY), standing(2, (), "R", **HUNGRY)) == {}
    assert told(standing(0, REDUCE), standing(1, ()), standing(2, (), "R", **HUNGRY)) == {}
    assert told(standing(0, QUEUE), standing(1, (), "R", **HUNGRY)) == {}  # nobody is seen to wait for it


def test_who_sleeps_in_the_call_of_all_out_of_its_quota_is_behind() -> None:
    waiting = [standing(rank, REDUCE) for rank in (0, 1)]
    assert told(*waiting, standing(2, REDUCE, throttled=0.9)) == {"node-2": ["rank-behind"]}
    (finding,) = accused_rank_findings([*waiting, standing(2, REDUCE, throttled=0.9)], "no step")["node-2"]
    assert "the quota of its control group holds it back 90% of the time" in finding.says
    assert told(*waiting, standing(2, REDUCE, throttled=0.2)) == {}
    assert told(*(standing(rank, REDUCE, throttled=0.9) for rank in range(3))) == {}
    assert told(standing(0, REDUCE), *(standing(rank, REDUCE, throttled=0.9) for rank in (1, 2))) == {}


def test_who_does_not_tell_where_it_stands_is_behind_where_the_kernel_shows_it_elsewhere() -> None:
    """It blocks all signals, or is no Python program."""
    waiting = [standing(rank, REDUCE) for rank in (0, 1)]
    asleep = replace(standing(2, ()), wchan="hrtimer_nanosleep")
    assert told(*waiting, asleep) == {"node-2": ["rank-behind"]}
    (finding,) = accused_rank_findings([*waiting, asleep], "no step")["node-2"]
    assert "it sleeps in hrtimer_nanosleep of the kernel, while 2 others wait for it in all_reduce" in finding.says
    assert "--pid 102" in finding.remedy
    assert told(*waiting, standing(2, (), "R", cpu=0.99, waited=0.01)) == {"node-2": ["rank-behind"]}
    for innocent in (
        replace(asleep, wchan="0"),
        replace(asleep, stays=False),
        replace(asleep, has_gpu=True),
        replace(asleep, ending=True),
    ):
        assert told(*waiting, innocent) == {}
    assert told(*waiting, standing(3, QUEUE), asleep) == {"node-3": ["rank-behind"]}
    elsewhere = replace(waiting[0], wchan="do_epoll_wait")
    assert told(elsewhere, waiting[1], asleep) == {}  # who waits in the call of all may do so in several places
    assert told(replace(waiting[0], wchan=""), asleep) == {}


def test_of_ranks_that_are_all_mute_the_one_that_sleeps_in_another_place_is_behind() -> None:
    *others, asleep = (replace(standing(rank, ()), wchan="futex_wait_queue") for rank in range(4))
    asleep = replace(asleep, wchan="pipe_read")
    assert told(*others, asleep) == {"node-3": ["rank-behind"]}
    (finding,) = accused_rank_findings([*others, asleep], "no step")["node-3"]
    assert "in pipe_read of the kernel, while 3 others, mute as well, sleep in futex_wait_queue" in finding.says
    assert told(*others, replace(others[2], cpu=0.99, state="R", node="node-3")) == {"node-3": ["rank-behind"]}
    assert told(*others) == told(others[0], asleep) == told(*others[:2], asleep, asleep) == {}
    assert told(*(replace(one, wchan="do_poll") for one in others), asleep) == {}
    assert told(*others, replace(asleep, state="D", stays=False)) == {}


def test_a_moment_in_a_disk_is_no_proof() -> None:
    assert told(standing(0, REDUCE), standing(1, (), "D", stays=False)) == {}


def looked_at(ranks: Sequence[int], stack: str, *, moved: int = 0) -> Facts:
    """What a node tells of ranks that all sleep in this place."""
    process = {"state": "S", "comm": "python", "wchan": "", "cpu": 0.0, "waited": 0.0, "copied": 0, "stays": True}
    process["ending"] = False
    seen = {
        str(rank): {
            "processes": [{**process, "pid": rank, "rank": rank}],
            "own_stacks": {str(rank): stack},
            "stack": None,
            "throttled": None,
            "connections": 2,
            "moved": moved,
        }
        for rank in ranks
    }
    return {"ranks": seen, "busy": [], "gpu_use": None, "seconds": 1.0}


def dumped(frames: Sequence[StackFrame]) -> str:
    """As faulthandler writes it."""
    text = "".join(f'  File "{one.file}", line {one.line} in {one.function}\n' for one in frames)
    return f"Current thread 0x1 (most recent call first):\n{text}"


def test_who_stands_elsewhere_in_one_look_alone_is_not_accused(tmp_path: Path) -> None:
    """A training that goes on, and prints its steps no more: now this rank comes last, now that one."""
    made = kept(tmp_path)

    def causes(*lasts: int | None, moved: int = 0) -> set[str]:
        each = iter(lasts)

        def look() -> dict[str, Facts]:
            last = next(each)
            stacks = [dumped(ITEM if rank == last else REDUCE) for rank in range(4)]
            told = [looked_at((rank,), stacks[rank], moved=moved)["ranks"] for rank in range(4)]
            return {
                "node-a": {**looked_at((), ""), "ranks": {**told[0], **told[1]}},
                "node-b": {**looked_at((), ""), "ranks": {**told[2], **told[3]}},
            }

        found = judge_stall(made, StepProgress(Watch()), look).findings
        return {f"{node} {finding.cause}" for node, told in found.items() for finding in told}

    assert causes(3, 3) == causes(None, 3, 3) == {"node-b rank-behind"}
    assert causes(3, 0, 3, 0) == {"node-a training-stalled", "node-b training-stalled"}
    assert causes(3, 3, moved=5000) == {"node-a training-stalled", "node-b training-stalled"}
    assert causes(3, None, None) == {"node-a collective-stall-uniform", "node-b collective-stall-uniform"}


def test_who_carries_data_may_only_print_no_more(tmp_path: Path) -> None:
    made = kept(tmp_path)
    for moved, words in ((0, False), (5000, True)):
        frozen = {"node-a": looked_at((0, 1), "", moved=moved), "node-b": looked_at((2, 3), "", moved=moved)}
        judged = judge_stall(made, StepProgress(Watch()), functools.partial(dict, frozen))
        assert judged.talks is words
        found = judged.findings
        assert {finding.cause for each in found.values() for finding in each} == {"training-stalled"}
        assert ("4.88 KiB/s or more: perhaps steps are only no longer printed" in found["node-a"][0].says) is words


def test_who_has_ended_well_while_the_others_wait_is_named(tmp_path: Path) -> None:
    """A data loader that is shorter on one rank."""
    made = kept(tmp_path)
    ended(made, 3, 0, 110.0)
    stack = dumped(REDUCE)

    seen = {"node-a": looked_at((0, 1), stack), "node-b": looked_at((2,), stack)}
    found = judge_stall(made, StepProgress(Watch()), lambda: seen).findings
    ((node, (finding,)),) = found.items()
    assert node == "node-b"
    assert finding.cause == "mismatched-collectives"
    assert "rank 3 on node-b has ended with code 0, and 3 others wait for it in all_reduce" in finding.says


def test_who_waits_when_most_have_ended_well_makes_more_calls_than_they(tmp_path: Path) -> None:
    made = kept(tmp_path)
    for rank in (0, 1, 2):
        ended(made, rank, 0, 110.0)
    found = judge_stall(made, StepProgress(Watch()), lambda: {"node-b": looked_at((3,), dumped(REDUCE))}).findings
    ((node, (finding,)),) = found.items()
    assert (node, finding.cause) == ("node-b", "mismatched-collectives")
    assert "3 others have ended with code 0: it makes more calls" in finding.says


def calls(function: str, line: int) -> tuple[StackFrame, ...]:
    """In this call of torch.distributed, at this line of `main`."""
    return (replace(REDUCE[0], function=function), replace(STEP, line=line), MAIN)


def test_calls_of_two_ranks_and_of_one_root_may_stand_in_different_lines() -> None:
    """A pipeline whose network has stopped; a root that sends in another line than the others receive."""
    assert told(standing(0, calls("recv", 5)), standing(1, calls("send", 6)), standing(2, calls("recv", 7))) == {}
    assert told(standing(0, calls("recv", 5)), *(standing(rank, REDUCE) for rank in (1, 2))) == {}
    assert told(standing(0, calls("broadcast", 5)), *(standing(rank, calls("broadcast", 7)) for rank in (1, 2))) == {}
    others = [standing(rank, calls("all_reduce", 7)) for rank in (1, 2)]
    assert told(standing(0, calls("all_reduce", 5)), *others) == {"node-0": ["mismatched-collectives"]}
    assert told(standing(0, calls("broadcast", 5)), *others) == {}, "they may be its root, and those who relayed it"


def test_who_awaits_a_call_that_was_begun_before_is_not_behind() -> None:
    """`work.wait()` is no Python function: only the source of its line tells."""
    text = f'{dumped((STEP, MAIN)).splitlines()[0]}\n  File "{STEP.file}", line {STEP.line} in main\n    work.wait()\n'
    awaits = main_thread_frames(text)
    assert awaits[0].source == "work.wait()"
    assert standing(1, awaits).place == "in wait at /srv/train.py:46, in main"
    assert told(standing(0, REDUCE), standing(1, awaits)) == {}
    begun = replace(BARRIER[0], file="/opt/site/torch/distributed/distributed_c10d.py", source="work.wait()")
    assert standing(2, (begun, *BARRIER[1:])).place.startswith("in barrier at ")
    most = [standing(rank, REDUCE) for rank in (0, 1)]
    assert told(*most, standing(2, (begun, *BARRIER[1:]))) == {"node-2": ["mismatched-collectives"]}
    assert told(standing(0, awaits), standing(1, awaits), standing(2, QUEUE)) == {"node-2": ["rank-behind"]}


def test_that_ranks_wait_in_different_calls_is_told_though_nobody_is_accused(tmp_path: Path) -> None:
    seen = {"node-a": looked_at((0, 1), dumped(REDUCE)), "node-b": looked_at((2, 3), dumped(calls("broadcast", 5)))}
    found = judge_stall(kept(tmp_path), StepProgress(Watch()), lambda: seen).findings
    (finding,) = found["node-a"]
    assert finding.cause == "training-stalled"
    assert "they wait in different calls" in finding.says
    assert "rank 2 on node-b, rank 3 on node-b: in broadcast at /srv/train.py:5, in main" in finding.evidence


def seen_alike(stack: str) -> dict[str, Facts]:
    return {"node-a": looked_at((0, 1), stack), "node-b": looked_at((2, 3), stack)}


def test_what_lies_between_the_nodes_goes_before_ranks_that_all_wait(tmp_path: Path) -> None:
    rule = Finding("firewall-drop", "node-b drops TCP", "nft delete rule", ("nft",))
    silent = Between(stalled=("node-a → node-b: 4 KiB not acknowledged, sent again 5 times",))
    for seen, cause in (
        (Between({"node-b": (rule,)}), {"node-b": "firewall-drop"}),
        (silent, dict.fromkeys(("node-a", "node-b"), "tcp-connection-lost-midrun")),
        (Between(), dict.fromkeys(("node-a", "node-b"), "collective-stall-uniform")),
    ):
        looks = functools.partial(seen_alike, dumped(REDUCE))
        found = judge_stall(kept(tmp_path), StepProgress(Watch()), looks, itertools.repeat(seen).__next__)
        assert {node: told[0].cause for node, told in found.findings.items()} == cause


def test_who_wants_a_cpu_and_gets_none_is_no_stall_unless_another_is_to_blame(tmp_path: Path) -> None:
    for others, hungry in ((dumped(REDUCE), ""), ("", "4 of 4 ranks hardly get a CPU")):
        seen = seen_alike(others)
        for rank in ("2", "3") if others else ():
            seen["node-b"]["ranks"][rank]["own_stacks"] = {}
        for node in ["node-b"] if others else ["node-a", "node-b"]:
            for rank in seen[node]["ranks"].values():
                rank["processes"][0].update(state="R", cpu=0.05, waited=0.9)
        judged = judge_stall(kept(tmp_path), StepProgress(Watch()), functools.partial(dict, seen))
        assert judged.goes_on == hungry
        assert {each.cause for told in judged.findings.values() for each in told} == {
            "rank-behind" if others else "training-stalled"
        }


def test_ranks_that_are_all_gone_are_no_stall(tmp_path: Path) -> None:
    """They ended, and on a busy machine their keepers take a while to tell."""
    gone = {node: looked_at(ranks, "") for node, ranks in (("node-a", (0, 1)), ("node-b", (2, 3)))}
    for node in gone.values():
        for rank in node["ranks"].values():
            rank["processes"] = []
    assert judge_stall(kept(tmp_path), StepProgress(Watch()), lambda: gone).goes_on.startswith("no rank lives any more")
    blind = {"node-b": {**gone["node-b"], "ranks": {}}}
    assert judge_stall(kept(tmp_path), StepProgress(Watch()), lambda: blind).goes_on.startswith(
        "rank 2 on node-b, rank 3"
    )
    gone["node-b"] = looked_at((2, 3), dumped(QUEUE))
    gone["node-a"]["ranks"]["1"]["processes"] = [{**gone["node-b"]["ranks"]["2"]["processes"][0], "state": "Z"}]
    judged = judge_stall(kept(tmp_path), StepProgress(Watch()), lambda: gone)
    assert judged.goes_on == "rank 0 on node-a, rank 1 on node-a ended, and the keeper has not told yet how"
    assert not judge_stall(kept(tmp_path), StepProgress(Watch()), dict).goes_on, "nobody knows"


@pytest.mark.parametrize(
    ("lines", "cpu", "copied", "works"),
    [((50, 50), 1.0, 0, False), ((50, 52), 1.0, 0, True), ((50, 52), 0.0, 0, False), ((50, 50), 0.1, 1 << 20, True)],
)
def test_who_is_waited_for_and_works_is_told_apart_from_one_that_hangs(
    tmp_path: Path, lines: tuple[int, int], cpu: float, copied: int, works: bool
) -> None:
    """An evaluation, or a checkpoint, of one rank: it is now here, now there, or writes."""
    each = iter(lines)

    def look() -> dict[str, Facts]:
        seen = seen_alike(dumped(REDUCE))
        rank = seen["node-b"]["ranks"]["3"]
        rank["own_stacks"]["3"] = dumped((replace(STEP, line=next(each)), MAIN))
        rank["processes"][0].update(cpu=cpu, copied=copied)
        return seen

    judged = judge_stall(kept(tmp_path), StepProgress(Watch()), look)
    assert [finding.cause for finding in judged.findings["node-b"]] == ["rank-behind"]
    assert judged.works.startswith("rank 3 on node-b works in main (/srv/train.py:") is works


def test_a_rank_that_works_while_the_others_wait_in_a_way_of_their_own_is_told(tmp_path: Path) -> None:
    """A checkpoint of one rank, for whose file the others look: no call of all is seen."""
    seen = seen_alike(dumped(QUEUE))
    seen["node-a"]["ranks"]["0"]["processes"][0].update(copied=1 << 21)
    judged = judge_stall(kept(tmp_path), StepProgress(Watch()), lambda: seen)
    assert (judged.works.partition(" in ")[0], judged.goes_on) == ("rank 0 on node-a works", "")
    seen["node-a"]["ranks"]["0"]["processes"][0].update(copied=0)
    assert not judge_stall(kept(tmp_path), StepProgress(Watch()), lambda: seen).works


def test_who_lives_on_when_most_have_ended_is_named(tmp_path: Path) -> None:
    """At its exit, in a hook or for a thread of its own; nobody is left who waits for it."""
    exits = (StackFrame("/usr/lib/python3.11/threading.py", 1590, "_shutdown"),)
    thread = (StackFrame("/usr/lib/python3.11/queue.py", 171, "get"), StackFrame("/srv/upload.py", 7, "send"))
    dump = f"{dumped(thread).replace('Current thread', 'Thread')}\n{dumped(exits)}"
    made = kept(tmp_path)
    ends = looked_at(
        (0, 1, 2), "Current thread 0x1 (most recent call first):\n  Garbage-collecting\n  <no Python frame>\n"
    )
    seen = {"node-a": ends, "node-b": looked_at((3,), dump)}
    seen["node-b"]["ranks"]["2"] = ends["ranks"].pop("2")
    judged = judge_stall(made, StepProgress(Watch()), lambda: seen)
    assert "3 others have ended with code 0 (3 nearly)" in judged.findings["node-b"][0].says
    seen["node-b"]["ranks"]["3"]["own_stacks"] = {"3": seen["node-b"]["ranks"]["2"]["own_stacks"]["2"]}
    assert judge_stall(made, StepProgress(Watch()), lambda: seen).goes_on == "4 of 4 ranks are ending"
    ended(made, 0, 0, 110.0)
    seen = {"node-a": looked_at((1,), dump), "node-b": looked_at((2, 3), dump)}
    found = judge_stall(made, StepProgress(Watch()), lambda: seen).findings
    assert found["node-a"][0].cause == "training-stalled"
    for rank in (1, 2):
        ended(made, rank, 0, 110.0)
    found = judge_stall(made, StepProgress(Watch()), lambda: {"node-b": looked_at((3,), dump)}).findings
    ((node, (finding,)),) = found.items()
    assert (node, finding.cause) == ("node-b", "rank-behind")
    assert "rank 3 on node-b has not ended" in finding.says
    assert "at its exit it waits for a thread of its own, in send (/srv/upload.py:7)" in finding.says
    assert "3 others have ended with code 0" in finding.says


def test_who_hangs_at_its_exit_is_not_named_with_one_that_is_only_late(tmp_path: Path) -> None:
    """Its interpreter is gone and its libraries end, or its own hook at the exit still works."""
    made = kept(tmp_path)
    for rank in (1, 2):
        ended(made, rank, 0, 110.0)
    lines = itertools.count(5)

    def look(**late: Any) -> dict[str, Facts]:
        seen = {"node-a": looked_at((0,), late.pop("stack", "")), "node-b": looked_at((3,), dumped(QUEUE))}
        seen["node-a"]["ranks"]["0"]["processes"][0].update(state="R", cpu=0.9, **late)
        return seen

    def hook() -> dict[str, Facts]:
        return look(stack=dumped((StackFrame("/srv/hook.py", next(lines), "flush"),)))

    ((node, (finding,)),) = judge_stall(made, StepProgress(Watch()), lambda: look(ending=True)).findings.items()
    assert (node, finding.cause) == ("node-b", "rank-behind")
    assert "3 others have ended with code 0 (1 nearly)" in finding.says
    assert judge_stall(made, StepProgress(Watch()), hook).goes_on.startswith("rank 0 on node-a works in flush")


def test_who_sleeps_below_its_python_when_all_others_have_ended_is_named(tmp_path: Path) -> None:
    """A library that waits in its last destructor."""
    made = kept(tmp_path)
    for rank in (0, 1, 2):
        ended(made, rank, 0, 110.0)
    seen = {"node-b": looked_at((3,), "")}
    (process,) = seen["node-b"]["ranks"]["3"]["processes"]
    process.update(ending=True, wchan="futex_wait_queue")
    judged = judge_stall(made, StepProgress(Watch()), lambda: seen)
    ((node, (finding,)),) = judged.findings.items()
    assert (node, finding.cause, judged.goes_on) == ("node-b", "rank-behind", "")
    assert "rank 3 on node-b has not ended: its Python is over, it sleeps in futex_wait_queue" in finding.says
    process.update(state="R", cpu=0.9)
    assert judge_stall(made, StepProgress(Watch()), lambda: seen).goes_on == "1 of 1 ranks are ending"


def test_a_thread_that_an_exception_has_ended_is_told_of_the_rank_that_waits_for_it(tmp_path: Path) -> None:
    made = kept(tmp_path)
    error = b'Exception in thread Thread-1 (fetch):\nTraceback (most recent call last):\n  File "x"\n    f()\nValueError: shard 7\n'
    wrote(made, made.members[3], err=error)
    seen = seen_alike(dumped(REDUCE))
    seen["node-b"]["ranks"]["3"]["own_stacks"]["3"] = dumped(QUEUE)
    (finding,) = judge_stall(made, StepProgress(Watch()), lambda: seen).findings["node-b"]
    assert "its thread Thread-1 (fetch) has ended with ValueError: shard 7" in finding.says


def test_whose_program_an_exception_has_ended_and_a_thread_holds_up_is_told_with_the_exception(tmp_path: Path) -> None:
    made = kept(tmp_path)
    error = b'[rank3]: Traceback (most recent call last):\n[rank3]:   File "x"\n[rank3]: ValueError: no such label\n'
    wrote(made, made.members[3], err=error)
    exits = (StackFrame("/usr/lib/python3.11/threading.py", 1590, "_shutdown"),)
    for frames, cause in ((exits, "program-error"), (QUEUE, "rank-behind")):
        seen = seen_alike(dumped(REDUCE))
        seen["node-b"]["ranks"]["3"]["own_stacks"]["3"] = dumped(frames)
        (finding,) = judge_stall(made, StepProgress(Watch()), functools.partial(dict, seen)).findings["node-b"]
        assert finding.cause == cause
        assert ("raised and did not end: ValueError: no such label" in finding.says) == (frames is exits)


LOADER = (
    StackFrame("/usr/lib/python3.11/multiprocessing/queues.py", 103, "get"),
    StackFrame("/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", 275, "_worker_loop"),
    StackFrame("/usr/lib/python3.11/multiprocessing/process.py", 314, "_bootstrap"),
    STEP,
    MAIN,
)


@pytest.mark.parametrize(("of_main", "accused"), [("", False), (dumped(QUEUE), True)])
def test_a_data_loader_does_not_speak_for_its_mute_rank(tmp_path: Path, of_main: str, accused: bool) -> None:
    made = kept(tmp_path)
    seen = {name: looked_at(ranks, dumped(REDUCE)) for name, ranks in (("node-a", (0, 1)), ("node-b", (2, 3)))}
    rank = seen["node-b"]["ranks"]["3"]
    rank["processes"].append({**rank["processes"][0], "pid": 30, "cpu": 0.1})
    rank["own_stacks"] = {"3": of_main, "30": dumped(LOADER)}
    found = judge_stall(made, StepProgress(Watch()), lambda: seen).findings
    assert {f.cause for each in found.values() for f in each} == {"rank-behind" if accused else "training-stalled"}


def test_where_a_data_loader_is_for_which_its_rank_waits_is_told(tmp_path: Path) -> None:
    seen = seen_alike(dumped(REDUCE))
    rank = seen["node-b"]["ranks"]["3"]
    rank["processes"].append({**rank["processes"][0], "pid": 30})
    fetches = (
        StackFrame("/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 1310, "_get_data"),
        *QUEUE,
    )
    item = StackFrame("/srv/data.py", 31, "__getitem__")
    rank["own_stacks"] = {"3": dumped(fetches), "30": dumped((item, *LOADER[1:]))}
    (finding,) = judge_stall(kept(tmp_path), StepProgress(Watch()), lambda: seen).findings["node-b"]
    assert "process 30, which it started, is in __getitem__ (/srv/data.py:31)" in finding.says


FORWARD = (
    StackFrame("/venv/lib/python3.11/site-packages/torch/nn/parallel/distributed.py", 1523, "forward"),
    STEP,
    MAIN,
)
BACKWARD = (StackFrame("/venv/lib/python3.11/site-packages/torch/_tensor.py", 626, "backward"), STEP, MAIN)


@pytest.mark.parametrize("calls", [FORWARD, BACKWARD])
def test_what_a_wrapped_model_calls_of_the_program_is_no_call_of_all(calls: tuple[StackFrame, ...]) -> None:
    """A lock in a model's forward, and one in a hook of a gradient."""
    hook = StackFrame("/srv/model.py", 7, "hook")
    waits = (StackFrame("/usr/lib/python3.11/threading.py", 327, "wait"), hook, *calls)
    (finding,) = accused_rank_findings([standing(0, BACKWARD), standing(1, waits)], "no step")["node-1"]
    assert finding.cause == "rank-behind"
    assert "rank 1 on node-1 stands in hook (/srv/model.py:7)" in finding.says
    assert standing(2, (REDUCE[0], hook, *calls)).together


@pytest.mark.parametrize(
    ("frames", "state", "cpu", "named"),
    [
        (BACKWARD, "S", 0.0, True),
        (REDUCE, "R", 1.0, True),
        (FORWARD, "R", 1.0, False),
        (FORWARD, "S", 0.9, False),
        (QUEUE, "S", 0.0, False),
    ],
)
def test_who_has_ended_well_while_the_others_compute_is_not_named(
    tmp_path: Path, frames: tuple[StackFrame, ...], state: str, cpu: float, named: bool
) -> None:
    """They evaluate their wrapped model, or write a checkpoint, with as many steps behind them."""
    made = kept(tmp_path)
    ended(made, 3, 0, 110.0)
    seen = {"node-a": looked_at((0, 1), dumped(REDUCE)), "node-b": looked_at((2,), dumped(frames))}
    (process,) = seen["node-b"]["ranks"]["2"]["processes"]
    process.update(state=state, cpu=cpu)
    found = judge_stall(made, StepProgress(Watch()), lambda: seen).findings
    causes = {f.cause for each in found.values() for f in each}
    assert ("mismatched-collectives" in causes) is named


def test_who_has_ended_well_is_not_named_while_one_of_the_others_is_not_seen(tmp_path: Path) -> None:
    made = kept(tmp_path)
    ended(made, 3, 0, 110.0)
    found = judge_stall(made, StepProgress(Watch()), lambda: {"node-a": looked_at((0, 1), dumped(REDUCE))}).findings
    assert {finding.cause for each in found.values() for finding in each} == {"training-stalled"}


def test_the_forward_of_a_wrapped_model_is_no_call_of_all() -> None:
    assert standing(0, FORWARD).place == "in main (/srv/train.py:46)"
    assert standing(0, BACKWARD).place.startswith("in backward at /srv/train.py:46")
    assert standing(0, (REDUCE[0], *FORWARD)).place.startswith("in all_reduce at ")


def test_dumps_of_both_tools_are_read() -> None:
    by_us = (
        'Thread 0x00007f1 (most recent call first):\n  File "/a/b.py", line 3 in other\n\n'
        'Current thread 0x00007f2 (most recent call first):\n  File "/srv/x y.py", line 46 in main\n  File "/srv/x y.py", line 90 in <module>\n'
    )
    assert main_thread_frames(by_us) == (
        StackFrame("/srv/x y.py", 46, "main"),
        StackFrame("/srv/x y.py", 90, "<module>"),
    )
    by_py_spy = (
        'Process 7: python train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread 7 (idle): "MainThread"\n'
        '    wait (threading.py:327)\n    <module> (train.py:90)\nThread 8 (idle): "Thread-1"\n    run (x.py:1)\n'
    )
    assert main_thread_frames(by_py_spy) == (
        StackFrame("threading.py", 327, "wait"),
        StackFrame("train.py", 90, "<module>"),
    )
    assert main_thread_frames("Segmentation fault") == ()
    blocked = by_us.replace("Current thread", "Thread")  # another thread than the main one took the signal
    assert (
        main_thread_frames(blocked)
        == main_thread_frames(blocked.replace("Thread", "Current thread", 1))
        == main_thread_frames(by_us)
    )
    many = "".join(by_us.partition("\n\n")[0] + "\n\n" for _ in range(99))
    assert (
        main_thread_frames(by_us.partition("\n\n")[2] + "\n" + many)[0].line == 46
    )  # no more than a hundred are written


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("step 12 loss 0.3", "12"),
        ("[rank0]: Step: 1200/5000 | loss 2.1", "1200"),
        ("iter 7: loss 1.0", "7"),
        ("{'loss': 1.2, 'global_step': 40, 'epoch': 0.1}", "40"),
        (" iteration      100/  500000 | consumed samples: 800", "100"),
        ("  3%|▎         | 31/1000 [00:10<05:20,  3.02it/s]", "31"),
        ("\r 10%|# | 1/10 [00:01<00:09]\r 20%|## | 2/10 [00:02<00:08]", "2"),
        ("Epoch 0:  12%|█▏   | 120/1000 [00:10<01:15, 11.70it/s, v_num=0]", "120"),
        ("Epoch 0/9  ━━━━━━━━━━━ 120/1000 0:00:10 • 0:01:15 11.70it/s", "120"),
        ("120it [00:10, 11.7it/s]", "120"),
        ("\x1b[1m 120/1000\x1b[0m \x1b[32m━━━━\x1b[0m \x1b[1m10s\x1b[0m 83ms/step - loss: 2.1", "120"),
        ("\x1b[31mstep: \x1b[36m 1  \x1b[32mloss: 12.2\x1b[39m", "1"),
        ("[2026-11-23 10:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[0.001]", "10"),
        ("steps: 10 loss: 2.1 iter time (s): 0.1 samples/sec: 100", "10"),
        ("epoch 001:    120 / 1000 loss=3.2, ppl=9.1, wps=100", "120"),
        ('{"epoch": 1, "update": 0.5, "num_updates": "100", "lr": "1e-4"}', "100"),
        ("Train: 0 [  50/1251 (  4%)]  Loss: 6.9 (6.9)  Time: 0.5s", "50"),
        ("Epoch: [0][  50/5005]\tTime  0.5 ( 1.0)\tData", "50"),
        ("[11/23 10:00:00 d2.utils.events]:  eta: 0:10:00  iter: 19  total_loss: 2.1", "19"),
        ("Epoch: [1/90][ 100/5005]\tTime  0.5 ( 1.0)\tLoss 6.9 (6.9)", "100"),
        ("Epoch [1/10], Step [100/600], Loss: 1.2", "100"),
        ("Epoch [1/10] Batch [100/600] Loss: 1.2", "100"),
        ("Epoch: [1/10], Iter: [100/600], lr: 0.001", "100"),
        ("Epoch[1/10] [100/600] loss 1.2", "100"),
        ("Test:  [ 10/196]  eta: 0:01:00  loss: 0.9", "10"),
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.1", "640"),
        ("epoch [3/100] time 12 loss 0.1", None),
        ("11/23 10:00:00 - mmengine - INFO - Epoch(train)  [1][ 50/3665]  lr: 1e-3 eta: 1:00 time: .1", "50"),
        ("Training epoch 0, iteration 12/999 | lr: 1e-5 | global_step: 12", "12"),
        ("step 1,200 loss 2.1", "1200"),
        ("step=12,skipped=0", "12"),
        ("Epoch 3: 100 samples in 3 s", None),
        ("loading step files", None),
        ("lr 1e-5, stepped", None),
        ("  Total optimization steps = 1,000", None),
        ("max_steps=1000, warmup steps: 100, --steps 1000", None),
        ("iteration 0.53 s", None),
        ("step 1e-5", None),
        ("Loading checkpoint shards:  33%|███▎  | 1/3 [00:10<00:20, 10.0s/it]", None),
        ("Map (num_proc=8):  12%|█▏  | 1200/10000 [00:10<01:15, 117.00 examples/s]", None),
        ("[1/4] c++ -MMD -MF cpu_adam.o.d -DTORCH_EXTENSION_NAME", None),
        ("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536", None),
    ],
)
def test_the_usual_ways_to_print_a_step(line: str, step: str | None) -> None:
    assert step_in_line(line) == (step and int(step))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the time is; tests turn it on."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_the_next_epoch_is_progress_and_in_time_the_count(clock: list[float]) -> None:
    progress = StepProgress(replace(Watch(), stall_s=30.0))
    for epoch in range(3):
        for step in range(100):
            clock[0] += 1.0
            progress.heard(0, [f"{step}%|#| {step + 1}/100 [00:01<01:40, 1.0it/s]"])
            assert progress.stalled_s(clock[0]) is None
            rate = progress.rate()
            assert rate is not None
            assert rate.step == (step + 1 if epoch == 0 or step >= 60 else 100)
    assert rate is not None
    assert rate.per_s == pytest.approx(1.0)
    clock[0] += 31.0
    assert progress.stalled_s(clock[0]) == pytest.approx(31.0)


def test_an_evaluation_that_counts_from_one_is_no_step_back(clock: list[float]) -> None:
    """However long it takes: the speed of the training is told from its own steps."""
    progress = StepProgress(replace(Watch(), stall_s=30.0, baseline_s=600.0))
    step = 0
    for seconds in (10, 200) * 6:
        for _ in range(200):
            clock[0] += 1.0
            step += 1
            progress.heard(0, [f"step {step}"])
        for number in range(seconds):
            clock[0] += 1.0
            progress.heard(0, [f"Evaluating: 1%|#| {number + 1}/{seconds} [00:01<01:40, 1.0it/s]"])
            assert progress.stalled_s(clock[0]) is None
    assert progress.step_times.slower(clock[0]) is None
    progress.heard(0, [f"step {step + 1}"])
    rate = progress.rate()
    assert rate is not None
    assert rate.step == step + 1


def test_a_trainer_that_tells_only_epochs_is_heard(clock: list[float]) -> None:
    """What it prints is rounded, so that the same number again is progress too."""
    progress = StepProgress(replace(Watch(), stall_s=30.0))
    for number in range(20):
        clock[0] += 20.0
        progress.heard(0, [f"{{'loss': 2.1, 'learning_rate': 4.9e-05, 'epoch': {number // 5 * 0.01:.2f}}}"])
        assert progress.stalled_s(clock[0]) is None
    assert str(progress.rate()).startswith("epoch 0.03, ")
    clock[0] += 31.0
    assert progress.stalled_s(clock[0]) == pytest.approx(31.0)
    progress.heard(0, ["step 7"])
    assert str(progress.rate()) == "step 7"
    progress.heard(0, ["{'loss': 2.1, 'epoch': 0.9}"])
    assert str(progress.rate()) == "step 7"


def test_within_the_first_step_a_model_may_be_compiled(clock: list[float]) -> None:
    progress = StepProgress(Watch())
    progress.heard(0, ["step 0: train loss 4.28, val loss 4.28"])
    clock[0] += 500.0
    assert progress.stalled_s(clock[0]) is None
    clock[0] += 101.0
    assert progress.stalled_s(clock[0]) == pytest.approx(601.0)


def test_a_bar_of_which_nothing_is_done_begins_nothing(clock: list[float]) -> None:
    for bar in ("  0%|          | 0/10 [00:00<?, ?it/s]", "Epoch 0/9 ━━━━━━ 0/100 0:00:00 • -:--:-- 0.00it/s"):
        progress = StepProgress(Watch())
        progress.begin()
        progress.heard(0, [bar])
        clock[0] += 10_000.0
        assert (progress.stalled_s(clock[0]), progress.rate()) == (None, None)
        progress.heard(0, ["step 1"])
        progress.heard(0, [bar])  # of an evaluation
        assert str(progress.rate()) == "step 1"


def test_a_second_epoch_may_take_as_long_as_the_first(clock: list[float]) -> None:
    """Where a bar counts epochs."""
    progress = StepProgress(Watch())
    progress.begin()
    clock[0] += 2400.0
    progress.heard(0, [" 10%|#         | 1/10 [40:00<6:00:00, 2400.00s/it]"])
    clock[0] += 4799.0
    assert progress.stalled_s(clock[0]) is None
    clock[0] += 2.0
    assert progress.stalled_s(clock[0]) == pytest.approx(4801.0)


def test_a_limit_is_learned_and_begins_with_the_first_step(clock: list[float]) -> None:
    progress = StepProgress(Watch())
    clock[0] = 100_000.0
    assert progress.stalled_s(clock[0]) is None
    for step in range(5):
        clock[0] += 10.0
        progress.heard(0, [f"step {step} loss 1.0"])
    clock[0] += 99.0
    assert progress.stalled_s(clock[0]) is None
    clock[0] += 2.0
    assert progress.stalled_s(clock[0]) == pytest.approx(101.0)
    progress.stall_reported()
    assert progress.stalled_s(clock[0]) is None
    progress.heard(1, ["step 5"])
    clock[0] += 1111.0
    assert progress.stalled_s(clock[0]) == pytest.approx(1111.0)


def test_what_nobody_has_heard_yet_is_no_silence(clock: list[float]) -> None:
    """A node that is busy, or a controller that slept, tells of steps later than they were made."""
    progress = StepProgress(replace(Watch(), stall_s=30.0))
    progress.heard(0, ["step 1"])
    clock[0] += 1000.0
    assert progress.stalled_s(-math.inf) is None
    assert progress.stalled_s(1000.0 + 29.0) is None
    assert progress.stalled_s(1000.0 + 31.0) == pytest.approx(31.0)


def test_ranks_that_follow_are_progress_and_the_same_step_again_is_none(clock: list[float]) -> None:
    progress = StepProgress(replace(Watch(), stall_s=30.0))
    for rank in (0, 1, 2):
        clock[0] += 20.0
        progress.heard(rank, ["step 1"])
        assert progress.stalled_s(clock[0]) is None
    for _ in range(3):
        clock[0] += 20.0
        progress.heard(0, ["step 1", "warning: step size is small"])
    assert progress.stalled_s(clock[0]) == pytest.approx(60.0)


def test_lines_of_hours_that_come_at_once_do_not_tell_how_fast_they_were_made(clock: list[float]) -> None:
    """Of a job that is followed again. It printed a line each quarter of an hour."""
    progress = StepProgress(Watch())
    progress.begin(40 * 900.0)
    progress.heard(0, [f"step {100 * number}" for number in range(1, 41)], late=True)
    rate = progress.rate()
    assert rate is not None
    assert (rate.step, rate.per_s) == (4000, None)
    for seconds in (300.0, 900.0):
        clock[0] += seconds
        assert progress.stalled_s(clock[0]) is None
        progress.heard(0, [f"step {4000 + clock[0]:.0f}"])
    clock[0] += 8999.0
    assert progress.stalled_s(clock[0]) is None
    clock[0] += 2.0
    assert progress.stalled_s(clock[0]) == pytest.approx(9001.0)
    assert progress.step_times.slower(clock[0]) is None


def test_quick_steps_that_come_late_are_known_to_be_quick(clock: list[float]) -> None:
    for late in ({"heard": "lines"}, {"written": "files"}):
        progress = StepProgress(Watch())
        progress.begin(1000.0)
        if "heard" in late:
            progress.heard(0, [f"step {number}" for number in range(1000)], late=True)
        else:
            progress.written({"rank-0": "1000"}, {"rank-0": 0}, late=True)
        clock[0] += 599.0
        assert progress.stalled_s(clock[0]) is None
        progress.reached(0, 1001)
        progress.reached(0, 1002)
        clock[0] += 5991.0
        assert progress.stalled_s(clock[0]) == pytest.approx(5991.0)
