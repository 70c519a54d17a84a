"""Which ranks have not come to the rendezvous, and what separates the ranks that came?

Libraries wait five minutes to half an hour for a rank that never comes, and do not name it. After the launch's
`rendezvous_timeout` the kernels of all nodes are asked which rank has a connection to the rendezvous port. If a rank
has none, every rank is looked at as in a stall, and the network between the nodes as well. The job is ended only if
that proves what is wrong. While a rank that has not come works (it imports, compiles, reads), no rank is accused: the
others may wait for it.

If ranks ended because they had waited in vain, at the barrier of files or at JAX's coordinator, the missing ranks are
those that did not wait: JAX's initialisation aborts a process that has waited, and names no missing one.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from runbook.causes.catalogue import finding_for
from runbook.checks.context import Context, Facts
from runbook.checks.network.dial import numeric_node_address
from runbook.checks.network.live_traffic import names_by_address, rank_connections, traffic_between_nodes
from runbook.checks.ranks.evidence import rank_stopped
from runbook.files.address import is_ip, is_loopback, normal_spelling
from runbook.jobs.attempt import ProcessSpec
from runbook.jobs.kept_processes import ENDED_STATE, KeptProcess, KeptProcesses
from runbook.jobs.logs import log_tail
from runbook.jobs.seen_processes import MIN_WORKING_CPU_SHARE, unlike_settings
from runbook.jobs.stop_attempt import freeze
from runbook.launch.ranks import dialled_address, endpoint_text
from runbook.model.command_quoting import shell_word
from runbook.model.grouping import values_by_key
from runbook.model.inventory import Inventory
from runbook.model.units import first_items_text, seconds_text
from runbook.model.verdict import Finding
from runbook.node.journal import BARRIER_FOLDER_WHY_PREFIX, BARRIER_WHY_PREFIX
from runbook.node.proc import SHELL_PROCESSES
from runbook.parsers.python_stacks import StackFrame, frame_lines, main_thread_frames
from runbook.transport.node_answers import RankConnections


def failed_at_barrier(member: KeptProcess) -> bool:
    """Whether the keeper of this process waited in vain at the barrier of files."""
    return member.code is None and str(member.journal.get("why") or "").startswith(BARRIER_WHY_PREFIX)


def missed_barrier_finding(kept: KeptProcesses, first: KeptProcess) -> tuple[str, Finding]:
    """The node at fault, and the finding, if the nodes did not meet at the barrier of files. `first` waited in vain."""
    waiting = {name: kept.on(name)[0] for name in kept.nodes}  # the process whose keeper announces the node
    owner = next((member for member in kept.members if 0 in member.place.ranks), first)
    met = _nodes_met(waiting[owner.place.node])
    absent = [name for name in kept.nodes if name not in met]
    for name in absent or [first.place.node]:
        member = waiting[name]
        folder, why = (
            str(member.journal.get("barrier")),
            str(member.journal.get("why") or "").removeprefix(BARRIER_WHY_PREFIX),
        )
        if why.startswith(BARRIER_FOLDER_WHY_PREFIX):
            says = f"{name} could not meet the others: {why}"
            return name, finding_for(
                "ranks-missing",
                says,
                _barrier_lines(waiting),
                way="barrier-folder",
                name=name,
                folder=shell_word(_shared_folder(folder)),
            )
        if name in _nodes_met(member):
            there = owner.place.node
            says = (
                f"{_shared_folder(folder)} on {name} is not the folder of that name on {there}: "
                "the two nodes wait in it and "
                "do not see each other's files, so it is not shared"
            )
            return name, finding_for(
                "ranks-missing",
                says,
                _barrier_lines(waiting),
                (there,),
                way="barrier-not-shared",
                folder=shell_word(_shared_folder(folder)),
            )
    missing = ", ".join(absent) or owner.place.node
    return (absent or [owner.place.node])[0], finding_for(
        "ranks-missing",
        f"{missing} did not come to the barrier of files in time: {first.journal.get('why')}",
        _barrier_lines(waiting),
        way="barrier",
        missing=missing,
        barrier=shell_word(_shared_folder(str(first.journal.get("barrier")))),
    )


def _nodes_met(member: KeptProcess) -> list[str]:
    """The nodes that this process's keeper met at the barrier."""
    return list(member.journal.get("met") or ())


