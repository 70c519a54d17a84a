"""Rules about command lines of launches and shell stages."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import PurePosixPath

from runbook.files.address import is_loopback, strip_brackets
from runbook.files.scalars import flow_yaml
from runbook.files.templating import is_template
from runbook.launch.job import RANK_STARTING_LAUNCHERS
from runbook.launch.launcher_lines import (
    NODE_COUNT_OPTIONS,
    RANKS_PER_NODE_OPTIONS,
    RENDEZVOUS_PORT_OPTIONS,
    WORLD_SIZE_OPTIONS,
    LauncherLine,
    launcher_line,
    option_values,
    unwrapped_words,
)
from runbook.lint.planned_stages import Staged
from runbook.lint.rules.node_values import UNEXPANDED_VARIABLE, not_expanded_problem
from runbook.model.errors import Problem, Span
from runbook.model.inventory import Inventory

_PROGRAMS = {"python", "python3", "torchrun", "bash", "sh", "deepspeed", "accelerate", "conda", "srun", "mpirun", "env"}
_SHELLS = {"sh", "bash", "dash", "zsh", "cmd", "cmd.exe", "powershell", "powershell.exe", "pwsh"}
_OPERATOR = re.compile(r"&&|\|\|?|;|&|[0-9]?>>?(&[0-9])?|<")
_VARIABLE = re.compile(r"\$(?:\{[A-Za-z_]\w*\}|[A-Za-z_]\w*|\([^)]{0,300}\))|^%[A-Za-z_]\w*%$")
_FLAG_WITH_VALUE = re.compile(r"--?[A-Za-z][\w-]*[ \t]+\S")
_TORCHRUN_OPTION = re.compile(r"nnodes|nproc-per-node|standalone|rdzv-(?:backend|conf|endpoint|id)")


def one_word_command(staged: Staged) -> Iterator[Problem]:
    """Reports a whole command line that was written as one word."""
    words = _typed_words(staged)
    if len(words) != 1:
        return
    first, *more = words[0].split() or [""]
    known = PurePosixPath(first).name in _PROGRAMS or first.endswith(".py")
    if more and (known or any(word.startswith("-") or word.endswith((".py", ".sh")) for word in more)):
        message = f"the command is one word, and no program is called `{words[0]}`"
        help = f"write one item a word: [{', '.join([first, *more])}]"
        yield Problem("playbook.one-word-command", message, _word_span(staged, 0), help)


def shell_in_command(staged: Staged) -> Iterator[Problem]:
    """Reports operators and variables of a shell in a command, which no shell reads."""
    for index, word in _numbered_words(staged):
        if _OPERATOR.fullmatch(word):
            message = f"`{word}` is for a shell, and the command is not given to one"
            help = "the program gets it as an argument: put such a line into a script, and launch that"
            yield Problem("playbook.shell-in-command", message, _word_span(staged, index), help)
        elif not is_template(word) and (found := _VARIABLE.search(word)):
            message = f"`{found.group()}` stays as it is: no shell fills it in"
            help = "use a {{ template }}, set the variable in `env:`, or launch a script"
            yield Problem("playbook.shell-in-command", message, _word_span(staged, index), help)


def workdir_of_launch(staged: Staged) -> Iterator[Problem]:
    """Reports a launch's `workdir` with text that only a shell would replace, as `inventory.not-expanded`."""
    given = staged.stage.launch.workdir
    if given is None or is_template(given) or not staged.sound("launch", "workdir"):
        return
    if UNEXPANDED_VARIABLE.search(given):
        yield not_expanded_problem(given, staged.span("launch", "workdir"))


def flag_with_value(staged: Staged) -> Iterator[Problem]:
    for index, word in _numbered_words(staged):
        if index and _FLAG_WITH_VALUE.match(word):
            option, value = word.split(maxsplit=1)
            message = f"`{word}` reaches the program as one argument, with the space in it"
            help = f"write two items: {option}, {value}"
            yield Problem("playbook.flag-with-value", message, _word_span(staged, index), help)


