"""Reads logs of the NVIDIA driver (Xid lines of the kernel's log, for live checks and pasted outputs) and of the fabric
manager.

Numbers of Xids are those of NVIDIA's catalogue (r590).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runbook.model.text_search import compile_bounded
from runbook.model.units import parse_number
from runbook.parsers.nvidia_smi_facts import bus_key
from runbook.parsers.tool_reading import Reading, numbered_lines

# --- facts -------------------------------------------------------------------------

RECENT_XID_S = 3600.0
"""An Xid older than this is only a hint: its fault has been mended since, or nvidia-smi shows it."""

CAUSE_BY_XID: Mapping[int, str] = {
    79: "gpu-fell-off-bus",
    **dict.fromkeys((48, 94, 95, 140, 171, 172), "gpu-ecc-uncorrectable"),
    **dict.fromkeys((74, *range(144, 151)), "nvlink-error"),
    **dict.fromkeys((61, 62, 64, 119, 120, 136, 143, 154, 156, 158), "gpu-reset-required"),
}
"""By the number of an Xid, the cause that it proves."""
REMEDY_BY_CAUSE: Mapping[str, str] = {
    "gpu-fell-off-bus": "reboot",
    "gpu-ecc-uncorrectable": "ecc",
    "nvlink-error": "reset",
    "gpu-reset-required": "reset",
}
"""By a cause that an Xid proves, the way of its remedy if nvidia-smi still lists the GPU."""

APPLICATION_XIDS = {13: "a bad memory access", 31: "a page fault", 43: "a stopped channel", 45: "a removed channel"}
"""Xids that a program causes by itself, in words. They say nothing about the machine, unless they stay with one GPU."""

CAUSED_BY_XID = r"(?:45, .{0,200}caused by previous Xid )?"
"""Skips the Xid 45 of a removed channel up to the earlier Xid that its line names as the reason: that Xid counts."""

XID_LINE = re.compile(rf"\bXid \((?:PCI:)?(?P<at>[0-9A-Fa-f:.]+)\): {CAUSED_BY_XID}(?P<number>\d+)(?P<text>.*)")
SXID_LINE = re.compile(r"\bSXid \((?:PCI:)?(?P<at>[0-9A-Fa-f:.]+)\): (?P<number>\d+), (?P<text>Fatal\b.*)")
NONFATAL_XID = re.compile(r"\): \d+, \w+ Nonfatal\b")
"""An error of a fifth-generation NVLink (Xids 144 to 150) that was repaired. If it ended a program, an Xid 45 tells."""

DMESG_STAMP = re.compile(r"^\[\s*(\d+\.\d+)\]")
DRIVER_START_TEXT = "loading NVIDIA UNIX"
RECOVERY_CLEARED = re.compile(r"recovery action changed from .* to 0x0 \(None\)")


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One Xid or SXid line. `age_s` is how many seconds ago it was written; None if its time stamp is of an unknown
    kind. `bus` is the GPU's PCI address, as `bus_key` writes it."""

    number: int
    bus: str
    text: str
    age_s: float | None
    cause: str | None

    @property
    def of_nvswitch(self) -> bool:
        """Whether the line is about an NVSwitch, not a GPU."""
        return self.text.startswith("SXid")

    @property
    def recent(self) -> bool:
        return self.age_s is None or self.age_s < RECENT_XID_S


def xid_events(logs: Iterable[Iterable[str]], uptime_s: float) -> list[XidEvent]:
    """The Xid and fatal SXid lines since the driver was loaded, less those before the last reset of their GPU. `logs`
    are copies of the kernel's log (dmesg's and the journal's): each tells of the driver and of resets by itself, and an
    event that several of them have is told once."""
    told = [event for lines in logs for event in _events_of_one_log(lines, uptime_s)]
    return list(dict(told).values())


def _events_of_one_log(lines: Iterable[str], uptime_s: float) -> list[tuple[tuple[str, str], XidEvent]]:
    """The events that count, each with the key by which it is known in another copy of the log."""
    found: list[tuple[tuple[str, str], XidEvent]] = []
    answered: dict[str, int] = {}  # by GPU, how many of `found` came before its last reset
    for line in lines:
        if DRIVER_START_TEXT in line:
            found, answered = [], {}
            continue
        match = XID_LINE.search(line) or SXID_LINE.search(line)
        if not match or NONFATAL_XID.search(match[0]):
            continue
        xid, bus = parse_number(match["number"]), bus_key(match["at"]) or match["at"]
        if xid == 154 and RECOVERY_CLEARED.search(line):
            answered[bus] = len(found)
            continue
        stamp = DMESG_STAMP.match(line)
        # dmesg and journalctl show the same line with slightly different microseconds.
        key = (stamp[1][:-4] if stamp else line, match[0])
        age = max(0.0, uptime_s - float(stamp[1])) if stamp and uptime_s else None
        cause = CAUSE_BY_XID.get(xid) if "SXid" not in match[0] else "nvlink-error"
        found.append((key, XidEvent(xid, bus, match[0], age, cause)))
    return [(key, event) for at, (key, event) in enumerate(found) if at >= answered.get(event.bus, 0)]


