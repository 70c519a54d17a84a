"""The cluster as the user described it: nodes, rendezvous, network, InfiniBand."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from runbook.model.command_quoting import shell_word
from runbook.model.secrets import Secret

EnvValue = str | Secret

SHELLS = ("sh", "bat", "ps1")

NODE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}\Z")
"""The name of a node or of a group. Files are named after nodes, and a file's name has at most 255 bytes."""
NODE_NAME_HELP = "at most 200 letters, digits, `_`, `.` and `-`, with no `.` or `-` in front"

MAX_GPUS_PER_NODE = 1024
"""The most GPUs of one node; schemas/inventory.schema.json says the same to editors."""


@dataclass(frozen=True, slots=True)
class Ssh:
    """How to log in to a node. `~/.ssh/config` and ssh's own defaults decide fields that are None."""

    host: str | None = None
    user: str | None = None
    port: int | None = None
    key: str | None = None
    jump: str | None = None
    host_keys: str = "strict"  # strict | accept-new
    connect_timeout_s: float = 5.0

    @property
    def usual_port(self) -> int:
        """The port to dial, as long as `~/.ssh/config` names no other."""
        return self.port or 22


@dataclass(frozen=True, slots=True)
class Slurm:
    """`job` is the Slurm job whose nodes these are; None: the job that runbook itself was started in."""

    job: str | None = None


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """Which pod a node is: the pod named `pod`, else the pod that `selector` selects, else the pod with the node's
    name. kubectl chooses the other fields that are None."""

    pod: str | None = None
    selector: str | None = None
    namespace: str | None = None
    container: str | None = None
    context: str | None = None
    kubeconfig: str | None = None


CONTAINER_ENTRY_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "docker": ("docker", "exec", "--interactive", "{name}"),
    "podman": ("podman", "exec", "--interactive", "{name}"),
    "enroot": ("enroot", "start", "{name}"),
    "apptainer": ("apptainer", "exec", "instance://{name}"),
}
"""By runtime, the words before a command that make it run in a container."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container on the node, by the name that its runtime has for it. `runtime` is a key of
    CONTAINER_ENTRY_COMMANDS."""

    runtime: str
    name: str


@dataclass(frozen=True, slots=True)
class Node:
    """One machine, after its defaults, groups and variables have been applied.

    `gpus` are device indices; if it is empty, the node runs `processes` CPU ranks.
    """

    name: str
    address: str
    connection: str = "ssh"  # ssh | local | slurm | kubernetes | agent
    ssh: Ssh = field(default_factory=Ssh)
    slurm: Slurm = field(default_factory=Slurm)
    kubernetes: Kubernetes = field(default_factory=Kubernetes)
    container: Container | None = None
    inside: tuple[str, ...] = ()  # words before a command that lead into a container without a name; see `entry`
    python: str = "python3"
    shell: str = "sh"  # one of SHELLS
    activate: str | None = None
    workdir: str = "~/.runbook"
    gpus: tuple[int, ...] = ()
    processes: int = 1
    rack: str | None = None
    leaf: str | None = None  # the switch that it is connected to
    env: Mapping[str, EnvValue] = field(default_factory=dict)
    vars: Mapping[str, object] = field(default_factory=dict)
    groups: tuple[str, ...] = ()

    @property
    def interpreter(self) -> str:
        """The Python that programs run with: `python`, except that a plain `python3` on this machine is the Python
        that runs runbook, which has our extras.

        This exception does not hold with an `activate` line, which brings its own Python, or inside a container.
        """
        ours = self.connection == "local" and self.python == "python3" and self.activate is None
        return sys.executable if ours and not self.entry else self.python

    @property
    def entry(self) -> tuple[str, ...]:
        """The words before a command that make it run in the job's container; empty if the job uses no container."""
        if self.container is None:
            return self.inside
        return tuple(word.format(name=self.container.name) for word in CONTAINER_ENTRY_COMMANDS[self.container.runtime])

    @property
    def entry_typed(self) -> str:
        """The words of `entry` as they are typed before a command; empty if there are none."""
        return "".join(f"{shell_word(word)} " for word in self.entry)

    @property
    def outside(self) -> Node:
        """The machine that the container is on, as a node: without the container and without its `python`, `activate`
        and `workdir`."""
        return replace(self, container=None, inside=(), python="python3", activate=None, workdir="/tmp")

    @property
    def place(self) -> str:
        """The place where the job runs, for a sentence: the node, its container, or its pod."""
        if self.container is not None:
            return f"the container {self.container.name} on {self.name}"
        if self.inside:
            return f"the container on {self.name}"
        return f"the pod {self.pod or self.name}" if self.connection == "kubernetes" else self.name

    @property
    def pod(self) -> str | None:
        """The name of the node's pod, if it is known without asking the cluster."""
        chosen = self.kubernetes
        return None if self.connection != "kubernetes" or chosen.selector else chosen.pod or self.name

    @property
    def interpreter_typed(self) -> str:
        """`interpreter` as a word of a shell command, where the shell still expands a `~/` at its start."""
        return shell_word(self.interpreter)

    @property
    def slots(self) -> int:
        """How many ranks run on this node."""
        return len(self.gpus) or self.processes

    @property
    def windows(self) -> bool:
        return self.shell in ("bat", "ps1")


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """How ranks find each other: they dial `address` and `port`. `address` is the master's unless the inventory says
    otherwise."""

    master: str
    address: str
    port: int = 29500
    backend: str = "gloo"  # nccl | gloo


@dataclass(frozen=True, slots=True)
class Network:
    """`ports` are inclusive ranges that must be open between all nodes."""

    interface: str | None = None
    ports: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Infiniband:
    """`hca` is an expression as NCCL_IB_HCA takes it; `min_rate_gbps` is the promised link rate in Gbit/s."""

    hca: str | None = None
    min_rate_gbps: float | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """A cluster. `nodes` stand in rank order: the master first, then as the file's `order` says."""

    name: str
    nodes: tuple[Node, ...]
    rendezvous: Rendezvous
    network: Network = field(default_factory=Network)
    infiniband: Infiniband | None = None
    env: Mapping[str, EnvValue] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    source: str = ""

    def node(self, name: str) -> Node:
        """The node of this name. Raises KeyError."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)

    @property
    def world_size(self) -> int:
        return sum(node.slots for node in self.nodes)

    @property
    def master(self) -> Node:
        return self.node(self.rendezvous.master)

    @property
    def one_machine(self) -> bool:
        """Whether every node is this very machine, so that a loopback address is no mistake."""
        return all(node.connection == "local" for node in self.nodes)
