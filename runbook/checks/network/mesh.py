"""Real listeners on every node and real dials between all of them, for `ping` and `firewall`."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runbook.causes.catalogue import finding_for
from runbook.checks.context import Context, Facts, no_answer_outcome
from runbook.checks.network.dial import OPENED_FIRST_TRY, UNMEASURED, Dial
from runbook.checks.network.pairs import MAX_ALL_DIALLED_NODES, Pairs
from runbook.model.errors import Unreachable
from runbook.model.grouping import values_by_key
from runbook.model.inventory import Node
from runbook.model.verdict import Finding, Outcome
from runbook.transport.frames import UnexpectedAnswer
from runbook.transport.node_answers import AwakeFacts
from runbook.transport.remote_program import Answer, ProgramNotStarted, Remote

BRIEF_DIAL_TIMEOUT_S = 0.5
"""Seconds that a dial waits for an answer to its four SYNs, on the node's own clock, which stands still while the node
sleeps. That is enough for an open port to answer; silence is no proof of a drop unless a rule explains it."""

PATIENT_DIAL_TIMEOUT_S = 2.2
"""Seconds that a dial waits when nothing explains the silence: time for seven SYNs of our own, and for the kernel's
repetitions."""

REPLY_TIMEOUT_S = 2.2
"""Seconds that an opened connection may take to its first byte, and to each next byte."""

MAX_CONCURRENT_DIALS, MIN_CONCURRENT_REDIALS = 64, 8
"""How many dials a node has under way at once: at first, and again. The second number is raised where so few at once
would take longer than REDIAL_TIMEOUT_S."""

REDIAL_TIMEOUT_S = 15.0
"""Seconds for dialling again, all turns together."""

MAX_REDIALS = 3
"""How many times a dial is tried again at most, as long as it cannot be measured."""

LISTENING_TIMEOUT_S = 30.0
"""Seconds that a node has to listen on its ports."""

NODE_DEADLINE_MARGIN_S = 1.0
"""Seconds between a node's own deadline and ours."""

PROGRAM_FAULT_OUTCOMES = ("silent", "lost")
"""Outcomes that may be the fault of the program at the other end, and not only of its kernel."""


@dataclass(frozen=True, slots=True)
class Want:
    """A port to listen on; 0 for a port that the kernel picks."""

    port: int
    kind: str

    @property
    def everywhere(self) -> bool:
        """Whether the port listens on all addresses, as torch's store does: any of them may be the rendezvous
        address."""
        return self.kind == "rendezvous"


