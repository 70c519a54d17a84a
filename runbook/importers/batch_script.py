"""Reads batch scripts of Slurm, and any shell script with a launcher's line: nodes, GPUs, environment, and the launch.

Nothing is run, so a word that a shell would fill in from elsewhere stays as it is, with a remark."""

from __future__ import annotations

import posixpath
import re
import shlex
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile, takewhile

from runbook.files.file_kinds import SBATCH, is_yaml
from runbook.files.inventory_draft import SettingPath
from runbook.files.node_sets import split_names
from runbook.files.problems import NumberedLines
from runbook.files.scalars import flow_yaml
from runbook.importers.foreign_inventory import (
    BATCH_SCRIPT_FORMAT,
    MAX_LINE_CHARACTERS,
    ForeignHost,
    ForeignInventory,
    Remark,
    check_host_count,
    expand_names,
    may_contain_secret,
)
from runbook.launch.launcher_lines import (
    LAUNCHERS,
    NODE_COUNT_OPTIONS,
    RANKS_PER_NODE_OPTIONS,
    RENDEZVOUS_PORT_OPTIONS,
    WORLD_SIZE_OPTIONS,
    LauncherLine,
    launcher_line,
    long_options,
    option_values,
)
from runbook.launch.shell_commands import ShellCommand, shell_commands
from runbook.model.errors import FilesWrong
from runbook.model.grouping import values_by_key
from runbook.model.inventory import MAX_GPUS_PER_NODE
from runbook.model.units import parse_whole_number

_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_EXPORTED = re.compile(r"[A-Za-z_]\w*(?:=.*)?", re.DOTALL)
_VARIABLE = re.compile(r"\"?\$\{([A-Za-z_]\w*)\[@\]\}\"?|\$\{([A-Za-z_]\w*)(?::-([^${}]*))?\}|\$([A-Za-z_]\w*)")
"""`${ARRAY[@]}`, `${NAME}` with or without a default, `$NAME`."""
_ARRAY = re.compile(r"\s*([A-Za-z_]\w*)=\((?!\()")
_COMMAND_SUBSTITUTION = re.compile(r"\$\(|`")
MAX_EXPANDED_CHARACTERS = 256 * 1024
"""Characters of values of variables that are put into the lines of one script, together."""
_CONDITIONAL_REMARK = "it may not run, and is carried over as if it did"
_NOT_CARRIED_REMARK = "what else the script does is not carried over"
_CONDITIONS = ("[", "[[", "((", "test", "grep", "egrep", "command", "which", "type", "hash", "mountpoint")
"""Commands that are asked, and followed by others if they agree."""
_KEYWORDS = ("if", "elif", "while", "until", "then", "do", "else", "{", "}", "!", "fi", "done", "esac")
"""Words of the shell that may stand before a command on its line, or alone."""
_HARMLESS_ALTERNATIVES = ("exit", "true", ":", "echo", "return")
_GPUS = re.compile(r"(?:gpu:)?(?:[A-Za-z][\w.-]*:)?([0-9]{1,4})")
_HINT = re.compile(r"\btorch\.distributed\.|\baccelerate launch\b|\b(?:" + "|".join(LAUNCHERS) + r")\b")
_READ_OPTIONS = frozenset(
    (*NODE_COUNT_OPTIONS, *RANKS_PER_NODE_OPTIONS, *WORLD_SIZE_OPTIONS, *RENDEZVOUS_PORT_OPTIONS)
) | {"nodelist", "gpus", "gpus-per-node", "gres", "rdzv-endpoint", "host", "hosts"}
"""Options of sbatch and of launchers that are read."""
_ENVIRONMENT_OPTIONS = {
    **dict.fromkeys(("mpirun", "mpiexec"), "x"),
    **dict.fromkeys(("sbatch", "srun"), "export"),
}
"""By launcher, the option that names variables for the ranks."""
_WORKDIR_OPTIONS = {
    **dict.fromkeys(("mpirun", "mpiexec"), ("wdir", "wd")),
    **dict.fromkeys(("sbatch", "srun"), ("chdir",)),
}
"""By launcher, the options for the folder in which the ranks run."""
_WHOLE_ENVIRONMENT = ("ALL", "NONE", "NIL", "")
"""Values of Slurm's --export that name no variable."""
_NEEDLESS_OPTIONS = frozenset(
    """master-addr main-process-ip node-rank machine-rank rdzv-id rdzv-backend rdzv-conf hostfile
    job-name output error time partition account qos mail-type mail-user exclusive open-mode begin dependency comment
    reservation constraint requeue no-requeue signal wait mem cpus-per-task cpus-per-gpu mem-per-cpu
    mem-per-gpu""".split()
)
"""Options of which nothing is left to carry over: runbook works it out by itself, or only Slurm needs it."""
_RANK_VARIABLES = {
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
}
"""Variables that runbook works out for every rank."""


