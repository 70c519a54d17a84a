"""The catalogue of signs and rules, all families together."""

from __future__ import annotations

from runbook.diagnose import ras
from runbook.diagnose.reached import reached
from runbook.diagnose.rules import (
    accelerators,
    builds,
    containers,
    gpu,
    interfaces,
    names,
    nccl,
    noise,
    program,
    ranks,
    rdma,
    rendezvous,
    shells,
    sockets,
    unexplained,
)
from runbook.diagnose.scan import Catalogue, Scanner
from runbook.diagnose.sign import Rule, Sign

RULES: tuple[Rule, ...] = (
    *shells.RULES, *names.RULES, *sockets.RULES, *interfaces.RULES, *rendezvous.RULES, *ranks.RULES, *program.RULES, *builds.RULES, *gpu.RULES,
    *accelerators.RULES, *containers.RULES, *rdma.RULES, *nccl.RULES, *ras.RULES, *unexplained.RULES,
)  # fmt: skip
SIGNS: tuple[Sign, ...] = (
    *shells.SIGNS, *names.SIGNS, *sockets.SIGNS, *interfaces.SIGNS, *rendezvous.SIGNS, *ranks.SIGNS, *program.SIGNS, *builds.SIGNS, *gpu.SIGNS, *accelerators.SIGNS,
    *containers.SIGNS, *rdma.SIGNS,
    *nccl.SIGNS, *ras.SIGNS, *unexplained.SIGNS, *(sign for rule in RULES for sign in rule.signs if isinstance(sign, Sign)),
)  # fmt: skip


CATALOGUE = Catalogue(SIGNS, noise.NOISE, noise.PROGRESS, noise.GOES_ON, reached)


def scanner() -> Scanner:
    """A scanner that knows every sign."""
    return Scanner(CATALOGUE)
