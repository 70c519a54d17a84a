"""A pair of namespaces for every test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from firewall.pair import Pair, missing


@pytest.fixture
def pair() -> Iterator[Pair]:
    reason = missing()
    if reason is not None:
        pytest.skip(f"no network namespaces here: {reason}")
    with Pair() as two:
        yield two
