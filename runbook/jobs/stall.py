"""Which rank do the others wait for when a training makes no more steps, and where does that rank stand? A rank is
accused only by how it differs from the others: it is stopped, it is not in the collective in which the others wait, or
it makes another call than most. If the ranks do not differ, none is accused.

A rank with a GPU may wait for the GPU in any line of its program. But then a kernel runs on that GPU; the kernel of a
collective, too, keeps it busy for as long as it waits for other ranks. So nobody waits for an idle GPU: its rank has
not come as far as the ranks with busy GPUs.

A rank that gets no CPU cannot report where it stands. It is accused if its kernel shows that it gets none, and every
other rank is seen to wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from runbook.causes.catalogue import finding_for
from runbook.checks.context import Facts
from runbook.checks.network.live_traffic import Between
from runbook.checks.ranks.evidence import busy_program_lines, rank_stopped
from runbook.jobs.attempt import ProcessSpec
from runbook.jobs.kept_processes import KeptProcess, KeptProcesses, peer_failure_finding
from runbook.jobs.logs import log_tail
from runbook.jobs.progress import StepProgress
from runbook.jobs.seen_processes import (
    IDLE_GPU_PERCENT,
    LOG_TAIL_BYTES,
    MIN_COMPUTING_CPU_SHARE,
    SeenProcess,
    seen_processes,
    unlike_settings,
)
from runbook.jobs.watch import TRACEBACK_FIRST_LINE
from runbook.model.command_quoting import shell_word
from runbook.model.grouping import values_by_key
from runbook.model.units import bytes_text, first_items_text, seconds_text
from runbook.model.verdict import Finding, FindingsByNode, Outcome, outcomes_from_findings

MAX_REPEATED_LOOKS = 3
"""The most looks after the first. On a busy machine a rank may not answer in one of them."""

MIN_EXCHANGE_BYTES_PER_S = 1000.0
"""The least bytes a second that show an exchange of data: merely keeping connections open carries less."""

PAIRWISE_CALLS = frozenset(
    ("send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list")
)
"""Calls of torch.distributed between two ranks: the other ranks need not be in the same call."""

ONE_ROOT_CALLS = frozenset(
    """broadcast broadcast_object_list scatter scatter_object_list gather gather_object reduce""".split()
)
"""Calls that a rank may finish before others come, and that programs often write in two lines: one for the root."""

UNKNOWN_WCHANS = frozenset(("", "0"))
"""The values of /proc/PID/wchan when the kernel does not say where a process sleeps."""


@dataclass(frozen=True, slots=True)
class JudgedStall:
    """What the looks at a silent training showed. `findings`: by node. `works`: in words, that the ranks which the
    others wait for are at work; if the limit was only learned, this is no stall yet. `goes_on`: in words, why this is
    no stall yet in any case: a rank that is left at the end works, the keepers have not reported an end yet, or no rank
    is accused while ranks hardly get a CPU or are ending. `talks`: the ranks exchange data, so perhaps their steps are
    only no longer printed."""

    findings: Mapping[str, Sequence[Finding]] = field(default_factory=dict)
    works: str = ""
    goes_on: str = ""
    talks: bool = False


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at all ranks. `frozen`: the nodes' answers. `ranks`: what they say about each rank. `talks`: in words,
    that the ranks still exchange data; empty if they do not."""

    frozen: Mapping[str, Facts]
    ranks: tuple[SeenProcess, ...]
    talks: str

    @staticmethod
    def of(kept: KeptProcesses, frozen: Mapping[str, Facts], before: _Look | None) -> _Look:
        """A look from the answers of all nodes; `before` is the look before, to see which ranks moved."""
        stood = {(one.node, one.pid): one.frames for one in before.ranks} if before else {}
        ranks = (
            replace(
                one,
                moves=one.cpu >= MIN_COMPUTING_CPU_SHARE and stood.get((one.node, one.pid), one.frames) != one.frames,
            )
            for one in seen_processes(kept, frozen)
        )
        return _Look(frozen, tuple(ranks), _traffic_text(kept, frozen))


