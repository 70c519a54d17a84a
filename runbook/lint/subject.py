"""What a rule looks at: one file, read as far as it can be read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from runbook.load.document import Document, Keys
from runbook.load.origins import Origins
from runbook.load.schema import schema
from runbook.model.inventory import Inventory
from runbook.model.playbook import Playbook


@dataclass(frozen=True, slots=True, eq=False)
class InventoryFile:
    """An inventory. Values that loading found wrong are left out of it; `wrong` is where they stood."""

    document: Document
    inventory: Inventory
    origins: Origins
    wrong: frozenset[Keys] = frozenset()

    def sound(self, *names: str) -> bool:
        """Whether no value of these keys was found wrong anywhere in the file: `sound("gpus", "backend")`.

        A rule asks before it judges: the default that took a wrong value's place is nothing the user wrote. With a
        whole block its keys are lost, and a key that nobody knows may be any key misspelt.
        """
        return not any(_spoils(keys, names) for keys in self.wrong)

    @property
    def names_known(self) -> bool:
        """Whether no node and no group, or its members, was left out."""
        return not any(
            len(keys) < 2
            or (len(keys) == 2 and keys[0] in ("nodes", "groups"))
            or (keys[0] == "groups" and keys[2] == "nodes")
            for keys in self.wrong
        )

    @property
    def facts_known(self) -> bool:
        """Whether what templates see of the cluster (ranks, GPUs, backend, master) is what the user wrote."""
        return self.names_known and self.sound(
            "gpus", "processes", "shell", "backend", "infiniband", "master", "order", "vars"
        )


@dataclass(frozen=True, slots=True, eq=False)
class PlaybookFile:
    """A playbook, and the inventory that it names (None where it names none, or that cannot be read at all)."""

    document: Document
    playbook: Playbook
    inventory: InventoryFile | None
    wrong: frozenset[Keys] = frozenset()

    def sound(self, *names: str) -> bool:
        """Whether no value of these keys of the top level was found wrong, nor a key that may be one misspelt."""
        known = schema("playbook")["properties"]
        return not any(not keys or keys[0] in names or keys[0] not in known for keys in self.wrong)


def _spoils(keys: Keys, names: tuple[str, ...]) -> bool:
    if any(name in keys for name in names):
        return True
    words = [key for key in keys if isinstance(key, str)]
    free = "env" in words[:-1] or "vars" in words[:-1]  # any name may stand there
    return not free and (not words or words[-1] not in _single_values())


@cache
def _single_values() -> frozenset[str]:
    """Keys of an inventory that hold one value and no others."""
    root = schema("inventory")
    parts = [root, *root["$defs"].values()]
    found: set[str] = set()
    while parts:
        for name, part in parts.pop().get("properties", {}).items():
            parts.append(part)
            block = "properties" in part or "additionalProperties" in part
            if not block and part.get("$ref") in (None, "#/$defs/port", "#/$defs/duration"):
                found.add(name)
    return frozenset(found - {"nodes"})
