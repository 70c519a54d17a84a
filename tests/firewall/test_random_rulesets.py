"""Random rulesets: the evaluator and the kernel agree on every one, and the remedy opens what is blocked."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from firewall.grammar import iptables_ruleset, nft_ruleset
from firewall.pair import CLIENT, LONG, Pair
from runbook.firewall.collected_rules import Evidence
from runbook.firewall.explain_node import Explanation, explain_leg

pytestmark = pytest.mark.lab
PORT = 29500


def evidence_of(pair: Pair, **commands: str) -> Evidence:
    """What the node program would have brought, without its other commands."""
    tools: dict[str, object] = {
        name.replace("_", "-"): {"status": "ok", "rc": 0, "stdout": pair.sh(pair.server, command), "flavour": "legacy"}
        if "legacy" in command
        else {"status": "ok", "rc": 0, "stdout": pair.sh(pair.server, command), "flavour": "nft"}
        for name, command in commands.items()
    }
    tools[f"route {CLIENT}"] = {"status": "ok", "rc": 0, "stdout": '[{"dst": "10.77.0.1", "dev": "eth0"}]'}
    return Evidence.of({"tools": tools, "facts": {}})


def agrees(pair: Pair, told: Explanation, rules: str) -> bool:
    """Compare with a connection; then run the remedy and look again. -> was it blocked?"""
    assert told.blocks is not None, f"{rules}\n{told}"
    seen = pair.connect(PORT, patience=0.08)
    if seen == "dropped" and told.action != "drop":
        seen = pair.connect(PORT, patience=LONG)  # a busy machine is no firewall
    expected = {"accept": "open", "drop": "dropped"}.get(told.action, "rejected")
    assert told.action != "unknown", f"{rules}\n{told}"
    assert seen == expected, f"{rules}\n{told}"
    if told.blocks:
        pair.allow(pair.server, told.allow)
        assert pair.connect(PORT, patience=LONG) == "open", f"{rules}\n{told}"
    return bool(told.blocks)


def test_nft(pair: Pair) -> None:
    tried = blocked = 0
    for seed in range(80):
        rules = nft_ruleset(Random(seed))
        if not pair.try_to_load(pair.server, "flush ruleset\n" + rules):
            continue  # nft itself refuses some of them: tcp and udp in one rule
        tried += 1
        evidence = evidence_of(pair, nft_json="nft -j -a list ruleset", nft_text="nft -a list ruleset")
        blocked += agrees(pair, explain_leg(evidence, pair.flow(PORT)), rules)
    assert tried > 50
    assert 10 < blocked < tried - 5


@pytest.mark.parametrize("program", ["iptables", "iptables-legacy"])
def test_iptables(pair: Pair, program: str) -> None:
    blocked = 0
    reset = "; ".join(f"{program} -t {table} -F; {program} -t {table} -X" for table in ("filter", "raw", "mangle"))
    for seed in range(25):
        rules = iptables_ruleset(Random(seed), program)
        pair.sh(pair.server, f"{program} -P INPUT ACCEPT; {reset}; nft flush ruleset; {rules}")
        evidence = evidence_of(pair, nft_json="nft -j -a list ruleset", iptables_save=f"{program}-save")
        told = explain_leg(evidence, pair.flow(PORT))
        if told.blocks:  # here plain `iptables` is the nft flavour, whichever is asked about
            assert told.allow.startswith("sudo iptables ")
            told = replace(told, allow=told.allow.replace("sudo iptables ", f"sudo {program} "))
        blocked += agrees(pair, told, rules)
    assert 5 < blocked < 24
