"""ibportstate, rdma link and perfquery: single ports, all RDMA ports, and the counters of a port.

The counters count since they were last reset, and stop at their largest value.
"""

from __future__ import annotations

import re

from runbook.causes.catalogue import Confidence
from runbook.model.command_quoting import word
from runbook.model.units import counted, some
from runbook.parsers.ibstat import Port, PortCause, as_state
from runbook.parsers.tool_reading import Reading, numbered

LINK_STATES = {"Down": "down", "Initialize": "initializing", "Armed": "armed", "Active": "active"}
"""Of ibportstate, in the words of ibstat."""


def port_info(text: str) -> Reading | None:
    found: dict[str, tuple[str, int]] = {}
    for at, line in numbered(text):
        if field := re.match(r"\s*(\w+):\.+(.*\S)", line):
            found.setdefault(field[1], (field[2], at))
    if "LinkState" not in found and "PhysLinkState" not in found:
        return None
    state, at = found.get("LinkState", ("", 0))
    physical, physical_at = found.get("PhysLinkState", ("", 0))
    active, active_at = found.get("LinkWidthActive", ("", 0))
    widths = [int(width) for width in re.findall(r"(?<!\d)(\d+)X", found.get("LinkWidthSupported", ("", 0))[0])]
    known = state in LINK_STATES and bool(physical) and (state != "Active" or physical == "LinkUp")
    recognised = bool(re.fullmatch(r"\d+X", active) and widths) and "LinkSpeedActive" in found
    port = re.search(r"Port info: .{0,300}?Lid (\d+) port (\d+)", text)
    where = f"port {port[2]} of LID {port[1]}" if port else "the port"
    reading = Reading.of(known and recognised)
    lines = [line for line in (at, physical_at) if line]
    cause = Port("", 0, LINK_STATES.get(state, ""), as_state(physical), None, "InfiniBand").cause
    lanes = re.match(r"(\d+)X", active)
    if cause == "ib-port-initializing":
        says = f"{where} is {state}: the link is up, and no subnet manager has set it up"
        reading.proves("ib-port-initializing", says, lines, way="live")
    elif state in LINK_STATES and state != "Active":
        trains = "PortInfo set" in text and physical == "Polling"
        says = f"{where} is {state} ({physical})"
        says += ": right after it was enabled it may still be training" if trains else ""
        reading.proves("ib-port-not-active", says, lines, "medium" if trains else "high", way="by-lid")
    elif state == "Active" and lanes and int(lanes[1]) < max(widths, default=0):
        says = f"{where} runs over {counted(int(lanes[1]), 'lane')} of {max(widths)}"
        reading.proves("ib-rate-low", says, (active_at,), "medium", way="narrow")
    return reading


LINK = re.compile(
    r"(?:link |\d+/\d+: )(?P<hca>[\w.-]+)/(?P<port>\d+):? (?P<rest>.*?)state (?P<state>\w+) physical_state "
    r"(?P<physical>\w+)(?P<more>.*)"
)
STATES = {"ACTIVE", "DOWN", "INIT", "ARMED", "NOP", "ACTIVE_DEFER"}


def links(text: str) -> Reading | None:
    lines = [(at, line) for at, line in numbered(text) if line.strip()]
    found = [(at, link) for at, line in lines if (link := LINK.match(line.strip()))]
    if not found:
        return None
    causes = [(at, link, _cause(link)) for at, link in found]
    down = [(at, link) for at, link, cause in causes if cause == "ib-port-not-active"]
    waiting = [(at, link) for at, link, cause in causes if cause == "ib-port-initializing"]
    up = sum(link["state"] == "ACTIVE" and link["physical"] == "LINK_UP" for _, link in found)
    reading = Reading.of(len(found) == len(lines) and up + len(down) + len(waiting) == len(found))
    if down:
        sure: Confidence = "medium" if up else "high"
        first = down[0][1]
        says = some([f"{link['hca']}/{link['port']} is {link['state']} ({link['physical']})" for _, link in down])
        at, hca, number = [at for at, _ in down], word(first["hca"]), word(first["port"])
        reading.proves("ib-port-not-active", says, at, sure, way="ethernet-here", hca=hca, number=number)
    if waiting:
        names = some([f"{link['hca']}/{link['port']}" for _, link in waiting])
        says = f"{names}: the link is up, and no subnet manager has set it up"
        reading.proves("ib-port-initializing", says, [at for at, _ in waiting], way="live")
    return reading


