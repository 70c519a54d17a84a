"""firewall: every node reaches every other on the ports the job uses; what is blocked is explained from the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from runbook.causes.catalogue import finding_for
from runbook.checks.base import Check, argument, pairs_argument
from runbook.checks.context import Context, Facts
from runbook.checks.network.dial import Dial
from runbook.checks.network.ephemeral_ports import (
    NO_PORT_CAUSE,
    ephemeral_port_count,
    has_too_few_ports,
    nodes_without_ports,
    port_exhaustion_findings,
)
from runbook.checks.network.mesh import REDIAL_TIMEOUT_S, Mesh, Want, starved_node_finding
from runbook.checks.network.pairs import Pairs, choose_pairs, node_groupings, pairs_around_failures
from runbook.checks.port import ask_port_holders, promised_ports, unbindable_port_finding
from runbook.model.grouping import values_by_key
from runbook.model.inventory import Node
from runbook.model.units import count_text, name_list_text
from runbook.model.verdict import Finding, Outcome
from runbook.transport.node_answers import AwakeFacts

if TYPE_CHECKING:
    from runbook.checks.network.failed_dials import Trouble
    from runbook.firewall.collected_rules import Evidence

MAX_DIALLED_PORTS = 32
"""The most ports of `network.ports` that are dialled on a node."""

EPHEMERAL_PORTS_DIVISOR = 4
"""The check listens on at most one in this many of the ephemeral ports that a node's kernel has to hand out."""


MIN_SYN_RETRANSMIT_S = 0.9
"""Seconds. The kernel repeats the first packet of a connection after one second; this is a little less."""

OPEN_FILES_ERRNOS = ("EMFILE", "ENFILE")
"""The errnos of a node that may not open more files."""
JUDGING_RESERVE_S = 10.0
"""Seconds of the stage's time that are kept to collect the rules of the nodes and to find the processes that hold
ports."""


