"""`agent.yml`: what the owner of a node allows the server to do there. Without the file: what an SSH login would.

users: [ann, ops]          # people of the server, by name, who may run anything here at all: whoever pressed the button, or
                           # whom RUNBOOK_PERSON names where `runbook` is typed on the server
workdirs: [/scratch/rb]    # a run's workdir has to be one of these, or below one
commands: look             # all | look: this host's own programs that look, `ps` and `stop`; no shell, no launch, no other program
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from runbook.agent.protocol import Open
from runbook.load.document import read_document
from runbook.model.errors import FilesWrong, Problem

ALL, LOOK = "all", "look"


class _Given(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    users: list[str] | None = None
    workdirs: list[str] = []
    commands: str = ALL


@dataclass(frozen=True, slots=True)
class OwnerRules:
    """`users` None: everybody whom the server lets run things."""

    users: frozenset[str] | None = None
    workdirs: tuple[str, ...] = ()
    looks_only: bool = False

    def against(self, order: Open) -> str | None:
        """Why a channel is not opened; None where nothing speaks against it."""
        if self.users is not None and order.person not in self.users:
            who = repr(order.person) if order.person else "a command without a name (set RUNBOOK_PERSON on the server)"
            return f"agent.yml of this node lets {', '.join(sorted(self.users)) or 'nobody'} run things, and not {who}"
        return self.against_workdir(order.workdir)

    def against_workdir(self, workdir: str) -> str | None:
        if self.workdirs and not any(_below(workdir, one) for one in self.workdirs):
            return f"agent.yml of this node allows the workdirs {', '.join(self.workdirs)}, and not {workdir!r}"
        return None


def read_rules(path: Path) -> OwnerRules:
    """Raises FilesWrong: rules that cannot be read allow nothing."""
    if not path.exists():
        return OwnerRules()
    document = read_document(path)
    problems = list(document.problems)
    if not problems:
        try:
            given = msgspec.convert(document.data, _Given)
            if given.commands in (ALL, LOOK):
                users = None if given.users is None else frozenset(given.users)
                return OwnerRules(users, tuple(given.workdirs), given.commands == LOOK)
            problems = [Problem("agent.rules", f"`commands` is {ALL} or {LOOK}", document.span("commands"))]
        except msgspec.ValidationError as error:
            problems = [Problem("agent.rules", str(error), document.span(), "keys are users, workdirs and commands")]
    raise FilesWrong(problems)


def _below(path: str, folder: str) -> bool:
    """Whether a path is a folder, or below it, once links are followed."""
    one, above = (os.path.realpath(Path.home() / Path(text).expanduser()) for text in (path, folder))
    return os.path.commonpath([one, above]) == above
