"""The permission that is asked for where sudo wants a password: what is printed works, and allows nothing else."""

from __future__ import annotations

import re

import pytest
from lab import Host, Lab

from firewall.pair import PROGRAM, collected
from runbook.firewall.collected_rules import Evidence
from runbook.firewall.evaluate import Flow
from runbook.firewall.explain_connection import Ends, explain_blocked

pytestmark = pytest.mark.lab


def rules(host: Host, peer: Host) -> Evidence:
    command = [host.lab.python_without_torch, "-", f'{{"peers": ["{peer.address}"]}}']
    return collected(host.run(command, input=PROGRAM).stdout)


def test_what_is_printed_lets_the_rules_be_read_and_nothing_be_changed(two_hosts: Lab) -> None:
    a, b = two_hosts["node-a"], two_hosts["node-b"]
    b.firewall(
        "table inet lab {\n chain input {\n type filter hook input priority 0; policy drop;\n tcp dport 22 accept\n }\n}\n"
    )
    b.sudo("password")
    flow = Flow(a.address, b.address, 29500)
    told = explain_blocked("dropped", flow, Ends(rules(a, b), rules(b, a), "node-a", "node-b"))
    assert told is not None
    assert (told.decided, told.node) == (False, "node-b")
    assert "the rules may not be read to find the one that does it on node-b: nft and iptables" in told.says
    (grant,) = re.findall(r"`(echo .*?)`", told.remedy)
    b.run(grant, "root", env={"USER": two_hosts.user})
    assert "parsed OK" in b.run(["visudo", "-c"], "root").stdout
    told = explain_blocked("dropped", flow, Ends(rules(a, b), rules(b, a), "node-a", "node-b"))
    assert told is not None
    assert told.decided
    assert "policy drop" in told.says
    for command in (["nft", "flush", "ruleset"], ["iptables-save", "-f", "/etc/passwd"], ["ufw", "disable"]):
        assert b.run(["sudo", "-n", *command], check=False).returncode != 0
