"""Labelled logs of the wild, where somebody has them: they are data to measure with, not part of the project."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .read import causes_in

HEALTHY = "no-failure"


@dataclass(frozen=True)
class Labelled:
    id: str
    log: str
    label: str
    also_acceptable: tuple[str, ...]

    @property
    def kept_aside(self) -> bool:
        """A third, by hash: the first rules were written from the others alone."""
        return int(hashlib.sha256(self.id.encode()).hexdigest(), 16) % 3 == 0


@dataclass(frozen=True)
class Score:
    of: int
    right: int
    strictly: int
    wrong: tuple[str, ...]
    sure_on_healthy: int

    @property
    def share(self) -> float:
        return self.right / self.of if self.of else 0.0


def corpus() -> list[Labelled]:
    """The labelled logs of the folder RUNBOOK_CORPUS, or of shared/corpus beside the checkout; empty where it is not."""
    beside = Path(__file__).parents[2].parent / "shared" / "corpus"
    file = Path(os.environ.get("RUNBOOK_CORPUS", beside)) / "logs.jsonl"
    if not file.is_file():
        return []
    told = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [Labelled(log["id"], log["log"], log["label"], tuple(log["also_acceptable"] or ())) for log in told]


def score(logs: Sequence[Labelled]) -> Score:
    """How many first causes are right: the label itself, or one that a fair reader may give as well."""
    right = strictly = sure = 0
    wrong: list[str] = []
    for log in logs:
        found = causes_in(log=log.log)
        first = found[0].cause if found else HEALTHY
        strictly += first == log.label
        if first in (log.label, *log.also_acceptable):
            right += 1
        else:
            wrong.append(f"{log.id}: {first} instead of {log.label}")
            sure += log.label == HEALTHY and found[0].confidence == "high"
    return Score(len(logs), right, strictly, tuple(wrong), sure)
