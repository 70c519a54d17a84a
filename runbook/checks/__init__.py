"""The table of checks: the module and class of every check, by its id.

A check is one file, or a folder where it needs modules of its own, with its page (.md) beside it. `base` says what a
check is, `context` what a check is given. Several checks share three rooms: `network` (dials between nodes), `ranks`
(the processes of the job) and `bandwidth` (how fast the links are, and which node is slow)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module, resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runbook.checks.base import Check

CHECK_CLASSES: Mapping[str, str] = {
    "reach": "reach.reach.Reach",
    "ping": "ping.ping.Ping",
    "port": "port.PortCheck",
    "firewall": "firewall.Firewall",
    "ibstat": "ibstat.Ibstat",
    "connection": "connection.Connection",
    "links": "links.Links",
    "allreduce": "allreduce.AllReduce",
}
"""The module and class of each check by the id that playbooks use, in the order in which the stages usually stand."""


class _Checks(Mapping[str, "type[Check]"]):
    """The check classes by their ids. A check is imported when it is first used: importing all of them takes a quarter
    of a second, and most playbooks have few."""

    def __getitem__(self, id: str) -> type[Check]:
        module, _, name = CHECK_CLASSES[id].rpartition(".")
        found: type[Check] = getattr(import_module(f"{__name__}.{module}"), name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(CHECK_CLASSES)

    def __len__(self) -> int:
        return len(CHECK_CLASSES)

    def __contains__(self, id: object) -> bool:
        return id in CHECK_CLASSES


CHECKS: Mapping[str, type[Check]] = _Checks()


def check_help_page(id: str) -> str:
    """The text of the check's help page, which `explain` prints."""
    module = CHECK_CLASSES[id].rpartition(".")[0]
    return resources.files(__name__).joinpath(f"{module.replace('.', '/')}.md").read_text(encoding="utf-8")
