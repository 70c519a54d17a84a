"""The judgement from recorded and written-down rules: no kernel, no root."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.firewall.collected_rules import CommandResult, Evidence
from runbook.firewall.evaluate import Flow, merge_spans
from runbook.firewall.explain_connection import RULE_READ_COMMANDS, Ends, explain_blocked, explain_redirection
from runbook.firewall.explain_node import explain_leg
from runbook.firewall.front_ends import (
    blocking_ufw_rule,
    is_firewalld_running,
    parse_firewalld_zones,
    parse_ufw_status,
    port_lists,
)
from runbook.firewall.nft import texts_by_handle
from runbook.node.firewall_rules import FIREWALLD_COMMANDS, ROOT_COMMANDS

HERE = Path(__file__).parent
CORPUS = HERE.parents[2] / "shared" / "corpus" / "tool_outputs.jsonl"
FLOW = Flow("10.77.0.1", "10.77.0.2", 29500)
EMPTY = json.dumps({"nftables": [{"metainfo": {"version": "1.0.6"}}]})


def ok(stdout: str, flavour: str = "") -> dict[str, Any]:
    return {"status": "ok", "rc": 0, "stdout": stdout, "stderr": "", "flavour": flavour}


def evidence(**tools: Mapping[str, Any]) -> Evidence:
    """An open node, but for what is given. Names are written with underscores."""
    records: dict[str, Any] = {"nft-json": ok(EMPTY), "iptables-save": ok("", "nft"), "ip6tables-save": ok("", "nft")}
    records |= {name.replace("_", "-"): record for name, record in tools.items()}
    records["route 10.77.0.1"] = ok('[{"dst": "10.77.0.1", "dev": "eth0"}]')
    return Evidence.of({"tools": records, "facts": {"legacy_tables": {"ip": [], "ip6": []}}})


def nft(*rules: list[Any], policy: str = "accept", others: list[Any] | None = None, hook: str = "input") -> Evidence:
    at = {"family": "inet", "table": "filter"}
    base = {**at, "name": "base", "handle": 1, "type": "filter", "hook": hook, "prio": 0, "policy": policy}
    items: list[Any] = [{"table": {"family": "inet", "name": "filter", "handle": 1}}, {"chain": base}, *(others or [])]
    items += [{"rule": {**at, "chain": "base", "handle": 10 + n, "expr": expr}} for n, expr in enumerate(rules)]
    return evidence(nft_json=ok(json.dumps({"nftables": items})))


def match(left: Any, right: Any, op: str = "==") -> dict[str, Any]:
    return {"match": {"op": op, "left": left, "right": right}}


def payload(protocol: str, field: str) -> dict[str, Any]:
    return {"payload": {"protocol": protocol, "field": field}}


DROP, ACCEPT, SET = {"drop": None}, {"accept": None}, "set"
DPORT, SADDR = payload("tcp", "dport"), payload("ip", "saddr")
IIF: dict[str, Any] = {"meta": {"key": "iifname"}}
STATE: dict[str, Any] = {"ct": {"key": "state"}}


@pytest.mark.parametrize(
    ("condition", "blocks"),
    [
        (match(DPORT, 29500), True),
        (match(DPORT, 29500, "!="), False),
        (match(DPORT, {"range": [29000, 30000]}), True),
        (match(DPORT, {"range": [30000, 29000]}), None),  # nft prints this for two merged rules
        (match(DPORT, {"set": [22, {"range": [29000, 30000]}]}), True),
        (match(DPORT, {"set": [22, {"elem": {"val": 29500, "comment": "x"}}]}), True),
        (match(DPORT, {"set": [{"elem": {"val": 29500, "limit": {"rate": 5}}}]}), None),
        (match(DPORT, {"set": [22]}, "!="), True),
        (match(DPORT, "@nowhere"), None),
        (match(DPORT, "some-service"), None),
        (match(SADDR, {"prefix": {"addr": "10.77.0.0", "len": 24}}), True),
        (match(SADDR, {"range": ["10.77.0.2", "10.77.0.9"]}), False),
        (match(payload("ip6", "saddr"), "fe80::1", "!="), False),
        (match(payload("udp", "dport"), 29500, "!="), False),
        (match(payload("icmp", "type"), "echo-request", "!="), False),
        (match(payload("ip", "dscp"), "cs1"), None),
        (match({"concat": [SADDR, DPORT]}, {"set": [{"concat": ["10.77.0.1", {"range": [1, 65535]}]}]}), True),
        (match({"concat": [SADDR, DPORT]}, {"set": [{"concat": ["10.77.0.1", 22]}]}), False),
        (match(IIF, "eth*"), True),
        (match(IIF, "eth"), False),
        (match(IIF, {"set": ["lo", "ib0"]}, "!="), True),
        (match(STATE, "new", "in"), True),
        (match(STATE, ["established", "related"], "in"), False),
        (match(STATE, {"set": ["new", "invalid"]}), True),
        (match({"ct": {"key": "status"}}, "dnat", "in"), False),
        (match({"ct": {"key": "status"}}, "assured", "in"), None),
        (match(payload("tcp", "flags"), "syn", "in"), True),
        (match({"&": [payload("tcp", "flags"), ["syn", "ack"]]}, "syn"), True),
        (match({"&": [payload("tcp", "flags"), ["syn", "ack"]]}, {"|": ["syn", "ack"]}), False),
        (match({"&": [payload("ip", "frag-off"), 0x1FFF]}, 0, "!="), False),
        (match({"meta": {"key": "length"}}, 1400, ">"), False),
        (match({"meta": {"key": "mark"}}, 0, "!="), False),
        (match({"meta": {"key": "skuid"}}, 0), None),
        (match({"fib": {"result": "type", "flags": ["daddr"]}}, "local"), True),
        (match({"fib": {"result": "oif", "flags": ["saddr", "iif"]}}, False), False),
        (match(payload("tcp", "sport"), {"range": [1024, 65535]}), True),
        (match(payload("tcp", "sport"), {"range": [50000, 65535]}), None),
        ({"limit": {"rate": 5, "per": "second"}}, None),
        ({"xt": {"type": "match", "name": "owner"}}, None),
        ({"something new": {}}, None),
        ("something new", None),
        ({"counter": {"packets": 1, "bytes": 2}}, True),
    ],
    ids=lambda value: json.dumps(value)[:70] if isinstance(value, (dict, str)) else None,
)
def test_one_condition_of_nft(condition: Any, blocks: bool | None) -> None:
    told = explain_leg(nft([condition, DROP]), FLOW)
    assert told.blocks is blocks
    assert (told.candidates != ()) is (blocks is None)


def test_the_finding_says_who_what_and_how() -> None:
    told = explain_blocked("dropped", FLOW, Ends(nft(), nft([match(DPORT, 29500), DROP]), "node-a", "node-b"))
    assert told is not None
    assert (told.cause, told.says, told.remedy) == (
        "firewall-drop",
        (
            'node-b drops TCP 29500 from 10.77.0.1: nft rule inet filter base handle 10 `[{"match":{"op":"==","left":'
            '{"payload":{"protocol":"tcp","field":"dport"}},"right":29500}},{"drop":null}]`'
        ),
        "sudo nft insert rule inet filter base position 10 ip saddr 10.77.0.1 tcp dport 29500 accept",
    )
    assert told.evidence[-1].startswith("node-a lets the answer in")


def test_a_rule_before_a_surely_blocking_one_that_may_block_is_told_beside_it() -> None:
    told = explain_leg(nft([{"limit": {"rate": 1}}, DROP], policy="drop"), FLOW)
    assert told.blocks
    assert len(told.candidates) == 2
    assert "position 10" in told.allow


def test_only_what_may_happen_together_is_claimed() -> None:
    """A rate limit that returns or falls through ends in the policy both ways."""
    assert explain_leg(nft([{"limit": {"rate": 1}}, {"return": None}], policy="drop"), FLOW).blocks is True
    assert explain_leg(nft([{"limit": {"rate": 1}}, ACCEPT], policy="drop"), FLOW).blocks is None
    assert explain_leg(nft([{"queue": {"num": 0}}]), FLOW).blocks is None


def test_a_destination_nat_is_the_culprit_and_is_not_followed() -> None:
    pre = {"family": "ip", "table": "nat", "name": "pre", "handle": 1, "type": "nat", "hook": "prerouting"}
    redirect = {"family": "ip", "table": "nat", "chain": "pre", "handle": 2, "expr": [{"redirect": {"port": 80}}]}
    others = [{"chain": {**pre, "prio": -100, "policy": "accept"}}, {"rule": redirect}]
    told = explain_leg(nft(others=others), FLOW)
    assert (told.blocks, told.elsewhere) == (None, True)
    assert told.allow == "sudo nft insert rule ip nat pre position 2 ip saddr 10.77.0.1 tcp dport 29500 accept"
    blocked = explain_blocked("refused", FLOW, Ends(nft(), nft(others=others), "node-a", "node-b"))
    assert blocked is not None
    assert (blocked.cause, blocked.node, blocked.remedy) == ("firewall-reject", "node-b", told.allow)
    assert "elsewhere" in blocked.says
    answered = explain_redirection(
        replace(FLOW, state="established"), Ends(nft(), nft(others=others), "node-a", "node-b")
    )
    assert answered is not None
    assert answered.node == "node-b"
    assert explain_redirection(FLOW, Ends(nft(), nft(), "node-a", "node-b")) is None


def test_a_source_nat_makes_the_other_end_see_another_sender() -> None:
    post = {"family": "ip", "table": "nat", "name": "post", "handle": 1, "type": "nat", "hook": "postrouting"}
    snat = {"family": "ip", "table": "nat", "chain": "post", "handle": 2, "expr": [{"snat": {"addr": "10.77.0.99"}}]}
    others = [{"chain": {**post, "prio": 100, "policy": "accept"}}, {"rule": snat}]
    only_its_own = nft([match(SADDR, "10.77.0.1"), {"accept": None}], policy="drop")
    untouched = explain_blocked("dropped", FLOW, Ends(nft(), only_its_own, "node-a", "node-b"))
    assert untouched is not None
    assert untouched.between
    blocked = explain_blocked("dropped", FLOW, Ends(nft(others=others), only_its_own, "node-a", "node-b"))
    assert blocked is not None
    assert (blocked.node, blocked.decided, blocked.between) == ("node-b", True, False)
    assert "10.77.0.99" in blocked.remedy
    assert "10.77.0.99 is what node-a's own NAT rule makes of 10.77.0.1" in blocked.says


@pytest.mark.parametrize(
    ("flags", "value", "blocks"),
    [(["psh"], "psh", None), (["fin", "psh", "urg"], {"|": ["fin", "psh", "urg"]}, False), (["syn"], "syn", False)],
)
def test_data_may_be_pushed(flags: list[str], value: Any, blocks: bool | None) -> None:
    """Some segments of a stream have PSH, and a rule that looks for it stops these only."""
    data = replace(FLOW, state="established")
    rule = [match({"&": [payload("tcp", "flags"), flags]}, value), {"drop": None}]
    assert explain_leg(nft(rule), data).blocks is blocks
    names = ",".join(flags).upper()
    wanted = value.upper() if isinstance(value, str) else names  # all of them, as an Xmas scan has
    text = save(f"-A INPUT -p tcp -m tcp --tcp-flags {names} {wanted} -j DROP")
    told = explain_leg(evidence(iptables_save=ok(text, "legacy")), data)
    assert told.blocks is blocks


def test_when_both_ends_allow_it_the_blame_lies_between() -> None:
    told = explain_blocked("dropped", FLOW, Ends(nft(), nft(), "node-a", "node-b", ports=[(29500, 29510)]))
    assert told is not None
    assert told.decided
    assert told.between
    assert "security group" in told.says
    assert "29500-29510" in told.remedy


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"status": "denied", "stderr": "sudo: a password is required"}, "sudo asks for a password"),
        (
            {"status": "denied", "stderr": "/etc/sudoers.d/x:1:9: syntax error\nsudo: a password is required"},
            "it needs root (/etc/sudoers.d/x:1:9: syntax error)",
        ),
        ({"status": "denied", "rc": 1, "stderr": "Operation not permitted (you must be root)"}, "needs root"),
        ({"status": "timeout"}, "did not answer in 3 s"),
        ({"status": "missing"}, "nft is not installed here"),
        (ok("no JSON at all"), "could not be read"),
        ({"status": "ok", "rc": 1, "stdout": "", "stderr": "Cannot open socket"}, "Cannot open socket"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_not_having_looked_is_never_an_open_port(record: dict[str, Any], words: str) -> None:
    unseen = evidence(nft_json=record)
    told = explain_leg(unseen, FLOW)
    assert told.blocks is None
    assert told.could_not_look is not None
    assert words in told.could_not_look
    assert "sudo nft" in told.could_not_look
    blocked = explain_blocked("dropped", FLOW, Ends(nft(), unseen, "node-a", "node-b"))
    assert blocked is not None
    assert not blocked.decided
    assert not blocked.between
    assert words in blocked.says
    assert blocked.node == "node-b"


def test_nothing_collected_at_all() -> None:
    blocked = explain_blocked("dropped", FLOW, Ends(nft(), None, "node-a", "node-b"))
    assert blocked is not None
    assert not blocked.decided
    assert "on node-b: its rules were not collected" in blocked.says
    assert blocked.remedy


def test_a_refusal_without_a_listener_is_no_firewall() -> None:
    assert explain_blocked("refused", FLOW, Ends(nft(), nft(), "a", "b"), listener_was_up=False) is None
    reset = nft([match(DPORT, 29500), {"reject": {"type": "tcp reset"}}])
    told = explain_blocked("refused", FLOW, Ends(nft(), reset, "a", "b"), listener_was_up=False)
    assert told is not None
    assert told.cause == "firewall-reject"
    assert "with a TCP reset" in told.says


def save(*lines: str, policy: str = "ACCEPT") -> str:
    return "\n".join(["*filter", f":INPUT {policy} [0:0]", ":OUTPUT ACCEPT [0:0]", ":SUB - [0:0]", *lines, "COMMIT"])


@pytest.mark.parametrize(
    ("rule", "blocks"),
    [
        ("-A INPUT -p tcp -m tcp --dport 29500 -j DROP", True),
        ("[5:300] -A INPUT -p tcp -m tcp --dport 29500 -j DROP", True),
        ("-A INPUT -p udp -m udp --dport 29500 -j DROP", False),
        ("-A INPUT -s 10.77.0.0/255.255.255.0 -j DROP", True),
        ("-A INPUT ! -s 10.77.0.1/32 -j DROP", False),
        ('-A INPUT -m comment --comment "-j ACCEPT; \\"quoted\\"" -j DROP', True),
        ("-A INPUT -m comment --comment -s -j DROP", True),
        ("-A INPUT -m set --match-set bad src -j DROP", None),
        ("-A INPUT -m statistic --mode random --probability 0.5 -j DROP", None),
        ("-A INPUT -m limit --limit 5/min -j DROP", None),
        ("-A INPUT -m set --match-set bad src -j LOG", False),
        ("-A INPUT -j NFQUEUE --queue-num 0", None),
        ("-A INPUT -j LOG --log-prefix \"a -j DROP\"", False),
        ("-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j DROP", False),
        ("-A INPUT -m conntrack --ctstate DNAT -j DROP", False),
        ("-A INPUT -m state ! --state NEW -j DROP", False),
        ("-A INPUT -m mark --mark 0x8000/0x8000 -j DROP", False),
        ("-A INPUT -m rpfilter --validmark --invert -j DROP", False),
        ("-A INPUT -m length --length 1400:65535 -j DROP", False),
        ("-A INPUT -m unheard-of --of yes -j DROP", None),
        ("-A INPUT -j SUB\n-A SUB -j RETURN\n-A SUB -j DROP", False),
        ("-A INPUT -g SUB\n-A INPUT -j DROP", False),
        ("-A INPUT -i eth+ -j REJECT --reject-with tcp-reset", True),
        ("-A INPUT -i ib+ -j DROP", False),
    ],
)  # fmt: skip
def test_one_rule_of_iptables(rule: str, blocks: bool | None) -> None:
    assert explain_leg(evidence(iptables_save=ok(save(rule), "legacy")), FLOW).blocks is blocks


ICMPV6 = Flow("fd00::1", "fd00::2", 0, protocol="ipv6-icmp")


@pytest.mark.parametrize(
    ("condition", "blocks"),
    [
        (match(payload("icmpv6", "type"), {"set": ["nd-neighbor-solicit", "nd-neighbor-advert"]}), None),
        (match({"meta": {"key": "l4proto"}}, "ipv6-icmp"), False),
        (match({"meta": {"key": "l4proto"}}, "icmpv6"), False),
        (match({"meta": {"key": "l4proto"}}, {"set": ["tcp", 58]}), False),
        (match(payload("icmp", "type"), "echo-request"), True),
        (match(payload("tcp", "dport"), 22), True),
    ],
)
def test_nft_has_two_names_for_icmpv6(condition: Any, blocks: bool | None) -> None:
    """What a rule accepts before a policy that drops everything else."""
    assert explain_leg(nft([condition, ACCEPT], policy="drop"), ICMPV6).blocks is blocks


@pytest.mark.parametrize("protocol", ["ipv6-icmp", "icmpv6", "58"])
def test_iptables_writes_icmpv6_in_three_ways(protocol: str) -> None:
    rules = save(f"-A INPUT -p {protocol} -j ACCEPT", policy="DROP")
    assert explain_leg(evidence(ip6tables_save=ok(rules, "legacy")), ICMPV6).blocks is False


def test_iptables_nft_is_read_once_and_from_iptables_save() -> None:
    """The same chain in nft's JSON carries an `xt` match: had it been read from there, nothing could be told."""
    chain = {"family": "ip", "table": "filter", "name": "INPUT", "type": "filter", "hook": "input", "prio": 0}
    rule = {"family": "ip", "table": "filter", "chain": "INPUT", "handle": 2, "expr": [{"xt": {}}, ACCEPT]}
    listing = json.dumps({"nftables": [{"chain": chain | {"policy": "drop", "handle": 1}}, {"rule": rule}]})
    told = explain_leg(
        evidence(nft_json=ok(listing), iptables_save=ok(save("-A INPUT -p udp -j ACCEPT", policy="DROP"), "nft")), FLOW
    )
    assert told.blocks
    assert told.where == "iptables chain INPUT"
    assert told.allow == "sudo iptables -A INPUT -p tcp -s 10.77.0.1 --dport 29500 -j ACCEPT"
    unread = explain_leg(evidence(nft_json=ok(listing), iptables_save={"status": "missing"}), FLOW)
    assert unread.blocks is None


