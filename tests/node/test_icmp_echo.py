"""Echoes over our own sockets, in the lab: how many of each size come back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab import Lab

import runbook.node

pytestmark = pytest.mark.lab

CODE = """
import json, sys, types
for name, text in json.loads(sys.argv[1]).items():
    sys.modules[name] = types.ModuleType(name)
    exec(text, sys.modules[name].__dict__)
from runbook.node.icmp_echo import send_echoes
from runbook.node.event_loop import EventLoop
print(json.dumps(send_echoes(EventLoop(), json.loads(sys.argv[2]), 20)))
"""


def echoed(lab: Lab, sizes: dict[str, int], user: str = "root") -> dict[str, dict[str, dict[str, float]]]:
    node = Path(runbook.node.__file__).parent
    parts = {f"runbook.node.{name}": (node / f"{name}.py").read_text() for name in ("event_loop", "icmp_echo")}
    arguments = [json.dumps(parts), json.dumps(sizes)]
    done = lab["node-a"].run([lab.python_without_torch, "-c", CODE, *arguments], user=user)
    found: dict[str, dict[str, dict[str, float]]] = json.loads(done.stdout)
    return found


def test_everybody_answers(two_hosts: Lab) -> None:
    other = two_hosts["node-b"].address
    found = echoed(two_hosts, {other: 1472, "127.0.0.1": 1472})
    assert set(found) == {other, "127.0.0.1"}
    assert found[other]["small"]["sent"] == found[other]["small"]["received"] == 20
    assert found[other]["full"]["received"] == 5
    assert found[other]["small"]["ms"] > 0


@pytest.mark.parametrize(
    ("rule", "small", "full"),
    [
        ("icmp type echo-request drop", 0, 0),
        ("icmp type echo-request meta length 1000-65535 drop", 20, 0),
        ("icmp type echo-request numgen inc mod 5 0 drop", 16, 4),
    ],
)
def test_what_does_not_come_back_is_counted(two_hosts: Lab, rule: str, small: int, full: int) -> None:
    host = two_hosts["node-b"]
    host.run(
        "nft 'add table inet t; add chain inet t c { type filter hook input priority 0; }; "
        f"add rule inet t c {rule}'",
        user="root",
    )
    found = echoed(two_hosts, {host.address: 1472, "127.0.0.1": 1472})
    assert [found["127.0.0.1"][size]["received"] for size in ("small", "full")] == [20, 5]
    assert found[host.address]["small"]["received"] + found[host.address]["full"]["received"] == small + full
    assert ("ms" in found[host.address]["small"]) is (small > 0)


def test_a_size_that_the_link_does_not_carry_does_not_arrive(two_hosts: Lab) -> None:
    found = echoed(two_hosts, {two_hosts["node-b"].address: 2000})[two_hosts["node-b"].address]
    assert (found["small"]["received"], found["full"]["sent"], found["full"]["received"]) == (20, 5, 0)


def test_nothing_is_said_where_we_may_not(two_hosts: Lab) -> None:
    two_hosts["node-a"].run("sysctl -qw net.ipv4.ping_group_range='1 0'", user="root")
    assert echoed(two_hosts, {two_hosts["node-b"].address: 1472}, user=two_hosts.user) == {}
