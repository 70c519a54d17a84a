"""Shell stages that wait for a person, never end, or leave something running."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from runbook.lint.staging import Staged
from runbook.model.errors import Problem

_SEPARATOR = re.compile(r"&&|\|\||[;|\n()]|&(?![>0-9])")
_WRAPPERS = {"sudo", "env", "nice", "nohup", "time", "exec", "stdbuf", "command"}
_EDITORS = {"vi", "vim", "nano", "emacs", "less", "more", "man", "passwd", "htop", "nvtop"}
_ASSUME_YES = {"apt": "-y", "apt-get": "-y", "yum": "-y", "dnf": "-y", "zypper": "-n", "conda": "-y"}
_INSTALLING = {"install", "remove", "upgrade", "update", "dist-upgrade", "purge", "create"}
_TEMPLATE = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}")


def interactive_shell(staged: Staged) -> Iterator[Problem]:
    for words in _commands(staged):
        asks = _asks(words)
        if asks is not None:
            message, help = asks
            yield Problem("playbook.interactive-shell", message, staged.span("shell"), help)
            return


def endless_shell(staged: Staged) -> Iterator[Problem]:
    for words in _commands(staged):
        bare = _unwrapped(words)
        endless = _endless(bare) if words[0] != "timeout" else None
        if endless is not None:
            message = f"`{' '.join(bare[:3])}` does not end by itself: the stage fails at its timeout"
            yield Problem("playbook.endless-shell", message, staged.span("shell"), endless)
            return


def background_shell(staged: Staged) -> Iterator[Problem]:
    line = _line(staged)
    if re.search(r"(?<![&>|])&\s*$", line) or re.match(r"\s*(sudo\s+(-n\s+)?)?(nohup|setsid|disown)\b", line):
        message = "what this leaves in the background is ended with the run"
        help = "let the node's service manager start it, and look here whether it is there"
        yield Problem("playbook.background-shell", message, staged.span("shell"), help)


def quoted_template(staged: Staged) -> Iterator[Problem]:
    """Only where the variable's value needs quotes and therefore gets them."""
    line = _line(staged)
    for quoted in re.finditer(r"'[^']*'|\"[^\"]*\"", line):
        for name in _TEMPLATE.findall(quoted.group()):
            value = staged.file.playbook.vars.get(name)
            if isinstance(value, str) and shlex.quote(value) != value:
                message = f"`{name}` is put in as {shlex.quote(value)}, and the quotes around it make those part of it"
                help = "take the quotes away: a template is one word already"
                yield Problem("playbook.quoted-template", message, staged.span("shell"), help)


def _line(staged: Staged) -> str:
    return staged.stage.shell or "" if staged.stage.kind == "shell" else ""


def _commands(staged: Staged) -> Iterator[list[str]]:
    """The commands of the line, as words; quotes and templates are taken for words like any other."""
    line = re.sub(r"'[^']*'|\"[^\"]*\"", lambda text: "Q" * len(text.group()), _line(staged))
    for part in _SEPARATOR.split(line):
        words = part.split()
        while words and re.fullmatch(r"[A-Za-z_]\w*=\S*", words[0]):
            words = words[1:]
        if words:
            yield words


def _unwrapped(words: list[str]) -> list[str]:
    """Without `sudo -n`, `env A=b` and the like before the program."""
    while len(words) > 1 and (words[0] in _WRAPPERS or words[0].startswith("-") or "=" in words[0]):
        words = words[1:]
    return words


def _asks(words: list[str]) -> tuple[str, str] | None:
    if words[0] == "sudo":
        options = list(_leading_options(words[1:]))
        if not any(
            option == "--non-interactive" or re.fullmatch(r"-[A-Za-z]*n[A-Za-z]*", option) for option in options
        ):
            return (
                "sudo would ask for a password, and nobody is there to type it",
                "`sudo -n` fails at once where it must",
            )
    bare = _unwrapped(words)
    program = bare[0]
    if program in _EDITORS:
        return f"`{program}` waits for somebody at a terminal, and there is none", "use a command that only prints"
    flag = _ASSUME_YES.get(program)
    if flag and _INSTALLING & set(bare[1:]) and program != "conda" and not _agrees(bare, flag):
        if program in ("apt", "apt-get") and "update" in bare[1:]:
            return None
        return f"`{program}` would ask whether to go on, and nobody answers", f"add {flag}"
    if program == "ssh-copy-id" or (program == "read" and len(words) == len(bare)):
        return f"`{program}` waits for somebody to type", "stdin is closed in a stage"
    return None


def _leading_options(words: list[str]) -> Iterator[str]:
    for word in words:
        if not word.startswith("-"):
            return
        yield word


def _agrees(words: list[str], flag: str) -> bool:
    letter = flag[1]
    return any(
        word in ("--yes", "--assume-yes", "--assumeyes", "--non-interactive")
        or re.fullmatch(rf"-[A-Za-z]*{letter}[A-Za-z]*", word)
        for word in words
    )


def _endless(words: list[str]) -> str | None:
    """How to make it end, for a program that does not."""
    program, options = words[0], [word for word in words[1:] if word.startswith("-")]
    letters = "".join(option[1:] for option in options if not option.startswith("--"))
    if program == "tail" and ("f" in letters.lower() or "--follow" in options):
        return "`tail -n 50` prints the end and stops"
    if program == "journalctl" and ("f" in letters or "--follow" in options):
        return "`journalctl -n 50 --no-pager` prints the end and stops"
    if program == "dmesg" and ("w" in letters or "--follow" in options):
        return "`dmesg | tail -n 50` prints the end and stops"
    if program == "watch":
        return "run the command once"
    if program == "top" and not ("b" in letters and "n" in letters):
        return "`top -b -n 1` prints one screen and stops"
    if program in ("ping", "ping6") and not re.search(r"[cw]", letters):
        return "`ping -c 3` stops after three; `check: ping` does more"
    if program == "nvidia-smi" and (
        (words[1:2] in (["dmon"], ["pmon"]) and "c" not in letters)
        or any(re.fullmatch(r"-(l|lms)|--loop(-ms)?(=.*)?|-l[0-9]+", option) for option in options)
    ):
        return "leave the loop out: one look is enough"
    if program in ("iperf", "iperf3") and ("s" in letters or "--server" in options) and "1" not in letters:
        return "`iperf3 -s -1` serves one client and stops"
    if program == "sleep" and words[1:2] == ["infinity"]:
        return "give it a number of seconds"
    return None
