"""What a run kept of its ranks: stacks and flight records of a hang, and the last lines of their logs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runbook.model.verdict import Verdict
from runbook.report.html.recorded import Recorded, RunFile, number

MOST_DUMPS = 64
MOST_TEXT = 8_000
"""Characters of one stack or one log."""

MOST_FLIGHT = 4 << 20
LAST_CALLS = 8
MOST_TAILS = 12
TAIL_LINES = 30

OF_RANK = re.compile(r"rank-([0-9]{1,9})\.(.+?)\.(stack|flight\.json)")


@dataclass(frozen=True, slots=True)
class FlightCall:
    """One collective of a flight record."""

    number: str
    name: str
    state: str
    sizes: str


@dataclass(frozen=True, slots=True)
class Dump:
    """What was seen of one rank while it hung, or of a whole node (`rank` None, its file as it is)."""

    rank: int | None
    name: str
    stack: str
    calls: tuple[FlightCall, ...]


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a log; `whole`: there is nothing before it."""

    name: str
    text: str
    whole: bool


def dumps(recorded: Recorded, files: Sequence[RunFile]) -> tuple[list[Dump], int]:
    """Those of the hang, by rank, and how many more files there are."""
    stacks: dict[tuple[int, str], str] = {}
    flights: dict[tuple[int, str], tuple[FlightCall, ...]] = {}
    others: list[Dump] = []
    listed = [file for file in files if file.names[0] == "hang" and len(file.names) == 2]
    for file in listed[: 2 * MOST_DUMPS]:
        match = OF_RANK.fullmatch(file.names[1])
        if match is None:
            text = recorded.text(*file.names, most=MOST_FLIGHT) or ""
            others.append(Dump(None, file.names[1], _cut(states(text) or text), ()))
        elif match[3] == "stack":
            stacks[int(match[1]), match[2]] = _cut(recorded.text(*file.names, most=MOST_TEXT * 4) or "")
        else:
            flights[int(match[1]), match[2]] = calls(recorded.text(*file.names, most=MOST_FLIGHT) or "")
    of_ranks = [
        Dump(rank, node, stacks.get((rank, node), ""), flights.get((rank, node), ()))
        for rank, node in sorted({*stacks, *flights})
    ]
    return [*of_ranks, *others[:MOST_DUMPS]], max(0, len(listed) - 2 * MOST_DUMPS)


def states(text: str) -> str:
    """What a node told of its ranks' processes, one a line, with their stacks; empty where it is no such document."""
    try:
        ranks = json.loads(text or "null")["ranks"]
        return "\n".join(line for rank in ranks for line in _rank(rank, ranks[rank]))
    except (ValueError, RecursionError, TypeError, LookupError, AttributeError):
        return ""


def _rank(rank: str, told: Mapping[str, Any]) -> Iterator[str]:
    for process in told["processes"]:
        cpu = number(process.get("cpu"))
        busy = "" if cpu is None else f", {cpu:.0%} of a CPU"
        yield f"rank {rank}: pid {process.get('pid')} {process.get('comm')}, state {process.get('state')}{busy}, in {process.get('wchan')}"
    yield from (f"  {line}" for line in str(told.get("stack") or "").splitlines())
    for pid, stack in told["own_stacks"].items():
        yield f"  stack of {pid}:"
        yield from (f"    {line}" for line in str(stack).splitlines())


def calls(text: str) -> tuple[FlightCall, ...]:
    """The last collectives that torch's flight recorder has; nothing where it is no such record."""
    try:
        record = json.loads(text or "null")
    except (ValueError, RecursionError):
        return ()
    record = record.get("flight", record) if isinstance(record, dict) else None
    entries = record.get("entries") if isinstance(record, dict) else None
    if not isinstance(entries, list):
        return ()
    return tuple(_call(entry) for entry in entries[-LAST_CALLS:] if isinstance(entry, Mapping))


def _call(entry: Mapping[str, object]) -> FlightCall:
    number = entry.get("collective_seq_id", entry.get("record_id"))
    values = (number, entry.get("profiling_name"), entry.get("state"), entry.get("input_sizes"))
    return FlightCall(*("" if value is None else str(value)[:200] for value in values))


def tails(recorded: Recorded, files: Sequence[RunFile]) -> list[Tail]:
    """Ends of the logs of a run that did not pass: of bad nodes first, errors before other output."""
    record = recorded.record
    if record.finished is not None and record.finished.verdict in (Verdict.PASS, Verdict.SKIP):
        return []
    bad = {o.node for stage in record.stages for o in stage.outcomes if o.verdict is Verdict.FAIL}

    def order(file: RunFile) -> tuple[bool, bool, tuple[str, ...]]:
        name = file.names[-1]
        return (not any(node in name for node in bad), name.endswith(".out"), file.names)

    found = []
    for file in sorted((file for file in files if file.names[0] == "logs" and file.size), key=order)[:MOST_TAILS]:
        text = recorded.text(*file.names, most=MOST_TEXT)
        if text and text.strip():
            lines = text.splitlines()
            shown = lines[-TAIL_LINES:] if file.size <= MOST_TEXT else lines[1:][-TAIL_LINES:]
            whole = file.size <= MOST_TEXT and len(lines) <= TAIL_LINES
            found.append(Tail("/".join(file.names), "\n".join(shown), whole))
    return found


def _cut(text: str) -> str:
    return (
        text if len(text) <= MOST_TEXT else f"… {len(text) - MOST_TEXT} characters before this …\n{text[-MOST_TEXT:]}"
    )
