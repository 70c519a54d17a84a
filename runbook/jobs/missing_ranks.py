"""Which ranks did not come, when others waited for them in vain: at the barrier of files, or at JAX's coordinator.
JAX's initialisation aborts a process that has waited in vain, and names none: the missing ones are those that did not
wait."""

from __future__ import annotations

from collections.abc import Mapping

from runbook.causes.catalogue import finding_for
from runbook.checks.context import Facts
from runbook.jobs.kept_processes import OVER, KeptProcess, KeptProcesses
from runbook.jobs.logs import end_of
from runbook.model.command_quoting import word
from runbook.model.units import seconds_text, some
from runbook.model.verdict import Finding

BARRIER = "barrier: "
"""How a keeper's message begins when its process was not started because of the barrier."""


def failed_to_meet(member: KeptProcess) -> bool:
    """Whether it waited in vain for the others."""
    return member.code is None and str(member.journal.get("why") or "").startswith(BARRIER)


def why_not_met(kept: KeptProcesses, first: KeptProcess) -> tuple[str, Finding]:
    """The node at fault, and what is wrong with it. `first` waited in vain."""
    waiting = {name: kept.on(name)[0] for name in kept.nodes}  # who writes the node's name into the barrier
    owner = next((member for member in kept.members if 0 in member.place.ranks), first)
    met = _met(waiting[owner.place.node])
    absent = [name for name in kept.nodes if name not in met]
    for name in absent or [first.place.node]:
        member = waiting[name]
        folder, why = str(member.journal.get("barrier")), str(member.journal.get("why") or "").removeprefix(BARRIER)
        if why.startswith("the shared folder"):
            says = f"{name} could not meet the others: {why}"
            return name, finding_for(
                "ranks-missing", says, _seen(waiting), way="barrier-folder", name=name, folder=word(_parent(folder))
            )
        if name in _met(member):
            there = owner.place.node
            says = (
                f"{_parent(folder)} on {name} is not the folder of that name on {there}: the two nodes wait in it and "
                "do not see each other's files, so it is not shared"
            )
            return name, finding_for(
                "ranks-missing", says, _seen(waiting), (there,), way="barrier-not-shared", folder=word(_parent(folder))
            )
    missing = ", ".join(absent) or owner.place.node
    return (absent or [owner.place.node])[0], finding_for(
        "ranks-missing",
        f"{missing} did not come to the barrier of files in time: {first.journal.get('why')}",
        _seen(waiting),
        way="barrier",
        missing=missing,
        barrier=word(_parent(str(first.journal.get("barrier")))),
    )


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


WAITED = "CoordinationService/RegisterTask"
"""The call in which JAX waits for all processes, as it names it when it gives up."""


def never_met(kept: KeptProcesses, first: KeptProcess, frozen: Mapping[str, Facts]) -> tuple[str, Finding] | None:
    """The node to look at and why, where `first` gave up waiting for the others at JAX's coordinator; else None."""
    if not _waited(kept, first):
        return None
    late = [member for member in kept.members if not _waited(kept, member)]
    waited = len(kept.members) - len(late)
    absent = {member.label: how for member in late if (how := _absent(member, frozen))}
    wait = f"after {seconds_text(first.ended - first.started)}" if first.ended and first.started else "in the end"
    if not absent:
        master = kept.at.inventory.rendezvous.master
        says = (
            f"all came to JAX's coordinator on {master} or tried to, and {first.label} gave up {wait}: not all "
            "reached it"
        )
        return first.place.node, finding_for("ranks-missing", says, way="not-reached")
    who = next(member for member in kept.members if member.label in absent)
    shown = some([f"{label} {how}" for label, how in absent.items()], 4, "; ")
    says = f"{shown}: {waited} of {len(kept.members)} processes waited at JAX's coordinator, and gave up {wait}"
    log = word(kept.logs.folder / who.place.name)
    return who.place.node, finding_for("ranks-missing", says, _doing(who, frozen), way="instead", log=log)


def _waited(kept: KeptProcesses, member: KeptProcess) -> bool:
    path = kept.logs.folder / f"{member.place.name}.err"
    return WAITED in end_of(path, 65536)


def _absent(member: KeptProcess, frozen: Mapping[str, Facts]) -> str:
    """The proof that it did not come; empty without one."""
    if member.state == OVER and member.code == 0:
        return "ended with code 0 before it came"
    facts = _frozen(member, frozen)
    return "lived, and had not connected to anything" if facts and facts["connections"] == 0 else ""


def _doing(member: KeptProcess, frozen: Mapping[str, Facts]) -> tuple[str, ...]:
    facts = _frozen(member, frozen)
    if facts.get("stack"):
        return tuple(str(facts["stack"]).splitlines()[:8])
    return tuple(
        f"process {one['pid']} ({one['comm']}): state {one['state']}, {one['wchan'] or 'running'}, {one['cpu']:.0%} "
        "of a CPU"
        for one in facts.get("processes", ())[:4]
    )


def _frozen(member: KeptProcess, frozen: Mapping[str, Facts]) -> Facts:
    """What was seen of it while it lived, after the first failure."""
    ranks = (frozen.get(member.place.node) or {}).get("ranks", {})
    return dict(ranks.get(str(member.place.ranks[0])) or {})
