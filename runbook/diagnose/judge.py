"""From signs to causes: which rules hold, which cause is the root, and which causes only follow from it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Literal

from runbook.causes.catalogue import Confidence, cause_pages, causes_of_kind, explaining_causes, remedy_from_page
from runbook.diagnose.derived_signs import derive_signs
from runbook.diagnose.explained_hits import without_explained_hits
from runbook.diagnose.log_lines import align_clocks
from runbook.diagnose.progress_lines import Reached
from runbook.diagnose.rule_types import Hit, Line, Rule, Tier
from runbook.diagnose.scan import WENT_ON, Scanner

NO_EVIDENCE = "insufficient-evidence"
# Logs of several machines may stand one below the other, so that steps below a failure came before it. It must be later
# by so many seconds: less is the disorder of what many ranks print, and more may be the difference of two time zones.
MIN_LATER_S, MAX_LATER_S = 2.0, 840.0
MEETING_PLACE = re.compile(r"--?(?:master|rdzv|main[-_]process)[-_](?:addr|port|endpoint|id|ip)[= ]\S{1,80}")
"""What a command is told of where its ranks meet."""
MAX_EVIDENCE_LINES = 6  # the most lines that are quoted for a cause
ENDING_SIGNS = frozenset(
    """traceback launcher-failed glog-error nccl-failed aborted killed crashed exception hangs watchdog client-timed-out
    told-to-end cancelled step-cancelled hung-up""".split()
)
"""Signs after which a run does not go on by itself."""
NO_FAILURE_SO_FAR = (
    "nothing failed so far, and no line shows that it finished or went on: no step, no connection, no end"
)
PROGRAM_ERRORS = frozenset(
    """KeyError IndexError TypeError AttributeError NameError UnboundLocalError SyntaxError IndentationError TabError
    ImportError ModuleNotFoundError ZeroDivisionError NotImplementedError RecursionError""".split()
)
"""Python's errors that a mistake in the program raises, whatever other processes do."""
CONFIDENCE_ORDER: Mapping[Confidence, int] = {"high": 0, "medium": 1, "low": 2}
DEFAULT_GROUP_WORDS = {
    **dict.fromkeys("symbol arch gid value".split(), "see the line"),
    **dict.fromkeys("how versions".split(), "see the lines"),
    **dict.fromkeys("what message".split(), "see its lines"),
    **dict.fromkeys("line xid".split(), ""),
    **{name: f"a {name}" for name in "command tool task module".split()},
    "host": "the master",
    "port": "there",
    "peer": "another rank",
}
"""By a hole that many sentences have, the words for it if no line names it."""


