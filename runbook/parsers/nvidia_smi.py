"""Readers of nvidia-smi's outputs as people paste them: its table, its error messages, -q, -L, nvlink, topo and CSV."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from runbook.model.command_quoting import shell_word
from runbook.model.units import parse_whole_number
from runbook.parsers.nvidia_smi_facts import (
    BAD_ROWS,
    LOST_GPU,
    NO_SPARE_ROWS,
    SMI_REFUSALS,
    UNREADABLE_VALUE,
    asks_for_recovery,
    csv_cells,
    entry,
    entry_yes_or_no,
    has_no_spare_rows,
    parse_details,
    parse_links,
    slowdown_names,
    unready_fabric_state,
    unwrapped_text,
    waits_to_remap,
)
from runbook.parsers.tool_reading import CUT_OR_UNKNOWN, Reading, leading_number, numbered_lines

# --- the table, and error messages in its place ---------------------------------------------------------------------

SMI_HEADER = re.compile(
    r"NVIDIA-SMI (?P<smi>[\d.]+)\s+(?:Driver|KMD) Version: (?P<driver>[\d.]+"
    r"|N/A)(?:\s+CUDA(?: UMD)? Version: (?P<cuda>[\d.]+|N/A|ERR!))?"
)
FIRST_GPU_ROW = re.compile(
    r"\A\|\s*(?P<index>\d+)\s+(?P<name>\S.*?)\s+(?P<mode>On|Off|N/A|TCC|WDDM|MCDM"
    r"|ERR!)\s*\|\s*(?P<bus>[0-9A-Fa-f:.]+)\s+(?P<display>On|Off|N/A|ERR!)\s*\|\s*(?P<ecc>\S+)\s*\|"
)
SECOND_GPU_ROW = re.compile(
    r"\|\s*(?P<fan>\d+%|N/A|ERR!|\[[^\]]*\])\s+(?P<temp>\d+C|N/A|ERR!)\s+(?P<perf>P\d+|N/A|ERR!"
    r"|Unknown)\s+(?!\s)(?P<power>(?:[^|\s]|\s+(?![\s|]))*)\s*\|\s*"
    r"(?:(?P<used>\d+)\s*MiB\s*/\s*(?P<total>\d+)\s*MiB|Not Supported)\s*\|\s*(?P<load>\d+%|N/A"
    r"|ERR!)\s+(?P<compute>[\w.]+(?: Process)?|N/A|ERR!)\s*\|"
)
PROCESS_ROW = re.compile(
    r"\|\s*(?P<gpu>\d+)\s+(?:\S+\s+\S+\s+)?(?P<pid>\d+)\s+(?P<kind>C\+G|C|G|M\+C"
    r"|M)\s+(?P<program>\S.*?)\s+(?P<mib>\d+MiB|N/A)\s*\|"
)


def add_error_message_faults(text: str, found: Reading) -> None:
    """Adds the fault that an error message in nvidia-smi's output proves; a console may have wrapped the message."""
    low = unwrapped_text(text).lower()
    if lost := LOST_GPU.search(unwrapped_text(text)):
        says = f"the driver cannot reach GPU {lost['gpu'].strip() or '?'} any more: {lost['why']}"
        found.proves("gpu-fell-off-bus", says, _phrase_line(text, "determine the device handle"), way="reboot")
    elif "gpu is lost" in low:
        says = "the driver cannot reach a GPU any more: GPU is lost"
        found.proves("gpu-fell-off-bus", says, _phrase_line(text, "gpu is lost"), way="reboot")
    for one in SMI_REFUSALS:
        if one.of_paste and one.phrase in low:
            found.proves(one.cause, one.says, _phrase_line(text, one.phrase), way=one.way)
            return


def _phrase_line(text: str, phrase: str) -> tuple[int, ...]:
    """The number of the line on which a phrase begins, also if the phrase is wrapped; line 1 if it is not found."""
    words = phrase.lower().split()
    for size in range(len(words), 0, -1):
        for at, line in numbered_lines(text):
            if " ".join(words[:size]) in " ".join(line.lower().split()):
                return (at,)
    return (1,)


