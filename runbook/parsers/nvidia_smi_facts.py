"""Facts from nvidia-smi's outputs, and the judgements about them that live checks and pasted outputs share.

Output that is not understood is distinguished from a missing value.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runbook.model.units import parse_number

ABSENT_VALUE = re.compile(
    r"\A\[?(n/a|not supported|not available|insufficient permissions|requested .* deprecated)\]?\Z", re.I
)
"""Values of a field that the GPU or its driver does not have or show: no sign of a fault."""

UNREADABLE_VALUE = re.compile(r"\[?(unknown error|gpu is lost|gpu requires reset|err!?)\]?\Z", re.I)
"""Values of a field of a GPU that the driver cannot read."""

LOST_GPU = re.compile(
    r"Unable to determine the device handle for GPU ?(?P<gpu>[0-9A-Fa-f:. ]*?):? ?(?P<why>GPU is lost"
    r"|Unknown Error|Not Found|No Data)",
    re.I,
)
"""The message about a GPU that the driver lists but cannot reach. Behind `GPU`, with or without a space, stands its
number, its bus id, or both. Search it in `flat` text, since the line may be wrapped."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One line of `--query-gpu`. `index` is nvidia-smi's number of the GPU, in the order of the PCI bus; `fields` are
    its values by field name."""

    index: int
    fields: Mapping[str, str]

    def value(self, name: str) -> str | None:
        """The field's value; None if the GPU or driver does not have it or cannot read it."""
        value = self.fields.get(name, "").strip()
        return None if not value or ABSENT_VALUE.match(value) or UNREADABLE_VALUE.match(value) else value

    def number(self, name: str) -> float | None:
        """The field's value as a finite number, also from hexadecimal (`0x…`); None if it is none."""
        value = self.value(name)
        try:
            found = math.nan if value is None else float(int(value, 16) if value.startswith("0x") else value)
        except (ValueError, OverflowError):
            return None
        return found if math.isfinite(found) else None

    @property
    def broken(self) -> dict[str, str]:
        """The fields that the driver could not read, with the text that nvidia-smi printed for each."""
        return {name: value for name, value in self.fields.items() if UNREADABLE_VALUE.match(value.strip())}

    @property
    def name(self) -> str:
        return self.fields.get("name", "")

    @property
    def slowed_by(self) -> tuple[str, ...]:
        """The reasons, as in SLOWDOWN_BY_BIT, for which the GPU's clocks are slowed down by heat or power."""
        names = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # the second before driver 535
        masks = map(self.number, names)
        return slowdown_names(int(next((mask for mask in masks if mask is not None), 0)))


@dataclass(frozen=True, slots=True)
class Listing:
    """The output of `--query-gpu`: its GPUs; lines that look like a GPU but are cut or garbled; and all other lines."""

    gpus: tuple[Gpu, ...]
    garbled: tuple[str, ...] = ()
    other: tuple[str, ...] = ()

    @property
    def lost(self) -> tuple[str, ...]:
        """The numbers or bus ids of GPUs that the driver lists but cannot reach; `?` for a GPU that is not named."""
        return tuple(match["gpu"].strip() or "?" for match in LOST_GPU.finditer(unwrapped_text("\n".join(self.other))))


def unwrapped_text(text: str) -> str:
    """The text on one line, so that a message is found although a console wrapped it."""
    return " ".join(text.split())


def parse_gpus(text: str, fields: Sequence[str], complaints: str = "") -> Listing:
    """The GPUs in the CSV of `--query-gpu`; `fields` are the names of its columns, `complaints` is its stderr.

    A GPU's line has a number, an id, a name, and as many fields as the other lines: a line with less is garbled.
    nvidia-smi ends every line, so that a last line without its end has been cut.
    """
    rows = [(line, csv_cells(line)) for line in text.splitlines() if line.strip()]
    numbered = [(line, row) for line, row in rows if _is_numbered(row)]
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
            gpus.append(Gpu(parse_number(row[0]), named))
    other = [line for line, row in rows if not _is_numbered(row)] + complaints.splitlines()
    return Listing(tuple(gpus), tuple(garbled), tuple(other))


