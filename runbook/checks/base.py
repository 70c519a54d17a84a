"""What a check is: an id, its arguments as fields, and `run`. The arguments come from `with:` of a stage, and are read
and checked here."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from runbook.checks.context import Context
from runbook.files.scalars import parse_seconds, parse_size_bytes
from runbook.files.suggestions import did_you_mean, split_joined_key
from runbook.launch.job import Job
from runbook.model.errors import FilesWrong, Problem, Span
from runbook.model.inventory import EnvValue, Node
from runbook.model.units import bytes_text, seconds_text
from runbook.model.verdict import Outcome

_NCCL_TESTS_OPTIONS = {"b": "min_bytes", "e": "max_bytes", "f": "factor", "n": "iterations", "w": "warmup"}
"""Options of nccl-tests and the arguments of ours that mean the same: for hints to people who type the options."""

_UNIT_FORMATTERS: Mapping[object, Callable[[Any], str]] = {"bytes": bytes_text, "seconds": seconds_text}
"""How a plan shows the arguments that have a unit: a function by the unit."""

C = TypeVar("C", bound="Check")
Environment = Mapping[str, EnvValue]
"""Variables of a program, by name."""


@dataclasses.dataclass(frozen=True)
class Check(ABC):
    """What a stage runs on its nodes. The fields of a subclass are the arguments of the stage; their `metadata["unit"]`
    says in which form a value is written."""

    id: ClassVar[str]
    timeout_s: ClassVar[float] = 60.0
    needs_ranks: ClassVar[bool] = False
    """Whether the check runs one process a rank on torch. `reach` then proves torch as well, and the ranks are kept
    between such checks. Before any other check the ranks are ended, so the rendezvous port is free."""
    judges_together: ClassVar[bool] = False
    """Whether the check compares or joins nodes: a bad node among them spoils its verdict on the other nodes too."""
    looks_at_rendezvous: ClassVar[bool] = False
    """Whether the verdict is also about the master's address and port: when the master changes, the check runs
    again."""
    ends_by_itself: ClassVar[bool] = False
    """Whether the check heeds `Context.stopping`, and needs time after that to end what it has started."""
    names_bad_nodes: ClassVar[bool] = True
    """Whether a failure proves something about the node. The failure of a user's own program proves nothing."""

    @property
    def outlives_s(self) -> float:
        """Seconds that processes of the check may live on a node after the controller can no longer reach the node;
        infinite where they are meant to go on."""
        return 10.0

    @property
    def user_job(self) -> Job | None:
        """The user's program that the check starts as ranks; None for a check whose ranks run a program of runbook."""
        return None

    @property
    def spares(self) -> tuple[str, ...]:
        """The names of spare nodes: nodes outside the stage, each of which may take the place of a lost or broken
        node."""
        return ()

    def with_spares(self, names: Sequence[str]) -> Check:
        """The same check with only these spares left."""
        assert not names
        return self

    @property
    def environments(self) -> tuple[Environment, ...]:
        """The variables that the check itself sets for processes that it starts, one mapping a program."""
        return ()

    def with_environments(self, changed: Callable[[Environment], Environment]) -> Check:
        """The same check with `changed` applied to each of its environments."""
        del changed
        assert not self.environments
        return self

    @property
    def summary(self) -> str:
        """The arguments of the check in one line, as a plan shows them."""
        units = {field.name: field.metadata.get("unit") for field in dataclasses.fields(self)}
        return ", ".join(
            f"{name}={_UNIT_FORMATTERS[units[name]](value) if units[name] in _UNIT_FORMATTERS else value}"
            for name, value in vars(self).items()
            if value is not None
        )

    def refused(self, stage: str, nodes: Sequence[Node]) -> Iterator[Problem]:
        """Problems that forbid running the check on these nodes. Planning and rendering a script for them is still
        allowed."""
        del stage, nodes
        return iter(())

    @abstractmethod
    def run(self, at: Context) -> list[Outcome]:
        """One outcome for each node of the stage. The engine turns a missing outcome, or an exception, into
        `unknown`."""


def argument(default: Any, unit: str, help: str) -> Any:
    """A field of a check, with its default value and its help text. `unit`: bytes, seconds, count, number, `number or
    auto`, `auto or all`, text or flag."""
    return dataclasses.field(default=default, metadata={"unit": unit, "help": help})


def pairs_argument() -> Any:
    """The field for the pairs of nodes that a check between nodes looks at. In a playbook it is also a key of the
    stage."""
    return argument(
        "auto", "auto or all", "which pairs of nodes to look at: auto (all of a few nodes, of many some of each) or all"
    )


def build_check(
    check: type[C],
    values: Mapping[str, object],
    spans: Mapping[str, Span],
    where: Span | None,
    names: Mapping[str, Span] | None = None,
) -> C:
    """An instance of the check with these arguments. Raises FilesWrong that lists every argument that is unknown or
    cannot be read."""
    fields = {field.name: field for field in dataclasses.fields(check)}
    problems: list[Problem] = []
    read: dict[str, object] = {}
    for name, value in values.items():
        span = spans.get(name, where)
        if name not in fields:
            joined = split_joined_key(name)
            hint = (
                joined[1]
                if joined
                else did_you_mean(_NCCL_TESTS_OPTIONS.get(name, name), fields)
                or f"it takes: {', '.join(fields) or 'no arguments'}"
            )
            problems.append(
                Problem(
                    "playbook.unknown-argument",
                    f"`{check.id}` has no argument `{name}`",
                    (names or {}).get(name, span),
                    hint,
                )
            )
            continue
        try:
            read[name] = _read_argument(value, fields[name])
        except ValueError as error:
            problems.append(
                Problem(
                    "playbook.bad-argument", f"`{name}` of `{check.id}`: {error}", span, fields[name].metadata["help"]
                )
            )
    made = None
    if not problems:
        try:
            made = check(**read)
        except ValueError as error:
            problems.append(Problem("playbook.bad-argument", f"`{check.id}`: {error}", where))
    if problems:
        raise FilesWrong(problems)
    assert made is not None
    return made


def _read_argument(value: object, field: dataclasses.Field[Any]) -> object:
    """The value of one argument. Raises ValueError when it cannot be read."""
    if value is None and field.default is not None:
        raise ValueError("it has no value")
    return convert(value, field.metadata["unit"])


def convert(value: object, unit: str) -> object:
    """The value as the type that its unit asks for; None stays None. Raises ValueError with the reason."""
    if value is None:
        return None
    if unit == "bytes":
        return parse_size_bytes(value)
    if unit == "seconds":
        return parse_seconds(value)
    if unit == "flag":
        if isinstance(value, bool):
            return value
        raise ValueError(f"{value!r} is not true or false")
    if unit == "text":
        return str(value)
    if unit == "auto or all":
        if value in ("auto", "all"):
            return value
        raise ValueError(f"{value!r} is neither auto nor all")
    if unit == "number or auto" and value == "auto":
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{value!r} is not a number")
    try:
        number = float(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a number") from None
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a finite number")
    if unit == "count":
        if number != int(number) or number < 0:
            raise ValueError(f"{value!r} is not a whole number")
        return int(number)
    if number < 0:
        raise ValueError(f"{value!r} must not be negative")
    return number
