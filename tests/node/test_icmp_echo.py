"""Echoes over our own sockets, in the lab: whom all come back from is known at once, all others are left to `ping`."""

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
    "rule",
    [
        "icmp type echo-request drop",
        "icmp type echo-request meta length 1000-65535 drop",
        "meta l4proto icmp numgen inc mod 5 0 drop",
    ],
)
def test_who_does_not_answer_all_is_left_out(two_hosts: Lab, rule: str) -> None:
    host = two_hosts["node-b"]
    host.run(
        "nft 'add table inet t; add chain inet t c { type filter hook input priority 0; }; "
        f"add rule inet t c {rule}'",
        user="root",
    )
    assert echoed(two_hosts, {host.address: 1472, "127.0.0.1": 1472}).keys() == {"127.0.0.1"}


def test_a_size_that_the_link_does_not_carry_is_left_out(two_hosts: Lab) -> None:
    assert echoed(two_hosts, {two_hosts["node-b"].address: 2000}) == {}


def test_nothing_is_said_where_we_may_not(two_hosts: Lab) -> None:
    two_hosts["node-a"].run("sysctl -qw net.ipv4.ping_group_range='1 0'", user="root")
    assert echoed(two_hosts, {two_hosts["node-b"].address: 1472}, user=two_hosts.user) == {}
