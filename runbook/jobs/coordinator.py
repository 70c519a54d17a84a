"""JAX's initialisation aborts whoever has waited in vain, and names nobody: who did not come is told by who did."""

from __future__ import annotations

from collections.abc import Mapping

from runbook.checks.context import Facts
from runbook.jobs.kept import OVER, KeptProcess, KeptProcesses
from runbook.model.commands import word
from runbook.model.units import seconds_text
from runbook.model.verdict import Finding

WAITED = "CoordinationService/RegisterTask"
"""The call in which JAX waits for all processes, as it names it when it gives up."""


def never_met(kept: KeptProcesses, first: KeptProcess, frozen: Mapping[str, Facts]) -> tuple[str, Finding] | None:
    """The node to look at and why, where `first` gave up waiting for the others at JAX's coordinator; else None."""
    if not _waited(kept, first):
        return None
    waited = [member for member in kept.members if _waited(kept, member)]
    absent = {member.label: how for member in kept.members if member not in waited and (how := _absent(member, frozen))}
    wait = f"after {seconds_text(first.ended - first.started)}" if first.ended and first.started else "in the end"
    if not absent:
        master = kept.at.inventory.rendezvous.master
        says = f"all came to JAX's coordinator on {master} or tried to, and {first.label} gave up {wait}: not all reached it"
        remedy = "put `- check: port` and `- check: firewall` before the launch: they name what is in the way"
        return first.place.node, Finding("ranks-missing", says, remedy)
    who = next(member for member in kept.members if member.label in absent)
    told = "; ".join(f"{label} {how}" for label, how in list(absent.items())[:4])
    more = f" and {len(absent) - 4} more" if len(absent) > 4 else ""
    says = (
        f"{told}{more}: {len(waited)} of {len(kept.members)} processes waited at JAX's coordinator, and gave up {wait}"
    )
    remedy = f"see what it did instead: `less {word(kept.logs.folder / who.place.name)}.err`, and `.out`"
    return who.place.node, Finding("ranks-missing", says, remedy, _doing(who, frozen))


def _waited(kept: KeptProcesses, member: KeptProcess) -> bool:
    path = kept.logs.folder / f"{member.place.name}.err"
    return path.is_file() and WAITED in path.read_text(errors="replace")[-65536:]


def _absent(member: KeptProcess, frozen: Mapping[str, Facts]) -> str:
    """How it is known that it did not come; empty where it is not."""
    if member.state == OVER and member.code == 0:
        return "ended with code 0 before it came"
    facts = _frozen(member, frozen)
    return "lived, and had not connected to anything" if facts and facts.get("moved") is None else ""


def _doing(member: KeptProcess, frozen: Mapping[str, Facts]) -> tuple[str, ...]:
    facts = _frozen(member, frozen)
    if facts.get("stack"):
        return tuple(str(facts["stack"]).splitlines()[:8])
    return tuple(
        f"process {one['pid']} ({one['comm']}): state {one['state']}, {one['wchan'] or 'running'}, {one['cpu']:.0%} of a CPU"
        for one in facts.get("processes", ())[:4]
    )


def _frozen(member: KeptProcess, frozen: Mapping[str, Facts]) -> Facts:
    """What was seen of it while it lived, after the first had failed."""
    ranks = (frozen.get(member.place.node) or {}).get("ranks", {})
    return dict(ranks.get(str(member.place.ranks[0])) or {})
