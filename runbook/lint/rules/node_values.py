"""Rules about values of a node's settings: paths, the Python, `activate`, and words left over from an example."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runbook.files.yaml_document import iterate_scalars
from runbook.lint.rule_inputs import InventoryFile, faulty_texts, is_or_are, named_nodes
from runbook.model.errors import Problem, Span

_SLASH = re.compile(r"[/\\]")
UNEXPANDED_VARIABLE = re.compile(r"\$\{?[A-Za-z_]|\$\(|%[A-Za-z_]\w*%|`")
_PROGRAMS = frozenset(
    ["python", "python3", "conda", "mamba", "uv", "poetry", "pipenv", "env", "sudo", "docker", "podman", "srun", "exec"]
)
_OLD_PYTHON = re.compile(r"\A(?:.*[/\\])?python(?:2(?:\.[0-9]+)?|3\.[0-7])(?:\.exe)?")
_EXAMPLE_PATHS = {
    ("python", True): r"C:\venv\Scripts\python.exe",
    ("python", False): "/opt/venv/bin/python",
    ("workdir", True): r"D:\runbook",
    ("workdir", False): "/scratch/runbook",
}


def foreign_path(file: InventoryFile) -> Iterator[Problem]:
    for key in ("python", "workdir"):
        for span, nodes, text, style in faulty_texts(file, (key,), _foreign_path_style):
            node = nodes[0]
            system = "Windows" if node.windows else "no Windows"
            message = (
                f"`{text}` is a {style} path, and with `shell: {node.shell}` "
                f"{named_nodes(nodes)} {is_or_are(nodes)} {system}"
            )
            yield Problem("inventory.foreign-path", message, span, f"for example {_EXAMPLE_PATHS[key, node.windows]}")


def _foreign_path_style(text: str, shell: str) -> str | None:
    """The style of a path, `POSIX` or `Windows`, if it is not that of the node's system; None if it is."""
    if shell != "sh":
        return "POSIX" if text.startswith("/") and not text.startswith("//") else None
    return "Windows" if "\\" in text or re.match(r"[A-Za-z]:/", text) else None


def not_expanded(file: InventoryFile) -> Iterator[Problem]:
    """Reports paths with text that only a shell would replace: paths are quoted, and no shell sees what is in them."""
    for key in (("python",), ("workdir",), ("ssh", "key")):
        for span, _, text, _ in faulty_texts(file, key, lambda text, _: UNEXPANDED_VARIABLE.search(text)):
            yield not_expanded_problem(text, span)


def not_expanded_problem(text: str, span: Span | None) -> Problem:
    message = f"`{text}` is taken as it is: no shell replaces anything in it"
    return Problem("inventory.not-expanded", message, span, "write it out; `~/` is the home folder")


def python_not_a_program(file: InventoryFile) -> Iterator[Problem]:
    for span, _, text, what in faulty_texts(file, ("python",), lambda text, _: _non_program_kind(text)):
        message = f"`{text}` is {what}, and `python` must be the path of one program"
        help = "for example /opt/venv/bin/python; what must run before it goes into `activate`"
        yield Problem("inventory.python-not-a-program", message, span, help)


def _non_program_kind(python: str) -> str | None:
    words = python.split()
    if len(words) > 1 and _SLASH.split(words[0])[-1] in _PROGRAMS:
        return "a command with arguments"
    if re.search(r"[/\\]$|[/\\](?:bin|Scripts)$", python):
        return "a folder"
    return "a script for shells" if re.search(r"[/\\]activate(?:\.\w+)?$", python) else None


def python_too_old(file: InventoryFile) -> Iterator[Problem]:
    for span, nodes, text, _ in faulty_texts(file, ("python",), lambda text, _: _OLD_PYTHON.fullmatch(text)):
        message = f"`{text}` on {named_nodes(nodes)}: what runs on a node needs Python 3.8 or newer"
        yield Problem("inventory.python-too-old", message, span, "name a newer one")


