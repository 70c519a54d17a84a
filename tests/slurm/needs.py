"""Skips, with a sentence, what needs Slurm where that is not installed."""

from __future__ import annotations

import os

import pytest
from lab import slurm_missing


@pytest.fixture(autouse=True)
def slurm() -> None:
    missing = slurm_missing()
    if missing and os.environ.get("RUNBOOK_LAB") == "required":
        pytest.fail(missing[0], pytrace=False)
    if missing:
        pytest.skip(missing[0])
