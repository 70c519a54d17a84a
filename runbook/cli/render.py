"""`runbook render`: load → plan → scripts → a folder, or what would change in it."""

from __future__ import annotations

import argparse
import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from runbook.cli.run import load_run_files, note_unknown_names
from runbook.engine.plan import Choice, Plan, make_plan
from runbook.engine.scripts import (
    SCRIPT_ENDINGS,
    FileChange,
    NodeFiles,
    Writer,
    abandoned_folders,
    file_changes,
    node_files,
)
from runbook.files.extra_vars import parse_extra_vars
from runbook.files.inventory import with_shell
from runbook.model.command_quoting import shell_word
from runbook.model.errors import FilesWrong
from runbook.model.grouping import values_by_key
from runbook.model.node_ranges import fold
from runbook.model.redact import Redactor
from runbook.model.safe_files import is_file
from runbook.model.units import count_text
from runbook.report.standard_streams import stderr, stdout

SCRIPT_START_COMMANDS = {
    "sh": "sh {path}",
    "bat": "{path}",
    "ps1": "powershell -NoProfile -ExecutionPolicy Bypass -File {path}",
}


def render(arguments: argparse.Namespace) -> int:
    extra = parse_extra_vars(arguments.extra_vars)
    playbook, inventory, origins = load_run_files(arguments, extra)
    if arguments.shell:
        inventory = with_shell(inventory, origins, arguments.shell)
    plan = make_plan(playbook, inventory, Choice(limit=arguments.limit, extra=extra))
    made = node_files(plan, origins)
    note_unknown_names(arguments.extra_vars, playbook, origins)
    warn_of_backend(plan)
    if arguments.limit and len(plan.inventory.nodes) < len(inventory.nodes):
        master, ranks = plan.inventory.rendezvous.master, plan.inventory.world_size
        stderr.line(
            f"note: -l makes a job of its own, {count_text(ranks, 'rank')} with {master} as rank 0: "
            "these scripts do not go with those of a rendering without it"
        )
    # With --shell, scripts for other shells may stay beside these; otherwise they are out of date.
    endings = (f".{arguments.shell}",) if arguments.shell else SCRIPT_ENDINGS
    out = output_folder(arguments.out)
    gone = abandoned_folders(out, inventory)
    if gone:
        stderr.line(f"warning: {out / fold(gone)} was made from {inventory.source}, which has no such node now")
    try:
        found = file_changes(out, made, endings=endings)
        if arguments.diff:
            show_changes(found, Redactor(plan.secrets))
        else:
            write_changes(out, made, found)
    except OSError as error:
        where = error.filename2 or error.filename or out
        raise FilesWrong.of("arguments.out", f"--out {out}: {where}: {error.strerror}") from None
    return 0


def output_folder(given: str) -> Path:
    """The folder of `--out`; expands a leading `~`, which no shell does after `--out=`."""
    out = Path(given).expanduser() if given.startswith("~/") else Path(given)
    problem = "is empty: which folder?" if not given else f"{out} is a file" if is_file(out) else None
    if problem:
        raise FilesWrong.of("arguments.out", f"--out {problem}", help="the scripts go to DIR/NODE/launch.EXT")
    return out


def warn_of_backend(plan: Plan) -> None:
    windows = [node.name for node in plan.inventory.nodes if node.windows]
    if windows and plan.inventory.rendezvous.backend == "nccl":
        stderr.line(
            f"warning: {plan.inventory.source} names the backend nccl, and PyTorch has none for Windows "
            f"({fold(windows)}): use `backend: gloo`"
        )


def show_changes(found: Iterable[FileChange], redactor: Redactor) -> None:
    """Prints what would change as a diff on stdout, and how much on stderr."""
    kinds: Counter[str] = Counter()
    for change in found:
        kinds[change.kind] += 1
        if change.kind != "as before":
            after = change.after.data if change.after else None
            stdout.tell("".join(map(redactor.text, unified_diff(change.path, change.before, after, change.secret))))
    stderr.line(f"{file_counts_line(kinds)}; nothing is written")


