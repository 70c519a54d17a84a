"""Which address the others reach a host at, and which interface carries that. Pure."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runbook.load.address import is_loopback

REACHED = ("open", "refused")


@dataclass(frozen=True, slots=True)
class SurveyInterface:
    name: str
    mtu: int | None
    addresses: tuple[str, ...]


Interfaces = Mapping[str, SurveyInterface]


@dataclass(frozen=True, slots=True)
class HostAddress:
    """Where a host stands on the network. `doubt` says what could not be found out, or is odd."""

    address: str | None
    interface: SurveyInterface | None
    doubt: str | None = None


def interfaces_of(reach: Mapping[str, Any]) -> dict[str, SurveyInterface]:
    """The interfaces that may carry a job's traffic: up, and with an address of their own."""
    found = {}
    for name, entry in reach.get("interfaces", {}).items():
        usable = tuple(address for address in entry["addresses"] if is_usable(address))
        if usable and entry.get("state") != "DOWN":
            found[name] = SurveyInterface(name, entry.get("mtu"), usable)
    return found


def addresses_of(interfaces: Interfaces) -> list[str]:
    """IPv4 first: what most programs dial, and where names mostly lead."""
    found = [address for interface in interfaces.values() for address in interface.addresses]
    return sorted(found, key=lambda address: ":" in address)


def places(
    candidates: Mapping[str, Sequence[str]],
    interfaces: Mapping[str, Interfaces],
    routes: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, HostAddress]:
    """Of every host its candidates (the likeliest first), its interfaces, and what it said of its way to others."""
    chosen = {name: _address(name, listed, routes) for name, listed in candidates.items()}
    return {
        name: HostAddress(address, _interface(address, chosen, interfaces[name], routes.get(name, ())), doubt)
        for name, (address, doubt) in chosen.items()
    }


def _address(
    name: str, candidates: Sequence[str], routes: Mapping[str, Sequence[Mapping[str, Any]]]
) -> tuple[str | None, str | None]:
    """The first candidate that all who tried could reach; else the one that most could."""
    if not candidates:
        return None, "no address on any interface but loopback"
    tried: dict[str, list[tuple[str, str]]] = {}
    for other, targets in routes.items():
        for target in targets:
            if target["peer"] == name:
                tried.setdefault(target["address"], []).append((other, str(target["answer"])))
    for address in candidates:
        if address in tried and all(answer in REACHED for _, answer in tried[address]):
            return address, None
    if not tried:
        return candidates[0], None
    best = max(candidates, key=lambda address: sum(answer in REACHED for _, answer in tried.get(address, ())))
    missed = [(other, answer) for other, answer in tried.get(best, ()) if answer not in REACHED]
    if not missed:
        return best, None
    other, answer = missed[0]
    more = f", nor could {len(missed) - 1} more" if len(missed) > 1 else ""
    return best, f"{other} could not reach it ({answer}){more}: `runbook run` will say why"


def _interface(
    address: str | None,
    chosen: Mapping[str, tuple[str | None, str | None]],
    interfaces: Interfaces,
    targets: Iterable[Mapping[str, Any]],
) -> SurveyInterface | None:
    """What carries the route to most of the others; alone, the interface that has the address."""
    by_address = {one: interface for interface in interfaces.values() for one in interface.addresses}
    used: Counter[str] = Counter()
    for target in targets:
        if target["address"] == chosen.get(target["peer"], (None, None))[0] and target["source"]:
            known = by_address.get(target["source"])
            name = known.name if known else target["interface"]
            if name in interfaces:
                used[name] += 1
    if used:
        return interfaces[used.most_common(1)[0][0]]
    return by_address.get(address or "")


def is_usable(address: str) -> bool:
    """Whether another machine may dial it: not loopback, not of one link only."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not (is_loopback(address) or ip.is_link_local or ip.is_multicast or ip.is_unspecified)
