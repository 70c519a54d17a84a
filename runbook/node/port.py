"""Is the rendezvous address ours, and are the ports free? A real bind, and the name of whoever sits on a port.

Argument, JSON: {"address": str or null, "speaks": the address that peers dial here, "ports": [int]}. Says one message:
{"address": {...} or null, "ports": {port: {"free": true} or {"free": false, "errno": str, "holder": {...} or null}},
"unprivileged": the first port that anybody may bind, or null}.
"""

import errno
import ipaddress
import json
import os
import re
import socket
import sys

from tool import account, command, endpoint, find, read, run, run_of, say

USERS = re.compile(r'\("((?:[^"\\]|\\.)*)",pid=(\d+)')


def own_address(address):
    """Whether the address, or what the name resolves to, is on an interface here: only then does a bind succeed."""
    try:
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
    except OSError as error:
        return {"resolved": None, "error": str(error), "local": False}
    resolved = sorted({info[4][0] for info in found})
    local = []
    for family, kind, _, _, target in found:
        with socket.socket(family, kind) as sock:
            try:
                sock.bind((target[0], 0) + tuple(target[2:]))
            except OSError:
                continue
        if for_one(family, target):
            local.append(target[0])
    return {"resolved": resolved, "local": bool(local)}


def for_one(family, target):
    """Whether an address that can be bound is one machine's: broadcast and multicast addresses can be bound as well."""
    if ipaddress.ip_address(target[0].partition("%")[0]).is_multicast:
        return False
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target[0], 9) + tuple(target[2:]))
        except PermissionError:
            return False  # to a broadcast address the kernel lets nobody connect unasked
        except OSError:
            pass
    return True


def speaks_ipv6(address):
    """Whether all that this address or name means here is IPv6."""
    try:
        return all(info[0] == socket.AF_INET6 for info in socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM))
    except OSError:
        return False


def try_bind(port, ipv6):
    """Bind as torch's store does: all addresses, so that a listener on one of them is met too.

    It asks for a socket of both families and makes do with one for IPv4: what listens for IPv6 alone is only in the way
    of a job that speaks IPv6.
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
            return {"free": False, "errno": errno.errorcode.get(error.errno, str(error)), "holder": holder(port)}
    return {"free": True}


LISTEN, TIME_WAIT = "0A", "06"


def holder(port):
    """Who has the port: user from the kernel's socket table, process from /proc, or from `sudo -n ss`.

    `listens` is the address of a listener, `peer` the far end of a connection; neither: it is bound, and that is all.
    """
    rows = []
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path) as file:
                rows += [row.split() for row in file.read().splitlines()[1:]]
        except OSError:
            continue
    rows = [row for row in rows if endpoint(row[1])[1] == port and row[3] != TIME_WAIT]
    rows = [row for row in rows if row[3] == LISTEN] or rows
    found = {"uid": None, "user": None, "pid": None, "command": None, "run_id": None, "listens": None, "peer": None}
    if rows:
        row = rows[0]
        found.update(uid=int(row[7]), user=account(int(row[7])))
        found["listens" if row[3] == LISTEN else "peer"] = written(*endpoint(row[1 if row[3] == LISTEN else 2]))
    pid = process_with({row[9] for row in rows} - {"0"}) or (by_ss(port) if rows else None)
    if pid:
        found.update(pid=pid, command=command(pid), run_id=run_of(pid), left_behind=left_behind(pid))
        found["ours"] = found["uid"] == os.getuid() or os.getuid() == 0
    return found


def written(address, port):
    return ("[%s]:%d" if ":" in address else "%s:%d") % (address, port)


def process_with(inodes):
    wanted = {"socket:[%s]" % inode for inode in inodes}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdigit():
            continue
        try:
            for descriptor in os.listdir("/proc/%s/fd" % name):
                if os.readlink("/proc/%s/fd/%s" % (name, descriptor)) in wanted:
                    return int(name)
        except OSError:
            continue
    return None


def by_ss(port):
    """Another user's process shows only to root."""
    ss, sudo = find("ss"), find("sudo")
    if not ss or not sudo:
        return None
    match = USERS.search(run([sudo, "-n", ss, "-Htanp", "sport", "=", ":%d" % port], 3).get("out", ""))
    return int(match.group(2)) if match else None


def left_behind(pid):
    """Whether nobody minds this process of a run any more: its supervisor is gone, and init has adopted it."""
    for _ in range(64):
        if run_of(pid) is None:
            return (read("/proc/%d/comm" % pid) or "").startswith(("systemd", "init"))
        status = read("/proc/%d/status" % pid) or ""
        parent = re.search(r"^PPid:\s*(\d+)", status, re.MULTILINE)
        if not parent or int(parent.group(1)) <= 1:
            return True
        pid = int(parent.group(1))
    return False


def look(arguments):
    ipv6 = speaks_ipv6(arguments["speaks"])
    start = read("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    return {
        "address": own_address(arguments["address"]) if arguments["address"] else None,
        "ports": {str(port): try_bind(port, ipv6) for port in arguments["ports"]},
        "unprivileged": int(start) if start else None,
    }


if __name__ == "__main__":
    say(look(json.loads(sys.argv[1])))
