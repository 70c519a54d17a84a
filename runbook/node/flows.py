"""The TCP connections of a run's ranks, as this node's kernel sees them: which stand still, and where each one listens.

Argument: {"run_id": str}. Gives {"connections": [{"local", "local_port", "remote", "remote_port", "pid", "unacked"
(bytes sent and not acknowledged), "unread" (bytes that arrived and were not read), "resent" (how often in a row the
oldest of them was sent again)}], "listening": [ports]}. Only established connections, none on loopback.
"""

from __future__ import annotations

from runbook.node.proc import (
    ESTABLISHED,
    INODE,
    LISTEN,
    LOCAL,
    QUEUES,
    REMOTE,
    RESENT,
    RUN_ID_VARIABLE,
    STATE,
    TIMER,
    endpoint,
    sockets,
    tagged,
    tcp,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from runbook.transport.answers import Flows, TcpConnection

RETRANSMITTING = "01"


def look(arguments: dict[str, Any]) -> Flows:
    inodes = sockets_of(arguments["run_id"])
    connections: list[TcpConnection] = []
    listening = set()
    for row in tcp():
        pid = inodes.get(row[INODE])
        if pid is None:
            continue
        local, local_port = endpoint(row[LOCAL])
        if row[STATE] == LISTEN:
            listening.add(local_port)
        remote, remote_port = endpoint(row[REMOTE])
        if row[STATE] != ESTABLISHED or remote.startswith("127.") or remote == "::1":
            continue
        unacked, _, unread = row[QUEUES].partition(":")
        connections.append(
            {
                "local": local,
                "local_port": local_port,
                "remote": remote,
                "remote_port": remote_port,
                "pid": pid,
                "unacked": int(unacked, 16),
                "unread": int(unread, 16),
                "resent": int(row[RESENT], 16) if row[TIMER].partition(":")[0] == RETRANSMITTING else 0,
            }
        )
    return {"connections": connections, "listening": sorted(listening)}


def sockets_of(run_id: str) -> dict[str, int]:
    """inode -> pid of every socket that a process of this run holds."""
    return {inode: pid for pid in tagged({RUN_ID_VARIABLE: run_id}) for inode in sockets(pid)}