def judge_stall(
    kept: KeptProcesses,
    progress: StepProgress,
    look: Callable[[], Mapping[str, Facts]],
    between: Callable[[], Between] = Between,
) -> JudgedStall:
    """Judges a training from looks at all nodes, repeated until two in a row accuse the same nodes of the same causes.
    If no rank stands out, every node gets the same finding. `look`: asks all nodes. `between`: looks at the network
    between the nodes; it is called if ranks wait for each other and none of them is seen to be the reason.

    A training that goes on while its steps are not heard is not accused: its ranks exchange data, and another look
    shows another rank outside of the collective."""
    rate = progress.rate()
    since = f"no step for {seconds_text(rate.age_s)}, after {rate.place}" if rate else "no step so far"
    last = _Look.of(kept, look(), None)
    found = _look_findings(kept, last, since)
    for _ in range(MAX_REPEATED_LOOKS):
        before, last = found, _Look.of(kept, look(), last)
        found = _look_findings(kept, last, since)
        if _accused_causes(before) == _accused_causes(found):
            break
    else:
        found = {}
    may_wait = not last.talks and any(one.together for one in last.ranks)
    only_calls = all(cause == "mismatched-collectives" for _, cause in _accused_causes(found))
    if may_wait and only_calls and (apart := _blocked_traffic_findings(kept, between(), since)):
        return JudgedStall(apart)
    at_end = any(member.over for member in kept.members) or any(one.ending for one in last.ranks)
    works = _working_ranks_text(last.ranks, accused=bool(found), at_end=at_end)
    steps = (*_last_step_lines(progress.by_rank), *unlike_settings(kept, last.frozen))
    goes_on = _unreported_ends_text(kept, last) or (works if at_end else "")
    if not found:
        nobody = _no_culprit_findings(kept, last, since, steps)
        return JudgedStall(nobody, works, goes_on or _starved_ranks_text(last.ranks), bool(last.talks))
    starved = any(rank.starved for rank in last.ranks)
    more = {node: (*(busy_program_lines(last.frozen.get(node)) if starved else ()), *steps) for node in found}
    findings = {node: [one.with_evidence(*more[node]) for one in each] for node, each in found.items()}
    return JudgedStall(findings, works, goes_on)


def _no_culprit_findings(kept: KeptProcesses, last: _Look, since: str, steps: Sequence[str]) -> FindingsByNode:
    """The finding for a training in which no rank stands out, the same for every node."""
    blind = sorted({member.place.node for member in kept.living} - last.frozen.keys())
    unseen = (*steps, *(f"{name} could not be looked at" for name in blind[:4]))
    asked = [one for one in last.ranks if one.frames]
    whole = len(asked) == _living_rank_count(kept) > 0 and not blind
    alike = len(set(map(_call_key, asked))) == 1 or any(one.has_gpu for one in asked)
    if whole and alike and all(one.together for one in asked):
        evidence = (*(line for one in asked[:2] for line in one.shown()), *unseen)
        says = f"{since}: all ranks wait {asked[0].place}, and none is behind"
        finding = finding_for("collective-stall-uniform", says, evidence, way="job")
    else:
        hungry = f"; {_starved_ranks_text(last.ranks)}" if _starved_ranks_text(last.ranks) else ""
        apart = "; they wait in different calls" if whole and all(one.together for one in asked) else ""
        says = f"{since}, and no rank stands out from the others{apart}{hungry}{last.talks}"
        evidence = (*state_lines(last.ranks), *place_lines(last.ranks), *unseen)
        finding = finding_for("training-stalled", says, evidence)
    return {name: [finding] for name in kept.nodes}


def place_lines(ranks: Sequence[SeenProcess]) -> Iterator[str]:
    """Lines that say where the ranks stand, one for all ranks in the same place."""
    by_place: dict[str, list[str]] = {}
    for one in ranks:
        by_place.setdefault(one.place if one.frames else "", []).append(one.label)
    for place, labels in list(by_place.items())[:6]:
        who = first_items_text(labels, 4)
        yield f"{who}: {place}" if place else f"{who}: could not be asked where it is"


def accused_rank_findings(ranks: Sequence[SeenProcess], since: str) -> FindingsByNode:
    """Findings by node about the ranks that the others wait for; empty if no rank stands out. `since`: in words, for
    how long there was no step."""
    return (
        _sleeping_rank_findings(ranks, since)
        or _rank_elsewhere_findings(ranks, since)
        or _starved_rank_findings(ranks, since)
        or _mute_rank_findings(ranks, since)
    )


