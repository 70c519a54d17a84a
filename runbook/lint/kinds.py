"""Whether a file is an inventory, a playbook, or none of ours: told from its data, else from its text and its folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Literal

from runbook.load.didyoumean import nearest
from runbook.load.document import Document
from runbook.load.schema import schema
from runbook.load.shape import INVENTORY, PLAYBOOK, shape_of

Kind = Literal["inventory", "playbook"]

_MODELINE = re.compile(
    r"^[ \t]*#[ \t]*yaml-language-server:[ \t]*\$schema=\S*(inventory|playbook)\.schema\.json", re.MULTILINE
)
_FOLDERS: Mapping[str, Kind] = {"inventories": "inventory", "playbooks": "playbook"}
_SYNONYMS: Mapping[str, Kind] = {
    "node": "inventory",
    "hosts": "inventory",
    "host": "inventory",
    "stage": "playbook",
    "steps": "playbook",
    "checks": "playbook",
}
"""What people write in the place of `nodes` and `stages`."""


def kind_of(document: Document, *, named: bool) -> Kind | None:
    """`named`: the user gave this very file, so it is meant to be one of ours if anything in it looks so."""
    marked = _MODELINE.search(document.text)
    if marked:
        return "playbook" if marked[1] == "playbook" else "inventory"
    folder = next((_FOLDERS[part] for part in reversed(PurePath(document.path).parts[:-1]) if part in _FOLDERS), None)
    kind = _of_data(document.data, sure=named or folder is not None) if document.data is not None else None
    if document.data is None:
        kind = _of_text(document.text)
    return kind or folder


def _of_data(data: object, *, sure: bool) -> Kind | None:
    if isinstance(data, list):
        return "playbook" if any(_is_stage(item) for item in data) else None
    if not isinstance(data, dict):
        return None
    if not sure and shape_of(data) not in (None, INVENTORY, PLAYBOOK):
        return None  # Ansible's, among ours
    stages, nodes = data.get("stages"), data.get("nodes")
    if isinstance(stages, list) and any(_is_stage(item) for item in stages):
        return "playbook"
    if isinstance(nodes, dict) and "stages" not in data:
        return "inventory"
    if not sure and not _mostly_ours(data):
        return None
    if "stages" in data:
        return "playbook"
    kinds: list[Kind] = [kind for key in data if (kind := _kind_of_key(key)) is not None]
    if not kinds and isinstance(nodes, list | dict):
        return "inventory"
    return max(kinds, key=kinds.count, default=None)


def _is_stage(item: object) -> bool:
    return isinstance(item, dict) and not item.keys().isdisjoint(("check", "shell", "launch"))


def _mostly_ours(data: Mapping[str, Any]) -> bool:
    """Whether at least half of the keys are ours or nearly so: GitLab has `stages` as well, and kind has `nodes`."""
    known = _keys("inventory") | _keys("playbook")
    return 2 * sum(key in known or _kind_of_key(key) is not None for key in data) >= len(data)


def _kind_of_key(key: str) -> Kind | None:
    """The kind that has such a key while the other has not; a key that is nearly `nodes` or `stages` counts as it."""
    inventory, playbook = _keys("inventory"), _keys("playbook")
    if key in inventory ^ playbook:
        return "inventory" if key in inventory else "playbook"
    if key in inventory:
        return None
    near = nearest(key, ("nodes", "stages", "rendezvous"))
    return _SYNONYMS.get(key) or (None if near is None else "playbook" if near == "stages" else "inventory")


def _keys(kind: Kind) -> set[str]:
    return set(schema(kind)["properties"])


def _of_text(text: str) -> Kind | None:
    """Of a file that is not YAML: by the first of the main keys at the left margin."""
    found = re.search(r"^(stages|nodes)[ \t]*:", text, re.MULTILINE)
    return None if found is None else "playbook" if found[1] == "stages" else "inventory"
