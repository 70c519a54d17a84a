"""How much is tried: every case and every example of a property in `make test-all`, a part of them in `make test`.

No example has a deadline: these tests ask what is true, not how fast a busy machine is. `make test` tries the same
examples every time; `make test-all` draws new ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

QUICK, THOROUGH = "quick", "thorough"
ALL = 100
"""Examples of a property that names no number."""

settings.register_profile(THOROUGH, max_examples=ALL, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(QUICK, settings.get_profile(THOROUGH), max_examples=ALL // 5, derandomize=True)


def examples(count: int = ALL, *, suppress_health_check: Collection[HealthCheck] = (), **more: Any) -> settings:
    """For `@examples(400)`: as many in `make test-all`, the profile's share of them in `make test`."""
    profile = settings()
    share = max(1, count * profile.max_examples // ALL)
    suppressed = {*profile.suppress_health_check, *suppress_health_check}
    return settings(max_examples=share, suppress_health_check=list(suppressed), **more)


def one_in(number: int, cases: Iterable[Any], *, thorough: int = 1) -> list[Any]:
    """For `parametrize`: the first of every so many of these in `make test`, all in `make test-all`, or the first of every
    `thorough` there and the others in `make test-scale`. A case of several arguments is a tuple."""

    def mark(at: int) -> Any:
        if at % number == 0:
            return ()
        return pytest.mark.thorough if at % thorough == 0 else pytest.mark.scale

    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark(at)) for at, case in enumerate(cases)
    ]
