"""Errors of three families: the user's files are wrong, a node could not be reached, and our bugs (any other
exception). `machine_limit_finding` finds limits of this machine, which look like our bugs and are not."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from runbook.model.verdict import Finding


@dataclass(frozen=True, slots=True)
class Span:
    """A place in a file. `line` and `column` count from 1; `length` is in characters on that line."""

    file: str
    line: int
    column: int
    length: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a user's file: a stable id such as `inventory.port-range`, a sentence, and its place."""

    id: str
    message: str
    span: Span | None = None
    help: str | None = None


class RunbookError(Exception):
    """An error that is the user's or the world's to fix; never a bug of ours."""


class FilesWrong(RunbookError):
    """The user's files or arguments are wrong; nothing was run (exit 2). It carries every problem, not only the
    first."""

    def __init__(self, problems: list[Problem]) -> None:
        if not problems:
            raise ValueError("FilesWrong needs at least one problem")
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{p.span}: {p.message}" if p.span else p.message for p in problems))

    @classmethod
    def of(cls, id: str, message: str, *, span: Span | None = None, help: str | None = None) -> FilesWrong:
        """The error with this one problem."""
        return cls([Problem(id, message, span, help)])


class Unreachable(RunbookError):
    """A node could not be reached or stopped answering; `cause` is an id of the catalogue."""

    def __init__(self, cause: str, says: str, remedy: str, evidence: tuple[str, ...] = ()) -> None:
        self.cause = cause
        self.says = says
        self.remedy = remedy
        self.evidence = evidence
        super().__init__(f"{cause}: {says}")

    @property
    def finding(self) -> Finding:
        return Finding(self.cause, self.says, self.remedy, self.evidence)


# Limits of this machine that runbook itself meets: reported as such, and not as a bug of ours.

OPEN_FILES_EXHAUSTED = Finding(
    "open-files-limit",
    "runbook itself may not open as many files as it needs here: too many open files",
    "raise the limit in the shell that starts it, `ulimit -n 4096`, and run it again",
)
CURRENT_FOLDER_GONE = Finding(
    "insufficient-evidence",
    "the folder in which this was called no longer exists",
    "`cd` to one that is, and run it again",
)


def machine_limit_finding(error: BaseException | None) -> Finding | None:
    """The finding about a limit of this machine, if `error` or an exception that led to it comes from one; else
    None."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return OPEN_FILES_EXHAUSTED
        if isinstance(error, ImportError) and os.strerror(errno.EMFILE) in str(error):
            return OPEN_FILES_EXHAUSTED  # the loader of shared libraries says so only in its message
        if isinstance(error, FileNotFoundError) and _is_current_folder_gone():
            return CURRENT_FOLDER_GONE
        error = error.__cause__ or error.__context__
    return None


def _is_current_folder_gone() -> bool:
    try:
        os.getcwd()  # noqa: PTH109  the question is whether there is one
    except FileNotFoundError:
        return True
    return False
