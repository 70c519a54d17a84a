"""The chosen ports of all nodes side by side: rails that one node lacks, links that are slower than their like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from runbook.parsers.ibstat import Port


def uneven(chosen: Mapping[str, Sequence[Port]], *, promised: bool) -> dict[str, list[str]]:
    """Warnings by node. Rates are compared only where the inventory promises none; with a promise they were judged."""
    warnings: dict[str, list[str]] = {name: [] for name in chosen}
    counts = Counter(len(ports) for ports in chosen.values())
    if len(counts) > 1:
        usual = max(counts, key=lambda count: (counts[count], count))
        others = ", ".join(name for name, ports in chosen.items() if len(ports) == usual)
        for name, ports in chosen.items():
            if len(ports) != usual:
                warnings[name].append(
                    f"NCCL would use {len(ports)} port{'s' if len(ports) != 1 else ''} here ({', '.join(p.name for p in ports)}) "
                    f"and {usual} on {others}: the rails do not match, and the smaller number sets the pace"
                )
    rates = {(name, port.name): port.rate_gbps for name, ports in chosen.items() for port in ports if port.rate_gbps}
    if not promised and len(set(rates.values())) > 1:
        best = max(rate for rate in rates.values() if rate)
        for (name, port), rate in rates.items():
            if rate and rate < best:
                warnings[name].append(
                    f"{port} runs at {rate:g} Gbit/s, others at {best:g}: the slowest link sets the pace"
                )
    return {name: told for name, told in warnings.items() if told}
