"""Policies of `ip xfrm policy`, recorded from iproute2 6.1: which one a packet in the clear meets."""

from __future__ import annotations

import pytest

from runbook.firewall.collected_rules import ipsec_policy_for, parse_ipsec_policies

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
        ("10.0.0.1", "10.0.0.7", True, "src 10.0.0.0/24 dst 10.0.0.1/32 dir in"),
        ("fd00::1", "fd00::7", True, "src fd00::/64 dst fd00::1/128 dir in"),
        ("10.0.0.3", "10.0.0.1", False, None),
        ("10.0.0.1", "10.0.1.7", True, None),
        ("10.0.0.1", "a name", True, None),
    ],
)
def test_the_policy_that_a_packet_meets(near: str, far: str, arriving: bool, told: str | None) -> None:
    found = ipsec_policy_for(parse_ipsec_policies(RECORDED), [near], far, arriving=arriving)
    assert (found.selector if found else None) == told


def test_what_it_does_and_in_which_order() -> None:
    found = parse_ipsec_policies(RECORDED)
    assert [(policy.priority, policy.blocks) for policy in found] == [(0, True), (7, True), (100, True), (200, False)]
    assert found[1].narrow == "proto tcp dport 29500"
    assert found[1].typed == "src 10.0.0.2/32 dst 10.0.0.1/32 proto tcp dport 29500 dir out"


@pytest.mark.parametrize(
    "text", ["", "Cannot open netlink socket", "src\n\tdir in action block", "src a dst b \n\tdir x"]
)
def test_what_is_no_policy(text: str) -> None:
    assert parse_ipsec_policies(text) == []


def test_a_name_in_it_stays_one_word() -> None:
    (policy,) = parse_ipsec_policies("src 10.0.0.2/32 dst 10.0.0.1/32 uid;reboot\n\tdir out action block")
    assert policy.typed == "src 10.0.0.2/32 dst 10.0.0.1/32 'uid;reboot' dir out"
