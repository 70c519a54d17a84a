"""ping: from every node to every other: names resolve, packets come back, and full-size packets come back too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from runbook.causes.catalogue import finding_for
from runbook.checks.base import Check, pairs_argument
from runbook.checks.context import Context, Facts
from runbook.checks.network.dial import UNMEASURED, Dial
from runbook.checks.network.ephemeral_ports import nodes_without_ports, port_exhaustion_findings
from runbook.checks.network.mesh import MAX_REDIALS, Mesh, Want, may_seem_silent, starved_node_finding
from runbook.checks.network.pairs import Pairs, choose_pairs, node_groupings
from runbook.checks.ping.host_names import name_findings, name_warnings, names_to_resolve
from runbook.checks.ping.loss import (
    echo_losses,
    has_excess_loss,
    loses_round_trips,
    loss_findings,
    loss_warning,
    random_drop_findings,
)
from runbook.checks.ping.no_answer import duplicate_mac_findings, silence_findings
from runbook.checks.ping.observations import Observations, Pair, pairs_with_findings
from runbook.checks.ping.packet_sizes import (
    cannot_send_full_size,
    is_only_icmp_limited,
    reported_path_mtu,
    size_findings,
    vanishing_directions,
)
from runbook.checks.ping.routes import (
    address_conflict_findings,
    address_findings,
    address_warnings,
    flapped_link_findings,
    is_broadcast_address,
    route_findings,
    wrong_interface_findings,
)
from runbook.launch.ranks import socket_interface
from runbook.model.inventory import Node
from runbook.model.units import count_text, name_list_text
from runbook.model.verdict import Finding, Outcome
from runbook.transport.node_answers import PING_PROGRAM, AwakeFacts, PingAnswer, PingTarget


@dataclass(frozen=True)
class Ping(Check):
    id: ClassVar[str] = "ping"
    timeout_s: ClassVar[float] = 60.0
    judges_together: ClassVar[bool] = True
    looks_at_rendezvous: ClassVar[bool] = True

    pairs: str = pairs_argument()

    def run(self, at: Context) -> list[Outcome]:
        pairs = choose_pairs(
            [node.name for node in at.nodes], at.inventory.rendezvous.master, node_groupings(at), self.pairs
        )
        said = self._asked(at, pairs)
        silent = {name: answer for name, answer in said.items() if isinstance(answer, Outcome)}
        answers = {name: answer for name, answer in said.items() if not isinstance(answer, Outcome)}
        echoes = Observations(at, answers, [])
        first = name_and_address_findings(echoes)
        if not first and (losing := [pair for pair in echoes.pairs if has_excess_loss(pair)]):
            first = random_drop_findings(echoes, losing)
        dials: list[Dial] = []
        starved: dict[str, list[str]] = {}
        busy: dict[str, AwakeFacts] = {}
        if len(at.nodes) > 1 and not first:
            # TCP with full segments, one direction at a time, is the traffic that the job will really send.
            with Mesh(at, lambda node: [Want(0, "full")]) as mesh:
                lossy = any(pair.echoes_lost for pair in echoes.pairs)
                modes = ("up", "down", *(["trips"] if lossy else []))
                mesh.dial(modes, pairs=pairs, extra=lambda peer: ssh_port(at, peer))
                mute = [pair for pair in Observations(at, answers, mesh.dials).pairs if pair.echoes_vanished]
                if mute and not lossy:  # blocked ICMP, or a loss that only what TCP sends again gets through
                    ends = [(pair.source, pair.peer) for pair in mute]
                    mesh.dial(("trips",), pairs=Pairs.of(list(pairs.peers), ends))
                # Among many dials at once data may come too late on a machine that is short of CPU: tried again, alone.
                mesh.again([dial for dial in mesh.dials if dial.outcome in (UNMEASURED, "lost")])
            dials, busy = [dial for dial in mesh.dials if dial.outcome != "unsent"], mesh.busy
            starved = nodes_without_ports(mesh)
            silent.update(nodes_without_tcp_proof(echoes, mesh.silent))
        silent.update(at.lost_nodes())
        for name in silent:
            answers.pop(name, None)
        for answer in answers.values():  # what other nodes saw of a lost node says nothing about the path
            answer["targets"] = [target for target in answer["targets"] if target["peer"] not in silent]
        seen = Observations(at, answers, dials)
        if any(pair.ends & starved.keys() and not pair.full.get("received") for pair in seen.pairs):
            # TCP could not be tried, and echoes alone do not prove the path, so nothing is known about it.
            first = {name: [finding] for name, finding in port_exhaustion_findings(at, starved).items()}
        judge = Judge(seen, first, busy, pairs)
        for name in starved if not first else ():
            judge.warnings[name].append("no port was left here to try TCP as well: proven by ICMP alone")
        return judge.outcomes(silent)

    def _asked(self, at: Context, pairs: Pairs) -> dict[str, PingAnswer | Outcome]:
        """The nodes' answers by name, or outcomes for nodes that gave none. A node that had no CPU and missed echoes is
        asked again when the others are quiet."""

        def arguments(node: Node) -> Facts:
            met = [node, at.inventory.master, *(at.inventory.node(name) for name in pairs.peers[node.name])]
            names = names_to_resolve(met, at.inventory.rendezvous.address)
            own = at.inventory.rendezvous.backend == "gloo" and not socket_interface(at.inventory, node)
            reverse = at.data_address(at.inventory.master)
            return {"names": names, "hostname": own, "reverse": reverse, "targets": ping_targets(at, node, pairs)}

        said = at.ask(PING_PROGRAM, arguments, timeout_s=30.0)
        for _ in range(MAX_REDIALS):
            doubtful = [node for node in at.nodes if is_likely_cpu_starved(said[node.name])]
            if not doubtful:
                break
            again = at.ask(PING_PROGRAM, arguments, timeout_s=30.0, nodes=doubtful)
            said.update(again)
        return said


def nodes_without_tcp_proof(echoes: Observations, silent: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """Of the nodes in `silent`, on which our program for TCP did not run, those that have a way which echoes alone do
    not prove."""
    unproven = {name for pair in echoes.pairs if not pair.full.get("received") for name in pair.ends}
    return {name: outcome for name, outcome in silent.items() if name in unproven}


def is_likely_cpu_starved(answer: PingAnswer | Outcome) -> bool:
    """Whether a node that missed an answer may have been kept from its CPU meanwhile."""
    return (
        not isinstance(answer, Outcome)
        and may_seem_silent(answer["awake"])
        and any(not (target["small"] or {}).get("received") or has_lost_echoes(target) for target in answer["targets"])
    )


def has_lost_echoes(target: PingTarget) -> bool:
    """Whether some echoes of either size did not come back."""
    return any(one and one.get("received", 0) < one.get("sent", 0) for one in (target["small"], target["full"]))


def ping_targets(at: Context, node: Node, pairs: Pairs) -> list[dict[str, Any]]:
    """The node's peers, each at the address that the job will dial. `spare` is the inventory's address where that is
    another one."""
    found = []
    for name in pairs.peers[node.name]:
        peer = at.inventory.node(name)
        address = at.data_address(peer)
        spare = peer.address if peer.address != address else None
        found.append({"peer": peer.name, "address": address, "spare": spare})
    return found


def ssh_port(at: Context, peer: Node) -> list[tuple[str, int, str]]:
    """The peer's SSH port, on which a program surely listens: for hosts that drop everything else."""
    if peer.connection != "ssh":
        return []
    return [(at.data_address(peer), peer.ssh.usual_port, "ssh")]


