"""Says whether a text is an address, which is a host name or an IP address and nothing else, what is wrong with it, and
what kind of address it is."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from runbook.files.node_sets import foreign_range
from runbook.files.suggestions import with_ascii_signs
from runbook.model.safe_text import visible_text

_HOST_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
MAX_LABEL_CHARACTERS = 63
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = re.compile(rf"{_BYTE}(?:\.{_BYTE}){{3}}")
_HOST_AND_PORT = re.compile(r"\A(?:\[[^\[\]]*\]|[^:\[\]]*):[0-9]*")
TYPOGRAPHIC_QUOTES = "\u201c\u201d\u201e\u2018\u2019\u201a"  # what word processors put for " and '
_NUMERIC_ADDRESS = re.compile(
    r"(?:0[xX][0-9A-Fa-f]*|[0-9]*)(?:\.(?:0[xX][0-9A-Fa-f]*|[0-9]*))*"
)  # never looked up as a name
_HELP_BY_CHARACTER = {
    ",": "each node has one address",
    "/": "write the address of one machine, without a prefix length",
}
_LOOPBACK_NAMES = frozenset(
    (
        *("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"),
        *("localhost4", "localhost4.localdomain4", "localhost6", "localhost6.localdomain6", "localhost6.localdomain"),
    )
)  # what /etc/hosts of Debian and Fedora call 127.0.0.1 and ::1


def strip_brackets(address: str) -> str:
    """The address without the brackets of URLs: `[fd00::1]` becomes `fd00::1`."""
    return address[1:-1] if address.startswith("[") and address.endswith("]") and ":" in address else address


def normal_spelling(address: str) -> str:
    """The same text for every way to write one address: `GPU1.lab.` is `gpu1.lab`, `fd00:0:0::1` is `fd00::1`, and
    `::ffff:10.0.0.1` is `10.0.0.1`."""
    if ":" not in address:
        return address.lower().rstrip(".")
    try:
        ip = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    return str(ip.ipv4_mapped or ip)


def address_fault(address: str) -> tuple[str, str | None] | None:
    """What is wrong with an address, and the help for it; None if the text may be an address."""
    if _HOST_NAME.fullmatch(address):
        if not _NUMERIC_ADDRESS.fullmatch(address):
            return _label_fault(address)
        if is_ip(address):
            return _undialable_fault(address)
        if (plain := _without_zeros(address)) is not None:
            return f"`{address}` pads its numbers with zeros, and some programs read these as octal", f"write {plain}"
        return f"`{address}` is not an IPv4 address", "four numbers from 0 to 255, with dots between them"
    if is_ip(address):
        return _undialable_fault(address)
    if not address:
        return "the address is empty", None
    if "://" in address:
        return f"`{address}` is a URL, not an address", "write the host alone, without `//` and what surrounds it"
    if "@" in address:
        return f"`{address}` holds a login name", "write the host alone; the name goes into `ssh: {user: …}`"
    if _HOST_AND_PORT.fullmatch(address):
        host = strip_brackets(address.rpartition(":")[0])
        help = f"write `{host}` alone; the rendezvous port goes into `rendezvous: {{port: …}}`, sshd's into `ssh:`"
        return f"`{address}` is an address with a port", help
    if address.startswith("-"):
        return f"`{address}` begins with `-`: programs would take it for an option", None
    if "{{" in address:
        return f"`{address}` is a template", "inventories fill in no templates: write the value itself"
    if any(char.isspace() for char in address):
        return f'"{visible_text(address)}" holds a space or a line break', "an address is one word"
    if foreign := foreign_range(address):
        return foreign
    if ":" in address:
        return f"`{address}` is not an IPv6 address", None
    odd = next((char for char in address if not re.match(r"[A-Za-z0-9_.-]", char)), None)
    if odd is None:
        return f"`{address}` is not a host name", "a host name ends in a letter or a digit"
    message = f"`{visible_text(address)}` holds `{visible_text(odd)}`, which no address has"
    if odd in TYPOGRAPHIC_QUOTES:
        return message, "YAML's own quotes are \" and '"
    plain = with_ascii_signs(address)
    if plain != address and address_fault(plain) is None:
        return message, f"write {plain}"
    return message, "write the name in its ASCII form (xn--…)" if ord(odd) > 127 else _HELP_BY_CHARACTER.get(odd)


def _label_fault(name: str) -> tuple[str, str | None] | None:
    """The fault of a host name that no resolver takes, None if it has none; a dot at the end stands for the root."""
    labels = name.removesuffix(".").split(".")
    if "" in labels:
        return f"`{name}` has two dots in a row, and no host name has", None
    if long := next((label for label in labels if len(label) > MAX_LABEL_CHARACTERS), None):
        return (
            f"a part of `{name}` has {len(long)} characters, and no host name has more than {MAX_LABEL_CHARACTERS}",
            None,
        )
    return None


def _parsed_ip(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The IP address without its zone; an IPv4 address that is written in IPv6 is an IPv4 address. Raises
    ValueError."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    return ip.ipv4_mapped or ip if isinstance(ip, ipaddress.IPv6Address) else ip


def _undialable_fault(address: str) -> tuple[str, str | None] | None:
    """The fault of an IP address that programs can bind or send to, but not dial; None for any other IP address."""
    if address[0] not in "02:fF":
        return None
    ip = _parsed_ip(address)
    if ip.is_unspecified or (ip.version == 4 and ip.packed[0] == 0):
        help = "servers listen at it; give the address at which the other nodes reach this one"
        return f"`{address}` means every address of a machine, and cannot be dialled", help
    if ip.is_multicast or ip == ipaddress.IPv4Address("255.255.255.255"):
        return f"`{address}` means many machines at once, and cannot be dialled", None
    return None


def _without_zeros(address: str) -> str | None:
    """`10.0.1.01` as `10.0.1.1`; None if the text is no address without its zeros either."""
    parts = address.split(".")
    plain = ".".join(part.lstrip("0") or "0" for part in parts)
    return plain if len(parts) == 4 and all(parts) and is_ip(plain) else None


def is_loopback(address: str) -> bool:
    """Whether an address means the very machine that dials it: localhost, 127.x, ::1."""
    try:
        return _parsed_ip(address).is_loopback
    except ValueError:
        name = address.lower().rstrip(".")
        return name in _LOOPBACK_NAMES or name.endswith(".localhost")


def is_in_network(address: str, network: str) -> bool:
    """Whether an IP address lies in a network: `10.0.0.0/8`, `default` (every address), `fd00::1` (that address only).
    False if either text is anything else."""
    if network == "default":
        return True
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def is_ip(address: str) -> bool:
    """Whether a text is an IPv4 or IPv6 address, with or without a zone (`%eth0`)."""
    if _IPV4.fullmatch(address):  # asked of every node, and ipaddress takes five times as long
        return True
    if not re.fullmatch(r"[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?", address):
        return False
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def preferred_address(addresses: Sequence[str]) -> str:
    """The address of a machine that programs dial: its first IPv4 address, or else its first address. `addresses` has
    at least one."""
    return next((address for address in addresses if ":" not in address), addresses[0])


def is_link_local(address: str) -> bool:
    """Whether an address, with or without its prefix length, is link-local: one that a host gives itself."""
    return ipaddress.ip_interface(address).ip.is_link_local
