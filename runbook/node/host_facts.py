"""Facts about a host: interfaces, limits, shared memory. Says one message and ends. Python 3.8, standard library.

Argument, JSON: {}, or {"address": the address that peers dial here}, which adds "own": whether it is this host's own.
"""

from __future__ import annotations

import os
import socket

from runbook.node.proc import bind_proves_nothing, bounded_amount, carrier_changes, read, status_field
from runbook.node.tools import printed_json, run_if_installed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from runbook.transport.node_answers import HostFacts, InterfaceFacts, Limits, SharedMemory

CAP_IPC_LOCK = 14  # its bit in a set of capabilities


def interface_facts() -> dict[str, InterfaceFacts]:
    """The network interfaces by name. Without `ip -j`, sysfs and an ioctl give fewer facts and only one address."""
    found: dict[str, InterfaceFacts] = {}
    listed = printed_json(run_if_installed("ip", ["-j", "address"], 5))
    if listed is not None:
        for entry in listed:
            if not entry.get("ifname"):
                continue
            found[entry["ifname"]] = {
                "mtu": entry.get("mtu"),
                "state": entry.get("operstate"),
                "flags": entry.get("flags", []),
                "addresses": [a["local"] for a in entry.get("addr_info", []) if a.get("local")],
                "ipv6_off": read("/proc/sys/net/ipv6/conf/%s/disable_ipv6" % entry["ifname"]) == "1",
                "carrier_changes": carrier_changes(entry["ifname"]),
            }
        return found
    try:
        names = sorted(name for name in os.listdir("/sys/class/net") if os.path.isdir("/sys/class/net/" + name))
    except OSError:
        names = []
    for name in names:
        base = "/sys/class/net/" + name + "/"
        mtu = read(base + "mtu")
        found[name] = {
            "mtu": int(mtu) if mtu else None,
            "state": (read(base + "operstate") or "").upper() or None,
            "flags": [],
            "addresses": interface_ipv4(name),
        }
    return found


def interface_ipv4(name: str) -> list[str]:
    """An interface's first IPv4 address, by ioctl SIOCGIFADDR, for nodes without iproute2."""
    try:
        import fcntl
        import struct

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            packed = fcntl.ioctl(sock.fileno(), 0x8915, struct.pack("256s", name[:15].encode()))
        return [socket.inet_ntoa(packed[20:24])]
    except (ImportError, OSError):
        return []


def login_limits() -> Limits:
    """This login's limits in bytes, numbers and seconds; None: unlimited. `may_lock`: it has CAP_IPC_LOCK, with which
    no limit of locked memory applies. Empty if the system tells no limits."""
    try:
        import resource

        soft, hard = [
            None if limit == resource.RLIM_INFINITY else bounded_amount(limit)
            for limit in resource.getrlimit(resource.RLIMIT_MEMLOCK)
        ]
        files, space, seconds = [
            None if limit == resource.RLIM_INFINITY else bounded_amount(limit)
            for limit, _ in map(resource.getrlimit, (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_CPU))
        ]
    except (ImportError, OSError, ValueError):
        return {}
    return {
        "memlock_bytes": soft,
        "memlock_hard_bytes": hard,
        "may_lock": bool(int(status_field(os.getpid(), "CapEff") or "0", 16) >> CAP_IPC_LOCK & 1),
        "open_files": files,
        "address_space_bytes": space,
        "cpu_seconds": seconds,
    }


def shared_memory() -> SharedMemory | None:
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return None
    return {
        "bytes": bounded_amount(room.f_blocks * room.f_frsize),
        "free_bytes": bounded_amount(room.f_bavail * room.f_frsize),
    }


def is_own_address(address: str) -> bool | None:
    """Whether a name or an address is this host's own; None if it cannot be resolved."""
    try:
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    for family, kind, _, _, target in found:
        try:
            with socket.socket(family, kind) as sock:
                sock.bind(target)
        except OSError:
            continue  # the address is not ours, or of a version of IP that this kernel does not have
        if not bind_proves_nothing(str(target[0]), family == socket.AF_INET6):
            return True
    return False


def look(arguments: dict[str, Any]) -> HostFacts:
    facts: HostFacts = {
        "hostname": os.uname().nodename,
        "interfaces": interface_facts(),
        "limits": login_limits(),
        "shm": shared_memory(),
        "port_range": read("/proc/sys/net/ipv4/ip_local_port_range"),
        "asks_ecn": read("/proc/sys/net/ipv4/tcp_ecn") == "1",
    }
    if "address" in arguments:
        facts["own"] = is_own_address(arguments["address"])
    return facts