def name_and_address_findings(seen: Observations) -> dict[str, list[Finding]]:
    """By node, findings about names and addresses alone: while these are wrong, the fate of the packets says
    nothing."""
    found: dict[str, list[Finding]] = defaultdict(list)
    for node in seen.nodes:
        found[node.name] += name_findings(seen, node)
    if not any(found.values()):
        found.update(address_findings(seen))
    return {name: own for name, own in found.items() if own}


class Judge:
    """The judge of all pairs of nodes: which node is at fault when a pair is not in order."""

    def __init__(
        self,
        seen: Observations,
        findings: Mapping[str, list[Finding]] | None = None,
        busy: Mapping[str, AwakeFacts] | None = None,
        pairs: Pairs | None = None,
    ) -> None:
        self.seen = seen
        self.busy = busy or {}
        self.pairs = pairs
        self.findings: dict[str, list[Finding]] = defaultdict(list, findings or {})
        self.warnings: dict[str, list[str]] = defaultdict(list)
        self.unknown: dict[str, list[Finding]] = defaultdict(list)
        self.cloned: set[str] = set()

    def outcomes(self, silent: Mapping[str, Outcome]) -> list[Outcome]:
        """One outcome a node. `silent` has the outcomes of nodes that gave no answer."""
        if not any(self.findings.values()):
            self._paths()
        outcomes = []
        for node in self.seen.at.nodes:
            name = node.name
            if name in silent:
                outcomes.append(silent[name])
            elif self.findings.get(name):
                outcomes.append(
                    Outcome.failed(name, *merge_equal_findings(self.findings[name]), warnings=self.warnings[name])
                )
            elif self.unknown.get(name):
                outcomes.append(Outcome.unknown(name, *self.unknown[name]))
            else:
                self.warnings[name] += name_warnings(self.seen, node)
                self.warnings[name] += address_warnings(self.seen, node)
                outcomes.append(Outcome.passed(name, self._proof(node), warnings=self.warnings[name]))
        return outcomes

    def _paths(self) -> None:
        """Judges the paths from the root upwards: no route, no answer, answers that get lost, large packets that get
        lost."""
        seen = self.seen
        for pair in seen.pairs:
            self._warn(pair)
            if pair.unmeasured:
                self._too_busy(pair)
        clones = duplicate_mac_findings(seen, [pair for pair in self._left(seen.pairs) if pair.unanswered])
        self._add(clones)
        self.cloned = {name for guilty, own in clones.items() for name in (guilty, *own[0].peers)}
        self._add(flapped_link_findings(seen))
        self._add(address_conflict_findings(seen))
        self._add(
            wrong_interface_findings(seen, self._left(pair for pair in seen.pairs if pair.routeless or pair.unanswered))
        )
        # Of a broadcast address, ping of iputils asks whether it is meant, and sends nothing.
        silent = [p for p in seen.pairs if p.unanswered or (p.unasked and not p.answered)]
        broadcast = [p for p in silent if is_broadcast_address(seen, p)]
        routeless = [*(p for p in seen.pairs if p.routeless), *broadcast]
        self._add(route_findings(seen, self._left(routeless)))
        self._add(silence_findings(seen, self._left(pair for pair in seen.pairs if pair.unanswered)))
        left = self._left(seen.pairs)
        lost = echo_losses(seen, left)
        for loss in lost:
            if loss.harmless:
                self.warnings[loss.pair.source].append(loss_warning(loss))
        self._add(loss_findings(seen, lost))
        limited = {(loss.pair.source, loss.pair.peer) for loss in lost if loss.flows}
        vanished = [pair for pair in left if self._full_size_vanished(pair, (pair.source, pair.peer) in limited)]
        self._add(size_findings(seen, vanishing_directions(seen, vanished, pairs_with_findings(self.findings))))
        for pair in self._left(pair for pair in seen.pairs if pair.untried):
            self.unknown[pair.source].append(_untried_pair_finding(pair))

    def _left(self, pairs: Iterable[Pair]) -> list[Pair]:
        """The pairs that no finding explains yet, and that were measured."""
        explained = pairs_with_findings(self.findings)
        pairs = [pair for pair in pairs if not pair.ends & self.cloned]
        return [pair for pair in pairs if pair.ends not in explained and not pair.unmeasured]

    def _too_busy(self, pair: Pair) -> None:
        """Adds to `unknown` that the pair could not be measured, for the end that had no CPU."""
        name = pair.peer if pair.peer in self.busy and pair.source not in self.busy else pair.source
        other = pair.source if name == pair.peer else pair.peer
        self.unknown[name].append(starved_node_finding(name, self.busy.get(name), f"the way between it and {other}"))

    def _add(self, found: Mapping[str, list[Finding]]) -> None:
        for name, own in found.items():
            self.findings[name] += own

    def _warn(self, pair: Pair) -> None:
        """Warns about ICMP that is missing where TCP passes. Adds to `unknown` where ping is missing and TCP does not
        pass."""
        if pair.unasked and any(dial.outcome == "open" for dial in pair.dials):
            here = (
                "no ping program here" if pair.small.get("missing") else "the ping program here takes no such options"
            )
            self.warnings[pair.source].append(f"{here} (package iputils-ping or iputils): proven over TCP instead")
        elif pair.unasked and not pair.routeless:
            has = (
                "has no ping program" if pair.small.get("missing") else "has a ping program that takes no such options"
            )
            says = f"{pair.source} {has}, and TCP to {pair.peer} does not open either"
            seen = (*pair.echo_says(), *(str(dial) for dial in pair.dials[:3]))
            self.unknown[pair.source].append(finding_for("tool-missing", says, seen, (pair.peer,), way="ping"))
        elif not pair.small and pair.answered:
            self.warnings[pair.source].append(f"no ping to {pair.peer} was begun in time: proven over TCP instead")
        elif pair.echoes_vanished and not loses_round_trips(self.seen, pair):
            self.warnings[pair.source].append(
                f"{pair.peer} does not answer ICMP, but TCP reaches it: ICMP is blocked on the way"
            )

    def _full_size_vanished(self, pair: Pair, limited: bool) -> bool:
        """Whether full-size echoes are lost while small ones come back, and nothing harmless explains that. `limited`:
        a limit on pings was already reported."""
        if not pair.small.get("received") or pair.full.get("received"):
            return False
        if cannot_send_full_size(pair):
            if pair.full_size_proven:
                self.warnings[pair.source].append("this ping cannot send full-size probes: proven over TCP instead")
            else:
                self.unknown[pair.source].append(_no_probe_finding(pair))
            return False
        if (carries := reported_path_mtu(pair)) is not None:
            mtu = pair.route.get("mtu") or 1500
            self.warnings[pair.source].append(
                f"the path to {pair.peer} carries less than the interface's MTU of {mtu} ({carries}); TCP adapts, RDMA "
                "does not"
            )
            return False
        if is_only_icmp_limited(self.seen, pair):
            if not limited:
                self.warnings[pair.source].append(
                    f"harmless: full-size pings to {pair.peer} are not answered, full-size TCP gets through both ways"
                )
            return False
        return True

    @cached_property
    def _usual(self) -> str:
        """The proof that holds for all nodes, so that a report with many nodes says it once."""
        trips = sorted(pair.small.get("ms", 0.0) for pair in self.seen.pairs if pair.small.get("received"))
        trip = f", half of them within {max(trips[len(trips) // 2], 0.1):.1f} ms" if trips else " over TCP"
        mtus = sorted({mtu for pair in self.seen.pairs if (mtu := pair.route.get("mtu"))})
        full = f"full-size packets{f' (MTU {name_list_text(map(str, mtus))})' if mtus else ''} get through"
        if unproven := [pair.peer for pair in self.seen.pairs if not pair.full_size_proven]:
            full = f"full-size packets to {name_list_text(sorted(set(unproven)))} could not be tried"
        return f"all peers that were tried answer{trip}; {full}"

    def _proof(self, node: Node) -> str:
        """What is proven about one node, in words."""
        pairs = [pair for pair in self.seen.pairs if pair.source == node.name]
        peers = len(pairs)
        if peers == 0 and len(self.seen.at.nodes) == 1:
            return "one node: there is no other to reach"
        if peers == 0:
            return "its own names are in order; none of its peers could be reached"
        if any(self.findings.values()):
            return f"its own names and routes are in order ({count_text(peers, 'peer')})"
        if self.pairs and (note := self.pairs.note()) and not any(self.unknown.values()):
            return f"{self._usual}; {note}"
        echoed = [pair for pair in pairs if pair.small.get("received")]
        slowest = max((pair.small.get("ms", 0.0) for pair in echoed), default=None)
        mtu = min((mtu for pair in pairs if (mtu := pair.route.get("mtu"))), default=None)
        count = count_text(peers, "peer")
        if len(echoed) not in (0, peers):
            count = f"{len(echoed)} of {peers} peers"
        reached = f"{count} answer{'' if peers > 1 else 's'}" + ("" if slowest is not None else " over TCP")
        trip = f" within {max(slowest, 0.1):.1f} ms" if slowest is not None else ""
        unproven = [pair.peer for pair in pairs if not pair.full_size_proven]
        if unproven:
            return f"{reached}{trip}; full-size packets to {', '.join(unproven[:4])} could not be tried"
        return f"{reached}{trip}; full-size packets{f' (MTU {mtu})' if mtu else ''} get through"


def _untried_pair_finding(pair: Pair) -> Finding:
    """The finding for a pair about which nothing is known."""
    way = f"the way from {pair.source} to {pair.peer}"
    says = f"nothing is known of {way}: no ping was begun in time, and TCP does not open"
    seen = tuple(str(dial) for dial in pair.dials[:3])
    return finding_for("insufficient-evidence", says, seen, (pair.peer,), way="late", node=pair.source)


def _no_probe_finding(pair: Pair) -> Finding:
    """The finding for a pair whose source has no means to send full-size packets."""
    return finding_for(
        "tool-missing",
        f"the ping program of {pair.source} cannot send full-size probes, and TCP to {pair.peer} does not open either",
        tuple(str(pair.full.get("raw", "")).strip().splitlines()[-2:]),
        (pair.peer,),
        way="ping-mtu",
    )


def merge_equal_findings(findings: list[Finding]) -> list[Finding]:
    """The findings, of which those with the same cause and sentence become one."""
    first: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        first.setdefault((finding.cause, finding.says), finding)
    return list(first.values())
