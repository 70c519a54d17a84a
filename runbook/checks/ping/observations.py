"""What was seen between the nodes: every node's answers about its peers, and the TCP connections that were tried."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from runbook.checks.context import Context, Facts
from runbook.checks.network.dial import UNMEASURED, Dial, numeric_node_address
from runbook.checks.network.pairs import BlamedNodes, node_groupings
from runbook.files.address import is_ip, is_link_local, is_loopback, preferred_address
from runbook.launch.ranks import socket_interface
from runbook.model.grouping import values_by_key
from runbook.model.inventory import Node
from runbook.model.nccl_devices import select_interfaces
from runbook.model.verdict import Finding
from runbook.transport.node_answers import NetworkInterface, PingAnswer

if TYPE_CHECKING:
    from runbook.firewall.collected_rules import Evidence

KERNEL_SEND_ERROR = re.compile(r"\b(?:connect|sendmsg|sendto): ")
"""The words before an error of the kernel in ping's output, when the kernel would not send."""

BOTH_WAYS_OUTCOMES = ("open", "refused", "reset", "stranger", "silent", "lost")
"""Outcomes of dials that prove that packets travel both ways, whatever became of the connection."""


@dataclass(frozen=True)
class Pair:
    """What `source` saw of `peer` at `address`: `target` is its answer, `dials` are the TCP connections that it tried
    there."""

    source: str
    peer: str
    address: str
    target: Mapping[str, Any]
    dials: tuple[Dial, ...]

    @property
    def ends(self) -> frozenset[str]:
        return frozenset((self.source, self.peer))

    @property
    def route(self) -> Facts:
        """The source's route to the peer; empty when it is not known."""
        return dict(self.target["route"] or {})

    @property
    def small(self) -> Facts:
        """What became of the small echoes; empty when none were sent."""
        return dict(self.target["small"] or {})

    @property
    def full(self) -> Facts:
        """What became of the full-size echoes; empty when none were sent."""
        return dict(self.target["full"] or {})

    @property
    def numeric(self) -> str:
        """The address as a number, as the source resolves it."""
        found = self.target.get("resolved") or [self.address]
        return preferred_address(found)

    @property
    def answered(self) -> bool:
        """Whether a dial got any answer at all."""
        return any(dial.outcome in BOTH_WAYS_OUTCOMES for dial in self.dials)

    @property
    def full_dials(self) -> tuple[Dial, ...]:
        """The dials that sent full-size segments, in one direction each."""
        return tuple(dial for dial in self.dials if dial.kind == "full" and dial.mode in ("up", "down"))

    @property
    def round_trips(self) -> Dial | None:
        """The dial that sends one byte a packet, or None: what it sent again shows the loss on the way to the peer."""
        return next((dial for dial in self.dials if dial.mode == "trips"), None)

    @property
    def echoes_lost(self) -> bool:
        """Whether some small echoes came back and others did not."""
        return 0 < int(self.small.get("received", 0)) < int(self.small.get("sent", 0))

    @property
    def echoes_vanished(self) -> bool:
        """Whether small echoes were sent and none of them came back, while TCP got an answer: ICMP is blocked, or so
        many packets get lost that only what is sent again gets through."""
        return bool(self.small) and not self.unasked and not self.small.get("received") and self.answered

    @property
    def echoes(self) -> str:
        """The counts of small echoes, in ping's own words."""
        lines = str(self.small.get("raw", "")).splitlines()
        return next((line for line in lines if "transmitted" in line), "some echoes are lost")

    @property
    def routeless(self) -> bool:
        """Whether the kernel refuses to send to the peer. An `ip` that does not know the question says nothing about
        that."""
        refused = "RTNETLINK" in str(self.route.get("error"))
        return refused and not self.small.get("received") and not self.answered

    @property
    def unasked(self) -> bool:
        """Whether the source has no ping program, or one that takes none of our options: it has sent nothing."""
        return is_ping_unusable(self.small)

    @property
    def untried(self) -> bool:
        """Whether nothing at all is known about the way: no echo was sent, and TCP got no answer."""
        return not self.small and not self.answered and not self.routeless and not self.unmeasured

    @property
    def unanswered(self) -> bool:
        """Whether echoes were sent and neither they nor TCP got an answer."""
        return (
            bool(self.small)
            and not self.unasked
            and not self.small.get("received")
            and not self.answered
            and not self.routeless
        )

    @property
    def unmeasured(self) -> bool:
        """Whether one of the ends had no CPU for the probes."""
        nothing = not self.small.get("received") and not self.answered
        return nothing and any(dial.outcome == UNMEASURED for dial in self.dials)

    @property
    def full_size_proven(self) -> bool:
        """Whether full-size packets get through both ways, by echoes or by TCP."""
        if self.full.get("received"):
            return True
        return bool(self.full_dials) and all(dial.outcome == "open" for dial in self.full_dials)

    @property
    def neighbour(self) -> Facts:
        """The entry of the peer in the source's table of neighbours (ARP)."""
        return dict(self.target.get("neighbour") or {})

    def echo_says(self) -> tuple[str, ...]:
        return tuple(str(self.small.get("raw", "")).strip().splitlines()[-2:])

    @property
    def lines(self) -> tuple[str, ...]:
        """Evidence: the last lines that ping printed, and the results of the first dials."""
        return (*self.echo_says(), *map(str, self.dials[:2]))


def is_ping_unusable(echoes: Facts) -> bool:
    """Whether a ping program is missing, or says neither what it sent nor why the kernel would not send."""
    if not echoes or "sent" in echoes or echoes.get("timed_out"):
        return False
    return not KERNEL_SEND_ERROR.search(str(echoes.get("raw", "")))


