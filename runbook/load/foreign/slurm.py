"""Slurm's host lists: `gn[01-04,07],login1`, `r[1-2]n[01-16]`, or the lines of `scontrol show hostnames`."""

from __future__ import annotations

import re

from runbook.load.address import address_fault
from runbook.load.file_kinds import NumberedLines
from runbook.load.foreign.found import HOST_LIST, ForeignHost, ForeignInventory
from runbook.load.node_sets import LARGEST, expand

_BETWEEN = re.compile(r"[,\s]+(?![^\[\]]*\])")


def read_host_list(text: str, file: str) -> ForeignInventory:
    """Raises FilesWrong at the first word that is no host and no range of hosts."""
    lines = NumberedLines(text, file)
    hosts: dict[str, ForeignHost] = {}
    for number, raw in enumerate(lines.lines, 1):
        line = raw.partition("#")[0].strip()
        for word in filter(None, _BETWEEN.split(line)):
            try:
                names = expand(word)
            except ValueError as error:
                raise lines.wrong(number, word, "range", str(error)) from None
            fault = address_fault(names[0])
            if fault is not None:
                help = fault[1] or "a host list reads gn[01-04,07],login1"
                raise lines.wrong(number, word, "bad-host", fault[0], help)
            for name in names:
                hosts.setdefault(name, ForeignHost(name, lines.span(number, word), {}))
            if len(hosts) > LARGEST:
                raise lines.wrong(number, word, "too-many-nodes", f"there are more than {LARGEST:,} hosts")
    if not hosts:
        raise lines.wrong(
            1, "", "empty", "the host list is empty", "inside a job: runbook inventory import $SLURM_JOB_NODELIST"
        )
    return ForeignInventory(HOST_LIST, file, tuple(hosts.values()))