class Told(dict[str, str]):
    """The words for a sentence's holes: `{port}`, or `{late|a rank}`, which brings its own words for when no line names
    it. KeyError for a hole that has neither."""

    def __missing__(self, hole: str) -> str:
        name, bar, otherwise = hole.partition("|")
        if not bar:
            raise KeyError(hole)
        return self.get(name, otherwise)


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause that logs show, with the lines that prove it; `follows` names the root when it is only a consequence."""

    cause: str
    confidence: Confidence
    says: str
    remedy: str
    evidence: tuple[Hit, ...]
    tier: Tier
    rank: int | None = None
    node: str | None = None
    follows: str | None = None
    own: bool = False  # a program's mistake in another process than the root's: it follows from no other cause
    ruled_out: tuple[str, ...] = ()  # causes that do not hold, since the logs have none of their lines


def judge_logs(scanner: Scanner) -> list[Cause]:
    """The causes that the scanned logs show, the root first; none if the logs are healthy."""
    hits: dict[str, list[Hit]] = defaultdict(list)
    left, ignored = without_explained_hits(align_clocks([*scanner.hits, *scanner.went_on]))
    for hit in left:
        hits[hit.sign].append(hit)
    for hit in (*derive_signs(dict(hits)), *scanner.slowed):
        hits[hit.sign].append(hit)
    seen = {name: few for name, few in hits.items() if few}
    found = _merge_by_id(_cause_of_rule(rule, seen) for rule in _diagnosis_rules() if _rule_holds(rule, seen))
    found = [cause for cause in found if not _has_recovered(cause, seen, scanner)]
    order = _order_key(scanner, found)
    found.sort(key=lambda cause: (cause.tier, order(cause)))
    found = _order_by_origins(found)
    found = _without_vague_causes(found, seen)
    if not found and not scanner.told:
        return [_no_evidence_cause("high", "these logs are empty", remedy_from_page("insufficient-evidence", "empty"))]
    if not found and scanner.reached is Reached.NOTHING:
        return [_no_evidence_cause("low", NO_FAILURE_SO_FAR, remedy_from_page("insufficient-evidence", "so-far"))]
    if not found and (words := _last_words_cause(scanner, seen, ignored)):
        return [words]
    return [
        *found[:1],
        *(_relate_to_root(cause, found[0]) for cause in found[1:] if _evidence_beside_root(cause, found[0])),
    ]


def _without_vague_causes(found: Sequence[Cause], seen: Mapping[str, Sequence[Hit]]) -> list[Cause]:
    """The causes, without those of tier WRAPPER if others tell more. Causes of tier WRAPPER that stay come first, and
    have medium confidence if the logs also hold a line of a known error."""
    unknown = sorted(
        (one for one in found if one.tier is Tier.WRAPPER), key=lambda one: CONFIDENCE_ORDER[one.confidence]
    )
    others = [cause for cause in found if cause.tier is not Tier.WRAPPER]
    faint = all(cause.tier is Tier.NOTE and cause.confidence == "low" for cause in others)
    if others and (not faint or all(cause.confidence == "low" for cause in unknown)):
        return others
    named = any(name in seen for rule in _diagnosis_rules() if rule.tier < Tier.SYMPTOM for name in rule.names)
    unsure = [
        replace(cause, confidence="medium") if named and cause.confidence == "high" else cause for cause in unknown
    ]
    return [*unsure, *others]


def _last_words_cause(
    scanner: Scanner, seen: Mapping[str, Sequence[Hit]], ignored: Set[tuple[str, int]]
) -> Cause | None:
    """The finding about words that no rule knows, at the end of a log that shows no step or good end after them; None
    if there are no such words."""
    ends = (scanner.last_progress, scanner.went_well, scanner.ended)
    rules = [rule for rule in _diagnosis_rules() if _rule_holds(rule, seen)]
    known = ignored | {hit.line.place for rule in rules for name in rule.names for hit in seen.get(name, ())}
    words = [
        hit
        for hit in scanner.last_words
        if hit.line.place not in known and hit.line.number > max(at.get(hit.line.source, 0) for at in ends)
    ]
    if not words:
        return None
    says = f"it ends with words that no rule knows ({words[-1].line.shown[:120]}), and no line shows that it went on"
    return replace(
        _no_evidence_cause("low", says, remedy_from_page("insufficient-evidence", "so-far")),
        evidence=tuple(words[-MAX_EVIDENCE_LINES:]),
    )


def _no_evidence_cause(confidence: Confidence, says: str, remedy: str) -> Cause:
    """The result for logs that show no cause, and do not prove health either."""
    return Cause(NO_EVIDENCE, confidence, says, remedy, (), Tier.WRAPPER)


def _diagnosis_rules() -> Sequence[Rule]:
    from runbook.diagnose.all_rules import RULES

    return RULES


def _rule_holds(rule: Rule, seen: Mapping[str, Sequence[Hit]]) -> bool:
    """Whether a rule holds for the hits, given by their signs' names."""
    return (
        any(name in seen for name in rule.names)
        and all(name in seen for name in rule.needs)
        and not any(name in seen for name in rule.unless)
    )


def _cause_of_rule(rule: Rule, seen: Mapping[str, Sequence[Hit]]) -> Cause:
    """The cause of a rule that holds, with its sentence filled in and its lines."""
    proof = _sorted_by_time([hit for name in rule.names for hit in seen.get(name, ())])
    first = proof[0]
    groups = Told(DEFAULT_GROUP_WORDS | {"who": _speaker_in_words(first.line), "line": first.line.shown[:120]})
    for hit in reversed(proof):
        groups.update(hit.groups)
    groups.update(first.groups)
    lines = [*proof, *(seen[name][0] for name in rule.needs)]
    return Cause(
        rule.cause,
        rule.confidence,
        rule.says.format_map(groups).strip(),
        cause_pages()[rule.cause].remedies[rule.way] if rule.way else "",
        tuple(_distinct_evidence(lines)),
        rule.tier,
        rank=_agreed_speaker([first, *proof], "rank"),
        node=_agreed_speaker([first, *proof], "node"),
        ruled_out=_causes_ruled_out(rule),
    )


def _agreed_speaker(hits: Sequence[Hit], name: Literal["rank", "node"]) -> Any:
    """The rank or node that the first line names; else the one on which all other lines that name any agree; else
    None."""
    told = [getattr(hit.line, name) for hit in hits if getattr(hit.line, name) is not None]
    return told[0] if told and (getattr(hits[0].line, name) is not None or len(set(told)) == 1) else None


def _speaker_in_words(line: Line) -> str:
    """The speaker of the line, for a sentence."""
    if line.rank is None:
        return line.node or "a process"
    return f"rank {line.rank} on {line.node}" if line.node else f"rank {line.rank}"


def _causes_ruled_out(rule: Rule) -> tuple[str, ...]:
    """The causes of other rules over the signs of this rule's `unless`: none of these signs was seen."""
    others = [
        other.cause
        for other in _diagnosis_rules()
        if set(other.names) & set(rule.unless) and not other.needs and other.cause != rule.cause
    ]
    return tuple(dict.fromkeys(others))


