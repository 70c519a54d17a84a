"""The logs that a person means by files, folders, `-`: found, opened whatever their packing, read in chunks."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, cast

from runbook.cli.archives import Member, is_archive, members
from runbook.cli.ownruns import is_run
from runbook.model.errors import FilesWrong, Problem

CHUNK = 1 << 20
NO_LOGS = {".py", ".pyc", ".pt", ".pth", ".bin", ".safetensors", ".npy", ".npz", ".so", ".zip", ".tar", ".png", ".html", ".yml", ".yaml", ".sh", ".jsonl"}  # fmt: skip
PACKINGS = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ")
WIDE = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}  # what PowerShell's `>` writes
ATTEMPT = re.compile(r"(?P<run>.*)[/\\]attempt_\d+[/\\](?P<rank>\d+)[/\\][^/\\]+$")  # torchrun --log-dir


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log to read: its name as it is told, and the rank that wrote it where torchrun's tree tells."""

    name: str
    path: Path | None  # None: standard input
    rank: int | None = None
    node: str | None = None
    member: Member | None = None  # of the archive at `path`
    readable: bool = True

    @property
    def tool(self) -> bool:
        """It holds a tool's output, and no log."""
        return self.member is not None and self.member.tool

    @property
    def size(self) -> int:
        if self.member is not None:
            return self.member.size
        return self.path.stat().st_size if self.path else 0


def find_logs(named: Sequence[str]) -> list[LogFile]:
    """Every log of the files, folders and `-` that were named; FilesWrong when one does not exist or holds none."""
    problems: list[Problem] = []
    found: dict[str, LogFile] = {}
    for name in named:
        path = Path(name)
        if name == "-":
            found.setdefault(name, LogFile(name, None))
        elif path.is_dir():
            inside = [LogFile(str(file), file, readable=os.access(file, os.R_OK)) for file in _inside(path)]
            if not inside and not is_run(path):
                problems.append(Problem("arguments.no-logs", f"{name} holds no log"))
            found.update((log.name, log) for log in inside)
        elif not path.exists():
            problems.append(Problem("arguments.no-such-log", f"there is no file {name}"))
        elif not path.is_file() and not path.is_fifo():  # a shell's <(…) is a pipe
            problems.append(
                Problem("arguments.no-such-log", f"{name} is no file: it has no end, or nothing in it is a log")
            )
        elif not os.access(path, os.R_OK):
            problems.append(Problem("arguments.unreadable-log", f"{name} may not be read by this user"))
        elif is_archive(path):
            inside = [
                LogFile(f"{name}!{member.name}", path, node=member.node, member=member)
                for member in members(path)
                if PurePosixPath(member.name).suffix not in NO_LOGS
            ]
            if not inside:
                problems.append(Problem("arguments.no-logs", f"{name} holds no log"))
            found.update((log.name, log) for log in inside)
        else:
            found.setdefault(name, LogFile(name, path))
    if problems:
        raise FilesWrong(problems)
    return _with_ranks(list(found.values()))


def chunks(log: LogFile, cut: Callable[[], None] = lambda: None) -> Iterator[bytes]:
    """The bytes of a log, unpacked and as UTF-8; a packed one that breaks off ends there, and `cut` is called."""
    if log.path is None:
        yield from _read(sys.stdin.buffer, cut)
        return
    if log.member is not None:
        yield from log.member.chunks(CHUNK)
        return
    with log.path.open("rb") as stream:
        yield from _read(stream, cut)


def _read(stream: IO[bytes], cut: Callable[[], None]) -> Iterator[bytes]:
    head = stream.peek(8)[:8] if hasattr(stream, "peek") else b""
    stream = _unpacked(head, stream)
    decoder: codecs.IncrementalDecoder | None = None
    first = True
    try:
        # What can be unpacked comes out before a broken end is noticed.
        read = stream.read1 if isinstance(stream, io.BufferedIOBase) else stream.read
        while chunk := read(CHUNK):
            if first and (wide := next((name for mark, name in WIDE.items() if chunk.startswith(mark)), None)):
                decoder = codecs.getincrementaldecoder(wide)("replace")
            first = False
            yield decoder.decode(chunk).encode() if decoder else chunk
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile):
        cut()  # the job was killed while its log was being packed: what came out so far counts


def _unpacked(head: bytes, stream: IO[bytes]) -> IO[bytes]:
    """The stream, unpacked as its first bytes tell."""
    if head.startswith(PACKINGS[0]):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=stream))
    if head.startswith(PACKINGS[1]):
        return cast("IO[bytes]", bz2.BZ2File(stream))
    if head.startswith(PACKINGS[2]):
        return cast("IO[bytes]", lzma.LZMAFile(stream))
    return stream


def _inside(folder: Path) -> list[Path]:
    """The logs under a folder, in the order of their numbers; of one of our own runs, what its ranks wrote."""
    if is_run(folder):
        folder = folder / "logs"
    found: list[Path] = []
    for base, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [path for name in files if (path := Path(base) / name).suffix not in NO_LOGS and _is_log(path)]
    return sorted(found, key=_numerically)


def _is_log(path: Path) -> bool:
    """A file of text, packed or not; or one that may not be read: what is in it nobody knows."""
    if not path.is_file():
        return False  # a socket, a pipe, a device
    try:
        with path.open("rb") as stream:
            head = stream.read(4096)
    except PermissionError:
        return not path.name.startswith(".")
    except OSError:
        return False
    if path.name.startswith(".") or not head:
        return False
    return b"\0" not in head or any(head.startswith(magic) for magic in (*PACKINGS, *WIDE))


def _numerically(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def _with_ranks(logs: list[LogFile]) -> list[LogFile]:
    """torchrun's folders are named by local ranks, which are ranks when there is one such tree."""
    places = {log.name: found for log in logs if (found := ATTEMPT.match(log.name))}
    if len({found["run"] for found in places.values()}) != 1:
        return logs
    return [replace(log, rank=int(places[log.name]["rank"])) if log.name in places else log for log in logs]