def csv_cells(line: str) -> list[str]:
    """The cells of a line of CSV; empty if Python's reader refuses the line (a NUL, a field that is too long)."""
    try:
        return next(csv.reader([line], skipinitialspace=True), [])
    except csv.Error:
        return []


def _is_numbered(row: Sequence[str]) -> bool:
    return bool(row) and row[0].isdecimal()


@dataclass(frozen=True, slots=True)
class App:
    """A process that computes on a GPU. `mib` is the GPU memory that it holds, None if the driver does not say;
    `uuid` is the GPU's."""

    pid: int
    uuid: str
    mib: float | None
    program: str


def parse_apps(text: str) -> tuple[App, ...]:
    """The processes in the CSV of `--query-compute-apps`: pid, the GPU's UUID, memory, program."""
    found = []
    for row in map(csv_cells, text.splitlines()):
        if len(row) >= 4 and row[0].isdecimal():
            held = re.fullmatch(r"\d{1,15}(?:\.\d{1,15})?", row[2])
            found.append(App(parse_number(row[0]), row[1], float(row[2]) if held else None, ",".join(row[3:])))
    return tuple(found)


def parse_links(text: str) -> dict[int, dict[int, bool]]:
    """From `nvidia-smi nvlink -s`: GPU -> link -> whether the link is active. A GPU whose links are all inactive in one
    sentence has no links here; a GPU without any NVLink is missing."""
    found: dict[int, dict[int, bool]] = {}
    index: int | None = None
    for line in text.splitlines():
        if match := re.match(r"GPU (\d+):", line):
            index = parse_number(match[1])
        elif index is None:
            continue
        elif match := re.match(r"\s+Link (\d+): (\S+)", line):
            found.setdefault(index, {})[parse_number(match[1])] = bool(re.match(r"[\d.]+\Z", match[2]))
        elif "all links are inactive" in line.lower():
            found.setdefault(index, {})
    return found


@dataclass(frozen=True, slots=True)
class Details:
    """The entries of `nvidia-smi -q` as `Section/Entry` -> value: `head` has those before the first GPU, `gpus` those
    of each GPU by its bus key."""

    head: Mapping[str, str] = field(default_factory=dict)
    gpus: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


MAX_SECTION_DEPTH, MAX_NAME_CHARACTERS = 12, 100
"""How deep sections are nested, and how many characters of a name are kept: nvidia-smi has no more. The limits bound
the memory, since each entry's key holds the names of all its sections."""


def parse_details(text: str) -> Details:
    """The entries in the text of `nvidia-smi -q`."""
    head: dict[str, str] = {}
    gpus: dict[str, dict[str, str]] = {}
    here = head
    path: list[tuple[int, str]] = []  # the sections around a line: (indentation, name)
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
            here["/".join([*(section for _, section in path), name.strip()[:MAX_NAME_CHARACTERS]])] = value.strip()
        if len(path) < MAX_SECTION_DEPTH:
            path.append((indent, name.strip()[:MAX_NAME_CHARACTERS]))
    return Details(head, gpus)


def bus_key(text: str) -> str | None:
    """A PCI address in one spelling, `0000:3b:00`: nvidia-smi writes 00000000:3B:00.0, the kernel 0000:3b:00. None if
    the text holds no PCI address."""
    match = re.search(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})", text)
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}".lower() if match else None


SLOWDOWN_BY_BIT = {
    0x08: "HW slowdown",
    0x20: "software thermal slowdown",
    0x40: "HW thermal slowdown",
    0x80: "HW power brake",
}
"""The bits of `clocks_event_reasons.active` that no healthy GPU shows; the other bits are idle, caps and settings."""


def slowdown_names(mask: int) -> tuple[str, ...]:
    """The names of the bits of SLOWDOWN_BY_BIT that are set in the mask."""
    return tuple(name for bit, name in SLOWDOWN_BY_BIT.items() if mask & bit)


