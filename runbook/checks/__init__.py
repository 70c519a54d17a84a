"""One check a file, its help page beside it. This table is all there is to registering one."""

from __future__ import annotations

from runbook.checks.allreduce import AllReduce
from runbook.checks.base import Check
from runbook.checks.connection import Connection
from runbook.checks.firewall import Firewall
from runbook.checks.ibstat import Ibstat
from runbook.checks.links import Links
from runbook.checks.ping import Ping
from runbook.checks.port import PortCheck
from runbook.checks.reach import Reach

CHECKS: dict[str, type[Check]] = {
    check.id: check for check in (Reach, Ping, PortCheck, Firewall, Ibstat, Connection, Links, AllReduce)
}
"""By the id that playbooks use, in the order in which they usually stand."""