def _cause(link: re.Match[str]) -> PortCause | None:
    """None also where the words are none of rdma's, or are those of no port that is down."""
    if link["state"] not in STATES or link["state"] in ("ACTIVE", "NOP"):
        return None
    ethernet = "netdev" in link["more"] and "lid" not in link["rest"] + link["more"]
    physical = as_state(link["physical"].replace("_", ""))
    layer = "Ethernet" if ethernet else "InfiniBand"
    return Port(link["hca"], int(link["port"]), as_state(link["state"]), physical, None, layer).cause


ERRORS = {
    "SymbolErrorCounter": "damaged symbols",
    "LinkErrorRecoveryCounter": "recoveries of the link",
    "LinkDownedCounter": "losses of the link",
    "PortRcvErrors": "damaged packets",
    "PortRcvRemotePhysicalErrors": "packets damaged on their way here",
    "PortXmitDiscards": "packets thrown away",
    "LocalLinkIntegrityErrors": "losses of integrity",
    "ExcessiveBufferOverrunErrors": "overruns of a buffer",
}
OTHER_COUNTERS = ("VL15Dropped", "PortXmitWait", "PortRcvConstraintErrors", "PortXmitConstraintErrors")
FULL = (65535, 2**32 - 1)
LARGEST = {
    "LinkErrorRecoveryCounter": 255,
    "LinkDownedCounter": 255,
    "LocalLinkIntegrityErrors": 15,
    "ExcessiveBufferOverrunErrors": 15,
}
OLD_NAMES = {
    "SymbolErrors": "SymbolErrorCounter",
    "LinkRecovers": "LinkErrorRecoveryCounter",
    "LinkDowned": "LinkDownedCounter",
    "RcvErrors": "PortRcvErrors",
    "RcvRemotePhysErrors": "PortRcvRemotePhysicalErrors",
    "XmtDiscards": "PortXmitDiscards",
    "LinkIntegrityErrors": "LocalLinkIntegrityErrors",
    "ExcBufOverrunErrors": "ExcessiveBufferOverrunErrors",
}


def counters_of_port(text: str) -> Reading | None:
    head = re.search(r"# Port (?:extended )?counters: .{0,300}?Lid (\d+) port (\d+)", text)
    counters: dict[str, tuple[int, int]] = {}
    for at, line in numbered(text):
        if field := re.match(r"\s*(\w+):\.+(\d+)\s*$", line):
            counters[OLD_NAMES.get(field[1], field[1])] = (int(field[2]), at)
    if not head and not set(ERRORS) & set(counters):
        return None
    reading = Reading.of(set(ERRORS) <= set(counters) and any(name in counters for name in OTHER_COUNTERS))
    wrong = {name: counters[name] for name in ERRORS if counters.get(name, (0, 0))[0]}
    if wrong:
        where = f"port {head[2]} of LID {head[1]}" if head else "the port"
        counts = [
            f"{count} {ERRORS[name]} "
            f"({name}{', its largest value: it counts no further' if _full(name, count) else ''})"
            for name, (count, _) in wrong.items()
        ]
        says = f"{where} has counted {some(counts, 4)} since its counters were last reset"
        reading.proves("ib-port-not-active", says, [at for _, at in wrong.values()], "low", way="counters")
    return reading


def _full(name: str, count: int) -> bool:
    return count == LARGEST.get(name) or count in FULL
