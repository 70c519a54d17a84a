"""What a check is: an id, its arguments as fields, and `run`. Arguments come from a stage's `with:`, checked here."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from runbook.checks.context import Context
from runbook.files.scalars import seconds, size_bytes
from runbook.files.suggestions import did_you_mean, spaced
from runbook.launch.job import Job
from runbook.model.errors import FilesWrong, Problem, Span
from runbook.model.inventory import EnvValue, Node
from runbook.model.units import bytes_text, seconds_text
from runbook.model.verdict import Outcome

_OF_NCCL_TESTS = {"b": "min_bytes", "e": "max_bytes", "f": "factor", "n": "iterations", "w": "warmup"}
"""Options of nccl-tests, by which their users call our arguments."""

_SHOWN: Mapping[object, Callable[[Any], str]] = {"bytes": bytes_text, "seconds": seconds_text}
"""Arguments with a unit, as a plan shows them."""

C = TypeVar("C", bound="Check")
Environment = Mapping[str, EnvValue]


@dataclasses.dataclass(frozen=True)
class Check(ABC):
    """Fields of a subclass are the arguments of the stage; their `metadata["unit"]` says how they are written."""

    id: ClassVar[str]
    timeout_s: ClassVar[float] = 60.0
    needs_ranks: ClassVar[bool] = False
    """Whether it runs one process a rank on torch; `reach` then proves torch, and the ranks are kept between such
    checks. Every other check finds the ranks gone and the rendezvous port free."""
    judges_together: ClassVar[bool] = False
    """Whether it compares or joins nodes: with a bad node among them, its verdict on the others does not hold."""
    looks_at_rendezvous: ClassVar[bool] = False
    """Whether its verdict is about the master's address and port as well: with another master it has to look again."""
    ends_by_itself: ClassVar[bool] = False
    """Whether it heeds `Context.stopping`, and takes its time to end what it started."""
    names_bad_nodes: ClassVar[bool] = True
    """Whether its failure proves something about the node; the failure of a user's own program proves nothing."""

    @property
    def outlives_s(self) -> float:
        """How long its processes may live on a node that is no longer reached; infinite where they are meant to go
        on."""
        return 10.0

    @property
    def user_job(self) -> Job | None:
        """The user's program that it starts as ranks; None for a check, whose ranks run a program of runbook."""
        return None

    @property
    def spares(self) -> tuple[str, ...]:
        """Nodes beside those of its stage, each of which may take the place of one that is lost or broken."""
        return ()

    def with_spares(self, names: Sequence[str]) -> Check:
        """The same with these spares left."""
        assert not names
        return self

    @property
    def environments(self) -> tuple[Environment, ...]:
        """Variables of its own that it starts processes with."""
        return ()

    def with_environments(self, changed: Callable[[Environment], Environment]) -> Check:
        """The same with each of these changed."""
        del changed
        assert not self.environments
        return self

    @property
    def summary(self) -> str:
        """Its arguments in a line, as a plan shows them."""
        units = {field.name: field.metadata.get("unit") for field in dataclasses.fields(self)}
        return ", ".join(
            f"{name}={_SHOWN[units[name]](value) if units[name] in _SHOWN else value}"
            for name, value in vars(self).items()
            if value is not None
        )

    def refused(self, stage: str, nodes: Sequence[Node]) -> Iterator[Problem]:
        """Why it cannot be run on these nodes, although it can be planned and rendered for them."""
        del stage, nodes
        return iter(())

    @abstractmethod
    def run(self, at: Context) -> list[Outcome]:
        """One outcome for each node of the stage. The engine turns a missing outcome, or an exception, into
        `unknown`."""


def argument(default: Any, unit: str, help: str) -> Any:
    """A field of a check. `unit`: bytes, seconds, count, number, `number or auto`, `auto or all`, text or flag."""
    return dataclasses.field(default=default, metadata={"unit": unit, "help": help})


def pairs_argument() -> Any:
    """Which pairs of nodes a check between nodes looks at. In a playbook it is also a key of the stage."""
    return argument(
        "auto", "auto or all", "which pairs of nodes to look at: auto (all of a few nodes, of many some of each) or all"
    )


def configure(
    check: type[C],
    values: Mapping[str, object],
    spans: Mapping[str, Span],
    where: Span | None,
    names: Mapping[str, Span] | None = None,
) -> C:
    """A check with its arguments. Raises FilesWrong with every argument that is unknown or cannot be read."""
    fields = {field.name: field for field in dataclasses.fields(check)}
    problems: list[Problem] = []
    read: dict[str, object] = {}
    for name, value in values.items():
        span = spans.get(name, where)
        if name not in fields:
            joined = spaced(name)
            hint = (
                joined[1]
                if joined
                else did_you_mean(_OF_NCCL_TESTS.get(name, name), fields)
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
            read[name] = _argument(value, fields[name])
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


def _argument(value: object, field: dataclasses.Field[Any]) -> object:
    if value is None and field.default is not None:
        raise ValueError("it has no value")
    return convert(value, field.metadata["unit"])


def convert(value: object, unit: str) -> object:
    if value is None:
        return None
    if unit == "bytes":
        return size_bytes(value)
    if unit == "seconds":
        return seconds(value)
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
