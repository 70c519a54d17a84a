"""Turns nftables' match expressions in JSON (libnftables-json(5)) into tests on a packet.

Facts that the JSON does not show: nft hides the conditions it adds by itself, so `ip saddr` in an `inet` table also
means "IPv4", and `tcp dport` also means "TCP": for another packet the rule does not match, not even with `!=`. And op
`in` on a bit field means "any of these bits". An expression that is not listed here is unknown: neither true nor false.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from runbook.firewall.evaluate import (
    ACK,
    CT_STATES,
    PSH,
    TCP_FLAGS,
    NumberRange,
    NumberSpans,
    Packet,
    PacketTest,
    Truth,
    is_in_spans,
    merge_spans,
    truth_and,
    truth_any,
    truth_inverted,
)

Json = Any  # libnftables' own JSON: checked where it is read, unknown where it is not understood
SetsByName = Mapping[str, Json]

CT_STATUS = {"expected": 1, "seen-reply": 2, "assured": 4, "confirmed": 8, "snat": 16, "dnat": 32, "dying": 512}
NAT = CT_STATUS["snat"] | CT_STATUS["dnat"]  # a flow that a NAT rule changes is not followed any further
PROTOCOL_BY_NUMBER = {1: "icmp", 6: "tcp", 17: "udp", 58: "ipv6-icmp", 132: "sctp"}
PROTOCOL_BY_NFT_NAME = {"icmpv6": "ipv6-icmp"}
"""By nft's name of a protocol, the name that `Packet` and most other tools use."""
NFPROTO = {2: "ipv4", 10: "ipv6"}
ETHERTYPES = {0x0800: "ip", 0x86DD: "ip6"}
OTHER_TRANSPORTS = frozenset({"tcp", "udp", "udplite", "sctp", "dccp", "icmp", "icmpv6", "igmp", "ah", "esp", "comp"})


@dataclass(frozen=True, slots=True)
class NotThere:
    """The value of a field that the packet does not have: the rule does not match, whatever the operator."""


NOT_THERE = NotThere()
FieldValue = NumberRange | str | bool | NotThere | None
OperandKind = Literal["number", "address", "name", "interface", "bits", "exists", "other"]


@dataclass(frozen=True, slots=True)
class Operand:
    """The left side of a match: how to read its value from a packet, and how constants on the right are written."""

    kind: OperandKind
    read: Callable[[Packet], FieldValue]
    names: Mapping[str, int] | None = None  # kind `bits`: by a bit's name, its value
    numbers: Mapping[int, str] | None = None  # kind `name`: by a number that nft may print instead, the name
    frag_off: bool = False  # whether it is the field with a fragment's offset and flags
    clear: int = 0  # kind `bits`: the bits that are known to be 0 though the value as a whole is not known


UNKNOWN_OPERAND = Operand("other", lambda _: None)

MALFORMED_JSON_ERRORS = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)
"""The errors that are raised on reading JSON that libnftables would not write."""


def match_test(match: Json, sets: SetsByName) -> PacketTest:
    """The test of one `{"match": {"op", "left", "right"}}`."""
    op, left, right = match.get("op", "=="), parse_operands(match["left"]), match["right"]
    many = _number_set_of(left, right, sets)

    about_flags = "flags" in str(match["left"])

    def test(packet: Packet) -> Truth:
        try:
            if packet.flags == ACK and about_flags:  # data: some of its segments have PSH, some have not
                pushed = once(replace(packet, flags=ACK | PSH))
                return pushed if pushed == once(packet) else None
            return once(packet)
        except MALFORMED_JSON_ERRORS:
            return None

    def once(packet: Packet) -> Truth:
        values = [operand.read(packet) for operand in left]
        if any(value is NOT_THERE for value in values):
            return False
        value = values[0]
        if many is not None and many.readable and isinstance(value, NumberRange) and value.exact is not None:
            return truth_inverted(many.holds(value.exact), op == "!=") if op in ("==", "!=", "in") else None
        return compare_values(op, left, values, right, sets)

    return test


