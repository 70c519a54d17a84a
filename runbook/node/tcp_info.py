"""The kernel's counters of each established TCP connection, as `ss` shows them."""

from __future__ import annotations

import re

from runbook.node.tools import run_if_installed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runbook.transport.node_answers import SentTo

SS_TIMEOUT_S = 2  # seconds that `ss` may take
SOCKET_COUNTER = re.compile(r"\b(bytes_acked|bytes_received|busy|rwnd_limited|ino):(\d+)")


class TcpInfo:
    """One connection. `acked`, `received`: bytes so far; `queued`: bytes in the send queue; `busy_ms`: milliseconds so
    far in which sent data was not acknowledged yet, less those in which the program at the other end did not read."""

    __slots__ = ("acked", "busy_ms", "queued", "received", "remote")

    def __init__(self, remote: str, queued: int, counted: dict[str, int]) -> None:
        self.remote = remote
        self.queued = queued
        self.acked = counted.get("bytes_acked", 0)
        self.received = counted.get("bytes_received", 0)
        self.busy_ms = max(0, counted.get("busy", 0) - counted.get("rwnd_limited", 0))


def tcp_connections() -> dict[str, TcpInfo] | None:
    """The established TCP connections by the inode of their socket; None if `ss` is missing or fails."""
    answer = run_if_installed("ss", ["-tineH"], SS_TIMEOUT_S)
    if answer.get("code") != 0:
        return None
    found = {}
    for block in re.split(r"\n(?=\S)", answer["out"]):
        fields = block.split(None, 5)  # state, receive queue, send queue, this end, the other end
        counted = {name: int(count) for name, count in SOCKET_COUNTER.findall(block)}
        if len(fields) > 4 and fields[2].isdecimal() and "ino" in counted:
            remote = fields[4].rpartition(":")[0].strip("[]").partition("%")[0]
            remote = remote[7:] if remote.startswith("::ffff:") else remote
            found[str(counted["ino"])] = TcpInfo(remote, int(fields[2]), counted)
    return found


def sent_to_each_address(
    before: dict[str, TcpInfo] | None, after: dict[str, TcpInfo] | None, ours: set[str]
) -> dict[str, SentTo] | None:
    """By the address of the other end, what the sockets in `ours` sent meanwhile; None if not known. `busy_s`: of the
    connection that was busy longest."""
    if before is None or after is None:
        return None
    found: dict[str, SentTo] = {}
    for inode in ours & set(after):
        now, then = after[inode], before.get(inode)
        its = found.setdefault(now.remote, {"bytes": 0, "busy_s": 0.0})
        its["bytes"] += max(0, now.acked - (then.acked if then else 0))
        its["busy_s"] = max(its["busy_s"], (now.busy_ms - (then.busy_ms if then else 0)) / 1000.0)
    return found