def _sorted_by_time(hits: list[Hit]) -> list[Hit]:
    """The hits, those that name something (a host, a rank) first; then by their times if all have one, else as they
    stand."""
    if all(hit.line.when is not None for hit in hits):
        hits = sorted(hits, key=lambda hit: hit.line.when or 0.0)
    return sorted(hits, key=lambda hit: not hit.groups)


def _distinct_evidence(hits: Sequence[Hit]) -> list[Hit]:
    """At most MAX_EVIDENCE_LINES hits: the first of each sign and speaker, no line twice."""
    chosen: dict[tuple[str, int], Hit] = {}
    speakers: set[tuple[str, str]] = set()
    for hit in hits:
        if (hit.sign, hit.line.who) not in speakers and len(chosen) < MAX_EVIDENCE_LINES:
            speakers.add((hit.sign, hit.line.who))
            chosen.setdefault(hit.line.place, hit)
    return list(chosen.values())


def _merge_by_id(found: Iterable[Cause]) -> list[Cause]:
    """The causes, each id once: with the sentence of its rule of the lowest tier, then the surest, and the lines of all
    its rules."""
    merged: dict[str, Cause] = {}
    for cause in sorted(found, key=lambda cause: (cause.tier, CONFIDENCE_ORDER[cause.confidence])):
        if before := merged.get(cause.cause):
            cause = replace(before, evidence=tuple(_distinct_evidence([*before.evidence, *cause.evidence])))
        merged[cause.cause] = cause
    return list(merged.values())


def _has_recovered(cause: Cause, seen: Mapping[str, Sequence[Hit]], scanner: Scanner) -> bool:
    """Whether the run recovered from this cause: it went on after all lines of the cause, and did not end badly later.
    A bad end does not count for a cause that only keeps a program from starting."""
    if cause.tier is Tier.NOTE and cause.confidence == "low" and scanner.ended:
        return True  # the run may be slower than it could be, but it came to a good end
    if cause.cause in causes_of_kind("lasting") or cause.tier is Tier.NOTE:
        return False
    if cause.cause == "p2p-hang-acs-iommu" and "p2p-off-tried" in seen:
        return False  # a run without peer-to-peer traffic avoids the fault, and does not mend it
    if any(_failed_before_the_next_run(proof, seen, scanner) for proof in cause.evidence):
        return False
    # Other ranks may print a line or two after one has died: most causes need several lines of progress after them. A
    # failed connection is tried again, and a late rank has caught up once there is a step: one line is enough.
    retried = cause.tier in (Tier.NETWORK, Tier.WRAPPER) or cause.cause == "rank-behind"
    went_on = scanner.last_progress if retried else scanner.steady_progress
    sources = {proof.line.source for proof in cause.evidence}
    signs = {hit.sign for hit in cause.evidence} | (
        set() if cause.cause in causes_of_kind("at start") else ENDING_SIGNS
    )
    hits = [hit for sign in signs for hit in seen.get(sign, ()) if hit.line.source in sources]
    last_steps = {hit.line.source: hit.line.when for hit in seen.get(WENT_ON, ())}
    if not any(_is_after_step(hit.line, last_steps.get(hit.line.source)) for hit in hits) and all(
        hit.line.number < max(went_on.get(hit.line.source, 0), scanner.went_well.get(hit.line.source, 0))
        for hit in hits
    ):
        return True
    # After a run that ended well, the process with the store may leave before the others have looked there once more,
    # and NCCL's calls return errors as its communicators are given up.
    farewells = {"store-gone", "nccl-gave-up", "coordinator-left"}
    if (
        {hit.sign for hit in cause.evidence} <= farewells
        and all(
            _is_after_good_end(hit, scanner)
            if hit.sign in farewells
            else hit.line.number < scanner.last_progress.get(hit.line.source, 0)
            for hit in hits
        )
    ) or all(hit.sign == "coordinator-left" and scanner.last_progress.get(hit.line.source) for hit in hits):
        return True
    # Who supervises a run ends what is left of it once it has ended well.
    dismissals = {"told-to-end", "ended-by-term"}
    if {hit.sign for hit in cause.evidence} <= dismissals and all(
        hit.line.number > scanner.ended.get(hit.line.source, hit.line.number) for hit in cause.evidence
    ):
        return True
    # A run that ended well, or made steps after it and ended, has survived it if no rank is named, or one that was told
    # to end, and either no line says that a process ended, or a step follows that line before the end.
    return all(
        hit.line.number < (end := scanner.ended.get(hit.line.source, 0))
        and (
            hit.line.number < scanner.last_progress.get(hit.line.source, 0)
            or scanner.ended_well.get(hit.line.source) == end
        )
        and (hit.line.rank is None or (hit.sign in dismissals and scanner.ended_well.get(hit.line.source) == end))
        and (hit.sign not in ENDING_SIGNS or hit.line.number < scanner.last_progress.get(hit.line.source, 0) != end)
        for hit in hits
    )


