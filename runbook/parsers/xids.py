"""What the NVIDIA driver wrote into the kernel's log: Xid and SXid lines, which of them still count, and for what.

Numbers as in NVIDIA's Xid catalogue (r590); `diagnose/rules/gpu.py` reads the same out of files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runbook.parsers.nvidia import bus_key

RECENT_S = 3600.0
"""A fault older than this has been mended since, or shows in what nvidia-smi says: it is no more than a hint."""

CAUSE_OF: Mapping[int, str] = {
    79: "gpu-fell-off-bus",
    **dict.fromkeys((48, 94, 95, 140, 171, 172), "gpu-ecc-uncorrectable"),
    **dict.fromkeys((74, *range(144, 151)), "nvlink-error"),
    **dict.fromkeys((61, 62, 64, 119, 120, 136, 143, 154), "gpu-reset-required"),
}
APPLICATION = {13: "a bad memory access", 31: "a page fault", 43: "a stopped channel", 45: "a removed channel"}
"""What a program does to itself. It says nothing about the machine, unless it follows one GPU."""

XID = re.compile(r"\bXid \((?:PCI:)?(?P<at>[0-9A-Fa-f:.]+)\): (?P<number>\d+)(?P<text>.*)")
SXID = re.compile(r"\bSXid \((?:PCI:)?(?P<at>[0-9A-Fa-f:.]+)\): (?P<number>\d+), (?P<text>Fatal\b.*)")
STAMP = re.compile(r"^\[\s*(\d+\.\d+)\]")
DRIVER_STARTS = "loading NVIDIA UNIX"
RECOVERED = re.compile(r"recovery action changed from .* to 0x0 \(None\)")


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One line. `age_s` is how long ago it was written, None where its time stamp is of an unknown kind."""

    number: int
    bus: str
    text: str
    age_s: float | None
    cause: str | None

    @property
    def recent(self) -> bool:
        return self.age_s is None or self.age_s < RECENT_S


def events(lines: Iterable[str], uptime_s: float) -> list[XidEvent]:
    """The Xid and fatal SXid lines since the driver was loaded, without those that a reset has answered."""
    found: list[XidEvent] = []
    seen: set[tuple[str, str]] = set()
    for line in lines:
        if DRIVER_STARTS in line:
            found = []
            continue
        match = XID.search(line) or SXID.search(line)
        if not match:
            continue
        number, bus = int(match["number"]), bus_key(match["at"]) or match["at"]
        if number == 154 and RECOVERED.search(line):
            found = [event for event in found if event.bus != bus]
            continue
        stamp = STAMP.match(line)
        # dmesg and journalctl both tell it, the one with microseconds more or less.
        key = (stamp[1][:-4] if stamp else line, match[0])
        if key in seen:
            continue
        seen.add(key)
        age = max(0.0, uptime_s - float(stamp[1])) if stamp and uptime_s else None
        cause = CAUSE_OF.get(number) if "SXid" not in match[0] else "nvlink-error"
        found.append(XidEvent(number, bus, match[0], age, cause))
    return found


def ago(event: XidEvent) -> str:
    if event.age_s is None:
        return "since the last boot"
    if event.age_s < 120:
        return f"{event.age_s:.0f} s ago"
    return f"{event.age_s / 60:.0f} min ago" if event.age_s < 7200 else f"{event.age_s / 3600:.0f} h ago"