def read_table(text: str) -> Reading | None:
    """Reads the table that `nvidia-smi` prints, or its error message."""
    found = Reading()
    add_error_message_faults(text, found)
    if SMI_HEADER.search(text) is None:
        return found if found.faults else None
    gpus: list[TableRow] = []
    processes: list[tuple[int, re.Match[str]]] = []
    for at, line in numbered_lines(text):
        if first := FIRST_GPU_ROW.match(line.strip()):
            gpus.append((at, first.groupdict()))
        elif gpus and (second := SECOND_GPU_ROW.match(line.strip())):
            gpus[-1][1].update(second.groupdict())
        elif process := PROCESS_ROW.match(line.strip()):
            processes.append((at, process))
    found.unknown = _why_table_unknown(text, [gpu for _, gpu in gpus])
    _judge_table(gpus, processes, found)
    return found


def _why_table_unknown(text: str, gpus: list[dict[str, str]]) -> str:
    """Why the table proves no health, in words; empty if every row was read, every GPU has both of its lines, the
    driver could read them, and the table has its end."""
    rows = [
        line
        for line in text.splitlines()
        if re.match(r"\s*\|\s*\d+\s+[A-Z].*\|.*[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d", line)
    ]
    if not gpus or len(rows) != len(gpus) or any("used" not in gpu for gpu in gpus):
        return f"the table is not whole: {CUT_OR_UNKNOWN}"
    if any(not gpu["ecc"].isdecimal() and gpu["ecc"] not in ("N/A", "Off") for gpu in gpus):
        return "a GPU's error counter cannot be read"
    if any("ERR" in gpu[key] for gpu in gpus for key in ("temp", "perf", "power", "load", "mode")):
        return "the driver cannot read a GPU (ERR!)"
    after = text[text.rindex(gpus[-1]["bus"]) :]
    return "" if re.search(r"^[ \t]*\+[-=+]+\+", after, re.MULTILINE) else f"the table has no end: {CUT_OR_UNKNOWN}"


TableRow = tuple[int, dict[str, str]]
"""The number of the line on which a GPU begins, and the fields of both of its lines."""


def _judge_table(gpus: Sequence[TableRow], processes: Sequence[tuple[int, re.Match[str]]], found: Reading) -> None:
    bad = [(at, gpu) for at, gpu in gpus if parse_whole_number(gpu["ecc"])]
    if bad:
        numbers, lines = _gpu_numbers_and_lines(bad)
        counts = ", ".join(gpu["ecc"] for _, gpu in bad)
        says = f"GPU {numbers} has had uncorrectable memory errors since the driver was loaded ({counts})"
        found.proves("gpu-ecc-uncorrectable", says, lines, way="ecc", indices=shell_word(numbers))
    if lost := [(at, gpu) for at, gpu in gpus if gpu.get("temp") == gpu.get("perf") == "ERR!"]:
        numbers, lines = _gpu_numbers_and_lines(lost)
        says = f"the driver cannot read GPU {numbers} (ERR!): most often it is lost, or hangs"
        found.proves("gpu-fell-off-bus", says, lines[:4], way="lost")
    if closed := [(at + 1, gpu) for at, gpu in gpus if gpu.get("compute") in ("Prohibited", "Prohib.")]:
        numbers, lines = _gpu_numbers_and_lines(closed)
        says = f"GPU {numbers} is in compute mode Prohibited: no program may use it"
        found.proves("gpu-busy", says, lines, way="prohibited", indices=shell_word(numbers))
    if alone := [(at + 1, gpu) for at, gpu in gpus if gpu.get("compute") == "E. Process"]:
        numbers, lines = _gpu_numbers_and_lines(alone)
        says = f"GPU {numbers} is in compute mode Exclusive Process: a second process is turned away"
        found.explains(
            "gpu-busy", says, lines[:4], also=("duplicate-gpu",), way="prohibited", indices=shell_word(numbers)
        )
    # On a Windows desktop every program is listed as computing (C+G), with N/A for its memory.
    if held := [(at, one) for at, one in processes if "C" in one["kind"] and one["mib"] != "N/A"]:
        says = "; ".join(
            f"GPU {one['gpu']}: {one['program']} (pid {one['pid']}) holds {one['mib']}" for _, one in held[:4]
        )
        found.explains("gpu-out-of-memory", says, [at for at, _ in held[:4]], also=("gpu-busy",))


def _gpu_numbers_and_lines(gpus: Sequence[TableRow]) -> tuple[str, list[int]]:
    return ",".join(gpu["index"] for _, gpu in gpus), [at for at, _ in gpus]