def _is_after_step(line: Line, step: float | None) -> bool:
    """Whether a line is by its own time later than a step."""
    return line.when is not None and step is not None and MIN_LATER_S <= line.when - step <= MAX_LATER_S


def _is_after_good_end(hit: Hit, scanner: Scanner) -> bool:
    """Whether a run's log says that it ended well: before this line, or after it, with steps or in plain words."""
    source = hit.line.source
    ended = scanner.ended.get(source, 0)
    well = scanner.last_progress.get(source, 0) > 0 or scanner.ended_well.get(source, 0) == ended
    return ended > 0 and (hit.line.number > ended or well)


def _failed_before_the_next_run(hit: Hit, seen: Mapping[str, Sequence[Hit]], scanner: Scanner) -> bool:
    """Whether the command that printed this line ended badly after it, before another run was started: how that one
    goes does not mend what was wrong with the first, unless it is the same but for where the ranks meet."""
    commands = scanner.commands[hit.line.source]
    after = bisect_right(commands, hit.line.number, key=lambda command: command.number)
    if after == len(commands):
        return False
    failed = any(
        one.line.source == hit.line.source and hit.line.number <= one.line.number < commands[after].number
        for sign in ENDING_SIGNS
        for one in seen.get(sign, ())
    )
    at = bisect_right(commands, scanner.ended_well.get(hit.line.source, 0), key=lambda command: command.number)
    if not failed or after == 0 or at <= after:
        return failed
    tried, ended_well = (MEETING_PLACE.sub("", commands[one].text) for one in (after - 1, at - 1))
    return tried != ended_well


def _order_key(scanner: Scanner, found: Sequence[Cause]) -> Callable[[Cause], tuple[float, int, int]]:
    """The sort key that puts causes with earlier lines first: by time if every cause has a line with a time, else by
    their place in the logs."""
    place = {source: at for at, source in enumerate(scanner.ends)}
    times = [[hit.line.when for hit in cause.evidence if hit.line.when is not None] for cause in found]
    timed = all(times)

    def key(cause: Cause) -> tuple[float, int, int]:
        first = min(cause.evidence, key=lambda hit: (place[hit.line.source], hit.line.number))
        when = min(hit.line.when for hit in cause.evidence if hit.line.when is not None) if timed else 0.0
        return (when, place[first.line.source], first.line.number)

    return key


def _order_by_origins(found: Sequence[Cause]) -> list[Cause]:
    """The causes, in which within one tier a cause comes after the causes that it follows from."""
    ordered: list[Cause] = []
    rest = list(found)
    while rest:
        tier = [cause for cause in rest if cause.tier is rest[0].tier]
        free = [cause for cause in tier if not any(_explains(other, cause) for other in tier)]
        chosen = (free or tier)[0]
        ordered.append(chosen)
        rest.remove(chosen)
    return ordered


def _explains(cause: Cause, other: Cause) -> bool:
    """Whether `other` follows from `cause`. What processes saw before the job was ended is not explained by that: it
    may have been ended because of it."""
    if cause.cause == other.cause or cause.cause not in explaining_causes(other.cause):
        return False
    if cause.cause != "terminated-from-outside":
        return True
    seen = {hit.line.source: hit.line.number for hit in other.evidence}  # the last line of each
    return any(hit.line.number < seen.get(hit.line.source, hit.line.number + 1) for hit in cause.evidence)


def _relate_to_root(cause: Cause, root: Cause) -> Cause:
    """The cause with its relation to the root: it follows from the root, is a mistake of its own, or stands alone."""
    if _is_own_mistake(cause, root):
        return replace(cause, own=True, evidence=_evidence_beside_root(cause, root))
    explained = root.tier is not Tier.WRAPPER and (cause.tier > root.tier or cause.tier >= Tier.NETWORK)
    return replace(cause, follows=root.cause) if explained else cause


def _evidence_beside_root(cause: Cause, root: Cause) -> tuple[Hit, ...]:
    """The cause's lines that are not lines of the root as well."""
    proven = {hit.line.place for hit in root.evidence}
    return tuple(hit for hit in cause.evidence if hit.line.place not in proven)


def _is_own_mistake(cause: Cause, root: Cause) -> bool:
    """Whether a process other than the root's made a mistake that the end of another process cannot cause."""
    roots = {hit.line.who for hit in root.evidence}
    return (
        cause.cause == "program-error"
        and root.tier < Tier.NETWORK
        and any(hit.groups.get("type") in PROGRAM_ERRORS and hit.line.who not in roots for hit in cause.evidence)
    )
