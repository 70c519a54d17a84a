"""The TCP connections of a run's ranks, as this node's kernel sees them: which stand still, which are still being
dialled, and on which ports each rank listens.

Argument: {"run_id": str}. Gives {"connections": [{"local", "local_port", "remote", "remote_port", "pid", "rank" (null:
the process has none), "open" (false: no answer to the dial yet), "unacked" (bytes sent and not acknowledged), "unread"
(bytes that arrived and are not read), "resent" (how often in a row the oldest unacknowledged segment was sent again)}],
"listening": [{"port", "rank"}], "settings": {rank: its variables of torch, NCCL and gloo}}.
"""

from __future__ import annotations

from runbook.node.proc import (
    ESTABLISHED,
    JOB_VARIABLE,
    LISTEN,
    RUN_ID_VARIABLE,
    SYN_SENT,
    process_rank,
    settings_of_ranks,
    socket_inodes,
    tagged_pids,
    tcp_sockets,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from runbook.transport.node_answers import Listener, RankConnections, TcpConnection


def look(arguments: dict[str, Any]) -> RankConnections:
    # A process that outlives its run has the run's id only as the id of its job.
    names = (RUN_ID_VARIABLE, JOB_VARIABLE)
    processes = sorted({pid for name in names for pid in tagged_pids({name: arguments["run_id"]})}, reverse=True)
    # Descending pids: the process that opened a socket comes after children that inherited it, and counts.
    inodes = {inode: pid for pid in processes for inode in socket_inodes(pid)}
    ranks = {pid: process_rank(pid) for pid in set(inodes.values())}
    connections: list[TcpConnection] = []
    listening: list[Listener] = []
    for one in tcp_sockets():
        pid = inodes.get(one.inode)
        if pid is None:
            continue
        if one.state == LISTEN:
            listening.append({"port": one.port, "rank": ranks[pid]})
        if one.state not in (ESTABLISHED, SYN_SENT):
            continue
        local, local_port = one.local
        remote, remote_port = one.remote
        unacked, unread = one.queued
        connections.append(
            {
                "local": local,
                "local_port": local_port,
                "remote": remote,
                "remote_port": remote_port,
                "pid": pid,
                "rank": ranks[pid],
                "open": one.state == ESTABLISHED,
                "unacked": unacked,
                "unread": unread,
                "resent": one.resent,
            }
        )
    return {
        "connections": connections,
        "listening": listening,
        "settings": settings_of_ranks(reversed(processes)),
    }