@pytest.mark.parametrize(
    ("peers", "written"),
    [
        ([], "10.77.0.1"),
        (["10.77.0.2"], "'{ 10.77.0.1, 10.77.0.2 }'"),
        ([f"10.77.0.{n}" for n in range(2, 12)], "10.77.0.1-10.77.0.11"),
        (["10.77.1.1", "10.77.0.3", "10.77.0.2", "fd00::1"], "'{ 10.77.0.1-10.77.0.3, 10.77.1.1 }'"),
    ],
)
def test_many_addresses_are_let_in_by_ranges(peers: list[str], written: str) -> None:
    told = explain_leg(nft(policy="drop"), FLOW, peers=peers)
    assert told.allow == f"sudo nft add rule inet filter base ip saddr {written} tcp dport 29500 accept"


def test_a_large_blocklist_is_read() -> None:
    elements: list[Any] = [f"10.{a}.{b}.{c}" for a in range(78, 80) for b in range(200) for c in range(100)]
    elements += [{"prefix": {"addr": "10.77.0.0", "len": 30}}]
    others = [{"set": {"family": "inet", "table": "filter", "name": "bad", "type": "ipv4_addr", "elem": elements}}]
    node = nft([match(SADDR, "@bad"), DROP], others=others)
    assert explain_leg(node, FLOW, ports=[(1024, 65535)], peers=[f"10.76.0.{n}" for n in range(1, 200)]).blocks is True
    assert explain_leg(node, Flow("10.77.0.5", "10.77.0.2", 29500)).blocks is False


