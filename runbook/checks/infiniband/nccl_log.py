"""Did NCCL take InfiniBand, or fall back to TCP? From its own lines (NCCL_DEBUG=INFO) in a rank's log."""

from __future__ import annotations

import re
from collections.abc import Iterable

from runbook.model.regex import bounded
from runbook.model.verdict import Finding

OVER_TCP = bounded(r"NCCL INFO .*(?:\bvia NET/Socket/\d|Using network Socket\b)")
OVER_RDMA = bounded(r"NCCL INFO .*(?:\bvia NET/(?!Socket)\w+/\d|Using network (?!Socket\b)\w)")
REASONS = (
    (
        re.compile(r"NCCL_IB_DISABLE set by environment to 1"),
        "NCCL_IB_DISABLE=1 forbids it",
        "take NCCL_IB_DISABLE out of `env:` in the inventory, and out of the node's profile and /etc/nccl.conf",
    ),
    (
        re.compile(r"NCCL_NET set by environment to Socket", re.I),
        "NCCL_NET=Socket asks for TCP",
        "take NCCL_NET out of `env:` in the inventory, and out of the node's profile and /etc/nccl.conf",
    ),
    (
        bounded(r"Failed to open libibverbs|libibverbs\.so.*cannot open|Unable to load libibverbs", re.I),
        "the library libibverbs is not installed there",
        "sudo apt-get install -y libibverbs1 ibverbs-providers",
    ),
    (
        re.compile(r"NET/IB : No device found"),
        "NCCL finds no device that it may use",
        (
            "compare NCCL_IB_HCA with `ibstat -l`; in a container pass the devices on: `--device=/dev/infiniband "
            "--cap-add=IPC_LOCK --ulimit memlock=-1`"
        ),
    ),
)


def socket_fallback(node: str, lines: Iterable[str]) -> Finding | None:
    """A finding when NCCL says that it moves data between nodes over TCP sockets and never that it uses anything else.

    For a job whose inventory has an `infiniband:` block. Lines that tell neither way prove neither way: None.
    """
    over_tcp: list[str] = []
    why = None
    for raw in lines:
        line = raw.strip()
        if OVER_RDMA.search(line):
            return None
        if OVER_TCP.search(line) and len(over_tcp) < 3:
            over_tcp.append(line)
        for pattern, reason, remedy in REASONS:
            # The first of the list that is told is the reason: what is forbidden is not found either.
            if pattern.search(line) and (why is None or REASONS.index((pattern, reason, remedy)) < why[0]):
                why = (REASONS.index((pattern, reason, remedy)), reason, remedy, line)
    if not over_tcp:
        return None
    told = f": {why[1]}" if why else ", and does not say why"
    remedy = (
        why[2]
        if why
        else "run again with NCCL_DEBUG: INFO and NCCL_DEBUG_SUBSYS: INIT,NET in `env:`, and look for NET/IB"
    )
    return Finding(
        "ib-not-used-socket-fallback",
        f"NCCL on {node} moves its data over TCP instead of InfiniBand{told}",
        remedy,
        tuple(dict.fromkeys([*([why[3]] if why else []), *over_tcp])),
    )