def _barrier_lines(waiting: dict[str, KeptProcess]) -> tuple[str, ...]:
    """Lines of evidence: which nodes each keeper met at the barrier."""
    lines = []
    for name, member in list(waiting.items())[:8]:
        place = f", {member.journal['met_on']}" if member.journal.get("met_on") else ""
        lines.append(f"{name} saw there: {', '.join(_nodes_met(member)) or 'nobody'}{place}")
    return tuple(lines)


def _shared_folder(folder: str) -> str:
    """The shared folder in which an attempt's barrier folder, which is gone by now, was made."""
    return folder.rpartition("/")[0] or "/"


JAX_REGISTER_CALL = "CoordinationService/RegisterTask"
"""The call in which JAX waits for all processes, by the name that JAX prints when it gives up."""


def jax_rendezvous_finding(
    kept: KeptProcesses, first: KeptProcess, frozen: Mapping[str, Facts]
) -> tuple[str, Finding] | None:
    """The node at fault, and the finding, if `first` gave up waiting for the others at JAX's coordinator; else None."""
    if not _gave_up_at_coordinator(kept, first):
        return None
    late = [member for member in kept.members if not _gave_up_at_coordinator(kept, member)]
    waited = len(kept.members) - len(late)
    absent = {member.label: how for member in late if (how := _absence_proof(member, frozen))}
    wait = f"after {seconds_text(first.ended - first.started)}" if first.ended and first.started else "in the end"
    if not absent:
        master = kept.at.inventory.rendezvous.master
        says = (
            f"all came to JAX's coordinator on {master} or tried to, and {first.label} gave up {wait}: not all "
            "reached it"
        )
        return first.place.node, finding_for("ranks-missing", says, way="not-reached")
    who = next(member for member in kept.members if member.label in absent)
    shown = first_items_text([f"{label} {how}" for label, how in absent.items()], 4, "; ")
    says = f"{shown}: {waited} of {len(kept.members)} processes waited at JAX's coordinator, and gave up {wait}"
    log = shell_word(kept.logs.folder / who.place.name)
    return who.place.node, finding_for("ranks-missing", says, _activity_lines(who, frozen), way="instead", log=log)


def _gave_up_at_coordinator(kept: KeptProcesses, member: KeptProcess) -> bool:
    """Whether a process gave up waiting at JAX's coordinator."""
    return JAX_REGISTER_CALL in log_tail(kept.log_of(member.place), 65536)


def _absence_proof(member: KeptProcess, frozen: Mapping[str, Facts]) -> str:
    """In words, the proof that a process did not come to the coordinator; empty without a proof."""
    if member.state == ENDED_STATE and member.code == 0:
        return "ended with code 0 before it came"
    facts = member.seen_in(frozen)
    return "lived, and had not connected to anything" if facts and facts["connections"] == 0 else ""


def _activity_lines(member: KeptProcess, frozen: Mapping[str, Facts]) -> tuple[str, ...]:
    """Lines of evidence for what a process was doing."""
    facts = member.seen_in(frozen) or {}
    if facts.get("stack"):
        return tuple(str(facts["stack"]).splitlines()[:8])
    return tuple(
        f"process {one['pid']} ({one['comm']}): state {one['state']}, {one['wchan'] or 'running'}, {one['cpu']:.0%} "
        "of a CPU"
        for one in facts.get("processes", ())[:4]
    )


RENDEZVOUS_OBSERVATION_S = 2.0
"""Seconds for which the CPU time, the reading and the traffic of a rank are counted."""

MIN_WORKING_BYTES = 64 << 10
"""The least bytes within a look that count as work: launchers, and ranks that wait at the store, exchange fewer."""

NETWORK_LOOK_TIMEOUT_S = 6.0
"""Seconds that a look at the network between the nodes may take."""

IDLE_RECHECK_INTERVAL_S = 15.0
"""Seconds until an idle rank is looked at once more."""

