"""Folds similar outcomes into lines, similar findings into blocks, and sentences of many nodes that differ only in
names and numbers into one. Pure, and nothing is lost: -v shows each in full."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

from runbook.causes.catalogue import causes_of_kind, root_cause_among
from runbook.model.errors import Unreachable
from runbook.model.events import NodesDropped
from runbook.model.grouping import values_by_key
from runbook.model.node_ranges import fold
from runbook.model.remedy import Remedy, RemedyStep
from runbook.model.verdict import Finding, Outcome, Verdict
from runbook.report.run_record import StageRecord

T = TypeVar("T")

MIN_FOLDED_TEXTS = 3
"""From this many similar texts on, one stands for all; two are both shown."""

MAX_FOLDED_WORD_CHARACTERS = 48
"""The longest folded word in a sentence, in characters."""

MAX_LISTED_NUMBERS = 4
"""The most numbers that are listed one by one."""

WORD = re.compile(r"(?<![\w.-])[\w.-]*\w")
DIGITS = re.compile(r"\d+")
PLACEHOLDER_LIST = re.compile(r"#(?:(?:[.:/-]|,| and|, and) ?#)*")
_PUNCTUATED_WORD = re.compile(r"(\W*)(.*?)(\W*)")
_NUMBER = re.compile(r"([^\w.+-]*)([+-]?\d+(?:\.\d+)?)([^\d]*)")


class Gist:
    """Makes the gist of a text, with `#` for the names of these nodes and for numbers: what nodes say alike has one."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)

    def __call__(self, text: str) -> str:
        return PLACEHOLDER_LIST.sub("#", WORD.sub(self._word, text))

    def _word(self, word: re.Match[str]) -> str:
        return "#" if word[0] in self._names else DIGITS.sub("#", word[0])


@dataclass(frozen=True, slots=True)
class Likewise(Generic[T]):
    """An entry of `nodes`, and the nodes whose own entry differs from it only in names and numbers."""

    nodes: tuple[str, ...]
    what: T
    others: tuple[str, ...] = ()


def fold_similar_entries(
    said: Iterable[tuple[tuple[str, ...], T]], gist: Callable[[T], object]
) -> Iterator[Likewise[T]]:
    """Yields the entries in order of appearance; where MIN_FOLDED_TEXTS or more have one gist, the first stands for
    all."""
    for of in values_by_key((gist(what), (nodes, what)) for nodes, what in said).values():
        if len(of) < MIN_FOLDED_TEXTS:
            yield from (Likewise(nodes, what) for nodes, what in of)
        else:
            yield Likewise(*of[0], tuple(node for nodes, _ in of[1:] for node in nodes))


def fold_texts(texts: Sequence[str]) -> str | None:
    """Texts that are alike as one, each word that differs folded: `node-[01-64]: nothing answers at 10.0.0.[1-64] port
    22`. None when that would not be a readable sentence."""
    rows = [text.split(" ") for text in texts]
    if len({len(row) for row in rows}) > 1:
        return None
    words = [_folded_word(list(dict.fromkeys(column))) for column in zip(*rows, strict=True)]
    return None if None in words else " ".join(word for word in words if word is not None)


def fold_unreached(failures: Mapping[str, Unreachable]) -> Iterator[tuple[str, Unreachable]]:
    """Yields the nodes that were not reached, those whose errors differ only in names and numbers as one: their names
    folded, and an error with the words of all, or else of the first. The words are without the node's name in front."""
    gist = Gist(failures)
    said = (((name,), error) for name, error in failures.items())
    for one in fold_similar_entries(said, lambda error: (error.cause, gist(error.says), gist(error.remedy))):
        errors = {name: failures[name] for name in (*one.nodes, *one.others)}
        says = [error.says.removeprefix(f"{name}: ") for name, error in errors.items()]
        remedies = [error.remedy for error in errors.values()]
        alike = Unreachable(
            one.what.cause, fold_texts(says) or says[0], fold_texts(remedies) or remedies[0], one.what.evidence
        )
        yield fold(errors), alike


def _folded_word(values: list[str]) -> str | None:
    """One word for the words of several texts at one place; None if it would be too long to read."""
    if len(values) == 1:
        return values[0]
    numbers = [_NUMBER.fullmatch(value) for value in values]
    if all(numbers):
        found = [number for number in numbers if number]
        if len({(number[1], number[3]) for number in found}) == 1:
            return found[0][1] + _folded_numbers([number[2] for number in found]) + found[0][3]
    parts = [part for value in values if (part := _PUNCTUATED_WORD.fullmatch(value))]
    around = {(part[1], part[3]) for part in parts}
    before, after = around.pop() if len(around) == 1 else ("", "")
    folded = before + fold([value[len(before) : len(value) - len(after)] for value in values]) + after
    return folded if len(folded) <= MAX_FOLDED_WORD_CHARACTERS else None