@pytest.mark.parametrize(
    ("kind", "entry", "blocks"),
    [
        ("hash:ip", "10.77.0.1", True),
        ("hash:net", "10.78.0.0/16", False),
        ("hash:ip,port", "10.77.0.1,tcp:29500", None),
        ("hash:ip netmask 24", "10.77.0.0", None),  # the kernel looks for 10.77.0.0 where the source is 10.77.0.1
    ],
)
def test_ipset(kind: str, entry: str, blocks: bool | None) -> None:
    kind, *more = kind.split(maxsplit=1)
    sets = f"create bad {kind} family inet hashsize 1024 {' '.join(more)}\nadd bad {entry}\n"
    rules = save("-A INPUT -m set --match-set bad src -j DROP")
    assert explain_leg(evidence(iptables_save=ok(rules, "legacy"), ipset=ok(sets)), FLOW).blocks is blocks


def test_legacy_tables_that_nobody_can_list_are_not_forgotten() -> None:
    known = evidence()
    told = explain_leg(Evidence(known.tools, {"legacy_tables": {"ip": ["filter"]}}), FLOW)
    assert told.blocks is None
    assert "iptables-legacy tables are in use" in str(told.could_not_look)


def owned(uid: int, node: Evidence) -> Evidence:
    return Evidence(node.tools, {**node.facts, "uid": uid, "gid": uid})


