"""Reads logs inside an archive (tar, packed or not, and zip), such as `runbook collect` writes, without unpacking
anything to disk.

An archive may come from an attacker. So names are only shown and never opened, only regular files count, and the
archive's size on disk bounds how much is read and remembered, whatever the archive claims.
"""

from __future__ import annotations

import json
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Protocol

from runbook.diagnose.sources.decoding import (
    FREE_UNPACKED_BYTES,
    MAX_UNPACK_RATIO,
    Unpacked,
    UnreadError,
    detect_packing,
)
from runbook.diagnose.sources.own_runs import MAX_RESULT_BYTES
from runbook.model.run_files import RESULT_FILE
from runbook.model.safe_text import visible_text

TAR_BLOCK_BYTES = tarfile.BLOCKSIZE
MAX_MEMBERS = 50_000
MAX_BASE_MEMBERS = 2000  # members that any archive may have, and one more for each BYTES_PER_MEMBER of its size
BYTES_PER_MEMBER = 100
MAX_HEADER_BYTES = 64 << 10  # bytes of all headers before one member: long names, attributes
MAX_NAME_BYTES = 4096  # bytes: the longest path that a system opens
MAX_ALL_NAMES_BYTES = 8 << 20  # bytes of all names
MAX_DIRECTORY_BYTES = 8 << 20  # bytes of a zip's directory
LONG_NUMBER = re.compile(rb"[0-9]{200}")
COLLECTED_LOG = re.compile(r"run/logs/.+|nodes/(?P<node>[^/]+)/system/kernel-log-of-the-run\.txt")
"""The logs in an archive of `runbook collect`: the ranks' logs, and the kernels' lines since the run began. Other files
show states, not events: last week's Xid is not this run's cause, nor is systemctl's `Host is down`."""
COLLECTED_TOOL_OUTPUT = re.compile(
    r"nodes/(?P<node>[^/]+)/(?!system/kernel-log|python\.txt|processes\.txt).{1,300}\.txt"
)
"""The outputs of tools in an archive of `runbook collect`, which are never read as logs."""
COLLECT_FOLDERS = ("controller/", "nodes/", "run/")
"""Folders of which every archive of `runbook collect` has at least one. Its README.txt and manifest.json do not tell
it: other archives have such files as well."""
REPORTED_ABSENCE = re.compile(r"run/logs(?:/.*)?|nodes/[^/]+")
"""Entries whose absence from an archive of `runbook collect` is reported."""
MAX_MANIFEST_BYTES = 4 << 20  # bytes
COLLECTED_RESULT = f"run/{RESULT_FILE}"
ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
_BROKEN = (ValueError, LookupError, OverflowError, RuntimeError, OSError, EOFError)
_BROKEN_TAR = (tarfile.TarError, *_BROKEN)
_BROKEN_ZIP = (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, *_BROKEN)


class Opened(Protocol):
    """An archive whose members are read in order. It opens itself for the first read; the caller closes it."""

    def read(self, member: ArchiveMember, most: int) -> Iterator[bytes]: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """One plain file of an archive. `at` is where its bytes begin in the unpacked stream, or its number in a zip."""

    archive: Opened
    name: str
    at: int
    size: int
    node: str | None = None
    tool: bool = False  # it holds a tool's output, and no log

    def chunks(self, most: int) -> Iterator[bytes]:
        """The member's bytes, in chunks of at most `most`; UnreadError where they are cut off or damaged."""
        return self.archive.read(self, most)


@dataclass(slots=True)
class Contents:
    """The contents of an archive: its logs, and (name, reason) for each part that cannot be read; an empty name means
    the archive itself. `result`: the bytes of the run's `result.json`, in an archive of `runbook collect`."""

    members: list[ArchiveMember] = field(default_factory=list)
    unread: list[tuple[str, str]] = field(default_factory=list)
    result: bytes | None = None


def is_archive(path: Path) -> bool:
    """Whether a file is a zip or a tar, packed or not: by its content, whatever its name."""
    try:
        with path.open("rb") as file:
            head = file.read(TAR_BLOCK_BYTES)
            if head.startswith(ZIP_MAGIC):
                return True
            packing = detect_packing(head)
            if packing is not None:
                file.seek(0)
                head = _read_exactly(Unpacked(file, packing).read, TAR_BLOCK_BYTES)
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except (UnreadError, *_BROKEN_TAR):
        return False
    return True


