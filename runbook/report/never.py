"""`assert_never` for Python 3.10: the type checker proves that no case was forgotten."""

from __future__ import annotations

from typing import NoReturn


def assert_never(value: NoReturn) -> NoReturn:
    """Stand in the last `case _:`, so that a new Event fails mypy in every reader."""
    raise AssertionError(f"a report met something it does not know: {value!r}")
