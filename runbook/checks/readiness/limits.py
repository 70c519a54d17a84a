"""Limits that hurt later: locked memory for RDMA, shared memory between the GPUs of a node."""

from __future__ import annotations

from runbook.checks.context import Facts
from runbook.model.inventory import Inventory, Node

MEMLOCK_BYTES = 64 << 20


SHM_BYTES = 1 << 30
"""NCCL needs a few tens of MiB of shared memory for each pair of GPUs of a node; Docker gives 64 MiB in all."""


def limit_warnings(inventory: Inventory, node: Node, facts: Facts, warnings: list[str]) -> None:
    memlock = facts["limits"].get("memlock_bytes")
    if inventory.infiniband and memlock is not None and memlock < MEMLOCK_BYTES:
        warnings.append(f"memlock limit is {memlock >> 10} KiB: RDMA registers memory beyond that; set it to unlimited")
    shm = facts.get("shm")
    if len(node.gpus) > 1 and shm and shm["bytes"] < SHM_BYTES:
        warnings.append(f"/dev/shm has {shm['bytes'] >> 20} MiB: NCCL between GPUs of one node wants 1 GiB or more")
