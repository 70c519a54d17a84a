"""The ordered stages a user wants to see pass."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from runbook.model.errors import Span
from runbook.model.inventory import EnvValue

Place = tuple[str | int, ...]  # inside a launch: ("launcher",), ("command", 3), ("env", "OMP_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Expect:
    """The expected result of a `shell:` stage: an exit code, and a regular expression found in its stdout."""

    exit: int = 0
    stdout: str | None = None


RENDEZVOUS_S = 120.0
GRACE_S = 30.0
BASELINE_S = 600.0
"""What holds for a launch that says nothing else."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What a launch is watched for. `stall_s`: this long without a step is a stall; None: learned from the steps."""

    stall_s: float | None = None
    progress: re.Pattern[str] | None = None  # finds the number of a step in a line; None: the usual ways to print one
    on_stall: str = "report"  # or `stop`, `retry`
    stacks: bool = True  # whether ranks are prepared to be asked for their stacks
    baseline_s: float = BASELINE_S  # the baseline of its speed lasts this long after its first step


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """A `launch:`. Words of `command`, values of `env` and `workdir` may still be `{{ templates }}`."""

    launcher: str = "direct"  # direct | torchrun | torch.distributed.launch | jax
    command: tuple[str, ...] = ()
    env: Mapping[str, EnvValue] = field(default_factory=dict)
    workdir: str | None = None
    retries: int = 0
    start_timeout_s: float | None = None
    rendezvous_timeout_s: float = RENDEZVOUS_S  # how long after the start ranks that have not met are looked at
    grace_s: float = GRACE_S  # from TERM to KILL: what a program may need to write its checkpoint
    detach: bool = False  # it outlives the controller
    barrier: str = "controller"  # or `file`: the nodes meet by themselves, in a folder that they share
    barrier_folder: str | None = None
    watch: Watch | None = None
    spares: tuple[str, ...] = ()  # patterns of nodes


@dataclass(frozen=True, slots=True)
class Stage:
    """One of a check, a shell command or a launch. Values in `arguments` may still be `{{ templates }}`."""

    name: str
    kind: str  # check | shell | launch
    check: str | None = None
    shell: str | None = None
    expect: Expect = field(default_factory=Expect)
    launch: LaunchSettings = field(default_factory=LaunchSettings)
    arguments: Mapping[str, object] = field(default_factory=dict)  # the stage's `with:`
    when: str | None = None
    tags: tuple[str, ...] = ()
    timeout_s: float | None = None
    nodes: str | None = None
    on_failure: str = "stop"  # stop | continue
    when_bad: str | None = None  # stop | drop; None: as the playbook says
    min_nodes: int | None = None
    span: Span | None = None
    argument_spans: Mapping[str, Span] = field(default_factory=dict)  # the place of each value
    argument_names: Mapping[str, Span] = field(default_factory=dict)  # the place of each name
    launch_spans: Mapping[Place, Span] = field(default_factory=dict)  # the place of each value of `launch`


@dataclass(frozen=True, slots=True)
class Playbook:
    """`inventory` is the path as written, relative to the playbook's own folder. `when_bad` and `min_nodes` hold for
    every stage that says nothing else, and for `reach`."""

    name: str
    stages: tuple[Stage, ...]
    inventory: str | None = None
    nodes: str = "all"
    vars: Mapping[str, object] = field(default_factory=dict)
    source: str = ""
    when_bad: str = "stop"  # stop | drop
    min_nodes: int | None = None
    min_nodes_span: Span | None = None