# --- judgements that live checks and pasted outputs share -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error message that nvidia-smi prints instead of an answer, with its cause and the `way` of its remedy.

    `of_paste`, `of_node`: whether the message proves the cause in a pasted output, and on a node whose GPUs the
    inventory promises; `cause_of_node`: its cause on such a node, if it differs. `code`: nvidia-smi's exit code for it
    by its manual, for a text that is missing or in another language; 0: none."""

    phrase: str
    cause: str
    says: str
    way: str
    of_paste: bool = True
    of_node: bool = True
    cause_of_node: str = ""
    code: int = 0


_NO_GPU = ("no-gpu-visible", "the driver finds no GPU at all", "no-device")
SMI_REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "driver/library version mismatch",
        "driver-library-mismatch",
        "the NVIDIA kernel module and its libraries are of different versions: the driver was updated while it ran",
        "reboot",
        code=18,
    ),
    Refusal(
        "couldn't communicate with the nvidia driver",
        "no-gpu-visible",
        "nvidia-smi cannot talk to the driver: its kernel module is not loaded",
        "module",
        code=9,
    ),
    Refusal("driver not loaded", "no-gpu-visible", "the NVIDIA kernel module is not loaded", "module"),
    Refusal(
        "couldn't find libnvidia-ml",
        "no-gpu-visible",
        "the driver's library libnvidia-ml.so is not found",
        "library",
        code=12,
    ),
    Refusal("gpu access blocked", "no-gpu-visible", "the operating system keeps programs from the GPU", "wsl"),
    Refusal("no devices were found", *_NO_GPU, cause_of_node="gpu-count-mismatch", code=6),
    Refusal("no devices found", *_NO_GPU, cause_of_node="gpu-count-mismatch"),
    Refusal("gpu requires reset", "gpu-reset-required", "a GPU waits for a reset", "all", of_node=False),
    Refusal(
        "failed to initialize nvml: unknown error",
        "no-gpu-visible",
        "the driver does not open the GPUs; in a container most often because the host took them away again "
        "(a `systemctl daemon-reload` there does)",
        "nvml",
    ),
    Refusal(
        "insufficient permissions",
        "no-gpu-visible",
        "the login user may not open the GPUs",
        "permissions",
        of_paste=False,
    ),
    Refusal(
        "gpu is lost", "gpu-fell-off-bus", "a GPU is lost: it has fallen off the bus", "reboot", of_paste=False, code=15
    ),
)

NO_SPARE_ROWS = "has no spare memory rows left to repair itself with"
BAD_ROWS = "has bad memory that a reset puts out of use"
FABRIC_WAITING_STATES = ("In Progress", "Not Started")


def entry(entries: Mapping[str, str], tail: str) -> str | None:
    """The value of an entry of `nvidia-smi -q`, found by the end of its path, since excerpts leave out the outer
    sections; None if there is no such entry."""
    return next((value for name, value in entries.items() if name == tail or name.endswith("/" + tail)), None)


def entry_yes_or_no(entries: Mapping[str, str], tail: str) -> bool | None:
    """Whether an entry of `nvidia-smi -q` says Yes (True) or No (False); None for any other value, or no entry."""
    value = entry(entries, tail)
    return None if value not in ("Yes", "No") else value == "Yes"


def has_no_spare_rows(entries: Mapping[str, str]) -> bool:
    """Whether the GPU has no spare memory rows left: a reset does not mend it, and it has to be replaced."""
    return entry_yes_or_no(entries, "Remapped Rows/Remapping Failure Occurred") is True


def waits_to_remap(entries: Mapping[str, str]) -> bool:
    """Whether the GPU has bad memory rows that its next reset replaces by spare ones."""
    return entry_yes_or_no(entries, "Remapped Rows/Pending") is True


def asks_for_recovery(action: str) -> bool:
    """Whether a value of `GPU Recovery Action` asks for something: a reset, a reboot, to drain the GPU, or whatever
    later drivers may ask for."""
    silent = action.lower() in ("", "none") or ABSENT_VALUE.match(action) or UNREADABLE_VALUE.match(action)
    return not silent


def unready_fabric_state(entries: Mapping[str, str]) -> tuple[str, str] | None:
    """(state, status) of a GPU that the fabric manager has not set up; None for a GPU that it has set up, or that is
    connected to no fabric."""
    state, status = entry(entries, "Fabric/State") or "", entry(entries, "Fabric/Status") or "N/A"
    waits = state in FABRIC_WAITING_STATES or (state == "Completed" and status not in ("Success", "N/A"))
    return (state, status) if waits else None
