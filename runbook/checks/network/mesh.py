"""Real listeners on every node and real dials between all of them: what `ping` and `firewall` stand on."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runbook.causes.catalogue import finding_for
from runbook.checks.context import Context, Facts, no_answer
from runbook.checks.network.dial import OPENED_AT_ONCE, UNMEASURED, Dial
from runbook.checks.network.pairs import ALL_UP_TO, Pairs
from runbook.model.errors import Unreachable
from runbook.model.grouping import grouped
from runbook.model.inventory import Node
from runbook.model.verdict import Finding, Outcome
from runbook.transport.frames import UnexpectedAnswer
from runbook.transport.node_answers import AwakeFacts
from runbook.transport.remote_program import Answer, ProgramNotStarted, Remote

OPEN_S = 0.5
"""How long a dial waits for an answer to one of its four SYNs, on the node's own clock, which stands still while the
node sleeps. That is enough for an open port to answer; silence is no proof of a drop unless a rule explains it."""

PATIENT_S = 2.2
"""How long it waits when nothing explains the silence: seven SYNs of our own, and the kernel's repetitions."""

REPLY_S = 2.2
"""How long an opened connection may take to its first byte, and to each next one."""

AT_ONCE, AT_ONCE_AGAIN = 64, 8
"""Dials that a node has under way at once; the second is more where so few would not be over in AGAIN_S."""

AGAIN_S = 15.0
"""How long dials are tried again, all turns together."""

TURNS = 3
"""How often a dial that could not be measured is tried again."""

LISTEN_S = 30.0

ANSWER_S = 1.0
"""Between a node's own deadline and ours."""

UNHEARD = ("silent", "lost")
"""Outcomes for which the program at the other end may be to blame, and not only its kernel."""


@dataclass(frozen=True, slots=True)
class Want:
    """A port to listen on: 0 for one that the kernel picks."""

    port: int
    kind: str

    @property
    def everywhere(self) -> bool:
        """Whether it listens on all addresses, as torch does for its store: any may be the rendezvous address."""
        return self.kind == "rendezvous"


