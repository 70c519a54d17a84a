"""A program that an extra brings is missing: the command that is told installs what the extra brings, and nothing else."""

from __future__ import annotations

import re
import shlex
import sys
from importlib import metadata
from pathlib import Path

import pytest

from runbook.cli import extras
from runbook.files.toml import tomllib

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def told(extra: str) -> list[str]:
    problem = extras.not_installed(extra, extra, "websockets").problems[0]
    assert problem.help is not None
    return shlex.split(problem.help)


@pytest.mark.parametrize("extra", ["serve", "agent"])
def test_its_own_requirements_are_installed_into_the_python_that_lacks_them(extra: str) -> None:
    names = [re.match(r"[\w-]+", word) for word in told(extra)[4:]]
    declared = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"][extra]
    assert told(extra)[:4] == [sys.executable, "-m", "pip", "install"]
    assert {match[0] for match in names if match} == {re.split(r"[<>=~!]", one)[0] for one in declared}


def test_a_checkout_that_was_never_installed_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(extras, "requires", unknown)
    assert told("agent")[-5:] == [sys.executable, "-m", "pip", "install", ".[agent]"]
