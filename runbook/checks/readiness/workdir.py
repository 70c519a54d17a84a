"""Can the run's folder on a node hold what is put there, and can programs start from it?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runbook.model.inventory import Node
from runbook.model.verdict import Finding

ROOM_BYTES = 64 << 20


def folder_findings(node: Node, hello: Mapping[str, Any]) -> list[Finding]:
    folder, free = hello["folder"], hello.get("free_bytes")
    if free is not None and free < ROOM_BYTES:
        return [
            Finding(
                "disk-full",
                f"{node.name} has {free >> 20} MiB left where {folder} lies; the job needs at least {ROOM_BYTES >> 20} MiB",
                f"free some space (`df -h {folder}`), or name another `workdir:`",
                (f"{free} bytes available",),
            )
        ]
    if hello.get("noexec"):
        return [
            Finding(
                "workdir-not-writable",
                f"{folder} on {node.name} lies on a file system mounted noexec: programs put there cannot be started",
                "name a `workdir:` on a file system that allows it, or remount without noexec",
                ("the mount has the flag noexec",),
            )
        ]
    return []