def list_contents(path: Path) -> Contents:
    """The contents of an archive, in order. In an archive of `runbook collect` only logs of ranks and kernels and
    outputs of tools count, in any other archive every plain file."""
    found = Contents()
    with path.open("rb") as file:
        zipped = file.read(4) in ZIP_MAGIC
    try:
        (_list_zip if zipped else _list_tar)(path, found)
    except UnreadError as error:
        found.unread.append(("", f"{error}; what comes after that was not read"))
    names = {member.name for member in found.members}
    if {"manifest.json", "README.txt"} <= names and any(name.startswith(COLLECT_FOLDERS) for name in names):
        manifest = next(member for member in found.members if member.name == "manifest.json")
        result = next((member for member in found.members if member.name == COLLECTED_RESULT), None)
        found.members = [known for member in found.members if (known := _collected_member(member))]
        found.unread += _files_left_out(manifest)
        if result is not None:
            try:
                found.result = _read_member(result, MAX_RESULT_BYTES)
            except UnreadError as error:
                found.unread.append((COLLECTED_RESULT, str(error)))
    return found


def _collected_member(member: ArchiveMember) -> ArchiveMember | None:
    """The member with its node, if it is a log or a tool's output in an archive of `runbook collect`; None for any
    other file."""
    if log := COLLECTED_LOG.fullmatch(member.name):
        return replace(member, node=log["node"])
    if tool := COLLECTED_TOOL_OUTPUT.fullmatch(member.name):
        return replace(member, node=tool["node"], tool=True)
    return None


def _files_left_out(manifest: ArchiveMember) -> list[tuple[str, str]]:
    """(name, reason) for each log that `runbook collect` did not bring, or not whole, and each node that did not
    answer: by its manifest."""
    try:
        listed = json.loads(_read_member(manifest, MAX_MANIFEST_BYTES))["files"]
        rows = [{str(key): str(value) for key, value in row.items()} for row in listed]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, UnreadError):
        return [(manifest.name, "it cannot be read: what was left out of the archive is not known")]
    found = [
        (
            printable_name(row["path"]),
            f"`runbook collect` brought its beginning and its end; {row.get('bytes_left_out')} bytes are not here",
        )
        for row in rows
        if row.get("truncated") == "True" and COLLECTED_LOG.fullmatch(row.get("path", ""))
    ]
    return found + [
        (printable_name(row["what"]), f"it is not in the archive: {printable_name(row.get('missing', ''))[:200]}")
        for row in rows
        if row.get("path") == "None" and REPORTED_ABSENCE.fullmatch(row.get("what", ""))
    ]


def _read_member(member: ArchiveMember, most: int) -> bytes:
    """All bytes of a member; UnreadError if it is damaged, or has more than `most` bytes."""
    data = b""
    for chunk in member.chunks(most):
        data += chunk
        if len(data) > most:
            raise UnreadError(f"it has more than {most:,} bytes")
    return data


def printable_name(name: str) -> str:
    """A member's name, safe to print: an archive can hold any name."""
    return visible_text(name[:MAX_NAME_BYTES])


class _Names:
    """Counts the members of an archive and the length of their names."""

    def __init__(self, path: Path) -> None:
        self._packed = path.stat().st_size
        self._members = 0
        self._bytes = 0

    def add(self, name: str) -> None:
        """Counts one more member; UnreadError if no honest archive of this size has so many, or names so long."""
        self._members += 1
        self._bytes += len(name)
        if self._members > MAX_MEMBERS:
            raise UnreadError(f"it has more than {MAX_MEMBERS:,} members")
        if self._members > MAX_BASE_MEMBERS + self._packed // BYTES_PER_MEMBER or self._bytes > MAX_ALL_NAMES_BYTES:
            raise UnreadError(
                f"it has more than {self._members - 1:,} members, or names longer, than its size explains"
            )
        if len(name) > MAX_NAME_BYTES:
            raise UnreadError(f"the name of a member has {len(name):,} characters")