@pytest.mark.parametrize(("uid", "blocks"), [(1000, True), (1001, False)])
def test_rules_for_one_user_bind_what_that_user_sends(uid: int, blocks: bool) -> None:
    by_nft = nft([match({"meta": {"key": "skuid"}}, 1000), DROP], hook="output")
    by_iptables = evidence(iptables_save=ok(save("-A OUTPUT -m owner --uid-owner 900-1000 -j DROP"), "nft"))
    for node in (by_nft, by_iptables):
        assert explain_leg(owned(uid, node), FLOW, "request-out").blocks is blocks
        # The kernel itself answers a SYN: whose packet that is cannot be told from here.
        assert explain_leg(owned(uid, node), FLOW, "reply-out").blocks is None


@pytest.mark.parametrize("action", ["gact action drop", "mirred (Egress Redirect to device lo) stolen"])
def test_what_drops_beside_the_packet_filter_is_named_when_no_rule_does_it(action: str) -> None:
    text = "filter protocol ip pref 7 u32 chain 0 \nfilter protocol ip pref 7 u32 chain 0 fh 800::800\n"
    text += f"\taction order 1: {action}"
    node = evidence()
    for place, found in (("eth0 ingress", True), ("eth1 ingress", False)):
        guarded = Evidence(node.tools, {**node.facts, "traffic_filters": {place: text}})
        told = explain_blocked("dropped", FLOW, Ends(evidence(), guarded, "node-a", "node-b"))
        assert told is not None
        assert (told.node, told.between) == ("node-b", not found)
        assert ("a tc filter on eth0 (ingress)" in told.says) is found
        assert ("`sudo tc filter del dev eth0 ingress pref 7`" in told.remedy) is found