def _look_findings(kept: KeptProcesses, last: _Look, since: str) -> FindingsByNode:
    """The findings of one look, those about ranks that have ended or outlived most others included. While all ranks
    still exchange data, only ranks that are stopped or in uninterruptible sleep are accused."""
    if last.talks:
        return _sleeping_rank_findings(last.ranks, since)
    return (
        accused_rank_findings(last.ranks, since)
        or _ended_rank_findings(kept, last.ranks, since)
        or _lingering_rank_findings(kept, last.ranks, since)
    )


def _accused_causes(found: FindingsByNode) -> set[tuple[str, str]]:
    """The accused nodes, each with its causes."""
    return {(node, each.cause) for node, of_node in found.items() for each in of_node}


def _living_rank_count(kept: KeptProcesses) -> int:
    """The number of ranks whose process is not over."""
    return sum(len(member.place.ranks) for member in kept.living)


def _traffic_text(kept: KeptProcesses, frozen: Mapping[str, Facts]) -> str:
    """In words, that all ranks still exchange data; empty if they do not."""
    looked = [(facts["seconds"], list(facts["ranks"].values())) for facts in frozen.values()]
    seen = [(rank["moved"] or 0) / max(0.1, seconds) for seconds, ranks in looked for rank in ranks]
    if len(seen) < len(kept.living) or min(seen, default=0.0) < MIN_EXCHANGE_BYTES_PER_S:
        return ""
    return f"; each still carries {bytes_text(round(min(seen)))}/s or more: perhaps steps are only no longer printed"


def _working_ranks_text(ranks: Sequence[SeenProcess], *, accused: bool, at_end: bool) -> str:
    """In words, that the ranks which the others wait for are at work; empty if they are not. All of them have to work.
    If no rank is accused, or ranks have ended or are ending (`at_end`), one that works is enough: the others may wait
    for it in a way of their own."""
    outside = [one for one in ranks if one.frames and (one.elsewhere if accused else not one.together)]
    working = [one for one in outside if one.works]
    if not working or (accused and not at_end and len(working) < len(outside)):
        return ""
    return "; ".join(f"{one.label} works {one.place}: {one.does}" for one in working[:4])


def _unreported_ends_text(kept: KeptProcesses, last: _Look) -> str:
    """In words, that ranks have ended and their keepers have not reported yet how; empty if there are none."""
    looked_at = [member for member in kept.living if member.place.node in last.frozen]
    gone = [member.label for member in looked_at if not _live_processes_seen(member, last.frozen)]
    if gone and len(gone) < _living_rank_count(kept):
        return f"{first_items_text(gone, 4)} ended, and the keeper has not told yet how"
    if gone or (not last.ranks and len(looked_at) == len(kept.living)):
        return "no rank lives any more, and their keepers have not told yet how they ended"
    return ""


def _live_processes_seen(member: KeptProcess, frozen: Mapping[str, Facts]) -> list[Facts]:
    """The processes of one kept process that live, as its node saw them."""
    seen = member.seen_in(frozen) or {}
    return [one for one in seen.get("processes", ()) if one["state"] not in "ZX"]


def _starved_ranks_text(ranks: Sequence[SeenProcess]) -> str:
    """In words, how many ranks hardly get a CPU, and how many are ending; empty if none."""
    starved, ending = sum(one.starved for one in ranks), sum(one.ending for one in ranks)
    counts = {"hardly get a CPU": starved, "are ending": ending}
    return "; ".join(f"{count} of {len(ranks)} ranks {do}" for do, count in counts.items() if count)


def _blocked_traffic_findings(kept: KeptProcesses, seen: Between, since: str) -> FindingsByNode:
    """Findings by node about what stops the traffic between the nodes; empty if nothing is seen to."""
    if seen.findings:
        return {
            node: [one.with_evidence(*seen.stalled[:2], since) for one in of_node]
            for node, of_node in seen.findings.items()
        }
    if not seen.stalled:
        return {}
    why_not = "although new connections between the nodes open and no rule of theirs blocks them"
    if not seen.whole:
        why_not = "and what lies between the nodes could not be looked at in full"
    says = f"what the ranks send no longer arrives, {why_not}; {since}"
    finding = finding_for("tcp-connection-lost-midrun", says, seen.stalled[:6], way="silent")
    return {name: [finding] for name in kept.nodes}


