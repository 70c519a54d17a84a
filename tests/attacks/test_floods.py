"""A node that says something without end costs the controller no more than 5 s of CPU and 100 MB, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from profiles import one_in

from .flooding import FLOODS

PLACES = (
    ("name_of_every_node", "hello"),
    ("name_of_every_node", "ping"),
    ("rank_wrong_data", "rank"),
    ("job_logs", "job_control list"),
    ("job_attach", "job_control watch"),
)
MOST_CPU_S, MOST_MB, MOST_COLUMNS = 5.0, 100, 10_000
MOST_SHARE = 0.2
"""Of one core, where a flood is held back and not cut off: on a busy machine it lasts for longer."""
QUICK = [what for what in FLOODS if what not in ("output in small pieces", "messages")]
"""An honest program may print like that: it is held back, not cut off, and takes as long as its stage may."""


def flooded(name: str, when: str, what: str, folder: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "attacks.flooding", name, when, what, str(folder)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, float] = json.loads(done.stdout)
    assert told["complaint"] is None, told["text"]
    assert told["more_mb"] <= MOST_MB, told
    assert told["longest_line"] <= MOST_COLUMNS, told
    return told


@pytest.mark.parametrize(
    ("place", "what"),
    one_in(7, ((PLACES[index % len(PLACES)], what) for index, what in enumerate(QUICK)), thorough=2),
    ids=str,
)
def test_a_flood_is_cut_off(place: tuple[str, str], what: str, tmp_path: Path) -> None:
    flooded(*place, what, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize(("place", "what"), list(product(PLACES, FLOODS))[::3], ids=str)
def test_a_flood_at_another_place_is_cut_off(place: tuple[str, str], what: str, tmp_path: Path) -> None:
    flooded(*place, what, tmp_path)


@pytest.mark.cost
@pytest.mark.parametrize("what", FLOODS)
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_what_a_flood_costs(place: tuple[str, str], what: str, tmp_path: Path) -> None:
    told = flooded(*place, what, tmp_path)
    held_back = what not in QUICK
    assert told["cpu_s"] <= MOST_CPU_S + MOST_SHARE * told["seconds"] * held_back, told