RENDEZVOUS_FILES = re.compile(r"/torch/distributed/(?:elastic/)?rendezvous\b|/jax/_src/distributed\.py$")
RENDEZVOUS_FUNCTION = "init_process_group"
"""Files and the function that are on the stack of a rank which is joining the others."""
NO_CONNECTIONS: RankConnections = {"connections": [], "listening": []}
"""The answer of a node without any connection or listener."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """How far a rank, or a launcher that has not started any rank, has come. `connected`: it has a connection to the
    rendezvous port, or listens there. `dials`: the addresses and ports that have not answered it yet. `processes`: as
    `node/rank_processes.py` gives them. `stacks`: their stacks, the innermost frame first. `works`: it computes, reads
    or carries data."""

    place: ProcessSpec
    connected: bool
    dials: tuple[tuple[str, int], ...]
    processes: tuple[Facts, ...]
    stacks: tuple[tuple[StackFrame, ...], ...]
    works: bool

    @property
    def own(self) -> Facts | None:
        """The rank's own process: the first that is no shell."""
        return next((one for one in self.processes if one["comm"] not in SHELL_PROCESSES), None)

    @property
    def waits(self) -> bool:
        """Whether the rank dials, or is in a call that joins the others."""
        return bool(self.dials) or any(map(_is_joining, self.stacks))

    @property
    def does(self) -> str:
        """In words, whether the rank works or sleeps, and where."""
        place = next((f" in {stack[0]}" for stack in self.stacks), "")
        return f"it still works{place}" if self.works else f"it sleeps{place}"

    @property
    def dialled(self) -> list[str]:
        """The first four of `dials`, as texts `address:port`."""
        return [endpoint_text(*one) for one in self.dials[:4]]

    def shown(self) -> tuple[str, ...]:
        """Lines of evidence for where the first process stands; none without frames."""
        return tuple(line for frames in self.stacks[:1] for line in frame_lines(self.place.label, frames))


def _is_joining(frames: Sequence[StackFrame]) -> bool:
    """Whether a thread is in a call that joins the other ranks."""
    return any(RENDEZVOUS_FILES.search(frame.file) or frame.function == RENDEZVOUS_FUNCTION for frame in frames)