_HERE_DOCUMENT = re.compile(r"(?<!<)<<-?\s*([\"']?)([A-Za-z_]\w*)\1")
_FUNCTION = re.compile(r"(\s*)(?:function\s+([\w.-]+)\s*(?:\(\s*\))?|([\w.-]+)\s*\(\s*\))\s*(\{.*)?")
_NAME = re.compile(r"[\w.-]+")
_BRANCH = re.compile(
    r"(?:^|[;&|]|\b(?:then|do|else)\b)\s*(?:(?P<begins>if|for|while|until|case|select)|(?P<ends>fi|done|esac))\b"
)


@dataclass(frozen=True, slots=True)
class _Command:
    """A line with commands. `maybe`: it is in a branch, a loop, or a function that may be called. `document`: a
    here-document follows."""

    number: int
    line: str
    maybe: bool = False
    document: bool = False


@dataclass
class _Script:
    """What was found in a script so far. `known`: variables with a value that stands in the script; `room`: characters
    of such values that may still be put in, since `A=$A$A` doubles a value."""

    lines: NumberedLines
    asked: dict[str, tuple[str, int]] = field(default_factory=dict)  # options of sbatch, with their lines
    known: dict[str, str] = field(default_factory=dict)
    room: int = MAX_EXPANDED_CHARACTERS
    env: dict[str, object] = field(default_factory=dict)
    workdir: str | None = None
    launch: dict[str, object] = field(default_factory=dict)
    shared: dict[SettingPath, object] = field(default_factory=dict)  # settings of every node
    launches: list[tuple[_Command, LauncherLine, str | None]] = field(default_factory=list)  # with their workdirs
    line: LauncherLine | None = None  # the one that is carried over
    remarks: list[Remark] = field(default_factory=list)
    begun: bool = False  # whether a command was found: sbatch reads no option below one
    names_gpus: bool = False  # whether an option asks for GPUs, in whatever words

    def remark(self, number: int, says: str) -> None:
        remark = Remark(says, number)
        if remark not in self.remarks[-1:]:
            self.remarks.append(remark)


def is_batch_script(text: str, file: str) -> bool:
    """Whether a text has options for sbatch, or has a launcher's line with a visible program and is no YAML."""
    if SBATCH.search(text):
        return True
    lines = (launcher_line(_line_words(one.line)) for one in _script_commands(text)[0]) if _HINT.search(text) else ()
    return any(line is not None and line.program for line in lines) and not is_yaml(text, file)


