"""What the end-to-end tests share: one playbook with every check, small enough to be quick."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab import CliResult, Lab, runbook_cli

PLAYBOOK = """\
name: every check
stages:
  - check: ping
  - check: port
  - check: firewall
  - check: ibstat
  - check: connection
  - {name: small, check: allreduce, with: {min_bytes: 1K, max_bytes: 64K, iterations: 3, budget: 3s}}
  - {name: full, check: allreduce, with: {min_bytes: "{{ min_bytes }}", max_bytes: "{{ max_bytes }}", iterations: "{{ iterations }}", budget: "{{ budget }}", min_busbw_gbytes: "{{ gate }}"}}
vars: {min_bytes: 1K, max_bytes: 4M, iterations: 5, budget: 5s, gate: 0}
"""

Run = Callable[..., "Ran"]


class Ran:
    """A finished run: how the program ended, and the document it left in its run folder."""

    def __init__(self, done: CliResult, folder: Path) -> None:
        self.done = done
        self.folder = folder
        self.document: dict[str, Any] = json.loads((folder / "result.json").read_text())

    @property
    def code(self) -> int:
        return self.done.returncode

    def findings(self, verdict: str = "fail") -> list[tuple[str, str, str]]:
        """(stage, node, cause) of every finding of outcomes with this verdict."""
        return [
            (stage["name"], outcome["node"], finding["cause"])
            for stage in self.document["stages"]
            for outcome in stage["outcomes"]
            if outcome["verdict"] == verdict
            for finding in outcome["findings"]
        ]

    def text(self) -> str:
        """For a failing assertion: everything a person would have seen."""
        return self.done.stdout + self.done.stderr


def write_playbook(lab: Lab) -> Path:
    path = lab.tmp / "every_check.yml"
    path.write_text(PLAYBOOK)
    return path


@pytest.fixture
def run_in() -> Callable[..., Ran]:
    """run_in(lab, *arguments, **inventory overrides) runs every check in the lab and gives what came of it."""

    def run(lab: Lab, *arguments: str, **overrides: Any) -> Ran:
        folder = lab.tmp / "run"
        done = runbook_cli(
            lab,
            "run",
            str(write_playbook(lab)),
            "-i",
            str(lab.inventory(**overrides)),
            "--run-dir",
            str(folder),
            *arguments,
            timeout=120,
        )
        return Ran(done, folder)

    return run
