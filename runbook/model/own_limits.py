"""Limits of this machine that runbook itself meets (too many open files, a working folder that is gone): reported as
such, and not as a bug of ours."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lack:
    """`cause` is an id of the catalogue."""

    cause: str
    says: str
    remedy: str


FILES = Lack(
    "open-files-limit",
    "runbook itself may not open as many files as it needs here: too many open files",
    "raise the limit in the shell that starts it, `ulimit -n 4096`, and run it again",
)
FOLDER = Lack(
    "insufficient-evidence",
    "the folder in which this was called no longer exists",
    "`cd` to one that is, and run it again",
)


def lack_behind(error: BaseException | None) -> Lack | None:
    """The limit behind `error`, or behind what led to it; None if there is none."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return FILES
        if isinstance(error, ImportError) and os.strerror(errno.EMFILE) in str(error):
            return FILES  # the loader of shared libraries says so only in its message
        if isinstance(error, FileNotFoundError) and _folder_gone():
            return FOLDER
        error = error.__cause__ or error.__context__
    return None


def _folder_gone() -> bool:
    try:
        os.getcwd()  # noqa: PTH109  the question is whether there is one
    except FileNotFoundError:
        return True
    return False
