"""The files of groups and their history. A file is written whole or not at all, and only over the very text that the
writer had seen."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from runbook.model.safe_files import open_file_below, rename_if_free
from runbook.serve.store import Store

GROUP_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
GROUP_NAME_HELP = "letters, digits, `_`, `.` and `-`, at most 63, with no `.` or `-` in front"
MAX_GROUP_BYTES = 1 << 20
"""The most bytes of a group's file that is shown and changed here; a larger file is for an editor."""
MAX_GROUP_VERSIONS = 200
"""How many versions of a group are kept."""


class NoGroup(LookupError):
    """There is no such group, or its file cannot be shown."""


class NameTaken(ValueError):
    """Another group has the name, or it is not valid."""


class ChangedMeanwhile(Exception):
    """The file is no longer the one that the change was made for. `now` is the file as it is."""

    def __init__(self, now: GroupFile | None) -> None:
        super().__init__("the file of this group was changed meanwhile, by somebody else or in another tab")
        self.now = now


@dataclass(frozen=True, slots=True)
class GroupFile:
    """The file of a group. `hash` is the SHA-256 of its bytes in hexadecimal; a change names the hash that it was made
    for."""

    name: str
    path: Path
    text: str
    hash: str


@dataclass(frozen=True, slots=True)
class Version:
    """An entry of a group's history: what `person` did at `at` (seconds since 1970). An empty `person` means that the
    file was not changed through this server."""

    id: int
    at: float
    person: str
    what: str
    hash: str


