"""Reads ports of HCAs as ibstat, ibstatus, ibportstate, rdma link and the kernel show them, and judges a port for live
checks and pasted outputs alike. Also reads perfquery: a port's counters, which count since their last reset, up to
their largest value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from runbook.causes.catalogue import Confidence
from runbook.model.command_quoting import shell_word
from runbook.model.units import count_text, first_items_text, parse_number, parse_whole_number
from runbook.parsers.tool_reading import CUT_OR_UNKNOWN, Reading, numbered_lines

# --- facts ----------------------------------------------------------------------------------------------------------

PortCause = Literal["ib-port-initializing", "ib-port-not-active"]
WAITING_STATES = ("initializing", "armed")
PORT_STATES = ("active", "down", *WAITING_STATES)
"""The states of a port, in lower case; any other word is one of them, cut off."""


@dataclass(frozen=True)
class Port:
    """One port of one HCA. `rate_gbps` is the link rate in Gbit/s; states are ibstat's words in lower case.

    `detail` is the kernel's text for the rate, which tells width and speed: `100 Gb/sec (1X NDR)`.
    """

    hca: str
    number: int
    state: str
    physical: str
    rate_gbps: float | None
    link_layer: str
    detail: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        return f"{self.hca}:{self.number}"

    @property
    def ethernet(self) -> bool:
        return self.link_layer.lower() == "ethernet"

    @property
    def sound(self) -> bool:
        return self.state == "active" and self.physical == "linkup"

    @property
    def cause(self) -> PortCause | None:
        """The cause that the port's states prove, or None. A link that is up and waits for a subnet manager has a cause
        of its own, except with RoCE, which has no subnet manager."""
        if self.state in WAITING_STATES and self.physical == "linkup" and not self.ethernet:
            return "ib-port-initializing"
        return None if self.sound else "ib-port-not-active"


@dataclass
class PortBlock:
    """The text about one port: its fields by their names in lower case, and the line (from 1) that each stands on."""

    hca: str
    number: int
    fields: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)

    def add(self, line: str, at: int) -> None:
        name, _, value = line.partition(":")
        key = name.strip().lower()
        self.fields[key], self.lines[key] = value.strip(), at

    @property
    def port(self) -> Port:
        return Port(
            hca=self.hca,
            number=self.number,
            state=port_state(self.fields.get("state")),
            physical=port_state(self.fields.get("physical state", self.fields.get("phys state"))),
            rate_gbps=link_rate_gbps(self.fields.get("rate")),
            link_layer=self.fields.get("link layer", self.fields.get("link_layer", "InfiniBand")),
        )


STATE_BY_KERNEL_WORD = {"init": "initializing", "arm": "armed"}
"""ibstat's word for a state, by the kernel's where it differs."""


def port_blocks(text: str) -> list[PortBlock]:
    """The ports in the text of ibstat or ibstatus. ibstat's format is that of OFED 1; for one port alone it writes
    `CA: 'mlx5_0'`."""
    hca = ""
    found: list[PortBlock] = []
    open_ = False
    for at, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"\s*CA:? '(.+)'", line):
            hca, open_ = match[1], False
        elif match := re.match(r"\s*Infiniband device '(.+)' port (\d+) status:", line):
            hca, open_ = match[1], True
            found.append(PortBlock(hca, parse_number(match[2])))
        elif match := re.match(r"\s*Port (\d+):\s*$", line):
            open_ = True
            found.append(PortBlock(hca, parse_number(match[1])))
        elif open_ and ":" in line:
            found[-1].add(line, at)
    return found


def parse(text: str) -> list[Port]:
    """The ports in the text of ibstat or ibstatus, as facts."""
    return [block.port for block in port_blocks(text)]


def ports_from_sysfs(hcas: Mapping[str, Mapping[str, Mapping[str, str | None]]]) -> list[Port]:
    """The ports in /sys/class/infiniband: HCA -> port -> file -> text, such as `4: ACTIVE`, `5: LinkUp` or
    `400 Gb/sec (4X NDR)`."""
    return [
        Port(
            hca=hca,
            number=parse_number(port_number),
            state=port_state(port.get("state")),
            physical=port_state(port.get("phys_state")),
            rate_gbps=link_rate_gbps(port.get("rate")),
            link_layer=port.get("link_layer") or "InfiniBand",
            detail=port.get("rate") or "",
        )
        for hca, ports in hcas.items()
        for port_number, port in ports.items()
        if parse_whole_number(port_number) is not None
    ]


def port_state(text: str | None) -> str:
    """The state in ibstat's words, lower case: `4: ACTIVE` and `Active` both give `active`."""
    word = re.sub(r"^\d+:\s*", "", text or "").lower()
    return STATE_BY_KERNEL_WORD.get(word, word)


