"""What nvidia-smi printed, read without judging it. What is not understood is told apart from what is not there."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

NOT_TOLD = re.compile(
    r"\A\[?(n/a|not supported|not available|insufficient permissions|requested .* deprecated)\]?\Z", re.I
)
"""A field that this GPU or driver does not have, or does not tell us: no sign of a fault."""

BROKEN = re.compile(r"\[?(unknown error|gpu is lost|gpu requires reset|err!?)\]?\Z", re.I)
"""What stands in a field when the driver cannot read the GPU."""

LOST = re.compile(
    r"Unable to determine the device handle for GPU ?(?P<gpu>[0-9A-Fa-f:. ]*?):? ?(?P<why>GPU is lost|Unknown Error|Not Found|No Data)",
    re.I,
)
"""With the number, the bus id or both behind `GPU`, with and without a space; the line may be wrapped."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One line of `--query-gpu`. `index` is nvidia-smi's, which is that of the PCI bus; the rest by field name."""

    index: int
    fields: Mapping[str, str]

    def told(self, name: str) -> str | None:
        """The field's value, or None where there is none to be had."""
        value = self.fields.get(name, "").strip()
        return None if not value or NOT_TOLD.match(value) or BROKEN.match(value) else value

    def number(self, name: str) -> float | None:
        value = self.told(name)
        try:
            return None if value is None else float(int(value, 16) if value.startswith("0x") else float(value))
        except ValueError:
            return None

    @property
    def broken(self) -> dict[str, str]:
        """Fields that the driver could not read."""
        return {name: value for name, value in self.fields.items() if BROKEN.match(value.strip())}

    @property
    def name(self) -> str:
        return self.fields.get("name", "")


@dataclass(frozen=True, slots=True)
class Listing:
    """What `--query-gpu` gave: GPUs, lines that look like a GPU and are cut or garbled, and everything else."""

    gpus: tuple[Gpu, ...]
    garbled: tuple[str, ...] = ()
    other: tuple[str, ...] = ()

    @property
    def lost(self) -> tuple[str, ...]:
        """The GPUs, by number or bus id, that the driver lists and cannot reach."""
        return tuple(match["gpu"].strip() or "?" for match in LOST.finditer(flat("\n".join(self.other))))


def flat(text: str) -> str:
    """On one line: consoles wrap long messages wherever they end."""
    return " ".join(text.split())


def parse_gpus(text: str, fields: Sequence[str], complaints: str = "") -> Listing:
    """A GPU has a number, an id and a name, and as many fields as the other lines: a line with less proves nothing.

    nvidia-smi ends every line; a last one without its end has been cut. `complaints` is what it said on stderr.
    """
    rows = [(line, next(csv.reader([line], skipinitialspace=True), [])) for line in text.splitlines() if line.strip()]
    numbered = [(line, row) for line, row in rows if row and re.fullmatch(r"\d+", row[0])]
    columns = max((len(row) for _, row in numbered), default=0)
    gpus: list[Gpu] = []
    garbled: list[str] = []
    for at, (line, row) in enumerate(numbered):
        named = dict(zip(fields, row, strict=False))
        cut = at == len(numbered) - 1 and text.endswith(line)
        if (
            cut
            or len(row) != columns
            or not named.get("uuid", "").startswith("GPU-")
            or not named.get("name", "").strip()
        ):
            garbled.append(line)
        else:
            gpus.append(Gpu(int(row[0]), named))
    other = [line for line, row in rows if (line, row) not in numbered] + complaints.splitlines()
    return Listing(tuple(gpus), tuple(garbled), tuple(other))


@dataclass(frozen=True, slots=True)
class App:
    """A process that computes on a GPU. `mib` is the GPU memory it holds, None where the driver does not tell."""

    pid: int
    uuid: str
    mib: float | None
    program: str


def parse_apps(text: str) -> tuple[App, ...]:
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) >= 4 and row[0].isdecimal():
            held = re.fullmatch(r"[\d.]+", row[2])
            found.append(App(int(row[0]), row[1], float(row[2]) if held else None, ",".join(row[3:])))
    return tuple(found)


def parse_links(text: str) -> dict[int, dict[int, bool]]:
    """`nvidia-smi nvlink -s`: GPU -> link -> whether it is active. A GPU without any NVLink is not in it."""
    found: dict[int, dict[int, bool]] = {}
    index: int | None = None
    for line in text.splitlines():
        if match := re.match(r"GPU (\d+):", line):
            index = int(match[1])
        elif index is None:
            continue
        elif match := re.match(r"\s+Link (\d+): (\S+)", line):
            found.setdefault(index, {})[int(match[1])] = bool(re.match(r"[\d.]+\Z", match[2]))
        elif "all links are inactive" in line.lower():
            found.setdefault(index, {})
    return found


@dataclass(frozen=True, slots=True)
class Details:
    """`nvidia-smi -q`: `head` what stands before the first GPU, `gpus` by bus key, `Section/Entry` -> value."""

    head: Mapping[str, str] = field(default_factory=dict)
    gpus: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def parse_details(text: str) -> Details:
    head: dict[str, str] = {}
    gpus: dict[str, dict[str, str]] = {}
    here = head
    path: list[tuple[int, str]] = []  # the sections a line stands in, with their indentation
    for line in text.splitlines():
        if not line.strip():
            continue
        if match := re.match(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})", line):
            here = gpus.setdefault(bus_key(match[1]) or match[1], {})
            path = []
            continue
        indent = len(line) - len(line.lstrip())
        while path and path[-1][0] >= indent:
            path.pop()
        name, colon, value = line.strip().partition(" : ")
        if colon:
            here["/".join([*(section for _, section in path), name.strip()])] = value.strip()
        path.append((indent, name.strip()))
    return Details(head, gpus)


def bus_key(text: str) -> str | None:
    """One spelling of a PCI address: nvidia-smi writes 00000000:3B:00.0, the kernel 0000:3b:00."""
    match = re.search(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})", text)
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}".lower() if match else None


THROTTLES = {
    0x08: "HW slowdown",
    0x20: "software thermal slowdown",
    0x40: "HW thermal slowdown",
    0x80: "HW power brake",
}
"""The bits of `clocks_event_reasons.active` that no healthy GPU shows; others are idle, caps and settings."""


def throttled(mask: int) -> tuple[str, ...]:
    return tuple(name for bit, name in THROTTLES.items() if mask & bit)
