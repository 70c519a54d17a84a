"""Knows the environment variables that NCCL, PyTorch, gloo, JAX, CUDA and the launchers read: one JSON file a reader.

Each entry says how the value is read (`kind`), which values it may have, since when and until when the name is read,
and what to write in its place. It is the project's own table: names and dates from the official guides and the released
sources, behaviour as `NCCL's ncclLoadParam`, `PyTorch's getCvarBool` and JAX's `bool_env` have it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable.

    `kind` is how the value is read: integer | number | switch (0 or 1, and no words) | boolean (words too) | choice |
    set | level (how far apart two devices may be) | per-function (NCCL_ALGO) | interfaces and adapters (NCCL's
    selections) | names (gloo's list) | settings (`key:value,key:value`: the keys are `choices`, and those of
    `true_or_false` take `True` or `False`) | path | text. `choices` may be written in any case unless `exact_case`;
    with `open_choice` there are others. `mistaken` is what people write instead. `range` bounds a number in `unit`.
    `removed` is the first release that does not read the name, `last` the last one that does; `never`: none ever did.
    `use` is what to write in its place. `leftover` are the values for debugging, and `costs` is their price.
    `turns_off` is the fast path that the variable switches off. `internal`: NCCL's guide does not have the variable.
    """

    name: str
    reader: str
    source: str
    kind: str = "text"
    choices: tuple[str, ...] = ()
    hidden_choices: tuple[str, ...] = ()
    true_or_false: tuple[str, ...] = ()
    mistaken: Mapping[str, str] = field(default_factory=dict)
    exact_case: bool = False
    open_choice: bool = False
    separator: str = ","
    range: tuple[float | None, float | None] = (None, None)
    unit: str | None = None
    since: str | None = None
    deprecated: str | None = None
    removed: str | None = None
    last: str | None = None
    never: bool = False
    use: str | None = None
    set_by_runbook: bool = False
    leftover: tuple[str, ...] = ()
    costs: str | None = None
    turns_off: str | None = None
    internal: bool = False

    @property
    def lowest(self) -> float | None:
        return self.range[0]

    @property
    def highest(self) -> float | None:
        return self.range[1]


@cache
def known_variables() -> Mapping[str, Variable]:
    """Every variable by its name."""
    folder = resources.files("runbook.lint").joinpath("variables")
    found: dict[str, Variable] = {}
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".json"):
            data = json.loads(file.read_text(encoding="utf-8"))
            for name, entry in data["variables"].items():
                if name in found:
                    raise ValueError(f"{file.name}: `{name}` is in another file already")
                found[name] = _make_variable(name, entry, data)
    return MappingProxyType(found)


def _make_variable(name: str, entry: Mapping[str, Any], file: Mapping[str, Any]) -> Variable:
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    return Variable(**{**given, "name": name, "reader": file["reader"], "source": _source_url(name, entry, file)})


def _source_url(name: str, entry: Mapping[str, Any], file: Mapping[str, Any]) -> str:
    """The URL where to read about a variable; NCCL's guide has an anchor for each documented variable."""
    if "source" in entry:
        own: str = entry["source"]
        return own if own.startswith("https://") else f"{file['source_root']}{own}"
    source: str = file["internal_source"] if entry.get("internal") else file["source"]
    anchored = file["reader"] == "NCCL" and not entry.get("internal") and not entry.get("never")
    return f"{source}#{name.lower().replace('_', '-')}" if anchored else source
