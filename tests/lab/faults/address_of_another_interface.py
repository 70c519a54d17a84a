"""Nodes are listed by the addresses of their logins, the data goes over another interface, as Ethernet beside InfiniBand
does: the ranks meet at the former and talk over the latter, and all is well."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault

FAULT = Fault(
    breaks=Lab.data_network,
    inventory=lambda _lab: {"network": {"interface": "eth1"}},
    cause=None,
    says=(r"2 ranks on 2 hosts joined at 10\.",),
    within_s=8,
)
