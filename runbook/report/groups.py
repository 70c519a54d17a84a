"""Equal things said once: outcomes folded into lines, findings into blocks. Pure, and nothing here is lost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from runbook.causes.catalogue import CONSEQUENCES
from runbook.causes.kinship import root_of
from runbook.model.verdict import Finding, Outcome, Verdict
from runbook.report.fold import fold
from runbook.report.record import StageRecord
from runbook.report.remedies import is_sentence

WORST_FIRST = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.PASS, Verdict.SKIP)
NOTES = ("next", "why", "kept")
"""What a line of evidence may begin with that proves nothing: a further step, the reason for the remedy, where more lies."""

Found = Sequence[tuple[str, Finding]]
"""Findings, each with its node."""

Said = tuple[tuple[str, ...], str]
"""A text, and the nodes of which it holds."""


@dataclass(frozen=True, slots=True)
class Group:
    """The nodes of which one stage says the same in one line."""

    verdict: Verdict
    says: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One finding, and every node that has it. `evidence` pairs proof with the nodes that gave it, what all gave first;
    `notes` are (label, text); `like`: the nodes of an entry before this one that says the same but for names and numbers.
    """

    says: str
    nodes: tuple[str, ...]
    fixes: tuple[Said, ...]
    evidence: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]  # (nodes, lines)
    notes: tuple[tuple[str, str], ...]
    peers: tuple[str, ...]
    like: tuple[str, ...] = ()


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
    fixes: tuple[Said, ...]
    common: bool = False
    follows: str | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        return _once(node for entry in self.entries for node in entry.nodes)

    @property
    def unreached(self) -> bool:
        return _unreached(self.verdict, self.cause)

    @property
    def waited(self) -> bool:
        return _waited(self.verdict, self.cause)


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
    told = [_block(stages[key[0]].name, key[2], key[1], found[key]) for key in order]
    return [
        _as_common(replace(block, follows=_follows(block, told)), stages[key[0]])
        for key, block in zip(order, told, strict=True)
    ]


def _block(stage: str, verdict: Verdict, cause: str, found: Found) -> Block:
    return Block(stage, verdict, cause, _entries(found), _fixes(found))


def _as_common(block: Block, stage: StageRecord) -> Block:
    """Where all fail alike, what proves it is the same again for each: the first one's is enough."""
    if not _common(block, stage):
        return block
    entries: list[Entry] = []
    for entry in block.entries:
        first = next((e for e in entries if _gist(e.says, block.nodes) == _gist(entry.says, block.nodes)), None)
        entries.append(replace(entry, like=first.nodes) if first else entry)
    return replace(block, common=True, entries=tuple(entries))


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


def _entries(found: Found) -> tuple[Entry, ...]:
    return tuple(_entry(says, of) for says, of in _alike(found, lambda finding: finding.says))


def _entry(says: str, of: Found) -> Entry:
    peers = _once(peer for _, finding in of for peer in finding.peers)
    notes = tuple(dict.fromkeys(note for _, finding in of for line in finding.evidence if (note := _note(line))))
    return Entry(says, _nodes(of), _fixes(of), _evidence(of), notes, peers)


def _fixes(found: Found) -> tuple[Said, ...]:
    sentences = [(node, one) for node, one in found if is_sentence(one.remedy)]
    alike = _alike(sentences, lambda finding: finding.remedy)
    commands: dict[str, list[tuple[str, Finding]]] = {}  # a folded name in one would break it
    for node, finding in found:
        if not is_sentence(finding.remedy):
            commands.setdefault(finding.remedy, []).append((node, finding))
    return tuple((_nodes(of), remedy) for remedy, of in (*alike, *commands.items()))


def _evidence(found: Found) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """What all of them show, then what only some do."""
    told = [(node, _paragraphs(finding.evidence)) for node, finding in found]
    shared = [part for part in told[0][1] if all(part in parts for _, parts in told)]
    own: dict[tuple[str, ...], list[str]] = {}
    for node, parts in told:
        lines = tuple(line for part in parts if part not in shared for line in part)
        own.setdefault(lines, []).append(node)
    everywhere = (_nodes(found), tuple(line for part in shared for line in part))
    return tuple(pair for pair in (everywhere, *((_once(nodes), lines) for lines, nodes in own.items())) if pair[1])


def _paragraphs(lines: Iterable[str]) -> list[tuple[str, ...]]:
    """The lines that are evidence; an indented one belongs to the one above it."""
    parts: list[tuple[str, ...]] = []
    for line in lines:
        if parts and line.startswith(" "):
            parts[-1] += (line,)
        elif not _note(line):
            parts.append((line,))
    return list(dict.fromkeys(parts))


def _note(line: str) -> tuple[str, str] | None:
    label, colon, text = line.partition(": ")
    return (label, text) if colon and label in NOTES else None


def _alike(found: Found, text_of: Callable[[Finding], str]) -> list[tuple[str, Found]]:
    """Findings that say the same, word by word or but for the name of their own node, under one text."""
    same: dict[str, list[tuple[str, Finding]]] = {}
    for node, finding in found:
        same.setdefault(text_of(finding), []).append((node, finding))
    around: dict[tuple[str, ...], list[tuple[str, Finding]]] = {}
    for text, of in same.items():
        nodes = _nodes(of)
        around.setdefault(_around_name(text, nodes[0]) if len(nodes) == 1 else (text,), []).extend(of)
    return [(fold(_nodes(of)).join(parts), of) for parts, of in around.items()]


def _around_name(text: str, node: str) -> tuple[str, ...]:
    """The sentence in the pieces that the node's name leaves; a command in backticks stays whole."""
    name = re.compile(rf"`[^`]*`|(?<![\w.-]){re.escape(node)}(?![\w-]|\.\w)")
    pieces, at = [], 0
    for match in name.finditer(text):
        if not match[0].startswith("`"):
            pieces.append(text[at : match.start()])
            at = match.end()
    return (*pieces, text[at:])


def _gist(text: str, nodes: Iterable[str]) -> str:
    """The text without names and numbers."""
    for node in sorted(nodes, key=len, reverse=True):
        text = text.replace(node, "#")
    return re.sub(r"\d+(?:(?:[.:-]|, )\d+)*", "#", text)


def _nodes(found: Found) -> tuple[str, ...]:
    return _once(node for node, _ in found)


def _in_short(outcome: Outcome) -> str:
    """What the stage's line says: the proof, or the causes that the blocks below explain."""
    if not (outcome.findings and outcome.verdict.stops):
        return outcome.proof or ""
    causes = list(dict.fromkeys(finding.cause for finding in outcome.findings))
    if all(_waited(outcome.verdict, cause) for cause in causes):
        return outcome.findings[0].says
    return ("cannot be reached: " if _unreached(outcome.verdict, causes[0]) else "") + ", ".join(causes)


def _unreached(verdict: Verdict, cause: str) -> bool:
    """Nobody came as far as that node: no verdict on it, and yet the cause is known exactly."""
    return verdict is Verdict.UNKNOWN and cause.startswith("ssh-")


def _waited(verdict: Verdict, cause: str) -> bool:
    """Nothing is wrong with that node as far as anybody knows: another one stopped the job."""
    return verdict is Verdict.UNKNOWN and cause in CONSEQUENCES


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