# --- -q, whole or in part: memory errors and repairs, PCIe links, reasons for slow clocks ---------------------------

GpuEntries = Mapping[str, str]
SLOWDOWN_ENTRIES = ("HW Slowdown", "HW Thermal Slowdown", "HW Power Brake Slowdown", "SW Thermal Slowdown")


def read_details(text: str) -> Reading | None:
    """Reads `nvidia-smi -q`, whole or in part."""
    details = parse_details(text)
    gpus = dict(details.gpus) or {"": details.head}
    if not any("/" in name for entries in gpus.values() for name in entries) and "Attached GPUs" not in details.head:
        return None
    found = Reading(_why_details_unknown(text, leading_number(details.head.get("Attached GPUs", "")), details.gpus))
    add_error_message_faults(text, found)
    for name, entries in gpus.items():
        _judge_details(text, name, entries, found)
    return found


def _why_details_unknown(text: str, attached: float | None, gpus: Mapping[str, GpuEntries]) -> str:
    """Why the output proves no health, in words; empty if it is whole, shows the same of every GPU, and has the memory
    errors and repairs. `attached`: how many GPUs it says there are."""
    if attached is None or not gpus:
        return "it is an excerpt: the rest is not known"
    if len(gpus) != attached:
        return f"it shows {len(gpus)} of {attached:.0f} GPUs"
    sections = [set(entries) for entries in gpus.values()]
    if any(section != sections[0] for section in sections) or "[...]" in text:
        return f"it does not show the same of every GPU: {CUT_OR_UNKNOWN}"
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
        if _counts_memory_errors(name) and not re.fullmatch(r"\d+|N/A", value)
    ]
    odd += [
        entries[name]
        for entries in gpus.values()
        for name in entries
        if name.endswith(("Rows/Pending", "Failure Occurred")) and entries[name] not in ("Yes", "No", "N/A")
    ]
    return f"not understood: {odd[0]}" if odd else ""


def _counts_memory_errors(name: str) -> bool:
    """Whether an entry counts uncorrectable memory errors."""
    return name.endswith(("Uncorrectable", "Uncorrectable Parity", "Uncorrectable SEC-DED", "Double Bit/Total"))


def _entry_integer(entries: GpuEntries, tail: str) -> int | None:
    value = leading_number(entry(entries, tail) or "")
    return int(value) if value is not None else None


def is_gpu_busy(entries: GpuEntries) -> bool:
    """Whether the GPU is under load: an idle GPU lowers the generation of its PCIe link to save power, which is no
    fault."""
    idle = entry(entries, "Clocks Event Reasons/Idle") or entry(entries, "Clocks Throttle Reasons/Idle")
    state = entry(entries, "Performance State")
    return idle == "Not Active" and state in ("P0", "P1", "P2")


def is_link_downgraded(entries: GpuEntries) -> bool | None:
    """Whether the GPU's PCIe link runs with fewer lanes, or under load with an older generation, than it can; None if
    the entries do not show it."""
    width, most = _entry_integer(entries, "Link Width/Current"), _entry_integer(entries, "Link Width/Max")
    generation, newest = (
        _entry_integer(entries, "PCIe Generation/Current"),
        _entry_integer(entries, "PCIe Generation/Max"),
    )
    if width is None or most is None or generation is None or newest is None:
        return None
    return width < most or (generation < newest and is_gpu_busy(entries))


