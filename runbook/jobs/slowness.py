"""Looks, after each reading of the counters, whether the training has become slower, and who the others wait for."""

from __future__ import annotations

import time
from collections.abc import Callable

from runbook.checks.context import Facts
from runbook.jobs.kept import KeptProcesses
from runbook.jobs.pace import Paces, Slower
from runbook.jobs.readings import Readings
from runbook.jobs.slowed import EVERY_S, LOOKS, Late, Waits, Why, judge, late, pace_text, reasons, waits
from runbook.model.inventory import Node
from runbook.model.verdict import Finding

EARLY = 0.2
"""After this part of the baseline all nodes are looked at once, slower or not: one may have been late from the first step."""

ANSWER_S = 45.0
MOST_SHOWN = 16


class Slowness:
    """`look` tells once what it finds. `tell` gets the node and the finding; `say` a sentence that accuses nobody."""

    def __init__(
        self,
        kept: KeptProcesses,
        paces: Paces,
        readings: Readings,
        tell: Callable[[str, Finding], None],
        say: Callable[[str], None],
    ) -> None:
        self._kept = kept
        self._paces = paces
        self._readings = readings
        self._tell = tell
        self._say = say
        self._early = False
        self._told = False
        self._busy: dict[str, list[Facts]] = {}
        self._seen: list[Waits] = []

    def look(self) -> None:
        now = time.monotonic()
        slower = None if self._told else self._paces.slower(now)
        if self._told or (slower is None and not self._due(now)):
            return
        found = self._late(by_stack=False)
        if found is not None or slower is not None:
            found = self._late(by_stack=True)
        if any(member.over for member in self._kept.members):
            return  # the others do not wait for it any more, or for nothing else
        self._say_what(slower, found)

    def _due(self, now: float) -> bool:
        due = not self._early and self._paces.age_s(now) >= EARLY * self._paces.baseline_s
        self._early = self._early or due
        return due

    def _say_what(self, slower: Slower | None, found: Late | None) -> None:
        why = {name: self._why(name) for name in self._kept.nodes}
        findings = judge(slower, found, why, [str(one) for one in self._seen[:MOST_SHOWN]])
        self._told = bool(findings) or slower is not None
        for node, finding in findings.items():
            self._tell(node, finding)
        if slower is not None and not findings:
            self._say(f"{pace_text(slower)}, on all nodes alike: the steps themselves may have grown")

    def _why(self, name: str) -> Why:
        then, now = self._readings.before.get(name), self._readings.last.get(name)
        rose = {says: says for says in self._readings.rose.get(name, ())}
        return {**reasons(name, then, now, self._busy.get(name, ())), **rose}

    def _late(self, *, by_stack: bool) -> Late | None:
        """None also where a rank has a GPU, for which it waits as for another rank."""
        kept = self._kept
        if any(member.place.gpus for member in kept.members):
            return None
        nodes = [kept.at.inventory.node(name) for name in kept.live_nodes()]

        def ask(node: Node) -> Facts:
            leaders = {str(m.place.ranks[0]): m.journal.get("pid") for m in kept.on(node.name) if not m.over}
            order = {
                "leaders": leaders,
                "looks": LOOKS,
                "every_s": EVERY_S,
                "stacks": kept.stacks.get(node.name) if by_stack else None,
            }
            return kept.at.session(node).call("standing", order, timeout_s=ANSWER_S)

        self._seen = seen = []
        for name, answer in kept.at.run.site.each(nodes, ask, timeout_s=ANSWER_S).items():
            told = answer["ranks"] if isinstance(answer, dict) else {}
            self._busy[name] = answer["busy"] if isinstance(answer, dict) else []
            for rank in (rank for member in kept.on(name) for rank in member.place.ranks):
                one = told.get(str(rank), {"states": "", "stacks": []})
                label = f"rank {rank} on {name}"
                seen.append(waits(name, label, one["states"], one["stacks"], by_stack=by_stack))
        return late(seen) if len(nodes) == len(kept.nodes) else None
