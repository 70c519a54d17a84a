"""The table of nvidia-smi: driver, GPUs, and what it says instead when it cannot make one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runbook.model.commands import word
from runbook.parsers.nvidia import LOST, REFUSALS, flat
from runbook.parsers.tool_reading import CUT, Fault, Reading, Support, Tool, numbered

HEAD = re.compile(
    r"NVIDIA-SMI (?P<smi>[\d.]+)\s+(?:Driver|KMD) Version: (?P<driver>[\d.]+"
    r"|N/A)(?:\s+CUDA(?: UMD)? Version: (?P<cuda>[\d.]+|N/A|ERR!))?"
)
FIRST = re.compile(
    r"\A\|\s*(?P<index>\d+)\s+(?P<name>\S.*?)\s+(?P<mode>On|Off|N/A|TCC|WDDM|MCDM"
    r"|ERR!)\s*\|\s*(?P<bus>[0-9A-Fa-f:.]+)\s+(?P<display>On|Off|N/A|ERR!)\s*\|\s*(?P<ecc>\S+)\s*\|"
)
SECOND = re.compile(
    r"\|\s*(?P<fan>\d+%|N/A|ERR!|\[[^\]]*\])\s+(?P<temp>\d+C|N/A|ERR!)\s+(?P<perf>P\d+|N/A|ERR!"
    r"|Unknown)\s+(?!\s)(?P<power>(?:[^|\s]|\s+(?![\s|]))*)\s*\|\s*"
    r"(?P<used>\d+)\s*MiB\s*/\s*(?P<total>\d+)\s*MiB\s*\|\s*(?P<load>\d+%|N/A"
    r"|ERR!)\s+(?P<compute>[\w.]+(?: Process)?|N/A|ERR!)\s*\|"
)
PROCESS = re.compile(
    r"\|\s*(?P<gpu>\d+)\s+(?:\S+\s+\S+\s+)?(?P<pid>\d+)\s+(?P<kind>C\+G|C|G|M\+C"
    r"|M)\s+(?P<program>\S.*?)\s+(?P<mib>\d+MiB|N/A)\s*\|"
)


def failures(text: str) -> Iterator[Fault]:
    """What stands there instead of an answer; consoles wrap it wherever they end."""
    low = flat(text).lower()
    if lost := LOST.search(flat(text)):
        at = _line_of(text, "determine the device handle")
        which = lost["gpu"].strip()
        says = f"the driver cannot reach GPU {which or '?'} any more: {lost['why']}"
        yield Fault("gpu-fell-off-bus", says, "sudo reboot   # and if it comes again: reseat or replace the card", at)
    elif "gpu is lost" in low:
        yield Fault(
            "gpu-fell-off-bus",
            "the driver cannot reach a GPU any more: GPU is lost",
            "sudo reboot",
            _line_of(text, "gpu is lost"),
        )
    for one in REFUSALS:
        if one.remedy is not None and one.phrase in low:
            yield Fault(one.cause, one.says, one.remedy, _line_of(text, one.phrase))
            return


def _line_of(text: str, phrase: str) -> tuple[int, ...]:
    """The line that a phrase begins on, wrapped or not."""
    words = phrase.lower().split()
    for size in range(len(words), 0, -1):
        for at, line in numbered(text):
            if " ".join(words[:size]) in " ".join(line.lower().split()):
                return (at,)
    return (1,)


def read(text: str) -> Reading | None:
    wrong = list(failures(text))
    head = HEAD.search(text)
    if head is None:
        return Reading("nvidia-smi", tuple(wrong)) if wrong else None
    gpus: list[dict[str, str]] = []
    lines: list[int] = []
    processes: list[tuple[int, re.Match[str]]] = []
    for at, line in numbered(text):
        if first := FIRST.match(line.strip()):
            gpus.append(first.groupdict())
            lines.append(at)
        elif gpus and (second := SECOND.match(line.strip())):
            gpus[-1] |= second.groupdict()
        elif process := PROCESS.match(line.strip()):
            processes.append((at, process))
    faults = [*wrong, *_faults(gpus, lines)]
    return Reading("nvidia-smi", tuple(faults), tuple(_supports(gpus, lines, processes)), _unknown(text, gpus))


def _unknown(text: str, gpus: list[dict[str, str]]) -> str:
    """Every row read, every GPU with both of its lines, and the table closed."""
    rows = [
        line
        for line in text.splitlines()
        if re.match(r"\s*\|\s*\d+\s+[A-Z].*\|.*[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d", line)
    ]
    if not gpus or len(rows) != len(gpus) or any("used" not in gpu for gpu in gpus):
        return f"the table is not whole: {CUT}"
    if any(not gpu["ecc"].isdecimal() and gpu["ecc"] not in ("N/A", "Off") for gpu in gpus):
        return "a GPU's error counter cannot be read"
    if any("ERR" in gpu[key] for gpu in gpus for key in ("temp", "perf", "power", "load", "mode")):
        return "the driver cannot read a GPU (ERR!)"
    after = text[text.rindex(gpus[-1]["bus"]) :]
    return "" if re.search(r"^[ \t]*\+[-=+]+\+", after, re.MULTILINE) else f"the table has no end: {CUT}"


def _faults(gpus: list[dict[str, str]], lines: list[int]) -> Iterator[Fault]:
    bad = [
        (gpu["index"], gpu["ecc"], at)
        for gpu, at in zip(gpus, lines, strict=True)
        if gpu["ecc"].isdecimal() and int(gpu["ecc"])
    ]
    if bad:
        numbers = ",".join(index for index, _, _ in bad)
        says = (
            f"GPU {numbers} has had uncorrectable memory errors since the driver was loaded "
            f"({', '.join(count for _, count, _ in bad)})"
        )
        yield Fault(
            "gpu-ecc-uncorrectable",
            says,
            f"sudo nvidia-smi --gpu-reset -i {word(numbers)}   # when nothing runs on it",
            tuple(at for _, _, at in bad),
        )
    closed = [
        (gpu["index"], at)
        for gpu, at in zip(gpus, lines, strict=True)
        if gpu.get("compute") in ("Prohibited", "Prohib.")
    ]
    if closed:
        numbers = ",".join(index for index, _ in closed)
        says = f"GPU {numbers} is in compute mode Prohibited: no program may use it"
        yield Fault(
            "gpu-busy", says, f"sudo nvidia-smi -i {word(numbers)} -c DEFAULT", tuple(at + 1 for _, at in closed)
        )


def _supports(
    gpus: list[dict[str, str]], lines: list[int], processes: list[tuple[int, re.Match[str]]]
) -> Iterator[Support]:
    alone = [(gpu["index"], at + 1) for gpu, at in zip(gpus, lines, strict=True) if gpu.get("compute") == "E. Process"]
    if alone:
        numbers = ",".join(index for index, _ in alone)
        says = f"GPU {numbers} is in compute mode Exclusive Process: a second process is turned away"
        yield Support(
            ("gpu-busy", "duplicate-gpu"),
            says,
            tuple(at for _, at in alone[:4]),
            f"sudo nvidia-smi -i {word(numbers)} -c DEFAULT   # or one rank a GPU",
        )
    held = [(at, found) for at, found in processes if "C" in found["kind"]]
    if held:
        told = "; ".join(
            f"GPU {one['gpu']}: {one['program']} (pid {one['pid']}) holds {one['mib']}" for _, one in held[:4]
        )
        yield Support(("gpu-out-of-memory", "gpu-busy"), told, tuple(at for at, _ in held[:4]))


TOOL = Tool(
    "nvidia-smi",
    r"(?:sudo )?nvidia-smi(?:\.exe)?(?: -i \S+)?\s*\Z",
    r"\|\s*NVIDIA-SMI \d|\+-{40,}|Unable to determine the device handle|NVIDIA-SMI has failed"
    r"|Failed to initialize NVML|No devices (?:were )?found|NVIDIA-SMI couldn't|\w{3} \w{3} +\d+ [\d:]+ \d{4}\s*\Z",
    r"\||\+[-=]|\w{3} \w{3} +\d+ [\d:]+ \d{4}|\s*$|Unable to determine"
    r"|\s?(?:the system|Make sure|NVML library)|NVIDIA-SMI|Failed to|No devices",
    ("NVIDIA-SMI", "the device handle", "initialize NVML", "No devices"),
    read,
)
