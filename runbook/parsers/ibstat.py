"""Ports of HCAs as ibstat, ibstatus and the kernel show them, and the one judge of a port, for live checks and pasted
outputs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from runbook.model.command_quoting import word
from runbook.model.units import number
from runbook.parsers.tool_reading import CUT, Fault, Reading, Tool, some

# --- facts ----------------------------------------------------------------------------------------------------------

PortCause = Literal["ib-port-initializing", "ib-port-not-active"]
WAITING = ("initializing", "armed")
STATES = ("active", "down", *WAITING)
"""The states that a port can be in; another word is cut off."""

START_SUBNET_MANAGER = "start a subnet manager: `sudo systemctl start opensm` on one node, or the one in the switch"


@dataclass(frozen=True)
class Port:
    """One port of one HCA. `rate_gbps` is the link rate in Gbit/s; states are lower case, as ibstat prints them.

    `detail` is the kernel's own word for the rate, which tells width and speed: `100 Gb/sec (1X NDR)`.
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
        """What its states prove to be wrong. A link that is up and waits for a subnet manager has its own cause; RoCE
        has no subnet manager."""
        if self.state in WAITING and self.physical == "linkup" and not self.ethernet:
            return "ib-port-initializing"
        return None if self.sound else "ib-port-not-active"


@dataclass
class PortBlock:
    """What is printed of one port: its fields in lower case, and the line (from 1) that each stands on."""

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
            state=as_state(self.fields.get("state")),
            physical=as_state(self.fields.get("physical state", self.fields.get("phys state"))),
            rate_gbps=as_rate(self.fields.get("rate")),
            link_layer=self.fields.get("link layer", self.fields.get("link_layer", "InfiniBand")),
        )


KERNEL_STATES = {"init": "initializing", "arm": "armed"}
"""What the kernel calls a state, where ibstat has another word."""


def blocks(text: str) -> Iterator[PortBlock]:
    """The ports in the text of ibstat (its format is that of OFED 1), or of ibstatus."""
    hca = ""
    block: PortBlock | None = None
    for at, line in enumerate(text.splitlines(), 1):
        started: PortBlock | None = None
        if match := re.match(r"\s*CA '(.+)'", line):
            hca = match[1]
        elif match := re.match(r"\s*Infiniband device '(.+)' port (\d+) status:", line):
            hca = match[1]
            started = PortBlock(hca, number(match[2]))
        elif match := re.match(r"\s*Port (\d+):\s*$", line):
            started = PortBlock(hca, number(match[1]))
        else:
            if block is not None and ":" in line:
                block.add(line, at)
            continue
        if block is not None:
            yield block
        block = started
    if block is not None:
        yield block


def parse(text: str) -> list[Port]:
    """Ports from the text of ibstat, or of ibstatus."""
    return [block.port for block in blocks(text)]


def from_sysfs(hcas: Mapping[str, Mapping[str, Mapping[str, str | None]]]) -> list[Port]:
    """Ports from /sys/class/infiniband: `4: ACTIVE`, `5: LinkUp`, `400 Gb/sec (4X NDR)`."""
    return [
        Port(
            hca=hca,
            number=int(port_number),
            state=as_state(port.get("state")),
            physical=as_state(port.get("phys_state")),
            rate_gbps=as_rate(port.get("rate")),
            link_layer=port.get("link_layer") or "InfiniBand",
            detail=port.get("rate") or "",
        )
        for hca, ports in hcas.items()
        for port_number, port in ports.items()
        if port_number.isdecimal()
    ]


def as_state(text: str | None) -> str:
    """`4: ACTIVE` and `Active` are one."""
    word = re.sub(r"^\d+:\s*", "", text or "").lower()
    return KERNEL_STATES.get(word, word)


def as_rate(text: str | None) -> float | None:
    match = re.match(r"\d{1,9}(?:\.\d{1,9})?(?!\d)", text or "")
    return float(match[0]) if match else None


# --- the output of ibstat and ibstatus ------------------------------------------------------------------------------

PHYSICAL = {
    "polling": "Polling: no cable, or nothing at its other end",
    "disabled": "Disabled: switched off",
    "linkup": "LinkUp",
}


def read(text: str) -> Reading | None:
    seen = list(blocks(text))
    panic = re.search(r"^ibpanic: .*?(?:\[\d+\] )?(?:main: )?(stat of .*|.*)$", text, re.MULTILINE)
    if not seen and not panic:
        return (
            Reading("ibstat", unknown=f"it shows no port: {CUT}")
            if re.search(r"^[ \t]*CA '", text, re.MULTILINE)
            else None
        )
    known = [block for block in seen if _whole(block) or _plainly_down(block)]
    up = [block for block in known if block.port.sound]
    unknown = ""
    odd = any(line.strip() and not re.match(LINE, line) for line in text.splitlines())
    if odd or len(known) < len(seen) or not _all_listed(text, seen):
        unknown = f"the list of ports is not whole: {CUT}"
    elif panic:
        unknown = f"ibstat stopped: {panic[1]}"
    return Reading("ibstat", _faults(known, up), (), unknown)


