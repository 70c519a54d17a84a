"""Skips what is here, with the reason, on a machine without a GPU. Needs nothing of tests/conftest.py: see `make test-gpu`."""

from __future__ import annotations

import pytest

from .needs import gpu_missing


@pytest.fixture(scope="session")
def gpus() -> int:
    """How many there are."""
    if reason := gpu_missing():
        pytest.skip(f"no GPU to test on: {reason}")
    import torch

    return int(torch.cuda.device_count())
