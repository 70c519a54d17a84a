"""Finds the logs that a person names by files, folders or `-`, and reads them in chunks, whatever their packing.

Files that are not read are listed, each with its reason, so that they do not count as healthy.
"""

from __future__ import annotations

import io
import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from runbook.diagnose.sources.archives import ZIP_MAGIC, ArchiveMember, is_archive, list_contents
from runbook.diagnose.sources.decoding import Account, Unpacked, UnreadError, decode_log, detect_packing
from runbook.diagnose.sources.own_runs import has_events
from runbook.model.errors import FilesWrong, Problem
from runbook.model.units import parse_number, parse_small_number

CHUNK_BYTES = 1 << 20
PACKED_CHUNK_BYTES = 1 << 17
NON_LOG_SUFFIXES = frozenset(
    """.py .pyc .pyi .ipynb .sh .yml .yaml .so .pt .pth .ckpt .bin .safetensors .onnx .gguf .npy .npz .pkl .h5 .parquet
    .arrow .png .jpg .gif .svg .wandb""".split()
)
"""Endings of programs, settings, weights, data, pictures: not logs, whatever their content."""
RECORDS_SUFFIX = ".jsonl"
"""The ending of files that hold data as often as logs: read only if the user names the file itself."""
TENSORBOARD_EVENTS = re.compile(r"events\.out\.tfevents\.")
TORCHRUN_LOG_PATH = re.compile(r"\A(?P<run>.*)[/\\]attempt_\d+[/\\](?P<rank>\d+)[/\\][^/\\]+$")  # torchrun --log-dir
FILE_TYPE_NAMES = {
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a pipe",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}
TAR_HEAD_BYTES = 262  # bytes of an unpacked head by which a tar is recognised


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log to read: its name as shown, and the rank that wrote it if torchrun's tree of folders shows that."""

    name: str
    path: Path | None  # None: standard input
    rank: int | None = None
    node: str | None = None
    member: ArchiveMember | None = None  # of the archive at `path`

    @property
    def tool(self) -> bool:
        """Whether the file holds a tool's output, and no log."""
        return self.member is not None and self.member.tool

    @property
    def on_disk(self) -> int:
        """The size in bytes of the file on disk that holds the log, packed as it is; 0 if unknown."""
        try:
            return self.path.stat().st_size if self.path else os.fstat(0).st_size
        except OSError:
            return 0

    @property
    def size(self) -> int:
        """The log's size in bytes, if it is known before the log is read; else 0."""
        if self.member is not None:
            return self.member.size
        try:
            return self.path.stat().st_size if self.path else 0
        except OSError:
            return 0


@dataclass(slots=True)
class FoundLogs:
    """The logs that were found. `unread`: (name, reason) for each file that cannot be read; `aside`: files and folders
    that by their names are no logs; `results`: (archive, bytes of `result.json`) for each archive of a run."""

    logs: list[LogFile] = field(default_factory=list)
    unread: list[tuple[str, str]] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    results: list[tuple[str, bytes]] = field(default_factory=list)

    @property
    def anything(self) -> bool:
        return bool(self.logs or self.unread)


def find_logs(named: Sequence[str]) -> FoundLogs:
    """Every log of the files, folders and `-` in `named`; FilesWrong if one of them does not exist or holds no log."""
    problems: list[Problem] = []
    found = FoundLogs()
    for name in dict.fromkeys(named):
        inside = FoundLogs()
        try:
            problem = _add_named_logs(name, inside)
        except OSError as error:  # a name that is too long, a folder on the way that may not be entered
            problem = Problem("arguments.unreadable-log", f"{name}: {error.strerror or error}")
        if problem is not None:
            problems.append(problem)
        found.logs += inside.logs
        found.unread += inside.unread
        found.aside += inside.aside
        found.results += inside.results
    if problems:
        raise FilesWrong(problems)
    found.logs = _with_torchrun_ranks(list({log.name: log for log in found.logs}.values()))
    return found


def _add_named_logs(name: str, inside: FoundLogs) -> Problem | None:
    """Adds the logs that `name` means to `inside`; the problem if there is nothing to read, else None."""
    path = Path(name)
    if name == "-":
        inside.logs.append(LogFile(name, None))
    elif path.is_dir():
        _add_folder(path, inside)
        if not inside.anything and not has_events(path):
            return Problem("arguments.no-logs", f"{name} holds no log")
    elif not path.exists():
        return Problem("arguments.no-such-log", f"there is no file {name}")
    elif not path.is_file() and not path.is_fifo():  # a shell's <(…) is a pipe
        return Problem(
            "arguments.no-such-log", f"{name} is not a regular file: it has no end, or nothing in it is a log"
        )
    elif not os.access(path, os.R_OK):
        return Problem("arguments.unreadable-log", f"{name} may not be read by this user")
    else:
        _add_file(path, inside)
        if not inside.anything:
            return Problem("arguments.no-logs", f"{name} holds no log")
    return None


def log_chunks(log: LogFile, account: Account) -> Iterator[bytes]:
    """The text of a log in UTF-8, unpacked and decoded. A log that breaks off or cannot be understood ends there, and
    `account` is told why."""
    try:
        yield from decode_log(_until_broken(_unpacked_bytes(_Chunks(_packed_bytes(log))), account), account)
    except RecursionError:
        account.unread("it is nested too deeply")


def _until_broken(stream: Iterator[bytes], account: Account) -> Iterator[bytes]:
    """The stream, which ends without an error where reading fails; `account` is told why."""
    try:
        yield from stream
    except UnreadError as error:
        account.unread(str(error))
    except OSError as error:
        account.unread(error.strerror or str(error))


def _packed_bytes(log: LogFile) -> Iterator[bytes]:
    """The bytes of a log, packed as they are."""
    if log.member is not None:
        yield from log.member.chunks(PACKED_CHUNK_BYTES)
    elif log.path is not None:
        with log.path.open("rb", buffering=0) as file:
            yield from _file_bytes(cast("BinaryIO", file))
    elif sys.stdin is None:
        raise UnreadError("it is closed")
    else:
        stream = cast("io.BufferedReader", sys.stdin.buffer)
        yield from iter(lambda: stream.read1(CHUNK_BYTES), b"")


def _unpacked_bytes(raw: _Chunks) -> Iterator[bytes]:
    """The bytes of a log, unpacked; UnreadError for an archive, or for a file that is packed twice."""
    head = raw.peek(TAR_HEAD_BYTES)
    packing = detect_packing(head)
    if packing is None:
        _refuse_archive(head)
        yield from raw.rest()
        return
    stream = Unpacked(cast("BinaryIO", raw), packing)
    unpacked = _Chunks(iter(lambda: stream.read(PACKED_CHUNK_BYTES), b""))
    _refuse_archive(head := unpacked.peek(TAR_HEAD_BYTES))
    if detect_packing(head):
        raise UnreadError("it is packed twice: unpack it once")
    yield from unpacked.rest()


def _refuse_archive(head: bytes) -> None:
    if head.startswith(ZIP_MAGIC) or head[257:262] == b"ustar":
        raise UnreadError(
            "it begins as an archive does, and those are read only whole and as files of their own: unpack "
            "what it lies in, or write it to a file"
        )


class _Chunks:
    """Chunks of bytes whose beginning can be peeked at before they are read; also a file for an unpacker (`read`)."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._held = b""
        self._at = 0  # bytes of `_held` that were read

    def peek(self, count: int) -> bytes:
        """The first bytes, which stay to be read; fewer at the end, or before an error, which is raised on reading."""
        while len(self._held) < count:
            try:
                chunk = next(self._chunks, b"")
            except (UnreadError, OSError) as error:
                self._chunks = _raise_when_read(error)
                break
            if not chunk:
                break
            self._held += chunk
        return self._held[:count]

    def rest(self) -> Iterator[bytes]:
        """All chunks, also those that were peeked at."""
        if self._held:
            held, self._held = self._held, b""
            yield held
        yield from self._chunks

    def read(self, count: int) -> bytes:
        """Up to `count` bytes; empty only at the end."""
        if self._at == len(self._held):
            self._held, self._at = next(self._chunks, b""), 0
        given = self._held[self._at : self._at + count]
        self._at += len(given)
        return given


def _raise_when_read(error: Exception) -> Iterator[bytes]:
    raise error
    yield b""


def _file_bytes(file: BinaryIO) -> Iterator[bytes]:
    """A file's bytes, without most of a hole (a range of NUL bytes that takes no room on disk); UnreadError if the file
    becomes shorter meanwhile."""
    status = os.fstat(file.fileno())
    plain = stat.S_ISREG(status.st_mode)
    at = 0
    while chunk := file.read(CHUNK_BYTES):
        yield chunk
        at += len(chunk)
        if plain and len(chunk) == CHUNK_BYTES and not any(chunk):
            at = _skip_hole(file, at)
    if plain and at < status.st_size:
        raise UnreadError(f"it became shorter while it was read ({status.st_size:,} bytes, {at:,} of them read)")


def _skip_hole(file: BinaryIO, at: int) -> int:
    """The byte at which data goes on behind a hole at byte `at`, to which the file is set; `at` itself if no hole is
    known there."""
    if not hasattr(os, "SEEK_DATA"):
        return at
    try:
        return file.seek(at, os.SEEK_DATA)
    except OSError:
        try:
            return file.seek(0, os.SEEK_END)  # nothing but the hole, up to the end
        except OSError:
            return at


def _add_file(path: Path, found: FoundLogs) -> None:
    """Adds a file as a log, or the logs of an archive."""
    name = str(path)
    if not path.is_file() or not is_archive(path):
        found.logs.append(LogFile(name, path))
        return
    inside = list_contents(path)
    for member in inside.members:
        if _is_no_log(PurePosixPath(member.name).name):
            found.aside.append(f"{name}!{member.name}")
        else:
            found.logs.append(LogFile(f"{name}!{member.name}", path, node=member.node, member=member))
    found.unread += [(f"{name}!{member}" if member else name, why) for member, why in inside.unread]
    if inside.result is not None:
        found.results.append((name, inside.result))


def _add_folder(folder: Path, found: FoundLogs) -> None:
    """Adds the logs under a folder, sorted by the numbers in their names; of a run's folder, only the ranks' logs."""
    if has_events(folder):
        folder = folder / "logs"

    def closed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError) or Path(error.filename) != folder:
            found.unread.append((str(error.filename), f"this folder cannot be read: {error.strerror}"))

    paths: list[Path] = []
    top = os.path.realpath(folder)
    for base, folders, files in os.walk(folder, onerror=closed):
        found.aside += [f"{Path(base) / name}{os.sep}" for name in folders if name.startswith(".")]
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in folders:
            if (path := Path(base) / name).is_symlink() and not Path(os.path.realpath(path)).is_relative_to(top):
                found.unread.append((str(path), "it is a link to a folder elsewhere: name that folder too"))
        paths += [Path(base) / name for name in files]
    for path in sorted(paths, key=_numeric_sort_key):
        _add_folder_file(path, found)


def _add_folder_file(path: Path, found: FoundLogs) -> None:
    """Adds a file that was found in a folder: as a log, as unread with its reason, or as left aside."""
    name = str(path)
    if path.name.startswith(".") or _is_no_log(path.name):
        found.aside.append(name)
        return
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            found.unread.append((name, f"it is {FILE_TYPE_NAMES.get(stat.S_IFMT(status.st_mode), 'no file')}"))
        elif not os.access(path, os.R_OK):
            found.unread.append((name, "this user may not read it"))
        elif path.suffix == RECORDS_SUFFIX:
            found.unread.append((name, "by its name it holds records of data; if it is a log, name it"))
        elif status.st_size:
            _add_file(path, found)
    except OSError as error:
        found.unread.append((name, error.strerror or str(error)))


def _is_no_log(name: str) -> bool:
    return PurePosixPath(name).suffix in NON_LOG_SUFFIXES or TENSORBOARD_EVENTS.match(name) is not None


def _numeric_sort_key(path: Path) -> list[tuple[int, str]]:
    return [
        (parse_number(part), "") if part[:1] in "0123456789" else (-1, part)
        for part in re.split(r"([0-9]+)", str(path))
        if part
    ]


def _with_torchrun_ranks(logs: list[LogFile]) -> list[LogFile]:
    """The logs, with their ranks if they are in one tree of torchrun's: its folders are named by local ranks, which are
    the ranks only if there is one tree."""
    places = {log.name: found for log in logs if (found := TORCHRUN_LOG_PATH.match(log.name))}
    if len({found["run"] for found in places.values()}) != 1:
        return logs
    return [
        replace(log, rank=parse_small_number(places[log.name]["rank"])) if log.name in places else log for log in logs
    ]
