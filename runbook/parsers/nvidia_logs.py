"""journalctl of the fabric manager, and Xid lines of the kernel's log."""

from __future__ import annotations

import re

from runbook.model.bounded_regex import bounded
from runbook.parsers.nvidia import APPLICATION, SXID, XID, events
from runbook.parsers.tool_reading import Fault, Reading, Support, Tool, numbered

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
    faults: tuple[Fault, ...] = ()
    if running is False and failed and not NOT_NEEDED.search(text):
        says = "the NVSwitch fabric manager does not run: CUDA will not start on GPUs that are connected by NVSwitch"
        remedy = (
            "sudo systemctl restart nvidia-fabricmanager   # its version must be the driver's: nv-fabricmanager "
            "--version"
        )
        faults = (Fault("fabricmanager-down", says, remedy, tuple(failed[:4])),)
    unknown = "" if running and configured else "it does not show that the fabric manager runs"
    return Reading("fabric manager", faults, (), "" if faults else unknown)


def _one_word(word: str) -> Reading:
    if word == "active":
        return Reading("fabric manager")
    says = f"the NVSwitch fabric manager is {word}"
    support = Support(("fabricmanager-down",), says, (1,), "sudo systemctl restart nvidia-fabricmanager")
    unknown = f"it is {word}, which is right where there is no NVSwitch"
    return Reading("fabric manager", (), (support,), unknown)


SAYS = {
    "gpu-fell-off-bus": ("GPU {bus} has fallen off the bus", "sudo reboot"),
    "gpu-ecc-uncorrectable": (
        "GPU {bus} has had memory errors that could not be corrected",
        "sudo nvidia-smi --gpu-reset -i {bus}",
    ),
    "nvlink-error": ("NVLink of GPU {bus} fails", "sudo nvidia-smi --gpu-reset   # all GPUs together"),
    "gpu-reset-required": ("GPU {bus} waits for a reset", "sudo nvidia-smi --gpu-reset -i {bus}"),
}


def kernel_log(text: str) -> Reading | None:
    if "Xid (" not in text:
        return None
    lines = text.splitlines()
    found = events(lines, 0.0)
    first = _first_lines(lines)
    faults = []
    told: set[tuple[str, str]] = set()
    for event in found:
        if event.cause is None or (event.cause, event.bus) in told:
            continue
        told.add((event.cause, event.bus))
        says, remedy = (part.format(bus=event.bus) for part in SAYS[event.cause])
        faults.append(Fault(event.cause, f"{says} (Xid {event.number})", remedy, (first[event.text],)))
    of_programs = [event for event in found if event.number in APPLICATION]
    supports = tuple(
        Support(
            ("gpu-illegal-access",),
            f"Xid {event.number} on GPU {event.bus}: {APPLICATION[event.number]}",
            (first[event.text],),
        )
        for event in of_programs[:2]
    )
    unread = [event for event in found if event.cause is None and event.number not in APPLICATION]
    unknown = f"Xid {unread[0].number} is not known here" if unread else ""
    return Reading("kernel log", tuple(faults), supports, unknown)


def _first_lines(lines: list[str]) -> dict[str, int]:
    """By the text of an event, the line that it stands on first."""
    found: dict[str, int] = {}
    for at, line in enumerate(lines, 1):
        if match := XID.search(line) or SXID.search(line):
            found.setdefault(match[0], at)
    return found


TOOLS = (
    Tool(
        "fabric manager",
        r"(?:sudo )?(?:journalctl|systemctl) .*fabric-?manager",
        r".*\b(?:nv-fabricmanager|nvidia-fabricmanager\S*)\[\d+\]: |.*nvidia-fabricmanager\.service - ",
        r".*",
        ("fabricmanager",),
        fabric_manager,
        log=True,
    ),
    Tool(
        "kernel log",
        r"(?:sudo )?(?:dmesg|journalctl .*-k)\b",
        r".*NVRM: Xid \(",
        r"\[|.*kernel: ",
        ("Xid (",),
        kernel_log,
        log=True,
    ),
)
