"""A folder of rendered scripts: what lies there, what would change, and changing it."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from runbook.engine.scripts import RANK_PROGRAM, NodeFiles, ScriptFile
from runbook.model.inventory import Inventory

ENDINGS = (".sh", ".bat", ".ps1")
_HEAD = 1000  # characters at the beginning of a script that hold the line which says whose it is
_OURS = re.compile(r"runbook \S+: (\S+), [0-9]+ of [0-9]+ ranks")


@dataclass(frozen=True, slots=True)
class FileChange:
    """`before` is None for a new file, `after` for one to be removed; both are there, and alike, for one that stays."""

    path: Path
    before: bytes | None
    after: ScriptFile | None
    secret: bool

    @property
    def kind(self) -> str:
        """new, changed, as before, or removed."""
        if self.after is None:
            return "removed"
        if self.before is None:
            return "new"
        return "as before" if self.before == self.after.data else "changed"


def changes(out: Path, made: Iterable[NodeFiles], *, endings: Collection[str] = ENDINGS) -> Iterator[FileChange]:
    """Every file of every node, and those to be removed: what an earlier rendering for these `endings` left behind.

    Only what is known to be ours is removed: scripts that say so in their head, for this very node, and what they use.
    """
    for one in made:
        folder = out / one.node.name
        there = _files(folder)
        old = _left_behind(there, one, endings)  # before the scripts that tell are written over
        for name, file in one.files.items():
            yield FileChange(folder / name, _bytes(there.get(name)), file, file.secret)
        for name, secret in old.items():
            yield FileChange(folder / name, _bytes(there[name]), None, secret)


def abandoned(out: Path, inventory: Inventory) -> list[str]:
    """Folders with scripts that this inventory once had a node for, and has none now. They are nobody's to remove."""
    known = {node.name for node in inventory.nodes}
    made_from = re.compile(rf"made from inventory {re.escape(inventory.source)}\r?\n")
    found: set[str] = set()
    with contextlib.suppress(OSError), os.scandir(out) as entries:
        for entry in entries:
            scripts = [] if entry.name in known else _files(Path(entry.path)).values()
            heads = (path.read_bytes()[:_HEAD].decode("utf-8", "replace") for path in scripts if path.suffix in ENDINGS)
            if any((ours := _OURS.search(head)) and ours[1] == entry.name and made_from.search(head) for head in heads):
                found.add(entry.name)
    return sorted(found)


class Writer:
    """Changes the folder `out`, one file at a time: never half of a file, never one that others can read."""

    def __init__(self, out: Path) -> None:
        # All drafts lie in one folder: a file made in each of 10,000 new folders costs ext4 three times as much.
        self._draft = out / f".draft-{os.getpid()}"
        self._draft.unlink(missing_ok=True)
        self._folder: Path | None = None
        self._rank_program: Path | None = None

    def apply(self, change: FileChange) -> None:
        """Write or remove one file. Raises OSError."""
        if change.after is None:
            change.path.unlink(missing_ok=True)
        elif change.kind == "as before":
            if stat.S_IMODE(change.path.stat().st_mode) != change.after.mode:
                change.path.chmod(change.after.mode)
        else:
            self._replace(change.path, change.after)

    def _replace(self, path: Path, file: ScriptFile) -> None:
        if path.parent != self._folder:
            self._folder = path.parent
            self._folder.mkdir(parents=True, exist_ok=True)
        try:
            self._write_draft(file)
            self._draft.replace(path)
        except OSError:
            self._draft.unlink(missing_ok=True)
            raise
        if file is RANK_PROGRAM:
            self._rank_program = path

    def _write_draft(self, file: ScriptFile) -> None:
        """What every node has alike is one file with many names, where the file system knows how: it fills no disk."""
        if file is RANK_PROGRAM and self._rank_program is not None:
            with contextlib.suppress(OSError):
                os.link(self._rank_program, self._draft)
                return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(self._draft, flags, file.mode), "wb") as stream:
            stream.write(file.data)


def _files(folder: Path) -> dict[str, Path]:
    """The plain files of a folder; a link is nobody's but its maker's."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name: Path(entry.path) for entry in entries if entry.is_file(follow_symlinks=False)}
    except (FileNotFoundError, NotADirectoryError):
        return {}


def _bytes(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()


def _left_behind(there: Mapping[str, Path], one: NodeFiles, endings: Collection[str]) -> dict[str, bool]:
    """What to remove, by name, and whether it is secret."""
    found: dict[str, bool] = {}
    still_needed = False
    for name, path in there.items():
        if path.suffix not in ENDINGS:
            continue
        text = path.read_bytes().decode("utf-8", "replace")
        head = _OURS.search(text[:_HEAD])
        if head is None or head[1] != one.node.name:
            continue
        if path.suffix not in endings:
            still_needed = still_needed or "rank.py" in text
            continue
        if name not in one.files:
            found[name] = False
        for other in there:  # a script names the file with its secrets
            if other.startswith(f"{path.stem}.env") and other not in one.files and other in text:
                found[other] = True
    if "rank.py" in there and "rank.py" not in one.files and not still_needed:
        first_line = RANK_PROGRAM.data.split(b"\n", 1)[0]
        if there["rank.py"].read_bytes().startswith(first_line):
            found["rank.py"] = False
    return found
