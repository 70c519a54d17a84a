"""The archive of gathered texts: which entries it has, which names they may have, and how it is written.

It is one .tar.gz that only its owner can read. It is written whole or not at all, and the same texts give the same
bytes. Names from nodes' answers and of logs are foreign: unpacking an archive must give files below one folder, and
nothing else. So every name passes `refused` before it is written, whatever was checked before.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import io
import json
import os
import re
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

import jinja2

import runbook
from runbook.launch.script import WINDOWS_DEVICES
from runbook.model.safe_files import open_regular_file, rename_if_free

if TYPE_CHECKING:
    from runbook.collect.ask_nodes import NodeAnswer
    from runbook.collect.gather import Gathered

ScrubForm = Literal["text", "json", "json lines", "yaml"]

"""How a file has to be scrubbed."""

MAX_MEMBER_BYTES = 5 * 1024 * 1024
"""The most bytes of a file that are kept: half of them from its beginning, half from its end."""
UNFIT_KIND = "does not fit"
"""The `kind` of an Absent for a part of a node's answer that our program never sends."""


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file of the archive. `command` is the command whose output it is, with its exit `code` and its `seconds`;
    `left_out` counts the bytes that were cut out."""

    path: str
    text: str
    form: ScrubForm = "text"
    node: str | None = None
    command: str | None = None
    code: int | None = None
    seconds: float | None = None
    left_out: int = 0
    trouble: str | None = None  # why it is not as it should be: ended by its deadline, refused, changed since the run


@dataclass(frozen=True, slots=True)
class Absent:
    """A file that the archive lacks, and why. `what` is the path that it would have in the archive."""

    what: str
    why: str
    kind: str = "missing"  # missing | denied | timeout | failed | left out | not asked | does not fit
    node: str | None = None
    command: str | None = None


def read_archive_entry(
    path: Path, place: str, form: ScrubForm = "text", *, below: Path | None = None
) -> ArchiveFile | Absent:
    """A file of this machine, which gets the path `place` in the archive. A large file is cut to its head and its tail,
    at line ends, since half a secret is a secret too. A packed or binary file is left out.

    `below`: a folder from which on no symlink may lead to the file, nor be the file.
    """
    try:
        with open_without_symlinks(path, below) as stream:
            size = os.fstat(stream.fileno()).st_size
            head = stream.read(MAX_MEMBER_BYTES)
            if _is_packed_or_binary(head):
                return Absent(place, "packed or binary: its content cannot be searched", "left out")
            if size <= MAX_MEMBER_BYTES:
                return ArchiveFile(place, decoded_file_text(head), form)
            head = head[: MAX_MEMBER_BYTES // 2]
            stream.seek(max(MAX_MEMBER_BYTES // 2, size - MAX_MEMBER_BYTES // 2))
            tail = stream.read(MAX_MEMBER_BYTES // 2)
    except OSError as error:
        return Absent(place, error.strerror or str(error), "missing")
    head = head[: head.rfind(b"\n") + 1]
    tail = tail.partition(b"\n")[2]
    left_out = size - len(head) - len(tail)
    note = "" if form == "json lines" else f"[... {left_out} bytes left out here ...]\n"
    return ArchiveFile(place, decoded_file_text(head) + note + decoded_file_text(tail), form, left_out=left_out)


def open_without_symlinks(path: Path, below: Path | None = None) -> BinaryIO:
    """A regular file, open for reading. With `below`, the file has to be in that folder without any symlink on the way
    to it. Raises OSError."""
    if below is not None:
        inside = path.relative_to(below)
        if any((below / part).is_symlink() for part in (inside, *inside.parents)):
            raise OSError(errno.ELOOP, "a symlink, which is not followed")
    return open_regular_file(path, links=below is None)


def decoded_file_text(data: bytes) -> str:
    """The text in any bytes: UTF-16 as PowerShell writes it, else UTF-8, with U+FFFD for every byte that fits neither.
    NUL characters are left out."""
    for mark, name in ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig")):
        if data.startswith(mark):
            return data.decode(name, "replace").replace("\0", "")
    return data.decode("utf-8", "replace").replace("\0", "")


_COMPRESSED_BEGINNINGS = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"PK\x03\x04", b"\x28\xb5\x2f\xfd")
_PICKLE_BEGINNINGS = (b"\x80\x03", b"\x80\x04", b"\x80\x05")
PACKED_BEGINNINGS = (*_COMPRESSED_BEGINNINGS, b"\x7fELF", *_PICKLE_BEGINNINGS)
"""How files begin that cannot be searched. PyTorch's flight recorder writes pickles."""


def _is_packed_or_binary(head: bytes) -> bool:
    """Whether a file is compressed or binary by its first bytes."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return False
    start = head[:4096]
    return head.startswith(PACKED_BEGINNINGS) or (
        start.count(b"\0") * 3 > len(start) and start.count(b"\0") * 8 > 5 * len(start)
    )


MAX_PATH_PART_BYTES = 200
MAX_PATH_CHARACTERS = 700
MAX_PATH_PARTS = 12
_PATH_PART = re.compile(r"(?!\.|-)[\w.+@=,~()\[\]{}# -]+(?<![. ])")
"""A part of a path in the archive: without separators, drives or streams of Windows, and control characters; not
hidden, and not readable as an option."""


def path_refusal(path: str) -> str | None:
    """Why no member of the archive may have this path; None for a path that is relative, stays below its folder and is
    valid on any system."""
    parts = path.split("/")
    if (
        len(path) > MAX_PATH_CHARACTERS
        or len(parts) > MAX_PATH_PARTS
        or any(len(part.encode("utf-8", "replace")) > MAX_PATH_PART_BYTES for part in parts)
    ):
        return "its name is too long"
    if not all(_PATH_PART.fullmatch(part) and part.isprintable() for part in parts):
        return "its name is not allowed in an archive"
    if any(WINDOWS_DEVICES.fullmatch(part.partition(".")[0].lower()) for part in parts):
        return "its name is that of a device on Windows"
    return None


class UsedPaths:
    """The paths that are in use in an archive. Upper and lower case count as equal, as on some systems, and a path
    cannot be both a file and a folder."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def take(self, path: str) -> str:
        """The path, now in use; with a number behind a part of it where it would overwrite another file."""
        free = ""
        *folders, _ = parts = path.split("/")
        for depth, part in enumerate(parts):
            wanted, number = f"{free}/{part}".removeprefix("/"), 2
            free = wanted
            while free.casefold() in self._files or (depth == len(folders) and free.casefold() in self._folders):
                free, number = f"{wanted}-{number}", number + 1
            (self._folders if depth < len(folders) else self._files).add(free.casefold())
        return free


