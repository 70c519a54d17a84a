"""A program that an extra brings is missing: the command that is told installs what the extra brings, and nothing else."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from runbook.cli import extras
from runbook.cli import main as main_module
from runbook.files.shipped_files import tomllib

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def told(extra: str) -> list[str]:
    problem = extras.not_installed_error(extra, extra, "websockets").problems[0]
    assert problem.help is not None
    return shlex.split(problem.help)


@pytest.mark.parametrize("extra", ["serve", "agent"])
def test_its_own_requirements_are_installed_into_the_python_that_lacks_them(extra: str) -> None:
    names = [re.match(r"[\w-]+", word) for word in told(extra)[4:]]
    declared = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"][extra]
    assert told(extra)[:4] == [sys.executable, "-m", "pip", "install"]
    assert {match[0] for match in names if match} == {re.split(r"[<>=~!]", one)[0] for one in declared}


def test_what_a_python_lacks_is_no_bug_of_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    declared = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]
    for line in declared:
        name = re.split(r"[<>=~!]", line)[0]
        lacking = {"pyyaml": "yaml"}.get(name, name)
        monkeypatch.setitem(main_module.__dict__, "dispatch", raising(lacking))
        assert main_module.main(["lint", "x.yml"]) == (2 if ";" not in line else 70), line
        assert (f"{sys.executable} has no {lacking}," in capsys.readouterr().err) == (";" not in line)
    monkeypatch.setitem(main_module.__dict__, "dispatch", raising("runbook.nowhere"))
    assert main_module.main(["lint", "x.yml"]) == 70


def raising(module: str) -> Callable[[object], int]:
    def run(_: object) -> int:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    return run


def test_a_checkout_that_was_never_installed_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.requires", unknown)
    assert told("agent")[-5:] == [sys.executable, "-m", "pip", "install", ".[agent]"]
