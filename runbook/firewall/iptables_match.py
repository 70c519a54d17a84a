"""The matches of iptables rules, as `iptables-save` writes them, as tests on a packet.

Contract: iptables-extensions(8). An option that is not listed here makes the rule's match unknown.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping

from runbook.firewall import ipset
from runbook.firewall.flow import ACK, PSH, Packet
from runbook.firewall.machine import Test
from runbook.firewall.nft_match import TCP_FLAGS
from runbook.firewall.truth import NumberRange, Truth, both, either, flip

NO_SETS: Mapping[str, ipset.Set] = {}
STATES = {"INVALID": 1, "ESTABLISHED": 2, "RELATED": 4, "NEW": 8, "UNTRACKED": 64}
PROTOCOLS = {"6": "tcp", "17": "udp", "1": "icmp", "0": "all"}
Maker = Callable[[list[str]], Test]


def unknown(_: Packet) -> Truth:
    return None


def address(end: str) -> Maker:
    def make(words: list[str]) -> Test:
        networks = [_network(word) for word in words[0].split(",")]

        def test(packet: Packet) -> Truth:
            here = NumberRange.exactly(packet.source if end == "source" else packet.destination)
            answer: Truth = False
            for network in networks:
                answer = either(answer, None if network is None else here.within(network))
            return answer

        return test

    return make


def _network(word: str) -> NumberRange | None:
    try:
        network = ipaddress.ip_network(word, strict=False)
    except ValueError:
        return None  # a mask with holes
    return NumberRange(int(network.network_address), int(network.broadcast_address))


def address_range(end: str) -> Maker:
    def make(words: list[str]) -> Test:
        low, _, high = words[0].partition("-")
        wanted = NumberRange(int(ipaddress.ip_address(low)), int(ipaddress.ip_address(high or low)))
        return lambda packet: NumberRange.exactly(packet.source if end == "source" else packet.destination).within(
            wanted
        )

    return make


def protocol(words: list[str]) -> Test:
    wanted = PROTOCOLS.get(words[0], words[0])
    return lambda packet: wanted in ("all", packet.protocol)


def interface(side: str) -> Maker:
    """A trailing `+` is iptables' wildcard."""

    def make(words: list[str]) -> Test:
        pattern = words[0]

        def test(packet: Packet) -> Truth:
            name = packet.in_interface if side == "in" else packet.out_interface
            if name is None:
                return True if pattern == "+" else None
            return name.startswith(pattern[:-1]) if pattern.endswith("+") else name == pattern

        return test

    return make


def ports(*sides: str) -> Maker:
    """`80`, `1:5`, and multiport's `80,1:5`."""

    def make(words: list[str]) -> Test:
        spans = [_port_span(part) for part in words[0].split(",")]

        def test(packet: Packet) -> Truth:
            answer: Truth = False
            for side in sides:
                port = packet.source_port if side == "source" else packet.destination_port
                for wanted in spans:
                    answer = either(answer, None if wanted is None else port.within(wanted))
            return answer

        return test

    return make


def _port_span(text: str) -> NumberRange | None:
    low, colon, high = text.partition(":")
    try:
        return NumberRange(int(low or 0), int(high or 65535) if colon else int(low))
    except ValueError:
        return None  # a name: iptables-save prints numbers


def state(words: list[str]) -> Test:
    mask = 0
    other = False
    for word in words[0].split(","):
        mask |= STATES.get(word, 0)
        other = other or word not in (*STATES, "DNAT", "SNAT")  # translated flows are not followed this far

    def test(packet: Packet) -> Truth:
        if packet.state is None:
            return None
        return True if packet.state & mask else (None if other else False)

    return test


def direction(words: list[str]) -> Test:
    return lambda packet: (words[0].upper() == "REPLY") is packet.reply if packet.tracked else None


def tcp_flags(words: list[str]) -> Test:
    mask, wanted = (_flags(word) for word in words[:2])

    def test(packet: Packet) -> Truth:
        if packet.flags is None or mask is None or wanted is None:
            return None
        holds = packet.flags & mask == wanted
        pushed = (packet.flags | PSH) & mask == wanted  # of data, some segments have PSH
        return holds if packet.flags != ACK or holds == pushed else None

    return test


def _flags(word: str) -> int | None:
    if word == "NONE":
        return 0
    if word == "ALL":
        return 0x3F
    mask = 0
    for name in word.lower().split(","):
        if name not in TCP_FLAGS:
            return None
        mask |= TCP_FLAGS[name]
    return mask


def length(words: list[str]) -> Test:
    wanted = _port_span(words[0])
    return lambda packet: None if wanted is None else packet.length.within(wanted)