def key_format(file: InventoryFile) -> Iterator[Problem]:
    for span, _, text, what in faulty_texts(file, ("ssh", "key"), lambda text, _: _key_format_fault(text)):
        yield Problem("inventory.key-format", f"`{text}` is {what[0]}", span, what[1])


def _key_format_fault(path: str) -> tuple[str, str] | None:
    if path.lower().endswith(".pub"):
        return "the public half, with which nobody can log in", f"name the private one: {path[:-4]}"
    if path.lower().endswith(".ppk"):
        return "a key of PuTTY's, which OpenSSH does not read", "in PuTTYgen: Conversions, Export OpenSSH key"
    return None


def key_in_project(file: InventoryFile) -> Iterator[Problem]:
    """Reports a relative path of a key: it is looked for where runbook is started, most often in a repository."""

    def relative(path: str, _: str) -> bool | None:
        return None if path.startswith(("~", "/", "\\", "$", "%")) or re.match(r"[A-Za-z]:", path) else True

    for span, _, text, _ in faulty_texts(file, ("ssh", "key"), relative):
        message = f"`{text}` is looked for in the folder that runbook is started from"
        help = "keep keys out of projects: for example ~/.ssh/id_ed25519"
        yield Problem("inventory.key-in-project", message, span, help)


# `activate`: a line for the shell of the node, which has an effect on that shell.

_POSIX = re.compile(r"^\s*source\s|\bexport\s+\w+=|/bin/activate(?![.\w])|^\s*eval\s|\$\(conda\b")
_POSIX_DOT = re.compile(r"^\s*\.\s")  # PowerShell has that as well
_CMD = re.compile(
    r"^\s*@?call\s|\\Scripts\\activate(?!\.ps1)\b|^\s*set\s+\"?\w+=|\.(?:bat|cmd)(?![.\w])", re.IGNORECASE
)
_CMD_VARIABLE = re.compile(r"%\w+%")  # in a POSIX shell `date +%Y%m%d` is nothing special
_POWERSHELL = re.compile(r"\$env:|\.ps1(?![.\w])|^\s*(?:Import-Module|Set-\w+)\s", re.IGNORECASE)
_POWERSHELL_CALL = re.compile(r"^\s*&\s")

_FOREIGN_SHELL_SYNTAX: dict[str, tuple[tuple[str, tuple[re.Pattern[str], ...]], ...]] = {
    "sh": (("cmd", (_CMD,)), ("PowerShell", (_POWERSHELL,))),
    "bat": (("a POSIX shell", (_POSIX, _POSIX_DOT)), ("PowerShell", (_POWERSHELL, _POWERSHELL_CALL))),
    "ps1": (("a POSIX shell", (_POSIX,)), ("cmd", (_CMD, _CMD_VARIABLE))),
}
_EXAMPLE_LINES = {
    "sh": ". /opt/venv/bin/activate",
    "bat": r"call C:\venv\Scripts\activate.bat",
    "ps1": r"C:\venv\Scripts\Activate.ps1",
}

_SUBPROCESS_COMMAND = re.compile(
    r"\A\s*(?:(?:ba|z|da|k|fi)?sh(?:\s|$)|su(?:\s|$)"
    r"|(?:exec|sudo|newgrp|docker|podman|apptainer|singularity|srun|salloc)\s"
    r"|(?:tmux|screen)(?:\s|$)|conda\s+(?:init|run)\b|(?:poetry|pipenv)\s+shell\b"
    r"|(?:~|\.{0,2})/\S*(?:\.sh|/activate)(?:\s|$))"
)
_SEPARATOR = re.compile(r"[;&|]")


def activate_other_shell(file: InventoryFile) -> Iterator[Problem]:
    for span, nodes, _, written_for in faulty_texts(file, ("activate",), _foreign_shell):
        shell = nodes[0].shell
        message = f"`activate` is written for {written_for}, and the shell of {named_nodes(nodes)} is {shell}"
        yield Problem("inventory.activate-other-shell", message, span, f"for {shell}: {_EXAMPLE_LINES[shell]}")


