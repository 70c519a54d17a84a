"""What this job runs on, as far as bandwidth goes: from the inventory, the ranks and what the nodes told."""

from __future__ import annotations

import re
from collections.abc import Mapping

from runbook.checks.bandwidth.wires import Wires
from runbook.checks.context import Context
from runbook.checks.normal.expect import BandwidthSetting
from runbook.checks.ranks.pool import RankPool
from runbook.launch.ranks import network_environment


def setting_of(pool: RankPool, at: Context, wires: Mapping[str, Wires]) -> BandwidthSetting:
    """`wires` of every node."""
    nodes = at.nodes
    said = [member.steps.get("imported", {}).get("gpu") for member in pool.members]
    rates = [wires[node.name].gbps for node in nodes]
    algorithm = network_environment(at.inventory, nodes[0]).get("NCCL_ALGO")
    one_name = isinstance(algorithm, str) and re.fullmatch(r"[A-Za-z_]+", algorithm)
    return BandwidthSetting(
        backend=at.inventory.rendezvous.backend,
        ranks=tuple(len(pool.on(node.name)) for node in nodes),
        gpus=tuple(str(name) for name in said) if all(said) else (),
        adapters=tuple(tuple(port.rate_gbps or 0.0 for port in wires[node.name].ports) for node in nodes),
        link_gbps=min((rate for rate in rates if rate), default=None) if all(rates) else None,
        algorithm=str(algorithm).lower() if one_name else None,
        one_machine=len({at.machine(node.name) for node in nodes}) == 1,
    )
