"""ibportstate: one port, as its PortInfo says."""

from __future__ import annotations

import re
from typing import Any

from runbook.parsers.reading import CUT, Fault, Reading, Tool, numbered

STATES = {"Down", "Initialize", "Armed", "Active"}


def read(text: str) -> Reading | None:
    found: dict[str, tuple[str, int]] = {}
    for at, line in numbered(text):
        if field := re.match(r"\s*(\w+):\.+(.*\S)", line):
            found.setdefault(field[1], (field[2], at))
    if "LinkState" not in found and "PhysLinkState" not in found:
        return None
    state, at = found.get("LinkState", ("", 0))
    physical, physical_at = found.get("PhysLinkState", ("", 0))
    port = re.search(r"Port info: .{0,300}?Lid (\d+) port (\d+)", text)
    where = f"port {port[2]} of LID {port[1]}" if port else "the port"
    facts: dict[str, Any] = {
        "link_state": state,
        "phys": physical,
        "sm_lid": int(found["SMLid"][0]) if "SMLid" in found and found["SMLid"][0].isdecimal() else None,
        "width": found.get("LinkWidthActive", ("", 0))[0],
        "speed": found.get("LinkSpeedActive", ("", 0))[0],
    }
    faults = []
    lines = tuple(line for line in (at, physical_at) if line)
    if state in ("Initialize", "Armed") and physical == "LinkUp":
        says = f"{where} is {state}: the link is up, and no subnet manager has set it up"
        faults.append(
            Fault(
                "ib-port-initializing",
                says,
                "sudo systemctl start opensm   # on one node, or the one in the switch",
                lines,
            )
        )
    elif state in STATES and state != "Active":
        trains = "PortInfo set" in text and physical == "Polling"
        says = f"{where} is {state} ({physical})" + (
            ": right after it was enabled it may still be training" if trains else ""
        )
        remedy = "enable it at this end (`sudo ibportstate LID PORT enable`), look at the cable and the switch port (`sudo iblinkinfo`)"
        faults.append(Fault("ib-port-not-active", says, remedy, lines, "medium" if trains else "high"))
    elif state == "Active" and (narrow := _narrow(found)):
        remedy = "a bad cable or transceiver trains narrower: `sudo iblinkinfo` shows both ends; reseat or replace it"
        faults.append(Fault("ib-rate-low", f"{where} {narrow}", remedy, (found["LinkWidthActive"][1],), "medium"))
    widths = re.fullmatch(r"\d+X", facts["width"] or "") and re.search(
        r"(?<!\d)\d+X", found.get("LinkWidthSupported", ("", 0))[0]
    )
    whole = state in STATES and bool(physical) and bool(widths) and "LinkSpeedActive" in found
    if state == "Active" and physical != "LinkUp":
        whole = False
    return Reading("ibportstate", facts, tuple(faults), (), "" if whole else CUT)


def _narrow(found: dict[str, tuple[str, int]]) -> str:
    widths = [int(width) for width in re.findall(r"(?<!\d)(\d+)X", found.get("LinkWidthSupported", ("", 0))[0])]
    active = re.match(r"(\d+)X", found.get("LinkWidthActive", ("", 0))[0])
    if active and widths and int(active[1]) < max(widths):
        return f"runs over {active[1]} lane{'s' * (active[1] != '1')} of {max(widths)}"
    return ""


TOOL = Tool("ibportstate", r"ibportstate\b", r"(?:CA/RT|Switch|# Port|CA)?\s*(?:PortInfo|# Port info|# Port info:).*|\s*LinkState:\.+", r"(?:#|After|Initial|Peer|CA/RT|Switch|\s*\w+:\.+)", ("PhysLinkState:", "LinkState:", "Port info"), read)  # fmt: skip
