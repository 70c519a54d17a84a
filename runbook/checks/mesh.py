"""Real listeners on every node and real dials between all of them: what `ping` and `firewall` stand on."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runbook.causes.netfilter import Evidence
from runbook.checks.context import Context, Facts, no_answer
from runbook.model.errors import Unreachable
from runbook.model.inventory import Node
from runbook.model.verdict import Outcome
from runbook.transport import ProgramNotStarted, Remote

DIAL_S = 2.2
"""Long enough for two SYNs: the kernel repeats the first after 1 s."""


@dataclass(frozen=True, slots=True)
class Dial:
    """One connection that was tried. `outcome`: open, dropped, refused, rejected, reset, stranger, silent, lost or
    unresolvable; `kind` is what the port is for: rendezvous, range, ephemeral, ssh or full."""

    source: str
    destination: str
    address: str
    port: int
    kind: str
    mode: str
    outcome: str
    errno: str | None
    seconds: float

    @property
    def says(self) -> str:
        """What became of it, in words."""
        return {
            "dropped": f"no answer within {self.seconds:.1f} s",
            "refused": "refused (RST)",
            "rejected": f"rejected ({self.errno})",
            "stranger": "something else than our listener answers",
            "silent": "opens, but nothing comes through it",
            "lost": "opens, but full-size packets do not arrive",
            "reset": "opens and is reset",
            "unresolvable": f"the name does not resolve ({self.errno})",
        }.get(self.outcome, self.outcome)

    def __str__(self) -> str:
        return f"{self.source} → {self.address}:{self.port}: {self.says}"


@dataclass(frozen=True, slots=True)
class Want:
    """A port to listen on: 0 for one that the kernel picks."""

    port: int
    kind: str


class Mesh:
    """Listeners up on all nodes of a stage for as long as the `with` block lasts."""

    def __init__(self, at: Context, wants: Callable[[Node], Sequence[Want]]) -> None:
        self._at = at
        self._wants = wants
        self._remotes: dict[str, Remote] = {}
        self.listening: dict[str, list[tuple[int, str]]] = {}  # by node: (port, kind)
        self.occupied: dict[str, list[Facts]] = {}  # by node: ports that could not be bound
        self.silent: dict[str, Outcome] = {}
        self.dials: list[Dial] = []

    def __enter__(self) -> Mesh:
        # Nodes that are one machine with one address share its ports: the first listens, dialling it proves both.
        taken: set[tuple[str, str, int]] = set()
        plans: dict[str, list[Want]] = {}
        for node in self._at.nodes:
            place = (self._at.machine(node.name), self._at.data_address(node))
            wants = [w for w in self._wants(node) if w.port == 0 or (*place, w.port) not in taken]
            taken |= {(*place, want.port) for want in wants}
            plans[node.name] = wants
        started = self._at.each(lambda node: self._start(node, plans[node.name]))
        for name, result in started.items():
            if isinstance(result, BaseException):
                self.silent[name] = no_answer(name, "mesh", result)
        return self

    def _start(self, node: Node, wants: Sequence[Want]) -> None:
        arguments = {
            "run_id": self._at.run.run_id,
            "address": self._at.data_address(node),
            "listen": [want.port for want in wants],
        }
        remote = self._at.session(node).program("mesh", arguments, timeout_s=self._at.left_s)
        self._remotes[node.name] = remote
        for message in remote.messages(10.0):
            bound = list(message["ports"])
            errors = {error["port"] for error in message["errors"]}
            kinds = [want.kind for want in wants if want.port not in errors]
            self.listening[node.name] = list(zip(bound, kinds, strict=True))
            self.occupied[node.name] = list(message["errors"])
            return
        raise remote.lost or TimeoutError(f"{node.name}: the listeners did not come up")

    def dial(
        self,
        modes: Sequence[str] = ("greet",),
        *,
        itself: bool = False,
        extra: Callable[[Node], Sequence[tuple[str, int, str]]] | None = None,
    ) -> None:
        """Every node dials every other one on all its ports; results are in `dials`.

        With `itself` every node also dials its own address, as rank 0 and the ranks of one node do; `extra(peer)` adds (address, port, kind) that are dialled as well and where any answer at all is welcome.
        """
        up = [node for node in self._at.nodes if node.name in self.listening]

        def targets(source: Node) -> list[dict[str, Any]]:
            wanted: list[dict[str, Any]] = []
            for peer in up:
                if peer.name == source.name and not itself:
                    continue
                for port, kind in self.listening[peer.name]:
                    address = self._address(peer, kind)
                    wanted += [
                        {"peer": peer.name, "address": address, "port": port, "kind": kind, "mode": mode}
                        for mode in modes
                    ]
                for address, port, kind in extra(peer) if extra else ():
                    wanted.append({"peer": peer.name, "address": address, "port": port, "kind": kind, "mode": "greet"})
            return wanted

        def one(source: Node) -> None:
            remote = self._remotes[source.name]
            remote.tell({"dial": targets(source), "timeout_s": DIAL_S})
            for message in remote.messages(self._at.left_s):
                for found in message["results"]:
                    self.dials.append(
                        Dial(
                            source.name,
                            found["peer"],
                            found["address"],
                            found["port"],
                            found["kind"],
                            found["mode"],
                            found["outcome"],
                            found["errno"],
                            found["seconds"],
                        )
                    )
                return
            raise remote.lost or TimeoutError(f"{source.name}: the dials were not finished in time")

        for name, result in self._at.each(one, up).items():
            if isinstance(result, BaseException):
                self.silent[name] = no_answer(name, "mesh", result)

    def _address(self, peer: Node, kind: str) -> str:
        rendezvous = self._at.inventory.rendezvous
        if kind == "rendezvous" and peer.name == rendezvous.master and len(self._at.nodes) > 1:
            return rendezvous.address
        return self._at.data_address(peer)

    def __exit__(self, *_: object) -> None:
        for remote in self._remotes.values():
            try:
                remote.feed(b"", end=True)
            except (Unreachable, ProgramNotStarted):
                continue
        deadline = time.monotonic() + 1.0
        for remote in self._remotes.values():
            remote.over.wait(max(0.0, deadline - time.monotonic()))


def rules_of(at: Context, names: Sequence[str], peers: Mapping[str, Sequence[str]]) -> dict[str, Evidence | None]:
    """The firewall rules of these nodes, asked in parallel; None for a node that could not be asked."""
    evidence: dict[str, Evidence | None] = dict.fromkeys(names)

    def one(name: str) -> Evidence | None:
        session = at.run.site.sessions[name]
        answer = session.program("rules", {"peers": list(peers.get(name, ()))}, timeout_s=8.0).wait(10.0)
        return Evidence.of(answer.message) if answer.message else None

    with concurrent.futures.ThreadPoolExecutor(max(1, min(32, len(names)))) as pool:
        futures = {name: pool.submit(one, name) for name in names if name in at.run.site.sessions}
        for name, future in futures.items():
            try:
                evidence[name] = future.result(timeout=12.0)
            except (Unreachable, ProgramNotStarted, ValueError, TimeoutError, concurrent.futures.TimeoutError):
                evidence[name] = None
    return evidence
