"""The folder of a run: which one is meant, what it says of itself, and its files."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runbook.engine.collect.entries import Absent, Entry, Form, read_entry

RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]+")
MOST_LOGS = 2000
_FILES: tuple[tuple[str, Form], ...] = (("result.json", "json"), ("events.jsonl", "json lines"), ("crash.txt", "text"))


@dataclass(frozen=True, slots=True)
class RunFolder:
    """`inventory` and `playbook` are the paths the run was given, found again where they still exist."""

    path: Path
    verdict: str = "unknown"
    stopped_at: str | None = None
    causes: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    inventory: Path | None = None
    playbook: Path | None = None
    started: float | None = None
    named_inventory: str = ""
    named_playbook: str = ""


def latest_run() -> Path | None:
    """The newest folder of the places where `run` puts its own, or None. Names of runs begin with their time."""
    found: list[Path] = []
    uid = os.getuid() if hasattr(os, "getuid") else 0
    for base in (Path(".runbook"), Path(tempfile.gettempdir()) / f"runbook-{uid}"):
        runs = base / "runs"
        try:
            # In the temporary folder anybody may put a folder with our name.
            if hasattr(os, "getuid") and runs.stat().st_uid != uid:
                continue
            found += [path for path in runs.iterdir() if RUN_ID.fullmatch(path.name) and _is_run(path)]
        except OSError:
            continue
    return max(found, key=lambda path: path.name, default=None)


def _is_run(path: Path) -> bool:
    return (path / "events.jsonl").is_file() or (path / "result.json").is_file()


def read_run(path: Path) -> RunFolder | None:
    """What a folder says of its run; None where it is not the folder of one."""
    if not _is_run(path):
        return None
    said = _document(path / "result.json")
    started = _first_event(path / "events.jsonl")
    inventory = str(said.get("inventory") or started.get("inventory") or "")
    playbook = str(said.get("playbook") or started.get("playbook") or "")
    nodes = said.get("nodes") or started.get("nodes") or []
    causes = said.get("causes") or []
    time = started.get("time")
    return RunFolder(
        path,
        str(said.get("verdict") or "unfinished"),
        str(said["stopped_at"]) if said.get("stopped_at") else None,
        tuple(map(str, causes)) if isinstance(causes, list) else (),
        tuple(map(str, nodes)) if isinstance(nodes, list) else (),
        _again(path, inventory),
        _again(path, playbook),
        time if isinstance(time, float) else None,
        inventory,
        playbook,
    )


def run_entries(run: RunFolder) -> Iterator[Entry | Absent]:
    """The files of a run that `run` writes, and no others: `--run-dir` may be somebody's home folder."""
    for name, form in _FILES:
        if name != "crash.txt" or (run.path / name).exists():
            yield read_entry(run.path / name, f"run/{name}", form)
    logs = sorted(_logs(run.path / "logs"))
    for path in logs[:MOST_LOGS]:
        place = f"run/logs/{path.relative_to(run.path / 'logs').as_posix()}"
        yield read_entry(
            path, place, "json lines" if path.suffix == ".jsonl" else "json" if path.suffix == ".json" else "text"
        )
    if len(logs) > MOST_LOGS:
        yield Absent("run/logs", f"{len(logs) - MOST_LOGS} more logs than the {MOST_LOGS} that are here", "left out")


def _logs(folder: Path) -> Iterator[Path]:
    for base, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (
            path for name in files if not (path := Path(base) / name).is_symlink() and path.is_file() and name[0] != "."
        )


def _document(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _first_event(path: Path) -> dict[str, object]:
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            found = json.loads(stream.readline(1 << 22))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _again(run: Path, named: str) -> Path | None:
    """A path as the run was given it: from here, or from where `.runbook/runs/RUN_ID` says that the run was started."""
    if not named or "\0" in named:
        return None
    bases = [Path()]
    if run.parent.name == "runs" and run.parent.parent.name == ".runbook":
        bases.append(run.parent.parent.parent)
    return next((base / named for base in bases if (base / named).is_file()), None)
