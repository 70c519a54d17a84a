"""A node and what it is guilty of; two accusations of the same thing become one."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from runbook.firewall.blocked import command_line
from runbook.model.verdict import Finding

MOST_LINES = 10


@dataclass(frozen=True)
class Accusation:
    """A node and what it is guilty of; `rule` is where, when it can be no other. `itself`: it met itself only."""

    node: str
    finding: Finding
    rule: str = ""
    remedies: tuple[tuple[str, str], ...] = ()
    itself: bool = False

    def same(self, other: Accusation) -> bool:
        """One rule that stops several things, one command that opens several, or the same trouble at home: one finding."""
        if self.rule or other.rule:
            return self.rule == other.rule
        return self.finding.cause == other.finding.cause and (
            other.itself or words(self.finding.remedy) == words(other.finding.remedy)
        )

    def merged(self, other: Accusation) -> Accusation:
        mine, its = self.finding, other.finding
        either = (*self.remedies, *other.remedies)
        remedies = tuple({(node, *words(command)): (node, command) for node, command in either}.values())
        differ = remedies and words(mine.remedy) != words(its.remedy)
        finding = replace(
            mine,
            remedy=command_line(remedies, self.node) if differ else mine.remedy,
            evidence=tuple(dict.fromkeys((*mine.evidence, *its.evidence)))[:MOST_LINES],
            peers=tuple(dict.fromkeys((*mine.peers, *its.peers))),
        )
        return replace(self, finding=finding, remedies=remedies)


def words(remedy: str) -> list[str]:
    """What a remedy opens, whatever the order in which it lists the peers."""
    return sorted(re.findall(r"[\w.:/-]+", remedy))
