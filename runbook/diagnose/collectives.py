"""Which ranks are behind in a collective, or made another call than the others: by watchdog lines compared between
ranks, and by NCCL's report of a job's health.

The report is that of `ncclras` (NCCL 2.24 and newer): ranks that launched fewer operations, and ranks that do not
answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from runbook.diagnose.rule_types import Hit
from runbook.model.grouping import values_by_key
from runbook.model.units import parse_number, parse_small_number, range_texts

# --- watchdog lines -------------------------------------------------------------------------------------------------

UNEVEN_SIZE_OPERATIONS = ("ALLTOALL", "SEND", "RECV", "GATHER", "SCATTER")
"""Operations whose sizes may differ between ranks."""
ONE_SIDED_OPERATIONS = ("BROADCAST", "REDUCE", "SEND", "RECV", "GATHER", "SCATTER", "COALESCED", "BARRIER", "UNKNOWN")
"""The beginnings of operations that a rank may have left before all have made them; of barriers little is known."""
MAX_CALLS_APART = 10
"""The most calls between ranks of one process group that have gone different ways: numbers that differ by more are more
likely of two groups, which old versions of torch do not name."""
MAX_SILENT_RATIO = 1 / 3
"""The most ranks without a line for each rank with one: with more, the log is an excerpt, or one machine's, and none is
called silent."""


def compare_watchdogs(watchdogs: Sequence[Hit], states: Sequence[Hit], other_work: Sequence[Hit] = ()) -> Iterator[Hit]:
    """The derived signs `watchdog-differs`, `-behind`, `-uniform` and `-alone`, each with the lines that prove it.

    Args:
        watchdogs: lines about a collective that timed out.
        states: lines with how many calls a rank has enqueued, or with the group of its call.
        other_work: progress bars of other work than training: loading, evaluation.
    """
    places = [hit.line.place for hit in watchdogs]
    busy = any(hit.line.place > min(places) for hit in other_work) if places else False
    told = _groups_by_call(watchdogs, states)
    groups: dict[str, dict[int, Hit]] = defaultdict(dict)
    for hit in watchdogs:
        rank = rank_of_hit(hit)
        group = _process_group(hit) or told.get((rank, hit.groups.get("seq")), "")
        groups[group].setdefault(-1 - hit.line.number if rank is None else rank, hit)
    enqueued: dict[str, dict[int, Hit]] = defaultdict(dict)
    for hit in states:
        if (rank := rank_of_hit(hit)) is not None:
            enqueued[_process_group(hit)].setdefault(rank, hit)
    # Calls are numbered within one process group; if lines do not name theirs, there must be only one group.
    only = next(iter(enqueued.values())) if len(enqueued) == 1 else {}
    for group, first in groups.items():
        yield from _signs_of_group(first, enqueued.get(group, only), busy=busy)
    if not groups:
        for counts in enqueued.values():
            yield from _signs_of_group(counts, counts, busy=busy)


def _process_group(hit: Hit) -> str:
    """The GUID of the process group that a line names, which is the same on all ranks, unlike the group's number; empty
    if it names none."""
    return hit.groups.get("pg", "").rpartition("GUID")[2].strip()


def _groups_by_call(watchdogs: Sequence[Hit], states: Sequence[Hit]) -> dict[tuple[int | None, str | None], str]:
    """By (rank, number of a call), the group of the call, for torch 2.5, which names it only in its next line; empty if
    the watchdog lines name groups, or there is only one group."""
    if any(_process_group(hit) for hit in watchdogs):
        return {}
    told: dict[tuple[int | None, str | None], str]
    told = {
        (rank_of_hit(hit), hit.groups["seq"]): _process_group(hit)
        for hit in states
        if "seq" in hit.groups and _process_group(hit)
    }
    return told if len(set(told.values())) > 1 else {}


def rank_of_hit(hit: Hit) -> int | None:
    """The rank that printed the line, or that the sign's pattern found in it."""
    if hit.line.rank is not None:
        return hit.line.rank
    return parse_small_number(hit.groups.get("rank"))