def nested_launcher(staged: Staged) -> Iterator[Problem]:
    """Reports a command that starts a launcher, which every rank or another launcher would start."""
    launcher = staged.stage.launch.launcher
    found = launcher_line(_typed_words(staged))
    if found is None:
        return
    if launcher == "direct":
        message = f"every rank would start `{found.name}`, and each of these a whole job of its own"
    else:
        message = f"`launcher: {launcher}` would start `{found.name}`, which is a launcher itself"
    yield Problem(
        "playbook.nested-launcher", message, _word_span(staged, 0), "\n".join(_launcher_line_help(found, staged))
    )


def _launcher_line_help(line: LauncherLine, staged: Staged) -> Iterator[str]:
    """Sentences of help: what to write instead of a launcher's line, and which of its numbers differ from those of the
    inventory."""
    if line.program:
        begun = f"`launcher: {line.launcher}` and " if line.launcher else ""
        yield f"write {begun}`command: {flow_yaml(line.program)}`"
    else:
        yield "name the launcher in `launcher:`, and begin the command with your script"
    for option, value in line.options.items():
        ours = _inventory_number(option, staged.cluster) if staged.cluster else None
        if ours is not None and value.isascii() and value.isdigit() and value != str(ours[0]):
            yield f"the line says {value} for `{option}`; the inventory says {ours[0]:d}, by {ours[1]}"


def _inventory_number(option: str, cluster: Inventory) -> tuple[int, str] | None:
    """The inventory's number for an option of a launcher, and the keys that it is made of; None if the inventory has no
    single number for it."""
    slots = {node.slots for node in cluster.nodes}
    if option in RANKS_PER_NODE_OPTIONS and len(slots) == 1:
        return slots.pop(), "a node's `gpus:` or `processes:`"
    if option in WORLD_SIZE_OPTIONS:
        return cluster.world_size, "the `gpus:` or `processes:` of all nodes"
    if option in NODE_COUNT_OPTIONS:
        return len(cluster.nodes), "its `nodes:`"
    return (cluster.rendezvous.port, "`rendezvous: {port: …}`") if option in RENDEZVOUS_PORT_OPTIONS else None


def launcher_option(staged: Staged) -> Iterator[Problem]:
    """Reports an option of the launcher among the arguments of the script."""
    launcher = staged.stage.launch.launcher
    if launcher not in RANK_STARTING_LAUNCHERS or launcher_line(_typed_words(staged)):
        return
    for index, word in enumerate(_typed_words(staged)):
        option = _OPTION.fullmatch(word)
        if option and _TORCHRUN_OPTION.fullmatch(option[1].replace("_", "-")):
            message = f"`--{option[1]}` is an option of {launcher}, and here it reaches the script"
            help = "remove it: the launcher gets nodes, ranks a node and rendezvous from the inventory"
            yield Problem("playbook.launcher-option", message, _word_span(staged, index), help)


def _typed_words(staged: Staged) -> list[str]:
    """The words of the command as typed; empty if any of them was wrong."""
    return list(staged.stage.launch.command) if staged.sound("launch", "command") else []


def _numbered_words(staged: Staged) -> Iterator[tuple[int, str]]:
    """The words with their numbers; none if the command itself starts a shell, which they are for."""
    words = _typed_words(staged)
    if words and PurePosixPath(words[0]).name not in _SHELLS:
        yield from enumerate(words)


def _word_span(staged: Staged, index: int) -> Span | None:
    return staged.stage.launch_spans.get(("command", index), staged.stage.span)


# Options in a launch's command that are the same for every rank: a rank, and the endpoint to dial.

_OPTION = re.compile(r"--?([A-Za-z][A-Za-z0-9_-]*)(?:=.*)?", re.DOTALL)
_ENDPOINT = re.compile(r"(?:[a-z]+://)?(\[[^\]]*\]|[^/:\s]*|[0-9A-Fa-f:]*)(?::[0-9]+)?(?:[/?].*)?")
_RANK_PLUS_ONE = re.compile(r"\{\{\s*(?:node_rank|first_rank)\s*\+\s*1\s*\}\}")
_RANK_HELP = "leave it out, and let the program read RANK, LOCAL_RANK and WORLD_SIZE from its environment"
_ADDRESS_OPTIONS = {
    *("master-addr", "master-address", "master", "init-method", "dist-url", "dist-init-method", "dist-init-addr"),
    *("coordinator", "coordinator-address", "rdzv-endpoint"),
}