def write_changes(out: Path, made: Sequence[NodeFiles], found: Iterable[FileChange]) -> None:
    kinds: Counter[str] = Counter()
    removed: dict[str, None] = {}
    writer = Writer(out)
    for change in found:
        writer.apply(change)
        kinds[change.kind] += 1
        if change.after is None:
            removed[change.path.name] = None
    names_of = ((tuple(filter(None, (one.launch, *sorted(one.files.keys() - {one.launch})))), one) for one in made)
    for names, nodes in values_by_key((names, one.node.name) for names, one in names_of).items():
        stdout.line(f"{out / fold(nodes)}: {', '.join(names)}")
    stdout.line(file_counts_line(kinds))
    if removed:
        stdout.line(f"removed, left by an earlier rendering: {', '.join(removed)}")
    for line in start_instructions(out, made):
        stdout.line(line)


def file_counts_line(kinds: Counter[str]) -> str:
    """The line that counts the files of each kind: `files: 2 new, 1 changed, 3 as before`."""
    parts = [f"{kinds[kind]:,} {kind}" for kind in ("new", "changed", "as before", "removed") if kinds[kind]]
    return f"files: {', '.join(parts)}"


def start_instructions(out: Path, made: Sequence[NodeFiles]) -> list[str]:
    """The lines that say how the scripts are started on their nodes."""
    made = [one for one in made if one.launch]
    if len(made) == 1:
        return [f"start it on {made[0].node.name}: {start_command(made[0], out / made[0].node.name / made[0].launch)}"]
    commands = values_by_key((start_command(one, Path(one.launch)), one.node.name) for one in made)
    if len(commands) == 1:
        return [f"copy each folder to its node, and on every node, in that folder: {next(iter(commands))}"]
    lines = [f"  {fold(nodes)}: {line}" for line, nodes in commands.items()]
    return ["copy each folder to its node, and there, in that folder:", *lines]


def start_command(one: NodeFiles, path: Path) -> str:
    """The command that starts a node's script; for a script without a launch, with an example of a program to start as
    every rank."""
    shown = str(path)
    if one.node.windows:
        shown = shown.replace("/", "\\")
        shown = shown if "\\" in shown else f".\\{shown}"
        shown = shown if re.fullmatch(r"[\w.:\\-]+", shown) else f'"{shown}"'
    else:
        shown = shell_word(f"./{shown}" if shown.startswith("-") else shown)
    return SCRIPT_START_COMMANDS[one.node.shell].format(path=shown) + (
        " COMMAND, for example: python train.py" if one.takes_command else ""
    )


_NO_FILE = "/dev/null"


def unified_diff(path: Path, before: bytes | None, after: bytes | None, secret: bool) -> Iterator[str]:
    """Yields the lines of a diff, none if nothing changes. `None` is a file that does not exist."""
    old, new = _file_lines(before), _file_lines(after)
    if secret:
        old, new = _masked_texts(old, new)
    names = (_NO_FILE if before is None else str(path), _NO_FILE if after is None else str(path))
    yield from difflib.unified_diff(old, new, *names)


def _file_lines(data: bytes | None) -> list[str]:
    """The lines of a file, each ending with \\n, whatever it ends with in the file."""
    lines = (data or b"").decode("utf-8-sig", "replace").split("\n")
    return [line.removesuffix("\r") + "\n" for line in (lines if lines[-1] else lines[:-1])]


def _masked_texts(old: list[str], new: list[str]) -> tuple[list[str], list[str]]:
    """Both texts with values as `***`; a changed value still shows as a difference."""
    before = [_masked_line(line) for line in old]
    after = [_masked_line(line) for line in new]
    changed = {star for star, line in zip(after, new, strict=True) if star in before and line not in old}
    return before, [star.replace("\n", " (another value)\n") if star in changed else star for star in after]


def _masked_line(line: str) -> str:
    """A line of a file with secrets, masked: everything behind a name may be a secret, and so may a line without
    one."""
    name, sets, _ = line.partition("=")
    return f"{name}=***\n" if sets else line if line == "@echo off\n" else "***\n"