class RendezvousWatch:
    """Looks at the ranks of one attempt until they have met. `inventory` is the attempt's, which has the attempt's
    port."""

    def __init__(self, inventory: Inventory, timeout_s: float) -> None:
        self._inventory = inventory
        self._timeout_s = timeout_s
        self._begun: float | None = None
        self._due = math.inf
        self._told = False  # whether differing settings of ranks were reported
        self._idle: frozenset[str] = frozenset()  # labels of ranks that were absent and idle at the look before

    def begin(self) -> None:
        """Notes that all processes have been started. Later calls change nothing."""
        if self._begun is None:
            self._begun = time.monotonic()
            self._due = self._begun + self._timeout_s

    def met(self) -> None:
        """Notes that the ranks have met: there are no further looks."""
        self._due = math.inf

    def due(self) -> bool:
        """Whether it is time for a look."""
        return time.monotonic() >= self._due

    @property
    def seconds(self) -> float:
        """Seconds since all processes were started."""
        return time.monotonic() - (self._begun or time.monotonic())

    def look(self, kept: KeptProcesses) -> dict[str, list[Finding]]:
        """Looks at all ranks; findings by node. Empty if all ranks have met, no rank waits, or nothing is proven.
        Unless they have met, the next look is due after as long again."""
        at = replace(kept.at, inventory=self._inventory, deadline=time.monotonic() + RENDEZVOUS_OBSERVATION_S)
        rendezvous = at.inventory.rendezvous
        ours = set(names_by_address(at))
        answers = connections_within_job(rank_connections(at), ours, rendezvous.port)
        for line in () if self._told else unlike_settings(kept, answers):
            kept.at.say(line)
        self._told = True
        came = all_connected(kept, answers, rendezvous.port)
        if kept.ranks < 2 or (came and are_ranks_connected(answers, ours, rendezvous.port)):
            self.met()
            return {}
        self._due = time.monotonic() + max(IDLE_RECHECK_INTERVAL_S, self.seconds)
        arrivals = list(rank_arrivals(kept, answers, freeze(kept, seconds=RENDEZVOUS_OBSERVATION_S), rendezvous.port))
        if came:
            return self._held(arrivals, answers)
        if not any(one.waits for one in arrivals):
            return {}  # the ranks meet at another port, or all are still on their way
        where = endpoint_text(dialled_address(rendezvous, len(at.nodes)), rendezvous.port)
        since = f"not all ranks have met at {where} after {seconds_text(self.seconds)}"
        kept.at.say(f"{since}: looking at every rank")
        opened = rendezvous.port in {one["port"] for one in answers.get(rendezvous.master, NO_CONNECTIONS)["listening"]}
        blind = sorted({node.name for node in at.nodes} - answers.keys())
        return (
            _stopped_rank_findings(arrivals, since)
            or _blocked_path_findings(at, arrivals)
            or self._absent(
                kept,
                arrivals,
                since,
                where=where,
                right=_ranks_dialling_master(at, arrivals, ours),
                opened=opened,
                blind=blind,
            )
        )

    def _held(self, arrivals: Sequence[Arrival], answers: Mapping[str, RankConnections]) -> dict[str, list[Finding]]:
        """Findings by node if all ranks have come and all still wait there, idle in two looks: they wait for ranks that
        the job does not have, or another rank takes itself for rank 0."""
        if not all(one.waits for one in arrivals):
            self.met()
            return {}
        idle = not any(one.works for one in arrivals)
        before, self._idle = self._idle, frozenset(one.place.label for one in arrivals if idle)
        if not idle:
            return {}
        if before != self._idle:
            self._due = time.monotonic() + IDLE_RECHECK_INTERVAL_S
            return {}
        port = self._inventory.rendezvous.port
        listen = {one["rank"] for its in answers.values() for one in its["listening"] if one["port"] == port}
        if twice := [one for one in arrivals if one.place.rank and one.place.rank in listen]:
            return values_by_key((one.place.node, _second_listener_finding(one, port)) for one in twice)
        says = (
            f"all {len(arrivals)} ranks of the job are connected to the rendezvous and wait there, in two looks "
            f"{IDLE_RECHECK_INTERVAL_S:.0f} s apart: for more ranks than there are, after {seconds_text(self.seconds)}"
        )
        of_node = {arrival.place.node: arrival for arrival in reversed(arrivals)}  # the first rank of each node
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
        """Findings by node about the ranks that have not come, or wait somewhere else, if all of them are idle in two
        looks. `where`: the address that they should dial. `right`: the labels of the ranks that dial it. `opened`:
        whether the master listens on the port. `blind`: the nodes that could not be looked at."""
        absent = [
            one
            for one in arrivals
            if not (one.connected or one.waits)
            # Without a listener, a rank that is refused waits too, and its stack may not be readable.
            and (opened or one.stacks or 0 in one.place.ranks)
        ]
        met = opened and any(one.connected for one in arrivals)
        elsewhere = [one for one in arrivals if not one.connected and one.waits and one.place.label not in right]
        astray = elsewhere if met else []
        # No rank even dials, although all are in the call that joins.
        strangers = () if opened or any(one.connected or one.dials or not one.waits for one in arrivals) else arrivals
        late = [*absent, *astray, *strangers]
        names = frozenset(one.place.label for one in late)
        idle = bool(late) and not blind and all(one.processes and not one.works for one in late)
        if idle and names <= self._idle:
            return (
                _missing_rank_findings(arrivals, absent, since)
                or _misdirected_rank_findings(astray, since, where)
                or _unshared_place_findings(late, since, where)
            )
        self._idle = names if idle else frozenset()
        if idle:
            self._due = time.monotonic() + IDLE_RECHECK_INTERVAL_S
        for one in absent[:4]:
            kept.at.say(f"{one.place.label} has not come to the rendezvous yet: {one.does}", one.place.node)
        for name in blind[:4]:
            kept.at.say(f"{name} could not be looked at", name)
        if not absent and not blind:
            kept.at.say(
                f"all {len(arrivals)} are at the rendezvous or try to get there, and nothing wrong is seen between them"
            )
        return {}


def _unshared_place_findings(late: Sequence[Arrival], since: str, where: str) -> dict[str, list[Finding]]:
    """Findings for all ranks if they wait for each other in a place of the program's own choice, such as a file, that
    they do not share."""
    says = (
        f"{since}: all {len(late)} ranks wait in {RENDEZVOUS_FUNCTION}, and none opened or dialled that port: "
        "the program has them "
        'meet elsewhere, as by `init_method="file://…"`, and they do not find each other there'
    )
    lines = tuple(line for one in late[:2] for line in one.shown())
    return values_by_key(
        (one.place.node, finding_for("ranks-missing", says, lines, way="of-its-own", where=where))
        for one in {one.place.node: one for one in late}.values()
    )