class Mesh:
    """Listeners on all nodes of a stage, for as long as the `with` block lasts, and the dials between them.

    `silent`: by node, the outcome of a node whose program did not answer. `dials`: the result of every dial so far.
    """

    def __init__(
        self, at: Context, wants: Callable[[Node], Sequence[Want]], *, reply_s: float = REPLY_TIMEOUT_S
    ) -> None:
        self._at = at
        self._reply_s = reply_s
        self._wants = wants
        self._remotes: dict[str, Remote] = {}
        self.listening: dict[str, list[tuple[int, str]]] = {}  # by node: (port, kind)
        self.occupied: dict[str, list[Facts]] = {}  # by node: errors for ports that could not be bound
        self.silent: dict[str, Outcome] = {}
        self.dials: list[Dial] = []
        self.busy: dict[str, AwakeFacts] = {}  # by node that had no CPU for a dial: how late its program ran
        self._awake: dict[str, AwakeFacts] = {}  # by node: how late its program ran during the last order
        self._mute: set[str] = set()  # nodes whose late answer could be taken for that to a later order

    def __enter__(self) -> Mesh:
        # Nodes that are one machine with one address share its ports: the first of them listens, and dialling it proves
        # both. The rendezvous port listens on all addresses of its machine, so no other node there can have that port.
        wanted = {node.name: self._wants(node) for node in self._at.nodes}
        machines = {node.name: self._at.machine(node.name) for node in self._at.nodes}
        meeting = {(machines[name], w.port) for name, wants in wanted.items() for w in wants if w.everywhere}
        taken: set[tuple[str, str, int]] = set()
        plans: dict[str, list[Want]] = {}
        for node in self._at.nodes:
            machine = machines[node.name]
            place = (machine, self._at.data_address(node))
            plans[node.name] = [
                w
                for w in wanted[node.name]
                if w.port == 0 or w.everywhere or ((machine, w.port) not in meeting and (*place, w.port) not in taken)
            ]
            taken |= {(*place, want.port) for want in plans[node.name]}
        started = self._at.each(lambda node: self._start(node, plans[node.name]), paced=True)
        for name, result in started.items():
            if result is not None:
                self.silent[name] = no_answer_outcome(name, "mesh", result)
        return self

    def _start(self, node: Node, wants: Sequence[Want]) -> Answer | None:
        """None when the program listens; else how it ended."""
        arguments = {
            "run_id": self._at.run.run_id,
            "address": self._at.data_address(node),
            "listen": [[want.port, want.everywhere] for want in wants],
        }
        remote = self._at.session(node).program("mesh", arguments, timeout_s=self._at.left_s)
        self._remotes[node.name] = remote
        for message in remote.messages(min(LISTENING_TIMEOUT_S, self._at.left_s)):
            refused = Counter(error["port"] for error in message["errors"])
            bound = [want for want in wants if not _take_counted_port(refused, want.port)]
            ports = message["ports"]
            if len(ports) != len(bound) or any(w.port not in (0, port) for w, port in zip(bound, ports, strict=True)):
                raise UnexpectedAnswer(f"it listens on {ports}, and was asked for {[want.port for want in bound]}")
            self.listening[node.name] = [(port, want.kind) for want, port in zip(bound, ports, strict=True)]
            self.occupied[node.name] = list(message["errors"])
            return None
        return remote.wait(0.1)

    def dial(
        self,
        modes: Sequence[str] = ("greet",),
        *,
        pairs: Pairs | None = None,
        itself: bool = False,
        extra: Callable[[Node], Sequence[tuple[str, int, str]]] | None = None,
    ) -> None:
        """Dials from every node to its peers (all others by default), on all their ports. The results are added to
        `dials`.

        With `itself` every node also dials its own address, as ranks of one node do. `extra(peer)` returns (address,
        port, kind) of ports on which another program listens; a dial only opens these.
        """
        up = {node.name: node for node in self._at.nodes if node.name in self.listening}
        pairs = pairs or Pairs.every(list(up))
        orders: dict[str, list[Dial]] = {}
        for source in up:
            wanted: list[Dial] = []
            for name in (*([source] if itself else []), *pairs.peers.get(source, ())):
                if name not in up:
                    continue
                for port, kind in self.listening[name]:
                    address = self._address(up[name], kind)
                    wanted += [Dial(source, name, address, port, kind, mode) for mode in modes]
                wanted += [Dial(source, name, *where, "knock") for where in (extra(up[name]) if extra else ())]
            if wanted:
                orders[source] = wanted
        self.dials += self._dialled(orders, BRIEF_DIAL_TIMEOUT_S, MAX_CONCURRENT_DIALS)

    def again(self, failed: Sequence[Dial], within_s: float = REDIAL_TIMEOUT_S) -> list[Dial]:
        """Dials these once more, patiently and few at a time. The results take their place in `dials`, and are
        returned. A dial that cannot be measured is tried again, up to MAX_REDIALS times in all. When time runs out, or
        a node does not answer meanwhile, the silence of a kernel remains as the result; the silence of a program proves
        nothing and becomes `unmeasured`."""
        deadline = time.monotonic() + min(within_s, self._at.left_s - NODE_DEADLINE_MARGIN_S)
        found: dict[Dial, Dial] = {}
        doubted = failed
        for _ in range(MAX_REDIALS):
            left_s = deadline - time.monotonic()
            if not failed or left_s < PATIENT_DIAL_TIMEOUT_S:
                break
            now = self._once_more(failed, left_s)
            found |= {dial.untried: dial for dial in now}
            failed = [dial for dial in now if dial.outcome == UNMEASURED]
        self._nothing_known({dial.untried for dial in doubted if dial.outcome in PROGRAM_FAULT_OUTCOMES} - found.keys())
        return list(found.values())

    def from_ports(self, dials: Sequence[Dial]) -> list[Dial]:
        """The results of dialling each from the first port of its `from_ports`, with one try of ours and the kernel's
        repetition. `dials` stays as it is."""
        silent = dict(self.silent)
        found = self._sent(
            values_by_key((dial.source, dial) for dial in dials),
            PATIENT_DIAL_TIMEOUT_S,
            MAX_CONCURRENT_DIALS,
            chosen=True,
        )
        self.silent = silent
        return found

    def _nothing_known(self, untried: Collection[Dial]) -> None:
        """Marks these dials, as far as they are in `dials`, as `unmeasured`."""
        self.dials = [replace(d, outcome=UNMEASURED) if d.untried in untried else d for d in self.dials]

    def again_by_pair(self, some: Sequence[Dial], within_s: float = REDIAL_TIMEOUT_S) -> None:
        """Dials `some` of each pair's silent connections again. When one of them finds more than silence, all other
        silent dials of that pair are tried again too; those that there is no time for become `unmeasured`, since they
        may open as well."""
        deadline = time.monotonic() + within_s
        found = {dial.untried: dial for dial in self.again(some, within_s)}
        alive = {(d.source, d.destination) for d in found.values() if d.outcome not in ("dropped", UNMEASURED)}
        rest = [
            dial
            for dial in self.dials
            if dial.outcome == "dropped" and (dial.source, dial.destination) in alive and dial.untried not in found
        ]
        told = {dial.untried for dial in self.again(rest, deadline - time.monotonic())}
        self._nothing_known({dial.untried for dial in rest} - told)

    def _once_more(self, failed: Sequence[Dial], within_s: float) -> list[Dial]:
        """The results of dialling these again, which also take their place in `dials`."""
        orders = values_by_key((dial.source, dial) for dial in failed)
        rounds = max(1, int(within_s / 2 / PATIENT_DIAL_TIMEOUT_S))
        at_once = max(MIN_CONCURRENT_REDIALS, math.ceil(max(map(len, orders.values())) / rounds))
        self.busy = {}
        silent = dict(self.silent)
        found = self._dialled(orders, PATIENT_DIAL_TIMEOUT_S, at_once, within_s)
        self.silent = silent
        told = {dial.untried for dial in found}
        self.dials = [dial for dial in self.dials if dial.untried not in told] + found
        return found

    def _dialled(
        self, orders: Mapping[str, Sequence[Dial]], open_s: float, at_once: int, most_s: float = math.inf
    ) -> list[Dial]:
        """The results of these dials, after `most_s` at the latest. When the program at the other end got no CPU
        meanwhile, its silence proves nothing: such a dial is `unmeasured`. So is a dial that its own node had no time
        for."""
        found = self._sent(orders, open_s, at_once, most_s)
        for dial in found:
            if dial.outcome == UNMEASURED and dial.source in self._awake:
                self.busy[dial.source] = report_with_longer_pause(self.busy.get(dial.source), self._awake[dial.source])
        unheard = sorted(
            {dial.destination for dial in found if dial.outcome in PROGRAM_FAULT_OUTCOMES} & set(self.listening)
        )
        if not unheard:
            return found
        before = dict(self._awake)
        self._sent(dict.fromkeys(unheard, ()), open_s, at_once)  # without dials: only asks how late they ran since
        for name in unheard:
            for load in (before.get(name), self._awake.get(name)):
                if load and may_seem_silent(load):
                    self.busy[name] = report_with_longer_pause(self.busy.get(name), load)
        return [
            replace(dial, outcome=UNMEASURED)
            if dial.outcome in PROGRAM_FAULT_OUTCOMES and dial.destination in self.busy
            else dial
            for dial in found
        ]

    def _sent(
        self,
        orders: Mapping[str, Sequence[Dial]],
        open_s: float,
        at_once: int,
        most_s: float = math.inf,
        *,
        chosen: bool = False,
    ) -> list[Dial]:
        """The results of these dials, from the nodes that answered. With `chosen`, each is dialled from the first of
        its `from_ports`."""
        found: list[Dial] = []

        def one(source: Node) -> Answer | None:
            remote, dials = self._remotes[source.name], orders[source.name]
            within_s = min(
                self._at.left_s - NODE_DEADLINE_MARGIN_S, most_s, self._longest_s(len(dials), open_s, at_once)
            )
            order = {"open_s": open_s, "reply_s": self._reply_s, "within_s": max(1.0, within_s), "at_once": at_once}
            order["hold"] = len(self.listening) <= MAX_ALL_DIALLED_NODES
            targets: list[dict[str, Any]] = [
                {"address": dial.address, "port": dial.port, "mode": dial.mode} for dial in dials
            ]
            if chosen:
                targets = [{**to, "from_port": dial.from_ports[0]} for to, dial in zip(targets, dials, strict=True)]
            remote.tell({"dial": targets, **order})
            for message in remote.messages(min(self._at.left_s, max(1.0, within_s) + NODE_DEADLINE_MARGIN_S)):
                results = message["results"]
                if len(results) != len(dials):
                    raise UnexpectedAnswer(f"{len(results)} results of {len(dials)} dials")
                self._awake[source.name] = message["awake"]
                for dial, result in zip(dials, results, strict=True):
                    told: dict[str, Any] = {**(result or OPENED_FIRST_TRY)}
                    told["from_ports"] = dial.from_ports if chosen else tuple(told.get("from_ports", ()))
                    found.append(replace(dial, **told))
                return None
            return remote.wait(0.1)

        sources = [node for node in self._at.nodes if node.name in orders and node.name not in self._mute]
        for name, result in self._at.each(one, sources, paced=True).items():
            if result is not None:
                self._mute.add(name)
                self.silent[name] = no_answer_outcome(name, "mesh", result)
        return found

    def _longest_s(self, dials: int, open_s: float, at_once: int) -> float:
        """Seconds that a node may take for this many dials, `at_once` at a time, with room for a busy node."""
        return 10.0 + math.ceil(2 * dials / at_once) * (open_s + 4 * self._reply_s)

    def _address(self, peer: Node, kind: str) -> str:
        """The address at which a peer is dialled on a port of this kind."""
        rendezvous = self._at.inventory.rendezvous
        if kind == "rendezvous" and peer.name == rendezvous.master and len(self._at.nodes) > 1:
            return rendezvous.address
        return self._at.data_address(peer)

    def __exit__(self, *_: object) -> None:
        for remote in self._remotes.values():
            try:
                remote.feed(b"", end=True)
            except (Unreachable, ProgramNotStarted):
                continue
        deadline = time.monotonic() + 1.0
        for remote in self._remotes.values():
            remote.over.wait(max(0.0, deadline - time.monotonic()))


