"""What the kernel takes for its own, where a bind cannot tell."""

from __future__ import annotations

import pytest

from runbook.node import proc
from runbook.node.proc import bind_proves_nothing, is_local_address


@pytest.mark.parametrize(
    ("address", "local"),
    [("127.0.0.1", True), ("127.9.8.7", True), ("192.0.2.1", False), ("2001:db8::1", False)],
)
def test_the_tables_of_this_machine(address: str, local: bool) -> None:
    assert is_local_address(address) is local


def test_a_bind_proves_nothing_where_any_address_can_be_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/sys/net/ipv4/ip_nonlocal_bind": "1",
        "/proc/sys/net/ipv6/ip_nonlocal_bind": "0",
        "/proc/net/fib_trie": "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.0.0.0\n        /24 link UNICAST\n"
        "     |-- 10.0.0.7\n        /32 host LOCAL\n     |-- 10.1.0.0\n        /16 host LOCAL",
    }
    monkeypatch.setattr(proc, "read", files.get)
    assert bind_proves_nothing("10.0.0.8", ipv6=False)
    assert not bind_proves_nothing("10.0.0.7", ipv6=False)
    assert not bind_proves_nothing("10.1.2.3", ipv6=False), "a whole network of its own, as of an anycast service"
    assert not bind_proves_nothing("fd00::1", ipv6=True), "there a bind does prove it"
