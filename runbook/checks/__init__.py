"""A check is one file, or one folder where it is more than that, with its page (.md) beside it. This table registers
it.

Beside the checks: `base` and `context` (what a check is, and what it is given), and what several of them stand on:
`network` (dials between nodes), `ranks` (the processes of the job), `bandwidth` (how fast, and who is slow)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module, resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runbook.checks.base import Check

CLASSES: Mapping[str, str] = {
    "reach": "reach.reach.Reach",
    "ping": "ping.ping.Ping",
    "port": "port.PortCheck",
    "firewall": "firewall.Firewall",
    "ibstat": "ibstat.Ibstat",
    "connection": "connection.Connection",
    "links": "links.Links",
    "allreduce": "allreduce.AllReduce",
}
"""Module and class by the id that playbooks use, in the order in which they usually stand."""


class _Checks(Mapping[str, "type[Check]"]):
    """The classes by their ids. A check is imported when it is first used: importing all takes a quarter of a second,
    and most playbooks have few."""

    def __getitem__(self, id: str) -> type[Check]:
        module, _, name = CLASSES[id].rpartition(".")
        found: type[Check] = getattr(import_module(f"{__name__}.{module}"), name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(CLASSES)

    def __len__(self) -> int:
        return len(CLASSES)

    def __contains__(self, id: object) -> bool:
        return id in CLASSES


CHECKS: Mapping[str, type[Check]] = _Checks()


def page(id: str) -> str:
    """The help page of a check, which `explain` prints."""
    module = CLASSES[id].rpartition(".")[0]
    return resources.files(__name__).joinpath(f"{module.replace('.', '/')}.md").read_text(encoding="utf-8")
