"""Reads and writes files below a folder of ours by names that another party, such as a node or an inventory, may have
chosen.

Two rules keep such a name from reaching any other file: it is one word of harmless characters, and no link is followed
on the way from the folder to the file."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

_PLAIN_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@=-]{0,239}\Z")
_NO_LINK_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # opening a pipe must not block us
_FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_DIR_FD_SUPPORTED = os.open in os.supports_dir_fd  # not on Windows


class BadName(ValueError):
    """A name that is not allowed as the name of a file."""


def checked_file_name(name: object) -> str:
    """The name itself, if it is allowed for a file or a folder: at most 240 ASCII letters, digits and `_.+@=-`, of
    which the first is a letter, a digit or `_`. Raises BadName for any other."""
    if not isinstance(name, str) or not _PLAIN_FILE_NAME.match(name):
        shown = ascii(name)
        raise BadName(f"{shown if len(shown) <= 80 else shown[:77] + '...'} cannot be the name of a file")
    return name


def is_file(path: str | Path) -> bool:
    """Whether a regular file is at the path. `Path.is_file` raises where the path is too long or may not be looked
    at; this gives False."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: str | Path) -> bool:
    """Whether a folder is at the path; False, as in `is_file`, if nobody can tell."""
    return os.path.isdir(path)  # noqa: PTH112


def path_exists(path: str | Path) -> bool:
    """Whether anything is at the path; False, as in `is_file`, if nobody can tell."""
    return os.path.exists(path)  # noqa: PTH110


def rename_if_free(source: Path, target: Path) -> None:
    """Renames a file in its folder, or to another on the same disk. Raises FileExistsError if the target is there: a
    plain rename would replace it. Raises OSError."""
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        source.rename(target)
    else:
        source.unlink()


def path_lookup_error(path: str | Path) -> str | None:
    """The reason, in words, why it cannot be told what is at the path; None if it can, or if nothing is there."""
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:
        return str(error)
    return None


def make_folders_below(folder: Path, *names: str) -> Path:
    """The path of the nested folders `names` below `folder`; makes missing ones, for our user alone. Raises BadName,
    OSError."""
    with _opened_folder(folder, names):
        return folder.joinpath(*names)


def open_append_below(folder: Path, *names: str) -> BinaryIO:
    """The file below `folder` whose path is `names`, open for writing at its end; makes the file and missing folders.
    Raises BadName; OSError also if something is there that is not a plain file of our user with one name."""
    *folders, name = names
    path = folder.joinpath(*names)
    with _opened_folder(folder, folders) as holder:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0) | _NO_LINK_FLAGS
        file = os.fdopen(_open(holder, path, checked_file_name(name), flags), "ab")
    found = os.fstat(file.fileno())
    ours = not hasattr(os, "getuid") or found.st_uid == os.geteuid()
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or not ours:
        file.close()
        raise OSError(errno.EPERM, "what is there is not a file of ours", str(path))
    return file


def write_file_below(folder: Path, *names: str, data: str | bytes) -> None:
    """Writes the file below `folder` whose path is `names`, whole or not at all; it replaces a file that is there.
    Raises BadName, OSError."""
    *folders, name = names
    partial = f"{checked_file_name(name)}.partial"
    with _opened_folder(folder, folders) as holder:
        inside = folder.joinpath(*folders)
        by = {} if holder is None else {"src_dir_fd": holder, "dst_dir_fd": holder}

        def at(one: str) -> str | Path:
            return inside / one if holder is None else one

        with contextlib.suppress(FileNotFoundError):
            os.unlink(at(partial), dir_fd=holder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | _NO_LINK_FLAGS
        try:
            with os.fdopen(_open(holder, inside / partial, partial, flags), "wb") as file:
                file.write(data.encode("utf-8", "replace") if isinstance(data, str) else data)
            os.replace(at(partial), at(name), **by)  # noqa: PTH105  Path.replace() knows no descriptors
        finally:
            with contextlib.suppress(OSError):
                os.unlink(at(partial), dir_fd=holder)


def write_file_atomically(path: str | Path, data: str | bytes, *, mode: int = 0o600) -> None:
    """Writes a file that the user named, whole or not at all; it replaces a regular file that is there, also the one
    that a link leads to. Raises OSError."""
    target = Path(os.path.realpath(path))
    if path_exists(target) and not is_file(target):
        raise OSError(errno.EINVAL, "what is there is not a regular file", str(target))
    descriptor, draft = tempfile.mkstemp(prefix=".runbook-", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data.encode("utf-8", "replace") if isinstance(data, str) else data)
        Path(draft).chmod(mode)
        Path(draft).replace(target)
    finally:
        with contextlib.suppress(OSError):
            Path(draft).unlink()


def open_file_below(folder: Path, *names: str) -> BinaryIO:
    """The file below `folder` whose path is `names`, open for reading; makes nothing. Raises BadName; OSError also if a
    link is on the way, or if it is not a regular file."""
    *folders, name = names
    path = folder.joinpath(*names)
    with _opened_folder(folder, folders, make=False) as holder:
        file = os.fdopen(
            _open(holder, path, checked_file_name(name), os.O_RDONLY | getattr(os, "O_BINARY", 0) | _NO_LINK_FLAGS),
            "rb",
        )
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EPERM, "what is there is not a regular file", str(path))
    return file


def read_json_below(folder: Path, *names: str, most: int) -> dict[str, Any]:
    """The JSON object in the file below `folder` whose path is `names`; empty if there is no such file, it has more
    than `most` bytes, or it holds no JSON object."""
    try:
        with open_file_below(folder, *names) as file:
            data = file.read(most + 1)
        found = json.loads(data) if len(data) <= most else None
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def open_regular_file(path: Path, *, links: bool = True) -> BinaryIO:
    """The file, open for reading, if it is a regular one; `links`: it may be a link to one. Raises OSError for anything
    else; opening a pipe does not block."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    opened = os.open(path, flags | (0 if links else getattr(os, "O_NOFOLLOW", 0)))
    mode = os.fstat(opened).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(opened, "rb")
    os.close(opened)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


@contextlib.contextmanager
def _opened_folder(folder: Path, names: tuple[str, ...] | list[str], *, make: bool = True) -> Iterator[int | None]:
    """A context with a descriptor of the nested folder `names` below `folder`, so that nobody can replace it meanwhile;
    None on a system without descriptors of folders. `make`: makes missing folders. Raises BadName, OSError."""
    for name in names:
        checked_file_name(name)
    if not _DIR_FD_SUPPORTED:
        for name in names:
            folder = folder / name
            if make:
                with contextlib.suppress(FileExistsError):
                    folder.mkdir()
            if folder.is_symlink() or not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        yield None
        return
    holder = os.open(folder, _FOLDER_FLAGS)
    try:
        for name in names:
            folder = folder / name
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=holder)
            try:
                inner = os.open(name, _FOLDER_FLAGS | _NO_LINK_FLAGS, dir_fd=holder)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(folder)) from None
            os.close(holder)
            holder = inner
        yield holder
    finally:
        os.close(holder)


def _open(holder: int | None, path: Path, name: str, flags: int) -> int:
    """A descriptor of the file `name` in the folder `holder`, or of `path` without a holder. OSErrors name `path`."""
    try:
        return os.open(path, flags, 0o600) if holder is None else os.open(name, flags, 0o600, dir_fd=holder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