@pytest.mark.parametrize(("count", "full"), [(65_500, True), (30_000, False)])
def test_a_full_table_of_connections_is_named_before_what_lies_between(count: int, full: bool) -> None:
    node = evidence()
    crowded = Evidence(node.tools, {**node.facts, "conntrack_count": str(count), "conntrack_max": "65536"})
    told = explain_blocked("dropped", FLOW, Ends(evidence(), crowded, "node-a", "node-b"))
    assert told is not None
    assert (told.node, told.between) == ("node-b", not full)
    assert ("tracks 65500 connections and may track 65536" in told.says) is full
    assert ("`sudo sysctl -w net.netfilter.nf_conntrack_max=131072`" in told.remedy) is full


def test_packets_of_a_vlan_pass_the_interfaces_below_it() -> None:
    shown = [
        {"ifname": "eth0", "master": "bond0"},
        {"ifname": "eth1", "xdp": {"mode": 1}},
        {"ifname": "bond0"},
        {"ifname": "bond0.100", "link": "bond0"},
    ]
    node = evidence(addresses=ok(json.dumps(shown)))
    tools = {**node.tools, "route 10.77.0.1": CommandResult("ok", 0, '[{"dev": "bond0.100"}]')}
    assert Evidence(tools, {}).devices("bond0.100") == ["bond0.100", "bond0", "eth0"]
    filters = {"traffic_filters": {"eth0 ingress": "filter protocol ip pref 7 u32\n action drop"}}
    told = explain_blocked("dropped", FLOW, Ends(evidence(), Evidence(tools, filters), "node-a", "node-b"))
    assert told is not None
    assert (told.node, told.between) == ("node-b", False)
    assert "a tc filter on eth0 (ingress)" in told.says


