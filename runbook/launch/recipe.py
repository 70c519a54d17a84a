"""What one launch script has to do, decided in full and with nothing of a shell in it. `script.py` writes it down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from runbook.model.inventory import EnvValue


@dataclass(frozen=True, slots=True)
class Process:
    """One process that the script starts: a rank, or a launcher that starts the ranks itself."""

    local_rank: int
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Guards:
    """What the script looks at before it starts anything, in the words of the inventory.

    `python` is asked to resolve and to bind: no shell can. `port` is None where rank 0 runs elsewhere.
    """

    python: str
    address: str
    port: int | None
    several_nodes: bool


@dataclass(frozen=True, slots=True)
class Recipe:
    """A script `NAME.sh`, `.bat` or `.ps1` for one node.

    `command` is the program and its arguments; a word that starts with `./` is a file beside the script, one that
    starts with `~/` lies in the home folder. None: the words after the script's own name are the command.
    `unset` names variables, `unset_prefixes` beginnings of names, that must not be inherited.
    `workdir` is where the command runs; None is beside the script. Without `guards` the program looks for itself.
    """

    node: str
    name: str
    made_from: tuple[str, ...]
    world_size: int
    environment: Mapping[str, EnvValue]
    processes: tuple[Process, ...]
    command: tuple[str, ...] | None
    activate: str | None = None
    workdir: str | None = None
    unset: tuple[str, ...] = ()
    unset_prefixes: tuple[str, ...] = ()
    guards: Guards | None = None
