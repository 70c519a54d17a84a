"""The evaluator against the kernel: real rules, a real connection, and the remedy really opens it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import pytest
from profiles import one_in

from firewall.pair import CLIENT, CLIENT6, LONG, SERVER, SERVER6, SHORT, Pair, Seen
from runbook.firewall.collected_rules import Evidence
from runbook.firewall.explain_connection import Ends, explain_blocked
from runbook.firewall.explain_connection import Seen as SeenBlocked
from runbook.firewall.explain_node import Explanation, explain_leg

pytestmark = pytest.mark.lab

PORT = 29500
Side = Literal["server", "client"]


@dataclass(frozen=True)
class Case:
    """`rules`: an nft ruleset, or a shell script that starts with `iptables`/`ip6tables`. `says` is in `where`."""

    name: str
    rules: str
    seen: Seen
    says: str = ""
    side: Side = "server"
    version: int = 4
    tool: str = "nft"


def chain(*rules: str, hook: str = "input", policy: str = "accept", priority: str = "0", extra: str = "") -> str:
    body = "\n    ".join(rules)
    return f"""table inet filter {{
  {extra}
  chain {hook} {{ type filter hook {hook} priority {priority}; policy {policy};
    {body}
  }}
}}
"""


ESTABLISHED = "ct state established,related accept"

CASES = [
    Case("nothing at all", "", "open"),
    Case("drop", chain("tcp dport 29500 drop"), "dropped", "nft rule inet filter input handle"),
    Case("reject with RST", chain("tcp dport 29500 reject with tcp reset"), "rejected", "nft rule"),
    Case("reject with ICMP", chain("tcp dport 29500 reject with icmpx type admin-prohibited"), "rejected", "nft rule"),
    Case("reject by default", chain("tcp dport 29500 reject"), "rejected", "nft rule"),
    Case("another port", chain("tcp dport 29501 drop"), "open"),
    Case("policy drop", chain(ESTABLISHED, 'iifname "lo" accept', "tcp dport 22 accept", policy="drop"), "dropped",
         "nft chain inet filter input"),
    Case("policy drop, ours allowed", chain("ip saddr 10.77.0.0/24 tcp dport 29000-30000 accept", policy="drop"),
         "open"),
    Case("ports in a set", chain("tcp dport { 22, 80, 29000-29999 } drop"), "dropped", "nft rule"),
    Case("negated ports", chain("tcp dport != { 22, 80 } drop"), "dropped", "nft rule"),
    Case("named set of networks", chain("ip saddr @bad drop", extra="set bad { type ipv4_addr; flags interval; "
         "elements = { 10.77.0.0/25, 192.168.0.1 }; }"), "dropped", "nft rule"),
    Case("named set, not in it", chain("ip saddr @bad drop", extra="set bad { type ipv4_addr; flags interval; "
         "elements = { 10.78.0.0/25 }; }"), "open"),
    Case("verdict map", chain("tcp dport vmap { 22 : accept, 29500 : drop }"), "dropped", "nft rule"),
    Case("named verdict map with jump", chain("tcp dport vmap @ports", extra="chain deny { reject with tcp reset; }; "
         "map ports { type inet_service : verdict; elements = { 22 : accept, 29500 : jump deny }; }"), "rejected",
         "nft rule inet filter deny handle"),
    Case("concatenation", chain("ip saddr . tcp dport { 10.77.0.1 . 29500, 10.77.0.9 . 1 } drop"), "dropped", "nft"),
    Case("jump and return", chain("jump checks", "drop", extra="chain checks { ip saddr 10.77.0.1 return; accept; }"),
         "dropped", "nft rule inet filter input handle"),
    Case("jump and accept", chain("jump checks", "drop", extra="chain checks { ip saddr 10.77.0.1 accept; }"), "open"),
    Case("goto does not come back", chain("goto checks", "accept", policy="drop", extra="chain checks { counter; }"),
         "dropped", "nft chain inet filter input"),
    Case("return from a base chain is the policy", chain("tcp dport 29500 return", "accept", policy="drop"), "dropped",
         "nft chain inet filter input"),
    Case("accepted once, dropped by a later chain", "table inet a { chain i { type filter hook input priority -5; "
         "tcp dport 29500 accept; }; }\ntable ip b { chain i { type filter hook input priority 5; policy drop; }; }",
         "dropped", "nft chain ip b i"),
    Case("two chains both block", "table inet a { chain i { type filter hook input priority -5; "
         "tcp dport 29500 drop; }; }\ntable ip b { chain i { type filter hook input priority 5; policy drop; }; }",
         "dropped", "nft rule inet a i"),
    Case("prerouting, before conntrack", chain("tcp dport 29500 drop", hook="prerouting", priority="-300"), "dropped"),
    Case("no state before conntrack", chain("ct state new drop", hook="prerouting", priority="-300"), "open"),
    Case("invalid before conntrack", chain("ct state invalid drop", hook="prerouting", priority="-300"), "dropped",
         "nft rule"),
    Case("new is dropped", chain("ct state new drop"), "dropped", "nft rule"),
    Case("notrack, then only tracked may pass", chain("ct state new,established accept", policy="drop",
         extra="chain pre { type filter hook prerouting priority -300; tcp dport 29500 notrack; };"), "dropped",
         "nft chain"),
    Case("by mark", chain("meta mark 7 drop", extra="chain pre { type filter hook prerouting priority -150; "
         "tcp dport 29500 meta mark set 7; };"), "dropped", "nft rule"),
    Case("by interface", chain('iifname "eth*" tcp dport > 1024 drop'), "dropped", "nft rule"),
    Case("another interface", chain('iifname != "eth0" drop'), "open"),
    Case("by TCP flags", chain("tcp flags & (fin|syn|rst|ack) == syn drop"), "dropped", "nft rule"),
    Case("only large packets", chain("meta length > 1400 drop"), "open"),
    Case("only local addresses", chain("fib daddr type != local accept", "tcp dport 29500 drop"), "dropped"),
    Case("IPv6 only", chain("meta nfproto ipv6 drop", "ip6 saddr != fd77::9 drop"), "open"),
    Case("IPv6 is dropped", chain("ip6 saddr fd77::/64 tcp dport 29500 drop"), "dropped", "nft rule", version=6),
    Case("IPv6 rejected", chain("meta nfproto ipv6 tcp dport 29500 reject"), "rejected", "nft rule", version=6),
    Case("ingress", "table netdev n { chain i { type filter hook ingress device \"eth0\" priority 0; "
         "tcp dport 29500 drop; }; }", "dropped"),
    Case("outgoing drop", chain("tcp dport 29500 drop", hook="output"), "dropped", "output", side="client"),
    Case("outgoing policy", chain("oifname lo accept", hook="output", policy="drop"), "dropped", "output",
         side="client"),
    Case("outgoing reject", chain("ip daddr 10.77.0.2 reject with icmpx type admin-prohibited", hook="output"),
         "rejected", "output", side="client"),
    Case("answers do not get out", chain("tcp sport 29500 drop", hook="output"), "dropped", "output"),
    Case("answers do not get out: policy", chain("tcp dport 1-1000 accept", hook="output", policy="drop"), "dropped"),
    Case("answers do not get in", chain('iifname "lo" accept', policy="drop"), "dropped", "input", side="client"),
    Case("answers get in, established", chain(ESTABLISHED, policy="drop"), "open", side="client"),
    Case("iptables: drop", "iptables -A INPUT -p tcp --dport 29500 -j DROP", "dropped", "iptables chain INPUT rule 1",
         tool="iptables"),
    Case("iptables: reject", "iptables -A INPUT -p tcp -m multiport --dports 22,29000:29999 -j REJECT "
         "--reject-with icmp-host-prohibited", "rejected", "iptables chain INPUT rule 1", tool="iptables"),
    Case("iptables: reset", "iptables -A INPUT -s 10.77.0.0/24 -p tcp -j REJECT --reject-with tcp-reset", "rejected",
         tool="iptables"),
    Case("iptables: policy", "iptables -A INPUT -i lo -j ACCEPT; iptables -A INPUT -m conntrack --ctstate "
         "ESTABLISHED,RELATED -j ACCEPT; iptables -P INPUT DROP", "dropped", "iptables chain INPUT", tool="iptables"),
    Case("iptables: user chain", "iptables -N LOGDROP; iptables -A LOGDROP -j LOG; iptables -A LOGDROP -j DROP; "
         "iptables -A INPUT ! -s 10.0.0.1 -p tcp ! --dport 22 -g LOGDROP", "dropped", "iptables chain LOGDROP rule 2",
         tool="iptables"),
    Case("iptables: returned", "iptables -N C; iptables -A C -s 10.77.0.1/32 -m comment --comment '-j DROP it' -j "
         "RETURN; iptables -A C -j DROP; iptables -A INPUT -j C", "open", tool="iptables"),
    Case("iptables: raw table", "iptables -t raw -A PREROUTING -p tcp --syn --dport 29500 -j DROP", "dropped",
         "iptables chain PREROUTING of table raw rule 1", tool="iptables"),
    Case("iptables: addrtype and range", "iptables -A INPUT -m addrtype --dst-type LOCAL -m iprange --src-range "
         "10.77.0.1-10.77.0.5 -p tcp -j DROP", "dropped", tool="iptables"),
    Case("iptables: outgoing", "iptables -A OUTPUT -d 10.77.0.2 -p tcp --dport 29500 -j REJECT", "rejected",
         "iptables chain OUTPUT", side="client", tool="iptables"),
    Case("legacy: drop", "iptables-legacy -A INPUT -p tcp --dport 29500 -j DROP", "dropped",
         "iptables-legacy chain INPUT rule 1", tool="iptables"),
    Case("legacy: reject behind state", "iptables-legacy -A INPUT -m state --state RELATED,ESTABLISHED -j ACCEPT; "
         "iptables-legacy -A INPUT -p tcp --dport 22 -j ACCEPT; iptables-legacy -A INPUT -j REJECT --reject-with "
         "icmp-host-prohibited", "rejected", "iptables-legacy chain INPUT rule 3", tool="iptables"),
    Case("both iptables and nft block", "iptables -A INPUT -p tcp --dport 29500 -j DROP; nft add table inet t; nft add "
         "chain inet t c '{ type filter hook input priority 10; policy drop; }'", "dropped", tool="iptables"),
    Case("ip6tables", "ip6tables -A INPUT -p tcp --dport 29500 -j DROP", "dropped", "ip6tables chain INPUT rule 1",
         version=6, tool="ip6tables"),
    Case("ip6tables binds no IPv4", "ip6tables -A INPUT -p tcp --dport 29500 -j DROP", "open"),
]  # fmt: skip


def prepare(pair: Pair, case: Case) -> str:
    where = pair.server if case.side == "server" else pair.client
    if case.rules.startswith(("iptables", "ip6tables")):
        pair.sh(where, case.rules)
    elif case.rules:
        pair.load(where, case.rules)
    return where


def both(pair: Pair) -> tuple[Evidence, Evidence]:
    """What both nodes say, asked at the same time."""
    with ThreadPoolExecutor(1) as other:
        client = other.submit(pair.evidence, pair.client, SERVER, SERVER6)
        server = pair.evidence(pair.server, CLIENT, CLIENT6)
        return client.result(), server


@pytest.mark.parametrize("case", one_in(15, CASES, thorough=2), ids=lambda case: case.name)
def test_says_what_the_kernel_does_and_the_remedy_opens_it(pair: Pair, case: Case) -> None:
    where = prepare(pair, case)
    seen = pair.connect(PORT, case.version, patience=SHORT if case.seen == "dropped" else LONG)
    assert seen == case.seen
    client, server = both(pair)
    observed: SeenBlocked = "dropped" if seen != "rejected" else "rejected"
    told = explain_blocked(observed, pair.flow(PORT, case.version), Ends(client, server, "node-a", "node-b"))
    assert told is not None
    assert told.decided
    if seen == "open":
        assert told.between
        return
    assert not told.between
    assert told.node == ("node-b" if case.side == "server" else "node-a")
    first = next(one for name, one in told.explanations if one.blocks)
    assert first.where.startswith(case.tool)
    assert case.says in first.where
    assert fits(first, seen)
    assert "flush" not in told.remedy
    pair.allow(where, told.remedy)
    assert pair.connect(PORT, case.version, patience=LONG) == "open", told.remedy


def fits(one: Explanation, seen: Seen) -> bool:
    return one.action == "drop" if seen == "dropped" else one.action in ("reject-rst", "reject-icmp")


def test_one_command_opens_all_ports_and_peers_that_are_asked_for(pair: Pair) -> None:
    """Port 29500 is stopped by one rule, 40005 by an earlier one, the rest by the policy."""
    pair.load(
        pair.server,
        chain(
            ESTABLISHED,
            "tcp dport 40000-40010 reject with tcp reset",
            "tcp dport 22 accept",
            "ip saddr 10.77.0.0/24 tcp dport 29500 drop",
            policy="drop",
        ),
    )
    ports = (29500, 40005, 50000)
    assert [pair.connect(port, patience=1) for port in ports] == ["dropped", "rejected", "dropped"]
    evidence = pair.evidence(pair.server, CLIENT)
    told = explain_leg(
        evidence, pair.flow(29500), ports=[(29000, 30000), (1024, 65535)], peers=["10.77.0.9", "10.9.0.1"]
    )
    assert "1024-65535" in told.allow
    assert "10.9.0.1" in told.allow
    assert "&&" not in told.allow
    pair.allow(pair.server, told.allow)
    assert [pair.connect(port, patience=LONG) for port in ports] == ["open", "open", "open"]
    assert pair.connect(1000) == "dropped"


@pytest.mark.parametrize("program", ["iptables", "iptables-legacy"])
def test_one_iptables_command_opens_all_ports_and_peers(pair: Pair, program: str) -> None:
    pair.sh(
        pair.server,
        f"{program} -N DENY; {program} -A DENY -j DROP; {program} -A INPUT -m state --state ESTABLISHED -j ACCEPT;"
        f"{program} -A INPUT -p tcp --dport 40005 -j DENY; {program} -A INPUT -p tcp --dport 22 -j ACCEPT;"
        f"{program} -A INPUT -j REJECT",
    )
    told = explain_leg(
        pair.evidence(pair.server, CLIENT), pair.flow(29500), ports=[(40000, 40010), (50000, 50000)], peers=["10.9.0.1"]
    )
    pair.allow(pair.server, told.allow)
    assert [pair.connect(port, patience=LONG) for port in (29500, 40005, 50000)] == ["open", "open", "open"]
    assert pair.connect(40011, patience=LONG) == "rejected"


def test_both_ends_block_and_both_are_told(pair: Pair) -> None:
    pair.load(pair.client, chain("tcp dport 29500 drop", hook="output"))
    pair.load(pair.server, chain("tcp dport 29500 drop"))
    client, server = both(pair)
    told = explain_blocked("dropped", pair.flow(PORT), Ends(client, server, "node-a", "node-b"))
    assert told is not None
    assert told.node == "node-a"
    assert any(line.startswith("node-b blocks it too") for line in told.evidence)
    for name, command in told.remedies:
        pair.allow(pair.client if name == "node-a" else pair.server, command)
    assert pair.connect(PORT, patience=LONG) == "open"


def test_large_packets_that_vanish_are_explained_by_their_length(pair: Pair) -> None:
    pair.load(pair.server, chain("meta length > 1400 drop", hook="prerouting", priority="-150"))
    evidence = pair.evidence(pair.server, CLIENT)
    flow = pair.flow(PORT)
    assert explain_leg(evidence, flow).blocks is False
    big = explain_leg(evidence, type(flow)(CLIENT, SERVER, PORT, state="established", packet_length=1500))
    assert big.blocks
    assert big.rule == "meta length > 1400 drop"
    assert (
        explain_leg(evidence, type(flow)(CLIENT, SERVER, PORT, state="established", packet_length=1400)).blocks is False
    )


def test_a_rule_that_draws_lots_takes_some_of_the_packets(pair: Pair) -> None:
    rule = "numgen random mod 100 < 30 drop"
    pair.load(pair.server, chain(rule))
    client, server = both(pair)
    told = explain_blocked("dropped", pair.flow(PORT), Ends(client, server, "node-a", "node-b"))
    assert told is not None
    assert told.by_chance
    assert "node-b drops some of the packets of TCP 29500" in told.says
    assert rule in told.says
    pair.allow(pair.server, told.remedy)
    assert explain_leg(pair.evidence(pair.server, CLIENT), pair.flow(PORT)).blocks is False


@pytest.mark.parametrize(
    "rule",
    one_in(
        3, ["limit rate over 1/second drop", "tcp dport 29500 tcp option maxseg size 1-500 drop", "ip dscp cs1 drop"]
    ),
)
def test_what_cannot_be_told_is_never_claimed(pair: Pair, rule: str) -> None:
    pair.load(pair.server, chain(rule))
    client, server = both(pair)
    told = explain_blocked("dropped", pair.flow(PORT), Ends(client, server, "node-a", "node-b"))
    assert told is not None
    assert not told.decided
    assert "node-b drops TCP 29500" in told.says
    assert "most likely by a rule whose match cannot be decided from here" in told.says
    assert rule in told.says
    pair.allow(pair.server, told.remedy)
    assert explain_leg(pair.evidence(pair.server, CLIENT), pair.flow(PORT)).blocks is False
