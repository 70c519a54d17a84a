"""Which ranks made a different call from their program or from other ranks, and which made none: by torch's flight
records."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from runbook.causes.catalogue import finding_for
from runbook.checks.ranks.evidence import rank_progress_text, stack_lines
from runbook.model.command_quoting import shell_word
from runbook.model.verdict import Finding

if TYPE_CHECKING:
    from runbook.checks.ranks.pool import RankMember, RankPool


CallRelation = Literal["differs", "behind", "uniform", "idle"]
"""How ranks stand to each other: CallComparison says what each word means."""

UNEVEN_OPERATIONS = ("alltoall", "allgatherv", "gather", "scatter", "reducescatterv", "send", "recv")
"""Operations whose sizes may differ between ranks; their names have letters only."""


@dataclass(frozen=True, slots=True)
class Call:
    """One collective as one rank made it. `sizes` are the shapes of its inputs, `dtypes` their types."""

    operation: str
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()

    @property
    def alike(self) -> tuple[object, ...]:
        """The part of the call that must be the same on every rank."""
        letters = re.sub(r"[^a-z]", "", self.operation.lower())
        return (letters,) if letters.lstrip("_").startswith(UNEVEN_OPERATIONS) else (letters, self.sizes, self.dtypes)

    def __str__(self) -> str:
        if not self.sizes:
            return self.operation
        shapes = ", ".join("×".join(map(str, shape)) or "1" for shape in self.sizes[:3])
        return f"{self.operation} of {shapes} {'/'.join(dict.fromkeys(self.dtypes)) or 'elements'}"


@dataclass(frozen=True, slots=True)
class Trace:
    """What one rank did in one process group: the number of the last call it entered and of the last call that was over
    (0: none), and the calls that are still recorded, by number."""

    rank: int
    enqueued: int
    completed: int
    calls: Mapping[int, Call] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CallComparison:
    """How the ranks of a group stand to each other at call `number`.

    `differs`: `ranks` made another call than the rest; all ranks when there is no majority. `behind`: `ranks` never
    made it. `uniform`: every rank is in it, and it is not over for `ranks`. `idle`: all ranks are between calls.
    `made`: what each rank called, where that is known.
    """

    kind: CallRelation
    number: int
    ranks: tuple[int, ...]
    made: Mapping[int, Call]
    group: str = ""


def compare_traces(traces: Iterable[Trace], group: str = "") -> CallComparison | None:
    """How these ranks of one process group stand to each other, at the first call that differs, else at the first that
    is not over; None when fewer than two ranks are known."""
    by_rank = {trace.rank: trace for trace in traces}
    if len(by_rank) < 2:
        return None
    numbers = sorted({number for trace in by_rank.values() for number in trace.calls})
    for number in numbers:
        made = {rank: trace.calls[number] for rank, trace in by_rank.items() if number in trace.calls}
        if len({call.alike for call in made.values()}) > 1:
            return CallComparison("differs", number, _minority_ranks(made), made, group)
    stuck = min(trace.completed for trace in by_rank.values()) + 1
    made = {rank: trace.calls[stuck] for rank, trace in by_rank.items() if stuck in trace.calls}
    behind = tuple(sorted(rank for rank, trace in by_rank.items() if trace.enqueued < stuck))
    if len(behind) == len(by_rank):
        return CallComparison("idle", stuck - 1, (), made, group)
    if behind:
        return CallComparison("behind", stuck, behind, made, group)
    waiting = tuple(sorted(rank for rank, trace in by_rank.items() if trace.completed < stuck))
    return CallComparison("uniform", stuck, waiting, made, group)


def compare_dumps(dumps: Mapping[int, Mapping[str, Any]]) -> list[CallComparison]:
    """The comparison of each process group in these Flight Recorder dumps (by rank), the worst kind first."""
    groups: dict[str, list[Trace]] = defaultdict(list)
    for rank, dump in dumps.items():
        for name, trace in read_dump(rank, dump).items():
            groups[name].append(trace)
    found = [result for name, traces in groups.items() if (result := compare_traces(traces, name))]
    order: Sequence[CallRelation] = ("differs", "behind", "uniform", "idle")
    return sorted(found, key=lambda comparison: (order.index(comparison.kind), comparison.number))


def read_dump(rank: int, dump: Mapping[str, Any]) -> dict[str, Trace]:
    """The traces of one rank by process group, from what Flight Recorder wrote (`FlightDump`)."""
    names: dict[str, str] = {}
    calls: dict[str, dict[int, Call]] = defaultdict(dict)
    retired: dict[str, int] = {}
    for entry in dump.get("entries") or ():
        label = (entry.get("process_group") or ["0"])[0]
        name = names.setdefault(str(entry.get("pg_id", label)), label)
        number = _sequence_number(entry, "collective_seq_id")
        if entry.get("is_p2p") or number < 1:
            continue
        calls[name][number] = _recorded_call(entry)
        if entry.get("retired") or entry.get("state") == "completed":
            retired[name] = max(retired.get(name, 0), number)
    traces = {}
    for key, status in (dump.get("pg_status") or {}).items():
        name = names.get(key, key)
        enqueued = max([_sequence_number(status, "last_enqueued_collective"), *calls[name]])
        completed = max(_sequence_number(status, "last_completed_collective"), retired.get(name, 0))
        traces[name] = Trace(rank, enqueued, completed, calls[name])
    for name in calls.keys() - traces.keys():
        traces[name] = Trace(rank, max(calls[name]), retired.get(name, 0), calls[name])
    return traces


def _recorded_call(entry: Mapping[str, Any]) -> Call:
    """The call that an entry of Flight Recorder describes."""
    operation = entry.get("profiling_name", "a collective").rpartition(":")[2]
    sizes = tuple(tuple(shape) for shape in entry.get("input_sizes", ()))
    return Call(operation, sizes, tuple(entry.get("input_dtypes", ())))


def ranks_with_wrong_calls(intended: Mapping[int, Call], made: Mapping[int, Call]) -> tuple[int, ...]:
    """Ranks that made another call than their program asked for. With two ranks this decides which one is wrong."""
    return tuple(
        sorted(
            rank
            for rank, call in made.items()
            if rank in intended
            and _comparable_call(intended[rank]) != _comparable_call(call)
            and "barrier" not in call.operation
        )
    )


def _comparable_call(call: Call) -> tuple[object, ...]:
    """What of a call is the same in the program's request and in torch's record: letters of the operation, number of
    elements, types."""
    count = 1
    for side in (side for shape in call.sizes for side in shape):
        count *= side
    return (
        re.sub(r"[^a-z]", "", call.operation.lower()),
        count,
        tuple(_FLIGHT_RECORDER_DTYPES.get(d, d).lower() for d in call.dtypes),
    )


_FLIGHT_RECORDER_DTYPES = {"float32": "Float", "float64": "Double", "float16": "Half", "int32": "Int", "int64": "Long"}
"""Flight Recorder's (C++) names of types, by torch's Python names."""


def _minority_ranks(made: Mapping[int, Call]) -> tuple[int, ...]:
    """The ranks outside the largest group of ranks with the same call; every rank when the two largest groups have the
    same size."""
    camps = Counter(call.alike for call in made.values()).most_common(2)
    if len(camps) > 1 and camps[0][1] == camps[1][1]:
        return tuple(sorted(made))
    return tuple(sorted(rank for rank, call in made.items() if call.alike != camps[0][0]))


def _sequence_number(facts: Mapping[str, Any], name: str) -> int:
    """A sequence number, which torch writes as text or as a number; 0 when it is missing or -1, which means none
    yet."""
    return max(0, int(facts.get(name, 0)))


SIZE_MISMATCH_PHRASES = ("data size doesn't match expected size", "mismatch between collectives", "collective mismatch")
"""What gloo and torch's own debugging say, in lower case, when the sizes of two ranks do not fit."""


