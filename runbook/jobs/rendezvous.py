"""Ranks that do not meet: which have not come, and what separates those that came.

Libraries wait five minutes to half an hour for a rank that never comes, and do not name it. After the launch's
`rendezvous_timeout` the kernels of all nodes are asked which rank has a connection to the rendezvous port. When one has
none, every rank is looked at as on a stall, and the network between the nodes as well. The job ends only where that
proves what is wrong. While a rank works on its way there (it imports, compiles, reads), neither it nor any other is
accused: they may wait for it.

Where ranks ended because they had waited in vain, at the barrier of files or at JAX's coordinator, the missing ones are
those that did not wait: JAX's initialisation aborts a process that has waited, and names none.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from runbook.causes.catalogue import finding_for
from runbook.checks.context import Context, Facts
from runbook.checks.network.dial import number
from runbook.checks.network.live_traffic import between, names_by_address, rank_connections
from runbook.checks.ranks.evidence import rank_stopped
from runbook.files.address import is_ip, is_loopback, one_spelling
from runbook.jobs.attempt import ProcessSpec
from runbook.jobs.kept_processes import OVER, KeptProcess, KeptProcesses
from runbook.jobs.logs import end_of
from runbook.jobs.seen_processes import StackFrame, frames_of, shown, unlike_settings
from runbook.jobs.stop_attempt import freeze
from runbook.launch.ranks import dialled_address, endpoint
from runbook.model.command_quoting import word
from runbook.model.grouping import grouped
from runbook.model.inventory import Inventory
from runbook.model.units import seconds_text, some
from runbook.model.verdict import Finding
from runbook.node.proc import SHELLS
from runbook.transport.node_answers import RankConnections

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
    return WAITED in end_of(kept.log_of(member.place), 65536)


def _absent(member: KeptProcess, frozen: Mapping[str, Facts]) -> str:
    """The proof that it did not come; empty without one."""
    if member.state == OVER and member.code == 0:
        return "ended with code 0 before it came"
    facts = member.seen_in(frozen)
    return "lived, and had not connected to anything" if facts and facts["connections"] == 0 else ""


def _doing(member: KeptProcess, frozen: Mapping[str, Facts]) -> tuple[str, ...]:
    facts = member.seen_in(frozen) or {}
    if facts.get("stack"):
        return tuple(str(facts["stack"]).splitlines()[:8])
    return tuple(
        f"process {one['pid']} ({one['comm']}): state {one['state']}, {one['wchan'] or 'running'}, {one['cpu']:.0%} "
        "of a CPU"
        for one in facts.get("processes", ())[:4]
    )


LOOK_S = 2.0
"""How long the CPU time, the reading and the traffic of a rank are counted."""

WORKS = 0.05
"""This share of one CPU counts as work."""

DOWNLOAD = 64 << 10
"""More bytes within a look than launchers exchange, or who waits at the store."""

BETWEEN_S = 6.0

IDLE_S = 15.0
"""A rank that is idle is looked at once more after this."""

AT_RENDEZVOUS = re.compile(r"/torch/distributed/(?:elastic/)?rendezvous\b|/jax/_src/distributed\.py$")
JOINS = "init_process_group"
NOBODY: RankConnections = {"connections": [], "listening": []}


@dataclass(frozen=True, slots=True)
class Arrival:
    """A rank, or a launcher that has not started any, and how far it came. `connected` to the rendezvous port, or
    listening there; `dials`: addresses and ports that have not answered it yet; `processes` as `rank_processes` gives
    them; `stacks` are theirs, the innermost frame first."""

    place: ProcessSpec
    connected: bool
    dials: tuple[tuple[str, int], ...]
    processes: tuple[Facts, ...]
    stacks: tuple[tuple[StackFrame, ...], ...]
    works: bool

    @property
    def own(self) -> Facts | None:
        """Its own process: the first that is no shell."""
        return next((one for one in self.processes if one["comm"] not in SHELLS), None)

    @property
    def waits(self) -> bool:
        """Whether it is on its way to the others, or waits there."""
        return bool(self.dials) or any(map(_joins, self.stacks))

    @property
    def does(self) -> str:
        place = next((f" in {stack[0]}" for stack in self.stacks), "")
        return f"it still works{place}" if self.works else f"it sleeps{place}"

    @property
    def dialled(self) -> list[str]:
        """The first of its dials, as words."""
        return [endpoint(*one) for one in self.dials[:4]]

    def shown(self) -> tuple[str, ...]:
        """Lines of evidence for where its first process is; none without frames."""
        return tuple(line for frames in self.stacks[:1] for line in shown(self.place.label, frames))


def _joins(frames: Sequence[StackFrame]) -> bool:
    return any(AT_RENDEZVOUS.search(frame.file) or frame.function == JOINS for frame in frames)


class RendezvousWatch:
    """`inventory` is the attempt's: it has its port."""

    def __init__(self, inventory: Inventory, timeout_s: float) -> None:
        self._inventory = inventory
        self._timeout_s = timeout_s
        self._begun: float | None = None
        self._due = math.inf
        self._told = False  # how the settings of ranks differ
        self._idle: frozenset[str] = frozenset()  # labels of ranks that were absent and idle at the look before

    def begin(self) -> None:
        """All processes have been started. Later calls change nothing."""
        if self._begun is None:
            self._begun = time.monotonic()
            self._due = self._begun + self._timeout_s

    def met(self) -> None:
        """The ranks are known to have met: there are no further looks."""
        self._due = math.inf

    def due(self) -> bool:
        return time.monotonic() >= self._due

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - (self._begun or time.monotonic())

    def look(self, kept: KeptProcesses) -> dict[str, list[Finding]]:
        """Findings by node. None when all have met, none waits, or nothing is proven: then the next look is due after
        as long again."""
        at = replace(kept.at, inventory=self._inventory, deadline=time.monotonic() + LOOK_S)
        rendezvous = at.inventory.rendezvous
        ours = set(names_by_address(at))
        answers = within_job(rank_connections(at), ours, rendezvous.port)
        for line in () if self._told else unlike_settings(kept, answers):
            kept.at.say(line)
        self._told = True
        came = all_connected(kept, answers, rendezvous.port)
        if kept.ranks < 2 or (came and talk_together(answers, ours, rendezvous.port)):
            self.met()
            return {}
        self._due = time.monotonic() + max(IDLE_S, self.seconds)
        arrivals = list(arrivals_of(kept, answers, freeze(kept, seconds=LOOK_S), rendezvous.port))
        if came:
            return self._held(arrivals, answers)
        if not any(one.waits for one in arrivals):
            return {}  # they do not meet at this port, or all are still on their way
        where = endpoint(dialled_address(rendezvous, len(at.nodes)), rendezvous.port)
        since = f"not all ranks have met at {where} after {seconds_text(self.seconds)}"
        kept.at.say(f"{since}: looking at every rank")
        opened = rendezvous.port in {one["port"] for one in answers.get(rendezvous.master, NOBODY)["listening"]}
        blind = sorted({node.name for node in at.nodes} - answers.keys())
        return (
            _stopped(arrivals, since)
            or _kept_apart(at, arrivals)
            or self._absent(
                kept,
                arrivals,
                since,
                where=where,
                right=_dial_the_master(at, arrivals, ours),
                opened=opened,
                blind=blind,
            )
        )

    def _held(self, arrivals: Sequence[Arrival], answers: Mapping[str, RankConnections]) -> dict[str, list[Finding]]:
        """All ranks have come. Where all of them still wait there, idle, it is for ranks that the job does not have, or
        somebody takes itself for rank 0 too."""
        if not all(one.waits for one in arrivals):
            self.met()
            return {}
        idle = not any(one.works for one in arrivals)
        before, self._idle = self._idle, frozenset(one.place.label for one in arrivals if idle)
        if not idle:
            return {}
        if before != self._idle:
            self._due = time.monotonic() + IDLE_S
            return {}
        port = self._inventory.rendezvous.port
        listen = {one["rank"] for its in answers.values() for one in its["listening"] if one["port"] == port}
        if twice := [one for one in arrivals if one.place.rank and one.place.rank in listen]:
            return grouped((one.place.node, _second(one, port)) for one in twice)
        says = (
            f"all {len(arrivals)} ranks of the job are connected to the rendezvous and wait there, in two looks "
            f"{IDLE_S:.0f} s apart: for more ranks than there are, after {seconds_text(self.seconds)}"
        )
        of_node = {arrival.place.node: arrival for arrival in reversed(arrivals)}  # the first of each
        return {
            name: [finding_for("world-size-mismatch", says, arrival.shown(), way="program")]
            for name, arrival in of_node.items()
        }

    def _absent(
        self,
        kept: KeptProcesses,
        arrivals: Sequence[Arrival],
        since: str,
        *,
        where: str,
        right: Set[str],
        opened: bool,
        blind: Sequence[str],
    ) -> dict[str, list[Finding]]:
        """The ranks that have not come, or wait somewhere else, when none of them still works. `right`: the labels of
        those that dial where they should."""
        absent = [
            one
            for one in arrivals
            if not (one.connected or one.waits)
            # a rank that is refused waits too, and may not be able to say so
            and (opened or one.stacks or 0 in one.place.ranks)
        ]
        met = opened and any(one.connected for one in arrivals)
        elsewhere = [one for one in arrivals if not one.connected and one.waits and one.place.label not in right]
        astray = elsewhere if met else []
        # None of them even tries this port, and yet all are in the call that does.
        strangers = () if opened or any(one.connected or one.dials or not one.waits for one in arrivals) else arrivals
        late = [*absent, *astray, *strangers]
        names = frozenset(one.place.label for one in late)
        idle = bool(late) and not blind and all(one.processes and not one.works for one in late)
        if idle and names <= self._idle:
            return _missing(arrivals, absent, since) or _astray(astray, since, where) or _strangers(late, since, where)
        self._idle = names if idle else frozenset()
        if idle:
            self._due = time.monotonic() + IDLE_S
        for one in absent[:4]:
            kept.at.say(f"{one.place.label} has not come to the rendezvous yet: {one.does}", one.place.node)
        for name in blind[:4]:
            kept.at.say(f"{name} could not be looked at", name)
        if not absent and not blind:
            kept.at.say(
                f"all {len(arrivals)} are at the rendezvous or try to get there, and nothing wrong is seen between them"
            )
        return {}


