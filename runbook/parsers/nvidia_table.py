"""The table of nvidia-smi: driver, GPUs, and what it says instead when it cannot make one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runbook.model.command_quoting import word
from runbook.model.units import whole_number
from runbook.parsers.nvidia import LOST, REFUSALS, flat
from runbook.parsers.tool_reading import CUT, Reading, numbered

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
    r"(?:(?P<used>\d+)\s*MiB\s*/\s*(?P<total>\d+)\s*MiB|Not Supported)\s*\|\s*(?P<load>\d+%|N/A"
    r"|ERR!)\s+(?P<compute>[\w.]+(?: Process)?|N/A|ERR!)\s*\|"
)
PROCESS = re.compile(
    r"\|\s*(?P<gpu>\d+)\s+(?:\S+\s+\S+\s+)?(?P<pid>\d+)\s+(?P<kind>C\+G|C|G|M\+C"
    r"|M)\s+(?P<program>\S.*?)\s+(?P<mib>\d+MiB|N/A)\s*\|"
)


def failures(text: str, found: Reading) -> None:
    """What stands there instead of an answer; consoles wrap it wherever they end."""
    low = flat(text).lower()
    if lost := LOST.search(flat(text)):
        says = f"the driver cannot reach GPU {lost['gpu'].strip() or '?'} any more: {lost['why']}"
        found.proves("gpu-fell-off-bus", says, _line_of(text, "determine the device handle"), way="reboot")
    elif "gpu is lost" in low:
        says = "the driver cannot reach a GPU any more: GPU is lost"
        found.proves("gpu-fell-off-bus", says, _line_of(text, "gpu is lost"), way="reboot")
    for one in REFUSALS:
        if one.of_paste and one.phrase in low:
            found.proves(one.cause, one.says, _line_of(text, one.phrase), way=one.way)
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
    found = Reading()
    failures(text, found)
    if HEAD.search(text) is None:
        return found if found.faults else None
    gpus: list[TableRow] = []
    processes: list[tuple[int, re.Match[str]]] = []
    for at, line in numbered(text):
        if first := FIRST.match(line.strip()):
            gpus.append((at, first.groupdict()))
        elif gpus and (second := SECOND.match(line.strip())):
            gpus[-1][1].update(second.groupdict())
        elif process := PROCESS.match(line.strip()):
            processes.append((at, process))
    found.unknown = _unknown(text, [gpu for _, gpu in gpus])
    _judge(gpus, processes, found)
    return found


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


TableRow = tuple[int, dict[str, str]]
"""The line that a GPU begins on, and the words of both of its lines."""


def _judge(gpus: Sequence[TableRow], processes: Sequence[tuple[int, re.Match[str]]], found: Reading) -> None:
    bad = [(at, gpu) for at, gpu in gpus if whole_number(gpu["ecc"])]
    if bad:
        numbers, lines = _numbers(bad)
        counts = ", ".join(gpu["ecc"] for _, gpu in bad)
        says = f"GPU {numbers} has had uncorrectable memory errors since the driver was loaded ({counts})"
        found.proves("gpu-ecc-uncorrectable", says, lines, way="ecc", indices=word(numbers))
    if closed := [(at + 1, gpu) for at, gpu in gpus if gpu.get("compute") in ("Prohibited", "Prohib.")]:
        numbers, lines = _numbers(closed)
        says = f"GPU {numbers} is in compute mode Prohibited: no program may use it"
        found.proves("gpu-busy", says, lines, way="prohibited", indices=word(numbers))
    if alone := [(at + 1, gpu) for at, gpu in gpus if gpu.get("compute") == "E. Process"]:
        numbers, lines = _numbers(alone)
        says = f"GPU {numbers} is in compute mode Exclusive Process: a second process is turned away"
        found.explains("gpu-busy", says, lines[:4], also=("duplicate-gpu",), way="prohibited", indices=word(numbers))
    # On a desktop of Windows every program computes, and none says how much memory it has.
    if held := [(at, one) for at, one in processes if "C" in one["kind"] and one["mib"] != "N/A"]:
        says = "; ".join(
            f"GPU {one['gpu']}: {one['program']} (pid {one['pid']}) holds {one['mib']}" for _, one in held[:4]
        )
        found.explains("gpu-out-of-memory", says, [at for at, _ in held[:4]], also=("gpu-busy",))


def _numbers(gpus: Sequence[TableRow]) -> tuple[str, list[int]]:
    return ",".join(gpu["index"] for _, gpu in gpus), [at for at, _ in gpus]
