"""What a survey could not find out, or found and did not use: the comments of the inventory. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from runbook.checks.ibstat import rate
from runbook.load.node_sets import folded
from runbook.survey.devices import active
from runbook.survey.judged import SurveyedHost
from runbook.survey.pythons import pythons_of

MOST_NAMES = 6


def network_hints(seen: Sequence[SurveyedHost], interface: str | None) -> list[str]:
    """Interfaces besides the chosen one that every host has, and that may be the faster ones."""
    used = {one.place.interface.name for one in seen if one.place.interface}
    hints = []
    for name in seen[0].told.interfaces:
        if name in used or not all(name in one.told.interfaces for one in seen):
            continue
        first = seen[0].told.interfaces[name]
        if re.match(r"(docker|virbr|br-|veth|cni|flannel|cali|lxc|tailscale)", name):
            continue
        hints.append(f"{name} is up on every node as well ({first.addresses[0]}, MTU {first.mtu} on {seen[0].name})")
    if interface is None:
        hints.insert(0, "interface: what carries the route between the nodes could not be found out")
    return hints


def fabric_hints(seen: Sequence[SurveyedHost], backend: str, *, written: bool) -> tuple[str, ...]:
    """Ports that are there and did not make it into the block: down, Ethernet, not on every host, or not used."""
    hints = []
    why = "gloo does not use it" if backend == "gloo" else "not every node has one of that name"
    for one in seen:
        idle = [f"{port.name} is {port.state}" for port in one.ports if port.state != "active"]
        ethernet = [f"{port.name} at {rate(port)}" for port in active(one.ports, "Ethernet")]
        unused = [] if written else [f"{port.name} at {rate(port)}" for port in active(one.ports, "InfiniBand")]
        if idle:
            hints.append(f"{one.name}: {', '.join(idle)}")
        if ethernet:
            hints.append(f"{one.name}: {', '.join(ethernet)}, Ethernet (RoCE)")
        if unused:
            hints.append(f"{one.name}: {', '.join(unused)}, InfiniBand; left out, as {why}")
    return tuple(hints)


def missing(seen: Sequence[SurveyedHost]) -> Iterable[str]:
    """What was looked for and not found, node by node."""
    for doubt, names in together((one.gpus.doubt, one.name) for one in seen if one.gpus.doubt):
        yield "gpus: " + doubt.replace("{}", names)
    for doubt, names in together((_no_python(one), one.name) for one in seen if one.python is None):
        yield "python: " + doubt.replace("{}", names)
    versions = {one.python.torch for one in seen if one.python}
    if len(versions) > 1:
        each = ", ".join(f"{one.python.torch} on {one.name}" for one in seen if one.python)
        yield f"python: the nodes have different versions of torch ({each}): a job needs one"


def _no_python(one: SurveyedHost) -> str:
    """Why a host has no Python for the job, with `{}` for its name."""
    if "pythons" in one.told.unanswered:
        return "{} did not say in time which Pythons there are"
    found = pythons_of(one.told.pythons)
    asked = ", ".join(python.path for python in found[:4]) + (", …" if len(found) > 4 else "")
    return "none with torch was found on {}" + (f" (asked {asked})" if found else "") + "; name the one that has it"


def together(doubts: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """What is the same of several hosts, said once: the text, and the names of those."""
    same: dict[str, list[str]] = {}
    for doubt, name in doubts:
        same.setdefault(doubt, []).append(name)
    return [(doubt, _few(folded(names))) for doubt, names in same.items()]


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
