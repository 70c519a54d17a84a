"""Equal things said once: outcomes folded into lines, findings into blocks. Pure, and nothing here is lost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from runbook.causes.catalogue import CONSEQUENCES
from runbook.causes.kinship import root_of
from runbook.model.verdict import Finding, Outcome, Verdict
from runbook.report.record import StageRecord

WORST_FIRST = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.PASS, Verdict.SKIP)


@dataclass(frozen=True, slots=True)
class Group:
    """The nodes of which one stage says the same in one line."""

    verdict: Verdict
    says: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One finding, and every node that has it; `evidence` pairs equal proof with the nodes that gave it."""

    says: str
    remedy: str
    nodes: tuple[str, ...]
    evidence: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]  # (nodes, lines)
    peers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Everything one stage found of one cause.

    `common`: every node of the stage failed alike, so no single one is to blame. `follows`: the cause that this one is
    only a consequence of.
    """

    stage: str
    verdict: Verdict
    cause: str
    entries: tuple[Entry, ...]
    common: bool = False
    follows: str | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        return _once(node for entry in self.entries for node in entry.nodes)

    @property
    def remedy(self) -> str | None:
        """The remedy that all entries share."""
        remedies = {entry.remedy for entry in self.entries}
        return remedies.pop() if len(remedies) == 1 else None


def outcome_groups(outcomes: Iterable[Outcome]) -> list[Group]:
    """Same verdict and same words make one group; the worst verdict comes first, then the order of arrival."""
    nodes: dict[tuple[Verdict, str], list[str]] = {}
    for outcome in outcomes:
        nodes.setdefault((outcome.verdict, _in_short(outcome)), []).append(outcome.node)
    return worst_first(Group(verdict, says, _once(names)) for (verdict, says), names in nodes.items())


def worst_first(groups: Iterable[Group]) -> list[Group]:
    return sorted(groups, key=lambda group: WORST_FIRST.index(group.verdict))


def warning_groups(outcomes: Iterable[Outcome]) -> list[tuple[str, tuple[str, ...]]]:
    """Each warning once, with its nodes."""
    nodes: dict[str, list[str]] = {}
    for outcome in outcomes:
        for warning in outcome.warnings:
            nodes.setdefault(warning, []).append(outcome.node)
    return [(warning, _once(names)) for warning, names in nodes.items()]


def blocks(stages: Iterable[StageRecord], causes: Iterable[str]) -> list[Block]:
    """Every finding of the run, by stage and cause; the root cause first, then as the engine ordered them."""
    found: dict[tuple[int, str, Verdict], list[tuple[str, Finding]]] = {}
    stages = list(stages)
    for place, stage in enumerate(stages):
        for outcome in stage.outcomes:
            for finding in outcome.findings:
                found.setdefault((place, finding.cause, outcome.verdict), []).append((outcome.node, finding))
    rank = {cause: number for number, cause in enumerate(dict.fromkeys(causes))}
    order = sorted(found, key=lambda key: (rank.get(key[1], len(rank)), key[0], WORST_FIRST.index(key[2])))
    told = [Block(stages[key[0]].name, key[2], key[1], _entries(found[key])) for key in order]
    return [
        replace(block, common=_common(block, stages[key[0]]), follows=_follows(block, told))
        for key, block in zip(order, told, strict=True)
    ]


def _common(block: Block, stage: StageRecord) -> bool:
    """Whether every node of the stage has this cause, and there are several."""
    return block.verdict.stops and len(stage.started.nodes) > 1 and set(block.nodes) >= set(stage.started.nodes)


def _follows(block: Block, told: list[Block]) -> str | None:
    """The cause it is folded under: another node's failure for a survivor's tale, else one on the same nodes."""
    if len(told) < 2 or not block.verdict.stops:
        return None
    near = [
        other
        for other in told
        if other is not block
        and other.verdict.stops
        and (block.cause in CONSEQUENCES or set(block.nodes) <= set(other.nodes))
    ]
    among = [other.cause for other in near]
    root = root_of(block.cause, among)
    while root and (further := root_of(root, among)):
        root = further
    return root


def _entries(findings: list[tuple[str, Finding]]) -> tuple[Entry, ...]:
    same: dict[tuple[str, str], list[tuple[str, Finding]]] = {}
    for node, finding in findings:
        same.setdefault((finding.says, finding.remedy), []).append((node, finding))
    return tuple(_entry(says, remedy, of) for (says, remedy), of in same.items())


def _entry(says: str, remedy: str, of: list[tuple[str, Finding]]) -> Entry:
    proofs: dict[tuple[str, ...], list[str]] = {}
    for node, finding in of:
        proofs.setdefault(finding.evidence, []).append(node)
    evidence = tuple((_once(nodes), lines) for lines, nodes in proofs.items() if lines)
    peers = _once(peer for _, finding in of for peer in finding.peers)
    return Entry(says, remedy, _once(node for node, _ in of), evidence, peers)


def _in_short(outcome: Outcome) -> str:
    """What the stage's line says: the proof, or the causes that the blocks below explain."""
    if outcome.findings and outcome.verdict.stops:
        return ", ".join(dict.fromkeys(finding.cause for finding in outcome.findings))
    return outcome.proof or ""


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
