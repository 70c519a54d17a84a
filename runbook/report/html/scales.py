"""Where values lie in a drawing: across in percent, so that a drawing is as wide as its page; up and down in pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
MOST_TICKS = 6


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of an axis. `anchor`: which end of the text lies there; `odd` ones go where there is little room."""

    at: str
    text: str
    anchor: str = "middle"
    odd: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """From `low` to `high`, both finite; a logarithmic one wants them above 0."""

    low: float
    high: float
    log: bool = False

    def part(self, value: float) -> float:
        """0 at `low`, 1 at `high`; what lies outside is at the nearer end."""
        low, high, value = map(self._linear, (self.low, self.high, value))
        return min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.5

    def _linear(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.log else value


def percent(part: float) -> str:
    return f"{part * 100:.2f}".rstrip("0").rstrip(".") + "%"


def pixels(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def around(values: Sequence[float]) -> Scale:
    """A logarithmic scale with room around these, all above 0."""
    low, high = min(values), max(values)
    return Scale(low / 1.3, high * 1.3 if high > low * 1.5 else low * 2.5, log=True)


def decimal_ticks(scale: Scale) -> list[float]:
    """1, 2, 5, 10, … inside a logarithmic scale; powers of ten alone where that is enough."""
    first, last = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
    steps = (1,) if last - first > 3 else (1, 2, 5)
    found = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    found = [value for value in found if scale.low <= value <= scale.high]
    return found[:: math.ceil(len(found) / 8)] if found else [scale.low]


def time_ticks(seconds: float) -> list[float]:
    """Seconds after the beginning, in round steps; the beginning is one of them."""
    if seconds <= 0:
        return [0.0]
    step = next((float(step) for step in TIME_STEPS if seconds / step <= MOST_TICKS), seconds / MOST_TICKS)
    if seconds < MOST_TICKS / 2:
        step = 10.0 ** math.floor(math.log10(seconds / 2))
        step = next(wide for wide in (step, 2 * step, 5 * step, 10 * step) if seconds / wide <= MOST_TICKS)
    return [step * number for number in range(int(seconds / step) + 1)]
