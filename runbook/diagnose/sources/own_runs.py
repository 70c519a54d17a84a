"""Reads the verdict of a run of runbook's from its run folder, or from an archive of `runbook collect`. The verdict was
made live, and names more than a log can."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from runbook.causes.catalogue import causes_of_kind, root_cause_among
from runbook.diagnose.judge import NO_EVIDENCE, Cause
from runbook.diagnose.rule_types import Hit, Line, Tier
from runbook.model.node_ranges import fold
from runbook.model.run_files import EVENTS_FILE, RESULT_FILE
from runbook.model.safe_files import is_folder, open_regular_file

UNFINISHED_VERDICT = "unfinished"
MAX_RESULT_BYTES = 16 << 20  # the most bytes of a result that are read: it may be a stranger's
CAUSE_ID = re.compile(r"[a-z][a-z0-9-]{0,99}")

_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class OwnRun:
    """A run's verdict (`pass`, `fail`, `unknown`; `unfinished` if none was written or it cannot be read), and the
    causes that the run found."""

    path: Path
    verdict: str
    stopped_at: str | None
    causes: tuple[Cause, ...]
    unread: str = ""  # why a verdict that was written cannot be read

    def with_logs(self, told: Sequence[Cause]) -> list[Cause]:
        """The causes of the run and of its ranks' logs, the root first."""
        real = [cause for cause in told if cause.cause != NO_EVIDENCE]
        if not self.causes:
            return real or ([] if self.verdict == "pass" else [self._ended()])
        if real and self.causes[0].cause in causes_of_kind("vague") | causes_of_kind("consequence"):
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
    """Whether this is a run folder with the events of `runbook run`."""
    return (folder / EVENTS_FILE).is_file()


def latest_run_below(folder: Path) -> Path | None:
    """The folder itself if it is a run folder, else the latest run folder in it; None if there is none."""
    try:
        if has_events(folder):
            return folder
        runs = [inside for inside in folder.iterdir() if has_events(inside)] if is_folder(folder) else []
    except OSError:
        return None
    return max(runs, key=lambda run: run.name, default=None)  # their names begin with the time


def read_own_run(folder: Path) -> OwnRun:
    """The verdict and causes of the run in this folder. A run that was killed may have written none, or half of it."""
    try:
        with open_regular_file(folder / RESULT_FILE) as stream:
            data = stream.read(MAX_RESULT_BYTES + 1)
    except FileNotFoundError:
        return OwnRun(folder, UNFINISHED_VERDICT, None, ())
    except OSError as error:
        return OwnRun(folder, UNFINISHED_VERDICT, None, (), error.strerror or str(error))
    if len(data) > MAX_RESULT_BYTES:
        return OwnRun(folder, UNFINISHED_VERDICT, None, (), f"it has more than {MAX_RESULT_BYTES:,} bytes")
    return parse_own_run(folder, data)


def parse_own_run(folder: Path, data: bytes) -> OwnRun:
    """The verdict and causes in these bytes of a `result.json`. `folder`: the folder or archive to name as its
    place."""
    try:
        text = data.decode()
        said = _require_type(dict, json.loads(text))
        stopped_at = said.get("stopped_at")
        return OwnRun(
            folder,
            _require_id(said["verdict"]),
            None if stopped_at is None else _require_type(str, stopped_at),
            tuple(_causes_of_result(said, str(folder / RESULT_FILE), text)),
        )
    except (ValueError, LookupError, RecursionError) as error:
        why = "it breaks off, or is not a verdict that is known here"
        return OwnRun(folder, UNFINISHED_VERDICT, None, (), f"{why} ({type(error).__name__})")


def _causes_of_result(said: Mapping[str, Any], name: str, text: str) -> list[Cause]:
    """The causes in a result, in its order (the root first): each with its first finding and the names of all nodes
    that have it. `text` is the result as text, in which evidence gets the numbers of its lines."""
    named = [_require_id(cause) for cause in _require_type(list, said["causes"])]
    firsts: dict[str, dict[str, Any]] = {}
    nodes: dict[str, dict[str, None]] = {}
    for stage in _require_type(list, said["stages"]):
        for outcome in _require_type(list, _require_type(dict, stage)["outcomes"]):
            for finding in _require_type(list, _require_type(dict, outcome)["findings"]):
                cause = _require_id(_require_type(dict, finding)["cause"])
                firsts.setdefault(cause, finding)
                of = nodes.setdefault(cause, {})
                if outcome["node"] is not None:
                    of[_require_type(str, outcome["node"])] = None
    places: dict[str, int] = {}
    for at, line in enumerate(text.splitlines(), 1):
        places.setdefault(line.strip().rstrip(",").rpartition('": ')[2], at)
    told: dict[str, Cause] = {}
    for cause in named:
        if cause in firsts and cause not in told:
            finding = firsts[cause]
            says, remedy = _require_type(str, finding["says"]), _require_type(str, finding["remedy"])
            proof = [_require_type(str, one) for one in _require_type(list, finding["evidence"])] or [says]
            node = next(iter(nodes[cause]), None)
            hits = tuple(Hit("run", Line(name, places.get(json.dumps(one), 1), one, one, None, node)) for one in proof)
            where = fold(nodes[cause]) or None
            told[cause] = Cause(
                cause, "high", says, remedy, hits, Tier.FAULT, node=where, follows=_root_cause_of(cause, nodes)
            )
    return list(told.values())


def _root_cause_of(cause: str, nodes: Mapping[str, Collection[str]]) -> str | None:
    """The cause that this cause follows from: a cause that all of its nodes have as well; for a mere consequence, a
    cause of any node."""
    consequence = cause in causes_of_kind("consequence")
    return root_cause_among(cause, [other for other in nodes if consequence or set(nodes[cause]) <= set(nodes[other])])


def _require_type(kind: type[_Kind], value: object) -> _Kind:
    """The value if it is of this type, else ValueError: the file may be damaged."""
    if not isinstance(value, kind):
        raise ValueError(f"a {kind.__name__} is expected")
    return value


def _require_id(value: object) -> str:
    """The value if it may be the id of a cause or a verdict, else ValueError."""
    if not CAUSE_ID.fullmatch(word := _require_type(str, value)):
        raise ValueError("an id is expected")
    return word
