"""The one JSON document of a run: what `-o json` prints and `RUN_DIR/result.json` holds."""

from __future__ import annotations

import json
from collections.abc import Sequence

from runbook.model.events import Event
from runbook.model.verdict import Finding, Outcome, Verdict
from runbook.report.record import Record, StageRecord
from runbook.report.values import plain

BUG = 70  # the exit code of a run that ended without saying how


class Result:
    """A reader; `document()` may be asked at any time, and every key of the contract is always there."""

    def __init__(self) -> None:
        self._record = Record()

    def __call__(self, event: Event) -> None:
        self._record(event)

    def document(self) -> dict[str, object]:
        started, finished = self._record.started, self._record.finished
        return {
            "version": 1,
            "run_id": started.run_id if started else "",
            "playbook": started.playbook if started else "",
            "inventory": started.inventory if started else "",
            "verdict": str(finished.verdict if finished else Verdict.UNKNOWN),
            "exit_code": finished.exit_code if finished else BUG,
            "stopped_at": self._record.stopped_at,
            "seconds": round(self._record.seconds, 3),
            "causes": self._record.causes,
            "stages": [self._stage(stage) for stage in self._record.stages],
            "not_run": self._record.not_run,
            "nodes": {
                "all": list(started.nodes) if started else [],
                "bad": list(finished.bad) if finished else [],
                "dropped": list(finished.dropped if finished else self._record.dropped),
                "unknown": list(finished.unknown) if finished else [],
            },
            "not_dropped": finished.not_dropped if finished else None,
            "run_dir": finished.run_dir if finished else started.run_dir if started else "",
            "cleaned": finished.cleaned if finished else None,
        }

    def text(self) -> str:
        """The document as it is printed: ASCII, so that any stream can carry it, and ended by a newline."""
        return json.dumps(self.document(), indent=2) + "\n"

    def _stage(self, stage: StageRecord) -> dict[str, object]:
        until = self._record.last_time - stage.started.time
        told: dict[str, object] = {
            "name": stage.name,
            "check": stage.started.check,
            "verdict": str(stage.verdict),
            "seconds": round(stage.finished.seconds if stage.finished else max(0.0, until), 3),
            "outcomes": [self._outcome(outcome) for outcome in stage.outcomes],
            "silent": stage.silent,
        }
        parts = [links for outcome in stage.outcomes if isinstance(links := outcome.metrics.get("links"), Sequence)]
        if parts:  # each node tells those that begin there; a reader wants them all
            told["metrics"] = {"links": plain([link for part in parts for link in part])}
        return told

    def _outcome(self, outcome: Outcome) -> dict[str, object]:
        return {
            "node": outcome.node,
            "verdict": str(outcome.verdict),
            "proof": outcome.proof,
            "metrics": plain(outcome.metrics),
            "findings": [_finding(finding, outcome.node) for finding in outcome.findings],
            "warnings": list(outcome.warnings),
        }


def _finding(finding: Finding, node: str) -> dict[str, object]:
    return {
        "cause": finding.cause,
        "says": finding.says,
        "remedy": finding.remedy,
        "remedy_commands": [{"node": where, "command": command} for where, command in finding.mended.typed(node)],
        "evidence": list(finding.evidence),
        "peers": list(finding.peers),
    }
