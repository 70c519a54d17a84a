"""The catalogue of signs and rules, all families together."""

from __future__ import annotations

from runbook.diagnose import collectives, progress_lines
from runbook.diagnose.rules import (
    accelerators,
    addresses,
    builds,
    nccl,
    program,
    ranks,
    rdma,
    reaching,
    rendezvous,
    sockets,
    unexplained,
)
from runbook.diagnose.scan import Catalogue, Scanner
from runbook.diagnose.scan_limits import LIMITS, ScanLimits
from runbook.diagnose.sign import Rule, Sign

RULES: tuple[Rule, ...] = (
    *(*reaching.RULES, *addresses.RULES, *sockets.RULES, *addresses.INTERFACE_RULES, *rendezvous.RULES, *ranks.RULES),
    *(*program.RULES, *builds.RULES, *accelerators.RULES, *reaching.CONTAINER_RULES, *rdma.RULES, *nccl.RULES),
    *(*collectives.RULES, *unexplained.RULES),
)
SIGNS: tuple[Sign, ...] = (
    *(*reaching.SIGNS, *addresses.SIGNS, *sockets.SIGNS, *addresses.INTERFACE_SIGNS, *rendezvous.SIGNS, *ranks.SIGNS),
    *(*program.SIGNS, *builds.SIGNS, *accelerators.SIGNS, *reaching.CONTAINER_SIGNS, *rdma.SIGNS, *nccl.SIGNS),
    *(*collectives.SIGNS, *unexplained.SIGNS),
    *(sign for rule in RULES for sign in rule.signs if isinstance(sign, Sign)),
)

CATALOGUE = Catalogue(
    SIGNS, progress_lines.NOISE, progress_lines.PROGRESS_KEYS, progress_lines.GOES_ON, progress_lines.reached
)


def scanner(limits: ScanLimits = LIMITS) -> Scanner:
    """A scanner that knows every sign."""
    return Scanner(CATALOGUE, limits)
