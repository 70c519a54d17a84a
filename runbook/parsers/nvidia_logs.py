"""journalctl of the fabric manager, and Xid lines of the kernel's log."""

from __future__ import annotations

import re

from runbook.model.bounded_regex import bounded
from runbook.parsers.nvidia import APPLICATION, MENDED_BY, SXID, XID, events
from runbook.parsers.tool_reading import Reading, numbered

UP = bounded(r"Started .*(?:fabric ?manager|Fabric Manager)", re.IGNORECASE)
CONFIGURED = re.compile(r"Successfully configured all the available (?:GPUs and )?NVSwitches", re.IGNORECASE)
FAILED = bounded(
    r"fabricmanager\.service: (?:Failed with|Main process exited|Control process exited)"
    r"|Failed to start .*fabric ?manager|Active: (?:failed|inactive)"
    r"|fabric manager .*(?:version|mismatch).*(?:driver|kernel)|nv-fabricmanager.*(?:failed|error|fatal|exiting|abort)",
    re.IGNORECASE,
)
NOT_NEEDED = bounded(r"NOTHING_TO_DO|no (?:NV)?Switch|NVSwitch.*not (?:found|present|detected)", re.IGNORECASE)


def fabric_manager(text: str) -> Reading | None:
    """The last word counts: it may have failed, and run now."""
    if not re.search(r"fabric-?manager", text, re.IGNORECASE):
        word = text.strip()
        if word in ("active", "inactive", "failed", "unknown", "activating"):
            return _one_word(word)
        return None
    running: bool | None = None
    configured = True
    failed: list[int] = []
    for at, line in numbered(text):
        if FAILED.search(line):
            running, configured = False, False
            failed.append(at)
        if UP.search(line) or re.search(r"Active: active \(running\)", line):
            running = True
        if CONFIGURED.search(line):
            configured = True
    reading = Reading()
    if running is False and failed and not NOT_NEEDED.search(text):
        says = "the NVSwitch fabric manager does not run: CUDA will not start on GPUs that are connected by NVSwitch"
        reading.proves("fabricmanager-down", says, failed[:4], way="version")
    elif not (running and configured):
        reading.unknown = "it does not show that the fabric manager runs"
    return reading


def _one_word(word: str) -> Reading:
    reading = Reading()
    if word != "active":
        reading.unknown = f"it is {word}, which is right where there is no NVSwitch"
        reading.explains("fabricmanager-down", f"the NVSwitch fabric manager is {word}", (1,), way="fabric")
    return reading


SAYS = {
    "gpu-fell-off-bus": "GPU {bus} has fallen off the bus",
    "gpu-ecc-uncorrectable": "GPU {bus} has had memory errors that could not be corrected",
    "nvlink-error": "NVLink of GPU {bus} fails",
    "gpu-reset-required": "GPU {bus} waits for a reset",
}


def kernel_log(text: str) -> Reading | None:
    if "Xid (" not in text:
        return None
    lines = text.splitlines()
    found = events(lines, 0.0)
    reading, first = Reading(), _first_lines(lines)
    told: set[tuple[str, str]] = set()
    for event in found:
        if event.cause is None or (event.cause, event.bus) in told:
            continue
        told.add((event.cause, event.bus))
        says = f"{SAYS[event.cause].format(bus=event.bus)} (Xid {event.number})"
        reading.proves(event.cause, says, (first[event.text],), way=MENDED_BY[event.cause], indices=event.bus)
    for event in [event for event in found if event.number in APPLICATION][:2]:
        says = f"Xid {event.number} on GPU {event.bus}: {APPLICATION[event.number]}"
        reading.explains("gpu-illegal-access", says, (first[event.text],))
    unread = [event for event in found if event.cause is None and event.number not in APPLICATION]
    reading.unknown = f"Xid {unread[0].number} is not known here" if unread else ""
    return reading


def _first_lines(lines: list[str]) -> dict[str, int]:
    """By the text of an event, the line that it stands on first."""
    found: dict[str, int] = {}
    for at, line in enumerate(lines, 1):
        if match := XID.search(line) or SXID.search(line):
            found.setdefault(match[0], at)
    return found
