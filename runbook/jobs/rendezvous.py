"""Ranks that do not meet: who has not come, and what keeps those that came apart.

Libraries wait five minutes to half an hour for a rank that never comes, and name nobody. After the launch's
`rendezvous_timeout` the kernels of all nodes are asked which rank has a connection to the rendezvous port. Where one
has none, every rank is looked at as on a stall, and what lies between the nodes with it. The job ends only where that
proves what is wrong. A rank that works on its way there (it imports, compiles, reads) is accused of nothing, and no
other is while it does: they may wait for it.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from runbook.causes.findings import finding_for
from runbook.checks.context import Context, Facts
from runbook.checks.network.live_traffic import between, flows
from runbook.checks.ranks.evidence import rank_stopped
from runbook.jobs.ending import freeze
from runbook.jobs.processes import KeptProcess, KeptProcesses
from runbook.jobs.stalled import StackFrame, frames_of, shown
from runbook.launch.ranks import dialled_address
from runbook.model.commands import word
from runbook.model.inventory import Inventory
from runbook.model.units import seconds_text
from runbook.model.verdict import Finding
from runbook.transport.answers import Flows

LOOK_S = 2.0
"""For so long the CPU time, the reading and the traffic of a rank are counted."""

BETWEEN_S = 6.0

IDLE_S = 15.0
"""A rank that is idle is looked at once more after this."""

AT_RENDEZVOUS = re.compile(r"/torch/distributed/(?:elastic/)?rendezvous\b|/jax/_src/distributed\.py$")
JOINS = "init_process_group"


@dataclass(frozen=True, slots=True)
class Seat:
    """A kept process, and how far it came. `connected` to the rendezvous port, or listens there; `dials`: endpoints
    that have not answered it yet; `stacks` are those of its threads that told, the innermost frame first."""

    member: KeptProcess
    connected: bool
    dials: tuple[str, ...]
    seen: Facts
    stacks: tuple[tuple[StackFrame, ...], ...] = ()

    @property
    def waits(self) -> bool:
        """Whether it is on its way to the others, or waits there."""
        return bool(self.dials) or any(map(_joins, self.stacks))

    @property
    def state(self) -> str:
        """The states of its processes, a letter each."""
        return "".join(str(one["state"]) for one in self.seen.get("processes", ()))

    @property
    def works(self) -> bool:
        return bool(self.seen.get("works") or self.seen.get("moved")) or any(state in "RD" for state in self.state)

    @property
    def does(self) -> str:
        place = next((f" in {stack[0]}" for stack in self.stacks if stack), "")
        if self.works:
            return f"it still works{place}"
        return f"it sleeps{place}"


def _joins(frames: Sequence[StackFrame]) -> bool:
    return any(AT_RENDEZVOUS.search(frame.file) or frame.function == JOINS for frame in frames)


class RendezvousWatch:
    """`inventory` is the attempt's: it has its port."""

    def __init__(self, inventory: Inventory, timeout_s: float) -> None:
        self._inventory = inventory
        self._timeout_s = timeout_s
        self._begun: float | None = None
        self._due = math.inf
        self._idle: frozenset[str] = frozenset()  # labels of ranks that were absent and idle at the look before

    def begin(self) -> None:
        """All processes have been started. Later calls change nothing."""
        if self._begun is None:
            self._begun = time.monotonic()
            self._due = self._begun + self._timeout_s

    def met(self) -> None:
        """The ranks are known to have met: it is not looked again."""
        self._due = math.inf

    def due(self) -> bool:
        return time.monotonic() >= self._due

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - (self._begun or time.monotonic())

    def look(self, kept: KeptProcesses) -> dict[str, list[Finding]]:
        """Findings by guilty node. None where all have met, or nobody waits, or nothing is proven: then it is due again
        after as long as has passed."""
        at = replace(kept.at, inventory=self._inventory, deadline=time.monotonic() + LOOK_S)
        told = flows(at)
        seats = seats_of(kept, told, at.inventory.rendezvous.port)
        heard = set(kept.nodes) <= told.keys()
        if len(seats) < 2 or (heard and all(one.connected and not one.dials for one in seats)):
            self.met()
            return {}
        self._due = time.monotonic() + max(IDLE_S, self.seconds)
        seats = [_seen(seat, frozen) for frozen in [freeze(kept, seconds=LOOK_S)] for seat in seats]
        if not any(one.waits for one in seats):
            return {}  # they do not meet at this port, or all of them are on their way
        where = f"{dialled_address(at.inventory.rendezvous, len(at.nodes))}:{at.inventory.rendezvous.port}"
        since = f"not all ranks have met at {where} after {seconds_text(self.seconds)}"
        kept.at.say(f"{since}: looking at every rank")
        opened = _opened(told, at)
        return (
            _stopped(seats, since)
            or self._kept_apart(at, seats)
            or self._absent(kept, seats, since, opened=opened, blind=sorted(set(kept.nodes) - told.keys()))
        )

    def _kept_apart(self, at: Context, seats: Sequence[Seat]) -> dict[str, list[Finding]]:
        """What lies between the nodes of those that are not connected, though they try to be, and all others."""
        trying = [one for one in seats if (not one.connected or one.dials) and (one.waits or not one.stacks)]
        if not trying or len(at.nodes) < 2 or at.inventory.one_machine:
            return {}
        seen = between(at, timeout_s=BETWEEN_S)
        lines = tuple(f"{one.member.label} dials {', '.join(one.dials[:4])}" for one in trying if one.dials)[:4]
        return {
            node: [replace(one, evidence=(*one.evidence, *lines)) for one in listed]
            for node, listed in seen.findings.items()
        }

    def _absent(
        self, kept: KeptProcesses, seats: Sequence[Seat], since: str, *, opened: bool, blind: Sequence[str]
    ) -> dict[str, list[Finding]]:
        """Who has not come, where none of them works any more."""
        host = next((one for one in seats if 0 in one.member.place.ranks), None)
        absent = [
            one
            for one in seats
            if not one.connected and not one.waits and (opened or one.stacks or one is host)  # who is refused waits too
        ]
        names = {one.member.label for one in absent}
        idle = bool(absent) and not blind and all(one.seen and not one.works for one in absent)
        if idle and names <= self._idle:
            return _missing(seats, absent, since)
        self._idle = frozenset(names) if idle else frozenset()
        if idle:
            self._due = time.monotonic() + IDLE_S
        for one in absent[:4]:
            kept.at.say(f"{one.member.label} has not come to the rendezvous yet: {one.does}", one.member.place.node)
        for name in blind[:4]:
            kept.at.say(f"{name} could not be looked at", name)
        if not absent and not blind:
            kept.at.say(f"all {len(seats)} are at the rendezvous or try to get there, and nothing is seen between them")
        return {}