def link_rate_gbps(text: str | None) -> float | None:
    """The Gbit/s that a rate begins with; None if it begins with no number."""
    match = re.match(r"\d{1,9}(?:\.\d{1,9})?(?!\d)", text or "")
    return float(match[0]) if match else None


# --- the output of ibstat and ibstatus ------------------------------------------------------------------------------

PHYSICAL_STATES = {
    "polling": "Polling: no cable, or nothing at its other end",
    "disabled": "Disabled: switched off",
    "linkup": "LinkUp",
}


def read(text: str) -> Reading | None:
    """Reads ibstat and ibstatus."""
    if none := re.search(r"device '\*': sys files not found", text):
        found = Reading()
        says = "ibstatus finds no adapter: the kernel shows none"
        found.proves("ib-no-device", says, (text.count("\n", 0, none.start()),), way="card")
        return found
    seen = port_blocks(text)
    panic = re.search(r"^ibpanic: .*?(?:\[\d+\] )?(?:main: )?(stat of .*|.*)$", text, re.MULTILINE)
    if not seen and not panic:
        return (
            Reading(f"it shows no port: {CUT_OR_UNKNOWN}") if re.search(r"^[ \t]*CA:? '", text, re.MULTILINE) else None
        )
    known = [block for block in seen if _is_whole_block(block) or _is_plainly_down(block)]
    found = Reading()
    odd = any(line.strip() and not re.match(IBSTAT_LINE, line) for line in text.splitlines())
    if odd or len(known) < len(seen) or not _lists_every_port(text, seen):
        found.unknown = f"the list of ports is not whole: {CUT_OR_UNKNOWN}"
    elif panic:
        found.unknown = f"ibstat stopped: {panic[1]}"
    _judge_ports(known, found)
    return found


def _is_whole_block(block: PortBlock) -> bool:
    """Whether the text about a port is complete to its last field, with a known state and no cut word."""
    port = block.port
    last = {"link_layer"} if _is_of_ibstatus(block) else {"port guid", "link layer"}
    return (
        port.state in PORT_STATES
        and bool(port.physical)
        and port.rate_gbps is not None
        and bool(last & set(block.fields))
        and ("link layer" not in block.fields or port.link_layer in ("InfiniBand", "Ethernet"))
        and (port.state != "active" or port.physical == "linkup")
    )


def _is_plainly_down(block: PortBlock) -> bool:
    """Whether both states of a port say, in whole words, that it is down: then it is, whatever else is missing."""
    return block.port.state == "down" and block.port.physical in ("polling", "disabled", "sleep", "linkerrorrecovery")


def _is_of_ibstatus(block: PortBlock) -> bool:
    return "default gid" in block.fields or "phys state" in block.fields


def _lists_every_port(text: str, seen: Sequence[PortBlock]) -> bool:
    """Whether every adapter of the text is there with as many ports as it says it has, and either all ports or none
    show a link layer."""
    promised = sum(parse_number(found) for found in re.findall(r"^[ \t]*Number of ports: (\d+)", text, re.MULTILINE))
    adapters = len(re.findall(r"^[ \t]*CA '", text, re.MULTILINE))
    if adapters and (promised != len(seen) or adapters != len({block.hca for block in seen})):
        return False
    layers = ["link layer" in block.fields or "link_layer" in block.fields for block in seen]
    return all(layers) or not any(layers)


def _judge_ports(known: Sequence[PortBlock], found: Reading) -> None:
    waiting = [block for block in known if block.port.cause == "ib-port-initializing"]
    down = [block for block in known if block.port.cause == "ib-port-not-active"]
    up = sum(block.port.sound for block in known)
    sure: Confidence = "medium" if up else "high"
    if down:
        states = [
            f"{port.name} is {port.state.capitalize()} ({_physical_state_text(port)})"
            for port in (b.port for b in down)
        ]
        says = first_items_text(states)
        if up:
            others = f"{up} other port{'s are' if up > 1 else ' is'} active"
            says += f"; {others}, and one that the job does not use may stay down: leave it out of NCCL_IB_HCA"
        first = down[0].port
        way = "ethernet-here" if first.ethernet else "disabled-here" if first.physical == "disabled" else "cable"
        found.proves(
            "ib-port-not-active",
            says,
            _port_state_lines(down),
            sure,
            way=way,
            hca=shell_word(first.hca),
            number=first.number,
        )
    if waiting:
        says = (
            f"{first_items_text([b.port.name for b in waiting])}: the link is up, and no subnet manager has set it up"
        )
        found.proves("ib-port-initializing", says, _port_state_lines(waiting), sure, way="live")


