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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """To start a Windows takes longer than most tests in it: of pytest-xdist's workers one has it."""
    for item in items:
        if isinstance(item, pytest.Function) and "wine" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("wine"))
