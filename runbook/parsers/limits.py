"""ulimit -a and /proc/PID/limits: how much memory may be locked, how many files may be open."""

from __future__ import annotations

import re

from runbook.parsers.reading import CUT, Fault, Reading, Tool, numbered

MEMLOCK_KIB = 64 << 10
"""Below it two nodes do not get up over RDMA (the live check's limit is the same)."""

USUAL_KIB = 1024
"""Up to here every use of RDMA fails; 8 MiB is what new systems start with, and says little of one that has no RDMA."""

FILES = 256
LIMIT = r"unlimited|-?\d+"
MEMLOCK = (
    re.compile(rf"(?:max )?locked memory\s*\((?P<unit>kbytes|bytes)(?:, -l)?\)\s+(?P<value>{LIMIT})\s*\Z"),
    re.compile(rf"-l: locked[- ](?:in-memory size|memory size|memory) \((?P<unit>kbytes)\)\s+(?P<value>{LIMIT})\s*\Z"),
    re.compile(rf"Max locked memory\s+(?P<value>{LIMIT})\s+(?:{LIMIT})\s+(?P<unit>bytes)\s*\Z"),
)
OPEN = (
    re.compile(rf"(?:open files\s+\(-n\)|nofiles|-n: file descriptors|Max open files)\s+(?P<value>{LIMIT})(?:\s+(?:{LIMIT})\s+files)?\s*\Z"),
)  # fmt: skip


def read(text: str) -> Reading | None:
    memlock: tuple[float, int] | None = None
    files: tuple[float, int] | None = None
    for at, line in numbered(text):
        if found := next((match for pattern in MEMLOCK if (match := pattern.match(line.strip()))), None):
            memlock = (_amount(found["value"]) / (1 if found["unit"] == "kbytes" else 1024), at)
        elif found := OPEN[0].match(line.strip()):
            files = (_amount(found["value"]), at)
    if memlock is None and files is None:
        return None
    faults = []
    if memlock and memlock[0] < MEMLOCK_KIB:
        faults.append(
            Fault(
                "memlock-limit",
                f"only {memlock[0]:.0f} KiB of memory may be locked: RDMA cannot register its buffers in that",
                "printf '* - memlock unlimited\\n' | sudo tee /etc/security/limits.d/99-rdma.conf   # then log in again; "
                "in a container `--ulimit memlock=-1`, under Slurm `LimitMEMLOCK=infinity` for slurmd",
                (memlock[1],),
                "medium" if memlock[0] <= USUAL_KIB else "low",
            )
        )
    if files and files[0] < FILES:
        remedy = "ulimit -n 65536   # for good: `* - nofile 65536` in /etc/security/limits.d/"
        faults.append(
            Fault("open-files-limit", f"only {files[0]:.0f} files may be open at once", remedy, (files[1],), "medium")
        )
    facts = {
        "memlock_kb": _plain(memlock),
        "nofile": _plain(files),
        "memlock_too_low_for_rdma": memlock[0] < MEMLOCK_KIB if memlock else None,
    }
    return Reading("ulimit", facts, tuple(faults), (), "" if memlock and files else CUT)


def _amount(text: str) -> float:
    return float("inf") if text == "unlimited" or text.startswith("-") else float(text)


def _plain(limit: tuple[float, int] | None) -> int | str | None:
    return None if limit is None else "unlimited" if limit[0] == float("inf") else int(limit[0])


def locked(text: str) -> Reading | None:
    """`ulimit -l` alone: a bare number of KiB."""
    words = text.split()
    if len(words) != 1 or not re.fullmatch(LIMIT, words[0]):
        return None
    told = read(f"max locked memory (kbytes, -l) {words[0]}")
    return told and Reading("ulimit", told.facts, told.faults)


TOOLS = (
    Tool("ulimit", r"(?:.*\bulimit (?:-[SH] ?)*-[SH]*l\b)", r"(?!)", rf"(?:{LIMIT})\s*\Z", (), locked),
    Tool(
    "ulimit", r"(?:.*\bulimit (?:-[SH] )?-[SH]?a\b|cat /proc/\S+/limits|prlimit)",
    r"(?:core file size|real-time non-blocking|max locked memory|data seg size|time\(seconds\)|Limit\s+Soft Limit|-t: cpu time|cpu time \(seconds)",
    r"[A-Za-z-][\w :-]*?(?:\([^)]*\))?\s+(?:unlimited|-?\d+)|Limit\s+Soft", ("locked memory", "locked-in-memory"), read,
),
)  # fmt: skip
