"""How does a run go on without its bad nodes: which nodes are left out (`when_bad: drop`), and which stages run again
for the others?

A `fail` proves a node bad by a finding of its own. Findings that two nodes have about each other are about the
connection between them: the fewest nodes are left out without which no such connection is left. An `unknown` proves
nothing. An unknown node cannot take part either, so it is left out if no other node is to blame, but it is never called
bad. If all nodes fail alike, something that they share is to blame, and none is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from runbook.causes.catalogue import causes_of_kind
from runbook.engine.plan import Plan, PlannedStage, plan_without
from runbook.model.errors import FilesWrong, RunbookError
from runbook.model.node_ranges import fold
from runbook.model.verdict import Finding, Outcome, Verdict

CONTROLLER_CAUSES = frozenset({"controller-paused"})
"""Causes that lie on the controller: no node is left out because of them."""

MAX_EXACT_PAIRS = 24
"""The most bad pairs for which the fewest nodes are searched exactly. With more, the node with the most pairs is left
out first, which nearly always gives the fewest."""


@dataclass(frozen=True, slots=True)
class Suspects:
    """The nodes that may be left out, each with the reason in words: nodes that are proven `bad`, `ends` of bad
    connections, and nodes that are `unknown`."""

    bad: Mapping[str, str] = field(default_factory=dict)
    ends: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def leaving(self) -> Mapping[str, str]:
        """The nodes without which the run goes on. Unknown nodes are among them only if nothing is proven: an unknown
        may follow from a proven fault."""
        return {**self.bad, **self.ends} or self.unknown


class NotDroppedError(RunbookError):
    """The run stops although it was to go on without its bad nodes; the message says why."""


def suspected_nodes(outcomes: Sequence[Outcome]) -> Suspects:
    """The nodes that may be left out after these outcomes: one for each node of a stage, in rank order."""
    failed = {outcome.node: outcome.findings for outcome in outcomes if outcome.verdict is Verdict.FAIL}
    unknown = {
        outcome.node: finding.cause
        for outcome in outcomes
        if outcome.verdict is Verdict.UNKNOWN
        for finding in reversed(outcome.findings)
        if finding.cause not in causes_of_kind("consequence") and finding.cause not in CONTROLLER_CAUSES
    }
    if have_common_cause([failed.get(outcome.node, ()) for outcome in outcomes]):
        return Suspects(unknown=unknown)
    bad: dict[str, str] = {}
    between: dict[frozenset[str], str] = {}
    for node, findings in failed.items():
        for finding in findings:
            if is_mutual_finding(node, finding, failed):
                between |= {frozenset((node, peer)): finding.cause for peer in finding.peers}
            else:
                bad.setdefault(node, finding.cause)
    rank = {outcome.node: place for place, outcome in enumerate(outcomes)}
    left = [pair for pair in between if not pair & bad.keys()]
    going = fewest_nodes_to_drop(left, rank)
    ends: dict[str, str] = {}
    for node in sorted(going, key=rank.__getitem__):
        mine = [pair for pair in left if node in pair]
        others = sorted((other for pair in mine for other in pair - {node}), key=rank.__getitem__)
        ends[node] = f"{between[mine[0]]} with {fold(others)}"
    return Suspects(bad, ends, unknown)


def have_common_cause(findings: Sequence[Collection[Finding]]) -> bool:
    """Whether there are several nodes and all of them have a cause in common. `findings`: those of each node."""
    causes = [{finding.cause for finding in of} for of in findings]
    return len(causes) > 1 and bool(set.intersection(*causes))


def is_mutual_finding(node: str, finding: Finding, failed: Mapping[str, Collection[Finding]]) -> bool:
    """Whether all peers of the finding report the same cause about this node."""
    return bool(finding.peers) and all(
        any(other.cause == finding.cause and node in other.peers for other in failed.get(peer, ()))
        for peer in finding.peers
    )


def fewest_nodes_to_drop(pairs: Collection[frozenset[str]], rank: Mapping[str, int]) -> frozenset[str]:
    """The fewest nodes whose removal breaks every pair; of several choices the nodes with the latest ranks, so that the
    master stays. Beyond MAX_EXACT_PAIRS pairs the result may not be the fewest."""
    left, gone = list(pairs), set[str]()
    while left:
        degree = Counter(node for pair in left for node in pair)
        node = max(degree, key=lambda name: (degree[name], rank[name]))
        if degree[node] == 1:  # no two pairs have a node in common
            return frozenset(gone.union(max(pair, key=rank.__getitem__) for pair in left))
        rest = [pair for pair in left if node not in pair]
        if len(left) <= MAX_EXACT_PAIRS:
            others = frozenset(other for pair in left if node in pair for other in pair - {node})
            without_it = fewest_nodes_to_drop([pair for pair in left if not pair & others], rank) | others
            choices = (fewest_nodes_to_drop(rest, rank) | {node}, without_it)
            return frozenset(gone) | min(choices, key=lambda names: (len(names), sorted(-rank[name] for name in names)))
        gone.add(node)
        left = rest
    return frozenset(gone)


def plan_for_rest(plan: Plan, stage: PlannedStage, leaving: Collection[str]) -> Plan:
    """The plan without the `leaving` nodes. Raises NotDroppedError if the run cannot go on without them."""
    if not leaving:
        raise NotDroppedError(f"no single node of {stage.name} is to blame")
    nodes = [node.name for node in plan.inventory.nodes]
    left = [name for name in nodes if name not in leaving]
    who = fold(name for name in nodes if name in leaving)
    if len(left) < stage.min_nodes:
        number = f"{len(left)} of {len(nodes)} nodes"
        raise NotDroppedError(f"without {who} only {number} would be left, and `min_nodes` is {stage.min_nodes}")
    check_master_may_leave(plan, leaving)
    try:
        return plan_without(plan, leaving)
    except FilesWrong as wrong:
        raise NotDroppedError(f"without {who} the playbook does not work: {wrong.problems[0].message}") from wrong


def check_master_may_leave(plan: Plan, leaving: Collection[str]) -> None:
    """Raises NotDroppedError if the master is one of the `leaving` nodes, and no other node can lead."""
    rendezvous = plan.inventory.rendezvous
    if rendezvous.master in leaving:
        where = f"{rendezvous.master} is the master, and the ranks meet at"
        master = plan.inventory.master
        if rendezvous.address not in (master.address, master.name, master.ssh.host):
            address = f"`rendezvous: address: {rendezvous.address}`, which no other node has"
            raise NotDroppedError(f"{where} {address}: name another `master:` and its address")
        if any("MASTER_ADDR" in env for env in (plan.inventory.env, *(n.env for n in plan.inventory.nodes))):
            raise NotDroppedError(f"{where} what `env: MASTER_ADDR` says: take it out, and another node can lead")


def must_run_again(before: PlannedStage, after: PlannedStage, outcomes: Iterable[Outcome]) -> bool:
    """Whether a finished stage has to run again for the nodes that are left (`after`): if not all of these passed, if
    it judged all nodes together, or if it looked at a master that is gone."""
    own = {outcome.node: outcome.verdict for outcome in outcomes}
    if any(own.get(node, Verdict.UNKNOWN).stops for node in after.nodes):
        return True
    return before.check.judges_together or has_rendezvous_moved(before, after)


def has_rendezvous_moved(before: PlannedStage, after: PlannedStage) -> bool:
    """Whether the stage looked at the rendezvous, and the rendezvous is somewhere else now."""
    return before.check.looks_at_rendezvous and before.inventory.rendezvous != after.inventory.rendezvous
