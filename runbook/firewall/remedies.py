"""The exact commands that let a flow pass, in the tool that owns the rules.

An accept rule goes directly before the rule that blocks, in that rule's own chain: only there it is certain to be
reached, and it opens no more than necessary. If the policy blocks, the rule goes to the end of the chain. If the wanted
flows are stopped in several chains of one base chain, it goes to the base chain's head. Every base chain that blocks
needs its own command: an accept in one does not bind the next. No command ever turns a firewall off.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from runbook.firewall.collected_rules import Evidence
from runbook.firewall.evaluate import (
    CONNTRACK_PRIORITY,
    Base,
    BlockingChain,
    FilterRule,
    Leg,
    NumberSpans,
    PacketEnd,
    merge_spans,
)
from runbook.firewall.front_ends import (
    UFW_CHAINS,
    FirewalldStatus,
    firewalld_allow_commands,
    firewalld_allow_out_commands,
    firewalld_owns,
    port_lists,
    ufw_allow_commands,
)
from runbook.model.command_quoting import NFT_LIST_COMMAND, nft_words, shell_word
from runbook.model.units import range_text

NFT_PERSISTENCE_NOTE = (
    "the fix lasts until the next reload or boot: to keep it, add the rule to the nft file that is loaded then"
)
IPTABLES_PERSISTENCE_NOTE = "the fix lasts until the next boot: to keep it, save the rules as this system does"
FIREWALLD_POLICY_CHAIN = re.compile(r"\A(?:filter_)?OUT_(?:policy_)?(\w+?)(?:_(?:pre|log|deny|allow|post))?$")
FIREWALLD_ZONE_CHAIN = re.compile(r"\A(?:filter_)?IN_(?!policy_)([\w-]+?)(?:_(?:pre|log|deny|allow|post))?$")


@dataclass(frozen=True, slots=True)
class FirewallOpening:
    """The flows that a remedy opens: between this node and `peers`, on these inclusive ranges of the server's ports."""

    leg: Leg
    peers: tuple[str, ...]
    ports: NumberSpans
    protocol: str = "tcp"

    @property
    def has_ports(self) -> bool:
        """Whether the protocol has ports. ICMP has none, and ufw's and firewalld's commands for it are not specific
        enough."""
        return self.protocol in ("tcp", "udp")

    @property
    def from_peers(self) -> bool:
        """Whether the packets come from the peers; else, they go to them."""
        return self.leg in ("request-in", "reply-in")

    @property
    def reply(self) -> bool:
        """Whether the packets are answers."""
        return self.leg in ("reply-out", "reply-in")


@dataclass(frozen=True, slots=True)
class FirewallRemedy:
    """Shell commands that open flows, and caveats in words."""

    commands: tuple[str, ...]
    caveats: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return " && ".join(self.commands)


def firewall_remedy(
    evidence: Evidence, stops: list[BlockingChain], wanted: FirewallOpening, interface: str | None
) -> FirewallRemedy:
    """The commands that open the `wanted` flows at all `stops`, which may name one base chain several times."""
    ends: dict[tuple[str, str, str, str], tuple[Base, list[PacketEnd]]] = {}
    for stop in stops:
        base = stop.base
        ends.setdefault((base.engine, base.family, base.table, base.chain), (base, []))[1].extend(stop.ends)
    commands: list[str] = []
    caveats: list[str] = []
    for base, where in ends.values():
        made, caveat = _commands_for_base(evidence, base, where, wanted, interface)
        commands += made
        caveats += [caveat] if caveat else []
    return FirewallRemedy(tuple(dict.fromkeys(commands)), tuple(dict.fromkeys(caveats)))


def _commands_for_base(
    evidence: Evidence, base: Base, ends: list[PacketEnd], wanted: FirewallOpening, interface: str | None
) -> tuple[list[str], str]:
    """The commands for one base chain, in the tool that owns it, and a caveat (empty if there is none)."""
    if base.kind == "nat":  # neither ufw nor firewalld can express "leave the address as it is"
        return (
            (_nft_commands(base, ends, wanted), NFT_PERSISTENCE_NOTE)
            if base.engine == "nft"
            else (_iptables_commands(base, ends, wanted), IPTABLES_PERSISTENCE_NOTE)
        )
    if evidence.ufw is not None and wanted.has_ports and not wanted.reply and all(ufw_decides(end) for end in ends):
        first = any(end.rule is not None and end.rule.chain.startswith(("ufw-user", "ufw6-user")) for end in ends)
        outgoing = wanted.leg == "request-out"
        return ufw_allow_commands(wanted.peers, wanted.ports, wanted.protocol, outgoing=outgoing, first=first), ""
    if evidence.firewalld is not None and wanted.has_ports and firewalld_owns(base) and not wanted.reply:
        policy = _firewalld_policy_name(ends)
        if wanted.leg == "request-in":
            first = any(end.rule is not None and end.rule.chain.endswith(("_deny", "_pre")) for end in ends)
            status = zones_on_path(evidence.firewalld, ends)
            return firewalld_allow_commands(
                status, interface, wanted.peers, wanted.ports, wanted.protocol, first=first
            ), ""
        if policy is not None:
            return firewalld_allow_out_commands(policy, wanted.peers, wanted.ports, wanted.protocol), ""
    if base.engine == "nft":
        return _nft_commands(base, ends, wanted), NFT_PERSISTENCE_NOTE
    return _iptables_commands(base, ends, wanted), IPTABLES_PERSISTENCE_NOTE


