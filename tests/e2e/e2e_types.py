"""Names for annotations: pytest's conftest modules cannot be imported by name from test modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from lab import CliResult


class Ran(Protocol):
    """See `conftest.Ran`."""

    done: CliResult
    folder: Path
    document: dict[str, Any]

    @property
    def code(self) -> int: ...
    def findings(self, verdict: str = "fail") -> list[tuple[str, str, str]]: ...
    def text(self) -> str: ...
