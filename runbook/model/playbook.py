"""A playbook as the user wrote it: its stages, in order, each with what it runs and when."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from runbook.model.errors import Span
from runbook.model.inventory import EnvValue

LaunchKeyPath = tuple[
    str | int, ...
]  # of a value inside a launch: ("launcher",), ("command", 3), ("env", "OMP_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Expect:
    """The expected result of a `shell:` stage: an exit code, and a regular expression found in its stdout."""

    exit: int = 0
    stdout: str | None = None


DEFAULT_RENDEZVOUS_TIMEOUT_S = 120.0
DEFAULT_GRACE_S = 30.0
DEFAULT_BASELINE_S = 600.0
"""A launch's defaults for `rendezvous_timeout_s`, `grace_s` and `Watch.baseline_s`."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What a launch is watched for. `stall_s`: this many seconds without a step are a stall; None: learned from how
    long its steps take."""

    stall_s: float | None = None
    progress: re.Pattern[str] | None = None  # finds the number of a step in a line; None: the usual ways to print one
    on_stall: str = "report"  # or `stop`, `retry`
    stacks: bool = True  # whether ranks are prepared to be asked for their stacks
    baseline_s: float = DEFAULT_BASELINE_S  # the job's normal speed is measured for this long after its first step


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """Settings of a `launch:`. Words of `command`, values of `env` and `workdir` may still be `{{ templates }}`."""

    launcher: str = "direct"  # direct | torchrun | torch.distributed.launch | jax
    command: tuple[str, ...] = ()
    env: Mapping[str, EnvValue] = field(default_factory=dict)
    workdir: str | None = None
    retries: int = 0
    start_timeout_s: float | None = None
    # Ranks that have not met this long after the start are looked at.
    rendezvous_timeout_s: float = DEFAULT_RENDEZVOUS_TIMEOUT_S
    grace_s: float = DEFAULT_GRACE_S  # from TERM to KILL: a program may need it to write its checkpoint
    detach: bool = False  # the job outlives `runbook run`
    barrier: str = "controller"  # or `file`: the nodes meet without the controller, in a folder that they share
    barrier_folder: str | None = None
    watch: Watch | None = None
    spares: tuple[str, ...] = ()  # patterns of node names


@dataclass(frozen=True, slots=True)
class Stage:
    """A check, a shell command or a launch, as `kind` says. Values in `arguments` may still be `{{ templates }}`."""

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
    when_bad: str | None = None  # stop | drop; None: the playbook's
    min_nodes: int | None = None
    span: Span | None = None
    argument_spans: Mapping[str, Span] = field(default_factory=dict)  # the place of each argument's value
    argument_names: Mapping[str, Span] = field(default_factory=dict)  # the place of each argument's name
    launch_spans: Mapping[LaunchKeyPath, Span] = field(default_factory=dict)  # the place of each value of `launch`


@dataclass(frozen=True, slots=True)
class Playbook:
    """A playbook. `inventory` is the path as written, relative to the playbook's own folder. `when_bad` and `min_nodes`
    hold for `reach`, and for every stage that does not set its own."""

    name: str
    stages: tuple[Stage, ...]
    inventory: str | None = None
    nodes: str = "all"
    vars: Mapping[str, object] = field(default_factory=dict)
    source: str = ""
    when_bad: str = "stop"  # stop | drop
    min_nodes: int | None = None
    min_nodes_span: Span | None = None


NO_PLAYBOOK = Playbook("none", (), source="none")
"""The playbook of a plan that looks at an inventory alone."""