def _physical_state_text(port: Port) -> str:
    return PHYSICAL_STATES.get(port.physical, port.physical)


def _port_state_lines(down: Sequence[PortBlock]) -> tuple[int, ...]:
    """The lines with the states and physical states of these ports."""
    names = ("state", "physical state", "phys state")
    return tuple(at for block in down for name, at in block.lines.items() if name in names)


IBSTAT_LINE = (
    r"\s*(?:CA:? '|CA type:|Number of ports:|Firmware version:|Hardware version:|Node GUID:|System image GUID:"
    r"|Port \d+:|State:|Physical state:|Rate:|Base lid:|LMC:|SM lid:|Capability mask:|Port GUID:|Link layer:"
    r"|Infiniband device '|default gid:|base lid:|sm lid:|state:|phys state:|rate:|link_layer:|ibpanic:)"
)
"""The beginning of any line that ibstat and ibstatus print."""


STATE_BY_IBPORTSTATE_WORD = {"Down": "down", "Initialize": "initializing", "Armed": "armed", "Active": "active"}
"""By ibportstate's word for a state, ibstat's in lower case."""


def read_ibportstate(text: str) -> Reading | None:
    """Reads ibportstate."""
    found: dict[str, tuple[str, int]] = {}
    for at, line in numbered_lines(text):
        if field := re.match(r"\s*(\w+):\.+(.*\S)", line):
            found.setdefault(field[1], (field[2], at))
    if "LinkState" not in found and "PhysLinkState" not in found:
        return None
    state, at = found.get("LinkState", ("", 0))
    physical, physical_at = found.get("PhysLinkState", ("", 0))
    active, active_at = found.get("LinkWidthActive", ("", 0))
    widths = [int(width) for width in re.findall(r"(?<!\d)(\d+)X", found.get("LinkWidthSupported", ("", 0))[0])]
    known = state in STATE_BY_IBPORTSTATE_WORD and bool(physical) and (state != "Active" or physical == "LinkUp")
    recognised = bool(re.fullmatch(r"\d+X", active) and widths) and "LinkSpeedActive" in found
    port = re.search(r"Port info: .{0,300}?Lid (\d+) port (\d+)", text)
    where = f"port {port[2]} of LID {port[1]}" if port else "the port"
    reading = Reading.of(known and recognised)
    lines = [line for line in (at, physical_at) if line]
    cause = Port("", 0, STATE_BY_IBPORTSTATE_WORD.get(state, ""), port_state(physical), None, "InfiniBand").cause
    lanes = re.match(r"(\d+)X", active)
    if cause == "ib-port-initializing":
        says = f"{where} is {state}: the link is up, and no subnet manager has set it up"
        reading.proves("ib-port-initializing", says, lines, way="live")
    elif state in STATE_BY_IBPORTSTATE_WORD and state != "Active":
        trains = "PortInfo set" in text and physical == "Polling"
        says = f"{where} is {state} ({physical})"
        says += ": right after it was enabled it may still be training" if trains else ""
        reading.proves("ib-port-not-active", says, lines, "medium" if trains else "high", way="by-lid")
    elif state == "Active" and lanes and int(lanes[1]) < max(widths, default=0):
        says = f"{where} runs over {count_text(int(lanes[1]), 'lane')} of {max(widths)}"
        reading.proves("ib-rate-low", says, (active_at,), "medium", way="narrow")
    return reading


RDMA_LINK = re.compile(
    r"(?:link |\d+/\d+: )(?P<hca>[\w.-]+)/(?P<port>\d+):? (?P<rest>.*?)state (?P<state>\w+) physical_state "
    r"(?P<physical>\w+)(?P<more>.*)"
)
RDMA_LINK_STATES = {"ACTIVE", "DOWN", "INIT", "ARMED", "NOP", "ACTIVE_DEFER"}


def read_rdma_link(text: str) -> Reading | None:
    """Reads `rdma link`."""
    lines = [(at, line) for at, line in numbered_lines(text) if line.strip()]
    found = [(at, link) for at, line in lines if (link := RDMA_LINK.match(line.strip()))]
    if not found:
        return None
    causes = [(at, link, _rdma_link_cause(link)) for at, link in found]
    down = [(at, link) for at, link, cause in causes if cause == "ib-port-not-active"]
    waiting = [(at, link) for at, link, cause in causes if cause == "ib-port-initializing"]
    up = sum(link["state"] == "ACTIVE" and link["physical"] == "LINK_UP" for _, link in found)
    reading = Reading.of(len(found) == len(lines) and up + len(down) + len(waiting) == len(found))
    if down:
        sure: Confidence = "medium" if up else "high"
        first = down[0][1]
        says = first_items_text(
            [f"{link['hca']}/{link['port']} is {link['state']} ({link['physical']})" for _, link in down]
        )
        at, hca, number = [at for at, _ in down], shell_word(first["hca"]), shell_word(first["port"])
        reading.proves("ib-port-not-active", says, at, sure, way="ethernet-here", hca=hca, number=number)
    if waiting:
        names = first_items_text([f"{link['hca']}/{link['port']}" for _, link in waiting])
        says = f"{names}: the link is up, and no subnet manager has set it up"
        reading.proves("ib-port-initializing", says, [at for at, _ in waiting], way="live")
    return reading


