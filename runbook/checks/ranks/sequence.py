"""Collectives of several ranks compared by their sequence numbers: who is behind, who called something else. Pure.

A recorder (torch's Flight Recorder) numbers the collectives of each process group on each rank. In a sound program call
number 7 is the same operation on the same sizes and types everywhere; where it is not, or where a rank never made it,
the others wait for ever.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["differs", "behind", "uniform", "idle"]

LONGEST = 1 << 20
"""Characters of a list of ranks: a hundred thousand of them."""
UNEVEN = ("alltoall", "allgatherv", "gather", "scatter", "reducescatterv", "send", "recv")
"""Operations whose sizes may differ between ranks, as letters only."""


@dataclass(frozen=True, slots=True)
class Call:
    """One collective as one rank made it. `sizes` are the shapes of its inputs, `dtypes` their types."""

    operation: str
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()

    @property
    def alike(self) -> tuple[object, ...]:
        """What must be the same on every rank."""
        letters = re.sub(r"[^a-z]", "", self.operation.lower())
        return (letters,) if letters.lstrip("_").startswith(UNEVEN) else (letters, self.sizes, self.dtypes)

    def __str__(self) -> str:
        if not self.sizes:
            return self.operation
        shapes = ", ".join("×".join(map(str, shape)) or "1" for shape in self.sizes[:3])
        return f"{self.operation} of {shapes} {'/'.join(dict.fromkeys(self.dtypes)) or 'elements'}"


@dataclass(frozen=True, slots=True)
class Trace:
    """What one rank did in one process group: the number of the last call it entered, of the last one that was over
    (0: none), and the calls that are still remembered, by number."""

    rank: int
    enqueued: int
    completed: int
    calls: Mapping[int, Call] = field(default_factory=dict)
    members: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CallComparison:
    """How the ranks of a group stand to each other at call `number`.

    `differs`: `ranks` made another call than the rest; all of them when there is no majority. `behind`: `ranks` never
    made it. `uniform`: every rank is in it, `ranks` are those for which it is not over. `idle`: all are between calls.
    `made` tells what each rank called, where that is known.
    """

    kind: Kind
    number: int
    ranks: tuple[int, ...]
    made: Mapping[int, Call]
    group: str = ""

    @property
    def decided(self) -> bool:
        """Whether `ranks` are some of all: somebody to look at."""
        return 0 < len(self.ranks) < len(self.made)


def compare(traces: Iterable[Trace], group: str = "") -> CallComparison | None:
    """The first thing that is wrong between these ranks of one process group; None where fewer than two are known."""
    by_rank = {trace.rank: trace for trace in traces}
    if len(by_rank) < 2:
        return None
    numbers = sorted({number for trace in by_rank.values() for number in trace.calls})
    for number in numbers:
        made = {rank: trace.calls[number] for rank, trace in by_rank.items() if number in trace.calls}
        if len({call.alike for call in made.values()}) > 1:
            return CallComparison("differs", number, _odd(made), made, group)
    stuck = min(trace.completed for trace in by_rank.values()) + 1
    made = {rank: trace.calls[stuck] for rank, trace in by_rank.items() if stuck in trace.calls}
    behind = tuple(sorted(rank for rank, trace in by_rank.items() if trace.enqueued < stuck))
    if len(behind) == len(by_rank):
        return CallComparison("idle", stuck - 1, (), made, group)
    if behind:
        return CallComparison("behind", stuck, behind, made, group)
    waiting = tuple(sorted(rank for rank, trace in by_rank.items() if trace.completed < stuck))
    return CallComparison("uniform", stuck, waiting, made, group)


def compare_all(dumps: Mapping[int, Mapping[str, Any]]) -> list[CallComparison]:
    """Every process group in these Flight Recorder dumps (by rank), what is wrong first."""
    groups: dict[str, list[Trace]] = defaultdict(list)
    for rank, dump in dumps.items():
        for name, trace in read_dump(rank, dump).items():
            groups[name].append(trace)
    found = [result for name, traces in groups.items() if (result := compare(traces, name))]
    order: Sequence[Kind] = ("differs", "behind", "uniform", "idle")
    return sorted(found, key=lambda comparison: (order.index(comparison.kind), comparison.number))


def read_dump(rank: int, dump: Mapping[str, Any]) -> dict[str, Trace]:
    """The traces of one rank by process group, from what Flight Recorder wrote; parts that are missing, or of another
    type than it writes, are left out: a rank says what it likes."""
    names: dict[str, str] = {}
    calls: dict[str, dict[int, Call]] = defaultdict(dict)
    retired: dict[str, int] = {}
    for entry in map(_mapping, _list(dump.get("entries"))):
        label = _list(entry.get("process_group")) or ["0"]
        name = names.setdefault(str(entry.get("pg_id", label[0])), str(label[0]))
        number = _number(entry.get("collective_seq_id"))
        if entry.get("is_p2p") or number < 1:
            continue
        operation = str(entry.get("profiling_name") or "a collective").rpartition(":")[2]
        sizes = tuple(tuple(map(_number, _list(shape))) for shape in _list(entry.get("input_sizes")))
        calls[name][number] = Call(operation, sizes, tuple(map(str, _list(entry.get("input_dtypes")))))
        if entry.get("retired") or entry.get("state") == "completed":
            retired[name] = max(retired.get(name, 0), number)
    traces = {}
    for key, status in ((key, _mapping(value)) for key, value in _mapping(dump.get("pg_status")).items()):
        name = names.get(str(key), str(key))
        enqueued = max([_number(status.get("last_enqueued_collective")), *calls[name]])
        completed = max(_number(status.get("last_completed_collective")), retired.get(name, 0))
        traces[name] = Trace(rank, enqueued, completed, calls[name], _members(dump, name))
    for name in calls.keys() - traces.keys():
        traces[name] = Trace(rank, max(calls[name]), retired.get(name, 0), calls[name], _members(dump, name))
    return traces


def odd_ones(intended: Mapping[int, Call], made: Mapping[int, Call]) -> tuple[int, ...]:
    """Ranks that made another call than their program meant to: what decides between two."""
    return tuple(
        sorted(
            rank
            for rank, call in made.items()
            if rank in intended and _shape(intended[rank]) != _shape(call) and "barrier" not in call.operation
        )
    )


def _shape(call: Call) -> tuple[object, ...]:
    count = 1
    for side in (side for shape in call.sizes for side in shape):
        count *= side
    return re.sub(r"[^a-z]", "", call.operation.lower()), count, tuple(_DTYPES.get(d, d).lower() for d in call.dtypes)


_DTYPES = {"float32": "Float", "float64": "Double", "float16": "Half", "int32": "Int", "int64": "Long"}
"""torch's Python names for what Flight Recorder calls by the C++ one."""


def _odd(made: Mapping[int, Call]) -> tuple[int, ...]:
    """The ranks that are not with the largest camp; every rank where two camps are equally large."""
    camps = Counter(call.alike for call in made.values()).most_common(2)
    if len(camps) > 1 and camps[0][1] == camps[1][1]:
        return tuple(sorted(made))
    return tuple(sorted(rank for rank, call in made.items() if call.alike != camps[0][0]))


def _members(dump: Mapping[str, Any], name: str) -> tuple[int, ...]:
    config = _mapping(dump.get("pg_config"))
    ranks = _mapping(config.get(name) or (config.get("") if len(config) == 1 else None)).get("ranks")
    try:
        listed = ast.literal_eval(ranks) if isinstance(ranks, str) and len(ranks) <= LONGEST else ranks
        return tuple(sorted(int(rank) for rank in _list(listed)))
    except (ValueError, SyntaxError, TypeError, OverflowError, RecursionError, MemoryError):
        return ()


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _number(value: object) -> int:
    """A sequence number as written, in text or as a number; -1 and what cannot be read are 0: nothing yet."""
    try:
        return max(0, int(str(value)))
    except (ValueError, RecursionError):
        return 0
