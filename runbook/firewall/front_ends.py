"""ufw and firewalld: parsers of their listings, and the commands that open ports. Contract: ufw(8), firewall-cmd(1).

ufw's rules become iptables chains: `ufw-before-*`, then `ufw-user-*` (the user's own rules), then `ufw-after-*`,
`ufw-reject-*` and the policy. So `ufw allow` opens whatever is blocked from the user's chain on, and nothing earlier.

firewalld: a packet belongs to the zone that names its source address, else to its interface's, else to the default
zone. In a zone's chains the order is pre (priority < 0), log, deny, allow, post; so a plain rich `accept` opens what
the zone's target blocks, and priority -1 opens what a deny rule of the zone blocks.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from runbook.files.address import is_in_network
from runbook.firewall.evaluate import Base, NumberSpans
from runbook.model.command_quoting import shell_word
from runbook.model.units import parse_whole_number, range_text

# --- ufw ------------------------------------------------------------------------------------------------------------

UFW_CHAINS = ("ufw-user-input", "ufw-user-output", "ufw6-user-input", "ufw6-user-output")
MAX_MULTIPORT_PORTS = 15  # iptables' multiport; a range counts as two


@dataclass(frozen=True, slots=True)
class UfwRule:
    """One line of `ufw status`: `29500/tcp  DENY IN  10.0.0.1`."""

    to: str
    action: str  # ALLOW | DENY | REJECT | LIMIT
    direction: str  # IN | OUT | FWD
    origin: str

    def __str__(self) -> str:
        return f"{self.to} {self.action} {self.direction} {self.origin}"


@dataclass(frozen=True, slots=True)
class UfwStatus:
    """The text of `ufw status`. `incoming` and `outgoing` are the default policies."""

    active: bool
    incoming: str | None = None  # allow | deny | reject; None if the output does not say
    outgoing: str | None = None
    rules: tuple[UfwRule, ...] = ()


def parse_ufw_status(text: str) -> UfwStatus | None:
    """The status in the text of `ufw status`, with or without `verbose` or `numbered`; None for any other text."""
    found = re.search(r"^Status: (active|inactive)\s*$", text, re.MULTILINE)
    if not found:
        return None
    defaults = re.search(r"^Default: (\w+) \(incoming\), (\w+) \(outgoing\)", text, re.MULTILINE)
    incoming, outgoing = defaults.groups() if defaults else (None, None)
    rules = []
    for line in text.splitlines():
        line = re.sub(r"(?<!\s)\s+#.*$", "", re.sub(r"^\[\s*\d+\]\s+", "", line))
        rule = re.fullmatch(r"(\S.*?)\s(ALLOW|DENY|REJECT|LIMIT)(?: (IN|OUT|FWD))?\s+(\S.*)", line.rstrip())
        if rule:
            rules.append(UfwRule(rule[1].rstrip(), rule[2], rule[3] or "IN", rule[4]))
    return UfwStatus(found[1] == "active", incoming, outgoing, tuple(rules))


def blocking_ufw_rule(status: UfwStatus, peer: str, port: int, *, outgoing: bool) -> UfwRule | None:
    """The first rule that denies or rejects this peer and port, of rules in the plain forms that are understood."""
    for rule in status.rules:
        if rule.action not in ("DENY", "REJECT") or (rule.direction == "OUT") != outgoing:
            continue
        far, near = (rule.to, rule.origin) if outgoing else (rule.origin, rule.to)
        target = f"{near} {far}" if outgoing else near
        if _names_peer(far, peer) and _names_port(target, port):
            return rule
    return None


def _names_peer(text: str, peer: str) -> bool:
    if "Anywhere" in text or re.fullmatch(r"[\d:,]+(/\w+)?( \(v6\))?", text):
        return ("(v6)" in text) == (":" in peer)
    return any(is_in_network(peer, one.removesuffix("/tcp")) for one in text.split())


def _names_port(text: str, port: int) -> bool:
    specs = re.findall(r"(?:^| )(\d[\d:,]*)(/\w+)?(?= |$)", text)
    if not specs:
        return True
    for ports, protocol in specs:
        for part in ports.split(","):
            low, _, high = part.partition(":")
            first, last = parse_whole_number(low), parse_whole_number(high or low)
            if first is not None and last is not None and protocol in ("", "/tcp") and first <= port <= last:
                return True
    return False


def ufw_allow_commands(
    peers: tuple[str, ...], ports: NumberSpans, protocol: str, *, outgoing: bool, first: bool
) -> list[str]:
    """The ufw commands that allow these ports for these peers; `first` puts the new rules before the user's other
    rules, for when one of these denies."""
    commands = []
    for peer in peers:
        where = "" if not first else "insert 1 " if ipaddress.ip_address(peer).version == 4 else "prepend "
        for part in port_lists(ports):
            if outgoing:
                commands.append(f"sudo ufw {where}allow out to {peer} port {part} proto {protocol}")
            else:
                commands.append(f"sudo ufw {where}allow from {peer} to any port {part} proto {protocol}")
    return commands


def port_lists(ports: NumberSpans) -> list[str]:
    """The ports as lists such as `29500,40000:40010`, each short enough for iptables' multiport."""
    lists: list[list[str]] = [[]]
    room = MAX_MULTIPORT_PORTS
    for low, high in ports:
        cost = 1 if low == high else 2
        if cost > room:
            lists.append([])
            room = MAX_MULTIPORT_PORTS
        lists[-1].append(str(low) if low == high else f"{low}:{high}")
        room -= cost
    return [",".join(part) for part in lists]