@dataclass(frozen=True)
class Firewall(Check):
    id: ClassVar[str] = "firewall"
    timeout_s: ClassVar[float] = 60.0
    looks_at_rendezvous: ClassVar[bool] = True

    ephemeral: int = argument(2, "count", "how many ports of the kernel's choice to try on each node")
    pairs: str = pairs_argument()

    def run(self, at: Context) -> list[Outcome]:
        if len(at.nodes) == 1:
            return [
                Outcome.passed(at.nodes[0].name, "one node: its ranks meet on loopback, which no port has to cross")
            ]
        promised = promised_ports(at.inventory, MAX_DIALLED_PORTS)

        master, rendezvous = at.inventory.rendezvous.master, at.inventory.rendezvous.port

        def wants(node: Node) -> list[Want]:
            # Other nodes are not dialled at the rendezvous port, unless the inventory promises that port on every node.
            first = [Want(rendezvous, "rendezvous")] if node.name == master else []
            fixed = [Want(port, "range") for port in promised if port != rendezvous or node.name != master]
            ports = ephemeral_port_count(at.facts(node.name))
            # Where few ports are left, our own listeners must not take the last ones.
            tried = self.ephemeral if ports is None else min(self.ephemeral, max(1, ports // EPHEMERAL_PORTS_DIVISOR))
            return [*first, *fixed, *[Want(0, "ephemeral")] * tried] or [Want(0, "ephemeral")]

        groups = node_groupings(at)
        pairs = choose_pairs([node.name for node in at.nodes], master, groups, self.pairs)
        with Mesh(at, wants) as mesh:
            at.say(f"listening on every node, dialling {pairs.note() or 'every pair'}")
            mesh.dial(pairs=pairs, itself=True)
            trouble = self._tried_again(at, mesh, self._trouble(at, mesh))
            failed = [(dial.source, dial.destination) for dial in (trouble.unsure() if trouble else ())]
            if len(more := pairs_around_failures(pairs, failed, groups)):
                at.say(f"dialling {len(more)} more pairs around those that failed")
                mesh.dial(pairs=more)
                pairs = pairs.and_(more)
                trouble = self._tried_again(at, mesh, self._trouble(at, mesh, trouble.evidence if trouble else None))
            from runbook.checks.network.dead_paths import dead_path_findings

            return firewall_outcomes(
                at, mesh, trouble, late_port_holder_findings(at, mesh), pairs, dead_path_findings(at, mesh)
            )

    def _tried_again(self, at: Context, mesh: Mesh, trouble: Trouble | None) -> Trouble | None:
        """The trouble that remains when silent dials that no rule surely explains were dialled again, for longer."""
        if trouble is None or not (doubtful := trouble.unexplained()):
            return trouble
        silent = sum(dial.outcome == "dropped" for dial in mesh.dials)
        at.say(
            f"{count_text(silent, 'connection')} got no answer, and no rule explains it: "
            f"dialling {len(doubtful)} again, "
            "for longer"
        )
        mesh.again_by_pair(doubtful, min(REDIAL_TIMEOUT_S, at.left_s - JUDGING_RESERVE_S))
        return self._trouble(at, mesh, trouble.evidence)

    def _trouble(
        self, at: Context, mesh: Mesh, evidence: Mapping[str, Evidence | None] | None = None
    ) -> Trouble | None:
        """What is known about the dials that failed, or None when all opened: most runs do not need the code that
        explains failures."""
        if mesh.silent or any(dial.outcome != "open" for dial in mesh.dials):
            mesh.silent.update(at.lost_nodes())
        reached = [d for d in mesh.dials if d.source not in mesh.silent and d.destination not in mesh.silent]
        if all(dial.outcome == "open" for dial in reached):
            return None
        from runbook.checks.network.failed_dials import Trouble

        return Trouble.of(at, reached, evidence)


def firewall_outcomes(
    at: Context,
    mesh: Mesh,
    trouble: Trouble | None,
    held: Mapping[str, Sequence[Finding]] | None = None,
    pairs: Pairs | None = None,
    dead_paths: Mapping[str, Sequence[Finding]] | None = None,
) -> list[Outcome]:
    """One outcome a node. By node, `held` has findings for ports that could not be bound, and `dead_paths` findings for
    dead ones among parallel paths to other nodes."""
    seen = FirewallJudge(at, mesh, trouble, held or {}, pairs.note() if pairs else "", dead_paths or {})
    return [seen.outcome(node) for node in at.nodes]


@dataclass(frozen=True)
class FirewallJudge:
    """What was seen on all nodes, and the outcome of each node from it. `note` says which of all pairs were dialled."""

    at: Context
    mesh: Mesh
    trouble: Trouble | None
    held: Mapping[str, Sequence[Finding]]
    note: str
    dead_paths: Mapping[str, Sequence[Finding]]

    @cached_property
    def findings(self) -> Mapping[str, list[Finding]]:
        """The findings about failed dials, by node."""
        return self.trouble.findings() if self.trouble else {}

    @cached_property
    def opened(self) -> Mapping[str, list[Dial]]:
        """The connections that opened, by the node that was dialled."""
        return values_by_key((dial.destination, dial) for dial in self.mesh.dials if dial.outcome == "open")

    @cached_property
    def without_port(self) -> Mapping[str, Finding]:
        """By node, a finding for a kernel that has no port left, or too few for the ranks; without nodes whose dials
        have already shown that."""
        known = {name for name, own in self.findings.items() if any(f.cause == NO_PORT_CAUSE for f in own)}
        starved = {
            node.name: [f"{count_text(node.slots, 'rank')} to start there"]
            for node in self.at.nodes
            if node.name not in self.mesh.silent and has_too_few_ports(self.at, node)
        } | nodes_without_ports(self.mesh)
        return port_exhaustion_findings(self.at, {name: lines for name, lines in starved.items() if name not in known})

    @cached_property
    def unmeasured(self) -> Mapping[str, list[Dial]]:
        """Dials that could not be made, by the node at fault: see `unmade_dials_by_node`."""
        return unmade_dials_by_node(self.trouble.unmeasured if self.trouble else (), self.mesh.busy)

    def outcome(self, node: Node) -> Outcome:
        """The outcome of one node."""
        name, errors = node.name, self.mesh.occupied.get(node.name, ())
        own = [*self.findings.get(name, ()), *self.dead_paths.get(name, ())]
        own += self.held.get(name) or unknown_holder_findings(node, [error for error in errors if error["port"]])
        own += [self.without_port[name]] if name in self.without_port else []
        if own:
            return Outcome.failed(name, *own)
        if name in self.mesh.silent:
            return self.mesh.silent[name]
        if missed := self.unmeasured.get(name):
            what = f"{count_text(len(missed), 'connection')} with {name_list_text(other_ends(name, missed))}"
            if short := [dial for dial in missed if dial.source == name and dial.errno in OPEN_FILES_ERRNOS]:
                says = f"{name} had no free descriptor for {what}, so they were not tried"
                seen = tuple(dict.fromkeys(f"{name}: socket(): {dial.errno}" for dial in short))
                return Outcome.unknown(name, finding_for("open-files-limit", says, seen, way="node", node=name))
            return Outcome.unknown(name, starved_node_finding(name, self.mesh.busy.get(name), what))
        arriving = self.opened.get(name, [])
        bad = self.trouble.bad if self.trouble else ()
        if blocked := [dial for dial in bad if name in (dial.source, dial.destination)]:
            what = "all else" if self.note else count_text(len(arriving), "connection")
            far = other_ends(name, blocked)
            owners = name_list_text(f"{guilty}'s" for guilty in sorted(self.findings))
            whose = f"is {owners} doing"
            if self.trouble and self.trouble.guessed.issuperset(far):
                whose = "is told there, and may be the fault of either end"
            between = f"between it and {name_list_text(far)}"
            return Outcome.passed(name, f"{what} to it opened; what failed {between} {whose}")
        if not arriving:
            says = f"{name} was not dialled: no other node was able to try"
            return Outcome.unknown(name, finding_for("insufficient-evidence", says, way="others-first"))
        ports = {dial.port for dial in arriving}
        peers = {dial.source for dial in arriving} - {name}
        proof = f"{len(ports)} ports open from {count_text(len(peers), 'peer')}"
        if self.note and peers:
            proof = f"all its ports open from all peers that were tried; {self.note}"
        return Outcome.passed(name, proof, warnings=[*late_connection_warnings(arriving), *self._without_ecn(name)])

    def _without_ecn(self, name: str) -> list[str]:
        """A warning where connections from this node open only with the kernel's repeated packet, which no longer asks
        for ECN."""
        if not self.at.facts(name).get("asks_ecn"):
            return []
        mine = [dial for dials in self.opened.values() for dial in dials if dial.source == name != dial.destination]
        late = [
            dial for dial in mine if dial.tries == 1 and dial.retransmitted and dial.seconds >= MIN_SYN_RETRANSMIT_S
        ]
        seen = f"{len(late)} of its {len(mine)} connections opened only a second later, when the kernel no longer asked"
        why = "for ECN: something on the way drops packets that do; `sudo sysctl -w net.ipv4.tcp_ecn=2` asks for none"
        return [f"{seen} {why}"] if late else []


def unmade_dials_by_node(unmeasured: Sequence[Dial], busy: Mapping[str, AwakeFacts]) -> dict[str, list[Dial]]:
    """Dials of which nothing is known, by the node that had no CPU for them; else by the node that dialled."""
    return values_by_key(
        (dial.destination if dial.destination in busy and dial.source not in busy else dial.source, dial)
        for dial in unmeasured
    )


def other_ends(name: str, dials: Sequence[Dial]) -> list[str]:
    """The nodes at the other ends of these dials, sorted."""
    return sorted({d.source if d.destination == name else d.destination for d in dials})


def late_connection_warnings(arriving: list[Dial]) -> list[str]:
    """A warning about connections that opened only after several tries."""
    late = [dial for dial in arriving if dial.tries > 1]
    if not late:
        return []
    tries = max(dial.tries for dial in late)
    seen = f"{len(late)} of {len(arriving)} connections opened only after up to {tries} tries"
    return [f"{seen}: packets are lost on the way, or a rule limits new connections"]


def late_port_holder_findings(at: Context, mesh: Mesh) -> dict[str, list[Finding]]:
    """By node, findings for the processes that hold ports which could not be bound: a process came after the `port`
    check, or the playbook has no such check."""
    taken = {name: [e["port"] for e in errors if e["port"]] for name, errors in mesh.occupied.items()}
    told = ask_port_holders(at, taken, at.inventory.rendezvous.port)
    return {name: found for name, found in told.items() if not isinstance(found, Outcome)}


def unknown_holder_findings(node: Node, errors: Sequence[Facts]) -> list[Finding]:
    """Findings for ports that could not be bound and whose holder is not known: it has ended, or was not looked for in
    time."""
    if not errors:
        return []
    port, errno = errors[0]["port"], errors[0]["errno"]
    others = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    seen = (f"bind({port}): {errno}",)
    if errno != "EADDRINUSE":
        return [unbindable_port_finding(node, f"port {port}{others}", errno, seen, "other `network: {ports: …}`")]
    says = f"port {port}{others} of {node.name} was taken, so our program could not listen on it"
    return [finding_for("port-in-use", says, seen, way="ours", port=port, node=node.name)]
