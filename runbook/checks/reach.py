"""reach: every node can be logged in to and has what the job needs. Runs before the playbook's own stages."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from runbook.checks.base import Check
from runbook.checks.context import Context, Facts, no_answer
from runbook.checks.readiness.clock import Clocks
from runbook.checks.readiness.gpus.compare import all_sound, look_at_gpus, shared_gpus, torch_beside_gpus
from runbook.checks.readiness.gpus.judge import GpuJudgement
from runbook.checks.readiness.interfaces import apart_findings, interface_findings, of_pod
from runbook.checks.readiness.limits import limit_findings
from runbook.checks.readiness.python import python_finding
from runbook.checks.readiness.workdir import folder_findings
from runbook.launch.ranks import socket_interface
from runbook.model.inventory import Node
from runbook.model.verdict import Finding, Outcome

if TYPE_CHECKING:  # what is for ranks takes a tenth of a second to import: runs without any do without it
    from runbook.checks.ranks.pool import RankPool

LOGIN_SHARE = 0.75
"""Of the stage's time: what is known of the nodes that were reached by then is still to be asked."""

IMPORT_TIMEOUT_S = 90.0
IMPORT_BESIDE_FAULT_S = 3.0
"""How long torch is waited for when the run is known to stop here: a node is out of reach, or a GPU is at fault, and a
rank may hang on that very GPU."""


@dataclass(frozen=True)
class Reach(Check):
    id: ClassVar[str] = "reach"
    timeout_s: ClassVar[float] = 120.0
    judges_together: ClassVar[bool] = True

    def run(self, at: Context) -> list[Outcome]:
        at.run.site.open(at.nodes, timeout_s=LOGIN_SHARE * at.left_s)
        reached = [node for node in at.nodes if node.name in at.run.site.sessions]
        at.say(f"logged in to {len(reached)} of {len(at.nodes)} nodes")
        pool = None
        if at.needs_pool is not None and any(node in reached for node in at.needs_pool.nodes):
            # torch takes seconds to import: the ranks do that while we look at the rest. They do not join here, so a
            # node that was not reached hides nothing about the others.
            from runbook.checks.ranks.pool import start_pool

            pool = start_pool(at.run, at.needs_pool, at.script)
        with ThreadPoolExecutor(1, "gpus") as beside:
            looking = beside.submit(look_at_gpus, at)
            facts = at.ask(
                "reach", lambda node: {"address": node.address} if node.place != node.name else {}, timeout_s=30.0
            )
            gpus = looking.result()
        clocks = at.each(lambda node: at.session(node).clock(), reached)
        compared = Clocks({name: value[0] for name, value in clocks.items() if isinstance(value, tuple)})
        for name, found in facts.items():
            if not isinstance(found, Outcome):
                at.run.facts[name] = found
        imported: set[str] = set()
        waited = all_sound(gpus) and len(reached) == len(at.nodes)
        if pool:
            from runbook.checks.ranks.evidence import gather

            at.say("importing torch")
            patience = IMPORT_TIMEOUT_S if waited else IMPORT_BESIDE_FAULT_S
            pool.gather("imported", timeout_s=min(patience, at.left_s), look=partial(gather, pool))
            late = {member.rank.node for member in pool.members if "imported" not in member.steps}
            imported = {member.rank.node for member in pool.members} - late
        outcomes = [
            self._node(at, node, facts.get(node.name), compared, pool, imported, gpus, waited) for node in at.nodes
        ]
        if pool is None:
            return outcomes
        from runbook.checks.readiness.torch import compare_versions

        return compare_versions(outcomes, pool)

    def _node(
        self,
        at: Context,
        node: Node,
        facts: Facts | Outcome | None,
        clocks: Clocks,
        pool: RankPool | None,
        imported: set[str],
        gpus: Mapping[str, GpuJudgement],
        waited: bool,
    ) -> Outcome:
        session = at.run.site.sessions.get(node.name)
        if session is None:
            return no_answer(node.name, "login", at.run.site.failures[node.name])
        if "folder_error" in session.hello:
            return Outcome.failed(node.name, *folder_findings(node, session.hello))
        if isinstance(facts, Outcome):
            return facts
        if facts is None:
            return no_answer(node.name, "reach", TimeoutError())
        findings = folder_findings(node, session.hello)
        no_room = bool(findings)
        warnings: list[str] = []
        clock = clocks.finding(node.name, warnings)
        if clock:
            findings.append(clock)
        pod = at.run.site.pods.entered(node.name)
        findings += apart_findings(at.inventory, node, facts, pod) or interface_findings(at.inventory, node, facts)
        findings += shared_gpus(at, node)
        findings += limit_findings(at.inventory, node, facts, warnings)
        unknown: list[Finding] = []
        judged = gpus.get(node.name, GpuJudgement())
        findings += judged.findings
        unknown += judged.unknown
        warnings += judged.warnings
        said = f"Python {session.hello['python']}"
        metrics: dict[str, object] = {
            "hostname": facts["hostname"],
            "python": session.hello["python"],
            "clock_offset_s": round(clocks.offsets.get(node.name, 0.0), 4),
        }
        if pod:
            metrics |= {"pod": pod.name, "machine": pod.machine, "host_network": pod.host_network}
        if judged.driver:
            metrics["nvidia_driver"] = judged.driver
        python = python_finding(node, session.hello)
        if python is not None:
            findings.append(python)
        elif at.needs_pool is not None and node in at.needs_pool.nodes and not no_room:
            torch, unproven = torch_beside_gpus(pool, node, imported, gpus, waited=waited)
            findings += torch
            unknown += unproven
            if pool and node.name in imported:
                step = next(m.steps["imported"] for m in pool.on(node.name) if "imported" in m.steps)
                said = f"Python {step['python']}, torch {step['torch']}, {at.inventory.rendezvous.backend}"
                metrics |= {"torch": step["torch"], "nccl": step["nccl"], "gpus": step["gpus"], "gpu": step["gpu"]}
        if findings:
            return Outcome.failed(node.name, *findings, *unknown, metrics=metrics, warnings=warnings)
        if unknown:
            return Outcome.unknown(node.name, *unknown, metrics=metrics)
        parts = [said]
        if node.gpus:
            parts.append(f"{len(node.gpus)} GPU" + ("s" if len(node.gpus) > 1 else ""))
        parts.append("workdir writable")
        if interface := socket_interface(at.inventory, node):
            parts.append(f"interface {interface}")
        if pod:
            parts.append(of_pod(pod))
        if proof := clocks.proof(node.name):
            parts.append(proof)
        return Outcome.passed(node.name, ", ".join(parts), metrics=metrics, warnings=warnings)