def outcomes_of_stall(kept: KeptProcesses, found: Mapping[str, Sequence[Finding]], stalled_s: float) -> list[Outcome]:
    """One outcome a node: the nodes with findings fail, the others are unknown. `stalled_s`: seconds without a step."""
    logs, metrics = f"logs: {kept.logs.folder}", {"stalled_s": round(stalled_s, 1)}
    proven = {name: [one.with_evidence(logs) for one in of_node] for name, of_node in found.items()}
    outcomes = outcomes_from_findings(kept.nodes, proven, peer_failure_finding(tuple(sorted(found))))
    return [replace(one, metrics=metrics) if one.node in found else one for one in outcomes]


def awaited_rank_findings(kept: KeptProcesses, frozen: Mapping[str, Facts], since: str) -> FindingsByNode:
    """Findings by node about ranks that lived, raised nothing and were in no collective when another rank gave up
    waiting. `since`: in words, that it gave up."""
    ranks = [one for one in seen_processes(kept, frozen) if not has_traceback(kept, kept.place_of(one.label))]
    return _sleeping_rank_findings(ranks, since) or values_by_key(
        _rank_behind_finding(one, f"{one.label} stood {one.place}, where {one.does}, when {since}", one.shown())
        for one in ranks
        if one.frames and one.elsewhere
    )


def has_traceback(kept: KeptProcesses, place: ProcessSpec) -> bool:
    """Whether the end of a process's log holds a traceback."""
    return TRACEBACK_FIRST_LINE in log_tail(kept.log_of(place), LOG_TAIL_BYTES)


def _rank_behind_finding(one: SeenProcess, says: str, evidence: Sequence[str]) -> tuple[str, Finding]:
    """The node and the finding about a rank that the others wait for."""
    if one.raised:
        says = f"{one.label} raised and did not end: {one.raised}; {says}"
        return one.node, finding_for("program-error", says, tuple(evidence), way="thread", pid=shell_word(one.pid))
    file, line, pid = one.own.file, one.own.line, shell_word(one.pid)
    way = "cpu" if one.starved else "child" if one.stopped_pid else "stands"
    seen = tuple(evidence)
    return one.node, finding_for(
        "rank-behind", says, seen, way=way, file=file, line=line, node=one.node, pid=pid, child=one.stopped_pid
    )


def _sleeping_rank_findings(ranks: Sequence[SeenProcess], since: str) -> FindingsByNode:
    """Findings about ranks that are stopped, or in uninterruptible sleep."""
    return values_by_key(
        (one.node, rank_stopped(one.label, one.node, one.pid, one.state, one.wchan, since))
        for one in ranks
        if one.state in "Tt" or (one.state == "D" and one.stays and not one.frames)
    )


def _rank_elsewhere_findings(ranks: Sequence[SeenProcess], since: str) -> FindingsByNode:
    """Findings about ranks that are not in a collective while others wait in one; else about ranks that are in another
    collective than most."""
    asked = [one for one in ranks if one.frames]
    waiting = [one for one in asked if one.waits]
    outside = [one for one in asked if one.elsewhere]
    outside = [one for one in outside if not one.works] or outside
    if not (waiting and outside):
        return _mismatched_call_findings([one for one in asked if one.together], len(ranks), since)
    others = f"while {_waiting_text(waiting)} for it {waiting[0].place}; {since}"
    return values_by_key(
        _rank_behind_finding(
            one,
            f"{one.label} stands {one.place}, where {one.does}, {others}",
            (*one.shown(), *waiting[0].shown()),
        )
        for one in outside
    )