def _judge_details(text: str, name: str, entries: GpuEntries, found: Reading) -> None:
    where, index = f"GPU {name}" if name else "the GPU", name or "GPU"
    errors = sum(
        parse_whole_number(value) or 0
        for key, value in entries.items()
        if "Volatile/" in key and _counts_memory_errors(key)
    )
    if has_no_spare_rows(entries):
        lines = _lines_of_gpu(text, name, r"Remapping Failure Occurred\s*: Yes")
        found.proves("gpu-reset-required", f"{where} {NO_SPARE_ROWS}", lines, way="replace")
    if errors:
        says = f"{where} has had {errors} uncorrectable memory errors since the driver was loaded"
        lines = _lines_of_gpu(text, name, r"\w+ Uncorrectable\S*\s*: [1-9]|Total\s*: [1-9]")
        found.proves("gpu-ecc-uncorrectable", says, lines, way="ecc", indices=shell_word(index))
    if waits_to_remap(entries) or entry_yes_or_no(entries, "Retired Pages/Pending Page Blacklist"):
        lines = _lines_of_gpu(text, name, r"Pending(?: Page Blacklist)?\s*: Yes")
        found.proves("gpu-reset-required", f"{where} {BAD_ROWS}", lines, way="pending", indices=shell_word(index))
    action = entry(entries, "GPU Recovery Action") or "None"
    if asks_for_recovery(action):
        way = "reboot" if "reboot" in action.lower() else "reset"
        lines = _lines_of_gpu(text, name, r"GPU Recovery Action\s*:")
        found.proves("gpu-reset-required", f"{where} asks for: {action}", lines, way=way, indices=shell_word(index))
    if outside := unready_fabric_state(entries):
        says = f"{where} is not connected to the NVSwitch fabric ({', '.join(outside)}): CUDA will not start"
        lines = _lines_of_gpu(text, name, r"State\s*: (?:In Progress|Not Started)|Status\s*: ")
        found.proves("fabricmanager-down", says, lines, way="fabric")
    if is_link_downgraded(entries):
        generation, newest = (_entry_integer(entries, f"PCIe Generation/{which}") for which in ("Current", "Max"))
        width, most = (_entry_integer(entries, f"Link Width/{which}") for which in ("Current", "Max"))
        says = f"{where} runs over PCIe generation {generation} of {newest}, {width} of {most} lanes"
        lines = _lines_of_gpu(text, name, r"Current\s*: ")
        found.explains("allreduce-slow", says, lines, also=("rank-behind",), way="slot")
    if held := [reason for reason in SLOWDOWN_ENTRIES if entry(entries, reason) == "Active"]:
        lines = _lines_of_gpu(text, name, rf"{held[0]}\s*: Active")
        says = f"{where} is slowed down: {', '.join(held)}"
        found.explains("allreduce-slow", says, lines, also=("rank-behind",), way="cooling")


def _lines_of_gpu(text: str, gpu: str, pattern: str) -> tuple[int, ...]:
    """The numbers of the first 4 lines about this GPU that match the pattern, or line 1 if none does. An empty `gpu`:
    all lines are about the one GPU."""
    here = not gpu
    found = []
    for at, line in numbered_lines(text):
        if line.startswith("GPU "):
            here = not gpu or gpu.upper() in line.upper()
        if here and re.search(pattern, line):
            found.append(at)
    return tuple(found[:4]) or (1,)


# --- -L, nvlink --status, topo -m, and CSV of --query-gpu -----------------------------------------------------------

GPU = re.compile(
    r"GPU (?P<index>\d+): (?P<name>.+?) \(UUID: (?P<uuid>GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\)\s*\Z"
)
MIG = re.compile(r"\A\s+MIG \S+\s+Device\s+\d+: \(UUID: MIG-\S+\)\s*\Z")


def read_listing(text: str) -> Reading | None:
    """Reads `nvidia-smi -L`."""
    rows = [(at, line) for at, line in numbered_lines(text) if line.strip()]
    gpus = [found for _, line in rows if (found := GPU.match(line))]
    reading = Reading()
    add_error_message_faults(text, reading)
    if not gpus and not reading.faults:
        return None
    slices = sum(bool(MIG.match(line)) for _, line in rows)
    numbers = [int(gpu["index"]) for gpu in gpus]
    whole = len(gpus) + slices == len(rows) and numbers == list(range(len(gpus)))
    reading.unknown = "" if whole or reading.faults else CUT_OR_UNKNOWN
    return reading


NVLINK_LINE = re.compile(r"\A\s+Link \d+: (?:[\d.]+ GB/s|<?inactive>?)\s*\Z", re.IGNORECASE)


