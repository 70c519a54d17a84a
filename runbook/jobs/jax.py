"""Two habits of JAX that hide who failed.

Its initialisation aborts whoever has waited in vain, and names nobody: who did not come is told by who did. And a
program that raised does not end: at its exit it meets its peers, who never come, for five minutes. A traceback alone is
no end of a program: it may print one and go on. So nobody is taken for lost before the grace of the job has passed in
which that rank wrote nothing after the exception, and no rank wrote anything on its stdout.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence

from runbook.checks.context import Facts
from runbook.jobs.processes import OVER, KeptProcess, KeptProcesses
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
        says = (
            f"all came to JAX's coordinator on {master} or tried to, and {first.label} gave up {wait}: not all "
            "reached it"
        )
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
        f"process {one['pid']} ({one['comm']}): state {one['state']}, {one['wchan'] or 'running'}, {one['cpu']:.0%} "
        "of a CPU"
        for one in facts.get("processes", ())[:4]
    )


def _frozen(member: KeptProcess, frozen: Mapping[str, Facts]) -> Facts:
    """What was seen of it while it lived, after the first had failed."""
    ranks = (frozen.get(member.place.node) or {}).get("ranks", {})
    return dict(ranks.get(str(member.place.ranks[0])) or {})


BEGINS = "Traceback (most recent call last):"
EXCEPTION = re.compile(r"[A-Za-z_][\w.]{0,200}(?::|$)")
NOISE = re.compile(
    r"\s|$|-{20}|[IWEF]\d{4} |For simplicity, JAX has removed|The above exception|During handling of the above"
)
"""What stands in and around a traceback, and what JAX's own runtime logs while it waits."""

MESSAGE_S = 1.0
"""So long after its first line the message of an exception may have more."""


class Raised:
    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._open: set[str] = set()
        self._said: dict[str, tuple[str, float]] = {}  # by the name of the process: the exception, and when it came
        self._stdout = 0.0  # when any process wrote there

    def heard(self, name: str, stream: str, lines: Sequence[str]) -> None:
        """Whole lines of the process of this name."""
        now = time.monotonic()
        with self._lock:
            if stream == "out":
                self._stdout = now
                self._said.pop(name, None)
                return
            for line in lines:
                self._line(name, line, now)

    def _line(self, name: str, line: str, now: float) -> None:
        if line.startswith(BEGINS):
            self._open.add(name)
            self._said.pop(name, None)
        elif NOISE.match(line):
            return
        elif name in self._open and EXCEPTION.match(line):
            self._open.discard(name)
            self._said[name] = (line, now)
        elif name in self._said and now - self._said[name][1] > MESSAGE_S:
            del self._said[name]  # it goes on

    def who(self) -> tuple[str, str] | None:
        """The process that has been silent for the grace since it raised, the first of several, and its exception."""
        now = time.monotonic()
        with self._lock:
            lost = [(at, name, says) for name, (says, at) in self._said.items() if now - at > self._grace_s]
            at, name, says = min(lost, default=(0.0, "", ""))
            return (name, says) if name and self._stdout <= at + MESSAGE_S else None
