"""Results as text: a table of medians for each comparison, and under it the ratios with their goals."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .cost import Cost, median


@dataclass(frozen=True, slots=True)
class Ratio:
    """One tool's wall time over another's, round by round: neighbours in time saw the same load of the machine."""

    says: str
    per_round: tuple[float, ...]
    goal: float
    at_most: bool

    @property
    def value(self) -> float:
        return statistics.median(self.per_round)

    @property
    def met(self) -> bool:
        return self.value <= self.goal if self.at_most else self.value >= self.goal

    def line(self) -> str:
        sign = "<=" if self.at_most else ">="
        spread = f"{min(self.per_round):.2f} to {max(self.per_round):.2f}"
        return (
            f"  {self.says}: {self.value:.2f} x  (rounds: {spread}; goal {sign} {self.goal:g} x)  {verdict(self.met)}"
        )


def verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def ratio(says: str, over: Sequence[Cost], under: Sequence[Cost], *, at_most: float = 0, at_least: float = 0) -> Ratio:
    per_round = tuple(a.wall_s / b.wall_s for a, b in zip(over, under, strict=True))
    return Ratio(says, per_round, at_most or at_least, bool(at_most))


def table(rows: Mapping[str, Sequence[Cost]], *, cpu_and_memory: bool = True) -> list[str]:
    """Medians, one row a tool; `wall` also with the quickest and the slowest round."""
    width = max(len(name) for name in rows)
    head = f"  {'':<{width}}  {'wall':>9}  {'(min to max)':>19}"
    lines = [head + (f"  {'CPU':>9}  {'peak memory':>11}" if cpu_and_memory else "")]
    for name, costs in rows.items():
        middle = median(costs)
        walls = [cost.wall_s for cost in costs]
        spread = f"{min(walls):.3f} to {max(walls):.3f}"
        line = f"  {name:<{width}}  {middle.wall_s:>7.3f} s  {spread:>19}"
        if cpu_and_memory:
            line += f"  {middle.cpu_s:>7.2f} s  {middle.peak_bytes / 2**20:>7.0f} MiB"
        lines.append(line)
    return lines
