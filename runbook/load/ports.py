"""TCP ports as people write them: `29500`, `29500-29510`, or a list of these."""

from __future__ import annotations

import re

HIGHEST = 65535
_RANGE = re.compile(r"([0-9]{1,9})(?:\s*-\s*([0-9]{1,9}))?")


def port_ranges(value: object) -> tuple[tuple[int, int], ...]:
    """Inclusive ranges in the order written. Raises ValueError with a sentence for people."""
    if isinstance(value, list):
        return tuple(found for item in value for found in port_ranges(item))
    if isinstance(value, str) and "," in value:
        return port_ranges([part.strip() for part in value.split(",")])
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{value!r} is not a port: write 29500 or 29500-29510")
    match = _RANGE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(f"`{value}` is not a port: write 29500 or 29500-29510")
    first = int(match[1])
    last = int(match[2]) if match[2] else first
    for port in (first, last):
        if not 1 <= port <= HIGHEST:
            raise ValueError(port_range_message(port))
    if last < first:
        raise ValueError(f"the range of ports {first}-{last} runs backwards")
    return ((first, last),)


def port_range_message(port: int | float) -> str:
    return f"port {port} is above {HIGHEST}" if port > HIGHEST else f"port {port} is below 1"
