"""ibportstate, rdma link and perfquery: single ports, all RDMA ports, and the counters of a port.

The counters count since they were last reset, and stop at their largest value.
"""

from __future__ import annotations

import re

from runbook.model.command_quoting import word
from runbook.parsers.ibstat import START_SUBNET_MANAGER, Port, PortCause, as_state
from runbook.parsers.tool_reading import CUT, Fault, Reading, Tool, numbered, some

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
    port = re.search(r"Port info: .{0,300}?Lid (\d+) port (\d+)", text)
    where = f"port {port[2]} of LID {port[1]}" if port else "the port"
    faults = []
    lines = tuple(line for line in (at, physical_at) if line)
    cause = Port("", 0, LINK_STATES.get(state, ""), as_state(physical), None, "InfiniBand").cause
    if cause == "ib-port-initializing":
        says = f"{where} is {state}: the link is up, and no subnet manager has set it up"
        faults.append(
            Fault(
                "ib-port-initializing",
                says,
                "sudo systemctl start opensm   # on one node, or the one in the switch",
                lines,
            )
        )
    elif state in LINK_STATES and state != "Active":
        trains = "PortInfo set" in text and physical == "Polling"
        says = f"{where} is {state} ({physical})" + (
            ": right after it was enabled it may still be training" if trains else ""
        )
        remedy = (
            "enable it at this end (`sudo ibportstate LID PORT enable`), look at the cable and the switch port "
            "(`sudo iblinkinfo`)"
        )
        faults.append(Fault("ib-port-not-active", says, remedy, lines, "medium" if trains else "high"))
    elif state == "Active" and (narrow := _narrow(found)):
        remedy = "a bad cable or transceiver trains narrower: `sudo iblinkinfo` shows both ends; reseat or replace it"
        faults.append(Fault("ib-rate-low", f"{where} {narrow}", remedy, (found["LinkWidthActive"][1],), "medium"))
    widths = re.fullmatch(r"\d+X", found.get("LinkWidthActive", ("", 0))[0]) and re.search(
        r"(?<!\d)\d+X", found.get("LinkWidthSupported", ("", 0))[0]
    )
    whole = state in LINK_STATES and bool(physical) and bool(widths) and "LinkSpeedActive" in found
    if state == "Active" and physical != "LinkUp":
        whole = False
    return Reading("ibportstate", tuple(faults), (), "" if whole else CUT)


def _narrow(found: dict[str, tuple[str, int]]) -> str:
    widths = [int(width) for width in re.findall(r"(?<!\d)(\d+)X", found.get("LinkWidthSupported", ("", 0))[0])]
    active = re.match(r"(\d+)X", found.get("LinkWidthActive", ("", 0))[0])
    if active and widths and int(active[1]) < max(widths):
        return f"runs over {active[1]} lane{'s' * (active[1] != '1')} of {max(widths)}"
    return ""


PORT_INFO = Tool(
    "ibportstate",
    r"ibportstate\b",
    r"(?:CA/RT|Switch|# Port|CA)?\s*(?:PortInfo|# Port info|# Port info:).*|\s*LinkState:\.+",
    r"(?:#|After|Initial|Peer|CA/RT|Switch|\s*\w+:\.+)",
    ("PhysLinkState:", "LinkState:", "Port info"),
    port_info,
)


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
    up = [link for _, link in found if link["state"] == "ACTIVE" and link["physical"] == "LINK_UP"]
    faults = []
    if down:
        first = down[0][1]
        names = [f"{link['hca']}/{link['port']} is {link['state']} ({link['physical']})" for _, link in down]
        remedy = (
            f"sudo rdma link show {word(first['hca'])}/{word(first['port'])}   # then its cable, its switch port, and "
            "`sudo ip link set INTERFACE up`"
        )
        faults.append(
            Fault("ib-port-not-active", some(names), remedy, tuple(at for at, _ in down), "medium" if up else "high")
        )
    if waiting:
        names = [f"{link['hca']}/{link['port']}" for _, link in waiting]
        says = f"{some(names)}: the link is up, and no subnet manager has set it up"
        faults.append(Fault("ib-port-initializing", says, START_SUBNET_MANAGER, tuple(at for at, _ in waiting)))
    whole = len(found) == len(lines) and len(up) + len(down) + len(waiting) == len(found)
    return Reading("rdma link", tuple(faults), (), "" if whole else CUT)


def _cause(link: re.Match[str]) -> PortCause | None:
    """None also where the words are none of rdma's, or are those of no port that is down."""
    if link["state"] not in STATES or link["state"] in ("ACTIVE", "NOP"):
        return None
    ethernet = "netdev" in link["more"] and "lid" not in link["rest"] + link["more"]
    physical = as_state(link["physical"].replace("_", ""))
    layer = "Ethernet" if ethernet else "InfiniBand"
    return Port(link["hca"], int(link["port"]), as_state(link["state"]), physical, None, layer).cause


LINKS = Tool(
    "rdma link",
    r"rdma (?:-\S+ )*link\b",
    r"(?:link |\d+/\d+: )\S+/\d+:? .*\bstate \w+ physical_state",
    r"(?:link |\d+/\d+: )\S+/\d+",
    ("physical_state",),
    links,
)


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
FULL = (15, 255, 65535, 2**32 - 1)
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
    wrong = {name: counters[name] for name in ERRORS if counters.get(name, (0, 0))[0]}
    whole = set(ERRORS) <= set(counters) and any(name in counters for name in OTHER_COUNTERS)
    faults: tuple[Fault, ...] = ()
    if wrong:
        where = f"port {head[2]} of LID {head[1]}" if head else "the port"
        told = [
            f"{count} {ERRORS[name]} "
            f"({name}{', its largest value: it counts no further' if _full(name, count) else ''})"
            for name, (count, _) in wrong.items()
        ]
        faults = (
            Fault(
                "ib-port-not-active",
                f"{where} has counted {some(told, 4)} since its counters were last reset",
                "`sudo perfquery -R` resets them; read them again under load: what grows then is "
                "a bad cable, transceiver or port",
                tuple(at for _, at in wrong.values()),
                "low",
            ),
        )
    return Reading("perfquery", faults, (), "" if whole else CUT)


def _full(name: str, count: int) -> bool:
    return count == LARGEST.get(name, 65535) or count in FULL[2:]


COUNTERS = Tool(
    "perfquery", r"perfquery\b", r"# Port (?:extended )?counters:", r"#|\s*\w+:\.+", ("# Port ",), counters_of_port
)
