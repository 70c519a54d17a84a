"""allreduce: arguments, the gate, wrong data, and what one rank measures."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import runbook.node
from runbook.checks.allreduce import (
    AllReduce,
    expected_iteration_seconds,
    promised_rate,
    slow_job_outcomes,
    wrong_data_outcomes,
)
from runbook.checks.bandwidth.allreduce_blame import Blame
from runbook.checks.bandwidth.normal_busbw import BandwidthSetting, Norm, expected_busbw
from runbook.checks.base import build_check
from runbook.checks.context import Context
from runbook.checks.ranks.pool import RankPool
from runbook.model.errors import FilesWrong, Span
from runbook.model.verdict import Finding, Outcome, Verdict

from .made_up_cluster import at, cluster, context, node, pool_of, verdicts


@pytest.mark.parametrize(
    ("low", "high", "factor", "sizes"),
    [
        (1024, 8192, 2, [1024, 2048, 4096, 8192]),
        (1024, 5000, 2, [1024, 2048, 4096, 5000]),
        (1024, 1024, 2, [1024]),
        (4, 1000, 10, [4, 40, 400, 1000]),
        (10, 101, 3, [8, 28, 88, 100]),
    ],
)
def test_sizes_are_whole_elements_and_end_with_the_largest(low: int, high: int, factor: int, sizes: list[int]) -> None:
    assert AllReduce(min_bytes=low, max_bytes=high, factor=factor).sizes == sizes


@pytest.mark.parametrize(("low", "high"), [(4, 9), (5, 6), (1024, 4099)])
def test_no_size_stands_there_twice(low: int, high: int) -> None:
    sizes = AllReduce(min_bytes=low, max_bytes=high).sizes
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize(
    "values",
    [
        {"min_bytes": 2, "max_bytes": 8},
        {"min_bytes": "2M", "max_bytes": "1M"},
        {"factor": 1},
        {"iterations": 0},
        {"warmup": 0},
        {"iterations": 2.5},
        {"iterations": "many"},
        {"budget": "soon"},
        {"min_busbw_gbytes": -1},
        {"min_busbw_gbytes": "nan"},
        {"iterations": True},
        {"min_bytes": -4},
        {"iteration": 3},
    ],
)
def test_arguments_that_are_wrong_are_the_users_to_mend(values: dict[str, object]) -> None:
    span = Span("p.yml", 3, 7)
    with pytest.raises(FilesWrong) as caught:
        build_check(AllReduce, values, {}, span)
    assert {problem.id for problem in caught.value.problems} <= {"playbook.unknown-argument", "playbook.bad-argument"}
    assert all(problem.span == span for problem in caught.value.problems)


def test_every_wrong_argument_is_told_and_a_near_miss_gets_a_hint() -> None:
    with pytest.raises(FilesWrong) as caught:
        build_check(AllReduce, {"iteration": 3, "factor": "x", "budget": []}, {}, None)
    assert [p.id for p in caught.value.problems] == [
        "playbook.unknown-argument",
        "playbook.bad-argument",
        "playbook.bad-argument",
    ]
    assert "iterations" in (caught.value.problems[0].help or "")


def test_arguments_as_people_write_them() -> None:
    values = {
        "min_bytes": "4K",
        "max_bytes": "1G",
        "budget": "1m",
        "iterations": "5",
        "min_busbw_gbytes": 0.5,
        "stall": 2,
    }
    check = build_check(AllReduce, values, {}, None)
    assert (check.min_bytes, check.max_bytes, check.iterations) == (4096, 1 << 30, 5)
    assert (check.budget, check.min_busbw_gbytes, check.stall) == (60.0, 0.5, 2.0)


def row(size: int, busbw: float) -> dict[str, Any]:
    return {"size": size, "algbw": busbw, "busbw": busbw, "time_us": 100.0, "p50_us": 90.0, "p99_us": 120.0}


ROWS = [row(1 << 19, 30.0), row(1 << 20, 20.0)]


def judged(
    rows: list[dict[str, Any]], *, stop: dict[str, Any] | None = None, ranks: int = 2, **arguments: Any
) -> list[Outcome]:
    inventory = cluster(node("node-a", processes=ranks)) if ranks == 1 else cluster()
    pool = pool_of(inventory)
    for member in pool.members:
        member.steps["done"] = {"event": "step", "step": "done", "stopped_before": stop}
    check = AllReduce(**arguments)
    stop, at = pool.members[0].steps["done"].get("stopped_before"), context(inventory)
    return check._judge(pool, at, rows, stop) if rows else check._nothing(pool, at, stop)


def test_without_a_gate() -> None:
    outcomes = judged(ROWS)
    assert [outcome.verdict for outcome in outcomes] == [Verdict.PASS, Verdict.PASS]
    assert outcomes[0].proof == "busbw 20 GB/s at 1 MiB; 2 sizes verified, every element, 2 ranks"
    assert outcomes[0].metrics["busbw_gbytes"] == 20.0
    assert outcomes[0].metrics["world_size"] == 2


@pytest.mark.parametrize(
    ("sent", "again", "warns"), [(5000, 400, True), (5000, 149, False), (300, 49, False), (1000, 50, True)]
)
def test_many_segments_that_are_sent_again_are_a_warning_of_their_sender(sent: int, again: int, warns: bool) -> None:
    pool = pool_of(cluster())
    for member in pool.members:
        lost = again if member.rank.node == "node-b" else 0
        member.steps["done"] = {"event": "step", "step": "done", "tcp": {"sent": sent, "again": lost}}
    first, second = AllReduce()._judge(pool, context(cluster()), ROWS, None)
    assert (first.verdict, second.verdict) == (Verdict.PASS, Verdict.PASS)
    assert not first.warnings
    assert (
        [f"{again:,} of {sent:,} TCP segments that node-b sent" in one for one in second.warnings] == [True]
    ) == warns


@pytest.mark.parametrize(("gate", "verdict"), [(19.9, Verdict.PASS), (20.0, Verdict.PASS), (20.1, Verdict.FAIL)])
def test_the_gate_looks_at_the_largest_size(gate: float, verdict: Verdict) -> None:
    outcomes = judged(ROWS, min_busbw_gbytes=gate)
    assert {outcome.verdict for outcome in outcomes} == {verdict}
    if verdict is Verdict.FAIL:
        assert [f.cause for f in outcomes[0].findings] == ["allreduce-slow"]
        assert "busbw 20 GB/s at 1 MiB, below the gate of 20.1 GB/s" in outcomes[0].findings[0].says
        assert outcomes[0].metrics["busbw_gbytes"] == 20.0


NORMAL = expected_busbw(BandwidthSetting("nccl", (8,), ("NVIDIA H200",) * 8))
UNHEARD_OF = expected_busbw(BandwidthSetting("nccl", (8,), ("NVIDIA Z1000",) * 8))


def normed(busbw: float, norm: Norm, *, size: int = 16 << 30, blame: Blame | None = None) -> list[Outcome]:
    inventory = cluster()
    pool = pool_of(inventory)
    for member in pool.members:
        member.steps["done"] = {"event": "step", "step": "done"}
    return AllReduce(min_busbw_gbytes="auto")._judge(pool, context(inventory), [row(size, busbw)], None, norm, blame)


def test_auto_says_what_is_normal() -> None:
    outcome = normed(475.0, Norm({}, NORMAL))[0]
    assert outcome.verdict is Verdict.PASS
    assert "busbw 475 GB/s at 16 GiB, as it should be: 360 to 482 GB/s is normal for nccl, 8 × H200" in str(
        outcome.proof
    )
    assert outcome.metrics["expected_busbw_gbytes"] == [360, 482]
    assert "ml-engineering" in str(outcome.metrics["expected_source"])
    assert not outcome.warnings


def test_auto_fails_what_is_slow_whether_or_not_the_layer_is_known() -> None:
    for blame in (None, Blame(common="all links are alike")):
        outcomes = normed(200.0, Norm({}, NORMAL), blame=blame)
        assert {outcome.verdict for outcome in outcomes} == {Verdict.FAIL}
        finding = outcomes[0].findings[0]
        assert finding.cause == "allreduce-slow"
        assert "below what is normal" in finding.says
        assert any("56% of what is normal: 360 to 482 GB/s" in line for line in finding.evidence)


def test_auto_without_a_number_passes_and_says_so() -> None:
    outcome = normed(200.0, Norm({}, UNHEARD_OF))[0]
    assert outcome.verdict is Verdict.PASS
    assert "was not judged, no number is known for nccl, 8 × Z1000" in outcome.warnings[0]
    assert "give `min_busbw_gbytes:` yourself" in outcome.warnings[0]
    assert outcome.metrics["expected_busbw_gbytes"] is None


def test_auto_does_not_call_a_small_message_slow_or_normal() -> None:
    outcome = normed(200.0, Norm({}, NORMAL), size=16 << 20)[0]
    assert outcome.verdict is Verdict.PASS
    assert "16 MiB is too small to tell" in outcome.warnings[0]
    assert "raise `max_bytes:` or `budget:`" in outcome.warnings[0]


def test_auto_that_could_not_look_is_unknown() -> None:
    lost = Outcome.unknown("node-b", Finding("tool-output-unknown", "it said nothing", "look there"))
    outcomes = normed(475.0, Norm({"node-b": lost}, None))
    assert [outcome.verdict for outcome in outcomes] == [Verdict.PASS, Verdict.UNKNOWN]
    assert "node-b did not say what their links are" in outcomes[0].warnings[0]


def test_who_is_blamed_fails_and_the_others_pass_with_what_speaks_for_them() -> None:
    charge = Finding("allreduce-slow", "node-b sends at 1 MB/s", "on node-b: `mend it`", ("proof",), ("node-a",))
    blame = Blame({"node-b": charge}, cleared={"node-a": "node-a is fine"}, measured=("between nodes: slow",))
    outcomes = slow_job_outcomes(context(cluster()), blame, "busbw 1 GB/s", None, ROWS, {"busbw": 1.0})
    assert verdicts(outcomes) == {"node-a": (Verdict.PASS, ()), "node-b": (Verdict.FAIL, ("allreduce-slow",))}
    assert outcomes[0].proof == "busbw 1 GB/s; node-a is fine"
    assert outcomes[1].findings[0].remedy == "on node-b: `mend it`"
    assert outcomes[1].findings[0].evidence[:2] == ("proof", "between nodes: slow")


@pytest.mark.parametrize(("value", "read"), [("auto", "auto"), ("20", 20.0), (0.5, 0.5), (None, None)])
def test_the_gate_is_a_number_or_auto(value: object, read: object) -> None:
    assert build_check(AllReduce, {"min_busbw_gbytes": value}, {}, None).min_busbw_gbytes == read


@pytest.mark.parametrize("value", ["automatic", "Auto", True, -1, "nan", []])
def test_and_nothing_else(value: object) -> None:
    with pytest.raises(FilesWrong):
        build_check(AllReduce, {"min_busbw_gbytes": value}, {}, None)


def test_one_rank_sends_nothing_and_is_not_gated() -> None:
    (outcome,) = judged([row(1 << 20, 0.0)], ranks=1, min_busbw_gbytes=20.0)
    assert outcome.verdict is Verdict.PASS
    assert "the bandwidth gate was not applied" in outcome.warnings[0]


def test_it_says_where_it_stopped() -> None:
    outcomes = judged(ROWS, stop={"size": 1 << 21, "why": "time"}, budget=5.0)
    assert (outcomes[0].proof or "").endswith("; stopped before 2 MiB: the budget of 5 s")
    assert outcomes[0].metrics["stopped_before"] == 1 << 21
    failed = judged(ROWS, stop={"size": 1 << 21, "why": "memory"}, min_busbw_gbytes=99.0)
    assert "stopped before 2 MiB: the memory that is free" in failed[0].findings[0].says


@pytest.mark.parametrize("stop", [{"size": 1024, "why": "time"}, {"size": 1024, "why": "memory"}, None])
def test_a_sweep_of_nothing_is_no_success(stop: dict[str, Any] | None) -> None:
    outcomes = judged([], stop=stop)
    assert {outcome.verdict for outcome in outcomes} == {Verdict.FAIL}


def told(pool: RankPool, number: int, count: int, element: int = 7) -> None:
    """Rank `number` says that `count` elements were wrong."""
    first = {"element": element, "got": 11.0, "expected": 12.0} if count else None
    pool.members[number].steps["wrong"] = {"event": "wrong", "size": 4096, "count": count, "first": first}


@pytest.fixture
def three() -> tuple[RankPool, Context]:
    inventory = cluster(node("node-a"), node("node-b"), node("node-c"))
    return pool_of(inventory), context(inventory)


WRONG = (Verdict.FAIL, ("allreduce-wrong-data",))
BYSTANDER = (Verdict.UNKNOWN, ("peer-died",))


def test_right_data(three: tuple[RankPool, Context]) -> None:
    assert wrong_data_outcomes(*three) is None


def test_the_rank_whose_contribution_is_wrong(three: tuple[RankPool, Context]) -> None:
    pool, at = three
    for number in range(3):
        told(pool, number, 1)
    pool.extra["located"] = {"event": "located", "ranks": [1]}
    outcomes = wrong_data_outcomes(pool, at) or []
    assert verdicts(outcomes) == {"node-a": BYSTANDER, "node-b": WRONG, "node-c": BYSTANDER}
    assert "rank 1 contributes wrong data" in outcomes[1].findings[0].says
    assert (
        "rank 0 on node-a: 1 wrong element at 4 KiB; element 7 is 11, should be 12" in outcomes[1].findings[0].evidence
    )


def test_a_rank_that_alone_received_wrong_sums(three: tuple[RankPool, Context]) -> None:
    pool, at = three
    for number, count in enumerate((0, 0, 5)):
        told(pool, number, count)
    pool.extra["located"] = {"event": "located", "ranks": []}
    assert verdicts(wrong_data_outcomes(pool, at) or []) == {"node-a": BYSTANDER, "node-b": BYSTANDER, "node-c": WRONG}


def test_wrong_everywhere_and_nobody_to_blame(three: tuple[RankPool, Context]) -> None:
    pool, at = three
    for number in range(3):
        told(pool, number, 9)
    pool.extra["located"] = {"event": "located", "ranks": []}
    assert set(verdicts(wrong_data_outcomes(pool, at) or []).values()) == {WRONG}


def test_two_that_contribute_wrong_data(three: tuple[RankPool, Context]) -> None:
    pool, at = three
    for number in range(3):
        told(pool, number, 9)
    pool.extra["located"] = {"event": "located", "ranks": [0, 2]}
    outcomes = wrong_data_outcomes(pool, at) or []
    assert verdicts(outcomes) == {"node-a": WRONG, "node-b": BYSTANDER, "node-c": WRONG}
    assert "ranks 0, 2 contribute wrong data" in outcomes[0].findings[0].says


def test_wrong_data_of_an_earlier_stage_is_not_this_stages(three: tuple[RankPool, Context]) -> None:
    """`on_failure: continue`, and the next AllReduce uses the same ranks."""
    pool, at = three
    told(pool, 0, 9)
    for member in pool.members:
        member.remote = None
    pool.order({"do": "allreduce"})
    assert wrong_data_outcomes(pool, at) is None


def test_how_long_an_iteration_may_take_grows_with_its_size(three: tuple[RankPool, Context]) -> None:
    pool, _ = three
    before = {**row(1 << 20, 1.0), "time_us": 1e6}
    assert expected_iteration_seconds(pool, [before], None) == pytest.approx(1.0)
    for member in pool.members:
        at(member, 1 << 23, 1)
    assert expected_iteration_seconds(pool, [before], None) == pytest.approx(8.0)


def test_the_first_size_has_only_a_gate_to_be_measured_by(three: tuple[RankPool, Context]) -> None:
    pool, _ = three
    for member in pool.members:
        at(member, 3 * 10**9, 1)
    assert expected_iteration_seconds(pool, [], None) is None
    assert expected_iteration_seconds(pool, [], "auto") is None
    assert expected_iteration_seconds(pool, [], 0.0) is None
    assert expected_iteration_seconds(pool, [], 2.0) == pytest.approx(2.0), "each of three ranks sends 4/3 of 3 GB"
    assert promised_rate(pool, [], 2.0) == pytest.approx(6e9)
    assert promised_rate(pool, [], None) is None


def test_what_smaller_sizes_reached_is_less_of_a_promise_than_a_gate(three: tuple[RankPool, Context]) -> None:
    pool, _ = three
    before = {**row(3 * 10**6, 1.0), "time_us": 1e6}
    for member in pool.members:
        at(member, 3 * 10**6, 1)
    assert promised_rate(pool, [before], 1e-3) == pytest.approx(3e6), "and what they reached beyond it is none at all"
    assert promised_rate(pool, [before], None) == pytest.approx(12e6 / 8)
    assert promised_rate(pool, [before], 0.0) == pytest.approx(12e6 / 8), "a gate of nothing promises nothing"


def of_rank_program(name: str, *more: str, **space: Any) -> Callable[..., Any]:
    """A function of the program that runs on the nodes, which starts a rank when it is imported; with `more` that it
    calls, and other names that it uses."""
    source = (Path(runbook.node.__file__).parent / "rank.py").read_text()
    wanted = [n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name in (name, *more)]
    exec(compile(ast.Module(list(wanted), []), "rank.py", "exec", annotations.compiler_flag), space)
    return cast(Callable[..., Any], space[name])


def test_one_line_of_the_table() -> None:
    made = of_rank_program("result_row")(1_000_000, 250_000, 0.001, [0.001] * 99 + [0.1], 4)
    assert made["algbw"] == pytest.approx(1.0)
    assert made["busbw"] == pytest.approx(1.5)  # 2(n-1)/n of algbw, n = 4
    assert (made["time_us"], made["p50_us"], made["p99_us"]) == (1000.0, 1000.0, pytest.approx(1e5))
    assert of_rank_program("result_row")(8, 2, 0.001, [0.001], 1)["busbw"] == 0.0


def room(**files: str) -> int | None:
    """Bytes that a rank may use, where these are the files of its kernel."""
    told = {"/" + path.replace("__", "/").replace("_DOT_", "."): text for path, text in files.items()}
    groups = {"CONTROL_GROUPS": "/cgroup", "read": lambda path: told.get(path, "")}
    return cast("int | None", of_rank_program("available_memory", "left_in_groups", "numbers_in", **groups)())


def test_the_room_for_a_size_is_that_of_the_machine_or_of_the_control_groups_above() -> None:
    """The limit of a Slurm job or a service is not at the root, and not in the rank's own group."""
    machine = {"proc__meminfo": "MemTotal: 9000 kB\nMemAvailable: 8000 kB"}
    assert room() is None
    assert room(**machine) == 8000 * 1024
    mine = {**machine, "proc__self__cgroup": "0::/job_7/step_0"}
    limit = {"cgroup__job_7__memory_DOT_max": "5000000", "cgroup__job_7__memory_DOT_current": "2000000"}
    none = {"cgroup__job_7__step_0__memory_DOT_max": "max", "cgroup__job_7__step_0__memory_DOT_current": "1"}
    assert room(**mine, **none) == 8000 * 1024
    assert room(**mine, **none, **limit) == 3_000_000
    first = {"proc__self__cgroup": "5:cpu,cpuacct:/job_7\n4:memory:/job_7\n0::/"}
    limit = {
        "cgroup__memory__job_7__memory_DOT_limit_in_bytes": "4000000",
        "cgroup__memory__job_7__memory_DOT_usage_in_bytes": "1500000",
        "cgroup__memory__memory_DOT_limit_in_bytes": "9223372036854771712",
        "cgroup__memory__memory_DOT_usage_in_bytes": "7",
    }
    assert room(**{**machine, **first}, **limit) == 2_500_000


