"""Rules about environment variables, each judged by itself at the place where it is written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from runbook.files.yaml_document import Document, KeyPath
from runbook.lint.rule_inputs import InventoryFile, PlaybookFile
from runbook.lint.rules.environment_names import VariableFault, name_faults
from runbook.lint.rules.environment_values import value_faults
from runbook.lint.variables import known_variables
from runbook.model.errors import Problem


class WrittenVariable(NamedTuple):
    """One variable at one place. `text` is None where the value is a secret, a template, or wrong already."""

    name: str
    text: str | None
    block: KeyPath  # the keys of the `env` that it stands in

    @property
    def keys(self) -> KeyPath:
        return (*self.block, self.name)


def inventory_variables(document: Document) -> Iterator[WrittenVariable]:
    """The environment variables of an inventory, at every level."""
    data = document.mapping
    yield from variables_for_all_nodes(document)
    for group, settings in _mapping_or_empty(data.get("groups")).items():
        defaults = _mapping_or_empty(_mapping_or_empty(settings).get("defaults"))
        yield from _block_variables(document, defaults.get("env"), ("groups", group, "defaults", "env"))
    for node, settings in _mapping_or_empty(data.get("nodes")).items():
        if isinstance(settings, dict) and "env" in settings:
            yield from _block_variables(document, settings["env"], ("nodes", node, "env"))


def variables_for_all_nodes(document: Document) -> Iterator[WrittenVariable]:
    """The variables of the two levels of an inventory that hold for every node: its `env`, and that of `defaults`."""
    yield from _block_variables(document, document.mapping.get("env"), ("env",))
    yield from _block_variables(
        document, _mapping_or_empty(document.mapping.get("defaults")).get("env"), ("defaults", "env")
    )


def playbook_variables(document: Document) -> Iterator[WrittenVariable]:
    """The environment variables of the launches of a playbook."""
    stages = document.mapping.get("stages")
    for index, stage in enumerate(stages if isinstance(stages, list) else ()):
        launch = _mapping_or_empty(_mapping_or_empty(stage).get("launch"))
        yield from _block_variables(document, launch.get("env"), ("stages", index, "launch", "env"))


def _block_variables(document: Document, block: Any, keys: KeyPath) -> Iterator[WrittenVariable]:
    if isinstance(block, dict):
        texts = document.texts
        for name, value in block.items():
            if isinstance(value, str):
                yield WrittenVariable(name, None if "{{" in value or "{%" in value else value, keys)
            else:
                plain = isinstance(value, (bool, int, float))
                yield WrittenVariable(name, texts.get((*keys, name)) if plain else None, keys)


def _mapping_or_empty(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


_MAX_SUGGESTIONS = 50  # a file with more unknown names than this has another trouble than their spelling


def written_in_inventory(file: InventoryFile) -> Iterator[Problem]:
    settings = list(inventory_variables(file.document))
    if all(node.windows for node in file.inventory.nodes):  # on Windows `nccl_debug` and `NCCL_DEBUG` are one
        settings = [setting for setting in settings if setting.name.upper() == setting.name]
    yield from _name_and_value_problems(file.document, settings, file.wrong)
    yield from _empty_value_problems(file, settings)


def written_in_playbook(file: PlaybookFile) -> Iterator[Problem]:
    yield from _name_and_value_problems(file.document, playbook_variables(file.document), file.wrong)


def problem_at(document: Document, fault: VariableFault, keys: KeyPath) -> Problem:
    span = document.key_span(*keys) if fault.of_name else document.span(*keys)
    return Problem(f"env.{fault.id}", fault.message, span, fault.help)


def _name_and_value_problems(
    document: Document, settings: Iterable[WrittenVariable], wrong: Collection[KeyPath]
) -> Iterator[Problem]:
    """The problems with names and values; each is judged once, however often it is written."""
    of_names: dict[str, tuple[VariableFault, ...]] = {}
    of_values: dict[tuple[str, str], tuple[VariableFault, ...]] = {}
    unknown = 0
    for setting in settings:
        name, text = setting.name, setting.text
        faults = of_names.get(name)
        if faults is None:
            unknown += name not in known_variables()
            faults = of_names[name] = tuple(name_faults(name, suggest=unknown <= _MAX_SUGGESTIONS))
        if text is not None:
            about_value = of_values.get((name, text))
            if about_value is None:
                about_value = of_values[name, text] = tuple(value_faults(name, text))
            faults = faults + about_value if about_value else faults
        for fault in faults:
            if fault.of_name or setting.keys not in wrong:
                yield problem_at(document, fault, setting.keys)


def _empty_value_problems(file: InventoryFile, settings: Iterable[WrittenVariable]) -> Iterator[Problem]:
    """Reports empty values that do nothing. An empty value takes away the value of a weaker level; if no level gives
    one, something was forgotten."""
    network, infiniband = file.inventory.network, file.inventory.infiniband
    given = {setting.name for setting in settings if setting.text != ""}
    given |= {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} if network.interface else set()
    given |= {"NCCL_IB_HCA"} if infiniband is not None and infiniband.hca else set()
    for setting in settings:
        variable = known_variables().get(setting.name)
        if setting.text != "" or variable is None or setting.name in given or variable.reader not in ("NCCL", "gloo"):
            continue
        if variable.never or any(fault.id == "bad-choice" for fault in value_faults(setting.name, "")):
            continue
        message = f"`{setting.name}` is empty, which is the same as not set"
        yield problem_at(
            file.document, VariableFault("empty-value", message, "write its value, or leave it out"), setting.keys
        )


INVENTORY_RULES = (written_in_inventory,)

PLAYBOOK_RULES = (written_in_playbook,)