# tar


class Forward(Protocol):
    """A stream of bytes that is only read forward."""

    def tell(self) -> int: ...
    def read(self, most: int) -> bytes: ...
    def seek(self, at: int) -> object: ...


class _Tar:
    """A tar, unpacked while it is read; reading its members in order takes one pass."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._stream: Forward | None = None

    def stream(self) -> Forward:
        """A new stream of the tar's bytes, from the beginning."""
        self.close()
        self._file = self._path.open("rb")
        packing = detect_packing(self._file.read(8))
        self._file.seek(0)
        self._stream = self._file if packing is None else Unpacked(self._file, packing)
        return self._stream

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = self._stream = None

    def read(self, member: ArchiveMember, most: int) -> Iterator[bytes]:
        stream = self._stream
        if stream is None or stream.tell() > member.at:
            stream = self.stream()
        stream.seek(member.at)
        left = member.size
        while left > 0:
            chunk = stream.read(min(most, left))
            if not chunk:
                raise UnreadError("it breaks off: the archive ends in the middle of it")
            yield chunk
            left -= len(chunk)


class _Headers:
    """The file that tarfile reads headers from. tarfile asks for as many bytes as a header claims; it gets UnreadError
    for more than MAX_HEADER_BYTES bytes before one member."""

    def __init__(self, stream: Forward) -> None:
        self.stream = stream
        self.block = b""  # the last block that was read
        self.since = 0  # bytes read since the last member

    def tell(self) -> int:
        return self.stream.tell()

    def seek(self, at: int) -> None:
        if at < self.stream.tell():
            raise UnreadError(f"it is damaged at byte {self.stream.tell():,}: a member has a negative size")
        self.stream.seek(at)

    def read(self, count: int) -> bytes:
        self.since += count
        if count < 0 or self.since > MAX_HEADER_BYTES:
            raise UnreadError(
                f"it is damaged at byte {self.stream.tell():,}: a header of more than {MAX_HEADER_BYTES:,} bytes"
            )
        self.block = _read_exactly(self.stream.read, count)
        if LONG_NUMBER.search(self.block):
            raise UnreadError(f"it is damaged at byte {self.stream.tell():,}: a header with a number of 200 digits")
        return self.block


def _list_tar(path: Path, found: Contents) -> None:
    with closing(_Tar(path)) as tar:
        _list_tar_headers(tar, _Headers(tar.stream()), path, found)


def _list_tar_headers(tar: _Tar, headers: _Headers, path: Path, found: Contents) -> None:
    names = _Names(path)
    plain: set[str] = set()
    links: list[tuple[str, str]] = []
    try:
        # It opens nothing.
        opened = tarfile.open(fileobj=headers, mode="r:")  # type: ignore[call-overload]  # noqa: SIM115
        while True:
            headers.since = 0
            info = opened.next()
            opened.members, opened.pax_headers = [], {}  # it would remember every header
            if info is None:
                break
            names.add(info.name)
            name = printable_name(info.name)
            if info.issparse():
                found.unread.append(
                    (name, "it is stored with holes (GNU sparse): unpack the archive, and give the file")
                )
            elif info.isreg():
                plain.add(info.name)
                if info.size:
                    found.members.append(ArchiveMember(tar, name, info.offset_data, info.size))
            elif info.issym() or info.islnk():
                links.append((info.name, info.linkname[:MAX_NAME_BYTES]))
    except _BROKEN_TAR as error:
        raise UnreadError(f"it breaks off, or is damaged, at byte {headers.tell():,} ({error})") from error
    if len(headers.block) < TAR_BLOCK_BYTES:
        raise UnreadError(f"it breaks off at byte {headers.tell():,}: the mark of its end is missing")
    if headers.block.strip(b"\0"):
        raise UnreadError(f"it is damaged at byte {headers.tell():,}: there is no header of a member")
    while chunk := headers.stream.read(1 << 18):
        if chunk.strip(b"\0"):
            raise UnreadError(f"something follows its end, at byte {headers.tell():,}")
    if found.members:
        found.unread += [
            (printable_name(name), f"it is a link to {printable_name(target)[:200]}, which is not in the archive")
            for name, target in links
            if not _link_leads_to_file(name, target, plain)
        ]


