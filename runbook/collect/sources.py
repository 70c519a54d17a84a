"""The files a job is described by: inventory, playbook, and the scripts that `render` makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from runbook.checks import CHECKS
from runbook.collect.entries import Absent, ArchiveFile, read_entry
from runbook.collect.rundir import RunFolder
from runbook.collect.scrub import GONE
from runbook.engine.plan import Choice, Plan, PlannedStage, make_plan
from runbook.engine.scripts import node_files
from runbook.launch.job import Job
from runbook.load.document import Document, parse_document, read_document
from runbook.load.inventory import load_inventory_with_origins
from runbook.load.launch import has_launch, load_launch
from runbook.load.origins import Origins
from runbook.load.playbook import load_playbook
from runbook.model.errors import FilesWrong
from runbook.model.inventory import EnvValue, Inventory, Node
from runbook.model.playbook import Playbook
from runbook.model.secret import Secret

RANK_PROGRAM = "rank.py"
KEYS = {"inventory": "nodes", "playbook": "stages"}
NO_PLAYBOOK = Playbook("none", (), source="none")


def load(path: Path | Document, environ: Mapping[str, str]) -> tuple[Inventory, Origins]:
    """Raises FilesWrong for anything but a variable that is not set."""
    return load_inventory_with_origins(path, environ=environ)


def source_entries(inventory: Path | None, run: RunFolder | None) -> Iterator[ArchiveFile | Absent]:
    for path, kind, named in (
        (inventory, "inventory", run.named_inventory if run else ""),
        (run.playbook if run else None, "playbook", run.named_playbook if run else ""),
    ):
        place = f"{kind}.yml"
        if path is None:
            why = f"the run names {named}, which is not there any more" if named else "no run, so no playbook"
            yield Absent(place, why)
            continue
        entry = read_entry(path, place, "yaml")
        if kind == "playbook" and path == inventory:
            yield Absent(place, "the launch stands in the inventory")
            continue
        if isinstance(entry, ArchiveFile) and not _is_of_kind(entry.text, kind):
            # A run's folder may be another's, and name any file of ours.
            entry = Absent(place, f"{path} is no {kind}", "left out")
        if (
            isinstance(entry, ArchiveFile)
            and run is not None
            and run.started is not None
            and _changed_since(path, run.started)
        ):
            entry = replace(entry, trouble="changed since the run")
        yield entry


def _is_of_kind(text: str, kind: str) -> bool:
    document = parse_document(text, kind)
    data = document.data
    return isinstance(data, dict) and KEYS[kind] in data


def _changed_since(path: Path, time: float) -> bool:
    try:
        return path.stat().st_mtime > time
    except OSError:
        return False


def plan_of(inventory: Inventory, playbook: Path | None, environ: Mapping[str, str]) -> Plan:
    """Of the playbook, or of the launch that stands in the inventory. Without either there is still the script that starts any
    command as every rank. Raises FilesWrong."""
    own = Path(inventory.source)
    if own.is_file() and (playbook is None or playbook.resolve() == own.resolve()):
        document = read_document(own)
        if has_launch(document):
            return make_plan(load_launch(document, checks=CHECKS, environ=environ), inventory, Choice())
    if playbook is None:
        return Plan(NO_PLAYBOOK, inventory, ())
    return make_plan(load_playbook(playbook, checks=CHECKS, environ=environ), inventory, Choice())


def script_entries(plan: Plan, origins: Origins, nodes: frozenset[str]) -> Iterator[ArchiveFile | Absent]:
    """What `render` would write for each node, with no secret in it: the values are taken out before, not after."""
    try:
        made = node_files(_without_secrets(plan), origins)
    except FilesWrong as wrong:
        yield Absent("scripts", f"they cannot be rendered: {wrong}", "failed")
        return
    for one in made:
        if one.node.name not in nodes:
            continue
        for name, file in one.files.items():
            if name != RANK_PROGRAM:  # a part of this version of runbook, the same for all
                yield ArchiveFile(
                    f"scripts/{one.node.name}/{name}", file.data.decode("utf-8", "replace"), node=one.node.name
                )


def _without_secrets(plan: Plan) -> Plan:
    return replace(
        plan, inventory=_inventory_without(plan.inventory), stages=tuple(_stage_without(stage) for stage in plan.stages)
    )


def _stage_without(stage: PlannedStage) -> PlannedStage:
    work = stage.work
    if isinstance(work, Job):
        programs = {name: replace(program, env=_without(program.env)) for name, program in work.programs.items()}
        work = replace(work, programs=programs)
    return replace(stage, work=work, inventory=_inventory_without(stage.inventory))


def _inventory_without(inventory: Inventory) -> Inventory:
    return replace(
        inventory,
        env=_without(inventory.env),
        nodes=tuple(_node_without(node) for node in inventory.nodes),
    )


def _node_without(node: Node) -> Node:
    return replace(node, env=_without(node.env))


def _without(env: Mapping[str, EnvValue]) -> dict[str, EnvValue]:
    """A secret stays one, so that it is rendered where secrets are; its value is the word for what is gone."""
    return {name: Secret(GONE, value.source) if isinstance(value, Secret) else value for name, value in env.items()}
