"""From flight records to blame: which ranks made another call than their program, or than the others; who never came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runbook.checks.ranks.sequence import Call, CallComparison, compare_all, odd_ones
from runbook.checks.ranks.words import progress, stack_lines
from runbook.model.commands import word
from runbook.model.verdict import Finding

if TYPE_CHECKING:
    from runbook.checks.ranks.pool import RankMember, RankPool

MISMATCH = ("data size doesn't match expected size", "mismatch between collectives", "collective mismatch")
"""What gloo and torch's own debugging say when the sizes of two ranks do not fit, in lower case."""


def comparison(pool: RankPool) -> CallComparison | None:
    """How the ranks stand to each other by torch's own record of their collectives; None where there is none."""
    dumps = {m.rank.rank: m.record["flight"] for m in pool.members if m.record.get("flight")}
    found = [result for result in compare_all(dumps) if result.kind != "idle"]
    return found[0] if found else None


def faithless(pool: RankPool) -> tuple[int, ...]:
    """Ranks for which torch has recorded other calls than our program made: something between the two meddles."""
    meant: dict[int, Call] = {}
    made: dict[int, Call] = {}
    miscounted = set()
    for member in pool.members:
        record = member.record
        rank = member.rank.rank
        if (last := made_last(member)) and (calling := record.get("calling")):
            sizes = ((int(calling["count"]),),) if "count" in calling else ()
            meant[rank] = Call(calling["operation"], sizes, (calling["dtype"],) if sizes else ())
            made[rank] = last
        if record.get("recorded") is not None and last and asked(member) != enqueued(member):
            miscounted.add(rank)
    return tuple(sorted({*odd_ones(meant, made), *miscounted}))


def skipping(pool: RankPool, behind: Sequence[int]) -> tuple[int, ...]:
    """Of the ranks that are behind, those that have gone on without a call that their program asked for; one that is
    still on its way into the call is only late."""
    members = [pool.members[rank] for rank in faithless(pool) if rank in behind]
    return tuple(m.rank.rank for m in members if m.stack and not busy_by_itself(m.stack) and asked(m) > enqueued(m))


def asked(member: RankMember) -> int:
    """How many collectives the program has asked torch for, counted as Flight Recorder does."""
    return int(member.record.get("calls", 0)) + int(member.record.get("recorded") or 0)


def enqueued(member: RankMember) -> int:
    status = (member.record.get("flight") or {}).get("pg_status") or {}
    return max([int(one.get("last_enqueued_collective", 0)) for one in status.values()] or [0])


def mismatched(pool: RankPool, doing: str) -> dict[str, list[Finding]]:
    """Ranks that called something else than the others: by the records, or by what gloo says as it aborts."""
    seen = comparison(pool)
    aborted = [m for m in pool.members if any(phrase in "".join(m.log).lower() for phrase in MISMATCH)]
    guilty: Sequence[int] = ()
    if seen and seen.kind == "differs":
        own = faithless(pool)
        guilty = own if own and len(own) < len(pool.members) else seen.ranks
        evidence = [f"{pool.members[rank].label} called {call}" for rank, call in sorted(seen.made.items())[:8]]
        evidence.append(f"of collective number {seen.number}, by torch's Flight Recorder on each rank")
    elif seen and seen.kind == "behind" and (skipped := skipping(pool, seen.ranks)):
        guilty = skipped
        evidence = [
            f"{pool.members[rank].label} asked torch for {asked(pool.members[rank])} collectives, and torch has recorded "
            f"{enqueued(pool.members[rank])}"
            for rank in skipped
        ]
    elif aborted:
        own = faithless(pool)
        others = [m for m in pool.members if m not in aborted]
        if own:
            guilty = own
        elif others and all(m.record.get("flight") for m in others):
            guilty = [m.rank.rank for m in aborted]  # the others are seen to have called what they should
        else:
            guilty = [m.rank.rank for m in pool.members]
        evidence = [f"{m.label} made {_made(m)}" for m in pool.members if m.record.get("flight")][:8]
        for member in aborted[:2]:
            evidence += [f"{member.label}: {line}" for line in pool.lines(member) if _tells(line)][:1]
    else:
        return {}
    ranks = [pool.members[rank] for rank in guilty]
    found: dict[str, list[Finding]] = {}
    for member in ranks:
        what = f"{member.label} made another call than " + (
            "the others" if len(ranks) < len(pool.members) else "its peers"
        )
        found.setdefault(member.rank.node, []).append(
            Finding(
                "mismatched-collectives",
                f"{what} {doing}, {progress(member)}: {_made(member)}{_meant(member)}",
                f"on {member.rank.node} find what wraps or replaces torch.distributed: "
                f"`{pool.inventory.node(member.rank.node).interpreter_typed} -v -c pass 2>&1 | grep -E 'customize|\\.pth'`; in a "
                "training program, a branch that not every rank takes",
                (*evidence, *stack_lines([member])),
                tuple(sorted({m.rank.node for m in pool.members if m not in ranks} - {member.rank.node})),
            )
        )
    return found


