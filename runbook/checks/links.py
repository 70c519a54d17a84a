"""links: which node or which link is slow: bandwidth and latency between nodes, in rounds in which each node has one
partner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from runbook.causes.catalogue import finding_for
from runbook.checks.bandwidth.adapters import NodeAdapters, ask_adapters
from runbook.checks.bandwidth.link_findings import (
    LinkFindings,
    gbps_text,
    link_metrics,
    link_search_findings,
    measurements_csv,
)
from runbook.checks.bandwidth.normal_busbw import bandwidth_setting, link_gbps_floor
from runbook.checks.bandwidth.slow_link_search import (
    MeasuringRanks,
    Search,
    Unfinished,
    search_slow_links,
    switch_by_node,
)
from runbook.checks.bandwidth.slow_links import Link
from runbook.checks.base import Check, argument, pairs_argument
from runbook.checks.connection import join_ranks
from runbook.checks.context import Context
from runbook.checks.ranks.pool import Halt, RankPool, dismiss_pool, start_pool
from runbook.model.safe_files import BadName, write_file_below
from runbook.model.units import count_text, significant_digits_text
from runbook.model.verdict import Finding, Outcome

DEFAULT_DIRECTION_S = 0.5
"""How many seconds one direction between two nodes is measured, unless the stage says otherwise."""
LATENCY_ROUND_TRIPS = 20
"""How many round trips of a few bytes are made to measure the latency."""

AFTER_MEASURING_RESERVE_S = 5.0
"""Seconds of the stage's time that are kept for what follows the measuring."""


@dataclass(frozen=True)
class Links(Check):
    id: ClassVar[str] = "links"
    timeout_s: ClassVar[float] = 300.0
    needs_ranks: ClassVar[bool] = True
    judges_together: ClassVar[bool] = True

    seconds: float = argument(
        DEFAULT_DIRECTION_S, "seconds", "how long one way between two nodes is measured, for example 2s"
    )
    min_gbps: float | None = argument(
        None, "number", "fail where the links carry less, in Gbit/s a node and direction, for example 180"
    )
    pairs: str = pairs_argument()

    def __post_init__(self) -> None:
        if not 0.05 <= self.seconds <= 60:
            raise ValueError("`seconds` must lie between 50ms and 60s")

    def run(self, at: Context) -> list[Outcome]:
        pool = start_pool(at.run, at.inventory, at.script)
        if problem := join_ranks(pool, at):
            return problem
        proven: list[Outcome] = []

        def go_on(halt: Halt) -> bool:
            from runbook.checks.ranks.halts import outcomes_of_halt

            proven.extend(outcomes_of_halt(pool, halt, f"during {at.stage}"))
            return not proven

        try:
            ranks = MeasuringRanks(pool, at, at.left_s - AFTER_MEASURING_RESERVE_S, go_on)
            done = search_slow_links(
                ranks,
                pool.members,
                seconds=self.seconds,
                leaf_of=switch_by_node(at.nodes),
                every_pair=self.pairs == "all",
                trips=LATENCY_ROUND_TRIPS,
                both=True,
                say=at.say,
            )
        except Unfinished as error:
            dismiss_pool(at.run)  # a rank may wait for ever; the next stage starts new ranks
            return proven or [Outcome.unknown(node.name, unmeasured_links_finding(str(error))) for node in at.nodes]
        if done.stopped:
            dismiss_pool(at.run)
        try:
            write_file_below(at.run.run_dir, "links.csv", data=measurements_csv(done))
        except (OSError, BadName) as error:
            at.say(f"links.csv is not written: {error}")
        asked = ask_adapters(at)
        wires = {name: said for name, said in asked.items() if isinstance(said, NodeAdapters)}
        judged = link_search_findings(done, pool.members, wires, self._floor(pool, at, wires))
        return link_outcomes(at, done, judged)

    def _floor(self, pool: RankPool, at: Context, wires: Mapping[str, NodeAdapters]) -> float | None:
        """Gbit/s that every node should reach in each direction: from `min_gbps` or the table of normal numbers."""
        if self.min_gbps is not None:
            return self.min_gbps
        if len(wires) < len(at.nodes):
            return None
        promised = at.inventory.infiniband.min_rate_gbps if at.inventory.infiniband else None
        return link_gbps_floor(bandwidth_setting(pool, at, wires), promised)


def link_outcomes(at: Context, done: Search, judged: LinkFindings) -> list[Outcome]:
    """One outcome a node. A search that was cut short passes only the nodes that it had cleared by then."""
    normal = done.verdict.normal
    found: list[Outcome] = []
    for node in at.nodes:
        own = [each for each in done.found if each.link.source == node.name]
        metrics: dict[str, object] = {
            "links": link_metrics(own),
            "median_gbps": round(normal.median * 8, 6),
            "noise": round(normal.sigma, 4),
            "rounds": done.rounds,
        }
        warnings = judged.warnings.get(node.name, [])
        if findings := judged.findings.get(node.name):
            found.append(Outcome.failed(node.name, *findings, metrics=metrics, warnings=warnings))
        elif len(done.nodes) < 2:
            found.append(Outcome.passed(node.name, "one node has no link to another", metrics=metrics))
        elif not done.measured:
            found.append(
                Outcome.unknown(
                    node.name, unmeasured_links_finding(done.stopped or "nothing was measured"), metrics=metrics
                )
            )
        elif reason := judged.unsettled.get(node.name):
            found.append(Outcome.unknown(node.name, reason, metrics=metrics))
        else:
            found.append(Outcome.passed(node.name, links_proof(done), metrics=metrics, warnings=warnings))
    return found


def links_proof(done: Search) -> str:
    """What the search proves, in the same words for every node, so that a report folds a thousand nodes into one
    line."""
    verdict, best = done.verdict, done.best
    pairs = {frozenset(link.ends) for link in best if Link(link.destination, link.source) in best}
    every = len(done.nodes) * (len(done.nodes) - 1) // 2
    among = "every pair" if len(pairs) == every else f"{len(pairs):,} of {every:,} pairs"
    delays = [each.moved.us for each in done.found if each.moved.us is not None]
    latency = f", {significant_digits_text(sorted(delays)[len(delays) // 2])} us" if delays else ""
    says = (
        f"each way as fast as others: median {gbps_text(verdict.normal.median)}, noise "
        f"{verdict.normal.sigma:.1%}{latency}; "
        f"{among} in {count_text(done.rounds, 'round')}"
    )
    return says if verdict.clean else f"{says}; no measurement points to it"


def unmeasured_links_finding(why: str) -> Finding:
    """The finding for links that could not be measured; `why` is the reason in words."""
    return finding_for("insufficient-evidence", f"the links could not be measured: {why}", way="silent-ranks")