def test_the_permission_that_is_asked_for_is_what_the_node_program_runs() -> None:
    run = {" ".join(argv) for argv in (ROOT_COMMANDS | FIREWALLD_COMMANDS).values() if argv[0] != "iptables-nft-save"}
    run -= {"ip6tables-nft-save"}  # these two are the plain ones where they are asked at all
    assert {re.sub(r"^/usr/s?bin/", "", line).replace(' \\"\\"', "") for line in RULE_READ_COMMANDS} == run


def test_a_full_connection_table_is_mentioned() -> None:
    known = evidence()
    full = Evidence(known.tools, dict(known.facts) | {"conntrack_count": "262144", "conntrack_max": "262144"})
    assert "connection tracking table is full" in explain_leg(full, FLOW).caveats[0]


def recorded(name: str) -> Evidence:
    return Evidence.of(json.loads((HERE / "recorded" / f"{name}.json").read_text()))


def test_recorded_ufw() -> None:
    node = recorded("ufw")
    told = explain_leg(node, FLOW)
    assert (told.blocks, told.rule) == (True, "29500/tcp DENY IN 10.77.0.1")
    assert told.where.startswith("ufw rule in ")
    assert told.allow == "sudo ufw insert 1 allow from 10.77.0.1 to any port 29500 proto tcp"
    assert explain_leg(node, Flow("10.77.0.1", "10.77.0.2", 22)).blocks is False
    other = explain_leg(node, Flow("10.77.0.1", "10.77.0.2", 29501))
    assert other.rule == "Default: deny (incoming)"
    assert explain_leg(node, Flow("10.77.0.2", "10.77.0.1", 29500), "request-out").blocks is False