class Mesh:
    """Listeners up on all nodes of a stage for as long as the `with` block lasts."""

    def __init__(self, at: Context, wants: Callable[[Node], Sequence[Want]], *, reply_s: float = REPLY_S) -> None:
        self._at = at
        self._reply_s = reply_s
        self._wants = wants
        self._remotes: dict[str, Remote] = {}
        self.listening: dict[str, list[tuple[int, str]]] = {}  # by node: (port, kind)
        self.occupied: dict[str, list[Facts]] = {}  # by node: ports that could not be bound
        self.silent: dict[str, Outcome] = {}
        self.dials: list[Dial] = []
        self.busy: dict[str, AwakeFacts] = {}  # by node that had no CPU for a dial: how late its program ran
        self._awake: dict[str, AwakeFacts] = {}  # by node, of the last order
        self._mute: set[str] = set()  # nodes whose program owes an answer: it would be taken for that of a later order

    def __enter__(self) -> Mesh:
        # Nodes that are one machine with one address share its ports: the first listens, dialling it proves both. The
        # rendezvous is on all addresses of its machine, so no other node there can have that port.
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
                self.silent[name] = no_answer(name, "mesh", result)
        return self

    def _start(self, node: Node, wants: Sequence[Want]) -> Answer | None:
        """How the program ended, if it did instead of listening."""
        arguments = {
            "run_id": self._at.run.run_id,
            "address": self._at.data_address(node),
            "listen": [[want.port, want.everywhere] for want in wants],
        }
        remote = self._at.session(node).program("mesh", arguments, timeout_s=self._at.left_s)
        self._remotes[node.name] = remote
        for message in remote.messages(min(LISTEN_S, self._at.left_s)):
            refused = Counter(error["port"] for error in message["errors"])
            bound = [want for want in wants if not _taken_from(refused, want.port)]
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
        """Every node dials its peers (all others by default) on all their ports; results are in `dials`.

        With `itself` every node also dials its own address, as rank 0 and the ranks of one node do; `extra(peer)` adds
        (address, port, kind) where somebody else listens: they are only opened.
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
        self.dials += self._dialled(orders, OPEN_S, AT_ONCE)

    def again(self, failed: Sequence[Dial], within_s: float = AGAIN_S) -> list[Dial]:
        """Dial these once more, with patience and few at a time: what they find now stands in their place in `dials`,
        and is returned. What cannot be measured then is dialled again, up to TURNS times in all. Of what there is no
        time for, or whose node does not answer meanwhile, silence of a kernel stays; that of a program proves nothing.
        """
        deadline = time.monotonic() + min(within_s, self._at.left_s - ANSWER_S)
        found: dict[Dial, Dial] = {}
        doubted = failed
        for _ in range(TURNS):
            left_s = deadline - time.monotonic()
            if not failed or left_s < PATIENT_S:
                break
            now = self._once_more(failed, left_s)
            found |= {dial.untried: dial for dial in now}
            failed = [dial for dial in now if dial.outcome == UNMEASURED]
        self._nothing_known({dial.untried for dial in doubted if dial.outcome in UNHEARD} - found.keys())
        return list(found.values())

    def from_ports(self, dials: Sequence[Dial]) -> list[Dial]:
        """What becomes of these when each is dialled from the first of its `from_ports`, by one try of ours and the
        kernel's repetition. `dials` stays as it is."""
        silent = dict(self.silent)
        found = self._sent(grouped((dial.source, dial) for dial in dials), PATIENT_S, AT_ONCE, chosen=True)
        self.silent = silent
        return found

    def _nothing_known(self, untried: Collection[Dial]) -> None:
        self.dials = [replace(d, outcome=UNMEASURED) if d.untried in untried else d for d in self.dials]

    def again_by_pair(self, some: Sequence[Dial], within_s: float = AGAIN_S) -> None:
        """Dial `some` of each pair's silent connections again; where one of them finds more than silence, all others of
        that pair as well. Of these, what there is no time for is unmeasured: they may open as well."""
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
        orders = grouped((dial.source, dial) for dial in failed)
        rounds = max(1, int(within_s / 2 / PATIENT_S))
        at_once = max(AT_ONCE_AGAIN, math.ceil(max(map(len, orders.values())) / rounds))
        self.busy = {}
        silent = dict(self.silent)
        found = self._dialled(orders, PATIENT_S, at_once, within_s)
        self.silent = silent
        told = {dial.untried for dial in found}
        self.dials = [dial for dial in self.dials if dial.untried not in told] + found
        return found

    def _dialled(
        self, orders: Mapping[str, Sequence[Dial]], open_s: float, at_once: int, most_s: float = math.inf
    ) -> list[Dial]:
        """What became of these dials, after `most_s` at the latest. Where the program at the other end was kept from
        its CPU meanwhile, its silence proves nothing: such a dial is `unmeasured`, as is one that its own node had no
        time for."""
        found = self._sent(orders, open_s, at_once, most_s)
        for dial in found:
            if dial.outcome == UNMEASURED and dial.source in self._awake:
                self.busy[dial.source] = busiest(self.busy.get(dial.source), self._awake[dial.source])
        unheard = sorted({dial.destination for dial in found if dial.outcome in UNHEARD} & set(self.listening))
        if not unheard:
            return found
        before = dict(self._awake)
        self._sent(dict.fromkeys(unheard, ()), open_s, at_once)  # which only asks how late they ran since
        for name in unheard:
            for load in (before.get(name), self._awake.get(name)):
                if load and sleepy(load):
                    self.busy[name] = busiest(self.busy.get(name), load)
        return [
            replace(dial, outcome=UNMEASURED) if dial.outcome in UNHEARD and dial.destination in self.busy else dial
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
        """`chosen`: each from the first of its `from_ports`."""
        found: list[Dial] = []

        def one(source: Node) -> Answer | None:
            remote, dials = self._remotes[source.name], orders[source.name]
            within_s = min(self._at.left_s - ANSWER_S, most_s, self._longest_s(len(dials), open_s, at_once))
            order = {"open_s": open_s, "reply_s": self._reply_s, "within_s": max(1.0, within_s), "at_once": at_once}
            order["hold"] = len(self.listening) <= ALL_UP_TO
            targets: list[dict[str, Any]] = [
                {"address": dial.address, "port": dial.port, "mode": dial.mode} for dial in dials
            ]
            if chosen:
                targets = [{**to, "from_port": dial.from_ports[0]} for to, dial in zip(targets, dials, strict=True)]
            remote.tell({"dial": targets, **order})
            for message in remote.messages(min(self._at.left_s, max(1.0, within_s) + ANSWER_S)):
                results = message["results"]
                if len(results) != len(dials):
                    raise UnexpectedAnswer(f"{len(results)} results of {len(dials)} dials")
                self._awake[source.name] = message["awake"]
                for dial, result in zip(dials, results, strict=True):
                    told: dict[str, Any] = {**(result or OPENED_AT_ONCE)}
                    told["from_ports"] = dial.from_ports if chosen else tuple(told.get("from_ports", ()))
                    found.append(replace(dial, **told))
                return None
            return remote.wait(0.1)

        sources = [node for node in self._at.nodes if node.name in orders and node.name not in self._mute]
        for name, result in self._at.each(one, sources, paced=True).items():
            if result is not None:
                self._mute.add(name)
                self.silent[name] = no_answer(name, "mesh", result)
        return found

    def _longest_s(self, dials: int, open_s: float, at_once: int) -> float:
        """Seconds that a node may take for this many dials, a few at a time, with room for a busy node."""
        return 10.0 + math.ceil(2 * dials / at_once) * (open_s + 4 * self._reply_s)

    def _address(self, peer: Node, kind: str) -> str:
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


def _taken_from(counts: Counter[int], port: int) -> bool:
    """Whether the port was still among these; it is one less then."""
    counts[port] -= 1
    return counts[port] >= 0


TOO_BUSY = "node-too-busy"

LATE_S = 0.5
"""A program that was kept from its CPU for so long at a time may be what the other end took for silence."""


def sleepy(awake: AwakeFacts) -> bool:
    """Whether a program ran so late, or was so short of descriptors, that its peers may have taken it for silent."""
    return float(awake["latest_s"]) >= LATE_S or int(awake.get("shut_out", 0)) > 0


def too_busy(node: str, awake: AwakeFacts | None, what: str) -> Finding:
    """`awake`: how late the program on the node ran, where it could tell. `what` could not be measured there."""
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
    return too_busy_finding(node, f"{what}; {late}", lines)


def too_busy_finding(node: str, seen: str, evidence: Iterable[str]) -> Finding:
    """`seen`: what could not be measured, and how late the node ran."""
    return finding_for(TOO_BUSY, f"{node} was too busy to be measured: {seen}", tuple(evidence), node=node)


def busiest(one: AwakeFacts | None, other: AwakeFacts) -> AwakeFacts:
    """Of two reports of one node the one that tells of the longer pause."""
    return other if one is None or float(other["latest_s"]) >= float(one["latest_s"]) else one
