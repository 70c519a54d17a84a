"""What odd texts cost: CPU time beside other texts of their size, or as they grow, by the tests that are marked with `cost`.

Each measures by itself and says what came out where it is more than in proportion.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .cost import BenchError

DEADLINE_S = 3600.0
FAILED = 1
"""pytest's exit code where tests ran and some failed: a goal was missed."""


def texts(scratch: Path) -> list[str]:
    """One after the other. Raises BenchError when they could not be run."""
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--cost",
        "-q",
        "--tb=line",
        f"--basetemp={scratch / 'texts'}",
    ]
    try:
        done = subprocess.run(
            argv,
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"odd texts did not end within {DEADLINE_S:g} s") from None
    if done.returncode not in (0, FAILED):
        raise BenchError(f"pytest ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    lines = done.stdout.splitlines()
    missed = [f"  MISSED  {line.removeprefix('FAILED ')}" for line in lines if line.startswith("FAILED ")]
    return ["Odd texts: no more CPU than in proportion to their size", *missed, f"  {lines[-1]}"]
