"""The verdict in a folder of one of our own runs, or in what was collected of it: it was made live, and names more than
a log can."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from runbook.causes.catalogue import of_kind, root_of
from runbook.diagnose.judge import NO_EVIDENCE, Cause
from runbook.diagnose.rule_types import Hit, Line, Tier
from runbook.model.node_ranges import fold
from runbook.model.safe_files import is_folder, open_regular

RESULT = "result.json"
UNFINISHED = "unfinished"
MOST = 16 << 20  # bytes of a result
ID = re.compile(r"[a-z][a-z0-9-]{0,99}")

_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class OwnRun:
    """A run's verdict (`pass`, `fail`, `unknown`; `unfinished` where it wrote none), and the causes that it found."""

    path: Path
    verdict: str
    stopped_at: str | None
    causes: tuple[Cause, ...]
    unread: str = ""  # why its verdict cannot be read, where there is one

    def with_logs(self, told: Sequence[Cause]) -> list[Cause]:
        """The causes of the run and of its ranks' logs, the root first."""
        real = [cause for cause in told if cause.cause != NO_EVIDENCE]
        if not self.causes:
            return real or ([] if self.verdict == "pass" else [self._ended()])
        if real and self.causes[0].cause in of_kind("vague") | of_kind("consequence"):
            return real
        named = {cause.cause for cause in self.causes}
        return [*self.causes, *(cause for cause in real if cause.cause not in named)]

    def _ended(self) -> Cause:
        at = f" at {self.stopped_at}" if self.stopped_at else ""
        says = (
            f"this run ended{at} without a verdict ({self.verdict}), and nothing had failed until then; no rank "
            "printed an error"
        )
        remedy = "run it again, and let it come to its end"
        return Cause(NO_EVIDENCE, "high", says, remedy, (), Tier.WRAPPER)


def has_events(folder: Path) -> bool:
    """Whether `runbook run` wrote this folder, with all that it saw."""
    return (folder / "events.jsonl").is_file()


def latest_run(folder: Path) -> Path | None:
    """The folder itself, or the latest of the runs that lie in it; None where there is none."""
    try:
        if has_events(folder):
            return folder
        runs = [inside for inside in folder.iterdir() if has_events(inside)] if is_folder(folder) else []
    except OSError:
        return None
    return max(runs, key=lambda run: run.name, default=None)  # their names begin with the time


def read_own_run(folder: Path) -> OwnRun:
    """What the run found; of a run that was killed there may be no verdict, or half of one."""
    try:
        with open_regular(folder / RESULT) as stream:
            data = stream.read(MOST + 1)
    except FileNotFoundError:
        return OwnRun(folder, UNFINISHED, None, ())
    except OSError as error:
        return OwnRun(folder, UNFINISHED, None, (), error.strerror or str(error))
    if len(data) > MOST:
        return OwnRun(folder, UNFINISHED, None, (), f"it has more than {MOST:,} bytes")
    return own_run_of(folder, data)


def own_run_of(folder: Path, data: bytes) -> OwnRun:
    """The run whose result holds these bytes. `folder`: where it lies, as it is shown."""
    try:
        text = data.decode()
        said = _a(dict, json.loads(text))
        stopped_at = said.get("stopped_at")
        return OwnRun(
            folder,
            _word(said["verdict"]),
            None if stopped_at is None else _a(str, stopped_at),
            tuple(_causes(said, str(folder / RESULT), text)),
        )
    except (ValueError, LookupError, RecursionError) as error:
        why = "it breaks off, or is not a verdict that is known here"
        return OwnRun(folder, UNFINISHED, None, (), f"{why} ({type(error).__name__})")


def _causes(said: Mapping[str, Any], name: str, text: str) -> list[Cause]:
    """Each cause with the first finding that tells of it, and every node that has it; the root first."""
    named = [_word(cause) for cause in _a(list, said["causes"])]
    firsts: dict[str, dict[str, Any]] = {}
    nodes: dict[str, dict[str, None]] = {}
    for stage in _a(list, said["stages"]):
        for outcome in _a(list, _a(dict, stage)["outcomes"]):
            for finding in _a(list, _a(dict, outcome)["findings"]):
                cause = _word(_a(dict, finding)["cause"])
                firsts.setdefault(cause, finding)
                of = nodes.setdefault(cause, {})
                if outcome["node"] is not None:
                    of[_a(str, outcome["node"])] = None
    places: dict[str, int] = {}
    for at, line in enumerate(text.splitlines(), 1):
        places.setdefault(line.strip().rstrip(",").rpartition('": ')[2], at)
    told: dict[str, Cause] = {}
    for cause in named:
        if cause in firsts and cause not in told:
            finding = firsts[cause]
            says, remedy = _a(str, finding["says"]), _a(str, finding["remedy"])
            proof = [_a(str, one) for one in _a(list, finding["evidence"])] or [says]
            node = next(iter(nodes[cause]), None)
            hits = tuple(Hit("run", Line(name, places.get(json.dumps(one), 1), one, one, None, node)) for one in proof)
            where = fold(nodes[cause]) or None
            told[cause] = Cause(cause, "high", says, remedy, hits, Tier.FAULT, node=where, follows=_root(cause, nodes))
    return list(told.values())


def _root(cause: str, nodes: Mapping[str, Collection[str]]) -> str | None:
    """The cause that this one follows from: on its own nodes, since others have faults of their own; where it is a
    mere consequence, on any."""
    consequence = cause in of_kind("consequence")
    return root_of(cause, [other for other in nodes if consequence or set(nodes[cause]) <= set(nodes[other])])


def _a(kind: type[_Kind], value: object) -> _Kind:
    """The value, which must be of that type: the file may be damaged."""
    if not isinstance(value, kind):
        raise ValueError(f"a {kind.__name__} is expected")
    return value


def _word(value: object) -> str:
    """An id: of a cause, of a verdict."""
    if not ID.fullmatch(word := _a(str, value)):
        raise ValueError("an id is expected")
    return word
