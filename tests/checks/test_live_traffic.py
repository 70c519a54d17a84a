"""between: real connections of real programs on real hosts, and a rule that appears while they run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lab import Lab
from lab.fault import filter_rule, listener
from profiles import one_in

from runbook.checks.context import Context, Run
from runbook.checks.network import live_traffic
from runbook.checks.network.live_traffic import Between, traffic_between_nodes
from runbook.checks.network.packet_filters import rules_of
from runbook.files.inventory import load_inventory
from runbook.firewall.collected_rules import Evidence
from runbook.transport.node_sessions import Site
from runbook.transport.session import Session

from .made_up_cluster import machine

pytestmark = pytest.mark.lab

SERVE = """
import socket, sys
server = socket.create_server(("0.0.0.0", 47123))
print("up", flush=True)
sock, _ = server.accept()
while sock.recv(65536): pass
"""
SEND = """
import socket, time
sock = socket.create_connection(("{address}", 47123))
print("up", flush=True)
while True:
    sock.send(b"x" * 1000)
    time.sleep(0.01)
"""


@contextmanager
def job(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    """A stage at work on all hosts of the lab."""
    monkeypatch.setenv("HOME", str(lab.home))
    inventory, _ = load_inventory(lab.inventory())
    site = Site("run-between")
    try:
        site.open(inventory.nodes)
        assert not site.failures
        facts = {node.name: machine(node.address) for node in inventory.nodes}
        yield Context(Run("run-between", Path("/nowhere"), site, facts), inventory, "full", 0.0, lambda *_, **__: None)
    finally:
        site.close()


def stream(lab: Lab, at: Context) -> None:
    """node-a sends to node-b without end, as ranks do."""
    for name, code in (("node-b", SERVE), ("node-a", SEND.format(address=lab["node-b"].address))):
        session: Session = at.run.site.sessions[name]
        said: list[str] = []
        session.start([lab.python_without_torch, "-c", code], timeout_s=60, on_log=said.append)
        deadline = time.monotonic() + 20
        while "up" not in "".join(said):
            assert time.monotonic() < deadline, f"{name}: {said}"
            time.sleep(0.01)


def test_nothing_is_between_healthy_nodes(two_hosts: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with job(two_hosts, monkeypatch) as at:
        listener(two_hosts["node-a"], 29500)
        stream(two_hosts, at)
        assert traffic_between_nodes(at) == Between()


@pytest.mark.parametrize(
    ("rule", "cause", "node"),
    one_in(
        3,
        [
            ("tcp dport 29500 drop", "firewall-drop", "node-a"),  # only the rendezvous port
            ("tcp dport 32768-60999 ct state new drop", "data-ports-blocked", "node-a"),  # new connections only
            ("ct state established tcp dport != 22 reject with tcp reset", "firewall-reject", "node-a"),
            ("tcp sport 47123 drop", "firewall-drop", "node-a"),  # nothing but the one connection that is there
            ("meta length > 1400 drop", "mtu-blackhole", "node-a"),
        ],
    ),
)
def test_a_rule_that_has_just_appeared(
    two_hosts: Lab, monkeypatch: pytest.MonkeyPatch, rule: str, cause: str, node: str
) -> None:
    with job(two_hosts, monkeypatch) as at:
        listener(two_hosts["node-a"], 29500)
        stream(two_hosts, at)
        filter_rule(two_hosts[node], rule)
        time.sleep(1.5)  # as long as it takes to notice a stall
        found = traffic_between_nodes(at)
    assert set(found.findings) == {node}, found
    (finding,) = found.findings[node]
    assert finding.cause == cause
    assert rule in finding.says
    assert finding.peers == ("node-b",)
    if "47123" in rule:
        assert any("not acknowledged, sent again" in line for line in found.stalled)
    two_hosts[node].run(finding.remedy.removeprefix(f"on {node}: "), user="root")


def test_rules_that_are_late_are_waited_for_where_a_dial_fails(two_hosts: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy node the rules come after the dials have failed: without them both ends would be suspected."""
    timeouts = [0.01]  # of the first reading, which no node answers in

    def late(*arguments: Any, timeout_s: float) -> Mapping[str, Evidence | None]:
        return rules_of(*arguments, timeout_s=timeouts.pop() if timeouts else timeout_s)

    monkeypatch.setattr(live_traffic, "rules_of", late)
    with job(two_hosts, monkeypatch) as at:
        listener(two_hosts["node-a"], 29500)
        filter_rule(two_hosts["node-a"], f"ip saddr {two_hosts['node-b'].address} drop")
        found = traffic_between_nodes(at)
    assert not timeouts
    assert set(found.findings) == {"node-a"}, found
    assert found.findings["node-a"][0].cause == "firewall-drop"


def test_a_node_that_cannot_be_asked_is_not_healthy(two_hosts: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with job(two_hosts, monkeypatch) as at:
        two_hosts["node-b"].stop_sshd(sessions=True)
        time.sleep(0.5)
        found = traffic_between_nodes(at)
    assert set(found.blind) == {"node-b"}
    assert not found.findings