def rank_in_command(staged: Staged) -> Iterator[Problem]:
    if staged.cluster is None or launcher_line(_typed_words(staged)):
        return
    for option, value, index in _literal_options(staged):
        others = _ranks_in_conflict(option, staged.cluster)
        if others is not None and value.isascii() and value.isdigit():
            message = f"`--{option} {value}` is the same for every rank, and there are {others}"
            yield Problem("playbook.rank-in-command", message, _word_span(staged, index), _RANK_HELP)


def ranks_from_one(staged: Staged) -> Iterator[Problem]:
    if launcher_line(_typed_words(staged)):
        return
    for option, value, index in option_values(_typed_words(staged)):
        if option.replace("_", "-") in ("rank", "node-rank", "machine-rank") and _RANK_PLUS_ONE.search(value):
            message = f"`--{option} {value}` counts from 1, and ranks count from 0: rank 0 would be missing"
            yield Problem("playbook.ranks-from-one", message, _word_span(staged, index), _RANK_HELP)


def world_in_command(staged: Staged) -> Iterator[Problem]:
    """Reports a world size in a command that is not the inventory's number of ranks."""
    if staged.cluster is None or launcher_line(_typed_words(staged)):
        return
    for option, value, index in _literal_options(staged):
        number = int(value) if value.isascii() and value.isdigit() and len(value) < 9 else None
        if option.replace("_", "-") == "world-size" and number not in (None, staged.cluster.world_size):
            message = (
                f"`--{option} {value}` is not the number of ranks: the inventory gives {staged.cluster.world_size}"
            )
            yield Problem("playbook.world-in-command", message, _word_span(staged, index), _RANK_HELP)


def loopback_in_command(staged: Staged) -> Iterator[Problem]:
    """Reports a loopback address to dial in a command for several machines."""
    cluster = staged.cluster
    if cluster is None or len(cluster.nodes) == 1 or cluster.one_machine or launcher_line(_typed_words(staged)):
        return
    for option, value, index in _literal_options(staged):
        endpoint = _ENDPOINT.fullmatch(value)
        if option.replace("_", "-") in _ADDRESS_OPTIONS and endpoint and is_loopback(strip_brackets(endpoint[1])):
            message = f"every node would dial itself at {endpoint[1]}, and there are {len(cluster.nodes)}"
            help = "leave it out, and let the program read MASTER_ADDR and MASTER_PORT from its environment"
            yield Problem("playbook.loopback-in-command", message, _word_span(staged, index), help)


def jax_on_windows(staged: Staged) -> Iterator[Problem]:
    if staged.cluster is None or staged.stage.launch.launcher != "jax":
        return
    windows = next((node for node in staged.cluster.nodes if node.windows and node.gpus), None)
    if windows is not None:
        message = f"JAX for Windows knows no GPUs, and `{windows.name}` is Windows with {len(windows.gpus)}"
        help = "run it in Linux, WSL2 included, or leave out `gpus` for CPU ranks"
        span = staged.stage.launch_spans.get(("launcher",), staged.stage.span)
        yield Problem("playbook.jax-on-windows", message, span, help)


def _ranks_in_conflict(option: str, cluster: Inventory) -> str | None:
    """The ranks or nodes for which an option's one number cannot be right, as text; None if it can be right for all."""
    name = option.replace("_", "-")
    if name in ("rank", "process-id", "global-rank") and cluster.world_size > 1:
        return f"{cluster.world_size} ranks"
    if name in ("node-rank", "machine-rank") and len(cluster.nodes) > 1:
        return f"{len(cluster.nodes)} nodes"
    most = max(node.slots for node in cluster.nodes)
    return f"up to {most} on a node" if name == "local-rank" and most > 1 else None


def _literal_options(staged: Staged) -> Iterator[tuple[str, str, int]]:
    """The options `--option=value` and `--option value`, without templates: name, value, number of the value's word."""
    return (found for found in option_values(_typed_words(staged)) if not is_template(found[1]))


# Shell stages that wait for input, never end, or leave something running.

