"""`activate`: a line for the shell that the node has, and one that leaves something behind."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runbook.lint.rules.written import faulty, named
from runbook.lint.subject import InventoryFile
from runbook.model.errors import Problem

_POSIX = re.compile(r"^\s*source\s|\bexport\s+\w+=|/bin/activate(?![.\w])|^\s*eval\s|\$\(conda\b")
_POSIX_DOT = re.compile(r"^\s*\.\s")  # PowerShell has that as well
_CMD = re.compile(
    r"^\s*@?call\s|\\Scripts\\activate(?!\.ps1)\b|^\s*set\s+\"?\w+=|\.(?:bat|cmd)(?![.\w])", re.IGNORECASE
)
_CMD_VARIABLE = re.compile(r"%\w+%")  # in a POSIX shell `date +%Y%m%d` is nothing special
_POWERSHELL = re.compile(r"\$env:|\.ps1(?![.\w])|^\s*(?:Import-Module|Set-\w+)\s", re.IGNORECASE)
_POWERSHELL_CALL = re.compile(r"^\s*&\s")

_FOREIGN: dict[str, tuple[tuple[str, tuple[re.Pattern[str], ...]], ...]] = {
    "sh": (("cmd", (_CMD,)), ("PowerShell", (_POWERSHELL,))),
    "bat": (("a POSIX shell", (_POSIX, _POSIX_DOT)), ("PowerShell", (_POWERSHELL, _POWERSHELL_CALL))),
    "ps1": (("a POSIX shell", (_POSIX,)), ("cmd", (_CMD, _CMD_VARIABLE))),
}
_EXAMPLES = {
    "sh": ". /opt/venv/bin/activate",
    "bat": r"call C:\venv\Scripts\activate.bat",
    "ps1": r"C:\venv\Scripts\Activate.ps1",
}

_OWN_PROCESS = re.compile(
    r"\A\s*(?:(?:ba|z|da|k|fi)?sh(?:\s|$)|(?:exec|sudo|newgrp|docker|podman|apptainer|singularity|srun|salloc)\s|su(?:\s|$)"
    r"|(?:tmux|screen)(?:\s|$)|conda\s+(?:init|run)\b|(?:poetry|pipenv)\s+shell\b"
    r"|(?:~|\.{0,2})/\S*(?:\.sh|/activate)(?:\s|$))"
)
_SEPARATOR = re.compile(r"[;&|]")


def activate_other_shell(file: InventoryFile) -> Iterator[Problem]:
    for span, nodes, _, written_for in faulty(file, ("activate",), _other_shell):
        shell = nodes[0].shell
        message = f"`activate` is written for {written_for}, and the shell of {named(nodes)} is {shell}"
        yield Problem("inventory.activate-other-shell", message, span, f"for {shell}: {_EXAMPLES[shell]}")


def _other_shell(line: str, shell: str) -> str | None:
    """The shell that the line is written for, if it is not this one."""
    kinds = _FOREIGN.get(shell, ())
    return next((kind for kind, signs in kinds if any(sign.search(line) for sign in signs)), None)


def activate_no_effect(file: InventoryFile) -> Iterator[Problem]:
    for span, nodes, _, word in faulty(file, ("activate",), _own_process):
        message = f"`{word}` starts a process of its own on {named(nodes)}: what it sets ends with it"
        help = "to read a file into the shell write `. FILE`; a container has to be entered before, from outside"
        yield Problem("inventory.activate-no-effect", message, span, help)


def _own_process(line: str, shell: str) -> str | None:
    """The program that a lone command of a POSIX shell starts, where it is known to change nothing for the next."""
    if shell != "sh" or _SEPARATOR.search(line) or _OWN_PROCESS.match(line) is None:
        return None
    return line.split()[0]