@dataclass(frozen=True)
class Observations:
    """Everything that was seen. `answers`: those of the nodes that answered, by name."""

    at: Context
    answers: Mapping[str, PingAnswer]
    dials: list[Dial]

    @cached_property
    def pairs(self) -> list[Pair]:
        """What each node saw of each of its peers."""
        return list(self._pairs())

    def _pairs(self) -> Iterator[Pair]:
        dials = values_by_key(((dial.source, dial.destination), dial) for dial in self.dials)
        for source, answer in self.answers.items():
            for target in answer["targets"]:
                tried = tuple(dials.get((source, target["peer"]), ()))
                yield Pair(source, target["peer"], target["address"], target, tried)

    @cached_property
    def _by_ends(self) -> Mapping[tuple[str, str], Pair]:
        return {(pair.source, pair.peer): pair for pair in self.pairs}

    @cached_property
    def _by_peer(self) -> Mapping[str, Pair]:
        """The first pair that leads to each node."""
        found: dict[str, Pair] = {}
        for pair in self.pairs:
            found.setdefault(pair.peer, pair)
        return found

    def blame(self, bad: Iterable[frozenset[str]]) -> BlamedNodes:
        """The nodes to blame for these bad pairs."""
        return BlamedNodes.of(bad, {pair.ends for pair in self.pairs}, node_groupings(self.at))

    def pair(self, source: str, peer: str) -> Pair | None:
        """What `source` saw of `peer`, or None."""
        return self._by_ends.get((source, peer))

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that answered, in the inventory's order."""
        return tuple(node for node in self.at.nodes if node.name in self.answers)

    @cached_property
    def meanings(self) -> Mapping[str, Sequence[tuple[str, frozenset[str]]]]:
        """By name, its meanings: the node, and the addresses there, for each node on which the name means more than
        loopback."""
        return values_by_key(
            (name, (node, frozenset(looked["addresses"])))
            for node, answer in self.answers.items()
            for name, looked in answer["names"].items()
            if looked["addresses"] and not all(map(is_loopback, looked["addresses"]))
        )

    @cached_property
    def own(self) -> Mapping[str, list[str]]:
        """By node, every address on its interfaces except loopback."""
        return {node.name: self.at.own_addresses(node.name) for node in self.at.nodes}

    @cached_property
    def owners(self) -> Mapping[str, list[str]]:
        """By address, the nodes that have it on an interface."""
        return values_by_key((address, name) for name, own in self.own.items() for address in dict.fromkeys(own))

    @cached_property
    def mtus(self) -> Mapping[str, int]:
        """By node, the MTU of the interface by which it sends to its peers, as far as it is known."""
        found: dict[str, int] = {}
        for pair in self.pairs:
            if mtu := pair.route.get("mtu"):
                found.setdefault(pair.source, mtu)
        return found

    def interface(self, node: str, name: str) -> NetworkInterface | None:
        return self.interfaces(node).get(name)

    def interfaces(self, node: str) -> Mapping[str, NetworkInterface]:
        return self.answers[node]["interfaces"] if node in self.answers else {}

    def data_address(self, node: str) -> str:
        return self.at.data_address(self.at.inventory.node(node))

    def numeric(self, node: str) -> str:
        """The address at which the job dials a node, as a number, as the node's peers resolve it."""
        found = self._by_peer[node].numeric if node in self._by_peer else ""
        return found if is_ip(found) else numeric_node_address(self.at, node)

    def data_interface(self, node: str) -> str | None:
        """The interface that has the address which the job dials; None when it is not known."""
        address = self.numeric(node)
        for name, entry in self.interfaces(node).items():
            if any(prefix.partition("/")[0] == address for prefix in entry["prefixes"]):
                return name
        expression = socket_interface(self.at.inventory, self.at.inventory.node(node))
        return next(iter(select_interfaces(expression, self.interfaces(node))), None) if expression else None

    def prefixes(self, node: str, interface: str | None = None) -> list[tuple[str, str]]:
        """(interface, address/length) for those of a node's addresses that other nodes could reach."""
        return [
            (name, prefix)
            for name, entry in self.interfaces(node).items()
            for prefix in entry["prefixes"]
            if interface in (None, name) and not _is_local_only_address(prefix)
        ]

    def rules(self, nodes: Iterable[str]) -> dict[str, Evidence | None]:
        """The packet filters of these nodes, with their routes to each other."""
        from runbook.checks.network.packet_filters import rules_of

        address = {name: self.numeric(name) for name in sorted(nodes)}
        return rules_of(self.at, list(address), {name: [address[n] for n in address if n != name] for name in address})

    def owner_of(self, mac: str) -> str | None:
        """The node that has this hardware address on an interface, or None."""
        for node in self.answers:
            if any(entry["mac"] == mac for entry in self.interfaces(node).values()):
                return node
        return None


def pairs_with_findings(findings: Mapping[str, Iterable[Finding]]) -> set[frozenset[str]]:
    """Pairs of nodes that have a finding: whatever else is wrong between them follows from it."""
    return {frozenset((name, peer)) for name, own in findings.items() for one in own for peer in one.peers}


def _is_local_only_address(prefix: str) -> bool:
    """Whether an address is of use on its own node or segment only: loopback or link-local."""
    return ipaddress.ip_interface(prefix).ip.is_loopback or is_link_local(prefix)


def ip_version(address: str) -> int:
    """The IP version of an address, 4 or 6."""
    return 6 if ":" in address else 4
