"""The objects that the pages of groups, runs and nodes share: the groups, the runs, the processes, and the meaning of
each group's text."""

from __future__ import annotations

import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request

from runbook.engine.run_folder import JOB_ENDING_FILE
from runbook.files.shipped_files import shipped_path
from runbook.serve.agent_fleet import Fleet
from runbook.serve.agent_states import AgentState
from runbook.serve.group_files import GroupFile, Groups, NoGroup
from runbook.serve.group_preview import DRAFT_PREFIX, Linted, Meaning, group_meaning, lint_group_text
from runbook.serve.people import People
from runbook.serve.run_folders import RunFilter, RunRow, Runs
from runbook.serve.run_processes import Processes, Restarts
from runbook.serve.store import Store

MAX_REMEMBERED_TEXTS = 200
"""How many groups' texts keep their meaning in memory."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group's file, the findings of lint about it, and its meaning."""

    file: GroupFile
    linted: Linted
    meaning: Meaning


class Workspace:
    """The groups, runs and processes of one server. May be used from several threads."""

    def __init__(self, data: Path, store: Store, changed: Callable[[str], object], fleet: Fleet) -> None:
        data = data.resolve()
        for left in data.glob(f"{DRAFT_PREFIX}*"):
            shutil.rmtree(left, ignore_errors=True)
        copy_inventory_schema(data)
        self.groups = Groups(data / "groups", store)
        self.runs = Runs(data / "runs", store)
        self.processes = Processes(data, self.runs, changed, fleet.reachable)
        self.restarts = Restarts(store, self.processes)
        self.changed = changed
        self._fleet = fleet
        self._kept: OrderedDict[tuple[str, str], GroupView] = OrderedDict()
        self._lock = threading.Lock()

    def unheard(self, row: RunRow) -> list[AgentState]:
        """The nodes of a run that goes on whose agents are SUSPECT or LOST: their ranks may live on, unseen."""
        return self._fleet.unheard(row.nodes) if self.processes.lives(row.id) else []

    def ending(self, row: RunRow) -> str:
        """What a run that was asked to end is doing, in words; empty if nobody has asked it to end."""
        if not (self.runs.folder / row.id / JOB_ENDING_FILE).exists():
            return ""
        return "stopping, then it starts again" if self.restarts.pending(row.id) else "stopping"

    def view(self, name: str) -> GroupView:
        """The group's present file and its meaning. Raises NoGroup."""
        return self.view_of(self.groups.read(name))

    def view_of(self, file: GroupFile) -> GroupView:
        """The file and its meaning, kept for the latest MAX_REMEMBERED_TEXTS texts."""
        key = (file.name, file.hash)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        look = GroupView(file, lint_group_text(file.path, file.text), group_meaning(file.path, file.text))
        with self._lock:
            self._kept[key] = look
            while len(self._kept) > MAX_REMEMBERED_TEXTS:
                self._kept.popitem(last=False)
        return look

    def latest_run(self, group: str) -> RunRow | None:
        """The latest run of a group; None if it has none."""
        found, _ = self.runs.search(RunFilter(group=group), most=1)
        return found[0] if found else None

    def all_groups(self) -> list[GroupView]:
        """A view of every group that can be read."""
        found = []
        for name in self.groups.names():
            try:
                found.append(self.view(name))
            except NoGroup:
                continue
        return found


def copy_inventory_schema(data: Path) -> None:
    """Copy the inventory's schema to the place that the first line of a new group's file names: editors use it for
    people who edit the file itself."""
    schema = shipped_path("schemas", "inventory.schema.json")
    folder = data / "schemas"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.copyfile(schema, folder / schema.name)


def is_run_active(workspace: Workspace, run: RunRow) -> bool:
    """Whether a run that was started from a page has not ended."""
    return not run.verdict and workspace.processes.lives(run.id)


def workspace_of(request: Request) -> Workspace:
    workspace: Workspace = request.app.state.workspace
    return workspace


def people_of(request: Request) -> People:
    people: People = request.app.state.people
    return people


def fleet_of(request: Request) -> Fleet:
    fleet: Fleet = request.app.state.fleet
    return fleet
