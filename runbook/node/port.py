"""Whether the rendezvous address is ours, and the ports are free. A real bind, and the process that holds a port.

Argument, JSON: {"address": str or null, "speaks": the address that peers dial here, "ports": [int]}. Says one message:
{"address": {...} or null, "ports": {port: {"free": true} or {"free": false, "errno": str, "holder": {...} or null}},
"unprivileged": the first port that anybody may bind, or null}.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket

from runbook.node.proc import (
    LISTEN,
    TIME_WAIT,
    account,
    bind_proves_nothing,
    command,
    pids,
    read,
    run_of,
    sockets,
    stat,
    tcp_sockets,
)
from runbook.node.tools import find, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from runbook.transport.node_answers import Holder, OwnAddress, PortAnswer, PortState

USERS = re.compile(r'\("((?:[^"\\]|\\.)*)",pid=(\d+)')


def own_address(address: str) -> OwnAddress:
    """Whether the address, or what the name resolves to, is on an interface here: what cannot be bound is not."""
    try:
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
    except OSError as error:
        return {"resolved": None, "error": str(error), "local": False}
    resolved = sorted({str(info[4][0]) for info in found})
    local = []
    for family, kind, _, _, target in found:
        with socket.socket(family, kind) as sock:
            try:
                sock.bind((target[0], 0) + tuple(target[2:]))
            except OSError:
                continue
        if for_one(family, target) and not bind_proves_nothing(str(target[0]), family == socket.AF_INET6):
            local.append(target[0])
    return {"resolved": resolved, "local": bool(local)}


def for_one(family: int, target: tuple[Any, ...]) -> bool:
    """Whether an address that can be bound is one machine's: broadcast and multicast addresses can be bound as well."""
    if ipaddress.ip_address(target[0].partition("%")[0]).is_multicast:
        return False
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target[0], 9) + tuple(target[2:]))
        except PermissionError:
            return False  # the kernel refuses to connect to a broadcast address unless asked to
        except OSError:
            pass
    return True


def speaks_ipv6(address: str) -> bool:
    """Whether all that this address or name means here is IPv6."""
    try:
        return all(info[0] == socket.AF_INET6 for info in socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM))
    except OSError:
        return False


def try_bind(port: int, ipv6: bool) -> PortState:
    """Bind as torch's store does: all addresses, so that a listener on one of them is met too.

    It asks for a socket of both families and makes do with one for IPv4: a listener for IPv6 alone only blocks a job
    that uses IPv6.
    """
    sock = socket.socket(socket.AF_INET6 if ipv6 else socket.AF_INET, socket.SOCK_STREAM)
    with sock:
        if ipv6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("::" if ipv6 else "0.0.0.0", port))
            sock.listen(1)
        except OSError as error:
            return {"free": False, "errno": errno.errorcode.get(error.errno or 0, str(error)), "holder": holder(port)}
    return {"free": True}


def holder(port: int) -> Holder:
    """The holder of the port: user from the kernel's socket table, process from /proc, or from `sudo -n ss`.

    `listens` is the address of a listener, `peer` the far end of a connection; neither: it is bound, and that is all.
    """
    rows = [row for row in tcp_sockets() if row.port == port and row.state != TIME_WAIT]
    rows = [row for row in rows if row.state == LISTEN] or rows
    found: Holder = {
        "uid": None,
        "user": None,
        "pid": None,
        "command": None,
        "run_id": None,
        "listens": None,
        "peer": None,
    }
    if rows:
        row = rows[0]
        found["uid"], found["user"] = row.uid, account(row.uid)
        if row.state == LISTEN:
            found["listens"] = written(*row.local)
        else:
            found["peer"] = written(*row.remote)
    inodes = {row.inode for row in rows} - {"0"}
    pid = next((pid for pid in pids() if inodes and inodes & sockets(pid)), None) or (by_ss(port) if rows else None)
    if pid:
        found["pid"], found["command"], found["run_id"] = pid, command(pid), run_of(pid)
        found["left_behind"] = left_behind(pid)
        found["ours"] = found["uid"] == os.getuid() or os.getuid() == 0
    return found


def written(address: str, port: int) -> str:
    return ("[%s]:%d" if ":" in address else "%s:%d") % (address, port)


def by_ss(port: int) -> int | None:
    """Only root sees another user's process."""
    ss, sudo = find("ss"), find("sudo")
    if not ss or not sudo:
        return None
    match = USERS.search(run([ss, "-Htanp", "sport", "=", ":%d" % port], 3, sudo=sudo).get("out", ""))
    return int(match.group(2)) if match else None


def left_behind(pid: int) -> bool:
    """Whether this process of a run is left behind: its supervisor is gone, and init has adopted it."""
    for _ in range(64):
        its = stat(pid)
        if run_of(pid) is None:
            return its is not None and its.comm.startswith(("systemd", "init"))
        if its is None or its.parent <= 1:
            return True
        pid = its.parent
    return False


def look(arguments: dict[str, Any]) -> PortAnswer:
    ipv6 = speaks_ipv6(arguments["speaks"])
    start = read("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    return {
        "address": own_address(arguments["address"]) if arguments["address"] else None,
        "ports": {str(port): try_bind(port, ipv6) for port in arguments["ports"]},
        "unprivileged": int(start) if start else None,
    }
