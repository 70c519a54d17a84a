"""ufw: what `ufw status verbose` says, and the commands that open ports the way ufw wants it. Contract: ufw(8).

ufw's rules become iptables chains: `ufw-before-*`, then `ufw-user-*` (the user's own rules), then `ufw-after-*`,
`ufw-reject-*` and the policy. So `ufw allow` opens whatever is blocked from the user's chain on, and nothing earlier.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

Ports = tuple[tuple[int, int], ...]
USER_CHAINS = ("ufw-user-input", "ufw-user-output", "ufw6-user-input", "ufw6-user-output")
MOST_PORTS = 15  # iptables' multiport; a range counts as two


@dataclass(frozen=True, slots=True)
class RuleLine:
    """One line of `ufw status`: `29500/tcp  DENY IN  10.0.0.1`."""

    to: str
    action: str  # ALLOW | DENY | REJECT | LIMIT
    direction: str  # IN | OUT | FWD
    origin: str

    def __str__(self) -> str:
        return f"{self.to} {self.action} {self.direction} {self.origin}"


@dataclass(frozen=True, slots=True)
class UfwStatus:
    active: bool
    incoming: str | None = None  # allow | deny | reject; None where the form of output does not say
    outgoing: str | None = None
    rules: tuple[RuleLine, ...] = ()


def parse_status(text: str) -> UfwStatus | None:
    """`ufw status`, with or without `verbose` and `numbered`; None when this is something else."""
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
            rules.append(RuleLine(rule[1].rstrip(), rule[2], rule[3] or "IN", rule[4]))
    return UfwStatus(found[1] == "active", incoming, outgoing, tuple(rules))


def blocking_line(status: UfwStatus, peer: str, port: int, *, outgoing: bool) -> RuleLine | None:
    """The first deny or reject that speaks of this peer and port, as far as its plain forms go."""
    for rule in status.rules:
        if rule.action not in ("DENY", "REJECT") or (rule.direction == "OUT") != outgoing:
            continue
        far, near = (rule.to, rule.origin) if outgoing else (rule.origin, rule.to)
        target = f"{near} {far}" if outgoing else near
        if _names_peer(far, peer) and _names_port(target, port):
            return rule
    return None


def _names_peer(text: str, peer: str) -> bool:
    address = ipaddress.ip_address(peer)
    if "Anywhere" in text or re.fullmatch(r"[\d:,]+(/\w+)?( \(v6\))?", text):
        return ("(v6)" in text) == (address.version == 6)
    for word in text.split():
        try:
            if address in ipaddress.ip_network(word.removesuffix("/tcp"), strict=False):
                return True
        except ValueError:
            continue
    return False


def _names_port(text: str, port: int) -> bool:
    specs = re.findall(r"(?:^| )(\d[\d:,]*)(/\w+)?(?= |$)", text)
    if not specs:
        return True
    for ports, protocol in specs:
        for part in ports.split(","):
            low, _, high = part.partition(":")
            if protocol in ("", "/tcp") and low.isdecimal() and int(low) <= port <= int(high or low):
                return True
    return False


def allow(peers: tuple[str, ...], ports: Ports, protocol: str, *, outgoing: bool, first: bool) -> list[str]:
    """The commands; `first` puts them before the user's other rules, where a deny stands in the way."""
    commands = []
    for peer in peers:
        where = "" if not first else "insert 1 " if ipaddress.ip_address(peer).version == 4 else "prepend "
        for part in port_lists(ports):
            if outgoing:
                commands.append(f"sudo ufw {where}allow out to {peer} port {part} proto {protocol}")
            else:
                commands.append(f"sudo ufw {where}allow from {peer} to any port {part} proto {protocol}")
    return commands


def port_lists(ports: Ports) -> list[str]:
    """`29500,40000:40010`, cut into as many lists as iptables' multiport needs."""
    lists: list[list[str]] = [[]]
    room = MOST_PORTS
    for low, high in ports:
        cost = 1 if low == high else 2
        if cost > room:
            lists.append([])
            room = MOST_PORTS
        lists[-1].append(str(low) if low == high else f"{low}:{high}")
        room -= cost
    return [",".join(part) for part in lists]