def seats_of(kept: KeptProcesses, told: Mapping[str, Flows], port: int) -> list[Seat]:
    """Of the processes that live, by the sockets that their nodes told of."""
    return [_seat(member, told.get(member.place.node), port) for member in kept.members if not member.over]


def _seat(member: KeptProcess, told: Flows | None, port: int) -> Seat:
    place = member.place
    ranks = {*place.ranks, None} if place.each else set(place.ranks)  # a launcher has no rank
    mine = [one for one in told["connections"] if one["rank"] in ranks] if told else []
    listens = [one["port"] for one in told["listening"] if one["rank"] in ranks] if told else []
    return Seat(
        member,
        connected=port in listens
        or any(one["open"] and port in (one["remote_port"], one["local_port"]) for one in mine),
        dials=tuple(dict.fromkeys(f"{one['remote']}:{one['remote_port']}" for one in mine if not one["open"])),
        seen={},
    )


def _seen(seat: Seat, frozen: Mapping[str, Facts]) -> Seat:
    place = seat.member.place
    seen = frozen.get(place.node, {}).get("ranks", {}).get(str(place.ranks[0])) or {}
    texts = [*seen.get("own_stacks", {}).values(), seen.get("stack") or ""]
    return replace(seat, seen=seen, stacks=tuple(frames for text in texts if (frames := frames_of(text))))


def _opened(told: Mapping[str, Flows], at: Context) -> bool:
    """Whether somebody listens where the ranks are to meet."""
    rendezvous = at.inventory.rendezvous
    master = told.get(rendezvous.master)
    return master is not None and any(one["port"] == rendezvous.port for one in master["listening"])


def _stopped(seats: Sequence[Seat], since: str) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for seat in seats:
        node = seat.member.place.node
        for one in [one for one in seat.seen.get("processes", ()) if one["state"] in "Tt"][:1]:
            told = rank_stopped(seat.member.label, node, one["pid"], one["state"], one["wchan"], since)
            found.setdefault(node, []).append(told)
    return found


def _missing(seats: Sequence[Seat], absent: Sequence[Seat], since: str) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    waiting = [one for one in seats if one.connected or one.waits]
    for seat in absent:
        member = seat.member
        node, pid = member.place.node, member.journal.get("pid")
        says = (
            f"{member.label} has not come to the rendezvous: {seat.does}, in two looks {IDLE_S:.0f} s apart; "
            f"{len(waiting)} of {len(seats)} wait for it; {since}"
        )
        told = [line for frames in seat.stacks[:1] for line in shown(member.label, frames)]
        states = f"{member.label}: process {pid}, states {seat.state or 'unknown'}"
        peers = tuple(sorted({one.member.place.node for one in waiting} - {node}))
        found.setdefault(node, []).append(
            finding_for("ranks-missing", says, (states, *told), peers, way="hangs", node=node, pid=word(pid or "PID"))
        )
    return found