# --- firewalld ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FirewalldZone:
    """A zone in the text of `firewall-cmd --list-all-zones`."""

    name: str
    active: bool
    target: str
    interfaces: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FirewalldStatus:
    """firewalld's zones, and the name of its default zone."""

    zones: tuple[FirewalldZone, ...] = ()
    default: str = "public"

    def zone_for(self, peer: str, interface: str | None) -> str:
        """The name of the zone that decides about packets from `peer` through `interface`."""
        for zone in self.zones:
            if any(is_in_network(peer, source) for source in zone.sources):  # a source may also be an ipset or a MAC
                return zone.name
        return next((zone.name for zone in self.zones if interface in zone.interfaces), self.default)


def firewalld_owns(base: Base) -> bool:
    """Whether firewalld made this base chain."""
    return base.table == "firewalld" or any(name.endswith("_ZONES") for name in base.chains)


def is_firewalld_running(state: str) -> bool:
    """Whether firewalld runs, by the text of `firewall-cmd --state`: `running` or `not running`."""
    return state.strip() == "running"


def parse_firewalld_zones(all_zones: str, default: str = "") -> FirewalldStatus:
    """The zones in the text of `firewall-cmd --list-all-zones`; `default`: the text of `--get-default-zone`."""
    zones: list[FirewalldZone] = []
    chosen = default.strip().split("\n")[0]
    for block in re.split(r"\n(?=\S)", all_zones.strip("\n")):
        header = re.match(r"([\w/-]+)(?: \(([^)]*)\))?\s*\n", block + "\n")
        if not header or "target:" not in block:
            continue
        marks = header[2] or ""
        chosen = header[1] if "default" in marks.replace("default-", "") and not chosen else chosen
        zones.append(
            FirewalldZone(
                name=header[1],
                active="active" in marks,
                target=_zone_value(block, "target") or "default",
                interfaces=tuple(_zone_value(block, "interfaces").split()),
                sources=tuple(_zone_value(block, "sources").split()),
                ports=tuple(_zone_value(block, "ports").split()),
            )
        )
    return FirewalldStatus(tuple(zones), chosen or "public")


def _zone_value(block: str, key: str) -> str:
    """The value of `key: value` in the text of one zone; empty if there is none."""
    found = re.search(rf"^ +{key}:[ \t]*(.*)$", block, re.MULTILINE)
    return found[1] if found else ""


def firewalld_allow_commands(
    status: FirewalldStatus,
    interface: str | None,
    peers: tuple[str, ...],
    ports: NumberSpans,
    protocol: str,
    *,
    first: bool,
) -> list[str]:
    """The firewalld commands that let these peers in to these ports: a permanent change for each zone, then a reload.
    `first`: with a priority before deny rules."""
    zones: dict[str, list[str]] = {}
    for peer in peers:
        zones.setdefault(status.zone_for(peer, interface), []).append(peer)
    commands = [
        f"sudo firewall-cmd --permanent --zone={shell_word(zone)} "
        f"{' '.join(_rich_rule_options('source', members, ports, protocol, first=first))}"
        for zone, members in zones.items()
    ]
    return [*commands, "sudo firewall-cmd --reload"]


def firewalld_allow_out_commands(policy: str, peers: tuple[str, ...], ports: NumberSpans, protocol: str) -> list[str]:
    """The firewalld commands that let this node send to these ports of these peers, past a policy object (firewalld >=
    0.9) that filters outgoing packets."""
    rules = " ".join(_rich_rule_options("destination", list(peers), ports, protocol, first=True))
    return [f"sudo firewall-cmd --permanent --policy={shell_word(policy)} {rules}", "sudo firewall-cmd --reload"]


def _rich_rule_options(end: str, peers: list[str], ports: NumberSpans, protocol: str, *, first: bool) -> list[str]:
    """The options that add a rich rule for each peer and range of ports; `end`: `source` or `destination`."""
    rules = []
    for peer in peers:
        family = "ipv4" if ipaddress.ip_address(peer).version == 4 else "ipv6"
        priority = ' priority="-1"' if first else ""
        for span in ports:
            port = f'port port="{range_text(*span)}" protocol="{protocol}"'
            rules.append(f'--add-rich-rule=\'rule{priority} family="{family}" {end} address="{peer}" {port} accept\'')
    return rules