def mark(which: str) -> Maker:
    def make(words: list[str]) -> Test:
        value, _, mask = words[0].partition("/")
        wanted, bits = int(value, 0), int(mask, 0) if mask else 0xFFFFFFFF

        def test(packet: Packet) -> Truth:
            here = packet.mark if which == "mark" else packet.ct_mark
            return None if here is None else here & bits == wanted

        return test

    return make


def owner(which: str) -> Maker:
    """`1000` or `1000-1999`; only a packet that a process sends has one."""

    def make(words: list[str]) -> Test:
        wanted = _port_span(words[0].replace("-", ":"))

        def test(packet: Packet) -> Truth:
            number = packet.uid if which == "user" else packet.gid
            return None if number is None or wanted is None else NumberRange.exactly(number).within(wanted)

        return test

    return make


def address_type(end: str) -> Maker:
    """Known: a packet that arrives is addressed to this node, and one that leaves comes from it, both unicast."""

    def make(words: list[str]) -> Test:
        types = words[0].split(",")

        def test(packet: Packet) -> Truth:
            if packet.arriving == (end == "destination"):
                return "LOCAL" in types
            return None if "UNICAST" in types or "LOCAL" in types else False

        return test

    return make


def fragment(_: list[str]) -> Test:
    return lambda _: False


def reverse_path(words: list[str]) -> Test:
    del words
    return lambda packet: packet.has_route_back


def packet_type(words: list[str]) -> Test:
    return lambda packet: words[0] in ("unicast", "host") if packet.arriving else None


def nothing(_: list[str]) -> Test:
    """A comment."""
    return lambda _: True


OPTIONS: Mapping[str, tuple[int, Maker]] = {
    "-s": (1, address("source")),
    "-d": (1, address("destination")),
    "--src-range": (1, address_range("source")),
    "--dst-range": (1, address_range("destination")),
    "-p": (1, protocol),
    "-i": (1, interface("in")),
    "-o": (1, interface("out")),
    "-f": (0, fragment),
    "--dport": (1, ports("destination")),
    "--sport": (1, ports("source")),
    "--dports": (1, ports("destination")),
    "--sports": (1, ports("source")),
    "--ports": (1, ports("source", "destination")),
    "--tcp-flags": (2, tcp_flags),
    "--syn": (0, lambda _: tcp_flags(["FIN,SYN,RST,ACK", "SYN"])),
    "--ctstate": (1, state),
    "--state": (1, state),
    "--ctdir": (1, direction),
    "--ctproto": (1, protocol),
    "--length": (1, length),
    "--mark": (1, mark("mark")),
    "--src-type": (1, address_type("source")),
    "--dst-type": (1, address_type("destination")),
    "--pkt-type": (1, packet_type),
    "--uid-owner": (1, owner("user")),
    "--gid-owner": (1, owner("group")),
    "--comment": (1, nothing),
    "--validmark": (0, nothing),
    "--loose": (0, nothing),
}
"""option -> how many words it takes, and how to make a test of them."""


def match_test(
    options: list[tuple[str, bool, list[str]]], modules: list[str], sets: Mapping[str, ipset.Set] = NO_SETS
) -> Test:
    """All the options of one rule, each (name, inverted, words), as one test."""
    tests: list[tuple[Test, bool]] = []
    for name, inverted, words in options:
        if name == "--mark" and "connmark" in modules:
            tests.append((mark("ct_mark")(words) if "mark" not in modules else unknown, inverted))
        elif name in OPTIONS and len(words) == OPTIONS[name][0]:
            tests.append((OPTIONS[name][1](words), inverted))
        elif name == "--match-set" and len(words) == 2:
            tests.append((ipset.match_test(words, sets), inverted))
        elif name == "--invert" and "rpfilter" in modules:
            tests.append((reverse_path([]), True))
        else:
            tests.append((unknown, False))
    if "rpfilter" in modules and not any(name == "--invert" for name, _, _ in options):
        tests.append((reverse_path([]), False))
    if any(module in ALWAYS_UNKNOWN for module in modules):
        tests.append((unknown, False))

    def test(packet: Packet) -> Truth:
        answer: Truth = True
        for one, inverted in tests:
            answer = both(answer, flip(one(packet), inverted))
            if answer is False:
                return False
        return answer

    return test


ALWAYS_UNKNOWN = frozenset(
    {"socket", "string", "u32", "bpf", "cluster", "quota", "time", "recent", "limit", "hashlimit", "statistic"}
)
"""Modules that may stand in a rule with no option of their own, or whose options all mean "sometimes"."""