def match_cost(match: Json, sets: SetsByName) -> int:
    """With how many elements of a set the match may have to compare a packet, one after the other."""
    many = _number_set_of(parse_operands(match["left"]), match["right"], sets)
    return 0 if many is not None and many.readable else len(set_elements(match["right"], sets) or ())


def compare_values(op: str, left: list[Operand], values: list[FieldValue], right: Json, sets: SetsByName) -> Truth:
    """Whether the packet's values, read by the operands `left`, stand in the relation `op` to `right`."""
    elements = set_elements(right, sets)
    if elements is not None:
        found = truth_any(element_holds(left, values, element) for element in elements)
        return truth_inverted(found, op == "!=") if op in ("==", "!=", "in") else None
    if is_unlisted_set(right):
        return None
    if op in ("<", ">", "<=", ">="):
        number = right if isinstance(right, int) else None
        value = values[0]
        if len(left) != 1 or number is None or not isinstance(value, NumberRange) or left[0].kind != "number":
            return None
        below = value.below(number if op in ("<", ">=") else number + 1)
        return truth_inverted(below, op in (">", ">="))
    if left[0].kind == "bits" and len(left) == 1 and op in ("in", "!", "notin"):
        value, mask = values[0], constant_mask(left[0], right)
        if mask is not None and mask & ~left[0].clear == 0:
            return op != "in"
        if mask is None or not isinstance(value, NumberRange) or value.exact is None:
            return None
        return truth_inverted(value.exact & mask != 0, op != "in")
    if op in ("==", "!=", "in"):
        return truth_inverted(element_holds(left, values, right), op == "!=")
    return None


class NumberSet:
    """A large set of plain numbers or addresses, read once and searched fast; `readable`: it holds nothing else."""

    def __init__(self, operand: Operand, elements: list[Json]) -> None:
        self._operand = operand
        self._elements = elements

    @cached_property
    def _spans(self) -> NumberSpans | None:
        if self._operand.kind not in ("number", "address"):
            return None
        found = []
        for element in self._elements:
            wanted = None if element == "*" else constant_range(self._operand, element)
            if wanted is None or wanted.low > wanted.high:
                return None
            found.append((wanted.low, wanted.high))
        return merge_spans(found)

    @property
    def readable(self) -> bool:
        return self._spans is not None

    def holds(self, number: int) -> bool:
        return is_in_spans(number, self._spans or ())


class NamedSets(dict[str, Json]):
    """The sets of a table by name. A set is read as numbers only once, however many rules use it."""

    def __init__(self) -> None:
        super().__init__()
        self._read: dict[tuple[str, str], NumberSet] = {}

    def numbers(self, name: str, operand: Operand, elements: list[Json]) -> NumberSet:
        return self._read.setdefault((name, operand.kind), NumberSet(operand, elements))


def _number_set_of(left: list[Operand], right: Json, sets: SetsByName) -> NumberSet | None:
    """The right side as a NumberSet, if it is a set of more than 32 elements; else None."""
    elements = set_elements(right, sets)
    if elements is None or len(left) != 1 or len(elements) <= 32:
        return None
    if isinstance(right, str) and isinstance(sets, NamedSets):
        return sets.numbers(right, left[0], elements)
    return NumberSet(left[0], elements)


def is_unlisted_set(right: Json) -> bool:
    return isinstance(right, str) and right.startswith("@")  # a set that is not in the listing


def set_elements(right: Json, sets: SetsByName) -> list[Json] | None:
    """The elements of an anonymous or named set; None if `right` is no set, or one that is not listed."""
    if isinstance(right, dict) and "set" in right:
        inner = right["set"]
        return inner if isinstance(inner, list) else [inner]
    if isinstance(right, str) and right.startswith("@") and right[1:] in sets:
        inner = sets[right[1:]].get("elem", [])
        return inner if isinstance(inner, list) else [inner]
    return None


