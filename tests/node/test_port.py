"""Whose an address is and who holds a port, as the node's own programs see it: also where the kernel has no IPv6."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from runbook.files.address import address_fault
from runbook.node import host_facts, mesh, port
from runbook.node.proc import all_pids

NOT_NAMES = ["gpu1..lab", "..", f"{'long' * 16}.lab"]


class WithoutIPv6(socket.socket):
    """As a kernel with `ipv6.disable=1` answers."""

    def __init__(self, family: int = -1, *of: Any, **more: Any) -> None:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        super().__init__(family, *of, **more)


def means(*addresses: str) -> Any:
    """What every name means: glibc gives addresses of both versions of IP, unless it is asked not to."""

    def look(_: str, number: int | None, *__: object, **___: object) -> list[Any]:
        both = [
            (socket.AF_INET6, (a, number or 0, 0, 0)) if ":" in a else (socket.AF_INET, (a, number or 0))
            for a in addresses
        ]
        return [(family, socket.SOCK_STREAM, 6, "", where) for family, where in both]

    return look


@pytest.mark.parametrize(
    ("addresses", "ours"),
    [
        (("127.0.0.1", "::1"), True),
        (("::1", "127.0.0.1"), True),
        (("192.0.2.9", "2001:db8::9"), False),
        (("2001:db8::9",), False),
    ],
)
def test_a_name_of_both_versions_of_ip_on_a_kernel_without_ipv6(
    addresses: tuple[str, ...], ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "socket", WithoutIPv6)
    monkeypatch.setattr(socket, "getaddrinfo", means(*addresses))
    assert port.own_address_facts("name") == {"resolved": sorted(addresses), "local": ours}
    assert host_facts.is_own_address("name") is ours
    assert port.look({"address": None, "speaks": "name", "ports": [0]})["ports"] == {"0": {"free": True}}


@pytest.mark.parametrize("name", NOT_NAMES)
def test_what_no_resolver_takes_for_a_name_means_nothing(name: str) -> None:
    """And lint says so, before a node is asked."""
    assert address_fault(name) is not None
    assert address_fault(f"{'l' * 63}.{'g' * 63}.lab.") is None
    answer = port.look({"address": name, "speaks": name, "ports": []})
    assert answer["address"] is not None
    assert (answer["address"]["resolved"], answer["address"]["local"]) == (None, False)
    assert mesh.listen_addresses(name, 0) == mesh.listen_addresses("", 0)
    with pytest.raises(socket.gaierror):
        list(mesh.Lookups().of(name, 0))


@pytest.fixture
def held() -> Iterator[list[int]]:
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(40)]
        for listener in listeners:
            listener.bind(("0.0.0.0", 0))
            listener.listen(1)
        yield [listener.getsockname()[1] for listener in listeners]


def test_the_holders_of_many_ports_are_looked_for_once(held: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """In /proc, and with `ss` for those of other users, whom it alone sees."""
    walks: list[int] = []
    asked: list[list[str]] = []

    def walk() -> list[int]:
        walks.append(1)
        return all_pids()

    def run(words: list[str], *_: object, **__: object) -> dict[str, str]:
        asked.append(words)
        lines = (
            f'LISTEN 0 1 [::]:{one} *:* users:(("x",pid={10_000 + one},fd=3))' for one in held if f":{one}" in words[-1]
        )
        return {"out": "\n".join(lines)}

    monkeypatch.setattr(port, "all_pids", walk)
    monkeypatch.setattr(port, "find_tool", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(port, "run", run)
    found = port.port_holders(held)
    assert {holder["pid"] for holder in found.values()} == {os.getpid()}
    assert {holder["listens"] for holder in found.values()} == {f"0.0.0.0:{one}" for one in held}
    assert (len(walks), asked) == (1, [])
    monkeypatch.setattr(port, "socket_inodes", lambda pid: set())
    assert {one: holder["pid"] for one, holder in port.port_holders(held).items()} == {
        one: 10_000 + one for one in held
    }
    assert (len(walks), len(asked)) == (2, 1)


def test_of_taken_ports_each_has_its_own_holder(held: list[int]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        open_port = free.getsockname()[1]
    states = port.look({"address": None, "speaks": "127.0.0.1", "ports": [*held, open_port]})["ports"]
    assert list(states) == [str(one) for one in (*held, open_port)]
    assert states[str(open_port)] == {"free": True}
    for one in held:
        state = states[str(one)]
        assert not state["free"]
        assert state["holder"]
        assert state["holder"]["listens"] == f"0.0.0.0:{one}"
