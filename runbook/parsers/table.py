"""Every form of output that is known. Of two that begin alike the more particular one comes first."""

from __future__ import annotations

from runbook.parsers import (
    addresses,
    clock,
    disks,
    ibportstate,
    ibstat,
    limits,
    listeners,
    nvidia_details,
    nvidia_lists,
    nvidia_table,
    packet_filters,
    pci,
    perfquery,
    ping,
    rdma_link,
    services,
    windows,
)
from runbook.parsers.reading import Tool

TABLE: tuple[Tool, ...] = (
    *clock.TOOLS, ibportstate.TOOL, ibstat.TOOL, perfquery.TOOL, rdma_link.TOOL, *ping.TOOLS, *nvidia_lists.TOOLS, nvidia_table.TOOL, nvidia_details.TOOL,
    *services.TOOLS, *packet_filters.TOOLS, *windows.TOOLS, *pci.TOOLS, *limits.TOOLS, *disks.TOOLS, listeners.TOOL, *addresses.TOOLS,
)  # fmt: skip