def _whole(block: PortBlock) -> bool:
    """Whether it is complete to its last field, with a known state and no cut word."""
    port = block.port
    last = {"link_layer"} if _of_ibstatus(block) else {"port guid", "link layer"}
    return (
        port.state in STATES
        and bool(port.physical)
        and port.rate_gbps is not None
        and bool(last & set(block.fields))
        and ("link layer" not in block.fields or port.link_layer in ("InfiniBand", "Ethernet"))
        and (port.state != "active" or port.physical == "linkup")
    )


def _plainly_down(block: PortBlock) -> bool:
    """Both its states say so, in words of which no half is left out: whatever else is missing, it is down."""
    return block.port.state == "down" and block.port.physical in ("polling", "disabled", "sleep", "linkerrorrecovery")


def _of_ibstatus(block: PortBlock) -> bool:
    return "default gid" in block.fields or "phys state" in block.fields


def _all_listed(text: str, seen: Sequence[PortBlock]) -> bool:
    """Every adapter with as many ports as it says it has; all of them with the same number of fields."""
    promised = sum(number(found) for found in re.findall(r"^[ \t]*Number of ports: (\d+)", text, re.MULTILINE))
    adapters = len(re.findall(r"^[ \t]*CA '", text, re.MULTILINE))
    if adapters and (promised != len(seen) or adapters != len({block.hca for block in seen})):
        return False
    layers = ["link layer" in block.fields or "link_layer" in block.fields for block in seen]
    return all(layers) or not any(layers)


def _faults(known: Sequence[PortBlock], up: Sequence[PortBlock]) -> tuple[Fault, ...]:
    waiting = [block for block in known if block.port.cause == "ib-port-initializing"]
    down = [block for block in known if block.port.cause == "ib-port-not-active"]
    found = []
    if down:
        spare = f"; {len(up)} other port{'s are' if len(up) > 1 else ' is'} active" if up else ""
        found.append(
            Fault(
                "ib-port-not-active",
                some(
                    [
                        f"{b.port.name} is {b.port.state.capitalize()} "
                        f"({PHYSICAL.get(b.port.physical, b.port.physical)})"
                        for b in down
                    ]
                )
                + spare,
                _raise(down[0])
                + ("; a port that the job does not use may stay down: leave it out of NCCL_IB_HCA" if up else ""),
                _lines(down),
                "medium" if up else "high",
            )
        )
    if waiting:
        found.append(
            Fault(
                "ib-port-initializing",
                f"{some([b.port.name for b in waiting])}: the link is up, and no subnet manager has set it up",
                f"{START_SUBNET_MANAGER}; `sudo sminfo` shows who it is",
                _lines(waiting),
                "high" if not up else "medium",
            )
        )
    return tuple(found)


def _lines(down: Sequence[PortBlock]) -> tuple[int, ...]:
    """The state and physical state of each."""
    names = ("state", "physical state", "phys state")
    return tuple(at for block in down for name, at in block.lines.items() if name in names)


def _raise(block: PortBlock) -> str:
    port = block.port
    if port.ethernet:
        return (
            f"`rdma link show {word(port.hca)}/{port.number}` names its interface: `sudo ip link set INTERFACE "
            "up`, then the cable and the switch port"
        )
    if port.physical == "disabled":
        return f"sudo ibportstate -C {word(port.hca)} -P {port.number} -D 0 {port.number} enable"
    return (
        f"look at the cable and the switch port of {port.name} (`sudo iblinkinfo`); reseat or replace the cable "
        "if it stays so"
    )


LINE = (
    r"\s*(?:CA '|CA type:|Number of ports:|Firmware version:|Hardware version:|Node GUID:|System image GUID:|Port \d+:"
    r"|State:|Physical state:|Rate:|Base lid:|LMC:|SM lid:|Capability mask:|Port GUID:|Link layer:|Infiniband device '"
    r"|default gid:|base lid:|sm lid:|state:|phys state:|rate:|link_layer:|ibpanic:)"
)
TOOL = Tool(
    "ibstat",
    r"ibstat(?:us)?\b",
    r"\s*CA '.+'|Infiniband device '.+' port \d+ status:|ibpanic:",
    LINE,
    ("CA '", "Infiniband device '", "ibpanic:"),
    read,
)
