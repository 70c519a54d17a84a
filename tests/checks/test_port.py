"""port: from what a bind gave on the node to an outcome."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from runbook.checks.context import Facts
from runbook.checks.port import MAX_BOUND_PORTS, port_outcome, promised_ports, taken_port_finding
from runbook.model.inventory import Container, Inventory
from runbook.model.verdict import Outcome, Verdict

from .made_up_cluster import A, B, cluster, context, facts_of, machine, node, with_ports

FREE = {"free": True}
LOCAL = {"resolved": [A], "local": True}


def holder(**options: Any) -> Facts:
    found = {"uid": 1000, "user": "ana", "pid": 4711, "command": "python train.py", "run_id": None}
    return {"free": False, "errno": "EADDRINUSE", "holder": {**found, **options}}


def judged(ports: dict[str, Any], address: Facts | None = None, *, who: str = "node-a", **options: Any) -> Outcome:
    inventory: Inventory = options.pop("inventory", cluster())
    at = context(inventory, options.pop("facts", None))
    return port_outcome(at, inventory.node(who), {"address": address, "ports": ports}, inventory.rendezvous.address)


def causes(outcome: Outcome) -> list[str]:
    return [finding.cause for finding in outcome.findings]


def test_free() -> None:
    master = judged({"29500": FREE, "29501": FREE}, LOCAL)
    assert master.proof == "10.0.0.1 is on this node, rendezvous port 29500 is free, 2 ports free to bind"
    assert judged({"29500": FREE}, LOCAL).proof == "10.0.0.1 is on this node, rendezvous port 29500 is free"
    assert judged({"29501": FREE}, who="node-b").proof == "1 port free to bind"


def test_whoever_holds_the_port_is_named() -> None:
    outcome = judged({"29500": holder()}, LOCAL)
    assert (outcome.verdict, causes(outcome)) == (Verdict.FAIL, ["port-in-use"])
    (finding,) = outcome.findings
    assert "the rendezvous port 29500 of node-a is taken by process 4711 of ana: python train.py" in finding.says
    assert "kill 4711" in finding.remedy
    assert "rendezvous: {port: …}" in finding.remedy


def test_a_holder_that_shows_no_command_is_named_by_its_number() -> None:
    (finding,) = judged({"29500": holder(command=None)}, LOCAL).findings
    assert (finding.cause, "process 4711 of ana: `sudo ps -fp 4711` there shows which" in finding.says) == (
        "port-in-use",
        True,
    )


def test_a_leftover_of_ours_is_known() -> None:
    (goes_on,) = judged({"29500": holder(run_id="20261121-1")}, LOCAL).findings
    assert "it belongs to runbook's run 20261121-1, which still goes on" in goes_on.says
    assert "`runbook stop 20261121-1`" in goes_on.remedy
    assert goes_on.remedy.startswith("wait until that run is over")
    (left,) = judged({"29500": holder(run_id="20261121-1", left_behind=True)}, LOCAL).findings
    assert "left behind by runbook's run 20261121-1" in left.says
    assert left.remedy == "on node-a: `kill 4711`"


def test_another_users_process_is_ended_by_root() -> None:
    (finding,) = judged({"29500": holder(ours=False)}, LOCAL).findings
    assert "`sudo kill 4711`" in finding.remedy


def test_where_it_listens_is_told_and_that_loopback_is_enough_to_be_in_the_way() -> None:
    (everywhere,) = judged({"29500": holder(listens="0.0.0.0:29500")}, LOCAL).findings
    assert everywhere.evidence == ("bind(29500): EADDRINUSE", "it listens on 0.0.0.0:29500")
    for where in ("127.0.0.1:29500", "[::1]:29500"):
        (alone,) = judged({"29500": holder(listens=where)}, LOCAL).findings
        assert "a listener on loopback alone is in its way too" in alone.evidence[-1]
    (client,) = judged({"29500": holder(peer="10.0.0.2:22")}, LOCAL).findings
    assert client.evidence[-1] == "it is the near end of a connection to 10.0.0.2:22"


@pytest.mark.parametrize(
    ("held", "who"),
    [
        (holder(pid=None, listens="0.0.0.0:29500"), "a process of ana"),
        (holder(pid=None, listens="0.0.0.0:29500", user=None), "a process of uid 1000"),
        (holder(pid=None, peer="10.0.0.2:22", user=None, uid=0), "a process of uid 0"),
        (holder(pid=None, user=None, uid=None), "a process that has bound it and neither listens nor connects"),
        ({"free": False, "errno": "EADDRINUSE", "holder": None}, "which no table of the kernel shows"),
    ],
)
def test_a_process_that_we_may_not_see(held: Facts, who: str) -> None:
    (finding,) = judged({"29500": held}, LOCAL).findings
    assert who in finding.says
    assert "sudo ss -Htanp" in finding.remedy
    assert "sport = :29500" in finding.remedy


def test_a_promised_port_is_not_the_rendezvous_port() -> None:
    (finding,) = judged({"29505": holder()}, who="node-b").findings
    assert "the port 29505 of node-b" in finding.says
    assert "network: {ports: …}" in finding.remedy


def test_privileged() -> None:
    outcome = judged({"80": {"free": False, "errno": "EACCES", "holder": None}}, LOCAL, inventory=cluster(port=80))
    assert causes(outcome) == ["port-privileged-or-reserved"]
    assert "ports below 1024 are root's" in outcome.findings[0].says


@pytest.mark.parametrize(
    ("errno", "port", "cause", "says"),
    [
        ("EACCES", 29500, "port-privileged-or-reserved", "its kernel refuses that with EACCES, as SELinux"),
        ("EPERM", 29500, "port-privileged-or-reserved", "its kernel refuses that with EPERM"),
        ("EMFILE", 29500, "open-files-limit", "may not open more files"),
    ],
)
def test_a_port_that_nobody_holds_and_that_cannot_be_bound(errno: str, port: int, cause: str, says: str) -> None:
    (finding,) = judged({str(port): {"free": False, "errno": errno, "holder": None}}, LOCAL).findings
    assert finding.cause == cause
    assert says in finding.says
    assert "is taken by" not in finding.says


def test_where_anybody_may_bind_every_port_none_is_roots() -> None:
    """Docker sets net.ipv4.ip_unprivileged_port_start to 0."""
    refused = {"free": False, "errno": "EACCES", "holder": None}
    finding = taken_port_finding(node("node-a"), [80], refused, rendezvous=True, unprivileged=0)
    assert "are root's" not in finding.says


def test_all_that_is_wrong_is_told_at_once() -> None:
    outcome = judged({"29500": holder(), "29501": holder()}, {"resolved": [B], "local": False})
    assert causes(outcome) == ["master-address-not-local", "port-in-use"]
    assert "and 1 more ports" in outcome.findings[1].says


def test_the_address_of_another_node() -> None:
    inventory = cluster(address=B)
    outcome = judged({"29500": FREE}, {"resolved": [B], "local": False}, inventory=inventory)
    (finding,) = outcome.findings
    assert finding.cause == "master-address-not-local"
    assert "it belongs to node-b" in finding.says
    assert "rendezvous: {master: node-b}" in finding.remedy
    assert finding.peers == ("node-b",)


def test_the_address_of_nobody() -> None:
    outcome = judged({"29500": FREE}, {"resolved": ["10.9.9.9"], "local": False}, inventory=cluster(address="10.9.9.9"))
    (finding,) = outcome.findings
    assert finding.cause == "master-address-not-local"
    assert "it is on no interface there" in finding.says
    assert f"rendezvous: {{address: {A}}}" in finding.remedy


def test_a_name_that_the_master_cannot_resolve() -> None:
    where = {"resolved": None, "local": False, "error": "[Errno -2] Name or service not known"}
    outcome = judged({"29500": FREE}, where, inventory=cluster(address="head"))
    assert causes(outcome) == ["name-unresolvable"]
    assert outcome.findings[0].evidence == ("[Errno -2] Name or service not known",)


def test_a_port_that_the_kernel_may_hand_out_is_a_warning() -> None:
    facts = facts_of(cluster())
    facts["node-a"]["port_range"] = "20000\t60999"
    outcome = judged({"29500": FREE}, LOCAL, facts=facts)
    assert outcome.verdict is Verdict.PASS
    assert "29500" in outcome.warnings[0]
    assert judged({"29500": FREE}, LOCAL).warnings == ()


@pytest.mark.parametrize(
    ("text", "warns"),
    [("20000 60999", True), ("29500\t29500", True), ("32768\t60999", False), ("", False), (None, False)],
)
def test_the_kernels_range(text: str | None, warns: bool) -> None:
    facts = facts_of(cluster())
    facts["node-a"]["port_range"] = text
    warnings = judged({"29500": FREE}, LOCAL, facts=facts).warnings
    assert any("lies in the range" in line for line in warnings) is warns


def test_a_short_range_is_tried_whole_and_a_long_one_evenly_with_its_ends() -> None:
    assert promised_ports(with_ports(cluster(), (100, 131)), 32) == list(range(100, 132))
    some = promised_ports(with_ports(cluster(), (20000, 29999)), 32)
    assert (some[0], some[-1], len(some)) == (20000, 29999, 32)
    assert max(b - a for a, b in itertools.pairwise(some)) < 400
    assert len(promised_ports(with_ports(cluster(), (0, 32)), 32)) == 32


def test_ports_that_are_promised_twice_are_tried_once() -> None:
    """Our own listener would be found in the way of its twin."""
    overlapping = with_ports(cluster(), (29500, 29510), (29505, 29512), (29500, 29500))
    assert promised_ports(overlapping) == list(range(29500, 29513))


def test_very_many_ranges_are_sampled_as_well() -> None:
    many = with_ports(cluster(), *((port, port + 1) for port in range(10000, 10000 + 3 * 128, 3)), (20000, 20100))
    some = promised_ports(many)
    assert (some[0], some[-1]) == (10000, 20100)
    assert 100 <= len(some) <= MAX_BOUND_PORTS


def test_promised_ports_are_all_tried_until_there_are_too_many() -> None:
    assert promised_ports(cluster()) == []
    assert promised_ports(with_ports(cluster(), (29500, 29503), (40000, 40000))) == [29500, 29501, 29502, 29503, 40000]
    long = promised_ports(with_ports(cluster(), (20000, 39999), (50000, 50999)))
    assert {20000, 39999, 50000, 50999} <= set(long)
    assert 100 <= len(long) <= MAX_BOUND_PORTS
    assert max(b - a for a, b in itertools.pairwise(p for p in long if p < 40000)) < 200


def test_facts_that_are_missing_do_not_stop_the_judgement() -> None:
    inventory = cluster(node("node-a"), node("node-b"))
    where = {"resolved": [B], "local": False}
    assert causes(judged({"29500": FREE}, where, inventory=inventory, facts={})) == ["master-address-not-local"]
    assert causes(judged({"29500": FREE}, where, inventory=inventory, facts={"node-b": machine(B)})) == [
        "master-address-not-local"
    ]


@pytest.mark.parametrize(
    ("on_host", "typed"),
    [(True, "on node-a: `kill 57`"), (False, "on node-a: `docker exec --interactive train kill 57`")],
)
def test_a_process_in_a_container_is_ended_there(on_host: bool, typed: str) -> None:
    """On the host that pid is another process's."""
    boxed = replace(node("node-a"), container=Container("docker", "train"))
    holder = {"pid": 57, "uid": 0, "user": "root", "command": "python train.py", "ours": True}
    found = {"free": False, "errno": "EADDRINUSE", "holder": holder, "on_host": on_host}
    assert typed in taken_port_finding(boxed, [29500], found, rendezvous=True).remedy
