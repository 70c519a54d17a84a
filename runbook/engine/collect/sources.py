"""The files a job is described by: inventory, playbook, and the scripts that `render` makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from runbook.checks import CHECKS
from runbook.engine.collect.entries import Absent, Entry, read_entry
from runbook.engine.collect.rundir import RunFolder
from runbook.engine.collect.scrub import GONE
from runbook.engine.plan import Choice, Plan, make_plan
from runbook.engine.scripts import node_files
from runbook.load.inventory import load_inventory_with_origins
from runbook.load.origins import Origins
from runbook.load.playbook import load_playbook
from runbook.model.errors import FilesWrong
from runbook.model.inventory import EnvValue, Inventory, Node
from runbook.model.playbook import Playbook
from runbook.model.secret import Secret

RANK_PROGRAM = "rank.py"
NO_PLAYBOOK = Playbook("none", (), source="none")


class Environment(Mapping[str, str]):
    """This process's variables. One that is not set does not stop anything: it is remembered, and has no value."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.unset: dict[str, None] = {}

    def __getitem__(self, name: str) -> str:
        if name not in self._environ:
            self.unset[name] = None
            return ""
        return self._environ[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._environ)

    def __len__(self) -> int:
        return len(self._environ)


def load(path: Path, environ: Mapping[str, str]) -> tuple[Inventory, Origins]:
    """Raises FilesWrong for anything but a variable that is not set."""
    return load_inventory_with_origins(path, environ=environ)


def secrets_of(inventory: Inventory) -> list[str]:
    environments = [inventory.env, *(node.env for node in inventory.nodes)]
    values = [value.reveal() for env in environments for value in env.values() if isinstance(value, Secret)]
    return list(dict.fromkeys(value for value in values if value))


def source_entries(inventory: Path | None, run: RunFolder | None) -> Iterator[Entry | Absent]:
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
        if (
            isinstance(entry, Entry)
            and run is not None
            and run.started is not None
            and _changed_since(path, run.started)
        ):
            entry = replace(entry, trouble="changed since the run")
        yield entry


def _changed_since(path: Path, time: float) -> bool:
    try:
        return path.stat().st_mtime > time
    except OSError:
        return False


def script_entries(
    inventory: Inventory, origins: Origins, playbook: Path | None, nodes: frozenset[str]
) -> Iterator[Entry | Absent]:
    """What `render` would write for each node, with no secret in it: the values are taken out before, not after."""
    try:
        bare = _without_secrets(inventory)
        # Without a playbook there is still the script that starts any command as every rank.
        plan = (
            make_plan(load_playbook(playbook, checks=CHECKS), bare, Choice())
            if playbook
            else Plan(NO_PLAYBOOK, bare, ())
        )
        made = node_files(plan, origins)
    except FilesWrong as wrong:
        yield Absent("scripts", f"they cannot be rendered: {wrong}", "failed")
        return
    for one in made:
        if one.node.name not in nodes:
            continue
        for name, file in one.files.items():
            if name != RANK_PROGRAM:  # a part of this version of runbook, the same for all
                yield Entry(f"scripts/{one.node.name}/{name}", file.data.decode("utf-8", "replace"), node=one.node.name)


def _without_secrets(inventory: Inventory) -> Inventory:
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
