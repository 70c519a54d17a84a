"""What a folder of one of our own runs says by itself: its verdict was made live, and names more than a log can."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbook.causes.catalogue import CONSEQUENCES, VAGUE
from runbook.causes.logs.judge import Cause
from runbook.causes.logs.sign import Hit, Line, Tier


@dataclass(frozen=True, slots=True)
class OwnRun:
    """A run's verdict (`pass`, `fail`, `unknown`; `unfinished` where it wrote none), and the causes that it found."""

    path: Path
    verdict: str
    stopped_at: str | None
    causes: tuple[Cause, ...]

    def with_logs(self, told: Sequence[Cause]) -> list[Cause]:
        """The causes of the run and of its ranks' logs, the root first."""
        real = [cause for cause in told if cause.cause != "insufficient-evidence"]
        if not self.causes:
            return real or ([] if self.verdict == "pass" else [self._ended()])
        if real and self.causes[0].cause in VAGUE | CONSEQUENCES:
            return real
        named = {cause.cause for cause in self.causes}
        return [*self.causes, *(cause for cause in real if cause.cause not in named)]

    def _ended(self) -> Cause:
        at = f" at {self.stopped_at}" if self.stopped_at else ""
        says = f"this run ended{at} without a verdict ({self.verdict}), and nothing had failed until then; no rank printed an error"
        return Cause(
            "insufficient-evidence", "high", says, "run it again, and let it come to its end", (), Tier.WRAPPER
        )


def is_run(folder: Path) -> bool:
    """Whether `runbook run` wrote this folder."""
    return (folder / "events.jsonl").is_file()


def latest_run(folder: Path) -> Path | None:
    """The folder itself, or the latest of the runs that lie in it; None where there is none."""
    if is_run(folder):
        return folder
    runs = [inside for inside in folder.iterdir() if is_run(inside)] if folder.is_dir() else []
    return max(runs, key=lambda run: run.name, default=None)  # their names begin with the time


def read_run(folder: Path) -> OwnRun:
    """What the run found; of a run that was killed there may be no verdict, or half of one."""
    file = folder / "result.json"
    try:
        text = file.read_text(encoding="utf-8")
        said = json.loads(text)
        causes = tuple(_causes(said, str(file), text.splitlines()))
        return OwnRun(folder, str(said["verdict"]), said.get("stopped_at"), causes)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return OwnRun(folder, "unfinished", None, ())


def _causes(said: Mapping[str, Any], name: str, lines: Sequence[str]) -> list[Cause]:
    """Each cause with the first finding that tells of it, the root first."""
    told: dict[str, Cause] = {}
    root: str | None = next(iter(said["causes"]), None)
    findings = [
        (outcome["node"], finding)
        for stage in said["stages"]
        for outcome in stage["outcomes"]
        for finding in outcome["findings"]
    ]
    for cause in said["causes"]:
        for node, finding in findings:
            if finding["cause"] == cause and cause not in told:
                proof = finding["evidence"] or [finding["says"]]
                hits = tuple(Hit("run", Line(name, _line(text, lines), text, text, None, node)) for text in proof)
                follows = None if cause == root else root
                told[cause] = Cause(cause, "high", finding["says"], finding["remedy"], hits, Tier.FAULT, node=node, follows=follows)  # fmt: skip
    return list(told.values())


def _line(text: str, lines: Sequence[str]) -> int:
    """Where a text stands in the document, from 1."""
    written = json.dumps(text)
    return next((at for at, line in enumerate(lines, 1) if written in line), 1)