def _ranks_dialling_master(at: Context, arrivals: Sequence[Arrival], known: Set[str]) -> set[str]:
    """The labels of the ranks that dial the rendezvous port at an address of the master. `known`: the nodes' addresses.
    If the port is dialled by a name, an address that no node knows counts too: a name may resolve to such an address.
    """
    rendezvous = at.inventory.rendezvous
    written = normal_spelling(dialled_address(rendezvous, len(at.nodes)))
    home = {written, numeric_node_address(at, rendezvous.master), *at.own_addresses(rendezvous.master)}

    def leads_home(address: str, place: ProcessSpec) -> bool:
        if is_loopback(address):
            return address == written or place.node == rendezvous.master
        return address in home or (not is_ip(written) and address not in known)

    return {
        one.place.label
        for one in arrivals
        if any(port == rendezvous.port and leads_home(address, one.place) for address, port in one.dials)
    }


def connections_within_job(
    answers: Mapping[str, RankConnections], ours: Set[str], port: int
) -> dict[str, RankConnections]:
    """The answers without dials that lead out of the job: a rank that waits for a server of its own does not wait for
    the other ranks. `ours`: the nodes' addresses."""
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
    """Whether every living rank is connected to this port, or listens there, and no rank dials without an answer."""
    for member in kept.living:
        its = answers.get(member.place.node)
        if its is None or not set(member.place.ranks) <= _ranks_at_port(its, port):
            return False
        if any(not one["open"] for one in its["connections"] if one["rank"] in member.place.ranks):
            return False
    return True


def are_ranks_connected(answers: Mapping[str, RankConnections], ours: Set[str], port: int) -> bool:
    """Whether any two ranks have a connection other than to the rendezvous port. If so, the rendezvous is over: all
    ranks were told who takes part."""
    return any(
        one["open"]
        and port not in (one["remote_port"], one["local_port"])
        and (one["remote"] in ours or one["remote"].startswith("127."))
        for its in answers.values()
        for one in its["connections"]
    )


def _ranks_at_port(sockets: RankConnections, port: int) -> set[int | None]:
    """The ranks that listen on a port, or are connected to it."""
    found = {one["rank"] for one in sockets["listening"] if one["port"] == port}
    return found | {
        one["rank"] for one in sockets["connections"] if one["open"] and port in (one["remote_port"], one["local_port"])
    }


def rank_arrivals(
    kept: KeptProcesses, answers: Mapping[str, RankConnections], frozen: Mapping[str, Facts], port: int
) -> Iterator[Arrival]:
    """How far each living rank has come, from its sockets (`answers`) and its processes (`frozen`), both by node."""
    for member in kept.living:
        place = member.place
        seen = member.seen_in(frozen) or {}
        its = answers.get(place.node, NO_CONNECTIONS)
        if place.each and {one["rank"] for one in seen.get("processes", ())} & set(place.ranks):
            yield from (_launched_rank_arrival(one, its, seen, port) for one in place.each)
        else:
            yield _member_arrival(member, its, seen, port)


def _member_arrival(member: KeptProcess, sockets: RankConnections, seen: Facts, port: int) -> Arrival:
    """How far a kept process with all its children has come: a rank, or a launcher, which has no rank number."""
    place = member.place
    processes = tuple(seen.get("processes", ()))
    texts = [*seen.get("own_stacks", {}).values(), seen.get("stack") or ""]
    # A rank that waits for more ranks to join asks the store again and again, which is no work.
    least = MIN_WORKING_BYTES if any(_is_joining(main_thread_frames(text)) for text in texts) else 1
    works = bool(seen.get("works")) or (seen.get("moved") or 0) >= least or any(p["state"] in "RD" for p in processes)
    ranks: set[int | None] = {None} if place.each else {*place.ranks}
    return _make_arrival(place, ranks, sockets, port, processes, texts, works=works)