def _folded_numbers(values: list[str]) -> str:
    listed = sorted(values, key=float)
    return "/".join(listed) if len(listed) <= MAX_LISTED_NUMBERS else f"{listed[0]}…{listed[-1]}"


WORST_FIRST = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.PASS, Verdict.SKIP)
NODE_NAME_PLACEHOLDER = "\x00"
"""The placeholder for a node's own name."""

NOTE_LABELS = ("next", "why", "kept")
"""First words of evidence lines that prove nothing: a further step, the reason for the remedy, where more is kept."""

NodeFindings = Sequence[tuple[str, Finding]]
"""Findings, each with its node."""

NodesRemedy = tuple[tuple[str, ...], Remedy]
"""A remedy, and the nodes that it mends."""

NodesText = tuple[str, tuple[str, ...]]
"""A text, and the nodes of which it is said."""


@dataclass(frozen=True, slots=True)
class OutcomeGroup:
    """The nodes of which one stage says the same in one line."""

    verdict: Verdict
    says: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FoldedFinding:
    """One finding, and every node that has it. `evidence` pairs nodes with the proof that they gave, the proof of all
    nodes first; `notes` are (label, text); `like`: the nodes of an entry before this one that differs only in names and
    numbers; `others`: nodes without an entry of their own, since theirs would differ only in names and numbers.
    """

    says: str
    nodes: tuple[str, ...]
    fixes: tuple[NodesRemedy, ...]
    evidence: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]  # (nodes, lines)
    notes: tuple[tuple[str, str], ...]
    peers: tuple[str, ...]
    like: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FindingBlock:
    """Everything that one stage found of one cause.

    `common`: every node of the stage failed alike, so that no single node is to blame. `follows`: the cause of which
    this cause is only a consequence.
    """

    stage: str
    verdict: Verdict
    cause: str
    entries: tuple[FoldedFinding, ...]
    fixes: tuple[NodesRemedy, ...]
    common: bool = False
    follows: str | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        return _unique_names(node for entry in self.entries for node in (*entry.nodes, *entry.others))

    @property
    def unreached(self) -> bool:
        return _is_unreached(self.verdict, self.cause)

    @property
    def waited(self) -> bool:
        return _is_consequence(self.verdict, self.cause)


def outcome_groups(outcomes: Iterable[Outcome], gist: Gist | None = None) -> list[OutcomeGroup]:
    """The groups of outcomes with the same verdict and the same words; the worst verdict first, then in order of
    arrival.

    With a `gist`, MIN_FOLDED_TEXTS outcomes that differ only in names and numbers make one group as well.
    """
    nodes = values_by_key(((outcome.verdict, _outcome_summary(outcome)), outcome.node) for outcome in outcomes)
    by_verdict = values_by_key((verdict, (says, _unique_names(names))) for (verdict, says), names in nodes.items())
    return sort_worst_first(
        OutcomeGroup(verdict, says, names)
        for verdict, of in by_verdict.items()
        for says, names in _fold_similar_texts(of, gist)
    )


def stage_groups(stage: StageRecord, gist: Gist | None = None) -> list[OutcomeGroup]:
    """The groups of a stage, nodes without an answer included. The engine's verdict counts: if the worst group has
    another one, a group of all nodes with the engine's verdict comes first."""
    groups = outcome_groups(stage.outcomes, gist)
    if stage.silent or not groups:
        says = "no answer" if stage.finished else "no answer yet when the run ended"
        groups = sort_worst_first([*groups, OutcomeGroup(Verdict.UNKNOWN, says, tuple(stage.silent))])
    if groups[0].verdict is not stage.verdict:
        groups.insert(0, OutcomeGroup(stage.verdict, "", stage.started.nodes))
    return groups


def _fold_similar_texts(said: Iterable[NodesText], gist: Gist | None) -> list[NodesText]:
    few: list[NodesText] = []
    for of in values_by_key((gist(one[0]) if gist else one[0], one) for one in said).values():
        in_all = fold_texts([says for says, _ in of]) if len(of) >= MIN_FOLDED_TEXTS else None
        few += [(in_all, _unique_names(node for _, nodes in of for node in nodes))] if in_all else of
    return few


def sort_worst_first(groups: Iterable[OutcomeGroup]) -> list[OutcomeGroup]:
    return sorted(groups, key=lambda group: WORST_FIRST.index(group.verdict))


def warning_groups(outcomes: Iterable[Outcome], gist: Gist | None = None) -> list[NodesText]:
    """Each warning once, with its nodes; with a `gist`, MIN_FOLDED_TEXTS that are alike as one."""
    nodes = values_by_key((warning, outcome.node) for outcome in outcomes for warning in outcome.warnings)
    return _fold_similar_texts([(warning, _unique_names(names)) for warning, names in nodes.items()], gist)


