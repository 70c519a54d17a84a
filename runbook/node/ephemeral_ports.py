"""How many of the ports that the kernel hands out to programs which name none are taken, and by which processes? Asked
when no such port was left. Python 3.8, standard library.

Argument: {}. Gives {"low", "high": the range, or null if the kernel does not say; "reserved": how many ports of it are
not handed out, "taken": how many others cannot be bound now, "ours": how many of these this run itself holds,
"listening", "connected", "waiting": how many sockets on these ports the kernel's table lists (`waiting`: in TIME_WAIT,
held by no process any more), "holders": [{"pid", "command" (both null if only the user can be seen), "user",
"sockets"}], most sockets first}.
"""

from __future__ import annotations

import os
import re
import socket

from runbook.node.proc import (
    LISTEN,
    RUN_ID_VARIABLE,
    TIME_WAIT,
    account_name,
    all_pids,
    command_line,
    process_run_id,
    process_uid,
    read,
    socket_inodes,
    tcp_sockets,
)
from runbook.node.tools import find_tool, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from runbook.node.proc import TcpSocket
    from runbook.transport.node_answers import EphemeralPorts, SocketHolder

    View = tuple[list[tuple[int, str]], dict[int, str]]
    """The open sockets, each as (pid, inode), and by pid the network namespace of each process."""

MAX_HOLDERS = 8  # the most holders that are reported
PORT_RANGE_FILE = "/proc/sys/net/ipv4/ip_local_port_range"
RESERVED_PORTS_FILE = "/proc/sys/net/ipv4/ip_local_reserved_ports"
PROC_NET_TABLES = "tcp tcp6 udp udp6 udplite udplite6 raw raw6 icmp icmp6 unix netlink packet".split()  # of /proc/net
SOCKET_LINK = re.compile(r"/proc/(\d+)/fd/\d+ socket:\[(\d+)\]$", re.MULTILINE)  # pid and inode of a socket
NETWORK_NAMESPACE_LINK = re.compile(r"/proc/(\d+)/ns/net (net:\[\d+\])$", re.MULTILINE)  # pid and its network namespace


def look(_arguments: dict[str, Any]) -> EphemeralPorts:
    words = (read(PORT_RANGE_FILE) or "").split()
    if len(words) != 2:
        return {"low": None, "high": None}
    low, high = int(words[0]), int(words[1])
    reserved = ports_in_text(read(RESERVED_PORTS_FILE) or "") & set(range(low, high + 1))
    rows = [row for row in tcp_sockets() if low <= row.port <= high]
    taken = {port for port in range(low, high + 1) if port not in reserved and not is_port_free(port)}
    told: EphemeralPorts = {
        "low": low,
        "high": high,
        "reserved": len(reserved),
        "taken": len(taken),
        "listening": sum(row.state == LISTEN for row in rows),
        "waiting": sum(row.state == TIME_WAIT for row in rows),
    }
    told["connected"] = len(rows) - told["listening"] - told["waiting"]
    # A socket that is only bound, and neither listens nor is connected, is in no table.
    held = socket_holders(rows, bare=len(taken) > len({row.port for row in rows}))
    # Ports on which this run itself listens now are not the reason why none was left.
    ours = {
        inode for pid, inodes in held.items() for inode in inodes if process_run_id(pid) == os.environ[RUN_ID_VARIABLE]
    }
    told["ours"] = len({row.port for row in rows if row.inode in ours} & taken)
    told["holders"] = largest_socket_holders(held, {row.inode: row.uid for row in rows if row.inode != "0"}, ours)
    return told


def ports_in_text(text: str) -> set[int]:
    """The ports in a text like `8080,50000-50010`."""
    found: set[int] = set()
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        if low.isdecimal():
            found.update(range(int(low), int(high or low) + 1))
    return found


def is_port_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        try:
            sock.bind(("", port))
        except OSError:
            return False
    return True


def socket_holders(rows: list[TcpSocket], bare: bool) -> dict[int, set[str]]:
    """By pid, the inodes of these sockets that it holds; with `bare`, also of sockets that are in no table."""
    wanted = {row.inode for row in rows} - {"0"}
    listed = listed_socket_inodes() if bare else set()
    owners, networks = own_socket_view()
    if os.getuid() and (bare or not wanted <= {inode for _, inode in owners}):
        owners, networks = root_socket_view() or (owners, networks)
    found: dict[int, set[str]] = {}
    for pid, inode in owners:
        # The sockets of another network namespace are in the tables of that namespace, not missing from all.
        if inode in wanted or (bare and inode not in listed and networks.get(pid) == networks.get(os.getpid())):
            found.setdefault(pid, set()).add(inode)
    return found


def largest_socket_holders(held: dict[int, set[str]], owners: dict[str, int], ours: set[str]) -> list[SocketHolder]:
    """The processes that hold most sockets, without this run's and ended ones; and by user, the sockets whose process
    is not known. `owners`: uids by inode."""
    found: list[SocketHolder] = []
    for pid, inodes in held.items():
        line = command_line(pid)
        if line and inodes - ours:
            found.append(
                {"pid": pid, "command": line, "user": account_name(process_uid(pid)), "sockets": len(inodes - ours)}
            )
    unseen = set(owners) - {inode for inodes in held.values() for inode in inodes}
    for uid in sorted({owners[inode] for inode in unseen}):
        number = sum(owners[inode] == uid for inode in unseen)
        found.append({"pid": None, "command": None, "user": account_name(uid) or str(uid), "sockets": number})
    found.sort(key=lambda one: -one["sockets"])
    return found[:MAX_HOLDERS]


def listed_socket_inodes() -> set[str]:
    found: set[str] = set()
    for name in PROC_NET_TABLES:
        for line in (read("/proc/net/" + name) or "").splitlines()[1:]:
            found.update(line.split())  # all columns: the inode's differs by table, and no other value is as long
    return found


def own_socket_view() -> View:
    """The sockets and networks of the processes that this user may see."""
    owners: list[tuple[int, str]] = []
    networks: dict[int, str] = {}
    for pid in all_pids():
        try:
            networks[pid] = os.readlink("/proc/%d/ns/net" % pid)
        except OSError:
            continue
        owners += [(pid, inode) for inode in socket_inodes(pid)]
    return owners, networks


def root_socket_view() -> View | None:
    """The sockets and networks of all processes, by sudo; None if sudo would ask for a password."""
    sudo, tool = find_tool("sudo"), find_tool("find")
    if not sudo or not tool:
        return None
    words = ["/proc", "-mindepth", "3", "-maxdepth", "3", "(", "-path", "/proc/[0-9]*/fd/*", "-lname", "socket:*"]
    words += ["-o", "-path", "/proc/[0-9]*/ns/net", ")", "-printf", "%p %l\\n"]
    said = run([tool, *words], 4, sudo=sudo).get("out", "")
    if not said:
        return None
    owners = [(int(pid), inode) for pid, inode in SOCKET_LINK.findall(said)]
    return owners, {int(pid): network for pid, network in NETWORK_NAMESPACE_LINK.findall(said)}
