"""Where variables are written: `env` of the inventory, of defaults, groups, nodes, and of a playbook's launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from runbook.load.document import Document, Keys


class WrittenVariable(NamedTuple):
    """One variable at one place. `text` is None where the value is a secret, a template, or wrong already."""

    name: str
    text: str | None
    block: Keys  # the way to the `env` that it stands in

    @property
    def keys(self) -> Keys:
        return (*self.block, self.name)


def of_inventory(document: Document) -> Iterator[WrittenVariable]:
    data = _mapping(document.data)
    yield from for_all_nodes(document)
    for group, settings in _mapping(data.get("groups")).items():
        defaults = _mapping(_mapping(settings).get("defaults"))
        yield from _of_block(document, defaults.get("env"), ("groups", group, "defaults", "env"))
    for node, settings in _mapping(data.get("nodes")).items():
        if isinstance(settings, dict) and "env" in settings:
            yield from _of_block(document, settings["env"], ("nodes", node, "env"))


def for_all_nodes(document: Document) -> Iterator[WrittenVariable]:
    """The levels of an inventory that no node can be left out of."""
    data = _mapping(document.data)
    yield from _of_block(document, data.get("env"), ("env",))
    yield from _of_block(document, _mapping(data.get("defaults")).get("env"), ("defaults", "env"))


def of_playbook(document: Document) -> Iterator[WrittenVariable]:
    stages = _mapping(document.data).get("stages")
    for index, stage in enumerate(stages if isinstance(stages, list) else ()):
        launch = _mapping(_mapping(stage).get("launch"))
        yield from _of_block(document, launch.get("env"), ("stages", index, "launch", "env"))


def _of_block(document: Document, block: Any, keys: Keys) -> Iterator[WrittenVariable]:
    if isinstance(block, dict):
        texts = document.texts
        for name, value in block.items():
            if isinstance(value, str):
                yield WrittenVariable(name, None if "{{" in value or "{%" in value else value, keys)
            else:
                plain = isinstance(value, (bool, int, float))
                yield WrittenVariable(name, texts.get((*keys, name)) if plain else None, keys)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
