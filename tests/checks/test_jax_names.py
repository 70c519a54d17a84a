"""Which of two ranks dials the other in JAX's gloo: told by their addresses, as gloo compares them."""

from __future__ import annotations

import ipaddress

import pytest

from runbook.jobs.start import gloo_rank_dials


@pytest.mark.parametrize(
    ("other", "mine", "dialled"),
    [
        ("10.0.0.2", "127.0.1.1", False),
        ("192.168.1.2", "127.0.1.1", True),
        ("172.16.0.9", "127.0.1.1", True),
        ("127.0.1.1", "127.0.1.1", True),
        ("127.0.0.1", "127.0.1.1", True),
        ("fd00::2", "127.0.1.1", True),
        ("10.0.0.2", "::1", True),
        ("fd00::2", "::1", True),
    ],
)
def test_the_larger_address_dials_and_loopback_meets_itself(other: str, mine: str, dialled: bool) -> None:
    assert gloo_rank_dials(ipaddress.ip_address(other), ipaddress.ip_address(mine)) is dialled
