"""Commands of a launch: words that a shell would take apart, where there is no shell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import PurePosixPath

from runbook.lint.rules.paths import UNEXPANDED, WRITE_OUT
from runbook.lint.staging import Staged
from runbook.load.templating import is_template
from runbook.model.errors import Problem, Span

_PROGRAMS = {"python", "python3", "torchrun", "bash", "sh", "deepspeed", "accelerate", "conda", "srun", "mpirun", "env"}
_SHELLS = {"sh", "bash", "dash", "zsh", "cmd", "cmd.exe", "powershell", "powershell.exe", "pwsh"}
_OPERATOR = re.compile(r"&&|\|\|?|;|&|[0-9]?>>?(&[0-9])?|<")
_VARIABLE = re.compile(r"\$(?:\{[A-Za-z_]\w*\}|[A-Za-z_]\w*|\([^)]*\))|^%[A-Za-z_]\w*%$")
_FLAG_WITH_VALUE = re.compile(r"--?[A-Za-z][\w-]*[ \t]+\S")
_LAUNCHERS = {"torchrun", "deepspeed", "mpirun", "mpiexec", "srun", "horovodrun"}
_LAUNCHER_MODULES = {"torch.distributed.run", "torch.distributed.launch"}


def one_word_command(staged: Staged) -> Iterator[Problem]:
    words = _words(staged)
    if len(words) != 1:
        return
    first, *more = words[0].split() or [""]
    known = PurePosixPath(first).name in _PROGRAMS or first.endswith(".py")
    if more and (known or any(word.startswith("-") or word.endswith((".py", ".sh")) for word in more)):
        message = f"the command is one word, and no program is called `{words[0]}`"
        help = f"write one item a word: [{', '.join([first, *more])}]"
        yield Problem("playbook.one-word-command", message, _span(staged, 0), help)


def shell_in_command(staged: Staged) -> Iterator[Problem]:
    for index, word in _arguments(staged):
        if _OPERATOR.fullmatch(word):
            message = f"`{word}` is for a shell, and the command is not given to one"
            help = "the program gets it as an argument: put such a line into a script, and launch that"
            yield Problem("playbook.shell-in-command", message, _span(staged, index), help)
        elif not is_template(word) and (found := _VARIABLE.search(word)):
            message = f"`{found.group()}` stays as it is: no shell fills it in"
            help = "use a {{ template }}, set the variable in `env:`, or launch a script"
            yield Problem("playbook.shell-in-command", message, _span(staged, index), help)


def workdir_of_launch(staged: Staged) -> Iterator[Problem]:
    """What is said of an inventory's paths holds for this one."""
    given = staged.stage.launch.get("workdir")
    if not isinstance(given, str) or is_template(given) or not staged.sound("launch", "workdir"):
        return
    if UNEXPANDED.search(given):
        message = f"`{given}` is taken as it stands: no shell replaces anything in it"
        yield Problem("inventory.not-expanded", message, staged.span("launch", "workdir"), WRITE_OUT)


def flag_with_value(staged: Staged) -> Iterator[Problem]:
    for index, word in _arguments(staged):
        if index and _FLAG_WITH_VALUE.match(word):
            option, value = word.split(maxsplit=1)
            message = f"`{word}` reaches the program as one argument, with the space in it"
            help = f"write two items: {option}, {value}"
            yield Problem("playbook.flag-with-value", message, _span(staged, index), help)


def nested_launcher(staged: Staged) -> Iterator[Problem]:
    launcher = staged.stage.launch.get("launcher", "direct")
    found = _launcher_in(_words(staged))
    if found is None:
        return
    if launcher == "direct":
        message = f"every rank would start `{found}`, and each of these a whole job of its own"
    else:
        message = f"`launcher: {launcher}` would start `{found}`, which is a launcher itself"
    help = "name the launcher in `launcher:`, and begin the command with your script"
    yield Problem("playbook.nested-launcher", message, _span(staged, 0), help)


def _launcher_in(words: list[str]) -> str | None:
    """A program that starts ranks itself, at the head of the command or as `python -m`."""
    if not words:
        return None
    first = PurePosixPath(words[0]).name
    if first in _LAUNCHERS:
        return first
    if first == "accelerate" and words[1:2] == ["launch"]:
        return "accelerate launch"
    return next(
        (f"-m {module}" for flag, module in pairwise(words) if flag == "-m" and module in _LAUNCHER_MODULES), None
    )


def _words(staged: Staged) -> list[str]:
    """The command as it was typed; nothing where some of it was wrong."""
    given = staged.stage.launch.get("command", [])
    return [str(word) for word in given] if isinstance(given, list) and staged.sound("launch", "command") else []


def _arguments(staged: Staged) -> Iterator[tuple[int, str]]:
    """The words with their numbers; none where they are for a shell that the command itself starts."""
    words = _words(staged)
    if words and PurePosixPath(words[0]).name not in _SHELLS:
        yield from enumerate(words)


def _span(staged: Staged, index: int) -> Span | None:
    return staged.stage.launch_spans.get(("command", index), staged.stage.span)
