"""Lists the rules, by what they judge. A rule is a function that yields a `Problem` for everything it finds; it never
raises, whatever stands in a file. The rule's module lists it in a table at its end, and the module's page (`access.md`
beside `access.py`) has a section for each id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from runbook.files.yaml_document import Document
from runbook.lint.rule_inputs import InventoryFile, PlaybookFile
from runbook.lint.rules import (
    access,
    across_files,
    environment,
    environment_ranks,
    gpus,
    network,
    node_values,
    playbooks,
    security,
    yaml_values,
)
from runbook.model.errors import Problem

DOCUMENT_RULES: tuple[Callable[[Document], Iterable[Problem]], ...] = (
    *security.DOCUMENT_RULES,
    *yaml_values.DOCUMENT_RULES,
)
"""Rules that judge any YAML file."""

INVENTORY_RULES: tuple[Callable[[InventoryFile], Iterable[Problem]], ...] = (
    *access.INVENTORY_RULES,
    *environment.INVENTORY_RULES,
    *environment_ranks.INVENTORY_RULES,
    *gpus.INVENTORY_RULES,
    *network.INVENTORY_RULES,
    *node_values.INVENTORY_RULES,
)

PLAYBOOK_RULES: tuple[Callable[[PlaybookFile], Iterable[Problem]], ...] = (
    *environment.PLAYBOOK_RULES,
    *environment_ranks.PLAYBOOK_RULES,
    *playbooks.PLAYBOOK_RULES,
)

TOGETHER_RULES: tuple[Callable[[Sequence[InventoryFile], Sequence[PlaybookFile]], Iterable[Problem]], ...] = (
    *across_files.TOGETHER_RULES,
)
"""Rules that judge all files of one lint together, such as what two files say of one machine."""
