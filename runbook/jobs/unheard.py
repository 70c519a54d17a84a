"""What is said of a training with `stall: auto` whose steps were never heard, so that a hang would go unnoticed?

A warning says so once. The ranks are looked at all the same. Before the first step a rank may load, compile or fetch
for long while the others wait for it in a collective, so only a rank that does nothing is named: in two looks a minute
apart it is stopped or sleeps in one place, none of its processes uses a CPU, reads or carries data, and other ranks
wait for it. Even that is only a warning, which ends nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from runbook.causes.catalogue import finding_for
from runbook.checks.context import Facts
from runbook.jobs.kept_processes import KeptProcesses
from runbook.jobs.progress import MIN_FIRST_STEP_STALL_S
from runbook.jobs.seen_processes import MIN_WORKING_CPU_SHARE, SeenProcess, seen_processes
from runbook.jobs.stall import MIN_EXCHANGE_BYTES_PER_S, accused_rank_findings, place_lines, state_lines
from runbook.model.units import seconds_text
from runbook.model.verdict import Finding, FindingsByNode

FIRST_UNHEARD_LOOK_S = MIN_FIRST_STEP_STALL_S
"""Seconds from the start to the first look: as long as a first step may take where its limit is known. Most programs
that print steps have printed one by then."""

CONFIRMING_LOOK_INTERVAL_S = 60.0
"""Seconds between two looks that have to agree."""

ONE_RANK_CAUSES = frozenset({"rank-stopped", "rank-behind", "program-error"})
"""Causes that name a rank by what it does. A finding that ranks make different calls is none of them: in a training
that goes on unheard, ranks make different calls as well."""


class Unheard:
    """Decides when the ranks of one attempt are looked at, and which warnings are new. Times are seconds since the
    ranks were started."""

    def __init__(self) -> None:
        self._next_s = FIRST_UNHEARD_LOOK_S
        self._said = False
        self._named = False
        self._before: set[str] = set()

    def due(self, unheard_s: float | None) -> bool:
        """Whether it is time for a look. `unheard_s`: the seconds without any step so far; None if a step was heard."""
        return unheard_s is not None and unheard_s > self._next_s

    def look(
        self, kept: KeptProcesses, frozen: Mapping[str, Facts], unheard_s: float
    ) -> Iterator[tuple[Sequence[str], Finding]]:
        """The new warnings, each with the nodes that it is about. `frozen`: what the nodes now say about their
        ranks."""
        found = _idle_rank_findings(kept, frozen)
        says = {one.says for of_node in found.values() for one in of_node}
        if not self._said:
            yield kept.nodes, _no_step_warning(kept, frozen, unheard_s)
        if says and says == self._before and not self._named:
            self._named = True
            yield from (((node,), one) for node, of_node in found.items() for one in of_node)
        again = says and says != self._before
        self._said, self._before = True, says
        self._next_s = unheard_s + CONFIRMING_LOOK_INTERVAL_S if again else 2 * unheard_s


def _no_step_warning(kept: KeptProcesses, frozen: Mapping[str, Facts], unheard_s: float) -> Finding:
    """The warning that no step was heard."""
    ranks = list(seen_processes(kept, frozen))
    says = f"no step was heard in the first {seconds_text(unheard_s)}: until one is, a hang is not noticed"
    return finding_for("insufficient-evidence", says, (*state_lines(ranks), *place_lines(ranks)), way="no-step")


def _idle_rank_findings(kept: KeptProcesses, frozen: Mapping[str, Facts]) -> FindingsByNode:
    """Findings by node about ranks that do nothing. Empty while some rank is not seen, or a rank that is not in a
    collective may be at work."""
    ranks = list(seen_processes(kept, frozen))
    if len(ranks) < sum(len(member.place.ranks) for member in kept.living):
        return {}  # some rank is not seen
    if any(one.state not in "Tt" and not one.together and _is_at_work(kept, one, frozen[one.node]) for one in ranks):
        return {}
    found = accused_rank_findings(ranks, "no step so far")
    return {node: named for node, each in found.items() if (named := [f for f in each if f.cause in ONE_RANK_CAUSES])}


def _is_at_work(kept: KeptProcesses, one: SeenProcess, facts: Facts) -> bool:
    """Whether a rank, or a process that it started, uses a CPU, reads, writes, or carries data. Processes without a
    rank in their environment, such as the launcher, and the bytes that were carried, are known only for all ranks of a
    launcher together, so they count for each of its ranks."""
    (rank,) = kept.place_of(one.label).ranks
    (first,) = (member.place.ranks[0] for member in kept.on(one.node) if rank in member.place.ranks)
    seen, seconds = facts["ranks"][str(first)], max(0.1, facts["seconds"])
    own = [process for process in seen["processes"] if process["rank"] in (rank, None)]
    busy = any(
        process["cpu"] >= MIN_WORKING_CPU_SHARE or process["copied"] / seconds >= MIN_EXCHANGE_BYTES_PER_S
        for process in own
    )
    return busy or (seen["moved"] or 0) / seconds >= MIN_EXCHANGE_BYTES_PER_S
