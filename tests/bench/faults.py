"""How soon every fault of the fault lab has its name, beside what bare torchrun says of the same fault in that time."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from lab import Lab, LabError
from lab.fault import Fault, all_faults, complaint, missing, run_fault

from .cost import BenchError
from .table import verdict
from .two_nodes import start_torchrun

MEDIAN_GOAL_S, WORST_GOAL_S = 4.0, 20.0
PATIENCE_S = 20.0
"""How long torchrun is listened to: as long as runbook may take at the very most."""

COMPLAINT = re.compile(r"error|timed? ?out|refused|unreachable|fail", re.IGNORECASE)
WORK = json.dumps([[[1 << 10], 3]])


@dataclass(frozen=True, slots=True)
class Timed:
    name: str
    seconds: float
    wrong: str | None
    torchrun: str


def faults(pick: str | None = None) -> list[str]:
    """The table. `pick`: only faults whose name holds this."""
    timed: list[Timed] = []
    skipped: list[str] = []
    chosen = {name: fault for name, fault in all_faults().items() if fault.cause and (pick or "") in name}
    for name, fault in chosen.items():
        if lacking := missing(fault):
            skipped.append(f"  {name}: not tried, {lacking}")
            continue
        timed.append(_time(name, fault))
        print(".", end="", flush=True)
    if not timed:
        raise BenchError("no fault was tried")
    return ["", *_table(timed, chosen), *skipped]


def _time(name: str, fault: Fault) -> Timed:
    try:
        with Lab(fault.hosts) as lab:
            told = run_fault(fault, lab)
            wrong = complaint(fault, lab, told)
        theirs = ""
        if fault.torchrun and fault.strike is None:
            with Lab(fault.hosts) as lab:
                fault.breaks(lab)
                theirs = _torchrun(lab, fault)
    except (AssertionError, LabError, subprocess.SubprocessError) as error:
        return Timed(name, float("inf"), str(error).splitlines()[0], "")
    return Timed(name, told.seconds, wrong, theirs)


def _torchrun(lab: Lab, fault: Fault) -> str:
    """What bare torchrun, started on every host at once with the same rendezvous, has said of it."""
    address = str(fault.inventory(lab).get("rendezvous", {}).get("address", lab.hosts[0].address))
    program = Path(__file__).with_name("bare_allreduce.py").read_text()
    logs = [lab.tmp / f"torchrun-{host.name}.log" for host in lab]
    for host in lab:
        host.write("~/bare_allreduce.py", program, user=lab.user)
    begun = time.monotonic()
    running = [start_torchrun(host, rank, address, WORK, logs[rank]) for rank, host in enumerate(lab)]
    try:
        while time.monotonic() - begun < PATIENCE_S:
            said = [
                line for log in logs for line in log.read_text(errors="replace").splitlines() if COMPLAINT.search(line)
            ]
            if said or all(process.poll() is not None for process in running):
                seconds = time.monotonic() - begun
                return f"{seconds:.1f} s: {said[0].strip()[:60] if said else 'ended, and said nothing of it'}"
            time.sleep(0.1)
    finally:
        for process in running:
            process.kill()
    return f"nothing in {PATIENCE_S:g} s"


def _table(timed: list[Timed], chosen: dict[str, Fault]) -> list[str]:
    width = max(len(one.name) for one in timed)
    named = [one.seconds for one in timed if one.wrong is None]
    lines = [f"Fault lab: from the start, or from the strike, to the verdict; {len(timed)} faults", ""]
    for one in sorted(timed, key=lambda one: one.seconds):
        fault = chosen[one.name]
        said = f"WRONG: {one.wrong}" if one.wrong else str(fault.cause)
        slow = "  LATE" if one.seconds > fault.within_s else ""
        beside = f"  torchrun: {one.torchrun}" if one.torchrun else ""
        lines.append(f"  {one.name:<{width}}  {one.seconds:>6.1f} s  {said}{slow}{beside}")
    if named:
        middle, worst = statistics.median(named), max(named)
        lines += [
            "",
            f"  named rightly: {len(named)} of {len(timed)}  {verdict(len(named) == len(timed))}",
            (
                f"  median {middle:.1f} s (goal <= {MEDIAN_GOAL_S:g} s)  {verdict(middle <= MEDIAN_GOAL_S)}; "
                f"slowest {worst:.1f} s (goal <= {WORST_GOAL_S:g} s)  {verdict(worst <= WORST_GOAL_S)}"
            ),
        ]
    return lines
