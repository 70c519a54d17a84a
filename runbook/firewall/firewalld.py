"""firewalld: its zones as `firewall-cmd` prints them, and the rich rules that open ports. Contract: firewall-cmd(1).

Facts: a packet belongs to the zone that names its source address, else to its interface's, else to the default zone.
In a zone's chains the order is pre (priority < 0), log, deny, allow, post; so a plain rich `accept` opens what the
zone's target blocks, and priority -1 opens what a deny rule of the zone blocks.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field

from runbook.model.commands import word

Ports = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Zone:
    name: str
    active: bool
    target: str
    interfaces: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    rich_rules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FirewalldStatus:
    zones: tuple[Zone, ...] = ()
    default: str = "public"
    active: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)

    def zone_for(self, peer: str, interface: str | None) -> str:
        """The zone that decides about packets from `peer` through `interface`."""
        address = ipaddress.ip_address(peer)
        holders = [(zone.name, zone.interfaces, zone.sources) for zone in self.zones]
        holders += [(name, *parts) for name, parts in self.active.items()]
        for name, _, sources in holders:
            if any(_covers(source, address) for source in sources):
                return name
        for name, interfaces, _ in holders:
            if interface is not None and interface in interfaces:
                return name
        return self.default


def _covers(source: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    try:
        return address in ipaddress.ip_network(source, strict=False)
    except ValueError:
        return False  # an ipset or a MAC


def runs(state: str) -> bool:
    """`firewall-cmd --state` prints `running`, or `not running`."""
    return state.strip() == "running"


def parse_zones(all_zones: str, active: str = "", default: str = "") -> FirewalldStatus:
    """`--list-all-zones`, `--get-active-zones` and `--get-default-zone`."""
    zones: list[Zone] = []
    chosen = default.strip().split("\n")[0]
    for block in re.split(r"\n(?=\S)", all_zones.strip("\n")):
        header = re.match(r"([\w/-]+)(?: \(([^)]*)\))?\s*\n", block + "\n")
        if not header or "target:" not in block:
            continue
        marks = header[2] or ""
        chosen = header[1] if "default" in marks.replace("default-", "") and not chosen else chosen
        zones.append(
            Zone(
                header[1],
                "active" in marks,
                _line(block, "target") or "default",
                tuple(_line(block, "interfaces").split()),
                tuple(_line(block, "sources").split()),
                tuple(_line(block, "ports").split()),
                tuple(line.strip() for line in block.splitlines() if re.match(r"\s+rule ", line)),
            )
        )
    return FirewalldStatus(tuple(zones), chosen or "public", _active(active))


def _line(block: str, key: str) -> str:
    found = re.search(rf"^ +{key}:[ \t]*(.*)$", block, re.MULTILINE)
    return found[1] if found else ""


def _active(text: str) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    found: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    for block in re.split(r"\n(?=\S)", text.strip("\n")):
        name = block.split("\n")[0].split(" ")[0]
        if name and "\n" in block:
            found[name] = (tuple(_line(block, "interfaces").split()), tuple(_line(block, "sources").split()))
    return found


def allow(
    status: FirewalldStatus, interface: str | None, peers: tuple[str, ...], ports: Ports, protocol: str, *, first: bool
) -> list[str]:
    """One permanent change for each zone, then a reload."""
    zones: dict[str, list[str]] = {}
    for peer in peers:
        zones.setdefault(status.zone_for(peer, interface), []).append(peer)
    commands = [
        f"sudo firewall-cmd --permanent --zone={word(zone)} {' '.join(_rich('source', members, ports, protocol, first))}"
        for zone, members in zones.items()
    ]
    return [*commands, "sudo firewall-cmd --reload"]


def allow_out(policy: str, peers: tuple[str, ...], ports: Ports, protocol: str) -> list[str]:
    """For a policy object (firewalld >= 0.9) that filters what the host sends."""
    rules = " ".join(_rich("destination", list(peers), ports, protocol, True))
    return [f"sudo firewall-cmd --permanent --policy={word(policy)} {rules}", "sudo firewall-cmd --reload"]


def _rich(end: str, peers: list[str], ports: Ports, protocol: str, first: bool) -> list[str]:
    rules = []
    for peer in peers:
        family = "ipv4" if ipaddress.ip_address(peer).version == 4 else "ipv6"
        priority = ' priority="-1"' if first else ""
        for low, high in ports:
            span = str(low) if low == high else f"{low}-{high}"
            port = f'port port="{span}" protocol="{protocol}"'
            rules.append(f'--add-rich-rule=\'rule{priority} family="{family}" {end} address="{peer}" {port} accept\'')
    return rules
