"""Is the rendezvous address ours, and are the ports free? A real bind, and the name of whoever sits on a port.

Argument, JSON: {"address": str or null, "ports": [int]}. Says one message:
{"address": {...} or null, "ports": {port: {"free": true} or {"free": false, "errno": str, "holder": {...} or null}}}.
"""

import errno
import json
import os
import re
import socket
import sys

from tool import find, run, say

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
                local.append(target[0])
            except OSError:
                pass
    return {"resolved": resolved, "local": bool(local)}


def try_bind(port):
    """Bind as the store does: all addresses, IPv6 and IPv4, so that a listener on one address is met too."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # no IPv6 here
        with sock:
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((address, port))
                sock.listen(1)
            except OSError as error:
                if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    continue  # IPv6 is switched off
                return {"free": False, "errno": errno.errorcode.get(error.errno, str(error)), "holder": holder(port)}
    return {"free": True}


def holder(port):
    """Who has the port: user from the kernel's socket table, process from /proc, or from `sudo -n ss`."""
    user, inodes, where, state = None, set(), None, None
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path) as file:
                rows = file.read().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if int(fields[1].rpartition(":")[2], 16) != port or (inodes and fields[3] != "0A"):
                continue
            inodes.add(fields[9])
            user, state, where = int(fields[7]), fields[3], fields[1]
    found = {"uid": user, "user": account(user), "pid": None, "command": None, "run_id": None}
    found["listening"] = state == "0A"
    found["local"] = where
    pid = process_with(inodes - {"0"}) or by_ss(port)
    if pid:
        found["pid"] = pid
        found["command"] = command(pid)
        found["run_id"] = run_of(pid)
    return found


def account(uid):
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError, TypeError):
        return None


def process_with(inodes):
    wanted = {"socket:[%s]" % inode for inode in inodes}
    for name in os.listdir("/proc"):
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


def command(pid):
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()[:200]
    except OSError:
        return None


def run_of(pid):
    """The run a leftover of ours belongs to."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            for entry in file.read().split(b"\0"):
                if entry.startswith(b"RUNBOOK_RUN_ID="):
                    return entry.partition(b"=")[2].decode()
    except OSError:
        pass
    return None


def look(arguments):
    return {
        "address": own_address(arguments["address"]) if arguments["address"] else None,
        "ports": {str(port): try_bind(port) for port in arguments["ports"]},
    }


if __name__ == "__main__":
    say(look(json.loads(sys.argv[1])))
