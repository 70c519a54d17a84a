"""Values as plain JSON, whatever a check put into its metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from enum import Enum


def plain(value: object) -> object:
    """Numbers that JSON cannot write become null; anything that is no JSON value becomes its text (a secret: `***`)."""
    match value:
        case Enum():
            return plain(value.value)
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case Set():
            return sorted((plain(item) for item in value), key=str)
        case _:
            return str(value)
