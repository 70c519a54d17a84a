"""Does torch load in every rank, and do all nodes have the same torch version and the same debug setting?"""

from __future__ import annotations

import time
from collections import Counter

from runbook.causes.catalogue import finding_for
from runbook.checks.context import Facts, no_answer_outcome
from runbook.checks.network.mesh import too_busy_finding
from runbook.checks.ranks.evidence import busy_program_lines, gather_evidence, stopped_process_finding
from runbook.checks.ranks.own_failure import own_failure_finding
from runbook.checks.ranks.pool import RankMember, RankPool
from runbook.model.command_quoting import shell_word
from runbook.model.inventory import Node
from runbook.model.verdict import Finding, Outcome, outcomes_with_findings

MAX_PROCESS_LOOK_AGE_S = 3.0
"""Seconds for which the last look at the processes of the ranks is recent enough."""
MIN_RUNNABLE_CPU_SHARE = 0.6
"""A share of a CPU. A process that is ready to run and gets less is short of CPU time."""


def is_ready_python(process: Facts) -> bool:
    """Whether the process is a running Python. While the inventory's activate line runs, the process has another
    name."""
    return process["state"] == "R" and str(process["comm"]).startswith("python")


def torch_findings(pool: RankPool | None, node: Node, imported: set[str]) -> tuple[list[Finding], list[Finding]]:
    """What keeps this node's ranks from importing torch: findings that fail the node, and findings that leave it
    unknown."""
    if pool is None:
        return [], []  # no rank was started
    if isinstance(error := pool.failures.get(node.name), BaseException):
        outcome = no_answer_outcome(node.name, "launch", error)
        return ([], list(outcome.findings)) if outcome.verdict.value == "unknown" else (list(outcome.findings), [])
    members = pool.on(node.name)
    if lost := next((member.lost for member in members if member.lost), None):
        return [], list(no_answer_outcome(node.name, "launch", lost).findings)
    failures = [
        finding for member in members if (finding := own_failure_finding(pool, member, "while importing torch"))
    ]
    if failures:
        return failures[:1], []
    if node.name in imported:
        return [], []
    if (
        time.monotonic() - pool.looked > MAX_PROCESS_LOOK_AGE_S
    ):  # one look serves all nodes: not one look for each node that is late
        gather_evidence(pool)
    waiting = [member for member in members if "imported" not in member.steps]
    for member in waiting:
        if member.asleep:
            return [stopped_process_finding(member, member.asleep, "while starting")], []
    starved = [one["cpu"] for member in waiting for one in member.processes if is_ready_python(one)]
    if starved and max(starved) < MIN_RUNNABLE_CPU_SHARE and (busy := busy_program_lines(pool.seen.get(node.name))):
        seen = f"torch was not imported in time: the rank was ready to run and had {max(starved):.0%} of a CPU"
        return [], [too_busy_finding(node.name, seen, busy)]
    silent = [member for member in waiting if "started" not in member.steps]
    if silent and any(process["comm"].startswith("python") for process in silent[0].processes):
        return [python_not_begun_finding(node, silent[0])], []
    if node.activate and silent == waiting:
        finding = finding_for(
            "activation-failed",
            f"on {node.name} the inventory's activate line does not end: {node.activate}",
            tuple(f"{p['comm']} (pid {p['pid']}) is running" for m in waiting[:1] for p in m.processes[:4])
            or ("it printed nothing",),
            way="hangs",
            node=node.name,
            activate=node.activate,
        )
        return [finding], []
    return [], [
        finding_for(
            "tool-output-unknown",
            f"torch was not imported on {node.name} in time",
            tuple(line for member in members[:1] for line in pool.lines(member)),
            way="torch",
            interpreter_typed=node.interpreter_typed,
        )
    ]


def python_not_begun_finding(node: Node, member: RankMember) -> Finding:
    """The finding for a rank whose launch script has ended and started Python, and none of whose own lines has run."""
    process = member.processes[0]
    return finding_for(
        "ranks-missing",
        f"{member.label} never came: Python (pid {process['pid']}) was started there and has not reached its "
        "first line",
        (
            (
                f"pid {process['pid']}: state {process['state']}, in {process['wchan'] or '?'}, "
                f"{process['cpu'] * 100:.0f} % CPU"
            ),
        ),
        way="python",
        node=node.name,
        interpreter_typed=node.interpreter_typed,
    )


def compare_torch_versions(outcomes: list[Outcome], pool: RankPool) -> list[Outcome]:
    """The outcomes with a finding for each node in the minority by torch version: ranks of different versions may not
    even agree on the wire format."""
    versions = {m.rank.node: str(m.steps["imported"]["torch"]) for m in pool.members if "imported" in m.steps}
    if len(set(versions.values())) < 2:
        return outcomes
    common = Counter(versions.values()).most_common(1)[0][0]
    evidence = tuple(f"{node}: torch {version}" for node, version in versions.items())
    public, _, build = common.partition("+")
    others = [node for node, version in versions.items() if version == common]
    found = {
        node: finding_for(
            "torch-version-mismatch",
            f"{node} runs torch {version}, {'the others' if len(others) > 1 else others[0]} {common}",
            evidence[:8],
            tuple(others),
            way="build" if build else "version",
            node=node,
            python=pool.inventory.node(node).interpreter_typed,
            version=shell_word(public),
            build=build,
            other=others[0],
        )
        for node, version in versions.items()
        if version != common
    }
    return outcomes_with_findings(outcomes, found)


def compare_debug_settings(outcomes: list[Outcome], pool: RankPool) -> list[Outcome]:
    """The outcomes with findings, when only some nodes have TORCH_DISTRIBUTED_DEBUG=DETAIL: on these torch makes
    further calls to compare what the ranks do, and waits in them for ranks that never come. The nodes in the minority
    are named; if both parts are equal, the nodes that have it."""
    detail = {m.rank.node: bool(m.steps["imported"].get("detail")) for m in pool.members if "imported" in m.steps}
    with_it = [node for node, has in detail.items() if has]
    without = [node for node, has in detail.items() if not has]
    if not with_it or not without:
        return outcomes
    odd, others = (with_it, without) if len(with_it) <= len(without) else (without, with_it)
    has, have = ("has", "not") if odd is with_it else ("lacks", "have it" if len(others) > 1 else "has it")
    whose = "the others" if len(others) > 1 else others[0]
    evidence = tuple(f"{node}: {'DETAIL' if has else 'not DETAIL'}" for node, has in detail.items())
    found = {
        node: finding_for(
            "mismatched-collectives",
            f"{node} {has} TORCH_DISTRIBUTED_DEBUG=DETAIL, {whose} {have}: torch makes further calls on "
            "the ranks that have it, and these wait there for ever",
            evidence[:8],
            tuple(others),
            way="debug",
            node=with_it[0],
        )
        for node in odd
    }
    return outcomes_with_findings(outcomes, found)