def readme_text(gathered: Gathered, name: str) -> str:
    """The text of README.txt, which people read first when they have unpacked the archive `name`."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("runbook.collect", ""),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return templates.get_template("README.txt.j2").render(
        name=gathered.scrubber.text(name),
        version=runbook.__version__,
        hidden=gathered.scrubber.machines is not None,
        counts=taken_out_text(gathered),
        nodes=list(_readme_node_lines(gathered)),
    )


def taken_out_text(gathered: Gathered) -> str:
    """How much was taken out, in words: `3 places with a secret, 1 user name, no e-mail address`."""

    def count(number: int, word: str, many: str) -> str:
        return f"{number or 'no'} {word if number in (0, 1) else many}"

    return ", ".join(
        (
            count(gathered.secrets, "secret", "places with a secret"),
            count(gathered.people, "user name", "user names"),
            count(gathered.mails, "e-mail address", "e-mail addresses"),
        )
    )


def _readme_node_lines(gathered: Gathered) -> Iterator[str]:
    """A line of README.txt for each node: what it gave, or why it was not asked."""
    if not gathered.nodes:
        yield "  none was asked: there was no inventory"
    kinds = Counter((one.node, one.kind) for one in gathered.absent)
    for node in gathered.nodes:
        shown = gathered.scrubber.text(node.node)
        if node.failure is None:
            yield (
                f"  {shown}: "
                f"{answer_counts_text(node, *(kinds[shown, kind] for kind in ('missing', 'denied', UNFIT_KIND)))}"
            )
        else:
            yield f"  {shown}: not asked: {node.failure.cause}: {gathered.scrubber.text(node.failure.says)}"


def answer_counts_text(node: NodeAnswer, missing: int, denied: int, unfit: int) -> str:
    """What a node gave, in words: `71 answers, 14 tools or files are not there, 6 need rights that this login does not
    have`."""
    parts = [f"{len(node.entries)} answers"]
    parts += [f"{missing} tools or files are not there"] * bool(missing)
    parts += [f"{denied} need rights that this login does not have"] * bool(denied)
    parts += [f"{unfit} were not what is sent for them, and are left out"] * bool(unfit)
    return ", ".join(parts)


MEMBER_MODE = 0o600
"""The permissions of every member."""


def archive_files(gathered: Gathered, name: str, when: float) -> dict[str, bytes]:
    """The bytes of every member by its path, in order: README.txt and manifest.json, which describe the others, first.
    `when` is the time of collection, in seconds since 1970."""
    files: dict[str, bytes] = {}
    taken = UsedPaths()
    for ours in ("README.txt", "manifest.json"):
        taken.take(ours)
    described: list[dict[str, object]] = []
    for entry in gathered.entries:
        path = taken.take(entry.path)
        # "replace" is for a half of a surrogate pair, which UTF-8 cannot hold: a log may be cut in the middle of one.
        data = entry.text.encode("utf-8", "replace")
        files[path] = data
        described.append(
            {
                "path": path,
                "size": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
                "node": entry.node,
                "command": entry.command,
                "exit_code": entry.code,
                "seconds": entry.seconds,
                "truncated": entry.left_out > 0,
                "bytes_left_out": entry.left_out,
                "trouble": entry.trouble,
                "missing": None,
            }
        )
    described += [
        {"path": None, "what": one.what, "node": one.node, "command": one.command, "missing": one.why, "kind": one.kind}
        for one in gathered.absent
    ]
    page = readme_text(gathered, name).encode("utf-8", "replace")
    manifest = {
        "version": 1,
        "runbook": runbook.__version__,
        "collected": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when)),
        "taken_out": {"secrets": gathered.secrets, "people": gathered.people, "mail_addresses": gathered.mails},
        "addresses_hidden": gathered.scrubber.machines is not None,
        "files": [{"path": "README.txt", "size": len(page), "sha256": hashlib.sha256(page).hexdigest()}, *described],
    }
    return {"README.txt": page, "manifest.json": json.dumps(manifest, indent=1).encode() + b"\n", **files}


def pack_archive(files: dict[str, bytes], when: float) -> bytes:
    """The bytes of the .tar.gz with these members. Its headers name no owner, no host and no path of this machine."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=int(when)) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path, data in files.items():
            member = tarfile.TarInfo(path)
            member.size, member.mtime, member.mode = len(data), int(when), MEMBER_MODE
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def write_archive(data: bytes, out: Path) -> None:
    """Write the archive to the new file `out`. Raises FileExistsError if the file exists by now, or OSError; in both
    cases nothing is left behind."""
    folder = out.resolve().parent
    descriptor, draft = tempfile.mkstemp(prefix=".runbook-collect-", dir=folder)  # readable by its owner alone
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        rename_if_free(Path(draft), out)
    finally:
        with contextlib.suppress(OSError):
            Path(draft).unlink()
