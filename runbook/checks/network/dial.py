"""One connection that was tried (a dial), many of them in few words, and the ports and addresses that they are
about."""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from runbook.checks.context import Context
from runbook.files.address import is_ip, preferred_address
from runbook.firewall.evaluate import DEFAULT_EPHEMERAL_PORTS
from runbook.model.grouping import values_by_key
from runbook.model.inventory import Inventory
from runbook.model.units import first_items_text, range_texts

PortRanges = Sequence[tuple[int, int]]
"""Ranges of ports, both ends included."""

ANY_PORT: PortRanges = ((1, 65535),)
UNMEASURED = "unmeasured"
"""The outcome of a dial that was not tried yet, or that proves nothing because an end had no CPU."""

UNRESOLVED_ADDRESS = "0.0.0.0"
"""Stands for the address of a name that does not resolve."""

NAME_LOOKUP_TIMEOUT_S = 3.0
"""Seconds for looking up all names of an inventory together."""

MAX_CONCURRENT_LOOKUPS = 32
"""How many names are looked up at a time."""

OPENED_FIRST_TRY = {
    "outcome": "open",
    "errno": None,
    "seconds": 0.0,
    "tries": 1,
    "retransmitted": 0,
    "local": None,
    "remote": None,
}
"""The result of a dial that opened at the first try and lost nothing: a node leaves such results out of its answer."""


@dataclass(frozen=True, slots=True)
class Dial:
    """One connection that was tried, or is to be tried.

    `outcome`: open, dropped, refused, rejected, reset, stranger, silent, lost, unsent, unresolvable or unmeasured (one
    of the ends had no CPU for it). `kind`, the purpose of the port: rendezvous, range, ephemeral, ssh or full. `local`
    and `remote`: the numeric addresses of both ends, as far as the dial got: a name may mean something else on this
    machine, or nothing. `from_ports`: the dialler's own port of each try.
    """

    source: str
    destination: str
    address: str
    port: int
    kind: str
    mode: str
    outcome: str = UNMEASURED
    errno: str | None = None
    seconds: float = 0.0
    tries: int = 1
    retransmitted: int | None = None
    local: str | None = None
    from_ports: Sequence[int] = ()
    remote: str | None = None

    @property
    def says(self) -> str:
        """The outcome in words."""
        return {
            "dropped": f"no answer within {self.seconds:.1f} s ({self.tries} tries)",
            "refused": "refused (RST)",
            "rejected": f"rejected ({self.errno})",
            "stranger": "something else than our listener answers",
            "silent": "opens, but nothing comes through it",
            "lost": "opens, but full-size packets do not arrive",
            "reset": "opens and is reset",
            "unsent": "no port is left to dial from",
            UNMEASURED: "not measured: one of the ends had no CPU for it",
            "unresolvable": f"the name does not resolve ({self.errno})",
        }.get(self.outcome, self.outcome)

    @property
    def untried(self) -> Dial:
        """The same dial as it was before it was tried."""
        return Dial(self.source, self.destination, self.address, self.port, self.kind, self.mode)

    @property
    def flow(self) -> tuple[str, int, str, int]:
        """The parts by which network devices tell the connection from others: both ends, with the dialler's own port of
        the first try where it is known, else 0."""
        return self.source, self.from_ports[0] if self.from_ports else 0, self.address, self.port

    def __str__(self) -> str:
        return f"{self.source} → {self.address}:{self.port}: {self.says}"


def dial_summary_lines(dials: Sequence[Dial]) -> list[str]:
    """What was seen, in one line for each source, address and outcome."""
    lines = values_by_key(((dial.source, dial.address, dial.outcome), dial) for dial in dials)
    return [f"{source} → {where}, {ports_text(some)}: {some[0].says}" for (source, where, _), some in lines.items()]


def ports_text(dials: Iterable[Dial]) -> str:
    """The ports of these dials in words: `TCP 29500-29510, 41927`."""
    return f"TCP {folded_ports(dials)}"


def folded_ports(dials: Iterable[Dial]) -> str:
    """The ports of these dials, with consecutive ones as a range: `29500-29510, 41927`."""
    return first_items_text(range_texts(sorted({dial.port for dial in dials})))


def needed_ports(inventory: Inventory, dials: Iterable[Dial], handed_out: PortRanges = ()) -> list[tuple[int, int]]:
    """The ports that one command should open for these dials: the rendezvous port, the promised ranges, and the
    ephemeral ports if any are blocked. `handed_out`: the ephemeral ranges of the kernels that are dialled."""
    dials = list(dials)
    kinds = {dial.kind for dial in dials}
    ports: list[tuple[int, int]] = []
    if "rendezvous" in kinds:
        ports.append((inventory.rendezvous.port, inventory.rendezvous.port))
    if "range" in kinds:
        ports.extend(inventory.network.ports)
    if "ephemeral" in kinds:
        ports.append(ephemeral_range(dials, handed_out))
    return sorted(set(ports))


def ephemeral_range(dials: list[Dial], handed_out: PortRanges = ()) -> tuple[int, int]:
    """The lowest and highest ephemeral port: of the kernels' ranges, or of Linux's default range where none is known,
    widened by the ephemeral ports that were dialled."""
    seen = [(dial.port, dial.port) for dial in dials if dial.kind == "ephemeral"]
    lows, highs = zip(*(handed_out or (DEFAULT_EPHEMERAL_PORTS,)), *seen, strict=True)
    return min(lows), max(highs)


def ephemeral_ports_reason(dials: Iterable[Dial], remedy: str, handed_out: PortRanges = ()) -> tuple[str, ...]:
    """A line that says why a remedy opens the ports that the kernel hands out, when it does."""
    dials = list(dials)
    if not any(dial.kind == "ephemeral" for dial in dials):
        return ()
    low, high = ephemeral_range(dials, handed_out)
    if not re.search(rf"\b{low}[-:]{high}\b", remedy):
        return ()
    return (f"why: {low}-{high} are the ports that the kernel picks, on which the ranks exchange their data",)


def numeric_node_address(at: Context, name: str) -> str:
    """The numeric address at which a node is dialled. Where the inventory has a name, the nodes know better than this
    machine what it means: of several addresses it is one of the node's own."""
    written = at.data_address(at.inventory.node(name))
    found, own = numeric_address(at, written), at.own_addresses(name)
    if found == written or found in own or not own:
        return found
    return preferred_address(own)


def numeric_address(at: Context, address: str) -> str:
    """An address as a number. For a name, the address that it has on this machine, or UNRESOLVED_ADDRESS if it has
    none."""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        known = at.run.looked_up
        if address not in known:
            names = {address, *(node.address for node in at.nodes if not is_ip(node.address))}
            known.update(look_up_names(names - known.keys()))
        return known[address]


def look_up_names(names: Collection[str]) -> dict[str, str]:
    """The first address of each name, or UNRESOLVED_ADDRESS where there is none within NAME_LOOKUP_TIMEOUT_S:
    getaddrinfo itself has no deadline."""
    found, left = dict.fromkeys(names, UNRESOLVED_ADDRESS), list(names)

    def look() -> None:
        while left:
            with suppress(OSError, UnicodeError, IndexError):  # IndexError: another thread took the last one
                name = left.pop()
                found[name] = str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])

    threads = [threading.Thread(target=look, daemon=True) for _ in range(min(MAX_CONCURRENT_LOOKUPS, len(left)))]
    deadline = time.monotonic() + NAME_LOOKUP_TIMEOUT_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    left.clear()
    return dict(found)
