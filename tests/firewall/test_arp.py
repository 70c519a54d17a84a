"""Rules of nft's `arp` family, by which a node keeps others from finding it. The listings are those of nft 1.0.6."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from runbook.firewall.collected_rules import Evidence
from runbook.firewall.explain_node import ArpStop, find_arp_stop

MINE, PEER, OTHER = "10.0.0.1", "10.0.0.2", "10.0.0.3"
DROP, ACCEPT, COUNT = {"drop": None}, {"accept": None}, {"counter": {"packets": 0, "bytes": 0}}


def of(field: str, value: str) -> dict[str, Any]:
    return {"match": {"op": "==", "left": {"payload": {"protocol": "arp", "field": field}}, "right": value}}


def through(device: str) -> dict[str, Any]:
    return {"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": device}}


def node(
    *rules: list[Any],
    hook: str = "input",
    policy: str = "accept",
    family: str = "arp",
    hooks: Mapping[str, list[Any]] | None = None,
) -> Evidence:
    """A node with these rules, from handle 3 on, in a chain on this hook; `hooks`: another hook's one rule."""
    at = {"family": family, "table": "quiet"}
    items: list[Any] = [{"table": {"family": family, "name": "quiet", "handle": 1}}]
    handle = 3
    for where, those in {hook: list(rules), **{other: [rule] for other, rule in (hooks or {}).items()}}.items():
        chain = {"name": where, "handle": 1, "type": "filter", "hook": where, "prio": 0, "policy": policy}
        items.append({"chain": {**at, **chain}})
        for expr in those:
            items.append({"rule": {**at, "chain": where, "handle": handle, "expr": expr}})
            handle += 1
    listing = {"status": "ok", "rc": 0, "stdout": json.dumps({"nftables": items}), "stderr": ""}
    return Evidence.of({"tools": {"nft-json": listing}, "facts": {}})


def stop(evidence: Evidence, peer: str = PEER) -> ArpStop | None:
    return find_arp_stop(evidence, "eth0", MINE, peer)


def test_without_rules_nothing_stops_arp() -> None:
    assert stop(Evidence.of({"tools": {}})) is None
    assert stop(node()) is None


def test_a_rule_against_one_peer() -> None:
    against = node([of("saddr ip", PEER), COUNT, DROP])
    found = stop(against)
    assert found is not None
    assert found.certain
    assert found.says.startswith("nft rule arp quiet input handle 3 `")
    assert found.remedy == f"sudo nft insert rule arp quiet input position 3 arp saddr ip {PEER} accept"
    assert stop(against, OTHER) is None


def test_what_is_sent_is_looked_at_by_its_receiver() -> None:
    against = node([of("daddr ip", PEER), DROP], hook="output")
    found = stop(against)
    assert found is not None
    assert found.remedy == f"sudo nft insert rule arp quiet output position 3 arp daddr ip {PEER} accept"
    assert stop(node([of("daddr ip", PEER), DROP], hook="input")) is None, "what arrives is for us, not for the peer"


def test_a_policy_stops_all_but_those_let_in() -> None:
    closed = node([of("saddr ip", OTHER), ACCEPT], policy="drop")
    found = stop(closed)
    assert found is not None
    assert found.says == "nft chain arp quiet input `policy drop`"
    assert found.remedy == f"sudo nft add rule arp quiet input arp saddr ip {PEER} accept"
    assert stop(closed, OTHER) is None


def test_a_rule_for_another_interface_is_none_of_ours() -> None:
    assert stop(node([through("eth1"), DROP])) is None
    assert stop(node([through("eth0"), DROP])) is not None


def test_what_cannot_be_told_is_named_and_not_certain() -> None:
    found = stop(node([{"limit": {"rate": 1, "per": "second"}}, DROP]))
    assert found is not None
    assert not found.certain


def test_a_certain_rule_comes_before_one_that_may_match() -> None:
    found = stop(node([{"limit": {"rate": 1, "per": "second"}}, DROP], hooks={"output": [of("daddr ip", PEER), DROP]}))
    assert found is not None
    assert found.certain
    assert "arp daddr ip" in found.remedy


@pytest.mark.parametrize("family", ["ip", "inet", "bridge"])
def test_rules_of_other_families_are_no_matter_of_arp(family: str) -> None:
    assert stop(node([DROP], family=family)) is None