def test_recorded_firewalld() -> None:
    node = recorded("firewalld")
    told = explain_leg(node, FLOW, peers=["10.77.0.3"])
    assert (told.blocks, told.action) == (True, "reject-icmp")
    assert told.where.startswith("firewalld zone ")
    assert told.allow == (
        "sudo firewall-cmd --permanent --zone=public "
        '--add-rich-rule=\'rule family="ipv4" source address="10.77.0.1" port port="29500" protocol="tcp" accept\' '
        '--add-rich-rule=\'rule family="ipv4" source address="10.77.0.3" port port="29500" protocol="tcp" accept\''
        " && sudo firewall-cmd --reload"
    )
    assert explain_leg(node, Flow("10.77.0.1", "10.77.0.2", 22)).blocks is False


@pytest.mark.parametrize("zone", ["public", "internal", "nm-shared", "my_zone"])
@pytest.mark.parametrize("status", ["denied", "timeout", "failed"])
def test_firewalld_that_may_not_be_asked_is_known_by_its_chains(zone: str, status: str) -> None:
    """A rule that is put into its table by hand is gone at its next reload."""
    known = recorded("firewalld")
    tools = {
        name: CommandResult(status, 1)
        if name.startswith("firewalld")
        else replace(tool, stdout=tool.stdout.replace("IN_public", f"IN_{zone}"))
        for name, tool in known.tools.items()
    }
    told = explain_leg(Evidence(tools, known.facts), FLOW, peers=["10.77.0.3"])
    assert told.where.startswith(f"firewalld zone {zone} (")
    assert told.allow == explain_leg(known, FLOW, peers=["10.77.0.3"]).allow.replace("--zone=public", f"--zone={zone}")


def test_ports_are_merged_and_cut_as_multiport_needs() -> None:
    assert merge_spans([(5, 9), (1, 3), (4, 4), (20, 20)]) == ((1, 9), (20, 20))
    many = tuple((number, number) for number in range(2, 40, 2))
    assert [len(part.split(",")) for part in port_lists(many)] == [15, 4]


def test_rule_texts_are_found_by_handle() -> None:
    listing = """table inet filter { # handle 1
\tset s { # handle 3
\t\ttype ipv4_addr
\t\telements = { 10.0.0.1 }
\t}

\tchain base { # handle 2
\t\ttype filter hook input priority filter; policy accept;
\t\ttcp dport 29500 drop comment "not # handle 5 here" # handle 4
\t}
}
"""
    assert texts_by_handle(listing) == {("inet", "filter", 4): 'tcp dport 29500 drop comment "not # handle 5 here"'}


# --- the shared corpus of real outputs, where it lies beside the project ----------------------------------------------


def outputs() -> dict[str, dict[str, Any]]:
    if not CORPUS.exists():
        pytest.skip(f"{CORPUS} is not here")
    cases = [json.loads(line) for line in CORPUS.read_text().splitlines()]
    return {case["id"]: case for case in cases}


def test_corpus_nft_json() -> None:
    cases = outputs()
    node = evidence(nft_json=ok(cases["nft-json"]["output"]))
    assert explain_leg(node, FLOW).action == "reject-icmp"
    assert explain_leg(node, Flow("10.77.0.1", "10.77.0.2", 443)).blocks is False
    banned = explain_leg(node, Flow("192.0.2.2", "10.77.0.2", 443))
    assert (banned.blocks, banned.action) == (True, "drop")
    assert explain_leg(evidence(nft_json=ok(cases["nft-json-empty"]["output"])), FLOW).blocks is False


def test_corpus_iptables_save() -> None:
    node = evidence(iptables_save=ok(outputs()["iptables-save-reject"]["output"], "legacy"))
    told = explain_leg(node, FLOW)
    assert (told.action, told.rule) == ("reject-icmp", "-A INPUT -j REJECT --reject-with icmp-host-prohibited")
    assert explain_leg(node, Flow("10.77.0.1", "10.77.0.2", 22)).blocks is False
    assert explain_leg(node, Flow("192.168.0.7", "10.77.0.2", 29500)).blocks is False


