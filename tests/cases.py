"""Tables of thousands of cases as one test: a test of its own for each would take longer than what it tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Case = TypeVar("Case")


def try_each(cases: Iterable[tuple[str, Case]], check: Callable[[Case], object]) -> None:
    """Check every case, also behind one that is wrong, and fail with the name of each that is and what was wrong."""
    wrong, count = [], 0
    for name, case in cases:
        count += 1
        try:
            check(case)
        except Exception as error:  # noqa: BLE001 - a crash is as wrong as an answer, and the next case is tried as well
            wrong.append(f"{name}: {type(error).__name__}: {error}")
    assert count, "there is no case"
    assert not wrong, f"{len(wrong)} of {count} cases:\n" + "\n".join(wrong)