def _strangers(late: Sequence[Arrival], since: str, where: str) -> dict[str, list[Finding]]:
    """All wait for each other in a place of the program's own choice, which is not one for all of them."""
    says = (
        f"{since}: all {len(late)} ranks wait in {JOINS}, and none opened or dialled that port: the program has them "
        'meet elsewhere, as by `init_method="file://…"`, and they do not find each other there'
    )
    lines = tuple(line for one in late[:2] for line in one.shown())
    return grouped(
        (one.place.node, finding_for("ranks-missing", says, lines, way="of-its-own", where=where))
        for one in {one.place.node: one for one in late}.values()
    )


def _dial_the_master(at: Context, arrivals: Sequence[Arrival], known: Set[str]) -> set[str]:
    """The labels of those that dial the rendezvous port at an address of the master; `known`: the nodes' addresses.
    What a name means to a rank may be an address that no node knows as its own."""
    rendezvous = at.inventory.rendezvous
    written = one_spelling(dialled_address(rendezvous, len(at.nodes)))
    home = {written, number(at, rendezvous.master), *at.own_addresses(rendezvous.master)}

    def leads_home(address: str, place: ProcessSpec) -> bool:
        if is_loopback(address):
            return address == written or place.node == rendezvous.master
        return address in home or (not is_ip(written) and address not in known)

    return {
        one.place.label
        for one in arrivals
        if any(port == rendezvous.port and leads_home(address, one.place) for address, port in one.dials)
    }


