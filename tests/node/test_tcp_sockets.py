"""The kernel's table of TCP sockets."""

from __future__ import annotations

import pytest

from runbook.node import proc

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
ROW = "   0: 0100007F:{port} {remote} {state} 00000000:00000000 00:00000000 00000000  1000 0 {inode} 1 0000 100 0 0 10 0\n"


def row(port: str, state: str, inode: int, remote: str = "00000000:0000") -> str:
    return ROW.format(port=port, remote=remote, state=state, inode=inode)


def test_a_socket_that_the_kernel_lists_twice_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does so where another one is opened between two pages of its answer."""
    ended = "06"
    table = HEAD + "".join(
        [
            row("1F90", proc.LISTEN, 7),
            row("1F91", proc.LISTEN, 8),
            row("1F90", proc.LISTEN, 7),
            row("1F90", proc.LISTEN, 9),  # another process of SO_REUSEPORT
            row("1F90", ended, 0, "0200007F:0001"),
            row("1F90", ended, 0, "0200007F:0002"),
        ]
    )
    monkeypatch.setattr(proc, "read", {"/proc/net/tcp": table}.get)
    found = [(one.port, one.state, one.inode, one.remote) for one in proc.tcp_sockets()]
    nowhere = ("0.0.0.0", 0)
    assert found == [
        (8080, proc.LISTEN, "7", nowhere),
        (8081, proc.LISTEN, "8", nowhere),
        (8080, proc.LISTEN, "9", nowhere),
        (8080, ended, "0", ("127.0.0.2", 1)),
        (8080, ended, "0", ("127.0.0.2", 2)),
    ]
