"""firewall: every node reaches every other on the ports the job uses; what is blocked is explained from the rules."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from runbook.causes.netfilter import Blocked, Evidence, Flow, explain_blocked
from runbook.checks.base import Check, argument
from runbook.checks.context import Context
from runbook.checks.mesh import Dial, Mesh, Want, rules_of
from runbook.checks.port import promised_ports
from runbook.model.inventory import Inventory, Node
from runbook.model.verdict import Finding, Outcome

MOST_RANGE_PORTS = 32


@dataclass(frozen=True)
class Firewall(Check):
    id: ClassVar[str] = "firewall"
    timeout_s: ClassVar[float] = 60.0

    ephemeral: int = argument(2, "count", "how many ports of the kernel's choice to try on each node")

    def run(self, at: Context) -> list[Outcome]:
        if len(at.nodes) == 1:
            return [
                Outcome.passed(at.nodes[0].name, "one node: its ranks meet on loopback, which no port has to cross")
            ]
        promised = sample(promised_ports(at.inventory))

        def wants(_: Node) -> list[Want]:
            rendezvous = at.inventory.rendezvous.port
            fixed = [Want(rendezvous, "rendezvous"), *(Want(p, "range") for p in promised if p != rendezvous)]
            return fixed + [Want(0, "ephemeral")] * self.ephemeral

        with Mesh(at, wants) as mesh:
            at.say("listening on every node, dialling every pair")
            mesh.dial(itself=True)
            return self._judge(at, mesh)

    def _judge(self, at: Context, mesh: Mesh) -> list[Outcome]:
        bad = [dial for dial in mesh.dials if dial.outcome != "open"]
        if bad or mesh.silent:
            mesh.silent.update(at.lost_nodes())
        bad = [dial for dial in bad if dial.source not in mesh.silent and dial.destination not in mesh.silent]
        findings = explain(at, mesh, bad)
        outcomes = []
        for node in at.nodes:
            own = findings.get(node.name, [])
            busy = [occupied(node, error["port"], error["errno"]) for error in mesh.occupied.get(node.name, ())]
            arriving = [dial for dial in mesh.dials if dial.destination == node.name and dial.outcome == "open"]
            if own or busy:
                outcomes.append(Outcome.failed(node.name, *own, *busy))
            elif node.name in mesh.silent:
                outcomes.append(mesh.silent[node.name])
            elif blocked := [dial for dial in bad if node.name in (dial.source, dial.destination)]:
                others = tuple(sorted(findings))
                outcomes.append(
                    Outcome.passed(
                        node.name,
                        f"{len(arriving)} connections to it opened; what failed between it and "
                        f"{', '.join(sorted({d.source if d.destination == node.name else d.destination for d in blocked}))} "
                        f"is {', '.join(others)}'s doing",
                    )
                )
            else:
                ports = {dial.port for dial in arriving}
                peers = {dial.source for dial in arriving} - {node.name}
                outcomes.append(
                    Outcome.passed(
                        node.name, f"{len(ports)} ports open from {len(peers)} peer{'s' if len(peers) != 1 else ''}"
                    )
                    if arriving
                    else Outcome.unknown(
                        node.name,
                        Finding(
                            "insufficient-evidence",
                            f"nobody could dial {node.name}: no other node was able to try",
                            "mend the other nodes first, then run again",
                        ),
                    )
                )
        return outcomes


def sample(ports: list[int]) -> list[int]:
    """A long range is sampled evenly, with both ends: a firewall rule rarely has holes of one port."""
    if len(ports) <= MOST_RANGE_PORTS:
        return ports
    step = (len(ports) - 1) / (MOST_RANGE_PORTS - 1)
    return sorted({ports[round(index * step)] for index in range(MOST_RANGE_PORTS)})


def explain(at: Context, mesh: Mesh, bad: list[Dial]) -> dict[str, list[Finding]]:
    """Findings by guilty node, one for each pair and kind of trouble, all its ports together."""
    if not bad:
        return {}
    involved = sorted({name for dial in bad for name in (dial.source, dial.destination)})
    addresses = {node.name: at.data_address(node) for node in at.nodes}
    peers = {name: [addresses[d.destination] for d in bad if d.source == name] for name in involved}
    for dial in bad:
        peers[dial.destination].append(addresses[dial.source])
    evidence = rules_of(at, involved, {name: sorted(set(listed)) for name, listed in peers.items()})
    groups: dict[tuple[str, str, str], list[Dial]] = defaultdict(list)
    for dial in sorted(bad, key=lambda dial: dial.source == dial.destination):  # what a node does to itself comes last
        groups[dial.source, dial.destination, dial.outcome].append(dial)
    trouble = Trouble(at, mesh, bad, addresses, evidence)
    found: dict[str, list[Finding]] = defaultdict(list)
    for dials in groups.values():
        node, finding = judge_pair(trouble, dials)
        same = [other for other in found[node] if other.cause == finding.cause and words(other) == words(finding)]
        if same:
            # One command opens it for all of these peers: one finding.
            found[node].remove(same[0])
            peers_of_both = tuple(dict.fromkeys((*same[0].peers, *finding.peers)))
            lines = tuple(dict.fromkeys((*same[0].evidence, *finding.evidence)))[:10]
            finding = replace(same[0], peers=peers_of_both, evidence=lines)
        found[node].append(finding)
    return dict(found)


def words(finding: Finding) -> list[str]:
    """What a remedy opens, whatever the order in which it lists the peers."""
    return sorted(re.findall(r"[\w.:/-]+", finding.remedy))


@dataclass(frozen=True)
class Trouble:
    """Everything that is known when failed dials are explained."""

    at: Context
    mesh: Mesh
    bad: list[Dial]
    addresses: Mapping[str, str]
    evidence: Mapping[str, Evidence | None]


def judge_pair(trouble: Trouble, dials: list[Dial]) -> tuple[str, Finding]:
    """Which node is guilty of these failed dials of one direction, and the finding."""
    first = dials[0]
    source, destination = first.source, first.destination
    at, mesh, evidence = trouble.at, trouble.mesh, trouble.evidence
    seen = (f"{source} → {first.address}, {ports_text(dials)}: {first.says}",)
    if first.outcome == "unresolvable":
        return source, Finding(
            "name-unresolvable",
            f"{source} cannot resolve {first.address}",
            f"add it to /etc/hosts or DNS on {source}, or write an IP address into the inventory",
            seen,
            (destination,),
        )
    if first.outcome == "stranger":
        return destination, Finding(
            "name-wrong-address",
            f"{first.address} leads {source} to another machine than {destination}: not our listener answers there",
            f"correct the address of {destination} in the inventory, or its name in /etc/hosts of {source}",
            seen,
            (source,),
        )
    if first.outcome in ("silent", "lost", "reset"):
        return destination, Finding(
            "tcp-connection-lost-midrun" if first.outcome == "reset" else "packet-loss",
            f"TCP from {source} to {destination} opens on {ports_text(dials)} and then nothing more comes through",
            "look for a device between them that tracks connections (a firewall, a load balancer) and for packet loss",
            seen,
            (source,),
        )
    if first.errno in ("ENETUNREACH", "EHOSTUNREACH") and not rejects(evidence.get(source), evidence.get(destination)):
        return source, Finding(
            "no-route",
            f"{source} has no way to {destination} ({first.address}): {first.errno}",
            f"on {source}: `ip route get {first.address}`; add the route, or correct the address",
            seen,
            (destination,),
        )
    blocked = explain_dials(trouble, dials)
    kinds = {dial.kind for dial in dials}
    rendezvous_open = any(
        d.outcome == "open" and d.kind == "rendezvous" and (d.source, d.destination) == (source, destination)
        for d in mesh.dials
    )
    if blocked is None:
        return destination, Finding(
            "master-not-listening",
            f"{destination} refuses {source} on {ports_text(dials)} although our listener was up",
            f"look at {destination} by hand: `sudo nft list ruleset`",
            seen,
            (source,),
        )
    cause, says = blocked.cause, blocked.says
    if rendezvous_open and "ephemeral" in kinds:
        cause = "data-ports-blocked"
        says = (
            f"the rendezvous port {at.inventory.rendezvous.port} opens, but the ports on which the ranks exchange data do "
            f"not: {says}"
        )
    return blocked.node, Finding(
        cause,
        says,
        blocked.remedy,
        (*seen, *(line for line in blocked.evidence if line not in seen))[:10],
        tuple(name for name in (source, destination) if name != blocked.node),
    )


def explain_dials(trouble: Trouble, dials: list[Dial]) -> Blocked | None:
    first = dials[0]
    outcome: Literal["dropped", "rejected", "refused"] = "dropped"
    if first.outcome in ("refused", "rejected"):
        outcome = "refused" if first.outcome == "refused" else "rejected"
    to_itself = "lo" if first.source == first.destination else None
    flow = Flow(
        numeric(trouble.addresses[first.source]),
        numeric(first.address),
        first.port,
        in_interface=to_itself,
        out_interface=to_itself,
    )
    # One command should open all that is blocked, for every peer that is.
    alike = [dial for dial in trouble.bad if dial.outcome == first.outcome]
    return explain_blocked(
        outcome,
        flow,
        trouble.evidence.get(first.source),
        trouble.evidence.get(first.destination),
        first.source,
        first.destination,
        ports=needed_ports(trouble.at.inventory, [dial for dial in alike if dial.destination == first.destination]),
        sources=sorted({numeric(trouble.addresses[d.source]) for d in alike if d.destination == first.destination}),
        destinations=sorted({numeric(d.address) for d in alike if d.source == first.source}),
        listener_was_up=True,
    )


def needed_ports(inventory: Inventory, dials: Iterable[Dial]) -> list[tuple[int, int]]:
    """All that one command should open: the rendezvous port, the promised ranges, and the ephemeral ones if blocked."""
    dials = list(dials)
    kinds = {dial.kind for dial in dials}
    ports: list[tuple[int, int]] = []
    if "rendezvous" in kinds:
        ports.append((inventory.rendezvous.port, inventory.rendezvous.port))
    if "range" in kinds:
        ports.extend(inventory.network.ports)
    if "ephemeral" in kinds:
        ports.append(ephemeral_range(dials))
    return sorted(set(ports))


def ephemeral_range(dials: list[Dial]) -> tuple[int, int]:
    """Linux's default range, widened to what was really handed out."""
    seen = [dial.port for dial in dials if dial.kind == "ephemeral"]
    return min(32768, *seen), max(60999, *seen)


def rejects(*evidence: Evidence | None) -> bool:
    """Whether any rule at all could be behind an unreachable: without rules, it is the routing."""
    return any(one is None or one.bases(4) or one.bases(6) for one in evidence)


def numeric(address: str) -> str:
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        try:
            return str(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError:
            return "0.0.0.0"


def occupied(node: Node, port: int, errno: str) -> Finding:
    return Finding(
        "port-in-use",
        f"port {port} of {node.name} is taken, so nobody could be let in on it",
        f"see who has it: `sudo ss -ltnp 'sport = :{port}'` on {node.name}; the `port` check names the process",
        (f"bind({port}): {errno}",),
    )


def ports_text(dials: list[Dial]) -> str:
    """Ports with their runs folded: `TCP 29500-29510, 41927`."""
    runs: list[list[int]] = []
    for port in sorted({dial.port for dial in dials}):
        if runs and port == runs[-1][-1] + 1:
            runs[-1].append(port)
        else:
            runs.append([port])
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return "TCP " + ", ".join(shown[:6]) + (f" and {len(shown) - 6} more" if len(shown) > 6 else "")
