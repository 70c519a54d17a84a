"""Does torch load in every rank, and is it the same version everywhere?"""

from __future__ import annotations

import statistics

from runbook.checks.context import no_answer
from runbook.checks.gang import Gang
from runbook.checks.halts import own_failure, stopped
from runbook.model.inventory import Node
from runbook.model.verdict import Finding, Outcome


def torch_findings(gang: Gang | None, node: Node, imported: set[str]) -> tuple[list[Finding], list[Finding]]:
    """What stands between this node's ranks and an imported torch: failures, and what could not be found out."""
    if gang is None:
        return [], []  # some node could not be reached: nothing was started, and that node's outcome says why
    if isinstance(error := gang.failures.get(node.name), BaseException):
        outcome = no_answer(node.name, "launch", error)
        return ([], list(outcome.findings)) if outcome.verdict.value == "unknown" else (list(outcome.findings), [])
    members = [member for member in gang.members if member.rank.node == node.name]
    failures = [finding for member in members if (finding := own_failure(gang, member, "while importing torch"))]
    if failures:
        return failures[:1], []
    if node.name in imported:
        return [], []
    gang.inspect()
    waiting = [member for member in members if "imported" not in member.steps]
    for member in waiting:
        asleep = next((process for process in member.processes if process["state"] in "TtD"), None)
        if asleep:
            return [stopped(member, asleep, "while starting")], []
    if node.activate and all("started" not in member.steps for member in waiting):
        finding = Finding(
            "activation-failed",
            f"on {node.name} the inventory's activate line does not come to an end: {node.activate}",
            f"log in as the same user and run it with its input closed: `{node.activate} </dev/null`; mend it there or in "
            "the inventory",
            tuple(f"{p['comm']} (pid {p['pid']}) is running" for m in waiting[:1] for p in m.processes[:4])
            or ("it printed nothing",),
        )
        return [finding], []
    return [], [
        Finding(
            "tool-output-unknown",
            f"torch was not imported on {node.name} in time",
            f"time it by hand: `time {node.interpreter} -c 'import torch'`; a slow network file system is the usual reason",
            tuple(line for member in members[:1] for line in gang.lines(member)),
        )
    ]


def compare_versions(outcomes: list[Outcome], gang: Gang) -> list[Outcome]:
    """Nodes with different torch versions: they may not even agree on the wire format. The minority is named."""
    versions = {m.rank.node: str(m.steps["imported"]["torch"]) for m in gang.members if "imported" in m.steps}
    if len(set(versions.values())) < 2:
        return outcomes
    common = statistics.mode(versions.values())
    evidence = tuple(f"{node}: torch {version}" for node, version in versions.items())
    changed = []
    for outcome in outcomes:
        version = versions.get(outcome.node)
        if version in (None, common):
            changed.append(outcome)
            continue
        finding = Finding(
            "torch-version-mismatch",
            f"{outcome.node} runs torch {version}, the others {common}",
            f"install one version everywhere: `{gang.inventory.node(outcome.node).interpreter} -m pip install torch=={common}`",
            evidence[:8],
        )
        changed.append(Outcome.failed(outcome.node, *outcome.findings, finding, metrics=outcome.metrics))
    return changed
