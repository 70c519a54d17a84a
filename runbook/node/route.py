"""How does this node reach others: from which address and interface, and does a TCP connection open?

Argument, JSON: {"targets": [{"peer": str, "address": str, "port": int}]}. Says {"targets": [{... "source": address or
null, "interface": name or null, "answer": "open", "refused", or why there was no answer}]}.
"""

from __future__ import annotations

import concurrent.futures
import ipaddress
import socket

from runbook.node.proc import read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from runbook.transport.node_answers import Routes, RouteTarget

CONNECT_TIMEOUT_S = 3


def source_address(address: str) -> str | None:
    """The address that this node would send from, or None: the kernel tells it for a UDP socket, without a packet."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((address, 9))
            return str(sock.getsockname()[0]).partition("%")[0]
    except OSError:
        return None


def interface_with_ipv6(address: str) -> str | None:
    """The interface with an IPv6 address, or None; for nodes without iproute2 (IPv4 addresses are known without it)."""
    try:
        wanted = ipaddress.ip_address(address).packed.hex()
    except ValueError:
        return None
    for line in (read("/proc/net/if_inet6") or "").splitlines():
        words = line.split()
        if len(words) == 6 and words[0] == wanted:
            return words[5]
    return None


def dial_outcome(address: str, port: int) -> str:
    """The result of dialling a port: `open`, `refused` (which shows that the host is reached), or why no answer
    came."""
    try:
        socket.create_connection((address, port), CONNECT_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return "refused"
    except socket.timeout:
        return "no answer within %d s" % CONNECT_TIMEOUT_S
    except OSError as error:
        return error.strerror or str(error)
    return "open"


def probe_route_target(target: dict[str, Any]) -> RouteTarget:
    address = target["address"]
    from_here = source_address(address)
    return {
        "peer": target["peer"],
        "address": address,
        "port": target["port"],
        "source": from_here,
        "interface": interface_with_ipv6(from_here) if from_here else None,
        "answer": dial_outcome(address, target["port"]),
    }


def look(arguments: dict[str, Any]) -> Routes:
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        return {"targets": list(pool.map(probe_route_target, arguments["targets"]))}
