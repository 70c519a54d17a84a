"""Playbooks and inventories from text, plans made by hand, and checks that do what a test wants."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent
from typing import ClassVar

from runbook.checks import CHECKS
from runbook.checks.base import Check
from runbook.checks.context import Context
from runbook.engine.plan import Plan, PlannedStage
from runbook.engine.run import RunSettings, run_plan
from runbook.files.inventory import load_inventory
from runbook.files.playbook import load_playbook
from runbook.model.events import Emit, Event, OutcomeReached, RunFinished
from runbook.model.inventory import Inventory, Node, Rendezvous
from runbook.model.playbook import Playbook
from runbook.model.verdict import Finding, Outcome

RUN_ID = f"run-{os.getpid()}"
"""Of this process alone: at its end a run ends whatever bears its name, wherever that is on the machine."""

NODES = """
    rendezvous: {master: node-a}
    nodes:
      node-a: {address: 10.0.0.1}
      node-b: {address: 10.0.0.2}
      node-c: {address: 10.0.0.3}
      node-d: {address: 10.0.0.4}
    groups:
      rack1: {nodes: "node-a,node-b"}
      rack2: {nodes: "node-c,node-d"}
"""


def inventory(folder: Path, text: str) -> Inventory:
    file = folder / "inventory.yml"
    file.write_text(dedent(text))
    return load_inventory(file, environ={})[0]


def playbook(folder: Path, text: str) -> Playbook:
    file = folder / "playbook.yml"
    file.write_text(dedent(text))
    return load_playbook(file, checks=CHECKS)


def local(*names: str, workdir: Path | str = "/nonexistent") -> Inventory:
    nodes = tuple(Node(name, "127.0.0.1", connection="local", workdir=str(workdir)) for name in names)
    return Inventory("here", nodes, Rendezvous(names[0], "127.0.0.1"), source="inventory.yml")


Work = Callable[[Context], list[Outcome]]


@dataclasses.dataclass(frozen=True)
class Fake(Check):
    id: ClassVar[str] = "fake"

    work: Work = lambda at: passing(at)

    def run(self, at: Context) -> list[Outcome]:
        return self.work(at)


def passing(at: Context) -> list[Outcome]:
    return [Outcome.passed(node.name, "looked, and it is fine") for node in at.nodes]


def failing(at: Context, cause: str = "packet-loss") -> list[Outcome]:
    return [Outcome.failed(node.name, finding(cause)) for node in at.nodes]


def finding(cause: str) -> Finding:
    return Finding(cause, "it is broken", "mend it")


def stage(name: str, work: Work, inventory: Inventory, *, timeout: float = 5.0, **options: object) -> PlannedStage:
    made = PlannedStage(name, Fake(work), inventory, timeout)
    return dataclasses.replace(made, **options)  # type: ignore[arg-type]


@dataclasses.dataclass
class Told:
    """What a run emitted, and the code it ended with."""

    code: int
    events: list[Event]

    @property
    def end(self) -> RunFinished:
        last = self.events[-1]
        assert isinstance(last, RunFinished)
        return last

    def outcomes(self, stage: str) -> Mapping[str, Outcome]:
        reached = [e for e in self.events if isinstance(e, OutcomeReached) and e.stage == stage]
        assert len({e.outcome.node for e in reached}) == len(reached), "one outcome a node"
        return {e.outcome.node: e.outcome for e in reached}


def execute_stages(folder: Path, *stages: PlannedStage, tell: Emit | None = None) -> Told:
    """`tell` hears every event after it was noted here."""
    events: list[Event] = []

    def emit(event: Event) -> None:
        events.append(event)
        if tell:
            tell(event)

    whole = stages[0].inventory
    plan = Plan(Playbook("made up", (), source="playbook.yml"), whole, stages)
    code = run_plan(plan, RunSettings(RUN_ID, folder), emit)
    return Told(code, events)
