"""Words that were meant to be replaced, by a person or by a program."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runbook.lint.rules.written import faulty
from runbook.lint.scalars import scalars
from runbook.lint.subject import InventoryFile
from runbook.model.errors import Problem

_WORD = re.compile(
    r"<[^<>]+>|\bchange[-_ ]?me\b|\byour[-_]?(?:user|name|login|host|ip|key|server|node|address)\w*|\bTODO\b|\bFIXME\b"
    r"|\breplace[-_ ]?me\b|\bx{1,3}(?:\.x{1,3}){3}\b|/path/to/|^(?:host|node|server|master)[-_]ip$",
    re.IGNORECASE,
)
_HINTS = ("<", "change", "your", "todo", "fixme", "replace", "x.x", "/path/to/", "-ip", "_ip")
_KEYS = (("address",), ("ssh", "host"), ("ssh", "user"), ("ssh", "key"), ("python",), ("workdir",))


def placeholder(file: InventoryFile) -> Iterator[Problem]:
    whole = file.document.text.lower()
    if not any(hint in whole for hint in _HINTS):
        return
    for key in _KEYS:
        for span, _, text, found in faulty(file, key, lambda text, _: _WORD.search(text)):
            where = "" if found.group() == text else f" in `{text}`"
            message = f"`{found.group()}`{where} looks like a word to be replaced"
            yield Problem("inventory.placeholder", message, span, "put in your own")


def template_in_inventory(file: InventoryFile) -> Iterator[Problem]:
    """A node's `vars` may well hold one for somebody else; addresses with one are refused by the loader; a launch fills them in."""
    if "{{" not in file.document.text:
        return
    for keys, value in scalars(file.document):
        if (
            keys[0] != "launch"
            and isinstance(value, str)
            and "{{" in value
            and "}}" in value
            and "vars" not in keys
            and keys not in file.wrong
        ):
            message = "inventories have no templates: the `{{ }}` stays as it is"
            help = "write it out; playbooks fill theirs from `vars`"
            yield Problem("inventory.template", message, file.document.span(*keys), help)
