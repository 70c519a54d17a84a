"""reach: every node can be logged in to and has what the job needs. Runs before the playbook's own stages."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar

from runbook.causes.catalogue import finding_for
from runbook.checks.base import Check
from runbook.checks.context import TORCH_IMPORT_TIMEOUT_S, Context, Facts, no_answer_outcome
from runbook.checks.reach.gpus import (
    GpuJudgement,
    has_only_sound_gpus,
    look_at_gpus,
    shared_gpu_findings,
    torch_findings_beside_gpus,
)
from runbook.checks.reach.interfaces import (
    entered_pod_findings,
    interface_findings,
    pod_scope_text,
    separate_network_findings,
)
from runbook.checks.reach.workdir_and_limits import limit_findings, run_folder_findings, unusable_python_finding
from runbook.launch.ranks import socket_interface
from runbook.model.grouping import values_by_key
from runbook.model.inventory import Node
from runbook.model.units import count_text
from runbook.model.verdict import Finding, Outcome
from runbook.parsers.clock import CLOCK_OFFSET_FAIL_S, CLOCK_OFFSET_WARN_S
from runbook.transport.node_answers import HostFacts

if TYPE_CHECKING:
    from runbook.checks.ranks.pool import RankPool
    from runbook.transport.kubernetes_pods import Pod


MAX_LOGIN_TIME_SHARE = 0.75
"""The share of the stage's time that logins may take. The rest is for questions to the nodes that are reached by
then."""

IMPORT_BESIDE_FAULT_TIMEOUT_S = 3.0
"""Seconds to wait for torch when the run is known to stop here: a node is out of reach, or a GPU is at fault and a rank
may hang on that very GPU."""


@dataclass(frozen=True)
class Reach(Check):
    id: ClassVar[str] = "reach"
    timeout_s: ClassVar[float] = 120.0
    judges_together: ClassVar[bool] = True

    def run(self, at: Context) -> list[Outcome]:
        at.run.site.open(at.nodes, timeout_s=MAX_LOGIN_TIME_SHARE * at.left_s)
        reached = [node for node in at.nodes if node.name in at.run.site.sessions]
        at.say(f"logged in to {len(reached)} of {len(at.nodes)} nodes")
        pool = None
        if at.needs_pool is not None and any(node in reached for node in at.needs_pool.nodes):
            # Torch takes seconds to import: the ranks do that while we look at the rest. They do not join here, so a
            # node that was not reached hides nothing about the others.
            from runbook.checks.ranks.pool import start_pool

            pool = start_pool(at.run, at.needs_pool, at.script)
        with ThreadPoolExecutor(1, "gpus") as beside:
            looking = beside.submit(look_at_gpus, at)
            facts = at.learn_hosts()
            gpus = looking.result()
        clocks = at.each(lambda node: at.session(node).clock(), reached)
        compared = Clocks({name: value[0] for name, value in clocks.items() if isinstance(value, tuple)})
        imported: set[str] = set()
        waited = has_only_sound_gpus(gpus) and len(reached) == len(at.nodes)
        if pool:
            from runbook.checks.ranks.evidence import gather_evidence

            at.say("importing torch")
            patience = TORCH_IMPORT_TIMEOUT_S if waited else IMPORT_BESIDE_FAULT_TIMEOUT_S
            pool.gather("imported", timeout_s=min(patience, at.left_s), look=partial(gather_evidence, pool))
            late = {member.rank.node for member in pool.members if "imported" not in member.steps}
            imported = {member.rank.node for member in pool.members} - late
        learned = Learned(at, facts, compared, gpus, pool, imported, waited=waited)
        outcomes = [learned.outcome(node) for node in at.nodes]
        if pool is None:
            return outcomes
        from runbook.checks.reach.torch import compare_debug_settings, compare_torch_versions

        return compare_debug_settings(compare_torch_versions(outcomes, pool), pool)


@dataclass(frozen=True)
class Learned:
    """What was learned about all nodes, and the outcome of each node from it. `imported`: nodes on which every rank has
    imported torch. `waited`: whether the ranks had the full time for that."""

    at: Context
    facts: Mapping[str, HostFacts | Outcome]
    clocks: Clocks
    gpus: Mapping[str, GpuJudgement]
    pool: RankPool | None
    imported: set[str]
    waited: bool

    @cached_property
    def _of_a_machine(self) -> Mapping[str, Sequence[Node]]:
        """The nodes of each machine, by its id."""
        return values_by_key((self.at.machine(node.name), node) for node in self.at.nodes)

    def outcome(self, node: Node) -> Outcome:
        """The outcome of one node."""
        session, facts = self.at.run.site.sessions.get(node.name), self.facts.get(node.name)
        if session is None:
            return no_answer_outcome(node.name, "login", self.at.run.site.failures[node.name])
        if "folder_error" in session.hello:
            return Outcome.failed(node.name, *run_folder_findings(node, session.hello))
        if isinstance(facts, Outcome):
            return facts
        if facts is None:
            return no_answer_outcome(node.name, "host_facts", TimeoutError())
        return self._judge(node, session.hello, facts)

    def _judge(self, node: Node, hello: Facts, facts: HostFacts) -> Outcome:
        at, pod = self.at, self.at.run.site.pod(node.name)
        gpus = self.gpus.get(node.name, GpuJudgement())
        findings = run_folder_findings(node, hello)
        no_room = bool(findings)
        warnings: list[str] = []
        if clock := self.clocks.finding(node.name, warnings):
            findings.append(clock)
        findings += separate_network_findings(at.inventory, node, facts, pod) or interface_findings(
            at.inventory, node, facts
        )
        findings += shared_gpu_findings(at, node, self._of_a_machine[at.machine(node.name)])
        findings += limit_findings(at.inventory, node, facts, warnings)
        findings += gpus.findings
        unknown = [*entered_pod_findings(at.inventory, node, facts, pod), *gpus.unknown]
        warnings += gpus.warnings
        python = unusable_python_finding(node, hello, at.session(node).complaint)
        torch = None
        if python is not None:
            findings.append(python)
        elif at.needs_pool is not None and node in at.needs_pool.nodes and not no_room:
            failed, unproven = torch_findings_beside_gpus(self.pool, node, self.imported, self.gpus, waited=self.waited)
            findings += failed
            unknown += unproven
            torch = self._torch(node)
        metrics = self._metrics(node, hello, facts, pod, torch)
        if findings:
            return Outcome.failed(node.name, *findings, *unknown, metrics=metrics, warnings=warnings)
        if unknown:
            return Outcome.unknown(node.name, *unknown, metrics=metrics)
        return Outcome.passed(node.name, self._proof(node, hello, pod, torch), metrics=metrics, warnings=warnings)

    def _torch(self, node: Node) -> Facts | None:
        """What the first rank of the node said when it had imported torch; None unless all its ranks have."""
        if not self.pool or node.name not in self.imported:
            return None
        return next(m.steps["imported"] for m in self.pool.on(node.name) if "imported" in m.steps)

    def _metrics(self, node: Node, hello: Facts, facts: HostFacts, pod: Pod | None, torch: Facts | None) -> Facts:
        metrics: Facts = {
            "hostname": facts["hostname"],
            "python": hello["python"],
            "clock_offset_s": round(self.clocks.offsets.get(node.name, 0.0), 4),
        }
        if pod:
            metrics |= {"pod": pod.name, "machine": pod.machine, "host_network": pod.host_network}
        if node.name in self.gpus and self.gpus[node.name].driver:
            metrics["nvidia_driver"] = self.gpus[node.name].driver
        return metrics | {key: torch[key] for key in ("torch", "nccl", "gpus", "gpu")} if torch else metrics

    def _proof(self, node: Node, hello: Facts, pod: Pod | None, torch: Facts | None) -> str:
        """What is proven about a node, in words."""
        backend = self.at.inventory.rendezvous.backend
        parts = [
            f"Python {torch['python']}, torch {torch['torch']}, {backend}" if torch else f"Python {hello['python']}"
        ]
        if node.gpus:
            parts.append(count_text(len(node.gpus), "GPU"))
        parts.append("workdir writable")
        if interface := socket_interface(self.at.inventory, node):
            parts.append(f"interface {interface}")
        if pod:
            parts.append(pod_scope_text(pod))
        if clock := self.clocks.proof(node.name):
            parts.append(clock)
        return ", ".join(parts)


class Clocks:
    """The clocks of all nodes: by name, the seconds that a node's clock is ahead of this machine's."""

    def __init__(self, offsets: Mapping[str, float]) -> None:
        self.offsets = offsets
        self.right = majority_clock_offset(offsets)
        self._seen = tuple(
            f"{n}: {offset:+.1f} s from this machine's clock" for n, offset in sorted(offsets.items())[:8]
        )
        self._apart = max(offsets.values(), default=0.0) - min(offsets.values(), default=0.0)

    def finding(self, node: str, warnings: list[str]) -> Finding | None:
        """The finding for a clock that differs from the one that most clocks agree with, or None. A small difference is
        added to `warnings`."""
        if node not in self.offsets:
            return None
        skew = self.offsets[node] - self.right
        if abs(skew) < CLOCK_OFFSET_WARN_S:
            return None
        way = "ahead of" if skew > 0 else "behind"
        # Two clocks that are each a little off, in different directions, are far from each other.
        far = abs(skew) >= CLOCK_OFFSET_FAIL_S or (self._apart >= CLOCK_OFFSET_FAIL_S and abs(skew) >= self._apart / 2)
        if not far or len(self.offsets) == 1:
            warnings.append(f"clock is {abs(skew):.1f} s {way} the others: start chrony or systemd-timesyncd")
            return None
        return finding_for(
            "clock-skew", f"the clock of {node} is {abs(skew):.0f} s {way} the others", self._seen, node=node
        )

    def proof(self, node: str) -> str | None:
        """The words for a clock that is right, else None. They mention it when this machine's clock is wrong, which is
        no node's fault."""
        if node not in self.offsets or abs(self.offsets[node] - self.right) >= CLOCK_OFFSET_WARN_S:
            return None
        if abs(self.right) < CLOCK_OFFSET_WARN_S:
            return "clock in step"
        way = "behind" if self.right > 0 else "ahead"
        return f"clock in step with the nodes (this machine's is {abs(self.right):.0f} s {way})"


def majority_clock_offset(offsets: Mapping[str, float]) -> float:
    """The time that most clocks agree with, this machine's included, as seconds ahead of this machine's clock."""
    clocks = [0.0, *offsets.values()]  # this machine's is first: it wins a tie
    order = sorted(clocks)
    return max(
        clocks,
        key=lambda clock: (
            bisect_left(order, clock + CLOCK_OFFSET_WARN_S) - bisect_right(order, clock - CLOCK_OFFSET_WARN_S)
        ),
    )
