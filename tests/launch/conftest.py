"""What the tests of launch scripts share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .needs import require
from .wine import Wine


@pytest.fixture(scope="session")
def wine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wine]:
    """One Windows for the whole session."""
    require("wine", "wineserver", "x86_64-w64-mingw32-gcc")
    windows = Wine(tmp_path_factory.mktemp("wine"))
    try:
        yield windows
    finally:
        windows.close()
