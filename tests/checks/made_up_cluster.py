"""A made-up world for judgements: nodes, an inventory, what `reach` learned, and a context that touches nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from runbook.checks.context import Context, Facts, Run
from runbook.checks.network.dial import Dial
from runbook.checks.ranks.pool import RankMember, RankPool
from runbook.firewall.collected_rules import Evidence
from runbook.model.errors import Unreachable
from runbook.model.inventory import Inventory, Network, Node, Rendezvous
from runbook.model.verdict import Outcome, Verdict
from runbook.transport.node_sessions import Site
from runbook.transport.remote_program import ProgramNotStarted, Remote

A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"
ADDRESSES = {"node-a": A, "node-b": B, "node-c": C, "node-d": "10.0.0.4"}


def node(name: str, **options: Any) -> Node:
    return Node(**{"name": name, "address": ADDRESSES.get(name, "10.0.0.99"), **options})


def cluster(*nodes: Node, backend: str = "gloo", port: int = 29500, **options: Any) -> Inventory:
    listed = nodes or (node("node-a"), node("node-b"))
    address = options.pop("address", listed[0].address)
    return Inventory("lab", listed, Rendezvous(listed[0].name, address, port, backend), **options)


def with_ports(inventory: Inventory, *ports: tuple[int, int]) -> Inventory:
    return replace(inventory, network=Network(inventory.network.interface, ports))


def interface(*addresses: str, mtu: int = 1500, state: str = "UP", flags: Sequence[str] = ()) -> Facts:
    return {"mtu": mtu, "state": state, "flags": list(flags), "addresses": list(addresses)}


LO = interface("127.0.0.1", "::1", mtu=65536, state="UNKNOWN", flags=["LOOPBACK", "UP"])


def machine(*addresses: str, **others: Facts) -> Facts:
    """The facts of a node with `lo`, `eth0` with these addresses, and any other interface."""
    return {
        "hostname": "host",
        "own_addresses": list(addresses),
        "interfaces": {"lo": LO, "eth0": interface(*addresses), **others},
        "limits": {},
        "shm": None,
        "port_range": "32768\t60999",
        "infiniband": False,
    }


def facts_of(inventory: Inventory) -> dict[str, Facts]:
    return {n.name: machine(n.address) for n in inventory.nodes}


STACK = (
    "Current thread 0x00007f0000000001 (most recent call first):\n"
    '  File "/t/torch/distributed/distributed_c10d.py", line 2501 in all_reduce\n'
    '  File "./rank.py", line 290 in time\n'
    '  File "./rank.py", line 449 in main\n'
)
"""What faulthandler writes of a rank in an AllReduce."""


class Nobody:
    """A session of a node that tells what its kernel and its ranks left for us, and runs nothing."""

    lost: Unreachable | None = None
    silence_s = 0.0

    def __init__(self, name: str, pool: RankPool | None = None) -> None:
        self.name, self.pool = name, pool
        self.hello = {"machine": f"boot-{name}"}
        self.files: dict[str, str] = {}
        self.kernel: dict[str, Any] = {}

    def call(self, program: str, arguments: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        if program != "rank_processes" or self.pool is None:
            raise TimeoutError(f"nobody runs {program} here within {timeout_s} s")
        remotes = {rank: cast(FakeRemote, self.pool.members[int(rank)].remote) for rank in arguments["leaders"]}
        ranks = {
            rank: {"processes": one.processes(), "moved": one.moved, "queued": one.queued, "stack": None}
            for rank, one in remotes.items()
        }
        return {"ranks": ranks, "busy": [], "carried": 0, "kernel_kills": 0, "seconds": 0.5, **self.kernel}

    def read_file(self, path: str) -> bytes:
        if path.startswith("stack") and path not in self.files:
            return STACK.encode()
        if path not in self.files:
            raise ProgramNotStarted({"errno": "ENOENT", "text": "No such file or directory", "path": path})
        return self.files[path].encode()

    def program(self, name: str, *_: object, **__: object) -> Remote:
        raise TimeoutError(f"nobody runs {name} here")


def run_of(inventory: Inventory, facts: Mapping[str, Facts] | None = None, run_dir: Path = Path("/nowhere")) -> Run:
    site = SimpleNamespace(sessions={}, failures={}, run_id="run-1", forks=8, pod=lambda name: None)
    site.each = partial(Site.each, cast(Site, site))
    known = facts_of(inventory) if facts is None else dict(facts)
    return Run("run-1", run_dir, cast(Site, site), known)


def context(inventory: Inventory, facts: Mapping[str, Facts] | None = None, stage: str = "stage") -> Context:
    run = run_of(inventory, facts)
    return Context(run, inventory, stage, time.monotonic() + 60, lambda *_, **__: None)


def dial(source: str, destination: str, outcome: str, **options: Any) -> Dial:
    given = {
        "source": source,
        "destination": destination,
        "address": ADDRESSES[destination],
        "port": 29500,
        "kind": "rendezvous",
        "mode": "greet",
        "outcome": outcome,
        "errno": None,
        "seconds": 0.1,
    }
    return Dial(**{**given, **options})


def rules(*rules: str) -> dict[str, Any]:
    """What the node program `rules` says of a machine with these rules of iptables, `-A INPUT …`, and no others."""
    table = "\n".join(["*filter", ":INPUT ACCEPT [0:0]", ":OUTPUT ACCEPT [0:0]", *rules, "COMMIT"])
    missing = {"status": "missing"}
    saved = {"status": "ok", "rc": 0, "stdout": table, "stderr": "", "flavour": "legacy"}
    return {"tools": {"iptables-save": saved, "nft-json": missing}, "facts": {"nf_tables": False}}


def ruled(*lines: str) -> Evidence:
    return Evidence.of(rules(*lines))


class Ruled:
    """A session of a node of which nobody asks anything but its firewall rules."""

    def __init__(self, *lines: str) -> None:
        self.answer = SimpleNamespace(message=rules(*lines))

    def program(self, name: str, *_: object, **__: object) -> Any:
        assert name == "firewall_rules"
        return SimpleNamespace(wait=lambda seconds: self.answer)


class FakeRemote:
    """A rank's process as `halt` meets it: what the kernel says of it, and a signal that it takes."""

    def __init__(self, state: str = "S", pid: int = 4242, moved: int | None = 0, queued: int = 0) -> None:
        self.state, self.pid, self.moved, self.queued = state, pid, moved, queued
        self.stays = True  # it was in that state before as well
        self.told: list[dict[str, object]] = []
        self.signals: list[str] = []

    def processes(self) -> list[dict[str, object]]:
        told = {"pid": self.pid, "state": self.state, "stays": self.stays}
        return [{**told, "comm": "python", "wchan": "nfs_wait", "cpu": 0.0}]

    def signal(self, name: str) -> None:
        self.signals.append(name)

    def tell(self, message: dict[str, object]) -> None:
        self.told.append(message)


def pool_of(inventory: Inventory) -> RankPool:
    """Ranks that were started, joined and are at the same place of a sweep."""
    run = run_of(inventory)
    pool = RankPool(run, inventory, "full AllReduce")
    for one in inventory.nodes:
        cast(dict[str, Any], run.site.sessions)[one.name] = Nobody(one.name, pool)
    for member in pool.members:
        member.remote = cast(Remote, FakeRemote())
        member.step = "done"
        member.steps = {step: {"event": "step", "step": step} for step in ("started", "imported", "joined")}
        at(member, 1 << 20, 3)
    return pool


def at(member: RankMember, size: int, turn: int) -> None:
    """Put a rank to a place of the sweep, as its beat tells."""
    member.beat = {"event": "beat", "phase": "timing", "size": size, "turn": turn, "turns": 20}


def verdicts(outcomes: Sequence[Outcome]) -> dict[str, tuple[Verdict, tuple[str, ...]]]:
    return {outcome.node: (outcome.verdict, tuple(f.cause for f in outcome.findings)) for outcome in outcomes}