def read_batch_script(text: str, file: str) -> ForeignInventory:
    """The inventory of a script. Raises FilesWrong if the script does not say which nodes; the problem's help then has
    the launch, for a playbook."""
    script = _Script(NumberedLines(text, file))
    found, unused = _script_commands(text)
    commands = {one.number: one for one in found}
    for number, raw in enumerate(script.lines.lines, 1):
        if raw.startswith("#SBATCH"):
            _take_sbatch_options(script, number, raw)
        elif number in unused:
            script.begun = True
            script.remark(number, f"the function `{unused[number]}` is never called, and not carried over")
        elif number in commands:
            script.begun = True
            _read_command(script, commands[number])
    _choose_launch(script)
    gpus = _ranks_per_node(script)
    hosts = _nodelist_hosts(script, gpus)
    if not hosts:
        raise _no_nodes_error(script)
    blocks: dict[str, Mapping[str, object]] = {"rendezvous": {"port": _rendezvous_port(script)}}
    blocks |= {name: block for name, block in (("env", script.env), ("launch", script.launch)) if block}
    return ForeignInventory(BATCH_SCRIPT_FORMAT, file, hosts, remarks=tuple(script.remarks), blocks=blocks)


def _script_commands(text: str) -> tuple[list[_Command], dict[int, str]]:
    """The lines that run, as far as that can be seen, and the names of functions that nobody calls, by the numbers of
    the lines where they begin."""
    outside: list[_Command] = []
    bodies: dict[int, tuple[str, list[_Command]]] = {}  # functions, by their first line
    begun, indent, outer, depth = 0, 0, 0, 0  # the function that goes on, how it is indented, and branches around
    for number, line, document in _logical_lines(text):
        head = _FUNCTION.fullmatch(line)
        if begun and line.lstrip().startswith("}") and len(line) - len(line.lstrip()) <= indent:
            begun, depth = 0, outer
        elif head and not begun:
            bodies[number] = head[2] or head[3], []
            if inside := (head[4] or "").strip().removeprefix("{").removesuffix("}").strip():
                bodies[number][1].append(_Command(number, inside, depth > 0, document))
            if not (head[4] or "").rstrip().endswith("}"):
                begun, indent, outer, depth = number, len(head[1]), depth, 0
        elif not (begun and line.strip() == "{"):
            branches = [found.lastgroup for found in _BRANCH.finditer(line[:MAX_LINE_CHARACTERS])]
            inner = max(0, depth + branches.count("begins") - branches.count("ends"))
            into = bodies[begun][1] if begun else outside
            into.append(_Command(number, line, max(depth, inner) > 0 or "begins" in branches, document))
            depth = inner
    if begun:  # a function without an end was no function
        outside += bodies.pop(begun)[1]
    everything = [*outside, *(one for _, body in bodies.values() for one in body)]
    called = {words[0] for one in everything if not one.maybe and (words := one.line.split(None, 1))}
    named = {word for one in everything for word in _NAME.findall(one.line)}
    unused = {number: name for number, (name, _) in bodies.items() if name not in named}
    used = [
        replace(one, maybe=one.maybe or name not in called)
        for number, (name, body) in bodies.items()
        if number not in unused
        for one in body
    ]
    return [*outside, *used], unused