def event_age_text(event: XidEvent) -> str:
    """When the line was written, for a sentence: `5 min ago`."""
    if event.age_s is None:
        return "since the last boot"
    if event.age_s < 120:
        return f"{event.age_s:.0f} s ago"
    return f"{event.age_s / 60:.0f} min ago" if event.age_s < 7200 else f"{event.age_s / 3600:.0f} h ago"


# --- pasted outputs ---

FABRIC_MANAGER_STARTED = compile_bounded(r"Started .*(?:fabric ?manager|Fabric Manager)", re.IGNORECASE)
NVSWITCHES_CONFIGURED = re.compile(r"Successfully configured all the available (?:GPUs and )?NVSwitches", re.IGNORECASE)
FABRIC_MANAGER_FAILED = compile_bounded(
    r"fabricmanager\.service: (?:Failed with|Main process exited|Control process exited)"
    r"|Failed to start .*fabric ?manager|Active: (?:failed|inactive)"
    r"|fabric manager .*(?:version|mismatch).*(?:driver|kernel)|nv-fabricmanager.*(?:failed|error|fatal|exiting|abort)",
    re.IGNORECASE,
)
NO_NVSWITCH = compile_bounded(r"NOTHING_TO_DO|no (?:NV)?Switch|NVSwitch.*not (?:found|present|detected)", re.IGNORECASE)


def read_fabric_manager(text: str) -> Reading | None:
    """Reads the fabric manager's log, its state in systemctl, or the one word of `systemctl is-active`.

    The last line about its state counts: a manager that failed may run now.
    """
    if not re.search(r"fabric-?manager", text, re.IGNORECASE):
        word = text.strip()
        if word in ("active", "inactive", "failed", "unknown", "activating"):
            return _service_state_reading(word)
        return None
    running: bool | None = None
    configured = True
    failed: list[int] = []
    for at, line in numbered_lines(text):
        if FABRIC_MANAGER_FAILED.search(line):
            running, configured = False, False
            failed.append(at)
        if FABRIC_MANAGER_STARTED.search(line) or re.search(r"Active: active \(running\)", line):
            running = True
        if NVSWITCHES_CONFIGURED.search(line):
            configured = True
    reading = Reading()
    if running is False and failed and not NO_NVSWITCH.search(text):
        says = "the NVSwitch fabric manager does not run: CUDA will not start on GPUs that are connected by NVSwitch"
        reading.proves("fabricmanager-down", says, failed[:4], way="version")
    elif not (running and configured):
        reading.unknown = "it does not show that the fabric manager runs"
    return reading


def _service_state_reading(word: str) -> Reading:
    """The reading for the state that `systemctl is-active` prints."""
    reading = Reading()
    if word != "active":
        reading.unknown = f"it is {word}, which is right where there is no NVSwitch"
        reading.explains("fabricmanager-down", f"the NVSwitch fabric manager is {word}", (1,), way="fabric")
    return reading


MESSAGE_BY_CAUSE = {
    "gpu-fell-off-bus": "GPU {bus} has fallen off the bus",
    "gpu-ecc-uncorrectable": "GPU {bus} has had memory errors that could not be corrected",
    "nvlink-error": "NVLink of GPU {bus} fails",
    "gpu-reset-required": "GPU {bus} waits for a reset",
}


def read_kernel_log(text: str) -> Reading | None:
    """Reads the Xid lines of a kernel's log."""
    if "Xid (" not in text:
        return None
    lines = text.splitlines()
    found = xid_events([lines], 0.0)
    reading, first = Reading(), _first_line_numbers(lines)
    reported: set[tuple[str, str]] = set()
    for event in found:
        if event.cause is None or (event.cause, event.bus) in reported:
            continue
        reported.add((event.cause, event.bus))
        says = f"{MESSAGE_BY_CAUSE[event.cause].format(bus=event.bus)} (Xid {event.number})"
        reading.proves(event.cause, says, (first[event.text],), way=REMEDY_BY_CAUSE[event.cause], indices=event.bus)
    for event in [event for event in found if event.number in APPLICATION_XIDS][:2]:
        says = f"Xid {event.number} on GPU {event.bus}: {APPLICATION_XIDS[event.number]}"
        reading.explains("gpu-illegal-access", says, (first[event.text],))
    unread = [event for event in found if event.cause is None and event.number not in APPLICATION_XIDS]
    reading.unknown = f"Xid {unread[0].number} is not known here" if unread else ""
    return reading


def _first_line_numbers(lines: list[str]) -> dict[str, int]:
    """By the text of an event, the number of the first line with it."""
    found: dict[str, int] = {}
    for at, line in enumerate(lines, 1):
        if match := XID_LINE.search(line) or SXID_LINE.search(line):
            found.setdefault(match[0], at)
    return found
