"""The TCP connections of a run's ranks, as this node's kernel sees them: which stand still, and where each one listens.

Argument: {"run_id": str}. Gives {"connections": [{"local", "local_port", "remote", "remote_port", "pid", "unacked" (bytes
sent and not acknowledged), "unread" (bytes that arrived and were not read), "resent" (how often in a row the oldest of
them was sent again)}], "listening": [ports]}. Only established connections, none on loopback.
"""

import os

from tool import endpoint

ESTABLISHED, LISTEN = "01", "0A"
RETRANSMITTING = "01"


def look(arguments):
    inodes = sockets_of(arguments["run_id"])
    connections, listening = [], set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path) as file:
                rows = file.read().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            pid = inodes.get(fields[9])
            if pid is None:
                continue
            local, local_port = endpoint(fields[1])
            if fields[3] == LISTEN:
                listening.add(local_port)
            remote, remote_port = endpoint(fields[2])
            if fields[3] != ESTABLISHED or remote.startswith("127.") or remote == "::1":
                continue
            unacked, _, unread = fields[4].partition(":")
            timer = fields[5].partition(":")[0]
            connections.append(
                {
                    "local": local,
                    "local_port": local_port,
                    "remote": remote,
                    "remote_port": remote_port,
                    "pid": pid,
                    "unacked": int(unacked, 16),
                    "unread": int(unread, 16),
                    "resent": int(fields[6], 16) if timer == RETRANSMITTING else 0,
                }
            )
    return {"connections": connections, "listening": sorted(listening)}


def sockets_of(run_id):
    """inode -> pid of every socket that a process of this run holds."""
    mark = ("RUNBOOK_RUN_ID=" + run_id).encode()
    found = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/environ" % name, "rb") as file:
                if mark not in file.read().split(b"\0"):
                    continue
            for descriptor in os.listdir("/proc/%s/fd" % name):
                target = os.readlink("/proc/%s/fd/%s" % (name, descriptor))
                if target.startswith("socket:["):
                    found[target[8:-1]] = int(name)
        except OSError:
            continue
    return found
