"""Limits of the login that stop a job later: locked memory for RDMA, open files, shared memory between GPUs."""

from __future__ import annotations

from runbook.checks.context import Facts
from runbook.model.inventory import Inventory, Node
from runbook.model.verdict import Finding
from runbook.parsers.host import FILES, MEMLOCK_KIB

MEMLOCK_FAIL, MEMLOCK_WARN = MEMLOCK_KIB << 10, 1 << 30
"""Bytes: with the first two nodes do not get up over RDMA, with the second many nodes may not."""

FILES_FAIL, FILES_WARN = FILES, 1024
"""Each peer holds a handful; 1024 is what every system starts with."""

SHM_SEGMENT, SHM_WARN = 10 << 20, 1 << 30
"""Bytes. NCCL's smallest segment (/dev/shm/nccl-*, 9637888 bytes) is made for each GPU of a node that talks to another:
where not even one for each fits, nothing starts. What Docker gives, 64 MiB, is enough for two and not for eight."""


def limit_findings(inventory: Inventory, node: Node, facts: Facts, warnings: list[str]) -> list[Finding]:
    """Limits under which the job cannot work; those under which it may not are added to `warnings`."""
    limits = facts["limits"]
    found = [
        _memlock(inventory, node, limits, warnings),
        _open_files(node, limits, warnings),
        _shared_memory(node, facts.get("shm"), warnings),
    ]
    return [finding for finding in found if finding is not None]


def _memlock(inventory: Inventory, node: Node, limits: Facts, warnings: list[str]) -> Finding | None:
    soft, hard = limits.get("memlock_bytes"), limits.get("memlock_hard_bytes")
    # Root is not limited, and who may raise the limit by `activate` perhaps does.
    if inventory.infiniband is None or soft is None or limits.get("may_lock") or soft >= MEMLOCK_WARN:
        return None
    can_raise = node.activate is not None and (hard is None or hard >= MEMLOCK_FAIL)
    if inventory.rendezvous.backend != "nccl" or soft >= MEMLOCK_FAIL or can_raise:
        warnings.append(
            f"logins may lock {soft >> 10} KiB of memory (ulimit -l): RDMA registers more; set it to unlimited"
        )
        return None
    return Finding(
        "memlock-limit",
        f"logins on {node.name} may lock {soft >> 10} KiB of memory: RDMA cannot register its buffers in that",
        f"on {node.name}: `printf '* - memlock unlimited\\n' | sudo tee /etc/security/limits.d/99-rdma.conf`, then log in "
        "again; in a container start it with `--ulimit memlock=-1`, under Slurm set `LimitMEMLOCK=infinity` for slurmd",
        (f"RLIMIT_MEMLOCK is {soft} bytes, at most {'unlimited' if hard is None else f'{hard} bytes'}",),
    )


def _open_files(node: Node, limits: Facts, warnings: list[str]) -> Finding | None:
    files = limits.get("open_files")
    if files is None or files >= FILES_WARN or files < 0:
        return None
    if files >= FILES_FAIL:
        warnings.append(f"logins may have {files} files open (ulimit -n): a large job needs more; 65536 is usual")
        return None
    return Finding(
        "open-files-limit",
        f"logins on {node.name} may have {files} files open, fewer than torch and its connections need",
        f"on {node.name}: `printf '* - nofile 65536\\n' | sudo tee /etc/security/limits.d/99-files.conf`, then log in again",
        (f"RLIMIT_NOFILE is {files}",),
    )


def _shared_memory(node: Node, shm: Facts | None, warnings: list[str]) -> Finding | None:
    if (
        len(node.gpus) < 2
        or not shm
        or (shm["bytes"] >= SHM_WARN and shm["free_bytes"] >= SHM_SEGMENT * len(node.gpus))
    ):
        return None
    size, free, need = shm["bytes"] >> 20, shm["free_bytes"] >> 20, SHM_SEGMENT * len(node.gpus) >> 20
    if shm["free_bytes"] >= SHM_SEGMENT * len(node.gpus):
        warnings.append(f"/dev/shm has {size} MiB: NCCL between GPUs of one node wants 1 GiB or more")
        return None
    return Finding(
        "shm-too-small",
        f"/dev/shm on {node.name} has {free} of {size} MiB free: NCCL needs at least {need} MiB for {len(node.gpus)} GPUs "
        "(in Docker: `--shm-size=8g` or `--ipc=host`)",
        f"on {node.name}: `sudo mount -o remount,size=8G /dev/shm`"
        if size < need
        else f"on {node.name}: `ls -lS /dev/shm | head`, and remove what ended jobs have left there (`rm /dev/shm/nccl-*`)",
        (f"{shm['free_bytes']} of {shm['bytes']} bytes are free",),
    )
