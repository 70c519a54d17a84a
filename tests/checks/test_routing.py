"""Which policy rule or route makes a kernel refuse a way. Rules and routes are iproute2 6.1's own words (`ip -j`)."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import replace
from typing import Any

import pytest

from runbook.checks.network.routing import (
    RouteRefusal,
    Sent,
    first_route_refusal,
    ip_family_switch,
    policy_rule_detour,
    rule_text,
    unusable_path_finding,
)
from runbook.files.address import is_in_network
from runbook.firewall.collected_rules import Evidence
from runbook.firewall.evaluate import NumberRange

from .made_up_cluster import cluster, context, machine, node

Rule = dict[str, Any]
Route = dict[str, Any]

LOCAL: Rule = {"priority": 0, "src": "all", "table": "local"}
MAIN: Rule = {"priority": 32766, "src": "all", "table": "main"}
DEFAULT: Rule = {"priority": 32767, "src": "all", "table": "default"}
PORTS: Rule = {
    "priority": 32765,
    "src": "all",
    "dst": "10.0.0.2",
    "ipproto": "tcp",
    "dport_start": 29500,
    "dport_end": 29510,
    "action": "prohibit",
}
USER: Rule = {
    "priority": 40,
    "src": "all",
    "dst": "10.0.0.2",
    "uid_start": 1000,
    "uid_end": 1000,
    "action": "blackhole",
}
FORWARDED: Rule = {"priority": 41, "src": "all", "dst": "10.0.0.2", "iif": "eth9", "action": "unreachable"}
NOT_MINE: Rule = {"priority": 50, "not": None, "src": "10.0.0.1", "fwmark": "0x4", "fwmask": "0xf", "table": "100"}
SERVICE: Rule = {"priority": 38, "src": "all", "tos": "0x10", "action": "blackhole"}
ALL: Rule = {"priority": 30, "src": "all", "dst": "10.0.0.0", "dstlen": 24, "action": "unreachable"}

WAY: Route = {"dst": "10.0.0.0/24", "dev": "eth0", "flags": []}
BLACKHOLE: Route = {"type": "blackhole", "dst": "10.0.0.2", "table": "main", "flags": []}
PROHIBIT: Route = {"type": "prohibit", "dst": "10.0.0.0/24", "table": "main", "metric": 50, "flags": []}

SENT = Sent("10.0.0.2", "10.0.0.1", NumberRange(32768, 60999), NumberRange.exactly(29500), uid=1000, marks=frozenset())


def met(rules: list[Rule], routes: list[Route], sent: Sent = SENT) -> RouteRefusal | None:
    return first_route_refusal(sent, {"rules": [LOCAL, *rules, MAIN, DEFAULT], "routes": routes})


def test_a_way_is_no_refusal() -> None:
    assert met([], [WAY]) is None


def test_a_route_that_refuses() -> None:
    found = met([], [BLACKHOLE])
    assert found == RouteRefusal(
        "route `blackhole 10.0.0.2` refuses it",
        "sudo ip route del blackhole 10.0.0.2",
        certain=True,
        of="32766: from all lookup main",
    )


def test_the_longest_prefix_counts_and_then_the_lowest_metric() -> None:
    assert met([], [WAY, BLACKHOLE]) is not None
    assert met([], [{**WAY, "dst": "10.0.0.2"}, PROHIBIT]) is None
    assert met([], [{**WAY, "metric": 10}, PROHIBIT]) is None
    assert met([], [{**WAY, "metric": 100}, PROHIBIT]) is not None


@pytest.mark.parametrize(
    ("rule", "text", "narrow"),
    [
        (ALL, "30: from all to 10.0.0.0/24 unreachable", False),
        (PORTS, "32765: from all to 10.0.0.2 ipproto tcp dport 29500-29510 prohibit", True),
        (USER, "40: from all to 10.0.0.2 uidrange 1000-1000 blackhole", True),
    ],
)
def test_a_policy_rule_that_refuses(rule: Rule, text: str, narrow: bool) -> None:
    found = met([rule], [WAY])
    assert found is not None
    assert found.why == f"policy rule `{text}` refuses it"
    assert found.fix == f"sudo ip rule del priority {rule['priority']}"
    assert (found.certain, found.narrow) == (True, narrow)


@pytest.mark.parametrize(
    ("rule", "other"),
    [
        (PORTS, replace(SENT, port=NumberRange.exactly(29511))),
        (USER, replace(SENT, uid=0)),
        (ALL, replace(SENT, address="10.0.1.2")),
        (FORWARDED, SENT),  # what comes in by eth9; ours is sent here
    ],
)
def test_a_rule_about_other_packets_is_passed(rule: Rule, other: Sent) -> None:
    assert met([rule], [{**WAY, "dst": "default"}], other) is None


@pytest.mark.parametrize(
    ("rule", "unknown"),
    [(PORTS, replace(SENT, port=None)), (USER, replace(SENT, uid=None)), (SERVICE, SENT)],
)
def test_what_cannot_be_decided_is_never_certain(rule: Rule, unknown: Sent) -> None:
    found = met([rule], [WAY], unknown)
    assert found is not None
    assert not found.certain
    assert found.of == rule_text(rule)


def test_a_certain_refusal_comes_before_one_that_may_be() -> None:
    found = met([SERVICE], [BLACKHOLE])
    assert found is not None
    assert found.certain
    assert "route `blackhole" in found.why


def test_not_turns_the_whole_selector() -> None:
    """`not from A fwmark M` is met by what is not both of it."""
    refused = [{**BLACKHOLE, "table": "100"}]
    assert met([NOT_MINE], refused) is not None  # it has no such mark
    assert (
        met([NOT_MINE], refused, replace(SENT, marks=frozenset({4}))) is not None
    )  # it may have it: then only perhaps
    assert met([{**NOT_MINE, "fwmark": "0"}], refused) is None  # ours, and marked as none is


def test_a_mark_that_nothing_here_sets_is_met_by_nobody() -> None:
    rule = {"priority": 60, "src": "all", "fwmark": "0x4", "action": "blackhole"}
    assert met([rule], [WAY]) is None
    for marks in (None, frozenset({4})):
        perhaps = met([rule], [WAY], replace(SENT, marks=marks))
        assert perhaps is not None
        assert not perhaps.certain


def test_a_table_without_a_way_leaves_it_to_the_next_rule() -> None:
    beside = {"priority": 70, "src": "all", "table": "101"}
    assert met([beside], [WAY]) is None
    assert met([beside], [{**WAY, "table": "101"}, BLACKHOLE]) is None  # this table has a way, so `main` is not asked
    found = met([beside], [{"type": "throw", "dst": "10.0.0.2", "table": "101"}, BLACKHOLE])
    assert found is not None, "throw: on with the next rule"
    assert found.fix == "sudo ip route del blackhole 10.0.0.2"


def test_another_table_is_named_with_the_rule_that_leads_there() -> None:
    everybody = {"priority": 70, "src": "all", "table": "101"}
    found = met([everybody], [{**PROHIBIT, "table": "101"}])
    assert found is not None
    assert found.why == (
        "route `prohibit 10.0.0.0/24 table 101`, to which policy rule `70: from all lookup 101` leads, refuses it"
    )
    assert found.fix == "sudo ip route del prohibit 10.0.0.0/24 table 101"


def test_of_a_rule_for_a_few_the_rule_goes_and_not_the_table_that_serves_others() -> None:
    some = {"priority": 71, "src": "all", "ipproto": "tcp", "dport": 29500, "table": "101"}
    found = met([some], [{**PROHIBIT, "table": "101"}])
    assert found is not None
    assert found.fix == "sudo ip rule del priority 71"


DEAD: Route = {"dst": "default", "gateway": "10.0.0.200", "dev": "eth0", "table": "77", "flags": []}


@pytest.mark.parametrize(
    ("rules", "routes", "led"),
    [
        ([{"priority": 100, "src": "all", "ipproto": "tcp", "dport": 29500, "table": "77"}], [WAY, DEAD], True),
        ([{"priority": 100, "src": "all", "uid_start": 1000, "uid_end": 1000, "table": "77"}], [WAY, DEAD], True),
        ([{"priority": 100, "src": "all", "ipproto": "tcp", "dport": 29501, "table": "77"}], [WAY, DEAD], False),
        ([{"priority": 100, "src": "all", "fwmark": "0x1", "table": "77"}], [WAY, DEAD], False),
        ([{"priority": 100, "src": "all", "tos": "0x10", "table": "77"}], [WAY, DEAD], False),
        ([{"priority": 100, "src": "all", "table": "77"}], [WAY, DEAD], False),
        ([{"priority": 100, "src": "all", "dport": 29500, "table": "77"}], [WAY, {**WAY, "table": "77"}], False),
        ([{"priority": 100, "src": "all", "dport": 29500, "table": "77"}], [WAY], False),
        (
            [
                {"priority": 99, "src": "all", "table": "main"},
                {"priority": 100, "src": "all", "dport": 29500, "table": "77"},
            ],
            [WAY, DEAD],
            False,
        ),
    ],
)
def test_a_rule_that_leads_a_few_elsewhere(rules: list[Rule], routes: list[Route], led: bool) -> None:
    found = policy_rule_detour(SENT, {"rules": [LOCAL, *rules, MAIN, DEFAULT], "routes": routes})
    assert (found is not None) is led
    if found is not None:
        assert (found.fix, found.certain) == ("sudo ip rule del priority 100", False)
        assert "leads these packets to the gateway 10.0.0.200 over eth0" in found.why
        assert found.why.endswith("all else to 10.0.0.2 goes over eth0")


def test_ipv6_has_its_own_rules() -> None:
    rule = {"priority": 32765, "src": "all", "dst": "fd00::2", "action": "prohibit"}
    found = met([rule], [], Sent("fd00::2"))
    assert found is not None
    assert found.fix == "sudo ip -6 rule del priority 32765"


def test_nothing_known_is_no_refusal() -> None:
    assert first_route_refusal(SENT, {}) is None
    assert first_route_refusal(SENT, {"rules": None, "routes": None}) is None


@pytest.mark.parametrize(
    ("network", "inside"),
    [
        ("default", True),
        ("10.0.0.2", True),
        ("10.0.0.0/24", True),
        ("10.0.1.0/24", False),
        ("fd00::/8", False),
        ("?", False),
    ],
)
def test_in_network(network: str, inside: bool) -> None:
    assert is_in_network("10.0.0.2", network) is inside
    assert ip_family_switch(ipaddress.ip_address("10.0.0.2")) == ""


@pytest.mark.parametrize(
    ("address", "left", "restored"),
    [
        ("10.0.0.1", ["10.0.0.77/16", "fe80::1/64"], "10.0.0.1/16"),
        ("10.0.0.1", ["fd00::1/64", "fe80::1/64"], "10.0.0.1/24"),  # nothing of IPv4 tells how long it was
        ("10.0.0.1", [], "10.0.0.1/24"),
        ("fd00::1", ["10.0.0.1/24", "fe80::1/64"], "fd00::1/64"),
        ("fd00::1", ["10.0.0.1/24", "fd00::77/56", "fe80::1/64"], "fd00::1/56"),
    ],
)
def test_an_address_that_was_lost_comes_back_with_a_length_of_its_family(
    address: str, left: list[str], restored: str
) -> None:
    at = context(cluster(node("node-a", address=address), node("node-b")), {"node-a": machine(address)})
    addresses = [dict(zip(("local", "prefixlen"), prefix.split("/"), strict=True)) for prefix in left]
    shown = [{"ifname": "eth0", "operstate": "UP", "flags": ["UP"], "addr_info": addresses}]
    evidence = Evidence.of(
        {"tools": {"addresses": {"status": "ok", "rc": 0, "stdout": json.dumps(shown)}}, "facts": {}}
    )
    finding = unusable_path_finding(at, "node-a", address, "10.0.0.2", evidence)
    assert finding is not None
    assert finding.remedy == f"sudo ip address add {restored} dev eth0"


def test_of_two_rules_with_one_priority_the_guilty_one_is_deleted() -> None:
    """The kernel deletes the first that fits."""
    marked = {"priority": 100, "src": "all", "fwmark": "0x1", "table": "200"}
    guilty = {"priority": 100, "src": "all", "dst": "10.0.0.2", "action": "prohibit"}
    way = {"rules": [marked, guilty], "routes": []}
    found = first_route_refusal(Sent("10.0.0.2", "10.0.0.1", marks=frozenset()), way)
    assert found is not None
    assert found.fix == "sudo ip rule del priority 100 from all to 10.0.0.2 prohibit"