def compare_rank_records(pool: RankPool) -> CallComparison | None:
    """How the ranks stand to each other by torch's own records of their collectives; None when there are no records."""
    dumps = {m.rank.rank: m.record["flight"] for m in pool.members if m.record.get("flight")}
    found = [result for result in compare_dumps(dumps) if result.kind != "idle"]
    return found[0] if found else None


def ranks_with_altered_calls(pool: RankPool) -> tuple[int, ...]:
    """Ranks for which torch has recorded other calls than our program made: something between the two changes the
    calls."""
    meant: dict[int, Call] = {}
    made: dict[int, Call] = {}
    miscounted = set()
    for member in pool.members:
        record = member.record
        rank = member.rank.rank
        if (last := last_recorded_call(member)) and (calling := record.get("calling")):
            sizes = ((int(calling["count"]),),) if "count" in calling else ()
            meant[rank] = Call(calling["operation"], sizes, (calling["dtype"],) if sizes else ())
            made[rank] = last
        if record.get("recorded") is not None and last and requested_call_count(member) != enqueued_call_count(member):
            miscounted.add(rank)
    return tuple(sorted({*ranks_with_wrong_calls(meant, made), *miscounted}))


def ranks_skipping_calls(pool: RankPool, behind: Sequence[int]) -> tuple[int, ...]:
    """Of the ranks that are behind, those that went on without a call that their program asked for. A rank that is
    still on its way into the call is only late."""
    members = [pool.members[rank] for rank in ranks_with_altered_calls(pool) if rank in behind]
    return tuple(
        m.rank.rank
        for m in members
        if m.stack and not is_busy_by_itself(m.stack) and requested_call_count(m) > enqueued_call_count(m)
    )