def _mismatched_call_findings(waiting: Sequence[SeenProcess], ranks: int, since: str) -> FindingsByNode:
    """Findings about ranks that are in another collective than most; if the two largest groups are of one size, about
    all ranks. `ranks`: how many there are."""
    calls = Counter(map(_call_key, waiting))
    uneven = any(one.awaits or one.called in PAIRWISE_CALLS | ONE_ROOT_CALLS for one in waiting)
    if len(calls) < 2 or len(waiting) < ranks or uneven:
        return {}
    if any(one.has_gpu and not one.called for one in waiting):
        return {}  # a GPU lets its rank run ahead, so ranks may wait for the same call in different lines
    found: FindingsByNode = {}
    (usual, most), (_, next_most) = calls.most_common(2)
    odd = [one for one in waiting if _call_key(one) != usual] if most > next_most else waiting
    for one in odd:
        other = next(each for each in waiting if _call_key(each) != _call_key(one))
        says = f"{one.label} waits {one.place}, {other.label} {other.place}: they do not make the same call; {since}"
        finding = finding_for("mismatched-collectives", says, (*one.shown(), *other.shown()), way="lines")
        found.setdefault(one.node, []).append(finding)
    return found


def _call_key(one: SeenProcess) -> tuple[str, int | str, str]:
    """The key that two ranks share if they wait in the same call: file, line or function, and name of the call."""
    line: int | str = one.own.function if one.called in ONE_ROOT_CALLS else one.own.line
    return one.own.file, line, one.called if one.called in ONE_ROOT_CALLS else ""


def _starved_rank_findings(ranks: Sequence[SeenProcess], since: str) -> FindingsByNode:
    """Findings about ranks of one node that get no CPU while all others wait in a collective. A rank that is in the
    collective itself is accused only if a quota holds it back: a rank that waits there actively also wants a CPU, but
    does not need it."""
    waiting = [one for one in ranks if one.together and not one.held_back]
    mute = [
        one for one in ranks if not one.frames and one.starved and (not one.has_gpu or one.gpu_use == IDLE_GPU_PERCENT)
    ]
    inside = [one for one in ranks if one.together and one.held_back and one.state == "S" and not one.has_gpu]
    guilty = mute or inside
    if not waiting or len({one.node for one in guilty}) != 1 or len(waiting) + len(guilty) < len(ranks):
        return {}

    def starved(one: SeenProcess) -> Finding:
        where = f"is {one.place} too, and" if one.frames else "is not seen there:"
        says = f"{_waiting_text(waiting)} for {one.label} {waiting[0].place}, which {where} {one.does}; {since}"
        seen = (*state_lines([one]), *one.shown(), *waiting[0].shown())
        return finding_for("rank-behind", says, seen, way="cpu", node=one.node)

    return values_by_key((one.node, starved(one)) for one in guilty)


def _mute_rank_findings(ranks: Sequence[SeenProcess], since: str) -> FindingsByNode:
    """Findings about ranks that cannot be asked where they stand, such as a rank that blocks all signals, if the kernel
    shows that they stand elsewhere: all ranks that can be asked sleep in a collective, in one place of the kernel, and
    these sleep in another place, or compute. If no rank can be asked, two of three have to sleep in a futex, as ranks
    in a collective do."""
    asked = [one for one in ranks if one.frames]
    mute = [
        one
        for one in ranks
        if not (one.frames or one.ending or one.has_gpu) and (one.waited or 0.0) < MIN_COMPUTING_CPU_SHARE
    ]
    if not mute or len(asked) + len(mute) < len(ranks):
        return {}
    if asked:
        alike, usual = (
            [one for one in asked if one.surely_waits and _sleeps_without_gpu(one)],
            {one.wchan for one in asked},
        )
    else:
        ((most, _),) = Counter(one.wchan for one in mute).most_common(1)
        alike, usual = (
            [one for one in mute if one.wchan == most and _sleeps_without_gpu(one)],
            {most} if "futex" in most else {""},
        )
    if len(usual) != 1 or usual & UNKNOWN_WCHANS or len(alike) < (len(asked) or max(2, 2 * len(mute) / 3)):
        return {}
    found: FindingsByNode = {}
    for one in [one for one in mute if one not in alike]:
        if one.wchan in usual | UNKNOWN_WCHANS if _sleeps_without_gpu(one) else one.cpu < MIN_COMPUTING_CPU_SHARE:
            continue
        where = f" in {one.wchan} of the kernel" if _sleeps_without_gpu(one) else ""
        waits = (
            f"{_waiting_text(alike)} for it {alike[0].place}, in"
            if asked
            else f"{len(alike)} others, mute as well, sleep in"
        )
        says = f"{one.label} does not tell where it stands: {one.does}{where}, while {waits} {alike[0].wchan}; {since}"
        evidence = (*state_lines([one]), *alike[0].shown())
        told = finding_for("rank-behind", says, evidence, way="mute", node=one.node, pid=shell_word(one.pid))
        found.setdefault(one.node, []).append(told)
    return found