def within_job(answers: Mapping[str, RankConnections], ours: Set[str], port: int) -> dict[str, RankConnections]:
    """Without the dials to elsewhere: a rank that waits for a server of its own does not wait for the other ranks."""
    return {
        name: {
            **one,
            "connections": [
                each
                for each in one["connections"]
                if each["open"] or each["remote"] in ours or each["remote_port"] == port
            ],
        }
        for name, one in answers.items()
    }


def all_connected(kept: KeptProcesses, answers: Mapping[str, RankConnections], port: int) -> bool:
    """Whether every rank that lives is connected to this port, or listens there, and none dials without an answer."""
    for member in kept.living:
        its = answers.get(member.place.node)
        if its is None or not set(member.place.ranks) <= _ranks_at(its, port):
            return False
        if any(not one["open"] for one in its["connections"] if one["rank"] in member.place.ranks):
            return False
    return True


def talk_together(answers: Mapping[str, RankConnections], ours: Set[str], port: int) -> bool:
    """Whether any two ranks have a connection to each other beside those to the rendezvous port: then all were told
    who takes part."""
    return any(
        one["open"]
        and port not in (one["remote_port"], one["local_port"])
        and (one["remote"] in ours or one["remote"].startswith("127."))
        for its in answers.values()
        for one in its["connections"]
    )


