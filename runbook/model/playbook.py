"""The ordered stages a user wants to see pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from runbook.model.errors import Span

Place = tuple[str | int, ...]  # inside a launch: ("launcher",), ("command", 3), ("env", "OMP_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Expect:
    """The expected result of a `shell:` stage: an exit code, and a regular expression found in its stdout."""

    exit: int = 0
    stdout: str | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """One of a check, a shell command or a launch. Values in `arguments` and `launch` may still be `{{ templates
    }}`."""

    name: str
    kind: str  # check | shell | launch
    check: str | None = None
    shell: str | None = None
    expect: Expect = field(default_factory=Expect)
    launch: Mapping[str, object] = field(default_factory=dict)
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
