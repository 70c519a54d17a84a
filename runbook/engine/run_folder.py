"""Finds or makes the folder of a run, and makes sure that it is this user's and that no other run uses it meanwhile."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from runbook.model.errors import FilesWrong, machine_limit_finding
from runbook.model.run_files import EVENTS_FILE, MAX_EVENT_LINE_BYTES, RESULT_FILE
from runbook.model.safe_files import is_file, read_json_below

RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")
"""The id of a run: when it began, in local time, and six random digits."""

RUN_FOLDER_FILES = (EVENTS_FILE, RESULT_FILE, "report.html", "crash.txt", "links.csv", "logs", "hang")
"""The names of a run's files and folders in the run folder."""
JOB_ENDING_FILE = "ending.json"
"""The file that marks that the job of a run is to end: its follower then no longer waits for silent nodes. It holds who
asked for the end, `at` which time (in seconds since 1970), and whether `now`, without the ranks' grace."""

MAX_ENDING_FILE_BYTES = 4096
"""The most bytes of that file that are read."""


def new_run_id() -> str:
    """An id for a run that begins now."""
    return time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3)


@contextlib.contextmanager
def run_folder(named: str | None, run_id: str, note: Callable[[str], object] = lambda text: None) -> Iterator[Path]:
    """The folder `named`, locked against other runs for as long as the `with` block lasts; without a name, a new folder
    for this id. A named folder may have been used before: the files of the earlier run are moved to a folder beside it,
    and `note` is called with a sentence that says where. Raises FilesWrong."""
    if named is None:
        yield _make_run_folder(run_id)
        return
    path = Path(named)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        holder = _lock_folder(path)
    except OSError as error:
        if machine_limit_finding(error):
            raise  # not a fault of the name
        raise _run_dir_error(f"--run-dir {named}: {error.strerror}") from None
    try:
        if used := [name for name in RUN_FOLDER_FILES if os.path.lexists(path / name)]:
            note(f"{named} held the files of an earlier run: they are in {_move_earlier_run(path, used)} now")
        yield path
    finally:
        if holder is not None:
            os.close(holder)


def is_immediate_end_asked(run_dir: Path, since: float) -> bool:
    """Whether somebody has asked, at the time `since` or later, that the job of a run ends without its ranks' grace."""
    wish = read_json_below(run_dir, JOB_ENDING_FILE, most=MAX_ENDING_FILE_BYTES)
    at = wish.get("at")
    return bool(wish.get("now")) and isinstance(at, int | float) and at >= since


@contextlib.contextmanager
def resumed_run_folder(named: str) -> Iterator[Path]:
    """The folder of this user's run that is to go on, locked as in `run_folder`. Raises FilesWrong."""
    path = Path(named)
    try:
        holder = _lock_folder(path)
    except OSError as error:
        raise _run_dir_error(f"--run-dir {named}: {error.strerror}") from None
    try:
        if not _is_our_run(path, [name for name in RUN_FOLDER_FILES if os.path.lexists(path / name)]):
            raise _run_dir_error(f"--run-dir {named}: no run of this user wrote what is there")
        yield path
    finally:
        if holder is not None:
            os.close(holder)


def default_parents() -> list[Path]:
    """The folders in which a run without a named folder makes its own, in the first that can be used: in the working
    directory, and in the user's folder for state (XDG_STATE_HOME)."""
    here, state = Path(".runbook", "runs"), Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        try:
            state = Path.home() / ".local" / "state"
        except RuntimeError:  # neither HOME nor an entry for this user
            return [here]
    return [here, state / "runbook" / "runs"]


def latest_run() -> Path | None:
    """The folder of the newest of this user's runs in `default_parents()`, or None. The names of runs begin with their
    time."""
    found: list[Path] = []
    for home in default_parents():
        with contextlib.suppress(OSError):
            if hasattr(os, "getuid") and home.stat().st_uid != os.geteuid():
                continue  # in a folder like /tmp any user may create one with our name
            found += filter(is_run_folder, home.iterdir())
    return max(found, key=lambda run: run.name, default=None)


