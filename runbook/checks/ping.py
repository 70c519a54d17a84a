"""ping: from every node to every other: names resolve, packets come back, and full-size packets do too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from runbook.causes.netfilter import Flow, explain_blocked
from runbook.checks.base import Check
from runbook.checks.context import Context, Facts
from runbook.checks.firewall import numeric
from runbook.checks.mesh import Dial, Mesh, Want, rules_of
from runbook.launch.environment import socket_interface
from runbook.load.address import is_ip, is_loopback
from runbook.model.inventory import Node
from runbook.model.verdict import Finding, Outcome

LOSS_TOLERATED = 0.01
SLOW_TRANSFER_S = 0.15

ANSWERS = ("open", "refused", "reset", "stranger", "silent", "lost")
"""Dials that prove that packets travel both ways, whatever came of them."""


@dataclass(frozen=True)
class Ping(Check):
    id: ClassVar[str] = "ping"
    timeout_s: ClassVar[float] = 60.0

    def run(self, at: Context) -> list[Outcome]:
        names = sorted({a for a in (at.inventory.rendezvous.address, *(n.address for n in at.nodes)) if not is_ip(a)})
        said = at.ask("ping", lambda node: {"names": names, "targets": targets(at, node)}, timeout_s=30.0)
        answers = {name: answer for name, answer in said.items() if not isinstance(answer, Outcome)}
        findings: dict[str, list[Finding]] = defaultdict(list)
        for node in at.nodes:
            if node.name in answers:
                findings[node.name] += name_findings(at, node, answers)
        dials: list[Dial] = []
        if len(at.nodes) > 1 and not any(findings.values()):
            # TCP with full segments, one direction at a time: the traffic that the job will really send.
            with Mesh(at, lambda node: [Want(0, "full")]) as mesh:
                mesh.dial(modes=("up", "down"), extra=lambda peer: ssh_port(at, peer))
            dials = mesh.dials
        silent = {name: outcome for name, outcome in said.items() if isinstance(outcome, Outcome)}
        silent.update(at.lost_nodes())
        for name in silent:
            answers.pop(name, None)
        for answer in answers.values():  # what others saw of a node that is gone tells nothing about the path
            answer["targets"] = [target for target in answer["targets"] if target["peer"] not in silent]
        return Judge(at, answers, dials, findings).outcomes(silent)


def targets(at: Context, node: Node) -> list[dict[str, str]]:
    others = [peer for peer in at.nodes if peer.name != node.name]
    return [{"peer": peer.name, "address": at.data_address(peer)} for peer in others]


def ssh_port(at: Context, peer: Node) -> list[tuple[str, int, str]]:
    """A port where something surely listens, for hosts that drop everything else."""
    if peer.connection != "ssh":
        return []
    return [(at.data_address(peer), peer.ssh.port or 22, "ssh")]


def owners(at: Context, addresses: list[str]) -> list[str]:
    """Nodes that have one of these addresses on an interface."""
    return [node.name for node in at.nodes if set(addresses) & set(at.own_addresses(node.name))]


def name_findings(at: Context, node: Node, answers: Mapping[str, Facts]) -> list[Finding]:
    """What this node makes of the names the job uses: nothing, loopback, or another machine."""
    if at.inventory.one_machine or len(at.nodes) == 1:
        return []
    found: list[Finding] = []
    resolved: Mapping[str, list[str] | None] = answers[node.name]["names"]
    meant: dict[str, str] = {other.address: other.name for other in at.nodes}
    meant.setdefault(at.inventory.rendezvous.address, at.inventory.rendezvous.master)
    for name, addresses in resolved.items():
        target = meant[name]
        truth = at.own_addresses(target)
        right = next((a for a in truth if ":" not in a), truth[0] if truth else "ADDRESS")
        line = f"echo '{right} {name}' | sudo tee -a /etc/hosts"
        if not addresses:
            found.append(
                Finding(
                    "name-unresolvable",
                    f"{node.name} cannot resolve {name}",
                    f"on {node.name}: `{line}`, or put it into DNS, or write the IP address into the inventory",
                    (f"getaddrinfo({name}) on {node.name} finds nothing",),
                    (target,) if target != node.name else (),
                )
            )
        elif all(is_loopback(address) for address in addresses):
            found.append(
                Finding(
                    "name-resolves-to-loopback",
                    f"on {node.name} the name {name} means {', '.join(addresses)}: this node itself, not {target}"
                    if target != node.name
                    else f"{node.name} takes its own name {name} for {', '.join(addresses)}, which no other node can dial",
                    f"on {node.name} edit /etc/hosts so that it reads `{right} {name}` (Debian writes 127.0.1.1 there)",
                    (f"getaddrinfo({name}) on {node.name}: {', '.join(addresses)}",),
                    (target,) if target != node.name else (),
                )
            )
        elif truth and not set(addresses) & set(truth):
            others = [owner for owner in owners(at, addresses) if owner != target]
            elsewhere = [set(a["names"].get(name) or ()) for n, a in answers.items() if n != node.name]
            if others or any(other and not other & set(addresses) for other in elsewhere):
                found.append(
                    Finding(
                        "name-wrong-address",
                        f"on {node.name} the name {name} means {', '.join(addresses)}, which is "
                        f"{'the address of ' + others[0] if others else 'not an address of ' + target}",
                        f"on {node.name}: correct it in /etc/hosts or DNS to {right}",
                        (
                            f"getaddrinfo({name}) on {node.name}: {', '.join(addresses)}",
                            f"{target} has {', '.join(truth)}",
                        ),
                        (target,) if target != node.name else (),
                    )
                )
    found += shared_address(at, node)
    own = answers[node.name]["own"]
    hostname = answers[node.name]["hostname"]
    if (
        at.inventory.rendezvous.backend == "gloo"
        and not socket_interface(at.inventory, node)
        and own
        and all(is_loopback(address) for address in own)
    ):
        found.append(
            Finding(
                "name-resolves-to-loopback",
                f"{node.name} takes its own host name {hostname} for {', '.join(own)}, and gloo tells its peers to dial that",
                f"name the interface in the inventory (`network: {{interface: …}}`), or give {hostname} its real address in "
                f"/etc/hosts of {node.name}",
                (f"getaddrinfo({hostname}) on {node.name}: {', '.join(own)}",),
            )
        )
    return found


def shared_address(at: Context, node: Node) -> list[Finding]:
    """Another machine of the inventory that has this node's address on an interface as well."""
    address = at.data_address(node)
    twins = [
        other
        for other in owners(at, [address])
        if other != node.name and at.machine(other) != at.machine(node.name) and node.name in owners(at, [address])
    ]
    if not twins:
        return []
    return [
        Finding(
            "duplicate-address",
            f"{node.name} and {twins[0]} both have the address {address}: packets reach now the one, now the other",
            f"give {twins[0]} an address of its own (`ip address`), and correct the inventory",
            tuple(f"{name} has {address} on an interface" for name in (node.name, *twins)),
            tuple(twins),
        )
    ]