def dropped_groups(drop: NodesDropped, gist: Gist | None = None) -> list[NodesText]:
    """Each reason once, with the nodes that were left out for it; with a `gist`, MIN_FOLDED_TEXTS that are alike as
    one."""
    reasons = drop.reasons.items()
    nodes = values_by_key((f"unknown: {reason}" if name in drop.unknown else reason, name) for name, reason in reasons)
    return _fold_similar_texts([(reason, tuple(names)) for reason, names in nodes.items()], gist)


def finding_blocks(stages: Iterable[StageRecord], causes: Iterable[str], *, apart: bool = False) -> list[FindingBlock]:
    """Every finding of the run, by stage and cause; the root cause first, then as the engine ordered them.

    Where many nodes say the same but for names and numbers, they have one entry, unless they are to be kept `apart`.
    """
    stages = list(stages)
    found = values_by_key(
        ((place, finding.cause, outcome.verdict), (outcome.node, finding))
        for place, stage in enumerate(stages)
        for outcome in stage.outcomes
        for finding in outcome.findings
    )
    rank = {cause: number for number, cause in enumerate(dict.fromkeys(causes))}
    order = sorted(found, key=lambda key: (rank.get(key[1], len(rank)), key[0], WORST_FIRST.index(key[2])))
    shown = [_finding_block(stages[key[0]], key[2], key[1], found[key], apart) for key in order]
    return [
        _with_common_mark(replace(block, follows=_followed_cause(block, shown)), stages[key[0]])
        for key, block in zip(order, shown, strict=True)
    ]


def _finding_block(stage: StageRecord, verdict: Verdict, cause: str, found: NodeFindings, apart: bool) -> FindingBlock:
    alike = _findings_by_text(found)
    entries = (
        tuple(_folded_finding(*one) for one in alike) if apart else _fold_entries(alike, Gist(stage.started.nodes))
    )
    return FindingBlock(stage.name, verdict, cause, entries, _remedies_by_nodes(found))


def _with_common_mark(block: FindingBlock, stage: StageRecord) -> FindingBlock:
    """The block, marked as `common` if all nodes of the stage fail alike. Entries that differ only in names and numbers
    then refer to the first of them, whose evidence is enough. Different faults of one cause are not common."""
    everybody = len(stage.started.nodes) > 1 and set(block.nodes) >= set(stage.started.nodes)
    if not (everybody and block.verdict.stops):
        return block
    gist, firsts, entries = Gist(block.nodes), dict[str, FoldedFinding](), list[FoldedFinding]()
    for entry in block.entries:
        first = firsts.setdefault(gist(entry.says), entry)
        entries.append(entry if first is entry else replace(entry, like=first.nodes))
    return replace(block, common=len(firsts) == 1, entries=tuple(entries))


def _followed_cause(block: FindingBlock, shown: list[FindingBlock]) -> str | None:
    """The root cause that the block is folded under, None if there is none: for a consequence, the failure of any node;
    for other causes, a failure on the same nodes."""
    if len(shown) < 2 or not block.verdict.stops:
        return None
    near = [
        other
        for other in shown
        if other is not block
        and other.verdict.stops
        and (block.cause in causes_of_kind("consequence") or set(block.nodes) <= set(other.nodes))
    ]
    among = [other.cause for other in near]
    root = root_cause_among(block.cause, among)
    while root and (further := root_cause_among(root, among)):
        root = further
    return root


def _fold_entries(alike: Iterable[tuple[str, NodeFindings]], gist: Gist) -> tuple[FoldedFinding, ...]:
    """The entries of findings; MIN_FOLDED_TEXTS whose sentence and remedy differ only in names and numbers share one
    entry."""
    entries: list[FoldedFinding] = []
    for kind in values_by_key(((gist(says), gist(of[0][1].remedy)), (says, of)) for says, of in alike).values():
        together = [one for _, of in kind for one in of]
        if len(kind) < MIN_FOLDED_TEXTS:
            entries += [_folded_finding(says, of) for says, of in kind]
        elif in_all := fold_texts([says for says, _ in kind]):
            entries.append(_folded_finding(in_all, together))
        else:
            first, *rest = kind
            entries.append(
                replace(
                    _folded_finding(*first),
                    others=_unique_names(node for _, of in rest for node in _nodes_of_findings(of)),
                )
            )
    return tuple(entries)


def _folded_finding(says: str, of: NodeFindings) -> FoldedFinding:
    peers = _unique_names(peer for _, finding in of for peer in finding.peers)
    notes = tuple(
        dict.fromkeys(note for _, finding in of for line in finding.evidence if (note := _labelled_note(line)))
    )
    return FoldedFinding(says, _nodes_of_findings(of), _remedies_by_nodes(of), _evidence_by_nodes(of), notes, peers)


