"""A node that says what fits the description of each answer, and is nonsense: it is judged, and judges nobody else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import inspect
from profiles import one_in

from runbook.transport.frames import UnexpectedAnswer, decode_json
from runbook.transport.node_answers import ANSWER_TYPES

from .fitting import MESSAGES, Fitting, described
from .hostile_run import attack, changing
from .recorded_node import recording, recordings
from .test_hostile_node import innocent_are_judged, silence_is_soon_known

__all__ = ["silence_is_soon_known"]

CHANCES = (0.1, 0.02, 0.4)


def programs_of(name: str) -> list[str]:
    return sorted({program for said in recording(name).said.values() for program in said})


SAID = {
    program: [name for name in recordings() if program in programs_of(name)]
    for name in recordings()
    for program in programs_of(name)
}
"""In which recordings each program says something."""


def tried(name: str, program: str, numbers: range, folder: Path) -> None:
    found = recording(name)
    failures = []
    for number in numbers:
        node = found.nodes[number % len(found.nodes)]
        fitting = Fitting(program, (name, program, number), CHANCES[number % len(CHANCES)])
        done = attack(found, changing(node, fitting), folder / str(number))
        if wrong := done.complaint() or innocent_are_judged(done, found, node):
            failures.append(f"{name} {program} {number} ({node}): {wrong}\n{done}")
    assert not failures, f"{len(failures)} of {len(numbers)}\n" + "\n\n".join(failures[:5])


@pytest.mark.parametrize("program", one_in(3, sorted(SAID)), ids=lambda program: program.rpartition("/")[2])
def test_what_fits_and_is_nonsense_is_judged(program: str, tmp_path: Path) -> None:
    for name in {*SAID[program][:1], *SAID[program][-1:]}:
        tried(name, program, range(1), tmp_path / name)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", recordings())
def test_much_that_fits_and_is_nonsense_is_judged(name: str, tmp_path: Path) -> None:
    for at, program in enumerate(programs_of(name)):
        tried(name, program, range(1, 5), tmp_path / str(at))


def answers_of(name: str) -> list[tuple[str, Any]]:
    return [
        (program, one)
        for said in recording(name).said.values()
        for program, told in said.items()
        for answer in told
        for one in (answer if program in MESSAGES and isinstance(answer, list) else [answer])
        if isinstance(one, dict) and described(program, one) is not None
    ]


@pytest.mark.parametrize("name", one_in(4, recordings(), thorough=2))
def test_nearly_all_of_it_fits(name: str) -> None:
    """Otherwise the runs above would prove what the boundary refuses, and nothing of what comes behind it."""
    tries, refused = 0, []
    for program, said in answers_of(name):
        for number in range(10):
            made = Fitting(program, (name, number), 0.1)(program, said)
            tries += 1
            try:
                decode_json(json.dumps(made).encode(), described(program, said))
            except UnexpectedAnswer as error:
                refused.append(f"{program}: {error}")
    assert len(refused) <= tries // 20, "\n".join(refused[:20])


def test_the_description_of_every_program_can_be_read() -> None:
    for description in ANSWER_TYPES.values():
        assert isinstance(inspect.type_info(description), inspect.TypedDictType)
