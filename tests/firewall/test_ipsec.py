"""Policies of `ip xfrm policy`, recorded from iproute2 6.1: which one a packet in the clear meets."""

from __future__ import annotations

import json

import pytest

from runbook.firewall.collected_rules import CommandResult, Evidence, ipsec_policy_for, parse_ipsec_policies

RECORDED = """\
src 10.0.0.2/32 dst 10.0.0.1/32 proto tcp dport 29500
\tdir out action block priority 7 ptype main
src 10.0.0.0/24 dst 10.0.0.1/32
\tdir in priority 200
\ttmpl src 0.0.0.0 dst 0.0.0.0
\t\tproto esp reqid 1 mode transport
src 10.0.0.2/32 dst 10.0.0.1/32
\tdir out action block priority 100
src 10.0.0.9/32 dst 10.0.0.1/32
\tdir in priority 0
\ttmpl src 0.0.0.0 dst 0.0.0.0
\t\tproto esp reqid 1 mode transport
\t\tlevel use
src fd00::/64 dst fd00::1/128
\tdir in action block priority 0
src 0.0.0.0/0 dst 0.0.0.0/0
\tsocket in priority 0
src 0.0.0.0/0 dst 0.0.0.0/0
\tdir in priority 0
"""


@pytest.mark.parametrize(
    ("near", "far", "arriving", "told"),
    [
        ("10.0.0.2", "10.0.0.1", False, "src 10.0.0.2/32 dst 10.0.0.1/32 proto tcp dport 29500 dir out"),
        ("10.0.0.1", "10.0.0.7", True, "src 0.0.0.0/0 dst 0.0.0.0/0 dir in"),  # it lets all pass, and comes first
        ("fd00::1", "fd00::7", True, "src fd00::/64 dst fd00::1/128 dir in"),
        ("10.0.0.3", "10.0.0.1", False, None),
        ("10.0.0.1", "10.0.1.7", True, "src 0.0.0.0/0 dst 0.0.0.0/0 dir in"),
        ("10.0.0.1", "a name", True, None),
    ],
)
def test_the_policy_that_a_packet_meets(near: str, far: str, arriving: bool, told: str | None) -> None:
    found = ipsec_policy_for(parse_ipsec_policies(RECORDED), [near], far, arriving=arriving)
    assert (found.selector if found else None) == told


def test_what_it_does_and_in_which_order() -> None:
    found = parse_ipsec_policies(RECORDED)
    does = {(True, False): "blocks", (False, True): "passes", (False, False): "protects"}
    assert [(policy.priority, does[policy.blocks, policy.passes]) for policy in found] == [
        *((0, "passes"), (0, "blocks"), (0, "passes"), (7, "blocks"), (100, "blocks"), (200, "protects")),
    ]
    assert found[3].narrow == "proto tcp dport 29500"
    assert found[3].typed == "src 10.0.0.2/32 dst 10.0.0.1/32 proto tcp dport 29500 dir out"


@pytest.mark.parametrize(
    "text", ["", "Cannot open netlink socket", "src\n\tdir in action block", "src a dst b \n\tdir x"]
)
def test_what_is_no_policy(text: str) -> None:
    assert parse_ipsec_policies(text) == []


BYPASS = "src 10.0.0.0/24 dst 10.0.0.0/24 \n\tdir out priority 10\n"
CATCH_ALL = "src 0.0.0.0/0 dst 0.0.0.0/0 \n\tdir out action block priority 500\n"
OF_THE_VPN = "src 10.9.0.5/32 dst 0.0.0.0/0 \n\tdir out action block priority 5\n"


@pytest.mark.parametrize(
    ("policies", "blocked"),
    [
        (CATCH_ALL, True),
        (BYPASS + CATCH_ALL, False),
        (BYPASS.replace("10.0.0.0/24 \n", "10.0.0.0/24 proto tcp\n") + CATCH_ALL, True),
        (OF_THE_VPN, False),
    ],
)
def test_only_the_policy_that_the_kernel_takes_is_blamed(policies: str, blocked: bool) -> None:
    """Not one behind a bypass, nor one for packets from another of the node's addresses."""
    route = CommandResult("ok", 0, '[{"dst": "10.0.0.2", "dev": "eth0", "prefsrc": "10.0.0.1"}]')
    shown = [
        {"ifname": "tun0", "addr_info": [{"local": "10.9.0.5"}]},
        {"ifname": "eth0", "addr_info": [{"local": "10.0.0.1"}]},
    ]
    addresses = CommandResult("ok", 0, json.dumps(shown))
    tools = {"ipsec": CommandResult("ok", 0, policies), "route 10.0.0.2": route, "addresses": addresses}
    assert (Evidence(tools, {}).ipsec("10.0.0.2", arriving=False) is not None) is blocked


def test_a_name_in_it_stays_one_word() -> None:
    (policy,) = parse_ipsec_policies("src 10.0.0.2/32 dst 10.0.0.1/32 uid;reboot\n\tdir out action block")
    assert policy.typed == "src 10.0.0.2/32 dst 10.0.0.1/32 'uid;reboot' dir out"