def _ranks_at(sockets: RankConnections, port: int) -> set[int | None]:
    found = {one["rank"] for one in sockets["listening"] if one["port"] == port}
    return found | {
        one["rank"] for one in sockets["connections"] if one["open"] and port in (one["remote_port"], one["local_port"])
    }


def arrivals_of(
    kept: KeptProcesses, answers: Mapping[str, RankConnections], frozen: Mapping[str, Facts], port: int
) -> Iterator[Arrival]:
    """The arrivals of ranks that live, from their sockets and from what they were seen to do."""
    for member in kept.living:
        place = member.place
        seen = member.seen_in(frozen) or {}
        its = answers.get(place.node, NOBODY)
        if place.each and {one["rank"] for one in seen.get("processes", ())} & set(place.ranks):
            yield from (_of_a_launcher(one, its, seen, port) for one in place.each)
        else:
            yield _of_member(member, its, seen, port)


def _of_member(member: KeptProcess, sockets: RankConnections, seen: Facts, port: int) -> Arrival:
    """A kept process with all that it started: a rank, or a launcher, which has no number of its own."""
    place = member.place
    processes = tuple(seen.get("processes", ()))
    texts = [*seen.get("own_stacks", {}).values(), seen.get("stack") or ""]
    # Who waits for more to join asks the store again and again.
    least = DOWNLOAD if any(_joins(frames_of(text)) for text in texts) else 1
    works = bool(seen.get("works")) or (seen.get("moved") or 0) >= least or any(p["state"] in "RD" for p in processes)
    ranks: set[int | None] = {None} if place.each else {*place.ranks}
    return _arrival(place, ranks, sockets, port, processes, texts, works=works)


def _of_a_launcher(place: ProcessSpec, sockets: RankConnections, seen: Facts, port: int) -> Arrival:
    """A rank that a launcher started."""
    processes = tuple(one for one in seen["processes"] if one["rank"] in place.ranks)
    texts = [text for one in processes if (text := seen["own_stacks"].get(str(one["pid"])))]
    # The traffic of a launcher's processes is known only in sum: while they carry more than their own messages, this
    # one may be reading.
    works = (seen.get("moved") or 0) >= DOWNLOAD or any(
        one["state"] in "RD" or one["cpu"] >= WORKS for one in processes
    )
    return _arrival(place, {*place.ranks}, sockets, port, processes, texts, works=works)