def _signs_of_group(first: Mapping[int, Hit], enqueued: Mapping[int, Hit], *, busy: bool) -> Iterator[Hit]:
    """The derived signs of one process group; `first` and `enqueued` are lines by rank. `busy`: a rank still draws a
    progress bar while the calls of others time out."""
    by_number = values_by_key((hit.groups.get("seq", ""), hit) for hit in first.values())
    for sequence, hits in by_number.items():
        if how := _call_differences(hits, sequence):
            yield from (Hit("watchdog-differs", hit.line, {"how": how}) for hit in hits)
            return
    numbers = sorted(((parse_number(text), hits) for text, hits in by_number.items() if text), key=lambda pair: pair[0])
    if len(numbers) > 1:
        (first_one, low), (last_one, high) = numbers[0], numbers[-1]
        if (last_one - first_one == 1 and _call_sizes(low) != _call_sizes(high) and len(first) > 1) or (
            last_one - first_one <= MAX_CALLS_APART and _was_another_call(low, high)
        ):
            how = (
                f"call {first_one} on {_ranks_in_words(low)} is {_call_in_words(low[0])}, call "
                f"{last_one} on {_ranks_in_words(high)} is "
                f"{_call_in_words(high[0])}"
            )
            yield from (Hit("watchdog-differs", hit.line, {"how": how}) for hit in (*low, *high))
        else:
            yield from (Hit("watchdog-behind", hit.line, {"late": _ranks_in_words(low)}) for hit in low)
        return
    known = {rank: parse_number(hit.groups["enqueued"]) for rank, hit in enqueued.items()}
    # A rank that has enqueued the call that all wait for is not behind, even if others have enqueued more.
    if len(set(known.values())) > 1 and not (numbers and min(known.values()) >= numbers[0][0]):
        late = [enqueued[rank] for rank, count in known.items() if count == min(known.values())]
        yield from (Hit("watchdog-behind", hit.line, {"late": _ranks_in_words(late)}) for hit in late)
        return
    ranks = sorted(rank for rank in first if rank >= 0)
    # No silent ranks are named if too many are missing, or if a number is not a rank.
    few = len(ranks) > 1 and ranks[-1] + 1 - len(ranks) <= len(ranks) * MAX_SILENT_RATIO
    silent = sorted(set(range(ranks[-1] + 1)) - set(ranks)) if few else []
    cut_off = bool(enqueued) and not set(ranks) <= set(enqueued) and not busy
    if silent and not cut_off:
        late_ranks = f"rank {folded_numbers(silent)}, which printed no timeout,"
        yield from (Hit("watchdog-behind", first[rank].line, {"late": late_ranks}) for rank in ranks)
    elif len(first) > 1:
        yield from (Hit("watchdog-uniform", hit.line, dict(hit.groups)) for hit in first.values())
    else:
        yield from (Hit("watchdog-alone", hit.line, dict(hit.groups)) for hit in first.values())


def _call_differences(hits: Sequence[Hit], sequence: str) -> str:
    """How the calls with one number differ between ranks, in words; empty if they agree."""
    told = [hit for hit in hits if "op" in hit.groups]  # a line that was cut off does not contradict the others
    sized = all("nin" in hit.groups for hit in told)
    calls = values_by_key(
        (_call_in_words(hit) if sized and not _may_have_uneven_sizes(hit) else hit.groups["op"], hit) for hit in told
    )
    if len(calls) < 2:
        return ""
    who = "; ".join(f"{_ranks_in_words(them)}: {call}" for call, them in list(calls.items())[:4])
    return f"call {sequence} is {who}" if sequence else who


def _may_have_uneven_sizes(hit: Hit) -> bool:
    """Whether the sizes of this operation may differ between ranks."""
    return hit.groups["op"].upper().lstrip("_").startswith(UNEVEN_SIZE_OPERATIONS)


def _call_in_words(hit: Hit) -> str:
    size = f" of {hit.groups['nin']} elements" if "nin" in hit.groups else ""
    return f"{hit.groups.get('op', 'a collective')}{size}"


