"""Logs inside a .tar or .tar.gz, such as `runbook collect` writes: read where they lie, nothing is unpacked to disk.

An archive may come from anybody. So names are only shown and never opened, only plain files count, and how much is read
is bounded, whatever the archive says of itself.
"""

from __future__ import annotations

import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

MOST_MEMBERS = 50_000
MOST_BYTES = 4 << 30  # unpacked, of one archive
OURS = re.compile(r"run/logs/.+|nodes/(?P<node>[^/]+)/system/kernel-log-of-the-run\.txt")
"""In an archive of ours: what the ranks and, since the run began, the kernels said. The other files tell how things are,
not what happened: last week's Xid is not this run's cause, nor is systemctl's `Host is down`."""
TOOLS = re.compile(r"nodes/(?P<node>[^/]+)/(?!system/kernel-log|python\.txt|processes\.txt).+\.txt")
"""Those: what tools printed, which is read as such and as nothing else."""
_BROKEN = (tarfile.TarError, EOFError, OSError, zlib.error)


@dataclass(frozen=True, slots=True)
class Member:
    """One plain file of an archive. `at` is where its bytes begin in the unpacked stream."""

    archive: Archive
    name: str
    at: int
    size: int
    node: str | None = None
    tool: bool = False  # it holds a tool's output, and no log

    def chunks(self, most: int) -> Iterator[bytes]:
        """Its bytes; what is cut off or damaged ends there."""
        left, at = self.size, self.at
        while left > 0:
            chunk = self.archive.read(at, min(most, left))
            if not chunk:
                return
            yield chunk
            left, at = left - len(chunk), at + len(chunk)


class Archive:
    """The unpacked stream, open as long as its members are read; in their order that is one pass."""

    def __init__(self, path: Path) -> None:
        self.tar = tarfile.open(path, "r:*")  # noqa: SIM115  lives as long as its members do
        stream = self.tar.fileobj
        assert stream is not None
        self._stream: IO[bytes] = stream  # type: ignore[assignment]

    def read(self, at: int, count: int) -> bytes:
        try:
            self._stream.seek(at)
            return self._stream.read(count)
        except _BROKEN:
            return b""


def is_archive(path: Path) -> bool:
    """By its content: `.tar`, `.tar.gz`, `.tar.bz2` and `.tar.xz`, whatever it is called."""
    try:
        return path.is_file() and tarfile.is_tarfile(path)
    except _BROKEN:
        return False


def members(path: Path) -> list[Member]:
    """Its logs, in their order: of an archive of ours those of ranks and kernels and what tools printed, of any other
    every plain file."""
    archive = Archive(path)
    found: list[Member] = []
    try:
        while len(found) < MOST_MEMBERS and (info := archive.tar.next()) is not None:
            if info.offset_data + info.size > MOST_BYTES:
                break
            if info.isreg() and not info.issparse() and info.size:
                found.append(Member(archive, shown(info.name), info.offset_data, info.size))
    except _BROKEN:
        pass  # cut off on its way here: what came is read
    if {"manifest.json", "README.txt"} <= {member.name for member in found}:
        logs = [(member, match) for member in found if (match := OURS.fullmatch(member.name))]
        tools = [(member, match) for member in found if (match := TOOLS.fullmatch(member.name))]
        ours = {
            **{m.name: replace(m, node=n["node"]) for m, n in logs},
            **{m.name: replace(m, node=n["node"], tool=True) for m, n in tools},
        }
        return [ours[member.name] for member in found if member.name in ours]
    return found


def shown(name: str) -> str:
    """A member's name as it may be printed: an archive can hold any."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name)