def _sleeps_without_gpu(one: SeenProcess) -> bool:
    return one.sleeps and not one.has_gpu


def _ended_rank_findings(kept: KeptProcesses, ranks: Sequence[SeenProcess], since: str) -> FindingsByNode:
    """Findings about ranks that have ended well while all others wait for them in a collective; if most have ended,
    about the others. A rank that computes in the forward of a wrapped model, as in an evaluation after the last step,
    waits for nobody."""
    waiting = [one for one in ranks if one.surely_waits]
    living = _living_rank_count(kept)
    if len(waiting) < max(1, living):
        return {}
    left = [member for member in kept.members if member.over and member.code == 0]
    many = sum(len(member.place.ranks) for member in left)

    def uneven(says: str, seen: SeenProcess) -> Finding:
        return finding_for("mismatched-collectives", f"{says}; {since}", tuple(seen.shown()), way="uneven")

    if many > living:
        ended = f"and {many} others have ended with code 0: it makes more calls"
        return values_by_key((one.node, uneven(f"{one.label} waits {one.place}, {ended}", one)) for one in waiting)
    others = f"and {_waiting_text(waiting)} for it {waiting[0].place}: it makes fewer calls"
    return values_by_key(
        (member.place.node, uneven(f"{member.label} has ended with code 0, {others}", waiting[0])) for member in left
    )


def _lingering_rank_findings(kept: KeptProcesses, ranks: Sequence[SeenProcess], since: str) -> FindingsByNode:
    """Findings about ranks that live on and wait for nobody after most have ended well. If all ranks that are left are
    ending, the findings are about those of them that sleep."""
    ended = [member for member in kept.members if member.over]
    outside = [one for one in ranks if one.frames and one.elsewhere]
    outside = outside or [one for one in ranks if one.ending and one.sleeps]
    ending = sum(one.ending for one in ranks if one not in outside)
    many = sum(len(member.place.ranks) for member in ended if member.code == 0) + ending
    if any(member.code != 0 for member in ended) or not 0 < len(outside) == _living_rank_count(kept) - ending <= many:
        return {}
    nearly = f" ({ending} nearly)" if ending else ""
    others = f"{many} other{'s have' if many > 1 else ' has'} ended with code 0{nearly}; {since}"

    def late(one: SeenProcess) -> tuple[str, Finding]:
        if one.frames:
            says = f"{one.label} has not ended: it stands {one.place}, where {one.does}, and {others}"
            return _rank_behind_finding(one, says, one.shown())
        where = f" in {one.wchan}" if one.wchan not in UNKNOWN_WCHANS else ""
        says = f"{one.label} has not ended: its Python is over, {one.does}{where}, and {others}"
        told = finding_for(
            "rank-behind", says, tuple(state_lines([one])), way="mute", node=one.node, pid=shell_word(one.pid)
        )
        return one.node, told

    return values_by_key(map(late, outside))


def _waiting_text(waiting: Sequence[SeenProcess]) -> str:
    return f"{waiting[0].label} waits" if len(waiting) == 1 else f"{len(waiting)} others wait"


def _last_step_lines(by_rank: Mapping[int, float]) -> list[str]:
    """A line with the last steps of the ranks, if they differ. This is no proof: a rank may buffer its lines."""
    least, most = min(by_rank.values(), default=0), max(by_rank.values(), default=0)
    late = [rank for rank, step in sorted(by_rank.items()) if step < most]
    return [f"the last step of rank {', '.join(map(str, late[:8]))} is {least:,}, of others {most:,}"] if late else []


def state_lines(ranks: Sequence[SeenProcess]) -> list[str]:
    """Lines with what the kernel says about each of these ranks."""
    return [
        f"{one.label}: pid {one.pid}, state {one.state}, {one.cpu:.0%} of a CPU"
        + (f", waiting for one {one.waited:.0%} of the time" if (one.waited or 0.0) >= MIN_COMPUTING_CPU_SHARE else "")
        + ("" if one.gpu_use is None else f", {one.gpu_use} % of its GPU")
        for one in ranks[:8]
    ]
