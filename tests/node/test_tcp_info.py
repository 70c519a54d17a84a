"""What is read of `ss`, from outputs of several kernels."""

from __future__ import annotations

import pytest

from runbook.node import tcp_info

SAID = """\
ESTAB 0      1448   10.0.0.1:34894 10.0.0.2:22 ino:929514 sk:107e cgroup:/ <->
\t ts sack cubic wscale:10,10 bytes_sent:22056 bytes_acked:22057 bytes_received:4361 busy:80ms rwnd_limited:30ms(37.5%)
ESTAB 0 0 [::ffff:10.0.0.1]:29500 [::ffff:10.0.0.3]:40000 uid:1000 ino:7 sk:2 <->
\t cubic bytes_acked:100 bytes_received:5
ESTAB 0 0 [fe80::1%eth0]:1 [fe80::2%eth0]:2 ino:8 sk:3 <->
\t cubic bytes_retrans:9 busy:12ms sndbuf_limited:4ms(1.0%)
ESTAB 0 0 10.0.0.1:1
"""


def test_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_info, "run_if_installed", lambda *_: {"code": 0, "out": SAID})
    found = tcp_info.tcp_connections()
    assert found is not None
    assert {inode: (one.remote, one.queued, one.acked, one.received, one.busy_ms) for inode, one in found.items()} == {
        "929514": ("10.0.0.2", 1448, 22057, 4361, 50),
        "7": ("10.0.0.3", 0, 100, 5, 0),
        "8": ("fe80::2", 0, 0, 0, 12),
    }


def test_without_ss_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_info, "run_if_installed", lambda *_: {"code": None, "out": ""})
    assert tcp_info.tcp_connections() is None
    assert tcp_info.sent_to_each_address(None, {}, set()) is None


def test_what_was_sent_meanwhile_is_added_up_by_the_other_end() -> None:
    def counted(remote: str, acked: int, busy: int) -> tcp_info.TcpInfo:
        return tcp_info.TcpInfo(remote, 0, {"bytes_acked": acked, "busy": busy})

    before = {"1": counted("b", 100, 1000), "2": counted("b", 0, 0), "9": counted("b", 0, 0)}
    after = {"1": counted("b", 600, 3000), "2": counted("b", 50, 500), "3": counted("c", 7, 0), "9": counted("b", 1, 9)}
    assert tcp_info.sent_to_each_address(before, after, {"1", "2", "3"}) == {
        "b": {"bytes": 550, "busy_s": 2.0},
        "c": {"bytes": 7, "busy_s": 0.0},
    }
