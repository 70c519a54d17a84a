"""nvidia-smi's shorter forms: -L, nvlink --status, topo -m, and CSV of --query-gpu."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runbook.parsers.nvidia import BROKEN, LOST, cells, flat, parse_links
from runbook.parsers.nvidia_table import failures
from runbook.parsers.tool_reading import CUT, Fault, Reading, Support, Tool, numbered

GPU = re.compile(
    r"GPU (?P<index>\d+): (?P<name>.+?) \(UUID: (?P<uuid>GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\)\s*\Z"
)
MIG = re.compile(r"\A\s+MIG \S+\s+Device\s+\d+: \(UUID: MIG-\S+\)\s*\Z")


def listing(text: str) -> Reading | None:
    rows = [(at, line) for at, line in numbered(text) if line.strip()]
    gpus = [found for _, line in rows if (found := GPU.match(line))]
    wrong = tuple(failures(text))
    if not gpus and not wrong:
        return None
    slices = sum(bool(MIG.match(line)) for _, line in rows)
    numbers = [int(gpu["index"]) for gpu in gpus]
    whole = len(gpus) + slices == len(rows) and numbers == list(range(len(gpus)))
    return Reading("nvidia-smi -L", wrong, (), "" if whole or wrong else CUT)


LINK = re.compile(r"\A\s+Link \d+: (?:[\d.]+ GB/s|<?inactive>?)\s*\Z", re.IGNORECASE)


def nvlink(text: str) -> Reading | None:
    links = parse_links(text)
    rows = [(at, line) for at, line in numbered(text) if line.strip()]
    if not links:
        return None
    read_rows = sum(
        bool(LINK.match(line) or GPU.match(line) or "all links are inactive" in line.lower()) for _, line in rows
    )
    active = {gpu: sum(up.values()) for gpu, up in links.items()}
    most = max(active.values())
    silent = sum(not up for gpu in links.values() for up in gpu.values())
    behind = [gpu for gpu, count in active.items() if count < most]
    faults: tuple[Fault, ...] = ()
    if behind:
        lines = tuple(_inactive(text, behind))[:6]
        says = f"GPU {','.join(map(str, behind))} has fewer active NVLinks than the {most} that others have"
        remedy = (
            "sudo nvidia-smi --gpu-reset   # all GPUs together; then `sudo dmesg -T | grep -i -E 'xid|nvlink'`, "
            "reseat or replace the board"
        )
        faults = (Fault("nvlink-error", says, remedy, lines or (1,), "medium"),)
    listed = sum(bool(re.match(r"GPU \d+:", line)) for _, line in rows)
    whole = (
        (read_rows, listed) == (len(rows), len(links))
        and len({len(up) for up in links.values() if up}) <= 1
        and (bool(behind) or not silent)
    )
    return Reading("nvidia-smi nvlink", faults, (), "" if whole else CUT)


def _inactive(text: str, gpus: list[int]) -> Iterator[int]:
    here = -1
    for at, line in numbered(text):
        if found := re.match(r"GPU (\d+):", line):
            here = int(found[1])
        elif here in gpus and "inactive" in line.lower():
            yield at


CELL = r"X|NV\d+|SYS|NODE|PHB|PXB|PIX|PSB|C2C|N/A"


def topology(text: str) -> Reading | None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    head = re.search(r"^[ \t]+GPU0\b.*$", text, re.MULTILINE)
    if not head:
        return None
    columns = re.findall(r"\b(?:GPU|NIC)\d+\b|\b(?:mlx|bnxt|irdma|efa)\w*_\d+\b", head[0])
    rows: dict[str, list[str]] = {}
    for line in text[head.end() :].splitlines():
        words = line.split()
        if words and words[0] in columns:
            rows[words[0]] = words[1 : len(columns) + 1]
    whole = set(rows) == set(columns) and all(
        len(row) == len(columns) and all(re.fullmatch(CELL, cell) for cell in row) for row in rows.values()
    )
    return Reading("nvidia-smi topo", unknown="" if whole else CUT)


HARMFUL = {
    0x8: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
MASK = re.compile(r"0x[0-9a-fA-F]{16}\Z")
COUNT = re.compile(r"\A(?:\d+|Yes|No|\[?(?:N/A|Not Supported)\]?)\Z")
ERRORS = re.compile(r"ecc\.errors\.uncorrected|remapped_rows\.(?:uncorrectable|pending|failure)|retired_pages\.pending")


def query(text: str) -> Reading | None:
    """With its heading every field is known by its name; without one only the mask of the clocks is."""
    rows = [(at, [cell.strip() for cell in cells(line)]) for at, line in numbered(text) if line.strip()]
    if lost := LOST.search(flat(text)):
        fault = Fault(
            "gpu-fell-off-bus",
            f"the driver cannot reach GPU {lost['gpu'].strip() or '?'} any more: {lost['why']}",
            "sudo reboot",
            (1,),
        )
        return Reading("nvidia-smi --query-gpu", (fault,))
    if not rows:
        return None
    names = (
        [re.sub(r" \[[^\[]*\]$", "", cell) for cell in rows[0][1]]
        if re.fullmatch(r"[a-z_]+(?:\.[a-z_]+)*(?: \[.*\])?", rows[0][1][0])
        else []
    )
    body = rows[1:] if names else rows
    masks = [(at, row[0], int(row[-1], 16)) for at, row in body if MASK.match(row[-1])]
    if not names and len(masks) != len(body):
        return None
    faults = list(_of_fields(names, body))
    slow = [(at, f"{name}: {', '.join(reasons)}") for at, name, mask in masks if (reasons := _reasons(mask))]
    says = f"slowed down: {'; '.join(what for _, what in slow[:4])}"
    supports = (
        (
            Support(
                ("allreduce-slow", "rank-behind"), says, tuple(at for at, _ in slow[:4]), "look at cooling and power"
            ),
        )
        if slow
        else ()
    )
    uneven = len({len(row) for _, row in rows}) > 1 or not body or any(not cell for _, row in rows for cell in row)
    broken = [cell for _, row in body for cell in row if BROKEN.match(cell)]
    unknown = CUT if uneven else f"the driver cannot read a field ({broken[0]})" if broken and not faults else ""
    odd = [
        told
        for _, row in body
        for name, told in zip(names, row, strict=False)
        if ERRORS.search(name) and not COUNT.match(told)
    ]
    if not unknown and odd:
        unknown = f"not understood: {odd[0]}"
    if not unknown and any(mask & ~0x1FF for _, _, mask in masks):
        unknown = "a bit of the mask is not known here"
    return Reading("nvidia-smi --query-gpu", tuple(faults), supports, unknown)


def _reasons(mask: int) -> list[str]:
    """Those for which the clocks should not be lower."""
    return [name for bit, name in HARMFUL.items() if mask & bit]


def _of_fields(names: list[str], body: list[tuple[int, list[str]]]) -> Iterator[Fault]:
    for at, row in body:
        told = dict(zip(names, row, strict=False))
        who = f"GPU {told.get('index', told.get('name', row[0]))}"
        if any("gpu is lost" in cell.lower() for cell in row):
            yield Fault(
                "gpu-fell-off-bus", f"the driver cannot reach {who} any more: GPU is lost", "sudo reboot", (at,)
            )
        for name, value in told.items():
            if ERRORS.search(name) and "aggregate" not in name and value not in ("0", "No", "[N/A]", "N/A"):
                cause = "gpu-ecc-uncorrectable" if "ecc" in name or "uncorrectable" in name else "gpu-reset-required"
                if value == "Yes" or value.isdecimal():
                    yield Fault(
                        cause,
                        f"{who}: {name} is {value}",
                        "sudo nvidia-smi --gpu-reset   # when nothing runs on it",
                        (at,),
                    )
                    break


TOOLS = (
    Tool(
        "nvidia-smi nvlink",
        r"nvidia-smi nvlink",
        r"GPU \d+: .*\(UUID: GPU-[0-9a-f-]+\)\s*\n\s+Link \d+:",
        r"GPU \d+: |\s+Link \d+:|\s*NVML: ",
        ("Link 0:", "links are inactive"),
        nvlink,
    ),
    Tool(
        "nvidia-smi -L",
        r"nvidia-smi (?:-L|--list-gpus)",
        r"GPU \d+: .*\(UUID: (?:GPU-)",
        r"GPU \d+: |\s+MIG ",
        ("(UUID: GPU-",),
        listing,
    ),
    Tool(
        "nvidia-smi topo",
        r"nvidia-smi topo",
        r"[ \t]+(?:\x1b\[\d*m)?GPU0\b",
        r"[ \t]|(?:GPU|NIC)\d+|mlx|Legend:|\s*$",
        ("GPU0",),
        topology,
    ),
    Tool(
        "nvidia-smi --query-gpu",
        r"nvidia-smi .*--query-gpu",
        r"[^,]*, 0x[0-9a-f]{16}\s*\Z|(?:index|name|uuid|gpu_name|timestamp|pci\.bus_id), [a-z_.]+",
        r"[^,]+, ",
        (", 0x0000", "index, ", "name, ", "uuid, "),
        query,
    ),
)
