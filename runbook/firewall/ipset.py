"""`ipset save` as sets that iptables' `-m set` looks into. Contract: ipset(8).

Only plain sets of addresses or networks are read (`hash:ip`, `hash:net`); every other kind, and entries that say
`nomatch`, make the answer unknown, and so does a set that is not listed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

from runbook.firewall.flow import Packet
from runbook.firewall.machine import Test
from runbook.firewall.truth import NumberRange, Truth

PLAIN = frozenset({"hash:ip", "hash:net"})


@dataclass
class Set:
    plain: bool
    spans: list[NumberRange] = field(default_factory=list)


def parse(text: str) -> dict[str, Set]:
    sets: dict[str, Set] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 3 and words[0] == "create":
            sets[words[1]] = Set(words[2] in PLAIN)
        elif len(words) >= 3 and words[0] == "add" and words[1] in sets:
            entry = _span(words[2])
            if entry is None or "nomatch" in words:
                sets[words[1]].plain = False
            else:
                sets[words[1]].spans.append(entry)
    return sets


def _span(text: str) -> NumberRange | None:
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
    return NumberRange(int(network.network_address), int(network.broadcast_address))


def match_test(words: list[str], sets: Mapping[str, Set]) -> Test:
    """The test of `--match-set NAME src|dst`."""
    name, side = [*words, "", ""][:2]
    found = sets.get(name)

    def test(packet: Packet) -> Truth:
        if found is None or not found.plain or side not in ("src", "dst"):
            return None
        address = NumberRange.exactly(packet.source if side == "src" else packet.destination)
        return any(address.within(span) for span in found.spans)

    return test