class Judge:
    """What was seen between the nodes, and which node's doing it is."""

    def __init__(
        self, at: Context, answers: Mapping[str, Facts], dials: list[Dial], findings: dict[str, list[Finding]]
    ) -> None:
        self.at = at
        self.answers = answers
        self.dials = dials
        self.findings = findings
        self.warnings: dict[str, list[str]] = defaultdict(list)
        self.unknown: dict[str, list[Finding]] = defaultdict(list)
        self.lossy: list[tuple[str, str, str]] = []  # source, destination, evidence
        self.unanswered: list[tuple[str, str, str, tuple[str, ...]]] = []  # source, peer, address, evidence
        self.routeless: set[tuple[str, str]] = set()  # source, peer

    def outcomes(self, silent: Mapping[str, Outcome]) -> list[Outcome]:
        if not any(self.findings.values()):
            for source, answer in self.answers.items():
                for target in answer["targets"]:
                    self._pair(source, target)
            self._unanswered()
            self._blackholes()
        outcomes = []
        for node in self.at.nodes:
            if node.name in silent:
                outcomes.append(silent[node.name])
            elif self.findings.get(node.name):
                outcomes.append(
                    Outcome.failed(node.name, *merged(self.findings[node.name]), warnings=self.warnings[node.name])
                )
            elif self.unknown.get(node.name):
                outcomes.append(Outcome.unknown(node.name, *self.unknown[node.name]))
            else:
                outcomes.append(Outcome.passed(node.name, self._proof(node), warnings=self.warnings[node.name]))
        return outcomes

    def _proof(self, node: Node) -> str:
        pings = [t for t in self.answers[node.name]["targets"] if (t["small"] or {}).get("received")]
        peers = len(self.answers[node.name]["targets"])
        if peers == 0:
            return "one node: there is nobody else to reach"
        if any(self.findings.values()):
            return f"its own names and routes are in order ({peers} peer{'s' if peers > 1 else ''})"
        slowest = max((t["small"].get("ms", 0.0) for t in pings), default=None)
        mtu = min((t["route"].get("mtu") or 0 for t in self.answers[node.name]["targets"]), default=0)
        count = (
            f"{peers} peer{'s' if peers > 1 else ''}" if len(pings) in (0, peers) else f"{len(pings)} of {peers} peers"
        )
        reached = f"{count} answer{'' if peers > 1 else 's'}" + ("" if slowest is not None else " over TCP")
        trip = f" within {slowest:.1f} ms" if slowest is not None else ""
        unproven = [t["peer"] for t in self.answers[node.name]["targets"] if not self._full_size_proven(node.name, t)]
        if unproven:
            return f"{reached}{trip}; full-size packets to {', '.join(unproven[:4])} could not be tried"
        return f"{reached}{trip}; full-size packets (MTU {mtu}) get through"

    def _full_size_proven(self, source: str, target: Mapping[str, Any]) -> bool:
        if (target["full"] or {}).get("received"):
            return True
        full = [dial for dial in self._tcp(source, target["peer"]) if dial.kind == "full"]
        return bool(full) and all(dial.outcome == "open" for dial in full)

    def _tcp(self, source: str, destination: str) -> list[Dial]:
        return [dial for dial in self.dials if (dial.source, dial.destination) == (source, destination)]

    def _pair(self, source: str, target: Mapping[str, Any]) -> None:
        peer, address = target["peer"], target["address"]
        route, small, full = target["route"] or {}, target["small"] or {}, target["full"] or {}
        tcp = self._tcp(source, peer)
        answers = [dial for dial in tcp if dial.outcome in ANSWERS]
        if route.get("error") and not small.get("received") and not answers:
            self.routeless.add((source, peer))
            self.findings[source].append(
                Finding(
                    "no-route",
                    f"{source} has no route to {peer} ({address})",
                    f"on {source}: `ip route get {address}`; add the route, or correct the address in the inventory",
                    (route["error"],),
                    (peer,),
                )
            )
            return
        if small.get("missing"):
            self._without_ping(source, peer, tcp)
        elif not small.get("received"):
            self._no_echo(source, peer, address, small, answers)
        elif small["received"] < small["sent"]:
            self._loss(source, peer, small, target.get("again") or small, tcp)
        elif not full.get("received"):
            self._full_lost(source, peer, target, full)
        for dial in tcp:
            if dial.outcome == "lost":
                way = (source, peer) if dial.mode == "up" else (peer, source)
                self.lossy.append((*way, f"TCP {way[0]} → {way[1]}: 64 KiB in full-size segments do not arrive"))

    def _without_ping(self, source: str, peer: str, tcp: list[Dial]) -> None:
        if any(dial.outcome == "open" for dial in tcp):
            self.warnings[source].append("no ping program here (package iputils-ping): proven over TCP instead")
        else:
            self.unknown[source].append(
                Finding(
                    "tool-missing",
                    f"{source} has no ping program, and TCP to {peer} does not open either",
                    "install it (Debian, Ubuntu: `sudo apt-get install iputils-ping`), then run again",
                    tuple(str(dial) for dial in tcp[:3]),
                    (peer,),
                )
            )

    def _no_echo(self, source: str, peer: str, address: str, small: Mapping[str, Any], answers: list[Dial]) -> None:
        if answers:
            self.warnings[source].append(f"{peer} does not answer ICMP, but TCP reaches it: ICMP is blocked on the way")
            return
        said = str(small.get("raw", "")).strip().splitlines()[-2:]
        self.unanswered.append((source, peer, address, (*said, *(str(dial) for dial in self._tcp(source, peer)[:2]))))

    def _unanswered(self) -> None:
        """Pairs without any answer at all: a wrong address, a rule, a missing route back, or truly nobody there."""
        # No way back from the peer explains the silence, and is told of the peer.
        waiting = [pair for pair in self.unanswered if (pair[1], pair[0]) not in self.routeless]
        if not waiting:
            return
        names = sorted({name for source, peer, _, _ in waiting for name in (source, peer)})
        address = {node.name: numeric(self.at.data_address(node)) for node in self.at.nodes}
        evidence = rules_of(self.at, names, {name: [address[n] for n in names if n != name] for name in names})
        for source, peer, dialled, seen in waiting:
            own = self.at.own_addresses(peer)
            if is_ip(dialled) and own and dialled not in own:
                self.findings[peer].append(
                    Finding(
                        "master-addr-wrong-host",
                        f"the inventory's address of {peer}, {dialled}, is on none of its interfaces, and nobody there answers",
                        f"write one of its own: `address: {next((a for a in own if ':' not in a), own[0])}`",
                        (f"addresses of {peer}: {', '.join(own)}", *seen),
                        (source,),
                    )
                )
                continue
            flow = Flow(address[source], address[peer], self.at.inventory.rendezvous.port)
            blocked = explain_blocked(
                "dropped",
                flow,
                evidence.get(source),
                evidence.get(peer),
                source,
                peer,
                ports=[(1, 65535)],  # not even ICMP comes through: everything between the two is blocked
            )
            if blocked and blocked.decided and not blocked.between:
                others = tuple(name for name in (source, peer) if name != blocked.node)
                self.findings[blocked.node].append(
                    Finding(blocked.cause, blocked.says, blocked.remedy, (*seen, *blocked.evidence)[:10], others)
                )
                continue
            self.findings[source].append(
                Finding(
                    "host-unreachable",
                    f"{source} gets no answer from {peer} ({dialled}), neither to ICMP nor to TCP",
                    f"check that {dialled} is right and up, and what lies between: `traceroute {dialled}` on {source}; "
                    "addresses in different subnets need a route on both sides",
                    seen,
                    (peer,),
                )
            )

    def _loss(
        self, source: str, peer: str, small: Mapping[str, Any], again: Mapping[str, Any], tcp: list[Dial]
    ) -> None:
        """Some echoes were lost: judged by the second, longer round, and by whether full-size TCP got through at once."""
        sent = again.get("sent") or small["sent"]
        lost = sent - (again.get("received") or 0)
        share = f"{lost} of {sent} echoes between {source} and {peer} are lost ({100 * lost / sent:.0f} %)"
        full = [dial for dial in tcp if dial.kind == "full"]
        # A segment that has to be sent again waits for at least the kernel's 200 ms: quick transfers lost nothing.
        clean = bool(full) and all(dial.outcome == "open" and dial.seconds < SLOW_TRANSFER_S for dial in full)
        if lost <= sent * LOSS_TOLERATED or clean:
            reason = "; TCP flows freely, so ICMP may only be rate-limited" if clean else ""
            self.warnings[source].append(share + reason)
            return
        summary = [line for line in str(again.get("raw", "")).splitlines() if "transmitted" in line]
        self.findings[source].append(
            Finding(
                "packet-loss",
                share,
                "look at the links' error counters on both: `ip -s link`, `ethtool -S`; then at cable, transceiver and "
                "switch port",
                (*summary, *(f"{dial}, {dial.seconds:.2f} s" for dial in full[:2])),
                (peer,),
            )
        )

    def _full_lost(self, source: str, peer: str, target: Mapping[str, Any], full: Mapping[str, Any]) -> None:
        raw = str(full.get("raw", ""))
        mtu = target["route"].get("mtu") or 1500
        if full.get("missing") or "nvalid option" in raw or "unrecognized" in raw:
            if self._full_size_proven(source, target):
                self.warnings[source].append("this ping cannot send full-size probes: proven over TCP instead")
                return
            self.unknown[source].append(
                Finding(
                    "tool-missing",
                    f"the ping program of {source} cannot send full-size probes, and TCP to {peer} does not open either",
                    "install iputils-ping (busybox's ping has no -M), or open TCP between the nodes, then run again",
                    tuple(raw.strip().splitlines()[-2:]),
                    (peer,),
                )
            )
            return
        if "too long" in raw or "frag needed" in raw.lower():
            limit = raw.lower().partition("mtu")[2].strip(" =:)").split("\n")[0].split(")")[0].strip() or "less"
            self.warnings[source].append(
                f"the path to {peer} carries less than the interface's MTU of {mtu} ({limit}); TCP adapts, RDMA does not"
            )
            return
        both = [dial for dial in (*self._tcp(source, peer), *self._tcp(peer, source)) if dial.kind == "full"]
        if both and all(dial.outcome == "open" for dial in both) and self._same_mtu(source, peer):
            self.warnings[source].append(
                f"full-size ICMP to {peer} is lost, full-size TCP gets through both ways: only ICMP is limited"
            )
            return
        self.lossy.append(
            (
                source,
                peer,
                f"ping -M do -s {mtu - 28} from {source} to {peer}: none of {full.get('sent', '?')} came back, small ones did",
            )
        )

    def _blackholes(self) -> None:
        """Full-size packets vanish: find the rule or the interface, and name one node if the evidence does."""
        if not self.lossy:
            return
        ways = sorted({(source, destination) for source, destination, _ in self.lossy})
        # An echo needs both directions, so only one-way TCP says which one loses: prefer it where there is any.
        one_way = sorted({(s, d) for s, d, text in self.lossy if text.startswith("TCP")})
        names = sorted({name for way in ways for name in way})
        address = {node.name: numeric(self.at.data_address(node)) for node in self.at.nodes}
        evidence = rules_of(self.at, names, {name: [address[n] for n in names if n != name] for name in names})
        mtus = {name: self._mtu(name) for name in names}
        shown = tuple(f"interface MTU of {name}: {mtu}" for name, mtu in mtus.items())
        for source, destination in one_way or ways:
            texts = [text for s, d, text in self.lossy if {s, d} == {source, destination}]
            seen = tuple(dict.fromkeys(texts))[:4]
            flow = Flow(
                address[source],
                address[destination],
                self.at.inventory.rendezvous.port,
                state="established",
                packet_length=mtus[source] or 1500,
            )
            blocked = explain_blocked(
                "dropped",
                flow,
                evidence.get(source),
                evidence.get(destination),
                source,
                destination,
                ports=[(1, 65535)],  # data flows on whatever ports the kernel picks
            )
            if blocked and blocked.decided and not blocked.between:
                node, why, fix = blocked.node, blocked.says, blocked.remedy
                extra = blocked.evidence
            elif mtus[source] and mtus[destination] and mtus[source] != mtus[destination]:
                node = source if (mtus[source] or 0) > (mtus[destination] or 0) else destination
                why = f"the interfaces' MTUs differ: {mtus[source]} on {source}, {mtus[destination]} on {destination}"
                fix = f"set one MTU on both ends: `sudo ip link set dev IFACE mtu {min(mtus[source] or 0, mtus[destination] or 0)}` on {node}"
                extra = shown
            else:
                node = self._common(ways, source, destination)
                why = "something between them carries only smaller packets and does not say so"
                fix = (
                    f"find the hop with `tracepath -n {address[destination]}` on {source}; raise its MTU, or lower the "
                    f"interfaces' to what passes, for example `sudo ip link set dev IFACE mtu 1400` on every node"
                )
                extra = shown
            finding = Finding(
                "mtu-blackhole",
                f"full-size packets from {source} to {destination} vanish while small ones pass: {why}",
                fix,
                (*seen, *extra)[:10],
                tuple(name for name in (source, destination) if name != node),
            )
            self.findings[node].append(finding)

    def _same_mtu(self, one: str, other: str) -> bool:
        """With different MTUs TCP still agrees on the smaller one, and RDMA does not."""
        return self._mtu(one) == self._mtu(other)

    def _mtu(self, node: str) -> int | None:
        found = [t["route"].get("mtu") for t in self.answers.get(node, {}).get("targets", []) if t["route"]]
        return next((mtu for mtu in found if mtu), None)

    def _common(self, ways: list[tuple[str, str]], source: str, destination: str) -> str:
        """The end that is part of most of the losing pairs; the receiver where that does not decide."""
        count = {name: sum(name in way for way in ways) for name in (source, destination)}
        return source if count[source] > count[destination] else destination


def merged(findings: list[Finding]) -> list[Finding]:
    """Findings that say the same of several peers become one."""
    kept: list[Finding] = []
    for finding in findings:
        if not any((finding.cause, finding.says) == (other.cause, other.says) for other in kept):
            kept.append(finding)
    return kept
