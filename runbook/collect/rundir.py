"""The folder of a run: which one is meant, what it says of itself, and its files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from runbook.collect.entries import Absent, ArchiveFile, Form, open_regular, read_entry
from runbook.engine.runfolder import homes

RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]+")
MOST_LOGS = 2000
MOST_READ = 64 * 1024 * 1024
LONGEST_WORD = 1000
_FILES: tuple[tuple[str, Form], ...] = (("result.json", "json"), ("events.jsonl", "json lines"), ("crash.txt", "text"))
FORMS: Mapping[str, Form] = {".jsonl": "json lines", ".json": "json"}


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
    for runs in homes():
        try:
            if hasattr(os, "getuid") and runs.stat().st_uid != os.geteuid():
                continue  # in a folder like /tmp anybody may put one of our name
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
    said = _document(path, "result.json")
    started = _document(path, "events.jsonl", lines=1)
    inventory = _text(said.get("inventory")) or _text(started.get("inventory"))
    playbook = _text(said.get("playbook")) or _text(started.get("playbook"))
    nodes = said.get("nodes")
    return RunFolder(
        path,
        _text(said.get("verdict")) or "unfinished",
        _text(said.get("stopped_at")) or None,
        _texts(said.get("causes")),
        _texts(nodes.get("all") if isinstance(nodes, dict) else nodes) or _texts(started.get("nodes")),
        _again(path, inventory),
        _again(path, playbook),
        _time(started.get("time")),
        inventory,
        playbook,
    )


def run_entries(run: RunFolder) -> Iterator[ArchiveFile | Absent]:
    """The files of a run that `run` writes, and no others: `--run-dir` may be somebody's home folder."""
    for name, form in _FILES:
        if name != "crash.txt" or (run.path / name).exists():
            yield read_entry(run.path / name, f"run/{name}", form, below=run.path)
    logs = sorted(_logs(run.path / "logs"))
    for path in logs[:MOST_LOGS]:
        place = f"run/logs/{path.relative_to(run.path / 'logs').as_posix()}"
        yield read_entry(path, place, FORMS.get(path.suffix, "text"), below=run.path)
    if len(logs) > MOST_LOGS:
        yield Absent("run/logs", f"{len(logs) - MOST_LOGS} more logs than the {MOST_LOGS} that are here", "left out")


def _logs(folder: Path) -> Iterator[Path]:
    if folder.is_symlink():  # which os.walk would follow
        return
    for base, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (
            path for name in files if not (path := Path(base) / name).is_symlink() and path.is_file() and name[0] != "."
        )


def _document(run: Path, name: str, *, lines: int = -1) -> dict[str, object]:
    """The JSON object that a file of the run is, or that its first line is; empty where it is none, however it is none."""
    try:
        with open_regular(run / name, run) as stream:
            found = json.loads((stream.readline if lines == 1 else stream.read)(MOST_READ).decode("utf-8", "replace"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(value: object) -> str:
    return value[:LONGEST_WORD] if isinstance(value, str) else ""


def _texts(value: object) -> tuple[str, ...]:
    return tuple(_text(one) for one in value if _text(one)) if isinstance(value, list) else ()


def _time(value: object) -> float | None:
    """A time of day of this era."""
    return (
        float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e11 else None
    )


def _again(run: Path, named: str) -> Path | None:
    """A path as the run was given it: from here, or from where `.runbook/runs/RUN_ID` says that the run was started."""
    if not named or "\0" in named:
        return None
    bases = [Path()]
    if run.parent.name == "runs" and run.parent.parent.name == ".runbook":
        bases.append(run.parent.parent.parent)
    return next((base / named for base in bases if _is_file(base / named)), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, or that no file can have
        return False