def is_run_folder(path: Path) -> bool:
    return is_file(path / EVENTS_FILE) or is_file(path / RESULT_FILE)


def _make_run_folder(run_id: str) -> Path:
    """A new folder for a run, in the first of `default_parents()` that can be used, else a temporary one. Raises
    FilesWrong."""
    for home in default_parents():
        above = home.parent.parent
        try:
            if above != Path():
                above.mkdir(mode=0o700, parents=True, exist_ok=True)
                _require_own_folder(above)
            for folder in (home.parent, home):
                folder.mkdir(mode=0o700, exist_ok=True)
                _require_own_folder(folder, private=True)
            (home / run_id).mkdir(mode=0o700)
        except OSError:
            continue
        return home / run_id
    try:
        return Path(tempfile.mkdtemp(prefix=f"runbook-{run_id}-"))
    except OSError:
        raise _run_dir_error("no folder for this run's files can be made", "name one: --run-dir") from None


def _require_own_folder(folder: Path, *, private: bool = False) -> None:
    """Raises OSError if a folder, or the link to it, is not this user's. A `private` folder loses the permissions of
    others to write."""
    if not hasattr(os, "getuid"):
        return
    status = folder.stat()
    if {status.st_uid, folder.lstat().st_uid} != {os.geteuid()}:
        raise PermissionError(errno.EPERM, "it is another user's", str(folder))
    if private and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        folder.chmod(stat.S_IMODE(status.st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))


def _lock_folder(path: Path) -> int | None:
    """A descriptor that locks a folder against other runs; None if the system has no such locks. Raises OSError if
    another run holds the lock, or the folder is another user's."""
    try:
        import fcntl
    except ImportError:
        return None
    if path.stat().st_uid not in (os.geteuid(), 0):
        raise PermissionError(
            errno.EPERM, "it belongs to another user, who could change this run's files: name a folder of your own"
        )
    holder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(holder)
        raise BlockingIOError(errno.EAGAIN, "another run uses it now: name another folder, or wait") from None
    except OSError:
        pass  # a file system without locks: other runs cannot be kept out
    return holder


def _move_earlier_run(path: Path, used: Sequence[str]) -> Path:
    """Moves the files of an earlier run to the first of PATH.1, PATH.2, … that is free; that path. Raises FilesWrong if
    the files are not those of this user's run."""
    names = ", ".join(used)
    if not _is_our_run(path, used):
        raise _run_dir_error(
            f"{path} holds {names}, which no run of this user wrote: nothing is overwritten",
            "name another folder, or remove what is there",
        )
    whole = Path(os.path.abspath(path))  # noqa: PTH100  a link stays the one that was named
    for number in itertools.count(1):
        aside = whole.with_name(f"{whole.name}.{number}")
        try:
            aside.mkdir(mode=0o700)
        except FileExistsError:
            continue
        except OSError as error:
            raise _run_dir_error(
                f"{path} holds {names} of an earlier run, and {aside} cannot be made: {error.strerror}"
            ) from None
        break
    try:
        for name in used:
            (path / name).rename(aside / name)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.rmdir()
        raise _run_dir_error(f"{path}: {name} of an earlier run cannot be moved aside: {error.strerror}") from None
    return path.with_name(aside.name) if path.name else aside


def _is_our_run(path: Path, used: Sequence[str]) -> bool:
    """Whether each of these files or folders is this user's and no link, and the events begin like those of a run."""
    for name in used:
        status = (path / name).lstat()
        kind = stat.S_ISDIR if name in ("logs", "hang") else stat.S_ISREG
        if not kind(status.st_mode) or (hasattr(os, "getuid") and status.st_uid != os.geteuid()):
            return False
    try:
        with (path / EVENTS_FILE).open("rb") as events:
            first = json.loads(events.readline(MAX_EVENT_LINE_BYTES) or b"{}")
    except (OSError, ValueError, RecursionError):
        return False
    return first == {} or (isinstance(first, dict) and first.get("event") == "run-started")


def _run_dir_error(message: str, help: str | None = None) -> FilesWrong:
    return FilesWrong.of("arguments.run-dir", message, help=help)