class Groups:
    """The groups in a folder, which is made if it is missing. May be used from several threads."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder = folder
        self._store = store
        self._lock = threading.Lock()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def names(self) -> list[str]:
        """The names of all groups, sorted."""
        with os.scandir(self.folder) as entries:
            found = [entry.name.removesuffix(".yml") for entry in entries if _is_group_file(entry)]
        return sorted(found)

    def path(self, name: str) -> Path:
        """The path at which the group's file is or would be. Raises NoGroup for an invalid name."""
        if not GROUP_NAME.fullmatch(name):
            raise NoGroup(name)
        return self.folder / f"{name}.yml"

    def read(self, name: str) -> GroupFile:
        """The file of a group. A change that was made by hand enters the history here. Raises NoGroup."""
        with self._lock:
            found = self._read(name)
            self._noticed(found)
            return found

    def create(self, name: str, text: str, person: str) -> GroupFile:
        """Make the file of a new group. Raises NameTaken."""
        _refuse_invalid_name(name)
        with self._lock:
            path = self.path(name)
            if os.path.lexists(path):
                raise NameTaken(f"there is a group `{name}` already")
            self._write(path, text)
            self._keep(name, person, "created", text)
            return self._read(name)

    def save(self, name: str, text: str, seen: str, person: str, what: str) -> GroupFile:
        """Replace the file whose hash is `seen` by `text`. Raises ChangedMeanwhile, NoGroup."""
        with self._lock:
            before = self._expected(name, seen)
            if text != before.text:
                self._write(before.path, text)
                self._keep(name, person, what, text)
            return self._read(name)

    def save_two(self, one: tuple[str, str, str], other: tuple[str, str, str], person: str, what: str) -> None:
        """Save two groups, each given as name, text and the hash that was seen: both are changed, or none. Raises
        ChangedMeanwhile, NoGroup."""
        with self._lock:
            before = [self._expected(name, seen) for name, _, seen in (one, other)]
            written: list[GroupFile] = []
            try:
                for group, (_, text, _) in zip(before, (one, other), strict=True):
                    written.append(group)
                    self._write(group.path, text)
            except OSError:
                for group in written:
                    with contextlib.suppress(OSError):
                        self._write(group.path, group.text)
                raise
            for name, text, _ in (one, other):
                self._keep(name, person, what, text)

    def rename(self, name: str, new: str, seen: str, person: str) -> None:
        """Rename a group and its history. Raises ChangedMeanwhile, NoGroup, NameTaken."""
        _refuse_invalid_name(new)
        with self._lock:
            before = self._expected(name, seen)
            try:
                rename_if_free(before.path, self.path(new))
            except FileExistsError:
                raise NameTaken(f"there is a group `{new}` already") from None
            with self._store.write() as db:
                db.execute("UPDATE group_versions SET name = ? WHERE name = ?", (new, name))
            self._keep(new, person, f"renamed from {name}", before.text)

    def delete(self, name: str, seen: str, person: str) -> None:
        """Delete a group's file; its text stays in the history. Raises ChangedMeanwhile, NoGroup."""
        with self._lock:
            before = self._expected(name, seen)
            before.path.unlink()
            self._keep(name, person, "deleted", before.text)

    def history(self, name: str) -> list[Version]:
        """The versions of a group, the latest first."""
        rows = self._store.read(
            "SELECT id, at, person, what, hash FROM group_versions WHERE name = ? ORDER BY id DESC", name
        )
        return [Version(*row) for row in rows]

    def text_of(self, name: str, version: int) -> str | None:
        """The text of a version of this group; None if there is no such version, or no longer."""
        rows = self._store.read("SELECT text FROM group_versions WHERE name = ? AND id = ?", name, version)
        return rows[0]["text"] if rows else None

    def _expected(self, name: str, seen: str) -> GroupFile:
        """The group's file, whose hash must be `seen`. Raises ChangedMeanwhile, NoGroup."""
        now = self._read(name)
        self._noticed(now)
        if not secrets.compare_digest(now.hash.encode(), seen.encode("utf-8", "replace")):
            raise ChangedMeanwhile(now)
        return now

    def _read(self, name: str) -> GroupFile:
        path = self.path(name)
        try:
            with open_file_below(self.folder, path.name) as file:
                data = file.read(MAX_GROUP_BYTES + 1)
        except OSError:
            raise NoGroup(name) from None
        if len(data) > MAX_GROUP_BYTES:
            raise NoGroup(f"{path} is larger than {MAX_GROUP_BYTES >> 20} MiB")
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise NoGroup(f"{path} is not UTF-8") from None
        return GroupFile(name, path, text, hashlib.sha256(data).hexdigest())

    def _noticed(self, now: GroupFile) -> None:
        """Enter the file into the history if its present state was not made through this server."""
        last = self._store.read("SELECT hash FROM group_versions WHERE name = ? ORDER BY id DESC LIMIT 1", now.name)
        if not last or last[0]["hash"] != now.hash:
            self._keep(now.name, "", "changed outside of this server" if last else "found", now.text, now.hash)

    def _keep(self, name: str, person: str, what: str, text: str, hash: str = "") -> None:
        """Enter a version into the history, and forget all but the latest MAX_GROUP_VERSIONS."""
        hash = hash or hashlib.sha256(text.encode()).hexdigest()
        with self._store.write() as db:
            db.execute(
                "INSERT INTO group_versions (name, at, person, what, hash, text) VALUES (?, ?, ?, ?, ?, ?)",
                (name, time.time(), person, what, hash, text),
            )
            db.execute(
                "DELETE FROM group_versions WHERE name = ? AND id NOT IN "
                "(SELECT id FROM group_versions WHERE name = ? ORDER BY id DESC LIMIT ?)",
                (name, name, MAX_GROUP_VERSIONS),
            )

    def _write(self, path: Path, text: str) -> None:
        """Write a file whole or not at all. Raises OSError."""
        draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise


def _refuse_invalid_name(name: str) -> None:
    """Raises NameTaken for a name that no group can have."""
    if not GROUP_NAME.fullmatch(name):
        raise NameTaken(f"`{name[:80]}` cannot be the name of a group: {GROUP_NAME_HELP}")


def _is_group_file(entry: os.DirEntry[str]) -> bool:
    name = entry.name.removesuffix(".yml")
    return name != entry.name and GROUP_NAME.fullmatch(name) is not None and entry.is_file(follow_symlinks=False)