_SEPARATOR = re.compile(r"&&|\|\||[;|\n()]|&(?![>0-9])")
_INTERACTIVE_PROGRAMS = {"vi", "vim", "nano", "emacs", "less", "more", "man", "passwd", "htop", "nvtop"}
_ASSUME_YES = {"apt": "-y", "apt-get": "-y", "yum": "-y", "dnf": "-y", "zypper": "-n"}
_PACKAGE_COMMANDS = {"install", "remove", "upgrade", "update", "dist-upgrade", "purge"}
_TEMPLATE = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}")
_SHELL_STATE_COMMANDS = (
    (re.compile(r"(?:cd|pushd) \S+"), "put it before the command that needs it, `cd … && …`; a launch has `workdir:`"),
    (re.compile(r"export \w+=.*"), "what ranks shall see belongs under `env:` of the inventory or the launch"),
    (re.compile(r"(?:source|\.) \S*(?:/activate|rc|conda\.sh)"), "write it as `activate:` into the inventory"),
    (re.compile(r"(?:conda|mamba|pyenv) (?:activate|shell) .*"), "write it as `activate:` into the inventory"),
    (re.compile(r"(?:module|ml) (?:load|add|purge|swap).*|ml \S+"), "write it as `activate:` into the inventory"),
    (re.compile(r"ulimit (?:-\w{1,9} ){1,9}\w|umask \d+|alias \S+"), "write it as `activate:` into the inventory"),
)
"""Patterns of commands that change nothing but the shell they run in, and the help: where to put them."""

_NON_POSIX_SYNTAX = (
    (re.compile(r"(?:^|[;&|(])\s*source\s"), "source", "write `. FILE`"),
    (
        re.compile(r"(?:^|[;&|(])\s*(?:conda|mamba)\s+activate\b"),
        "conda activate",
        "write `. /opt/conda/etc/profile.d/conda.sh && conda activate NAME && …`, or `conda run -n NAME …`",
    ),
    (
        re.compile(r"(?:^|[;&|(!]|\b(?:if|elif|while|until|then|do)\s)\s*\[\[\s"),
        "[[",
        "write `[ … ]`, with `=` for `==`",
    ),
    (re.compile(r"(?:^|[;&|(])\s*(?:pushd|popd)\b"), "pushd", "write `cd`"),
    (re.compile(r"<<<"), "<<<", "write `printf '%s' … | …`"),
    (re.compile(r"[<>]\("), "<(", "write `bash -c '…'` around the line"),
)
"""Patterns of what bash has and a plain `sh` has not, the name for the message, and the help."""
_CONDA_SETUP = re.compile(r"conda\.sh|\bhook\b")


def interactive_shell(staged: Staged) -> Iterator[Problem]:
    """Reports a command that waits for a person."""
    for words, piped in _commands_with_input(staged):
        asks = _interactive_fault(words, fed=piped or any("<" in word for word in words))
        if asks is not None:
            message, help = asks
            yield Problem("playbook.interactive-shell", message, staged.span("shell"), help)
            return


def endless_shell(staged: Staged) -> Iterator[Problem]:
    """Reports a program that does not end by itself."""
    for words in _shell_commands(staged):
        bare = unwrapped_words(words)
        endless = _endless_program_help(bare) if words[0] != "timeout" else None
        if endless is not None:
            message = f"`{' '.join(bare[:3])}` does not end by itself: the stage fails at its timeout"
            yield Problem("playbook.endless-shell", message, staged.span("shell"), endless)
            return


def background_shell(staged: Staged) -> Iterator[Problem]:
    """Reports a line that leaves a process in the background, which ends with the run."""
    line = _shell_line(staged)
    if re.search(r"(?<![&>|])&\s*$", line) or re.match(r"\s*(sudo\s+(-n\s+)?)?(nohup|setsid|disown)\b", line):
        message = "what this leaves in the background is ended with the run"
        help = "let the node's service manager start it, and look here whether it is there"
        yield Problem("playbook.background-shell", message, staged.span("shell"), help)


def shell_no_effect(staged: Staged) -> Iterator[Problem]:
    """Reports a line that only changes its own shell, which ends with the stage."""
    commands = list(_shell_commands(staged))
    helps = [help for words in commands for sign, help in _SHELL_STATE_COMMANDS if sign.fullmatch(" ".join(words))]
    if commands and len(helps) == len(commands):
        message = f"`{' '.join(commands[0])}` holds for this stage's own shell alone, which ends here"
        yield Problem("playbook.shell-no-effect", message, staged.span("shell"), helps[-1])


