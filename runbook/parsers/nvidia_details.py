"""nvidia-smi -q, whole or in part: memory errors and repairs, PCIe links, what slows the clocks."""

from __future__ import annotations

import re
from collections.abc import Mapping

from runbook.model.command_quoting import word
from runbook.model.units import whole_number
from runbook.parsers.nvidia import (
    BAD_ROWS,
    NO_SPARE_ROWS,
    entry,
    outside_the_fabric,
    parse_details,
    waits_to_remap,
    without_spare_rows,
    yes_or_no,
)
from runbook.parsers.nvidia_table import failures
from runbook.parsers.tool_reading import CUT, Reading, number, numbered

Entries = Mapping[str, str]
SLOW = ("HW Slowdown", "HW Thermal Slowdown", "HW Power Brake Slowdown", "SW Thermal Slowdown")


def read(text: str) -> Reading | None:
    details = parse_details(text)
    gpus = dict(details.gpus) or {"": details.head}
    if not any("/" in name for entries in gpus.values() for name in entries) and "Attached GPUs" not in details.head:
        return None
    found = Reading(_unknown(text, number(details.head.get("Attached GPUs", "")), details.gpus))
    failures(text, found)
    for name, entries in gpus.items():
        _judge(text, name, entries, found)
    return found


def _unknown(text: str, attached: float | None, gpus: Mapping[str, Entries]) -> str:
    if attached is None or not gpus:
        return "it is an excerpt: the rest is not known"
    if len(gpus) != attached:
        return f"it shows {len(gpus)} of {attached:.0f} GPUs"
    sections = [set(entries) for entries in gpus.values()]
    if any(section != sections[0] for section in sections) or "[...]" in text:
        return f"it does not show the same of every GPU: {CUT}"
    if not any("Uncorrectable" in name or "Double Bit" in name for name in sections[0]):
        return "it does not show the memory errors (-d ECC)"
    rows = [
        entries.get("Remapped Rows") or entry(entries, "Remapped Rows/Remapping Failure Occurred")
        for entries in gpus.values()
    ]
    if not all(rows):
        return "it does not show the repairs of memory (-d ROW_REMAPPER)"
    if re.search(r":\s*(?:Unknown Error|ERR!|GPU is lost)", text, re.IGNORECASE):
        return "the driver cannot read a GPU"
    odd = [
        value
        for entries in gpus.values()
        for name, value in entries.items()
        if _counts(name) and not re.fullmatch(r"\d+|N/A", value)
    ]
    odd += [
        entries[name]
        for entries in gpus.values()
        for name in entries
        if name.endswith(("Rows/Pending", "Failure Occurred")) and entries[name] not in ("Yes", "No", "N/A")
    ]
    return f"not understood: {odd[0]}" if odd else ""


def _counts(name: str) -> bool:
    return name.endswith(("Uncorrectable", "Uncorrectable Parity", "Uncorrectable SEC-DED", "Double Bit/Total"))


def _whole(entries: Entries, tail: str) -> int | None:
    value = number(entry(entries, tail) or "")
    return int(value) if value is not None else None


def busy(entries: Entries) -> bool:
    """Under load: an idle GPU lowers the generation of its link to save power, and that is no fault."""
    idle = entry(entries, "Clocks Event Reasons/Idle") or entry(entries, "Clocks Throttle Reasons/Idle")
    state = entry(entries, "Performance State")
    return idle == "Not Active" and state in ("P0", "P1", "P2")


def downgraded(entries: Entries) -> bool | None:
    width, most = _whole(entries, "Link Width/Current"), _whole(entries, "Link Width/Max")
    generation, newest = _whole(entries, "PCIe Generation/Current"), _whole(entries, "PCIe Generation/Max")
    if width is None or most is None or generation is None or newest is None:
        return None
    return width < most or (generation < newest and busy(entries))


def _judge(text: str, name: str, entries: Entries, found: Reading) -> None:
    where, index = f"GPU {name}" if name else "the GPU", name or "GPU"
    errors = sum(whole_number(value) or 0 for key, value in entries.items() if "Volatile/" in key and _counts(key))
    if without_spare_rows(entries):
        lines = _lines(text, name, r"Remapping Failure Occurred\s*: Yes")
        found.proves("gpu-reset-required", f"{where} {NO_SPARE_ROWS}", lines, way="replace")
    if errors:
        says = f"{where} has had {errors} uncorrectable memory errors since the driver was loaded"
        lines = _lines(text, name, r"\w+ Uncorrectable\S*\s*: [1-9]|Total\s*: [1-9]")
        found.proves("gpu-ecc-uncorrectable", says, lines, way="ecc", indices=word(index))
    if waits_to_remap(entries) or yes_or_no(entries, "Retired Pages/Pending Page Blacklist"):
        lines = _lines(text, name, r"Pending(?: Page Blacklist)?\s*: Yes")
        found.proves("gpu-reset-required", f"{where} {BAD_ROWS}", lines, way="pending", indices=word(index))
    action = entry(entries, "GPU Recovery Action") or "None"
    if action not in ("None", "N/A"):
        way = "reboot" if "reboot" in action.lower() else "reset"
        lines = _lines(text, name, r"GPU Recovery Action\s*:")
        found.proves("gpu-reset-required", f"{where} asks for: {action}", lines, way=way, indices=word(index))
    if outside := outside_the_fabric(entries):
        says = f"{where} is not connected to the NVSwitch fabric ({', '.join(outside)}): CUDA will not start"
        lines = _lines(text, name, r"State\s*: (?:In Progress|Not Started)|Status\s*: ")
        found.proves("fabricmanager-down", says, lines, way="fabric")
    if downgraded(entries):
        generation, newest = (_whole(entries, f"PCIe Generation/{which}") for which in ("Current", "Max"))
        width, most = (_whole(entries, f"Link Width/{which}") for which in ("Current", "Max"))
        says = f"{where} runs over PCIe generation {generation} of {newest}, {width} of {most} lanes"
        lines = _lines(text, name, r"Current\s*: ")
        found.explains("allreduce-slow", says, lines, also=("rank-behind",), way="slot")
    if held := [reason for reason in SLOW if entry(entries, reason) == "Active"]:
        lines = _lines(text, name, rf"{held[0]}\s*: Active")
        says = f"{where} is slowed down: {', '.join(held)}"
        found.explains("allreduce-slow", says, lines, also=("rank-behind",), way="cooling")


def _lines(text: str, gpu: str, pattern: str) -> tuple[int, ...]:
    """The lines of this GPU that a pattern finds something in."""
    here = not gpu
    found = []
    for at, line in numbered(text):
        if line.startswith("GPU "):
            here = not gpu or gpu.upper() in line.upper()
        if here and re.search(pattern, line):
            found.append(at)
    return tuple(found[:4]) or (1,)