def _remedies_by_nodes(found: NodeFindings) -> tuple[NodesRemedy, ...]:
    """Each remedy once, with its nodes, sentences before commands. Remedies that differ only in the name of their own
    node, outside of commands, are one."""
    around: dict[tuple[RemedyStep, ...], list[tuple[str, Remedy]]] = {}
    for remedy, on in values_by_key((finding.mended, node) for node, finding in found).items():
        of_one = remedy.changed(partial(_name_to_placeholder, node=on[0])) if len(set(on)) == 1 else remedy
        around.setdefault(of_one.steps, []).extend((node, remedy) for node in on)
    groups: list[NodesRemedy] = []
    for steps, of in around.items():
        nodes = _unique_names(node for node, _ in of)
        together = Remedy(*steps).changed(partial(_placeholder_to_names, names=fold(nodes)))
        groups.append((nodes, of[0][1] if len(nodes) == 1 else together))
    return tuple(sorted(groups, key=lambda said: said[1].is_command))


def _name_to_placeholder(text: str, node: str) -> str:
    return NODE_NAME_PLACEHOLDER.join(_pieces_around_name(text, node))


def _placeholder_to_names(text: str, names: str) -> str:
    return text.replace(NODE_NAME_PLACEHOLDER, names)


def _evidence_by_nodes(found: NodeFindings) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """The evidence that all findings share, then the evidence that only some have, each with its nodes."""
    paragraphs = [(node, _evidence_paragraphs(finding.evidence)) for node, finding in found]
    shared = [part for part in paragraphs[0][1] if all(part in parts for _, parts in paragraphs)]
    own = values_by_key(
        (tuple(line for part in parts if part not in shared for line in part), node) for node, parts in paragraphs
    )
    everywhere = (_nodes_of_findings(found), tuple(line for part in shared for line in part))
    return tuple(
        pair for pair in (everywhere, *((_unique_names(nodes), lines) for lines, nodes in own.items())) if pair[1]
    )


def _evidence_paragraphs(lines: Iterable[str]) -> list[tuple[str, ...]]:
    """The lines of evidence as paragraphs, without notes; an indented line belongs to the line above it."""
    parts: list[tuple[str, ...]] = []
    for line in lines:
        if parts and line.startswith(" "):
            parts[-1] += (line,)
        elif not _labelled_note(line):
            parts.append((line,))
    return list(dict.fromkeys(parts))


def _labelled_note(line: str) -> tuple[str, str] | None:
    label, colon, text = line.partition(": ")
    return (label, text) if colon and label in NOTE_LABELS else None


def _findings_by_text(found: NodeFindings) -> list[tuple[str, NodeFindings]]:
    """Findings by their text; those that say the same, word by word or but for the name of their node, share one."""
    around: dict[tuple[str, ...], list[tuple[str, Finding]]] = {}
    for text, of in values_by_key((finding.says, (node, finding)) for node, finding in found).items():
        nodes = _nodes_of_findings(of)
        around.setdefault(_pieces_around_name(text, nodes[0]) if len(nodes) == 1 else (text,), []).extend(of)
    return [(fold(_nodes_of_findings(of)).join(parts), of) for parts, of in around.items()]


def _pieces_around_name(text: str, node: str) -> tuple[str, ...]:
    """The pieces of a sentence before, between and behind the node's name; a command in backticks stays whole."""
    name = re.compile(rf"`[^`]*`|(?<![\w.-]){re.escape(node)}(?![\w-]|\.\w)")
    pieces, at = [], 0
    for match in name.finditer(text):
        if not match[0].startswith("`"):
            pieces.append(text[at : match.start()])
            at = match.end()
    return (*pieces, text[at:])


def _nodes_of_findings(found: NodeFindings) -> tuple[str, ...]:
    return _unique_names(node for node, _ in found)


def _outcome_summary(outcome: Outcome) -> str:
    """The words of an outcome in the stage's line: its proof, or the causes that the blocks below explain."""
    if not (outcome.findings and outcome.verdict.stops):
        return outcome.proof or ""
    causes = list(dict.fromkeys(finding.cause for finding in outcome.findings))
    if all(_is_consequence(outcome.verdict, cause) for cause in causes):
        return outcome.findings[0].says
    return ("cannot be reached: " if _is_unreached(outcome.verdict, causes[0]) else "") + ", ".join(causes)


def _is_unreached(verdict: Verdict, cause: str) -> bool:
    """Whether an outcome says that its node was not reached: no verdict on it, although the cause is known exactly."""
    return verdict is Verdict.UNKNOWN and cause.startswith("ssh-")


def _is_consequence(verdict: Verdict, cause: str) -> bool:
    """Whether an outcome shows no fault of its node: another node stopped the job."""
    return verdict is Verdict.UNKNOWN and cause in causes_of_kind("consequence")


def _unique_names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
