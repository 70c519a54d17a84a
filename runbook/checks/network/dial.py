"""One connection that was tried, and many of them in few words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

UNMEASURED = "unmeasured"

OPENED_AT_ONCE = {
    "outcome": "open",
    "errno": None,
    "seconds": 0.0,
    "tries": 1,
    "retransmitted": 0,
    "local": None,
    "remote": None,
}
"""What a node does not say of each dial that opened at the first try and lost nothing."""


@dataclass(frozen=True, slots=True)
class Dial:
    """One connection that was tried. `outcome`: open, dropped, refused, rejected, reset, stranger, silent, lost, unsent,
    unresolvable or unmeasured (one of the ends had no CPU for it); `kind` is what the port is for: rendezvous, range,
    ephemeral, ssh or full. `local` and `remote` are both ends' addresses as numbers, as far as it got: a name may mean
    something else here, or nothing."""

    source: str
    destination: str
    address: str
    port: int
    kind: str
    mode: str
    outcome: str
    errno: str | None
    seconds: float
    tries: int = 1
    retransmitted: int | None = None
    local: str | None = None
    remote: str | None = None

    @property
    def says(self) -> str:
        """What became of it, in words."""
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

    def __str__(self) -> str:
        return f"{self.source} → {self.address}:{self.port}: {self.says}"


def seen_of(dials: Sequence[Dial]) -> list[str]:
    """What was seen, a line for each pair and outcome."""
    lines: dict[tuple[str, str, str], list[Dial]] = defaultdict(list)
    for dial in dials:
        lines[dial.source, dial.address, dial.outcome].append(dial)
    return [f"{source} → {where}, {ports_text(some)}: {some[0].says}" for (source, where, _), some in lines.items()]


def ports_text(dials: Iterable[Dial]) -> str:
    """`TCP 29500-29510, 41927`."""
    return f"TCP {folded(dials)}"


def folded(dials: Iterable[Dial]) -> str:
    """Ports with their runs folded: `29500-29510, 41927`."""
    runs: list[list[int]] = []
    for port in sorted({dial.port for dial in dials}):
        if runs and port == runs[-1][-1] + 1:
            runs[-1].append(port)
        else:
            runs.append([port])
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ", ".join(shown[:6]) + (f" and {len(shown) - 6} more" if len(shown) > 6 else "")