def test_files_that_were_read_leave_their_room_to_the_ranks() -> None:
    """A container that has read a data set has filled its limit with it."""
    full = {"cgroup__memory_DOT_max": "6000000", "cgroup__memory_DOT_current": "5900000"}
    stat = "anon 400000\ninactive_file 5000000\nactive_file 500000"
    own = {"proc__self__cgroup": "0::/"}
    assert room(**own, **full) == 100_000
    assert room(**own, **full, cgroup__memory_DOT_stat=stat) == 5_100_000


def test_a_sweep_keeps_to_its_budget() -> None:
    affordable = of_rank_program("affordable_iterations")
    sizes = [1 << n for n in range(10, 31)]
    assert affordable(1e-6, sizes, 20.0, 20) == 20
    assert affordable(1e-6, sizes, 20.0, 1000) == 1000
    assert affordable(60.0, sizes[-1:], 20.0, 20) == 2
    assert 2 <= affordable(0.5, sizes[-1:], 5.0, 20) <= 10
    assert affordable(0.0, sizes, 20.0, 20) == 20


def test_of_threads_that_come_and_go_only_those_that_stay_are_compared() -> None:
    growth = of_rank_program("longest_growth")
    assert growth({"7": 1.0, "8": 2.0}, {"7": 1.5, "8": 2.1, "9": 30.0}) == pytest.approx(0.5)
    assert growth({"7": 1.0}, {"8": 5.0}) == 0.0
    assert growth({}, {}) == 0.0