def _rdma_link_cause(link: re.Match[str]) -> PortCause | None:
    """The cause that a line of `rdma link` proves; None for a port that is active, a state NOP, or an unknown word."""
    if link["state"] not in RDMA_LINK_STATES or link["state"] in ("ACTIVE", "NOP"):
        return None
    ethernet = "netdev" in link["more"] and "lid" not in link["rest"] + link["more"]
    physical = port_state(link["physical"].replace("_", ""))
    layer = "Ethernet" if ethernet else "InfiniBand"
    return Port(link["hca"], int(link["port"]), port_state(link["state"]), physical, None, layer).cause


ERROR_COUNTERS = {
    "SymbolErrorCounter": "damaged symbols",
    "LinkErrorRecoveryCounter": "recoveries of the link",
    "LinkDownedCounter": "losses of the link",
    "PortRcvErrors": "damaged packets",
    "PortRcvRemotePhysicalErrors": "packets damaged on their way here",
    "PortXmitDiscards": "packets thrown away",
    "LocalLinkIntegrityErrors": "losses of integrity",
    "ExcessiveBufferOverrunErrors": "overruns of a buffer",
}
"""Counters of perfquery that prove errors, and what each counts."""
OTHER_COUNTERS = ("VL15Dropped", "PortXmitWait", "PortRcvConstraintErrors", "PortXmitConstraintErrors")
"""Counters of which a whole output shows at least one besides."""
FULL_COUNTER_VALUES = (65535, 2**32 - 1)
"""The largest values of counters of 16 and 32 bits."""
MAX_COUNTER_VALUES = {
    "LinkErrorRecoveryCounter": 255,
    "LinkDownedCounter": 255,
    "LocalLinkIntegrityErrors": 15,
    "ExcessiveBufferOverrunErrors": 15,
}
"""The largest values of counters of 8 and 4 bits."""
COUNTER_BY_OLD_NAME = {
    "SymbolErrors": "SymbolErrorCounter",
    "LinkRecovers": "LinkErrorRecoveryCounter",
    "LinkDowned": "LinkDownedCounter",
    "RcvErrors": "PortRcvErrors",
    "RcvRemotePhysErrors": "PortRcvRemotePhysicalErrors",
    "XmtDiscards": "PortXmitDiscards",
    "LinkIntegrityErrors": "LocalLinkIntegrityErrors",
    "ExcBufOverrunErrors": "ExcessiveBufferOverrunErrors",
}


def read_perfquery(text: str) -> Reading | None:
    """Reads perfquery."""
    head = re.search(r"# Port (?:extended )?counters: .{0,300}?Lid (\d+) port (\d+)", text)
    counters: dict[str, tuple[int, int]] = {}
    for at, line in numbered_lines(text):
        if field := re.match(r"\s*(\w+):\.+(\d+)\s*$", line):
            counters[COUNTER_BY_OLD_NAME.get(field[1], field[1])] = (int(field[2]), at)
    if not head and not set(ERROR_COUNTERS) & set(counters):
        return None
    reading = Reading.of(set(ERROR_COUNTERS) <= set(counters) and any(name in counters for name in OTHER_COUNTERS))
    wrong = {name: counters[name] for name in ERROR_COUNTERS if counters.get(name, (0, 0))[0]}
    if wrong:
        where = f"port {head[2]} of LID {head[1]}" if head else "the port"
        counts = [
            f"{count} {ERROR_COUNTERS[name]} "
            f"({name}{', its largest value: it counts no further' if _is_counter_full(name, count) else ''})"
            for name, (count, _) in wrong.items()
        ]
        says = f"{where} has counted {first_items_text(counts, 4)} since its counters were last reset"
        reading.proves("ib-port-not-active", says, [at for _, at in wrong.values()], "low", way="counters")
    return reading


def _is_counter_full(name: str, count: int) -> bool:
    """Whether a counter stands at its largest value, and counts no further."""
    return count == MAX_COUNTER_VALUES.get(name) or count in FULL_COUNTER_VALUES