def test_corpus_ufw() -> None:
    cases = outputs()
    inactive = parse_ufw_status(cases["ufw-inactive"]["output"])
    assert inactive is not None
    assert not inactive.active
    verbose = parse_ufw_status(cases["ufw-verbose"]["output"])
    assert verbose is not None
    assert (verbose.active, verbose.incoming, verbose.outgoing) == (True, "deny", "allow")
    assert [rule.to for rule in verbose.rules][:3] == ["22", "80,443/tcp", "80 on eth0"]
    numbered = parse_ufw_status(cases["ufw-numbered"]["output"])
    assert numbered is not None
    assert (len(numbered.rules), numbered.incoming) == (15, None)
    mixed = parse_ufw_status(cases["ufw-mixed"]["output"])
    assert mixed is not None
    assert {rule.action for rule in mixed.rules} == {"ALLOW", "DENY", "REJECT", "LIMIT"}
    assert str(blocking_ufw_rule(mixed, "192.168.0.1", 443, outgoing=False)) == "443/tcp DENY IN 192.168.0.1"
    assert blocking_ufw_rule(mixed, "192.168.0.2", 443, outgoing=False) is None
    assert parse_ufw_status("anything else") is None


def test_corpus_firewalld() -> None:
    cases = outputs()
    assert not is_firewalld_running(cases["firewalld-not-running"]["output"])
    assert not is_firewalld_running(cases["firewalld-missing"]["output"])
    status = parse_firewalld_zones(cases["firewalld-zones"]["output"])
    assert [zone.name for zone in status.zones if zone.active] == ["public"]
    public = status.zones[2]
    assert (public.interfaces, public.ports) == (("eno1",), ())
    assert status.zone_for("10.0.0.1", "eno1") == "public"
    assert status.default == "public"


def test_a_rule_that_draws_lots_is_told_from_one_that_cannot_be_read_and_is_removed() -> None:
    every_second = match({"numgen": {"mode": "inc", "mod": 2, "offset": 0}}, 0)
    found = explain_leg(nft([every_second, DROP]), FLOW)
    assert (found.blocks, found.by_chance) == (None, True)
    assert found.allow == "sudo nft delete rule inet filter base handle 10"
    limited = explain_leg(nft([{"limit": {"rate": 5, "per": "second"}}, DROP]), FLOW)
    assert (limited.blocks, limited.by_chance) == (None, False)
    assert limited.allow.startswith("sudo nft insert rule")
    certain = explain_leg(nft([every_second, DROP], [DROP]), FLOW)
    assert (certain.blocks, certain.by_chance) == (True, False), "where all of it is dropped, no lots are drawn"


LOTS = (
    "-p tcp -m tcp ! --sport 22 -m statistic --mode random --probability 0.29999999981 -j DROP",
    "-m statistic --mode nth --every 10 --packet 3 -j REJECT --reject-with icmp-port-unreachable",
    '-p tcp -m comment --comment "it is \\"odd\\"; $here" -m statistic --mode random --probability 0.05 -j DROP',
)


@given(st.lists(st.sampled_from([*LOTS, "-p tcp --dport 22 -j ACCEPT", "-s 10.9.0.0/16 -j DROP"]), max_size=7))
def test_what_removes_rules_that_draw_lots_removes_these_and_no_others(rules: list[str]) -> None:
    """Run one after another, as a shell does it: each command meets the chain as the one before has left it."""
    saved = "\n".join(["*filter", ":INPUT ACCEPT [0:0]", *(f"-A INPUT {rule}" for rule in rules), "COMMIT"])
    told = explain_leg(evidence(iptables_save=ok(saved, "nft")), FLOW)
    chain = [shlex.split(rule) for rule in rules]
    if not any(rule in LOTS for rule in rules):
        assert not told.allow
        return
    for command in told.allow.split(" && "):
        words = shlex.split(command)
        assert words[:4] == ["sudo", "iptables", "-D", "INPUT"]
        if len(words) == 5:
            del chain[int(words[4]) - 1]
        else:
            chain.remove(words[4:])
    assert chain == [shlex.split(rule) for rule in rules if rule not in LOTS]


def test_a_share_that_is_let_in_before_a_drop_is_chance_as_well_and_gets_an_exception() -> None:
    some = match({"numgen": {"mode": "random", "mod": 100, "offset": 0}}, 30, "<")
    found = explain_leg(nft([some, ACCEPT], [DROP]), FLOW)
    assert (found.blocks, found.by_chance) == (None, True)
    assert found.allow.startswith("sudo nft insert rule")