def absent(pool: RankPool, doing: str) -> dict[str, list[Finding]]:
    """Ranks that never made the call in which the others wait."""
    seen = comparison(pool)
    if not seen or seen.kind != "behind":
        return {}
    waiting = [member for member in pool.members if member.rank.rank not in seen.ranks]
    call = next(iter(seen.made.values()), None)
    found: dict[str, list[Finding]] = {}
    for rank in seen.ranks:
        member = pool.members[rank]
        found.setdefault(member.rank.node, []).append(
            Finding(
                "rank-behind",
                f"{member.label} never called {call or 'the collective'} {doing}, {progress(member)}, in which "
                f"{_people(waiting)} for it" + (f"; it is at {_place(member)}" if member.stack else ""),
                f"see what it does there: its stack is in the evidence; on {member.rank.node} `top` shows load, and "
                f"`py-spy dump --pid {word(_pid(member))}` what it is in now",
                (
                    f"collective number {seen.number}, by torch's Flight Recorder: not on {member.label}",
                    *stack_lines([member, *waiting[:1]]),
                ),
            )
        )
    return found


def elsewhere(pool: RankPool, doing: str) -> dict[str, list[Finding]]:
    """Ranks whose main thread is busy by itself while that of others waits for them, whatever is recorded."""
    known = [member for member in pool.members if member.stack]
    busy = [member for member in known if busy_by_itself(member.stack)]
    waiting = [member for member in pool.members if member not in busy]
    found: dict[str, list[Finding]] = {}
    for member in busy if len(busy) < len(known) else ():
        found.setdefault(member.rank.node, []).append(
            Finding(
                "rank-behind" if "joined" in member.steps else "ranks-missing",
                f"{member.label} is somewhere else {doing}, {progress(member)}: at {_place(member)}, while {_people(waiting)} "
                "for it",
                f"see what it does there: its stack is in the evidence; on {member.rank.node} `py-spy dump --pid {word(_pid(member))}` shows it live",
                stack_lines([member, *waiting[:1]]),
                tuple(sorted({m.rank.node for m in waiting} - {member.rank.node})),
            )
        )
    return found


WORKS = {"fill", "compare", "room_for", "allreduce"}
"""Where rank.py works on its own data; elsewhere it waits in a call of torch for the other ranks."""


def busy_by_itself(stack: Sequence[str]) -> bool:
    """Whether these frames, the innermost first, end in what is neither torch nor a wait of rank.py: a wrapper around
    a call of torch, something that Python runs in between, work on its own data."""
    ours = next((frame.rpartition(" in ")[2] for frame in stack if 'rank.py"' in frame), "")
    if 'rank.py"' in stack[0]:
        return ours in WORKS
    for_orders = ours == "main" and any('queue.py"' in frame for frame in stack)
    return "/torch/" not in stack[0] and ours != "dial" and not for_orders


def made_last(member: RankMember) -> Call | None:
    """The last collective that torch has recorded for a rank."""
    entries = (member.record.get("flight") or {}).get("entries") or []
    if not entries:
        return None
    last = entries[-1]
    name = str(last.get("profiling_name", "a collective")).rpartition(":")[2]
    sizes = tuple(tuple(shape) for shape in last.get("input_sizes") or ())
    return Call(name, sizes, tuple(last.get("input_dtypes") or ()))


def _made(member: RankMember) -> str:
    return str(made_last(member) or "a call that nobody recorded")


def _meant(member: RankMember) -> str:
    calling = member.record.get("calling") or {}
    return (
        f", where runbook asked for {calling['operation']} of {calling['count']} {calling['dtype']}"
        if "count" in calling
        else ""
    )


def _tells(line: str) -> bool:
    return any(phrase in line.lower() for phrase in MISMATCH)


def _people(members: Sequence[RankMember]) -> str:
    return f"{members[0].label} waits" if len(members) == 1 else f"{len(members)} other ranks wait"


def _place(member: RankMember) -> str:
    return member.stack[0].removeprefix("File ")


def _pid(member: RankMember) -> object:
    started = member.steps.get("started", {})
    return member.processes[0]["pid"] if member.processes else started.get("pid", "PID")