def not_for_sh(staged: Staged) -> Iterator[Problem]:
    """Reports what bash knows and /bin/sh, which runs the line of a stage, does not."""
    if any(shell_no_effect(staged)):
        return
    line = _line_without_quotes(staged)
    for sign, what, help in _NON_POSIX_SYNTAX:
        if sign.search(line) and not (what == "conda activate" and _CONDA_SETUP.search(_shell_line(staged))):
            message = f"`{what}` is not known to /bin/sh, which runs a stage's line; on Debian and Ubuntu that is dash"
            yield Problem("playbook.not-for-sh", message, staged.span("shell"), help)
            return


def quoted_template(staged: Staged) -> Iterator[Problem]:
    """Reports a template in quotes, if the variable's value needs quotes itself and therefore gets them."""
    line = _shell_line(staged)
    for quoted in re.finditer(r"'[^']*'|\"[^\"]*\"", line):
        for name in _TEMPLATE.findall(quoted.group()):
            value = staged.file.playbook.vars.get(name)
            if isinstance(value, str) and shlex.quote(value) != value:
                message = f"`{name}` is put in as {shlex.quote(value)}, and the quotes around it make those part of it"
                help = "take the quotes away: a template is one word already"
                yield Problem("playbook.quoted-template", message, staged.span("shell"), help)


def _shell_line(staged: Staged) -> str:
    return staged.stage.shell or "" if staged.stage.kind == "shell" else ""


def _line_without_quotes(staged: Staged) -> str:
    """The line with a letter in the place of everything that stands in quotes."""
    return re.sub(r"'[^']*'|\"[^\"]*\"", lambda text: "Q" * len(text.group()), _shell_line(staged))


def _shell_commands(staged: Staged) -> Iterator[list[str]]:
    """The commands of the line, as words; quotes and templates are taken for words like any other."""
    return (words for words, _ in _commands_with_input(staged))


def _commands_with_input(staged: Staged) -> Iterator[tuple[list[str], bool]]:
    """The commands of the line, as words, each with whether a pipe gives it its input."""
    line = _line_without_quotes(staged)
    for before, part in zip(("", *_SEPARATOR.findall(line)), _SEPARATOR.split(line), strict=True):
        words = part.split()
        while words and re.fullmatch(r"[A-Za-z_]\w*=\S*", words[0]):
            words = words[1:]
        if words:
            yield words, before == "|"


def _interactive_fault(words: list[str], *, fed: bool) -> tuple[str, str] | None:
    """The message and the help for a command that would wait for a person; None for other commands. `fed`: a pipe or a
    file gives the command its input."""
    if words[0] == "sudo":
        options = takewhile(lambda word: word.startswith("-"), words[1:])
        if not any(re.fullmatch(r"-[A-Za-z]*n[A-Za-z]*|--non-interactive", option) for option in options):
            return "sudo would ask for a password, and no person can type it", "`sudo -n` fails at once where it must"
    bare = unwrapped_words(words)
    program = bare[0]
    if program in _INTERACTIVE_PROGRAMS:
        return f"`{program}` waits for input at a terminal, and there is none", "use a command that only prints"
    flag = _ASSUME_YES.get(program)
    if fed:
        return None
    if flag and _PACKAGE_COMMANDS & set(bare[1:]) and not _has_assume_yes(bare, flag):
        if program in ("apt", "apt-get") and "update" in bare[1:]:
            return None
        return f"`{program}` would ask whether to go on, and gets no answer", f"add {flag}"
    reads = program == "read" and len(words) == len(bare)
    if program == "ssh-copy-id" or reads:
        return f"`{program}` waits for input", "stdin is closed in a stage"
    return None


def _has_assume_yes(words: list[str], flag: str) -> bool:
    agrees = re.compile(rf"-[A-Za-z]*{flag[1]}[A-Za-z]*|--(yes|assume-?yes|non-interactive)")
    return any(map(agrees.fullmatch, words))


def _endless_program_help(words: list[str]) -> str | None:
    """The help for a program that does not end by itself; None for other programs."""
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


STAGE_RULES = (
    one_word_command,
    shell_in_command,
    flag_with_value,
    nested_launcher,
    launcher_option,
    workdir_of_launch,
    rank_in_command,
    ranks_from_one,
    world_in_command,
    loopback_in_command,
    jax_on_windows,
    interactive_shell,
    endless_shell,
    background_shell,
    shell_no_effect,
    not_for_sh,
    quoted_template,
)
