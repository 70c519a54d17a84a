"""Is the rendezvous address this node's own, and are ports free? Tried by a real bind; names a taken port's process.

Argument, JSON: {"address": str or null, "speaks": the address that peers dial here, "ports": [int]}. Says one message:
{"address": {...} or null, "ports": {port: {"free": true} or {"free": false, "errno": str, "holder": {...} or null}},
"unprivileged": the first port that any user may bind, or null}.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket

from runbook.node.proc import (
    JOB_VARIABLE,
    LISTEN,
    TIME_WAIT,
    account_name,
    all_pids,
    bind_proves_nothing,
    command_line,
    process_run_id,
    process_stat,
    process_variable,
    read,
    socket_inodes,
    tcp_sockets,
)
from runbook.node.tools import find_tool, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from runbook.node.proc import TcpSocket
    from runbook.transport.node_answers import Holder, OwnAddress, PortAnswer, PortState

SS_USER = re.compile(r'\("((?:[^"\\]|\\.)*)",pid=(\d+)')


def own_address_facts(address: str) -> OwnAddress:
    """Whether the address, or an address that the name resolves to, is on an interface here: it can be bound, and is
    no broadcast or multicast address."""
    try:
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return {"resolved": None, "error": str(error), "local": False}
    resolved = sorted({str(info[4][0]) for info in found})
    local = []
    for family, kind, _, _, target in found:
        try:
            with socket.socket(family, kind) as sock:
                sock.bind((target[0], 0) + tuple(target[2:]))
        except OSError:
            continue  # the address is not ours, or of a version of IP that this kernel does not have
        if is_unicast_address(family, target) and not bind_proves_nothing(str(target[0]), family == socket.AF_INET6):
            local.append(target[0])
    return {"resolved": resolved, "local": bool(local)}


def is_unicast_address(family: int, target: tuple[Any, ...]) -> bool:
    """Whether an address belongs to one machine: broadcast and multicast addresses can be bound as well."""
    if ipaddress.ip_address(target[0].partition("%")[0]).is_multicast:
        return False
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target[0], 9) + tuple(target[2:]))
        except PermissionError:
            return False  # the kernel refuses to connect to a broadcast address without SO_BROADCAST
        except OSError:
            pass
    return True


def resolves_only_to_ipv6(address: str) -> bool:
    """Whether this address, or all addresses that this name resolves to here, are IPv6."""
    try:
        return all(info[0] == socket.AF_INET6 for info in socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return False


def socket_to_bind(ipv6: bool) -> socket.socket:
    """A TCP socket: of IPv6 if that is wanted and this kernel has it, else of IPv4."""
    if ipv6:
        try:
            return socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        except OSError:
            pass
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM)


def try_bind(port: int, ipv6: bool) -> str | None:
    """Binds a port as torch's store does: on all addresses, so that a listener on any of them is in the way. The name
    of the error, or None.
    With `ipv6` the socket serves both families if the kernel has IPv6. A listener of another program for IPv6 alone
    only blocks a job that uses IPv6.
    """
    with socket_to_bind(ipv6) as sock:
        ipv6 = sock.family == socket.AF_INET6
        if ipv6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("::" if ipv6 else "0.0.0.0", port))
            sock.listen(1)
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, str(error))
    return None


def port_holders(ports: list[int]) -> dict[int, Holder]:
    """The holder of each port: the user by the kernel's socket table, the process by /proc or by `sudo -n ss`. Each is
    read once for all ports: there may be hundreds of ports and thousands of processes."""
    if not ports:
        return {}
    rows: dict[int, list[TcpSocket]] = {port: [] for port in ports}
    for row in tcp_sockets():
        if row.port in rows and row.state != TIME_WAIT:
            rows[row.port].append(row)
    for port, those in rows.items():
        rows[port] = [row for row in those if row.state == LISTEN] or those
    inodes = {row.inode: port for port, those in rows.items() for row in those if row.inode != "0"}
    found: dict[int, int] = {}
    for pid in all_pids() if inodes else ():
        for inode in inodes.keys() & socket_inodes(pid):
            found.setdefault(inodes[inode], pid)
        if len(found) == len(set(inodes.values())):
            break
    hidden = [port for port, those in rows.items() if those and port not in found]
    if hidden:
        found.update(pids_from_ss(hidden))
    return {port: port_holder_facts(those, found.get(port)) for port, those in rows.items()}


def port_holder_facts(rows: list[TcpSocket], pid: int | None) -> Holder:
    """The facts about the holder of a port. `listens`: the address of a listener; `peer`: the far end of a connection;
    with neither, the port is only bound."""
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
        found["uid"], found["user"] = row.uid, account_name(row.uid)
        if row.state == LISTEN:
            found["listens"] = endpoint_text(*row.local)
        else:
            found["peer"] = endpoint_text(*row.remote)
    if pid:
        found["pid"], found["command"], found["run_id"] = (
            pid,
            command_line(pid),
            process_run_id(pid) or process_variable(pid, JOB_VARIABLE),
        )
        found["left_behind"] = left_behind(pid)
        found["ours"] = found["uid"] == os.getuid() or os.getuid() == 0
    return found


def endpoint_text(address: str, port: int) -> str:
    return ("[%s]:%d" if ":" in address else "%s:%d") % (address, port)


def pids_from_ss(ports: list[int]) -> dict[int, int]:
    """By port, the pid of its process, by `sudo -n ss`: only root sees the processes of other users."""
    ss, sudo = find_tool("ss"), find_tool("sudo")
    if not ss or not sudo:
        return {}
    wanted = " or ".join("sport = :%d" % port for port in ports)
    found: dict[int, int] = {}
    for line in run([ss, "-Htanp", "( %s )" % wanted], 3, sudo=sudo).get("out", "").splitlines():
        words, match = line.split(), SS_USER.search(line)
        port = words[3].rpartition(":")[2] if match and len(words) > 3 else ""
        if match and port.isdecimal():
            found.setdefault(int(port), int(match.group(2)))
    return found


def left_behind(pid: int) -> bool:
    """Whether a process of a run is left behind: the run's supervisor is gone, and init has adopted the process."""
    for _ in range(64):
        its = process_stat(pid)
        if process_run_id(pid) is None:
            return its is not None and its.comm.startswith(("systemd", "init"))
        if its is None or its.parent <= 1:
            return True
        pid = its.parent
    return False


def look(arguments: dict[str, Any]) -> PortAnswer:
    ipv6 = resolves_only_to_ipv6(arguments["speaks"])
    errors = {port: try_bind(port, ipv6) for port in arguments["ports"]}
    held = port_holders([port for port, error in errors.items() if error is not None])
    states: dict[str, PortState] = {
        str(port): {"free": True} if error is None else {"free": False, "errno": error, "holder": held[port]}
        for port, error in errors.items()
    }
    start = read("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    return {
        "address": own_address_facts(arguments["address"]) if arguments["address"] else None,
        "ports": states,
        "unprivileged": int(start) if start else None,
    }
