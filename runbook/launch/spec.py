"""What one launch script has to do, decided in full and with nothing of a shell in it. `script.py` writes it down."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

from runbook.model.inventory import EnvValue


class Word(str):
    """A word of the command that reaches the program as it is, whatever it begins with."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ScriptProcess:
    """One process that the script starts: a rank, or a launcher that starts the ranks itself."""

    local_rank: int
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Guards:
    """What the script looks at before it starts anything, in the words of the inventory.

    `python` is asked first, to resolve and to bind; the job need not use it. `port` is None where rank 0 runs elsewhere.
    """

    python: str
    address: str
    port: int | None
    several_nodes: bool

    @property
    def by_name(self) -> bool:
        """Whether the address is a name, which has to be resolved."""
        return self._ip is None

    @property
    def astray(self) -> bool:
        """Whether the address is a loopback IP, and several nodes have to meet there."""
        return self.several_nodes and self._ip is not None and self._ip.is_loopback

    @property
    def _ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        try:
            return ipaddress.ip_address(self.address)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class ScriptSpec:
    """A script `NAME.sh`, `.bat` or `.ps1` for one node.

    `command` is the program and its arguments; a word that starts with `./` is a file beside the script, one that
    starts with `~/` lies in the home folder, unless it is a `Word`. None: the words after the script's own name are the command.
    `unset` names variables, `unset_prefixes` beginnings of names, that must not be inherited.
    `workdir` is where the command runs; None is beside the script. Without `guards` the program looks for itself.
    `ranks` is how many ranks of the job run here, which are not always as many processes of the script.
    """

    node: str
    name: str
    made_from: tuple[str, ...]
    world_size: int
    environment: Mapping[str, EnvValue]
    processes: tuple[ScriptProcess, ...]
    command: tuple[str, ...] | None
    activate: str | None = None
    workdir: str | None = None
    unset: tuple[str, ...] = ()
    unset_prefixes: tuple[str, ...] = ()
    guards: Guards | None = None
    ranks: int = 1