def _take_counted_port(counts: Counter[int], port: int) -> bool:
    """Whether `counts` still has the port; takes one of it away."""
    counts[port] -= 1
    return counts[port] >= 0


TOO_BUSY_CAUSE = "node-too-busy"

MIN_CPU_GAP_S = 0.5
"""Seconds. A program that got no CPU for so long at a time may have seemed silent to the other end."""


def may_seem_silent(awake: AwakeFacts) -> bool:
    """Whether a program ran so late, or was so short of descriptors or its kernel of room, that its peers may have
    taken it for silent."""
    shut_out = int(awake.get("shut_out", 0)) + int(awake.get("overflows", 0))
    return float(awake["latest_s"]) >= MIN_CPU_GAP_S or shut_out > 0


def starved_node_finding(node: str, awake: AwakeFacts | None, what: str) -> Finding:
    """The finding for a node that was too busy for `what` to be measured. `awake`: how late the program there ran, or
    None."""
    seen: Mapping[str, Any] = awake or {}
    late = (
        f"our program got no CPU for {seen['latest_s']:.1f} s at a time" if seen else "our program got no CPU in time"
    )
    lines = [f"{node}: {late}"]
    if seen.get("late_s") is not None:
        lines.append(f"{node}: {seen['late_s']:.1f} of {seen['seconds']:.1f} s it should have run and did not")
    if seen.get("pressure") is not None:
        lines.append(
            f"{node}: for {seen['pressure']:.0f} % of the last 10 s a process there waited for a CPU "
            "(/proc/pressure/cpu)"
        )
    if seen.get("shut_out"):
        lines.append(f"{node}: {seen['shut_out']} connections found no free descriptor there (`ulimit -n`)")
    if seen.get("overflows"):
        lines.append(
            f"{node}: {seen['overflows']} connections found no room in a listener's queue there (ListenOverflows; "
            "`sysctl net.core.somaxconn`)"
        )
    return too_busy_finding(node, f"{what}; {late}", lines)


def too_busy_finding(node: str, seen: str, evidence: Iterable[str]) -> Finding:
    """The finding for a node that was too busy. `seen`: what could not be measured, and how late the node ran."""
    return finding_for(TOO_BUSY_CAUSE, f"{node} was too busy to be measured: {seen}", tuple(evidence), node=node)


def report_with_longer_pause(one: AwakeFacts | None, other: AwakeFacts) -> AwakeFacts:
    """Of two reports of one node, the one with the longer pause."""
    return other if one is None or float(other["latest_s"]) >= float(one["latest_s"]) else one