def read_nvlink(text: str) -> Reading | None:
    """Reads `nvidia-smi nvlink --status`: a GPU with fewer active links than the others has a fault."""
    links = parse_links(text)
    rows = [(at, line) for at, line in numbered_lines(text) if line.strip()]
    if not links:
        return None
    read_rows = sum(
        bool(NVLINK_LINE.match(line) or GPU.match(line) or "all links are inactive" in line.lower()) for _, line in rows
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
        reading.proves("nvlink-error", says, list(_inactive_link_lines(text, behind))[:6] or [1], "medium", way="fewer")
    return reading


def _inactive_link_lines(text: str, gpus: list[int]) -> Iterator[int]:
    """The numbers of the lines with inactive links of these GPUs."""
    here = -1
    for at, line in numbered_lines(text):
        if found := re.match(r"GPU (\d+):", line):
            here = int(found[1])
        elif here in gpus and "inactive" in line.lower():
            yield at


TOPOLOGY_CELL = r"X|NV\d+|SYS|NODE|PHB|PXB|PIX|PSB|C2C|N/A|XGMI|PCIE|\d+"  # the last three are rocm-smi's


def read_topology(text: str) -> Reading | None:
    """Reads the matrix of `nvidia-smi topo -m` or rocm-smi; it proves no fault."""
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
        and all(
            len(row) == len(columns) and all(re.fullmatch(TOPOLOGY_CELL, cell) for cell in row) for row in rows.values()
        )
    )


EVENT_REASONS_MASK = re.compile(r"0x[0-9a-fA-F]{16}\Z")
COUNT_VALUE = re.compile(r"\A(?:\d+|Yes|No|\[?(?:N/A|Not Supported)\]?)\Z")
ERROR_FIELDS = re.compile(
    r"ecc\.errors\.uncorrected|remapped_rows\.(?:uncorrectable|pending|failure)|retired_pages\.pending"
)


def read_query(text: str) -> Reading | None:
    """Reads the CSV of `nvidia-smi --query-gpu`. Its heading names the fields; without a heading only a mask of reasons
    for slow clocks in the last field is understood."""
    rows = [(at, [cell.strip() for cell in csv_cells(line)]) for at, line in numbered_lines(text) if line.strip()]
    reading = Reading()
    if LOST_GPU.search(unwrapped_text(text)):
        add_error_message_faults(text, reading)
        return reading
    if not rows:
        return None
    heads = rows[0][1] if re.fullmatch(r"[a-z_]+(?:\.[a-z_]+)*(?: \[.*\])?", rows[0][1][0]) else []
    names = [re.sub(r" \[[^\[]*\]$", "", cell) for cell in heads]
    body = rows[1:] if names else rows
    masks = [(at, row[0], int(row[-1], 16)) for at, row in body if EVENT_REASONS_MASK.match(row[-1])]
    if not names and len(masks) != len(body):
        return None
    _judge_fields(names, body, reading)
    slow = [(at, f"{name}: {', '.join(reasons)}") for at, name, mask in masks if (reasons := slowdown_names(mask))]
    if slow:
        says = f"slowed down: {'; '.join(what for _, what in slow[:4])}"
        reading.explains("allreduce-slow", says, [at for at, _ in slow[:4]], also=("rank-behind",), way="cooling")
    uneven = len({len(row) for _, row in rows}) > 1 or not body or any(not cell for _, row in rows for cell in row)
    broken = [cell for _, row in body for cell in row if UNREADABLE_VALUE.match(cell)]
    odd = [
        value
        for _, row in body
        for name, value in zip(names, row, strict=False)
        if ERROR_FIELDS.search(name) and not COUNT_VALUE.match(value)
    ]
    if uneven:
        reading.unknown = CUT_OR_UNKNOWN
    elif broken and not reading.faults:
        reading.unknown = f"the driver cannot read a field ({broken[0]})"
    elif odd:
        reading.unknown = f"not understood: {odd[0]}"
    elif any(mask & ~0x1FF for _, _, mask in masks):
        reading.unknown = "a bit of the mask is not known here"
    return reading


def _judge_fields(names: list[str], body: list[tuple[int, list[str]]], reading: Reading) -> None:
    """Adds the faults that the CSV's rows prove: a lost GPU, or at most one error field for each GPU."""
    for at, row in body:
        fields = dict(zip(names, row, strict=False))
        who = f"GPU {fields.get('index', fields.get('name', row[0]))}"
        if any("gpu is lost" in cell.lower() for cell in row):
            reading.proves(
                "gpu-fell-off-bus", f"the driver cannot reach {who} any more: GPU is lost", (at,), way="reboot"
            )
        for name, value in fields.items():
            counts = ERROR_FIELDS.search(name) and "aggregate" not in name
            if counts and (value == "Yes" or (value.isdecimal() and value != "0")):
                cause = "gpu-ecc-uncorrectable" if "ecc" in name or "uncorrectable" in name else "gpu-reset-required"
                reading.proves(cause, f"{who}: {name} is {value}", (at,), way="all")
                break