def _was_another_call(low: Sequence[Hit], high: Sequence[Hit]) -> bool:
    """Whether the ranks in `high` have left a call behind that more ranks, those in `low`, still wait in: nobody leaves
    a call that all have to make before all have made it, so it was another call there."""
    earlier, later = ({hit.groups.get("op", "").upper().lstrip("_") for hit in some} for some in (low, high))
    leaves_early = any(not op or op.startswith(ONE_SIDED_OPERATIONS) for op in earlier)
    return len(low) > len(high) and earlier.isdisjoint(later) and not leaves_early


def _call_sizes(hits: Sequence[Hit]) -> set[tuple[str | None, str | None]]:
    return {(hit.groups.get("nin"), hit.groups.get("nout")) for hit in hits}


def _ranks_in_words(hits: Sequence[Hit]) -> str:
    numbers = sorted({rank for hit in hits if (rank := rank_of_hit(hit)) is not None})
    return f"rank {folded_numbers(numbers)}" if numbers else "a rank"


def folded_numbers(numbers: Iterable[int]) -> str:
    """Sorted numbers as a text, each run of consecutive ones folded: `0-3, 7`."""
    return ", ".join(range_texts(numbers))


# --- NCCL's own report ----------------------------------------------------------------------------------------------


def read_ras_report(hits: Mapping[str, Sequence[Hit]]) -> Iterator[Hit]:
    """The derived signs `ras-behind` and `ras-silent`: lines of the report have a meaning only below their headings."""
    names = ("ras-differs", "ras-count", "ras-rank", "ras-missing")
    lines = sorted((hit for name in names for hit in hits.get(name, ())), key=lambda hit: hit.line.place)
    counts: dict[int, _Count] = {}
    at: _Count | None = None
    heading: Hit | None = None
    silent: list[int] = []
    for hit in (*lines, None):
        if hit is None or hit.sign in ("ras-differs", "ras-missing"):
            if heading and heading.sign == "ras-differs":
                yield from _ranks_behind(heading, counts)
            elif heading and not (hit and hit.sign == "ras-missing" and "named" in hit.groups):
                yield Hit(
                    "ras-silent", heading.line, {"late": f"rank {folded_numbers(sorted(silent))}"} if silent else {}
                )
            if hit and "named" in hit.groups:
                yield Hit("ras-silent", hit.line, {"late": f"rank {hit.groups['named'].strip()}"})
                hit = None
            counts, at, heading, silent = {}, None, hit, []
        elif hit.sign == "ras-count":
            at = counts.setdefault(parse_number(hit.groups.get("count", "0")), _Count())
            at.size += parse_number(hit.groups.get("ranks", "1"))
            at.add(hit)
        elif at and heading and heading.sign == "ras-differs":
            at.add(hit)
        else:
            silent.append(parse_number(hit.groups["rank"]))


@dataclass(slots=True)
class _Count:
    """The ranks that launched the same number of operations: how many they are, and those that the report names."""

    size: int = 0
    named: list[int] = field(default_factory=list)
    lines: list[Hit] = field(default_factory=list)

    def add(self, hit: Hit) -> None:
        self.lines.append(hit)
        if "rank" in hit.groups:
            self.named.append(parse_number(hit.groups["rank"]))


def _ranks_behind(heading: Hit, counts: Mapping[int, _Count]) -> Iterator[Hit]:
    """The sign `ras-behind` of a report's section, whose ranks are given by how many operations they launched."""
    if len(counts) < 2:
        return
    least, most = min(counts), max(counts)
    late = counts[least]
    ahead = sorted(rank for count, ranks in counts.items() if count > least for rank in ranks.named)
    if late.named:
        who = f"rank {folded_numbers(sorted(late.named))}"
    else:
        who = f"{late.size} ranks" + (f" (not rank {folded_numbers(ahead)})" if ahead else "")
    groups = {"late": who, "op": heading.groups["op"], "how": f"{least}, others {most}"}
    yield from (Hit("ras-behind", hit.line, groups) for hit in (heading, *late.lines))