def requested_call_count(member: RankMember) -> int:
    """How many collectives the program has asked torch for, counted as Flight Recorder does."""
    return int(member.record.get("calls", 0)) + int(member.record.get("recorded") or 0)


def enqueued_call_count(member: RankMember) -> int:
    """How many collectives torch has recorded as entered by the rank."""
    status = (member.record.get("flight") or {}).get("pg_status") or {}
    return max([_sequence_number(one, "last_enqueued_collective") for one in status.values()] or [0])


def mismatched_call_findings(pool: RankPool, doing: str) -> dict[str, list[Finding]]:
    """Findings by node for ranks that made another call than the others: by the records, or by what gloo prints as it
    aborts."""
    seen = compare_rank_records(pool)
    aborted = [m for m in pool.members if any(phrase in "".join(m.log).lower() for phrase in SIZE_MISMATCH_PHRASES)]
    guilty: Sequence[int] = ()
    if seen and seen.kind == "differs":
        own = ranks_with_altered_calls(pool)
        guilty = own if own and len(own) < len(pool.members) else seen.ranks
        evidence = [f"{pool.members[rank].label} called {call}" for rank, call in sorted(seen.made.items())[:8]]
        evidence.append(f"of collective number {seen.number}, by torch's Flight Recorder on each rank")
    elif seen and seen.kind == "behind" and (skipped := ranks_skipping_calls(pool, seen.ranks)):
        guilty = skipped
        evidence = [
            f"{pool.members[rank].label} asked torch for "
            f"{requested_call_count(pool.members[rank])} collectives, and torch has "
            f"recorded {enqueued_call_count(pool.members[rank])}"
            for rank in skipped
        ]
    elif aborted:
        own = ranks_with_altered_calls(pool)
        others = [m for m in pool.members if m not in aborted]
        if own:
            guilty = own
        elif others and all(m.record.get("flight") for m in others):
            guilty = [m.rank.rank for m in aborted]  # the records of the others show the right calls
        else:
            guilty = [m.rank.rank for m in pool.members]
        evidence = [f"{m.label} made {_last_call_text(m)}" for m in pool.members if m.record.get("flight")][:8]
        for member in aborted[:2]:
            evidence += [f"{member.label}: {line}" for line in pool.lines(member) if _is_size_mismatch_line(line)][:1]
    else:
        return {}
    ranks = [pool.members[rank] for rank in guilty]
    found: dict[str, list[Finding]] = {}
    for member in ranks:
        what = f"{member.label} made another call than " + (
            "the others" if len(ranks) < len(pool.members) else "its peers"
        )
        found.setdefault(member.rank.node, []).append(
            finding_for(
                "mismatched-collectives",
                f"{what} {doing}, {rank_progress_text(member)}: "
                f"{_last_call_text(member)}{_requested_call_text(member)}",
                (*evidence, *stack_lines([member])),
                member.peers_among(m for m in pool.members if m not in ranks),
                node=member.rank.node,
                interpreter_typed=pool.inventory.node(member.rank.node).interpreter_typed,
            )
        )
    return found