def _arrival(
    place: ProcessSpec,
    ranks: set[int | None],
    sockets: RankConnections,
    port: int,
    processes: tuple[Facts, ...],
    texts: Sequence[str],
    *,
    works: bool,
) -> Arrival:
    mine = [one for one in sockets["connections"] if one["rank"] in ranks]
    return Arrival(
        place,
        connected=bool(_ranks_at(sockets, port) & ranks),
        dials=tuple(dict.fromkeys((one["remote"], one["remote_port"]) for one in mine if not one["open"])),
        processes=processes,
        stacks=tuple(frames for text in texts if (frames := frames_of(text))),
        works=works,
    )


def _stopped(arrivals: Sequence[Arrival], since: str) -> dict[str, list[Finding]]:
    """Ranks whose own process is stopped; a stopped helper beside one that works does not count."""
    own = ((one.place, process) for one in arrivals if not one.works and (process := one.own))
    return grouped(
        (place.node, rank_stopped(place.label, place.node, one["pid"], one["state"], one["wchan"], since))
        for place, one in own
        if one["state"] == "T"
    )


def _kept_apart(at: Context, arrivals: Sequence[Arrival]) -> dict[str, list[Finding]]:
    """What blocks the way between the nodes, when ranks dial in vain, or may."""
    trying = [one for one in arrivals if one.dials or (not one.connected and (one.waits or not one.stacks))]
    if not trying or len(at.nodes) < 2 or at.inventory.one_machine:
        return {}
    lines = tuple(f"{one.place.label} dials {', '.join(one.dialled)}" for one in trying if one.dials)[:4]
    return {
        node: [one.with_evidence(*lines) for one in listed]
        for node, listed in between(at, timeout_s=BETWEEN_S).findings.items()
    }


def _astray(astray: Sequence[Arrival], since: str, where: str) -> dict[str, list[Finding]]:
    """Ranks that wait in the call that joins, and have no connection to those that met, though nothing keeps them
    apart."""

    def finding(arrival: Arrival) -> Finding:
        label, dials = arrival.place.label, ", ".join(arrival.dialled[:2]) or "another address or port"
        says = (
            f"{label} waits for the others and is not connected to {where}, where they are: it dials {dials}; {since}"
        )
        return finding_for("master-addr-wrong-host", says, arrival.shown(), way="program")

    return grouped((arrival.place.node, finding(arrival)) for arrival in astray)


def _second(arrival: Arrival, port: int) -> Finding:
    """Of a rank that listens where rank 0 alone does."""
    says = (
        f"{arrival.place.label} listens on port {port} itself, as only rank 0 does: its program takes it for rank 0, "
        "and waits for the others there"
    )
    return finding_for("duplicate-rank", says, arrival.shown(), way="set-there", node=arrival.place.node)


def _missing(arrivals: Sequence[Arrival], absent: Sequence[Arrival], since: str) -> dict[str, list[Finding]]:
    waiting = [one for one in arrivals if one.connected or one.waits]

    def finding(arrival: Arrival) -> Finding:
        node, label = arrival.place.node, arrival.place.label
        says = (
            f"{label} has not come to the rendezvous: {arrival.does}, in two looks {IDLE_S:.0f} s apart; "
            f"{len(waiting)} of {len(arrivals)} wait for it; {since}"
        )
        states = (
            f"{label}: process {one['pid']} ({one['comm']}), state {one['state']}" for one in arrival.processes[:4]
        )
        peers = tuple(sorted({one.place.node for one in waiting} - {node}))
        pid = word(arrival.processes[-1]["pid"])
        return finding_for("ranks-missing", says, (*states, *arrival.shown()), peers, way="hangs", node=node, pid=pid)

    return grouped((arrival.place.node, finding(arrival)) for arrival in absent)
