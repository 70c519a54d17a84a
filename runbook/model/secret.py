"""A value that came from the controller's environment and must not be printed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Secret:
    """Prints as `***`; `reveal()` is called in one place, where the 0600 environment file is written."""

    _value: str
    source: str

    def reveal(self) -> str:
        return self._value

    def __str__(self) -> str:
        return "***"

    def __repr__(self) -> str:
        return f"Secret(*** from {self.source})"