def _link_leads_to_file(name: str, target: str, plain: set[str]) -> bool:
    """Whether a link leads to a file of the archive. A hard link's target is a path from the archive's top, a symbolic
    link's a path from the link's folder."""
    parts: list[str] = []
    for part in [*name.split("/")[:-1], *target.split("/")]:
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    places = {"/".join(parts), target}
    return any(place in plain or f"./{place}" in plain for place in places)


# zip


class _Bounded:
    """The file that zipfile reads from. zipfile reads a directory as large as the archive claims; it gets UnreadError
    for more than MAX_DIRECTORY_BYTES bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell, self.seekable, self.close = file.seek, file.tell, file.seekable, file.close

    def read(self, count: int = -1) -> bytes:
        if count > MAX_DIRECTORY_BYTES:
            raise UnreadError(f"its directory has more than {MAX_DIRECTORY_BYTES:,} bytes")
        return self._file.read(count if count >= 0 else MAX_DIRECTORY_BYTES)


class _Zip:
    """A zip; all that is read of it counts towards one limit, FREE_UNPACKED_BYTES and MAX_UNPACK_RATIO for its size."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._given = 0
        self._most = FREE_UNPACKED_BYTES + MAX_UNPACK_RATIO * path.stat().st_size
        self._file: IO[bytes] | None = None
        self._zip: zipfile.ZipFile | None = None

    def opened(self) -> zipfile.ZipFile:
        if self._zip is None:
            self._file = self._path.open("rb")
            self._zip = zipfile.ZipFile(_Bounded(self._file))
        return self._zip

    def close(self) -> None:
        if self._zip is not None:
            self._zip.close()
        if self._file is not None:
            self._file.close()
        self._zip = self._file = None

    def read(self, member: ArchiveMember, most: int) -> Iterator[bytes]:
        try:
            archive = self.opened()
            with archive.open(archive.infolist()[member.at]) as stream:
                while chunk := stream.read(most):
                    self._given += len(chunk)
                    if self._given > self._most:
                        raise UnreadError(
                            f"its archive unpacks to more than {MAX_UNPACK_RATIO} times its size, and was read up to "
                            "there"
                        )
                    yield chunk
        except _BROKEN_ZIP as error:
            raise UnreadError(f"it is damaged, or breaks off ({error})") from error


def _list_zip(path: Path, found: Contents) -> None:
    try:
        with closing(_Zip(path)) as archive:
            _list_zip_directory(archive, archive.opened().infolist(), path, found)
    except _BROKEN_ZIP as error:
        raise UnreadError(
            f"it is damaged, or breaks off: its directory, which is at its end, cannot be read ({error})"
        ) from error


def _list_zip_directory(archive: _Zip, infos: list[zipfile.ZipInfo], path: Path, found: Contents) -> None:
    names = _Names(path)
    end = 0
    for at in sorted(range(len(infos)), key=lambda at: infos[at].header_offset):
        info = infos[at]
        names.add(info.filename)
        name = printable_name(info.filename)
        if info.is_dir():
            continue
        if why := _unread_reason(info, end):
            found.unread.append((name, why))
            continue
        end = info.header_offset + 30 + info.compress_size
        if info.file_size or info.compress_size:
            found.members.append(ArchiveMember(archive, name, at, info.file_size))


def _unread_reason(info: zipfile.ZipInfo, end: int) -> str:
    """Why a member is not read, in words; empty if it is. `end`: the byte at which the member before it ends."""
    if info.flag_bits & 0x1:
        return "it is encrypted: unpack the archive with its password, and give the files"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return (
            f"it is packed by a method that is not read here ({info.compress_type}): unpack the archive, and give "
            "the files"
        )
    if info.header_offset < end:
        return "it overlaps another member, which no honest archive does"
    return ""


def _read_exactly(read: Callable[[int], bytes], count: int) -> bytes:
    """`count` bytes, or fewer at the end, from a function that may give fewer at once."""
    parts: list[bytes] = []
    while count > 0 and (part := read(count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
