"""Paths on a node and on the controller: in the style of their system, complete, and of the right kind of file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runbook.lint.rules.written import faulty, named
from runbook.lint.subject import InventoryFile
from runbook.model.errors import Problem
from runbook.model.inventory import Node

_SLASH = re.compile(r"[/\\]")
UNEXPANDED = re.compile(r"\$\{?[A-Za-z_]|\$\(|%[A-Za-z_]\w*%|`")
WRITE_OUT = "write it out; `~/` is the home folder"
_PROGRAMS = frozenset(
    ["python", "python3", "conda", "mamba", "uv", "poetry", "pipenv", "env", "sudo", "docker", "podman", "srun", "exec"]
)
_OLD = re.compile(r"\A(?:.*[/\\])?python(?:2(?:\.[0-9]+)?|3\.[0-7])(?:\.exe)?")
_EXAMPLES = {
    ("python", True): r"C:\venv\Scripts\python.exe",
    ("python", False): "/opt/venv/bin/python",
    ("workdir", True): r"D:\runbook",
    ("workdir", False): "/scratch/runbook",
}


def foreign_path(file: InventoryFile) -> Iterator[Problem]:
    for key in ("python", "workdir"):
        for span, nodes, text, style in faulty(file, (key,), _foreign):
            node = nodes[0]
            system = "Windows" if node.windows else "no Windows"
            message = f"`{text}` is a {style} path, and with `shell: {node.shell}` {named(nodes)} {_is(nodes)} {system}"
            yield Problem("inventory.foreign-path", message, span, f"for example {_EXAMPLES[key, node.windows]}")


def _foreign(text: str, shell: str) -> str | None:
    """The style of a path that is not the node's own."""
    if shell != "sh":
        return "POSIX" if text.startswith("/") and not text.startswith("//") else None
    return "Windows" if "\\" in text or re.match(r"[A-Za-z]:/", text) else None


def _is(nodes: list[Node]) -> str:
    return "is" if len(nodes) == 1 else "are"


def not_expanded(file: InventoryFile) -> Iterator[Problem]:
    """They are quoted: no shell ever sees what is in them."""
    for key in (("python",), ("workdir",), ("ssh", "key")):
        for span, _, text, _ in faulty(file, key, lambda text, _: UNEXPANDED.search(text)):
            message = f"`{text}` is taken as it stands: no shell replaces anything in it"
            yield Problem("inventory.not-expanded", message, span, WRITE_OUT)


def python_not_a_program(file: InventoryFile) -> Iterator[Problem]:
    for span, _, text, what in faulty(file, ("python",), lambda text, _: _no_program(text)):
        message = f"`{text}` is {what}, and `python` wants the path of one program"
        help = "for example /opt/venv/bin/python; what must run before it goes into `activate`"
        yield Problem("inventory.python-not-a-program", message, span, help)


def _no_program(python: str) -> str | None:
    words = python.split()
    if len(words) > 1 and _SLASH.split(words[0])[-1] in _PROGRAMS:
        return "a command with arguments"
    if re.search(r"[/\\]$|[/\\](?:bin|Scripts)$", python):
        return "a folder"
    return "a script for shells" if re.search(r"[/\\]activate(?:\.\w+)?$", python) else None


def python_too_old(file: InventoryFile) -> Iterator[Problem]:
    for span, nodes, text, _ in faulty(file, ("python",), lambda text, _: _OLD.fullmatch(text)):
        message = f"`{text}` on {named(nodes)}: what runs on a node needs Python 3.8 or newer"
        yield Problem("inventory.python-too-old", message, span, "name a newer one")


def key_format(file: InventoryFile) -> Iterator[Problem]:
    for span, _, text, what in faulty(file, ("ssh", "key"), lambda text, _: _no_key(text)):
        yield Problem("inventory.key-format", f"`{text}` is {what[0]}", span, what[1])


def _no_key(path: str) -> tuple[str, str] | None:
    if path.lower().endswith(".pub"):
        return "the public half, which opens no door", f"name the private one: {path[:-4]}"
    if path.lower().endswith(".ppk"):
        return "a key of PuTTY's, which OpenSSH does not read", "in PuTTYgen: Conversions, Export OpenSSH key"
    return None


def key_in_project(file: InventoryFile) -> Iterator[Problem]:
    """It lies where runbook is started, most often in a repository."""

    def relative(path: str, _: str) -> bool | None:
        return None if path.startswith(("~", "/", "\\", "$", "%")) or re.match(r"[A-Za-z]:", path) else True

    for span, _, text, _ in faulty(file, ("ssh", "key"), relative):
        message = f"`{text}` is looked for in the folder that runbook is started from"
        help = "keep keys out of projects: for example ~/.ssh/id_ed25519"
        yield Problem("inventory.key-in-project", message, span, help)
