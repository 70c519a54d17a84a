"""Ports of HCAs as ibstat, ibstatus and the kernel show them, read without judging them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


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
            self.hca,
            self.number,
            as_state(self.fields.get("state")),
            as_state(self.fields.get("physical state", self.fields.get("phys state"))),
            as_rate(self.fields.get("rate")),
            self.fields.get("link layer", self.fields.get("link_layer", "InfiniBand")),
        )


STATES = {"init": "initializing", "arm": "armed"}
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
            started = PortBlock(hca, int(match[2]))
        elif match := re.match(r"\s*Port (\d+):\s*$", line):
            started = PortBlock(hca, int(match[1]))
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
            hca,
            int(number),
            as_state(port.get("state")),
            as_state(port.get("phys_state")),
            as_rate(port.get("rate")),
            port.get("link_layer") or "InfiniBand",
            port.get("rate") or "",
        )
        for hca, ports in hcas.items()
        for number, port in ports.items()
        if number.isdecimal()
    ]


def as_state(text: str | None) -> str:
    """`4: ACTIVE` and `Active` are one."""
    word = re.sub(r"^\d+:\s*", "", text or "").lower()
    return STATES.get(word, word)


def as_rate(text: str | None) -> float | None:
    match = re.match(r"\d+(\.\d+)?", text or "")
    return float(match[0]) if match else None
