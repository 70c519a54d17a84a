"""Sessions with nodes that are this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from runbook.transport.node_sessions import Site

from .local_sessions import RUN_ID


@pytest.fixture
def site() -> Iterator[Site]:
    one = Site(RUN_ID)
    yield one
    one.close()
