"""Pseudonyms for machines that keep the structure: equal stays equal, one subnet stays one subnet, v6 and MAC alike.

IPv4: bits in which all addresses seen under one prefix agree become 0, the others stay. So two addresses share exactly
the prefix they shared before, whatever the netmask, and private stays private. The last octet stays as it is: `.1`, the
network's `.0` and its broadcast can still be told apart; so do the bits behind a netmask that a text names.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from runbook.collect.known_names import KnownNames, Place, inside_word
from runbook.collect.people_pseudonyms import is_common
from runbook.files.address import is_ip, is_loopback
from runbook.files.node_sets import expand

_V4 = re.compile(
    r"(?<![\w.])(?:(?:25[0-5]|2[0-4][0-9]|1?[0-9]{1,2})\.){3}(?:25[0-5]|2[0-4][0-9]|1?[0-9]{1,2})(?!\w|\.[0-9])"
)
_MASK = re.compile(r"/([0-9]{1,2})(?![0-9.])")
_SHORTEST_MASK = 16  # one that is shorter would show most of an address
_V4_RANGE = re.compile(r"(?<![\w.])((?:[0-9]{1,3}\.){3})(?=\[[0-9,\- ]+\])")
_V4_DASHED = re.compile(r"(?<![A-Za-z0-9-])ip-((?:[0-9]{1,3}-){3}[0-9]{1,3})(?![0-9-])")
_V6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,8}(?:(?:[0-9]{1,3}\.){3}[0-9]{1,3}|[0-9A-Fa-f]{0,4})(?![\w:])")
_MAC = re.compile(r"(?<![\w:-])(?:[0-9A-Fa-f]{2}([:-]))(?:[0-9A-Fa-f]{2}\1){4,18}[0-9A-Fa-f]{2}(?![\w:-])")
_GUID = re.compile(r"(?:GUID|guid):?\s+((?:0x)?[0-9A-Fa-f]{16}|[0-9A-Fa-f]{4}(?::[0-9A-Fa-f]{4}){3})(?![\w:])")
_RANGE = re.compile(r"[A-Za-z0-9_.-]{0,64}(?:\[[0-9a-z,\- ]{1,64}\](?:[A-Za-z0-9_.-]{0,64}[A-Za-z0-9_-])?){1,4}")
_LETTERS = re.compile(r"(?<=[-_.])\[([a-z](?:-[a-z])?(?:,[a-z](?:-[a-z])?)*)\]\Z")
_VERSION_BEFORE = re.compile(
    r"(?:==|version[\s:=\"']*|[-_]cu[0-9]+[\s=]*|\bv|cudnn[\s:=]*|firmware[\s:=\w-]*|fw_ver[\s:=]*)\Z", re.IGNORECASE
)

# The class of an address is not secret, and is useful: (network, how many of its first bits are kept).
_KEPT_V4 = [
    (ipaddress.ip_network("10.0.0.0/8"), 8),
    (ipaddress.ip_network("172.16.0.0/12"), 12),
    (ipaddress.ip_network("192.168.0.0/16"), 16),
    (ipaddress.ip_network("100.64.0.0/10"), 10),
    (ipaddress.ip_network("169.254.0.0/16"), 16),
]
_WORDS_OF_ALL = frozenset(
    "localhost localdomain local master node nodes host hosts all any default gateway router broadcast".split()
)


class Machines:
    """Learns names and addresses from everything first, since a mapping that keeps structure depends on all of them."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._common: set[str] = set()  # names that stay: they identify nobody, and occur in every text
        self._domains: dict[str, str] = {}
        self._looked_for = KnownNames()
        self._bits: set[tuple[int, int]] = set()  # every (length, prefix) of every IPv4 address seen
        self._networks: set[tuple[int, int]] = set()  # of those with a known netmask, length and prefix
        self._public: dict[int, int] = {}
        self._subnets6: dict[int, int] = {}
        self._ids6: dict[int, int] = {}
        self._macs: dict[str, int] = {}

    # Learning.

    def add_name(self, name: str) -> None:
        """A host's name, with or without a domain. Addresses, localhost and words that every text holds are none."""
        name = name.lower().strip(".")
        labels = name.split(".")
        if not name or is_loopback(name) or name.startswith(("ip6-", "ff02")) or is_ip(name):
            return
        if labels[0] in _WORDS_OF_ALL or is_common(labels[0]):
            self._common.add(labels[0])
        elif len(labels[0]) > 1:
            self._names.setdefault(labels[0], f"host{len(self._names) + len(self._common) + 1}")
            self._looked_for.add(labels[0])
        if len(labels) > 1:
            self.add_domain(".".join(labels[1:]))

    def add_domain(self, domain: str) -> None:
        domain = domain.lower().strip(".")
        distinct = "." in domain or len(domain) > 3
        if distinct and domain not in _WORDS_OF_ALL and not is_common(domain):
            self._domains.setdefault(domain, f"domain{len(self._domains) + 1}.example")
            self._looked_for.add(domain)

    def learn(self, text: str) -> None:
        for match in _V4.finditer(text):
            if not _is_version(text, match.start()):
                value, mask = self._learn(match[0]), _MASK.match(text, match.end())
                if value is not None and mask and _SHORTEST_MASK <= int(mask[1]) < 24:
                    self._networks.add((int(mask[1]), value >> (32 - int(mask[1]))))
        for match in _V4_DASHED.finditer(text):
            self._learn(match[1].replace("-", "."))
        for match in _V4_RANGE.finditer(text):
            self._learn(match[1] + "0")
        for match in _RANGE.finditer(text) if "[" in text else ():
            self._of_range(match[0])
        for match in re.finditer(r"^(?:search|domain)\s+(.+)$", text, re.MULTILINE):
            for domain in match[1].split():
                if re.fullmatch(r"[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+\.?", domain):
                    self.add_domain(domain)

    def _learn(self, address: str) -> int | None:
        """Its number; None where it only looks like an address (`10.01.1.1`)."""
        try:
            value = int(ipaddress.IPv4Address(address))
        except ValueError:
            return None
        for length in range(1, 25):
            self._bits.add((length, value >> (32 - length)))
        return value

    # Finding.

    def find(self, text: str) -> Iterator[tuple[Place, str]]:
        """Every place of a name or an address, with its replacement."""
        if "[" in text:
            for match in _V4_RANGE.finditer(text):
                yield match.span(1), self.v4(match[1] + "0")[:-1]
            for match in _RANGE.finditer(text):
                if (other := self._of_range(match[0])) is not None:
                    yield match.span(), other
        for match in _V4.finditer(text):
            if not _is_version(text, match.start()):
                yield match.span(), self.v4(match[0])
        for match in _V4_DASHED.finditer(text):
            yield match.span(1), self.v4(match[1].replace("-", ".")).replace(".", "-")
        if ":" in text or "-" in text:
            for match in _MAC.finditer(text):
                yield match.span(), self._mac(match[0], match[1])
            for match in _GUID.finditer(text):
                yield match.span(1), f"0x{self._number(match[1]):016x}"
        if ":" in text:
            for match in _V6.finditer(text):
                if (other := self.v6(match[0])) is not None:
                    yield match.span(), other
        for (start, end), name in self._looked_for.find(text):
            other = self._domains.get(name) or self._names.get(name)
            if other and not inside_word(text, start) and not inside_word(text, end):
                yield (start, end), other

    def v4(self, address: str) -> str:
        """The pseudonym of an IPv4 address; what means no single machine, or is none, stays."""
        try:
            ip = ipaddress.IPv4Address(address)
        except ValueError:
            return address
        value = int(ip)
        if ip.is_loopback or ip.is_multicast or value >> 24 in (0, 255) or value >> 28 == 15:
            return address
        kept = next((kept for network, kept in _KEPT_V4 if ip in network), None)
        if kept is None:
            # Only the public ranges for documentation and benchmarks are free: a /24 each.
            number = self._public.setdefault(value >> 8, len(self._public))
            blocks = [0xCB0071, 0xC63364, 0xC00002]
            block = blocks[number] if number < 3 else 0xC61200 + (number - 3) % 512
            return str(ipaddress.IPv4Address(block << 8 | value & 255))
        mapped = value >> (32 - kept)
        for length in range(kept + 1, 25):
            prefix = value >> (32 - length)
            of_host = any((mask, value >> (32 - mask)) in self._networks for mask in range(_SHORTEST_MASK, length))
            both = of_host or (length, prefix ^ 1) in self._bits
            mapped = mapped << 1 | (prefix & 1 if both else 0)
        return str(ipaddress.IPv4Address(mapped << 8 | value & 255))

    def v6(self, address: str) -> str | None:
        """The pseudonym of an IPv6 address; None for what is none. A subnet is the first 64 bits."""
        try:
            ip = ipaddress.IPv6Address(address)
        except ValueError:
            return None
        if ip.ipv4_mapped is not None:
            return f"::ffff:{self.v4(str(ip.ipv4_mapped))}"
        value = int(ip)
        if value < 1 << 16 or ip.is_loopback:
            return address
        if ip.is_multicast:
            solicited = value >> 24 == 0xFF0200000000000000000001FF
            return "ff02::1:ff00:0" if solicited else address
        subnet, machine = value >> 64, value & (1 << 64) - 1
        if machine >= 1 << 16:  # made from a MAC, or at random; small ones are typed by people, and identify nobody
            machine = (1 << 16) + self._ids6.setdefault(machine, len(self._ids6) + 1)
        if ip.is_link_local:
            subnet = 0xFE80 << 48
        else:
            first = 0xFD00 << 48 if ip.is_private else 0x20010DB8 << 32
            subnet = first | self._subnets6.setdefault(subnet, len(self._subnets6) + 1)
        return str(ipaddress.IPv6Address(subnet << 64 | machine))

    def _mac(self, text: str, joint: str) -> str:
        digits = re.sub(r"[:-]", "", text)
        if not digits.strip("0") or not digits.lower().strip("f"):
            return text
        octets = f"{self._number(digits):0{len(digits)}x}"
        octets = "02" + octets[2:]  # locally administered
        return joint.join(octets[at : at + 2] for at in range(0, len(octets), 2))

    def _number(self, of: str) -> int:
        return self._macs.setdefault(of.lower(), len(self._macs) + 1)

    def _of_range(self, text: str) -> str | None:
        """`gn[01-04]` as the names of its hosts, in brackets if they follow one another. Of a range with a known host
        all are hosts."""
        try:
            names = [name.split(".")[0] for name in _each(text.lower())]
        except ValueError:
            return None
        if len(names) > 10_000 or self._names.keys().isdisjoint(names):
            return None
        for name in names:
            self.add_name(name)
        if not self._names.keys() >= set(names):
            return None
        numbers = [int(self._names[name].removeprefix("host")) for name in names]
        if numbers == list(range(numbers[0], numbers[0] + len(numbers))) and len(numbers) > 1:
            return f"host[{numbers[0]}-{numbers[-1]}]"
        return ":".join(f"host{number}" for number in numbers)

    @property
    def names(self) -> list[str]:
        return [*self._names, *self._domains]


def _each(text: str) -> list[str]:
    """The names of `gn[01-04]`, and of `node-[a-c]`, as findings and events write it. Raises ValueError."""
    letters = _LETTERS.search(text)
    if letters is None:
        return expand(text)
    spans = [(part[0], part[-1]) for part in letters[1].split(",")]
    ends = [chr(code) for first, last in spans for code in range(ord(first), ord(last) + 1)]
    return [name + end for name in expand(text[: letters.start()]) for end in ends]


def _is_version(text: str, at: int) -> bool:
    """Whether four numbers with dots are a version: `nvidia-cublas-cu12==12.1.3.1`."""
    return _VERSION_BEFORE.search(text, max(0, at - 24), at) is not None