def _foreign_shell(line: str, shell: str) -> str | None:
    """The shell that the line is written for, if it is not `shell`; None otherwise."""
    kinds = _FOREIGN_SHELL_SYNTAX.get(shell, ())
    return next((kind for kind, signs in kinds if any(sign.search(line) for sign in signs)), None)


def activate_no_effect(file: InventoryFile) -> Iterator[Problem]:
    for span, nodes, _, word in faulty_texts(file, ("activate",), _subprocess_program):
        message = f"`{word}` starts a process of its own on {named_nodes(nodes)}: what it sets ends with it"
        help = "to read a file into the shell write `. FILE`; a container has to be entered before, from outside"
        yield Problem("inventory.activate-no-effect", message, span, help)


def _subprocess_program(line: str, shell: str) -> str | None:
    """The program that a single command of a POSIX shell starts, if it is known to change nothing for the commands
    after it; None for other lines."""
    if shell != "sh" or _SEPARATOR.search(line) or _SUBPROCESS_COMMAND.match(line) is None:
        return None
    return line.split()[0]


# Words that were meant to be replaced, by a person or by a program.

_PLACEHOLDER = re.compile(
    r"<[^<>]+>|\bchange[-_ ]?me\b|\byour[-_]?(?:user|name|login|host|ip|key|server|node|address)\w*|\bTODO\b|\bFIXME\b"
    r"|\breplace[-_ ]?me\b|\bx{1,3}(?:\.x{1,3}){3}\b|/path/to/|^(?:host|node|server|master)[-_]ip$",
    re.IGNORECASE,
)
_PLACEHOLDER_HINTS = ("<", "change", "your", "todo", "fixme", "replace", "x.x", "/path/to/", "-ip", "_ip")
_PLACEHOLDER_KEYS = (("address",), ("ssh", "host"), ("ssh", "user"), ("ssh", "key"), ("python",), ("workdir",))


def placeholder(file: InventoryFile) -> Iterator[Problem]:
    whole = file.document.text.lower()
    if not any(hint in whole for hint in _PLACEHOLDER_HINTS):
        return
    for key in _PLACEHOLDER_KEYS:
        for span, _, text, found in faulty_texts(file, key, lambda text, _: _PLACEHOLDER.search(text)):
            where = "" if found.group() == text else f" in `{text}`"
            message = f"`{found.group()}`{where} looks like a word to be replaced"
            yield Problem("inventory.placeholder", message, span, "put in your own")


_LOOKUP = re.compile(r"""(?:lookup|query)\(\s*["'](?:ansible\.builtin\.)?env["']\s*,\s*["']([A-Za-z_]\w*)["']""")


def template_in_inventory(file: InventoryFile) -> Iterator[Problem]:
    """Reports templates where nothing fills them in. A launch fills them in, `vars` may be for another tool, and the
    loader refuses them in addresses."""
    if "{{" not in file.document.text:
        return
    for keys, value in iterate_scalars(file.document.data):
        if (
            keys[0] != "launch"
            and isinstance(value, str)
            and "{{" in value
            and "}}" in value
            and "vars" not in keys
            and keys not in file.wrong
        ):
            message = "inventories have no templates: the `{{ }}` stays as it is"
            looked_up = _LOOKUP.search(value)
            help = "write it out; playbooks fill theirs from `vars`"
            help = f"write `{{env: {looked_up[1]}}}`" if looked_up else help
            yield Problem("inventory.template", message, file.document.span(*keys), help)


INVENTORY_RULES = (
    activate_no_effect,
    activate_other_shell,
    foreign_path,
    key_format,
    key_in_project,
    not_expanded,
    python_not_a_program,
    python_too_old,
    placeholder,
    template_in_inventory,
)
