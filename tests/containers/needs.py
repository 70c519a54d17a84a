"""Skips, with a sentence, what needs a container runtime where none is installed."""

from __future__ import annotations

import os

import pytest
from lab import containers_missing


@pytest.fixture(autouse=True)
def containers() -> None:
    missing = containers_missing()
    if missing and os.environ.get("RUNBOOK_LAB") == "required":
        pytest.fail(missing[0], pytrace=False)
    if missing:
        pytest.skip(missing[0])
