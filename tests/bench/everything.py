"""The parts one after the other, each in a lab of its own."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from lab import Lab, LabError, lab_missing

from .corpus import corpus_score
from .cost import BenchError
from .diagnose import diagnose
from .faults import faults
from .fleet import fleet
from .links import links
from .lint import lint
from .render import render
from .serve import serve
from .start import start
from .texts import texts
from .thousand import thousand
from .two_nodes import two_nodes
from .watch import watched

PARTS = {
    "torchrun": 5,
    "fleet": 3,
    "thousand": 1,
    "render": 3,
    "version": 15,
    "lint": 3,
    "diagnose": 3,
    "corpus": 1,
    "faults": 1,
    "links": 1,
    "serve": 1,
    "texts": 1,
    "watch": 3,
}
"""The parts and how often each is measured."""


def measure_all(parts: list[str], *, rounds: int | None, hosts: int, fault: str | None) -> int:
    """Measure and print. 1 when something could not be measured, else 0, also when a goal was missed."""
    tools = Path(sys.prefix) / "bench"
    scratch = Path(tempfile.mkdtemp(prefix="runbook-bench-"))
    begun = time.monotonic()
    print(
        f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} at the start; Python {sys.version.split()[0]}, ", end=""
    )
    print(f"torch {_version('torch')}. Medians; ratios are taken within each round.", flush=True)
    jobs: dict[str, Callable[[int], list[str]]] = {
        "torchrun": lambda times: _in_lab(2, lambda lab: two_nodes(lab, times)),
        "fleet": lambda times: _in_lab(hosts, lambda lab: fleet(lab, tools, times)),
        "thousand": lambda _: thousand(),
        "render": lambda times: render(scratch, times),
        "version": lambda times: start(tools, scratch, times),
        "lint": lambda times: lint(scratch, times),
        "diagnose": lambda times: diagnose(scratch, times),
        "corpus": lambda _: corpus_score(),
        "faults": lambda _: faults(fault),
        "links": lambda _: links(),
        "serve": lambda _: serve(),
        "texts": lambda _: texts(scratch),
        "watch": lambda times: _in_lab(2, lambda lab: watched(lab, times)),
    }
    failed = 0
    try:
        for part in parts:
            try:
                lines = jobs[part](rounds or PARTS[part])
            except (BenchError, LabError, OSError) as error:
                failed += 1
                lines = [f"{part}: could not be measured: {error}"]
            print("\n" + "\n".join(lines), flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"\n{time.monotonic() - begun:.0f} s in all, load {os.getloadavg()[0]:.1f} at the end")
    return 1 if failed else 0


def as_installed(scratch: Path) -> None:
    """Every tool starts from compiled code, as an installed one does: the caller's Python settings are dropped, and
    what the first, uncounted round compiles is kept here, not in the checkout."""
    for name in [name for name in os.environ if name.startswith("PYTHON")]:
        del os.environ[name]
    os.environ["PYTHONPYCACHEPREFIX"] = str(scratch / "compiled")


def _in_lab(hosts: int, work: Callable[[Lab], list[str]]) -> list[str]:
    missing = lab_missing()
    if missing:
        raise BenchError("; ".join(missing))
    with Lab(hosts) as lab:
        return work(lab)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"