def _logical_lines(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yields the lines that say something: number, line, and whether a here-document is below, which is left out. A
    line that ends in a backslash is joined with the next, and so is an array."""
    parts, number, array, behind = list[str](), 0, False, 0
    lines = text.splitlines()
    places = values_by_key((raw.strip(), at) for at, raw in enumerate(lines, 1) if raw.strip().isidentifier())
    for at, raw in enumerate(lines, 1):
        if at <= behind:
            continue
        if not parts:
            number, array = at, _ARRAY.match(raw) is not None
        if raw.endswith("\\"):
            parts.append(raw[:-1] + " ")
        elif array and ")" not in raw:
            parts.append(f" {raw}".partition(" #")[0] + " ")
        else:
            line = "".join((*parts, raw))
            if line.strip() and not line.lstrip().startswith("#"):
                for _, word in _HERE_DOCUMENT.findall(line):
                    ends = places.get(word, [])
                    behind = max(behind, next(iter(ends[bisect_right(ends, max(at, behind)) :][:1]), 0))
                yield number, line, behind > at
            parts = []


def _line_words(line: str) -> list[str]:
    """The words of a line; none if its quotes end on another line, or if it is too long to have been typed."""
    try:
        return shlex.split(line, comments=True) if len(line) <= MAX_LINE_CHARACTERS else []
    except ValueError:
        return []


def _take_sbatch_options(script: _Script, number: int, raw: str) -> None:
    """Takes the options of an `#SBATCH` line. Raises FilesWrong for one that cannot be read."""
    if len(raw) > MAX_LINE_CHARACTERS:
        message = f"this line has more than {MAX_LINE_CHARACTERS:,} characters"
        raise script.lines.wrong(number, raw[:40], "script-syntax", message)
    try:
        words = shlex.split(raw.removeprefix("#SBATCH"), comments=True)
    except ValueError:
        raise script.lines.wrong(number, raw, "script-syntax", "the quotes of this line do not match") from None
    if script.begun:
        script.remark(number, "sbatch does not read this: a command stands above it")
        return
    _take_launch_options(script, _Command(number, raw), "sbatch", long_options("sbatch", words))


def _take_launch_options(script: _Script, command: _Command, launcher: str, options: Iterable[tuple[str, str]]) -> None:
    """Takes the options of sbatch or of a launcher that have a place, and remarks on those that have none."""
    unread, options = [], list(options)
    script.names_gpus |= any("gpu" in name or "gpu" in value for name, value in options)
    for name, value in options:
        if name == "export" and value != dict(options)[name]:
            continue  # of several, Slurm takes the last one
        if name == _ENVIRONMENT_OPTIONS.get(launcher):
            _carry_over_named_variables(script, command, value.split(",") if name == "export" else [value])
        elif name in _WORKDIR_OPTIONS.get(launcher, ()) and value and not re.search("[$%`]", value):
            script.workdir = posixpath.join(script.workdir or "", value)
        elif name in ("nodelist", "host", "hosts") and re.search("[$`]", value):
            script.remark(command.number, f"--{name}: its value is only known where the script runs")
        elif launcher in ("sbatch", "srun") and name in _READ_OPTIONS:
            script.asked[name] = (value, command.number)
        elif name in ("host", "hosts"):
            _take_hosts(script, command.number, name, value)
        elif name not in _READ_OPTIONS | _NEEDLESS_OPTIONS:
            unread.append(f"{'--' if len(name) > 1 else '-'}{name}")
    if unread:
        script.remark(command.number, f"`{launcher}`: not carried over: {', '.join(dict.fromkeys(unread))}")


def _carry_over_named_variables(script: _Script, command: _Command, given: Iterable[str]) -> None:
    """Takes over variables that an option names, with a value, or with the one that the script has given them."""
    for one in given:
        name, equals, value = one.strip().partition("=")
        if not equals and name in script.known:
            equals, value = "=", script.known[name]
        if equals and _ASSIGNED.fullmatch(f"{name}="):
            _carry_over_variable(script, command, name, value, ranks=True)
        elif name not in (*_WHOLE_ENVIRONMENT, *_RANK_VARIABLES, *script.env):
            script.remark(command.number, f"{name}: its value is only known where the script runs")


def _take_hosts(script: _Script, number: int, option: str, value: str) -> None:
    """Takes hosts in the words of mpirun, such as `gn1:8,gn2:8`."""
    hosts = [one.partition(":")[::2] for one in value.split(",")]
    script.asked["nodelist"] = ",".join(name for name, _ in hosts), number
    slots = {count for _, count in hosts}
    if slots != {""}:
        script.asked[option] = slots.pop() if len(slots) == 1 else "", number


def _read_command(script: _Script, command: _Command) -> None:
    """Takes what a line assigns, and what it starts."""
    commands = shell_commands(command.line) if len(command.line) <= MAX_LINE_CHARACTERS else []
    if not commands:
        script.remark(command.number, _NOT_CARRIED_REMARK)
    before: list[str] = []
    maybe = grouped = False
    for one in commands:
        text = _with_known_variables(script, one.text)
        if array := _ARRAY.match(text):
            inside = text[array.end() : text.rfind(")")].strip()
            script.known |= {} if _COMMAND_SUBSTITUTION.search(inside) else {array[1]: inside}
            continue
        words = list(dropwhile(_KEYWORDS.__contains__, opened := replace(one, text=text).words()))
        if one.operator == "||" and words[:1] and words[0] in _HARMLESS_ALTERNATIVES:
            continue
        if one.operator in ("|", "|&") and launcher_line(words) is None:
            continue  # it only takes what the command before it prints
        chained = one.operator in ("&&", "|", "|&")
        asked = bool(before) and before[0] in _CONDITIONS
        maybe = grouped or one.operator == "||" or (chained and (maybe or asked))
        grouped = "}" not in opened[:1] and (grouped or ("{" in opened[:1] and maybe))
        if words:
            _read_words(script, replace(command, maybe=command.maybe or maybe), words)
        before = words
    if command.document:
        script.remark(command.number, "what stands in its here-document is not carried over")


def _read_words(script: _Script, command: _Command, words: Sequence[str]) -> None:
    """Takes what one command assigns, and what it starts."""
    exported = words[:1] == ["export"]
    given = list(takewhile(_ASSIGNED.fullmatch, words[exported:]))
    rest = list(words[exported + len(given) :])
    for one in given:
        name, value = one.split("=", 1)
        _carry_over_variable(script, command, name, value, ranks=exported or bool(rest))
    if rest and exported:
        _carry_over_named_variables(script, command, [word for word in rest if _EXPORTED.fullmatch(word)])
        if not all(_EXPORTED.fullmatch(word) or word.startswith("-") for word in rest):
            script.remark(command.number, _NOT_CARRIED_REMARK)
    elif rest and not command.document:
        _carry_over_command(script, command, rest)


def _enter(script: _Script, command: _Command, words: Sequence[str]) -> None:
    """Takes `cd`. A folder that is not known where it is read leaves none."""
    target = words[-1] if words else "~"
    if len(words) > 1 or target == "-" or re.search("[$`]", target):
        script.workdir = None
        script.remark(command.number, _NOT_CARRIED_REMARK)
    elif command.maybe and script.workdir and not target.startswith(("/", "~")):
        script.remark(command.number, f"`cd {target}`: it may not run, and is not carried over")
    else:
        script.workdir = target if target.startswith("~") else posixpath.join(script.workdir or "", target)
        if command.maybe:
            script.remark(command.number, f"`cd {target}`: {_CONDITIONAL_REMARK}")


def _carry_over_command(script: _Script, command: _Command, words: list[str]) -> None:
    """Takes what a command does, or remarks that it is not carried over."""
    number, line = command.number, launcher_line(words)
    if line is not None and line.program:
        script.launches.append((command, line, script.workdir))
    elif line is not None:
        script.remark(number, f"`{line.name}`: what it starts is not seen")
    elif words[:1] == ["cd"]:
        _enter(script, command, words[1:])
    elif words[:1] in (["source"], ["."]) and re.fullmatch(r"[~/][^$`]*/activate", words[-1]):
        script.shared["activate",] = f". {words[-1]}"
    elif words and words[0] in ("conda", "mamba", "module", "ml", "spack", "source", "."):
        shown = " ".join(words[: 1 if may_contain_secret("", " ".join(words[:3])) else 3])
        script.remark(number, f"what `{shown}` sets up belongs into `activate:`, as a line that sh takes")
    elif _HINT.search(" ".join(words)):
        script.remark(number, "a launch stands in it that is not understood, and not carried over")
    else:
        script.remark(number, _NOT_CARRIED_REMARK)


def _choose_launch(script: _Script) -> None:
    """Carries over the first launch that runs for certain, or else the first; remarks name the other launches."""
    chosen = next((one for one in script.launches if not one[0].maybe), next(iter(script.launches), None))
    for command, line, workdir in script.launches:
        if chosen and command is not chosen[0]:
            says = f"one launch is carried over, that of line {chosen[0].number}, and this is another"
            script.remark(command.number, f"`{line.name}`: {says}")
        else:
            _carry_over_launch(script, command, line, workdir)


def _carry_over_variable(script: _Script, command: _Command, name: str, value: str, *, ranks: bool) -> None:
    """Takes over a variable. `ranks`: the processes that are started see it."""
    number = command.number
    if may_contain_secret(name, value):
        script.remark(number, f"{name}: a secret, not copied: ranks get it by `env: {{{name}: {{env: {name}}}}}`")
        return
    if not _COMMAND_SUBSTITUTION.search(value):
        script.known[name] = value
    if ranks and name not in _RANK_VARIABLES:
        if "$" in value or "`" in value:
            script.remark(number, f"{name}: its value is only known where the script runs")
        else:
            if script.env.get(name, value) != value:
                script.remark(number, f"{name}: it has another value above, and this one is carried over")
            elif command.maybe:
                script.remark(number, f"{name}: {_CONDITIONAL_REMARK}")
            script.env[name] = value


def _with_known_variables(script: _Script, line: str) -> str:
    """The line with the `known` variables put in as text, as a shell does before it splits words."""

    def value(found: re.Match[str]) -> str:
        array, name, default, bare = found.groups()
        text = script.known.get(array or name or bare, default or found[0])
        if len(text) > script.room:
            return found[0]
        script.room -= len(text)
        return text

    return _VARIABLE.sub(value, line)


def _carry_over_launch(script: _Script, begun: _Command, line: LauncherLine, workdir: str | None) -> None:
    """Takes a launcher's line as the launch, without secrets."""
    number, script.line, script.workdir = begun.number, line, workdir
    for one in (*line.around, line):
        for text in one.before:
            _read_words(script, begun, ShellCommand("", text).words())
        _carry_over_named_variables(script, begun, one.settings)
        _take_launch_options(script, begun, one.name, one.given)
        if one.after:
            script.remark(number, _NOT_CARRIED_REMARK)
    if begun.maybe:
        script.remark(number, f"`{line.name}`: {_CONDITIONAL_REMARK}")
    if line.launcher:
        script.launch["launcher"] = line.launcher
    command = list(line.program)
    for name, value, at in _possible_values(line.program):
        if command[at] == line.program[at] and may_contain_secret(name, value):
            command[at] = command[at].removesuffix(value) + "***"
            what = f"the value of {name}" if name else "a word of the command"
            script.remark(number, f"{what} is a secret, not copied: ranks get theirs by `env:`")
    script.launch["command"] = command
    if script.workdir is not None:
        script.launch["workdir"] = script.workdir
    open_ = sorted({found[0] for word in command for found in _VARIABLE.finditer(word)})
    if open_:
        script.remark(number, f"no shell fills in {', '.join(open_)}: write the value itself")


def _possible_values(words: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    """Yields all that may be a value: that of an option, that of `name=value`, and every word itself. Each is a name,
    the value, and the number of the word that ends with it."""
    yield from ((f"--{name}", value, at) for name, value, at in option_values(words) if value)
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        yield from [(name, value, at)] if equals and not may_contain_secret("", name) else []
        yield "", word, at


def _ranks_per_node(script: _Script) -> int | None:
    """The ranks of a node, as the launcher's line or the options of sbatch give them; if these differ, a remark says
    so."""
    asked = {}
    for name in ("gpus-per-node", "gres", "ntasks-per-node", "host", "hosts"):
        value, number = script.asked.get(name, ("", 1))
        if (found := _GPUS.fullmatch(value)) and not (name == "ntasks-per-node" and _is_launcher_per_task(script)):
            asked[name] = int(found[1]), number
    each = (parse_whole_number(value) for name, value in _launcher_options(script) if name in RANKS_PER_NODE_OPTIONS)
    said = next((count for count in each if count is not None), None)
    found_gpus = said or next((count for count, _ in asked.values()), None)
    for name, (count, number) in asked.items():
        if count != found_gpus:
            script.remark(number, f"--{name} says {count} a node, and {found_gpus} ranks are started on each")
    if not said and "ntasks-per-node" in asked and not script.names_gpus:
        says = f"it names no GPUs: for ranks on CPUs write `processes: {found_gpus}` in place of `gpus: {found_gpus}`"
        script.remark(asked["ntasks-per-node"][1], says)
    return found_gpus if found_gpus is None or found_gpus <= MAX_GPUS_PER_NODE else None


def _is_launcher_per_task(script: _Script) -> bool:
    """Whether each task of Slurm's is a launcher that starts ranks, and no rank itself."""
    return script.line is not None and script.line.name != "srun"


def _launcher_options(script: _Script) -> Sequence[tuple[str, str]]:
    """The options of the launcher that starts the ranks; those of srun are among those of sbatch."""
    return tuple(script.line.options.items()) if script.line and script.line.name != "srun" else ()


def _nodelist_hosts(script: _Script, gpus: int | None) -> tuple[ForeignHost, ...]:
    nodes, number = script.asked.get("nodelist", ("", 1))
    names: dict[str, None] = {}
    for part in split_names(nodes):
        names |= dict.fromkeys(expand_names(part, script.lines, number))
        check_host_count(names, script.lines, number, part)
    for name, value in (*((name, value) for name, (value, _) in script.asked.items()), *_launcher_options(script)):
        if names and name in NODE_COUNT_OPTIONS and parse_whole_number(value) not in (None, len(names)):
            script.remark(number, f"--{name} says {value} nodes, and --nodelist names {len(names)}")
    each, at = script.asked.get("ntasks-per-node", ("", 1))
    by_srun = script.line is not None and any(one.name == "srun" for one in script.line.around)
    if script.line and by_srun and _is_launcher_per_task(script) and (parse_whole_number(each) or 0) > 1:
        script.remark(
            at, f"--ntasks-per-node says {each}: Slurm would start `{script.line.name}` so often on each node"
        )
    tasks, at = script.asked.get("ntasks", ("", 1))
    wanted = len(names) * (1 if _is_launcher_per_task(script) else gpus or 0)
    if wanted and parse_whole_number(tasks) not in (None, wanted):
        script.remark(at, f"--ntasks says {tasks}, and {wanted} are to be started on {len(names)} nodes")
    settings = script.shared if gpus is None else {**script.shared, ("gpus",): gpus}
    return tuple(ForeignHost(name, script.lines.span(number, nodes), settings) for name in names)


def _rendezvous_port(script: _Script) -> int:
    said = dict(_launcher_options(script))
    endpoint = said.get("rdzv-endpoint", "").rpartition(":")[2]
    texts = (*(said.get(name, "") for name in RENDEZVOUS_PORT_OPTIONS), endpoint, script.known.get("MASTER_PORT", ""))
    return next((int(text) for text in texts if re.fullmatch("[0-9]{1,5}", text) and 1 <= int(text) <= 65535), 29500)


def _no_nodes_error(script: _Script) -> FilesWrong:
    """The error of a script that names no nodes; its help has all that could be carried over."""
    wanted = next((value for name, (value, _) in script.asked.items() if name in NODE_COUNT_OPTIONS), None)
    message = f"this script does not say which nodes{f', only how many: {wanted}' if wanted else ''}"
    help = "make an inventory of them: runbook inventory init HOST…"
    if script.asked:
        help = "in its job Slurm says which: runbook run PLAYBOOK -i slurm"
    if script.launch.get("command"):
        launch = {**script.launch, **({"env": script.env} if script.env else {})}
        help += f"\nits launch, for the `stages:` of a playbook:\n- launch: {flow_yaml(launch)}"
    help += "".join(f"\n`{line}` belongs into `activate:`" for line in script.shared.values())
    help += "".join(f"\nline {one.line}: {one.says}" for one in script.remarks)
    _, number = script.asked.get("nodes", ("", 1))
    return script.lines.wrong(number, "", "no-nodes", message, help)
