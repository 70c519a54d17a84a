"""nvidia-smi's shorter forms: -L, nvlink --status, topo -m, and CSV of --query-gpu."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runbook.parsers.nvidia import BROKEN, LOST, cells, flat, parse_links, throttled
from runbook.parsers.nvidia_table import failures
from runbook.parsers.tool_reading import CUT, Reading, numbered

GPU = re.compile(
    r"GPU (?P<index>\d+): (?P<name>.+?) \(UUID: (?P<uuid>GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\)\s*\Z"
)
MIG = re.compile(r"\A\s+MIG \S+\s+Device\s+\d+: \(UUID: MIG-\S+\)\s*\Z")


def listing(text: str) -> Reading | None:
    rows = [(at, line) for at, line in numbered(text) if line.strip()]
    gpus = [found for _, line in rows if (found := GPU.match(line))]
    reading = Reading()
    failures(text, reading)
    if not gpus and not reading.faults:
        return None
    slices = sum(bool(MIG.match(line)) for _, line in rows)
    numbers = [int(gpu["index"]) for gpu in gpus]
    whole = len(gpus) + slices == len(rows) and numbers == list(range(len(gpus)))
    reading.unknown = "" if whole or reading.faults else CUT
    return reading


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
    listed = sum(bool(re.match(r"GPU \d+:", line)) for _, line in rows)
    reading = Reading.of(
        (read_rows, listed) == (len(rows), len(links))
        and len({len(up) for up in links.values() if up}) <= 1
        and (bool(behind) or not silent)
    )
    if behind:
        says = f"GPU {','.join(map(str, behind))} has fewer active NVLinks than the {most} that others have"
        reading.proves("nvlink-error", says, list(_inactive(text, behind))[:6] or [1], "medium", way="fewer")
    return reading


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
    return Reading.of(
        set(rows) == set(columns)
        and all(len(row) == len(columns) and all(re.fullmatch(CELL, cell) for cell in row) for row in rows.values())
    )


MASK = re.compile(r"0x[0-9a-fA-F]{16}\Z")
COUNT = re.compile(r"\A(?:\d+|Yes|No|\[?(?:N/A|Not Supported)\]?)\Z")
ERRORS = re.compile(r"ecc\.errors\.uncorrected|remapped_rows\.(?:uncorrectable|pending|failure)|retired_pages\.pending")


def query(text: str) -> Reading | None:
    """With its heading every field is known by its name; without one only the mask of the clocks is."""
    rows = [(at, [cell.strip() for cell in cells(line)]) for at, line in numbered(text) if line.strip()]
    reading = Reading()
    if LOST.search(flat(text)):
        failures(text, reading)
        return reading
    if not rows:
        return None
    heads = rows[0][1] if re.fullmatch(r"[a-z_]+(?:\.[a-z_]+)*(?: \[.*\])?", rows[0][1][0]) else []
    names = [re.sub(r" \[[^\[]*\]$", "", cell) for cell in heads]
    body = rows[1:] if names else rows
    masks = [(at, row[0], int(row[-1], 16)) for at, row in body if MASK.match(row[-1])]
    if not names and len(masks) != len(body):
        return None
    _judge_fields(names, body, reading)
    slow = [(at, f"{name}: {', '.join(reasons)}") for at, name, mask in masks if (reasons := throttled(mask))]
    if slow:
        says = f"slowed down: {'; '.join(what for _, what in slow[:4])}"
        reading.explains("allreduce-slow", says, [at for at, _ in slow[:4]], also=("rank-behind",), way="cooling")
    uneven = len({len(row) for _, row in rows}) > 1 or not body or any(not cell for _, row in rows for cell in row)
    broken = [cell for _, row in body for cell in row if BROKEN.match(cell)]
    odd = [
        told
        for _, row in body
        for name, told in zip(names, row, strict=False)
        if ERRORS.search(name) and not COUNT.match(told)
    ]
    if uneven:
        reading.unknown = CUT
    elif broken and not reading.faults:
        reading.unknown = f"the driver cannot read a field ({broken[0]})"
    elif odd:
        reading.unknown = f"not understood: {odd[0]}"
    elif any(mask & ~0x1FF for _, _, mask in masks):
        reading.unknown = "a bit of the mask is not known here"
    return reading


def _judge_fields(names: list[str], body: list[tuple[int, list[str]]], reading: Reading) -> None:
    for at, row in body:
        told = dict(zip(names, row, strict=False))
        who = f"GPU {told.get('index', told.get('name', row[0]))}"
        if any("gpu is lost" in cell.lower() for cell in row):
            reading.proves(
                "gpu-fell-off-bus", f"the driver cannot reach {who} any more: GPU is lost", (at,), way="reboot"
            )
        for name, value in told.items():
            counts = ERRORS.search(name) and "aggregate" not in name
            if counts and (value == "Yes" or (value.isdecimal() and value != "0")):
                cause = "gpu-ecc-uncorrectable" if "ecc" in name or "uncorrectable" in name else "gpu-reset-required"
                reading.proves(cause, f"{who}: {name} is {value}", (at,), way="all")
                break