def ufw_decides(end: PacketEnd) -> bool:
    """Whether a packet ends in or after ufw's chains of user rules, so that a ufw rule can let it pass."""
    return any(chain in UFW_CHAINS for chain in end.before)


def zones_on_path(status: FirewalldStatus, ends: Iterable[PacketEnd]) -> FirewalldStatus:
    """firewalld's zones; if they could not be read, a status whose default is the zone through whose chains these
    packets went."""
    chains = (chain for end in ends for chain in (end.rule.chain if end.rule else "", *reversed(end.before)))
    met = (found[1] for chain in chains if (found := FIREWALLD_ZONE_CHAIN.match(chain)) and found[1] != "ZONES")
    return status if status.zones else replace(status, default=next(met, status.default))


def _firewalld_policy_name(ends: list[PacketEnd]) -> str | None:
    """The name of firewalld's policy object through whose chains the packets went; None if there is none."""
    for end in ends:
        for chain in (end.rule.chain if end.rule else "", *reversed(end.before)):
            found = FIREWALLD_POLICY_CHAIN.match(chain)
            if found and found[1] not in ("POLICIES",):
                return found[1]
    return None


RulePlace = tuple[str, FilterRule | None]
"""A chain, and the rule before which to insert; None: at the chain's end."""


def insertion_place(base: Base, ends: list[PacketEnd]) -> RulePlace:
    """The place at which one accept rule lets the packets of all `ends` pass."""
    spots = [_insertion_place_of_end(base, end) for end in ends]
    chains = {chain for chain, _ in spots}
    rules = [rule for _, rule in spots if rule is not None]
    if len(chains) == 1:
        return (spots[0][0], min(rules, key=lambda rule: rule.index) if rules else None)
    head = base.chains.get(base.chain, ())
    return base.chain, head[0] if head else None


def _insertion_place_of_end(base: Base, end: PacketEnd) -> RulePlace:
    if end.rule is not None:
        return end.rule.chain, end.rule
    return base.chain, end.left_by


def _nft_commands(base: Base, ends: list[PacketEnd], wanted: FirewallOpening) -> list[str]:
    """The nft command that opens the wanted flows in one base chain."""
    chain, rule = insertion_place(base, ends)
    how = (
        nft_words("add", "rule", base.family, base.table, chain)
        if rule is None
        else nft_words("insert", "rule", base.family, base.table, chain, "position", rule.handle)
    )
    if how is None:
        return [NFT_LIST_COMMAND]
    version = ipaddress.ip_address(wanted.peers[0]).version
    side = "saddr" if wanted.from_peers else "daddr"
    address = f"{'ip' if version == 4 else 'ip6'} {side} {_nft_set(_address_ranges(wanted.peers))}"
    spans = tuple(range_text(*span) for span in wanted.ports)
    port = f"{wanted.protocol} {'sport' if wanted.reply else 'dport'} {_nft_set(spans)}"
    if not wanted.has_ports:
        port = f"meta l4proto {wanted.protocol}"
    # The kernel does not track neighbour discovery, so that its answers are never "established".
    stateful = wanted.reply and not _is_before_tracking(base) and wanted.protocol != "ipv6-icmp"
    state = " ct state established" if stateful else ""
    return [f"sudo nft {how} {address} {port}{state} accept"]


def _address_ranges(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """The addresses, with three or more consecutive ones as one range: a cluster has hundreds. All must be of one IP
    version."""
    made = type(ipaddress.ip_address(addresses[0]))
    found: list[str] = []
    for low, high in merge_spans((number, number) for number in map(int, map(ipaddress.ip_address, addresses))):
        found += [f"{made(low)}-{made(high)}"] if high - low > 1 else [str(made(one)) for one in range(low, high + 1)]
    return tuple(found)


def _nft_set(words: tuple[str, ...]) -> str:
    """One word, or an nft set of several, quoted for a shell."""
    return words[0] if len(words) == 1 else "'{ " + ", ".join(words) + " }'"


def _is_before_tracking(base: Base) -> bool:
    """Whether this chain runs before connections are tracked, or on a bridge, where they mostly are not tracked at
    all."""
    return (
        base.for_device
        or base.family == "bridge"
        or (base.hook in ("prerouting", "output") and base.priority <= CONNTRACK_PRIORITY)
    )


def _iptables_commands(base: Base, ends: list[PacketEnd], wanted: FirewallOpening) -> list[str]:
    """The iptables commands that open the wanted flows in one base chain."""
    chain, rule = insertion_place(base, ends)
    table = "" if base.table == "filter" else f"-t {shell_word(base.table)} "
    where = f"-A {shell_word(chain)}" if rule is None else f"-I {shell_word(chain)} {rule.index + 1}"
    peers = f"{'-s' if wanted.from_peers else '-d'} {','.join(wanted.peers)}"
    state = " -m conntrack --ctstate ESTABLISHED" if wanted.reply and not _is_before_tracking(base) else ""
    side = "sport" if wanted.reply else "dport"
    if not wanted.has_ports:
        return [f"sudo {base.engine} {table}{where} -p {wanted.protocol} {peers}{state} -j ACCEPT"]
    commands = []
    for ports in port_lists(wanted.ports):
        match = f"-m multiport --{side}s {ports}" if "," in ports else f"--{side} {ports}"
        protocol = wanted.protocol
        commands.append(f"sudo {base.engine} {table}{where} -p {protocol} {peers} {match}{state} -j ACCEPT")
    return commands