def element_holds(left: list[Operand], values: list[FieldValue], element: Json) -> Truth:
    """Whether the packet's value (or tuple of values) is this element of a set, or lies in it."""
    if isinstance(element, dict) and "elem" in element:
        inner = element["elem"]
        holds = element_holds(left, values, inner.get("val"))
        plain = set(inner) <= {"val", "comment", "timeout", "expires", "counter"}
        return holds if plain or holds is False else None  # an element with its own limit or quota holds sometimes
    if element == "*":
        return True
    if isinstance(element, dict) and "concat" in element:
        parts = element["concat"]
        if len(parts) != len(left):
            return None
        answer: Truth = True
        for operand, value, part in zip(left, values, parts, strict=True):
            answer = truth_and(answer, constant_holds(operand, value, part))
        return answer
    return constant_holds(left[0], values[0], element) if len(left) == 1 else None


def constant_holds(operand: Operand, value: FieldValue, constant: Json) -> Truth:
    """Whether the packet's value equals a constant, or lies in a prefix or range."""
    if value is None or isinstance(value, NotThere):
        return None
    if constant == "*":
        return True
    if isinstance(value, bool):
        if isinstance(constant, bool):
            return value is constant
        return None if value or constant not in (0, "0") else True
    if isinstance(value, NumberRange):
        wanted = constant_range(operand, constant)
        return None if wanted is None else value.within(wanted)
    if operand.kind == "interface":
        return matches_interface(value, constant) if isinstance(constant, str) else None
    if isinstance(constant, int) and operand.numbers:
        constant = operand.numbers.get(constant, "")
    return value == PROTOCOL_BY_NFT_NAME.get(constant, constant) if isinstance(constant, str) else None


def matches_interface(name: str, pattern: str) -> bool:
    """Whether a pattern means this interface. nft writes a wildcard as `*` at the end, and a literal star there as
    `\\*`."""
    if pattern.endswith("\\*"):
        return name == pattern[:-2] + "*"
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def constant_range(operand: Operand, constant: Json) -> NumberRange | None:
    """A constant, prefix, range or bit mask as numbers; None if it is not understood."""
    try:
        if operand.kind == "bits":
            mask = constant_mask(operand, constant)
            return None if mask is None else NumberRange.exactly(mask)
        if isinstance(constant, dict) and "prefix" in constant:
            return NumberRange.of_network(f"{constant['prefix']['addr']}/{constant['prefix']['len']}")
        if isinstance(constant, dict) and "range" in constant:
            low, high = (constant_range(operand, end) for end in constant["range"])
            return None if low is None or high is None else NumberRange(low.low, high.high)
        if operand.kind == "address":
            return NumberRange.exactly(int(ipaddress.ip_address(constant)))
        if isinstance(constant, bool):
            return None
        return NumberRange.exactly(constant if isinstance(constant, int) else int(constant, 0))
    except (ValueError, TypeError, KeyError):
        return None


def constant_mask(operand: Operand, constant: Json) -> int | None:
    """A constant of bits as one mask: `"syn"`, `["syn", "ack"]`, `{"|": [...]}` or a number; None if it is not
    understood."""
    if isinstance(constant, bool):
        return None
    if isinstance(constant, int):
        return constant
    if isinstance(constant, str):
        return (operand.names or {}).get(constant)
    parts: Iterable[Json] = constant.get("|", [None]) if isinstance(constant, dict) else constant
    mask = 0
    for part in parts:
        one = constant_mask(operand, part) if part is not None else None
        if one is None:
            return None
        mask |= one
    return mask


def parse_operands(left: Json) -> list[Operand]:
    """The operands of the left side of a match: several for a concatenation, else one."""
    if isinstance(left, dict) and "concat" in left:
        return [parse_operand(part) for part in left["concat"]]
    return [parse_operand(left)]