def _launched_rank_arrival(place: ProcessSpec, sockets: RankConnections, seen: Facts, port: int) -> Arrival:
    """How far a rank that a launcher started has come."""
    processes = tuple(one for one in seen["processes"] if one["rank"] in place.ranks)
    texts = [text for one in processes if (text := seen["own_stacks"].get(str(one["pid"])))]
    # The traffic of a launcher's processes is known only in sum: while they carry more than the launcher's messages,
    # this rank may be reading.
    works = (seen.get("moved") or 0) >= MIN_WORKING_BYTES or any(
        one["state"] in "RD" or one["cpu"] >= MIN_WORKING_CPU_SHARE for one in processes
    )
    return _make_arrival(place, {*place.ranks}, sockets, port, processes, texts, works=works)


def _make_arrival(
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
        connected=bool(_ranks_at_port(sockets, port) & ranks),
        dials=tuple(dict.fromkeys((one["remote"], one["remote_port"]) for one in mine if not one["open"])),
        processes=processes,
        stacks=tuple(frames for text in texts if (frames := main_thread_frames(text))),
        works=works,
    )


def _stopped_rank_findings(arrivals: Sequence[Arrival], since: str) -> dict[str, list[Finding]]:
    """Findings about ranks whose own process is stopped. A rank that works does not count: only a helper is stopped."""
    own = ((one.place, process) for one in arrivals if not one.works and (process := one.own))
    return values_by_key(
        (place.node, rank_stopped(place.label, place.node, one["pid"], one["state"], one["wchan"], since))
        for place, one in own
        if one["state"] == "T"
    )


def _blocked_path_findings(at: Context, arrivals: Sequence[Arrival]) -> dict[str, list[Finding]]:
    """Findings by node about what blocks the way between the nodes; looked for only if ranks dial in vain, or may."""
    trying = [one for one in arrivals if one.dials or (not one.connected and (one.waits or not one.stacks))]
    if not trying or len(at.nodes) < 2 or at.inventory.one_machine:
        return {}
    lines = tuple(f"{one.place.label} dials {', '.join(one.dialled)}" for one in trying if one.dials)[:4]
    return {
        node: [one.with_evidence(*lines) for one in listed]
        for node, listed in traffic_between_nodes(at, timeout_s=NETWORK_LOOK_TIMEOUT_S).findings.items()
    }


def _misdirected_rank_findings(astray: Sequence[Arrival], since: str, where: str) -> dict[str, list[Finding]]:
    """Findings about ranks that wait in the call that joins, and have no connection to the ranks that met, although
    nothing blocks the way."""

    def finding(arrival: Arrival) -> Finding:
        label, dials = arrival.place.label, ", ".join(arrival.dialled[:2]) or "another address or port"
        says = (
            f"{label} waits for the others and is not connected to {where}, where they are: it dials {dials}; {since}"
        )
        return finding_for("master-addr-wrong-host", says, arrival.shown(), way="program")

    return values_by_key((arrival.place.node, finding(arrival)) for arrival in astray)


def _second_listener_finding(arrival: Arrival, port: int) -> Finding:
    """The finding about a rank that listens on the rendezvous port, as only rank 0 should."""
    says = (
        f"{arrival.place.label} listens on port {port} itself, as only rank 0 does: its program takes it for rank 0, "
        "and waits for the others there"
    )
    return finding_for("duplicate-rank", says, arrival.shown(), way="set-there", node=arrival.place.node)


def _missing_rank_findings(
    arrivals: Sequence[Arrival], absent: Sequence[Arrival], since: str
) -> dict[str, list[Finding]]:
    """Findings about the ranks that have not come to the rendezvous."""
    waiting = [one for one in arrivals if one.connected or one.waits]

    def finding(arrival: Arrival) -> Finding:
        node, label = arrival.place.node, arrival.place.label
        says = (
            f"{label} has not come to the rendezvous: {arrival.does}, "
            f"in two looks {IDLE_RECHECK_INTERVAL_S:.0f} s apart; "
            f"{len(waiting)} of {len(arrivals)} wait for it; {since}"
        )
        states = (
            f"{label}: process {one['pid']} ({one['comm']}), state {one['state']}" for one in arrival.processes[:4]
        )
        peers = tuple(sorted({one.place.node for one in waiting} - {node}))
        pid = shell_word(arrival.processes[-1]["pid"])
        return finding_for("ranks-missing", says, (*states, *arrival.shown()), peers, way="hangs", node=node, pid=pid)

    return values_by_key((arrival.place.node, finding(arrival)) for arrival in absent)