def missing_call_findings(pool: RankPool, doing: str) -> dict[str, list[Finding]]:
    """Findings by node for ranks that never made the call in which the others wait."""
    seen = compare_rank_records(pool)
    if not seen or seen.kind != "behind":
        return {}
    waiting = [member for member in pool.members if member.rank.rank not in seen.ranks]
    call = next(iter(seen.made.values()), None)
    found: dict[str, list[Finding]] = {}
    for member in (pool.members[rank] for rank in seen.ranks):
        if member.aftermath:  # a broken connection kept it from this call
            continue
        found.setdefault(member.rank.node, []).append(
            finding_for(
                "rank-behind",
                f"{member.label} never called {call or 'the collective'} {doing}, "
                f"{rank_progress_text(member)}, in which "
                f"{_waiting_ranks_text(waiting)} for it"
                + (f"; it is at {_innermost_frame_text(member)}" if member.stack else ""),
                (
                    f"collective number {seen.number}, by torch's Flight Recorder: not on {member.label}",
                    *stack_lines([member, *waiting[:1]]),
                ),
                way="call",
                node=member.rank.node,
                pid=shell_word(_rank_pid(member)),
            )
        )
    return found


def busy_elsewhere_findings(pool: RankPool, doing: str) -> dict[str, list[Finding]]:
    """Findings by node for ranks whose main thread works by itself while the other ranks wait for it, whatever the
    records say."""
    known = [member for member in pool.members if member.stack]
    busy = [member for member in known if is_busy_by_itself(member.stack)]
    waiting = [member for member in pool.members if member not in busy]
    found: dict[str, list[Finding]] = {}
    for member in busy if len(busy) < len(known) else ():
        found.setdefault(member.rank.node, []).append(
            finding_for(
                "rank-behind" if "joined" in member.steps else "ranks-missing",
                f"{member.label} is somewhere else {doing}, {rank_progress_text(member)}: at "
                f"{_innermost_frame_text(member)}, while "
                f"{_waiting_ranks_text(waiting)} for it",
                stack_lines([member, *waiting[:1]]),
                member.peers_among(waiting),
                way="elsewhere",
                node=member.rank.node,
                pid=shell_word(_rank_pid(member)),
            )
        )
    return found


LOCAL_WORK_FUNCTIONS = {"fill", "compare", "room_for", "allreduce"}
"""Functions in which rank.py works on its own data; in all others it waits in a call of torch for other ranks."""


def is_busy_by_itself(stack: Sequence[str]) -> bool:
    """Whether a stack, innermost frame first, ends neither in torch nor in a wait of rank.py: in a wrapper around a
    call of torch, in code that Python runs in between, or in work on the rank's own data."""
    ours = next((frame.rpartition(" in ")[2] for frame in stack if 'rank.py"' in frame), "")
    if 'rank.py"' in stack[0]:
        return ours in LOCAL_WORK_FUNCTIONS
    for_orders = ours == "main" and any('queue.py"' in frame for frame in stack)
    return "/torch/" not in stack[0] and ours != "dial" and not for_orders


def last_recorded_call(member: RankMember) -> Call | None:
    """The last collective that torch has recorded for a rank; None when there is none."""
    entries = (member.record.get("flight") or {}).get("entries")
    return _recorded_call(entries[-1]) if entries else None


def _last_call_text(member: RankMember) -> str:
    """The last call of a rank in words."""
    return str(last_recorded_call(member) or "a call that was not recorded")


def _requested_call_text(member: RankMember) -> str:
    """What runbook asked for, when that is known, as the end of a sentence."""
    calling = member.record.get("calling") or {}
    return (
        f", where runbook asked for {calling['operation']} of {calling['count']} {calling['dtype']}"
        if "count" in calling
        else ""
    )


def _is_size_mismatch_line(line: str) -> bool:
    """Whether a line says that sizes do not fit."""
    return any(phrase in line.lower() for phrase in SIZE_MISMATCH_PHRASES)


def _waiting_ranks_text(members: Sequence[RankMember]) -> str:
    """Who waits, in words."""
    return f"{members[0].label} waits" if len(members) == 1 else f"{len(members)} other ranks wait"


def _innermost_frame_text(member: RankMember) -> str:
    """The innermost frame of a rank's stack, in words."""
    return member.stack[0].removeprefix("File ")


def _rank_pid(member: RankMember) -> object:
    """The id of the rank's process, or "PID" where it is not known."""
    started = member.steps.get("started", {})
    return member.processes[0]["pid"] if member.processes else started.get("pid", "PID")