def parse_operand(left: Json) -> Operand:
    """The operand for one expression; UNKNOWN_OPERAND if it is not understood."""
    if not isinstance(left, dict) or len(left) != 1:
        return UNKNOWN_OPERAND
    ((kind, body),) = left.items()
    if kind == "payload" and isinstance(body, dict) and "protocol" in body:
        return _payload_operand(body["protocol"], body.get("field", ""))
    if kind == "meta":
        return _META.get(body["key"], UNKNOWN_OPERAND)
    if kind == "ct":
        return _conntrack_operand(body)
    if kind == "fib":
        return _fib_operand(body)
    if kind == "exthdr":
        return Operand("other", lambda packet: NOT_THERE if packet.version == 4 else None)
    if kind == "&" and isinstance(body, list) and len(body) == 2:
        return _masked_operand(parse_operand(body[0]), body[1])
    return UNKNOWN_OPERAND


def _masked_operand(field: Operand, mask: Json) -> Operand:
    number = constant_mask(field, mask) if field.kind == "bits" else mask if isinstance(mask, int) else None

    def read(packet: Packet) -> FieldValue:
        value = field.read(packet)
        if isinstance(value, NotThere):
            return value
        if field.frag_off and number is not None and not number & 0x4000:
            return NumberRange.exactly(0)  # the packet is no fragment: only its flag "don't fragment" may be set
        if number is None or not isinstance(value, NumberRange) or value.exact is None:
            return None
        return NumberRange.exactly(value.exact & number)

    return Operand(field.kind, read, field.names, field.numbers)


def _payload_operand(protocol: str, field: str) -> Operand:
    if protocol in ("ip", "ip6"):
        version = 4 if protocol == "ip" else 6
        inner = _NETWORK.get((protocol, field), UNKNOWN_OPERAND)
        return _operand_if_present(inner, lambda packet: packet.version == version)
    if protocol == "th":
        return _PORTS.get(field, UNKNOWN_OPERAND)
    if protocol in OTHER_TRANSPORTS:
        inner = _TCP_FLAGS_FIELD if (protocol, field) == ("tcp", "flags") else _PORTS.get(field, UNKNOWN_OPERAND)
        return _operand_if_present(
            inner, lambda packet: packet.protocol == PROTOCOL_BY_NFT_NAME.get(protocol, protocol)
        )
    if protocol == "arp":
        inner = (
            _NETWORK.get(("ip", field.removesuffix(" ip")), UNKNOWN_OPERAND)
            if field.endswith(" ip")
            else UNKNOWN_OPERAND
        )
        return _operand_if_present(inner, lambda packet: packet.protocol == "arp")
    return UNKNOWN_OPERAND


def _operand_if_present(field: Operand, there: Callable[[Packet], bool]) -> Operand:
    """The operand, with NOT_THERE for packets that do not have the field."""

    def read(packet: Packet) -> FieldValue:
        return field.read(packet) if there(packet) else NOT_THERE

    return Operand(field.kind, read, field.names, field.numbers, field.frag_off)


def _conntrack_operand(body: Json) -> Operand:
    key, direction = body.get("key", ""), body.get("dir")
    if direction is None:
        return _CT.get(key, UNKNOWN_OPERAND)
    name = str(key).removeprefix("ip6 ").removeprefix("ip ")
    forwards = direction == "original"

    def read(packet: Packet) -> FieldValue:
        if not packet.tracked:
            return None
        ours = forwards != packet.reply  # the field is about the direction in which this packet goes
        ends = {
            "saddr": (NumberRange.exactly(packet.source), NumberRange.exactly(packet.destination)),
            "daddr": (NumberRange.exactly(packet.destination), NumberRange.exactly(packet.source)),
            "proto-src": (packet.source_port, packet.destination_port),
            "proto-dst": (packet.destination_port, packet.source_port),
        }.get(name)
        return None if ends is None else ends[0] if ours else ends[1]

    return Operand("address" if name in ("saddr", "daddr") else "number", read)


