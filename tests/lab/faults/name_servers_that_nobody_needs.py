"""No fault: the name server is gone, every address of the inventory is a number, and ranks only start later for it."""

from __future__ import annotations

from lab.fault import Fault

from .name_servers_that_do_not_answer import breaks

FAULT = Fault(
    breaks=breaks,
    cause=None,
    says=(r"nameserver 10\.\d+\.\d+\.53",),
    within_s=18,
)
