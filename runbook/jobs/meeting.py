"""Why nodes that were to meet in a folder, by themselves, did not: who is to blame, and for what."""

from __future__ import annotations

from runbook.jobs.kept import KeptProcess, KeptProcesses
from runbook.model.commands import word
from runbook.model.verdict import Finding

BARRIER = "barrier: "
"""What a keeper says first where its process was not started because of it."""


def failed_to_meet(member: KeptProcess) -> bool:
    """Whether it waited in vain for the others."""
    return member.code is None and str(member.journal.get("why") or "").startswith(BARRIER)


def why_not_met(kept: KeptProcesses, first: KeptProcess) -> tuple[str, Finding]:
    """The node that is to blame, and what is wrong with it. `first` waited in vain."""
    waiting = {name: _who_waits(kept, name) for name in kept.nodes}
    owner = next(member for member in kept.members if 0 in member.place.ranks)
    met = _met(waiting[owner.place.node])
    absent = [name for name in kept.nodes if name not in met]
    for name in absent or [first.place.node]:
        member = waiting[name]
        folder, why = str(member.journal.get("barrier")), str(member.journal.get("why") or "").removeprefix(BARRIER)
        if why.startswith("the shared folder"):
            return name, Finding(
                "ranks-missing",
                f"{name} could not meet the others: {why}",
                f"on {name}, as the user of the run: `ls -ld {word(_parent(folder))}; touch {word(_parent(folder))}/x; df {word(_parent(folder))}`; or name "
                "another folder that all nodes may write to: `barrier_folder:`",
                _seen(waiting),
            )
        if name in _met(member):
            there = owner.place.node
            return name, Finding(
                "ranks-missing",
                f"{_parent(folder)} on {name} is not the folder of that name on {there}: the two nodes wait in it and do not see "
                "each other's files. It is not shared",
                f"mount the same folder on both, which `findmnt -T {word(_parent(folder))}` shows on each; name one that is shared "
                "with `barrier_folder:`; or leave out `barrier: file`",
                _seen(waiting),
                (there,),
            )
    missing = ", ".join(absent) or owner.place.node
    return (absent or [owner.place.node])[0], Finding(
        "ranks-missing",
        f"{missing} did not come to the barrier of files in time: {first.journal.get('why')}",
        f"look at the load of {missing} and whether its shared folder answers: `time ls {word(_parent(str(first.journal.get('barrier'))))}`; "
        "more time is given with `start_timeout:`",
        _seen(waiting),
    )


def _who_waits(kept: KeptProcesses, node: str) -> KeptProcess:
    """The process of a node that puts down its name."""
    return kept.on(node)[0]


def _met(member: KeptProcess) -> list[str]:
    return list(member.journal.get("met") or ())


def _seen(waiting: dict[str, KeptProcess]) -> tuple[str, ...]:
    lines = []
    for name, member in list(waiting.items())[:8]:
        place = f", {member.journal['met_on']}" if member.journal.get("met_on") else ""
        lines.append(f"{name} saw there: {', '.join(_met(member)) or 'nobody'}{place}")
    return tuple(lines)


def _parent(folder: str) -> str:
    """Where the folder of the attempt, which is gone by now, was made."""
    return folder.rpartition("/")[0] or "/"