def _fib_operand(body: Json) -> Operand:
    result, flags = body.get("result"), body.get("flags", [])
    if result == "type" and "daddr" in flags:
        return Operand("name", lambda packet: "local" if packet.arriving else None)
    if result == "type" and "saddr" in flags:
        return Operand("name", lambda packet: None if packet.arriving else "local")
    if result in ("oif", "oifname") and "saddr" in flags:
        if "iif" in flags:
            return Operand("exists", lambda packet: packet.has_route_back)
        return Operand("exists", lambda packet: packet.has_route_back or None)  # a route through any interface counts
    return UNKNOWN_OPERAND


def _conntrack_direction(packet: Packet) -> str | None:
    return None if not packet.tracked else "reply" if packet.reply else "original"


def _exact_number(value: int | None) -> NumberRange | None:
    return None if value is None else NumberRange.exactly(value)


_NETWORK: dict[tuple[str, str], Operand] = {
    ("ip", "saddr"): Operand("address", lambda p: NumberRange.exactly(p.source)),
    ("ip", "daddr"): Operand("address", lambda p: NumberRange.exactly(p.destination)),
    ("ip", "protocol"): Operand("name", lambda p: p.protocol, numbers=PROTOCOL_BY_NUMBER),
    ("ip", "length"): Operand("number", lambda p: p.length),
    ("ip", "version"): Operand("number", lambda _: NumberRange.exactly(4)),
    ("ip", "frag-off"): Operand("number", lambda _: None, frag_off=True),
    ("ip6", "saddr"): Operand("address", lambda p: NumberRange.exactly(p.source)),
    ("ip6", "daddr"): Operand("address", lambda p: NumberRange.exactly(p.destination)),
    ("ip6", "nexthdr"): Operand("name", lambda p: p.protocol, numbers=PROTOCOL_BY_NUMBER),
    ("ip6", "length"): Operand("number", lambda p: NumberRange(p.length.low - 40, p.length.high - 40)),
    ("ip6", "version"): Operand("number", lambda _: NumberRange.exactly(6)),
}
_PORTS: dict[str, Operand] = {
    "sport": Operand("number", lambda p: p.source_port),
    "dport": Operand("number", lambda p: p.destination_port),
}
_TCP_FLAGS_FIELD = Operand("bits", lambda p: _exact_number(p.flags), names=TCP_FLAGS)
_META: dict[str, Operand] = {
    "nfproto": Operand("name", lambda p: "ipv4" if p.version == 4 else "ipv6", numbers=NFPROTO),
    "protocol": Operand("name", lambda p: p.family, numbers=ETHERTYPES),
    "l4proto": Operand("name", lambda p: p.protocol, numbers=PROTOCOL_BY_NUMBER),
    "iif": Operand("interface", lambda p: p.in_interface),
    "iifname": Operand("interface", lambda p: p.in_interface),
    "oif": Operand("interface", lambda p: p.out_interface),
    "oifname": Operand("interface", lambda p: p.out_interface),
    "length": Operand("number", lambda p: p.length),
    "mark": Operand("number", lambda p: _exact_number(p.mark)),
    "skuid": Operand("number", lambda p: _exact_number(p.uid)),
    "skgid": Operand("number", lambda p: _exact_number(p.gid)),
    "pkttype": Operand("name", lambda p: "host" if p.arriving else None, numbers={0: "host", 1: "broadcast"}),
}
_CT: dict[str, Operand] = {
    "state": Operand("bits", lambda p: _exact_number(p.state), names=CT_STATES),
    "direction": Operand("name", _conntrack_direction, numbers={0: "original", 1: "reply"}),
    "mark": Operand("number", lambda p: _exact_number(p.ct_mark)),
    "status": Operand("bits", lambda _: None, names=CT_STATUS, clear=NAT),
    "zone": Operand("number", lambda _: None),
    "protocol": Operand("name", lambda p: p.protocol, numbers=PROTOCOL_BY_NUMBER),
    "l3proto": Operand("name", lambda p: "ipv4" if p.version == 4 else "ipv6", numbers=NFPROTO),
}
