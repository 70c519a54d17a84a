"""What the tests of launch scripts share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from .needs import missing_packages
from .wine import Wine


@pytest.fixture(scope="session")
def wine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wine]:
    """One Windows for the whole session; without the packages its tests are skipped, or fail where CI requires them."""
    missing = missing_packages("wine", "wineserver", "x86_64-w64-mingw32-gcc")
    if missing:
        reason = f"no Windows to try batch files on; Debian packages missing: {' '.join(missing)}"
        if os.environ.get("RUNBOOK_LAB") == "required":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    windows = Wine(tmp_path_factory.mktemp("wine"))
    try:
        yield windows
    finally:
        windows.close()
