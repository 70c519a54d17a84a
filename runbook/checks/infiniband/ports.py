"""The choice that NCCL makes among the ports of HCAs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from runbook.model.selection import Selection, selection
from runbook.parsers.ibstat import Port


def rate(port: Port) -> str:
    return "no rate" if port.rate_gbps is None else f"{port.rate_gbps:g} Gbit/s"


def select(expression: str | None, ports: Sequence[Port]) -> list[Port]:
    """The ports NCCL_IB_HCA selects: a prefix list, `=` for exact names, `^` to exclude, `:port` for one port.

    Without an expression NCCL takes every active port and ignores the rest, so idle spare ports are not a fault then:
    the active ones are chosen, or all if none is. Ethernet beside InfiniBand is not what an `infiniband:` block means.
    """
    if not expression:
        active = [port for port in ports if port.state == "active"]
        return [port for port in active if not port.ethernet] or active or list(ports)
    chosen = selection(expression)
    return [port for port in ports if any(matches(name, port, chosen) for name in chosen.names) != chosen.excludes]


def matches(word: str, port: Port, chosen: Selection) -> bool:
    name, _, number = word.partition(":")
    if number and number.isdigit() and int(number) != port.number:
        return False
    return chosen.fits(name, port.hca)


def named(expression: str | None, port: Port) -> bool:
    """Whether the expression means this port by its HCA's whole name, not only by how that begins."""
    chosen = selection(expression or "")
    words = {word.partition(":")[0] for word in chosen.names if matches(word, port, chosen)}
    return not chosen.excludes and port.hca in words


def longer_names(expression: str | None, ports: Sequence[Port]) -> dict[str, list[str]]:
    """Words that are the whole name of one HCA and, as beginnings of names, take others as well: mlx5_1 and mlx5_10."""
    chosen = selection(expression or "")
    if chosen.exact:
        return {}
    hcas = sorted({port.hca for port in ports})
    words = {word.partition(":")[0] for word in chosen.names} & set(hcas)
    return {word: more for word in sorted(words) if (more := [h for h in hcas if h != word and h.startswith(word)])}
