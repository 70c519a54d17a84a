"""Which files does each node of a plan need (a script for each stage that starts ranks, and the files beside it), where
in the user's files does a value stand that a shell cannot carry, and what changes in the folder that `runbook render`
writes?"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from runbook.engine.plan import Plan, PlannedStage
from runbook.files.value_origins import Origins
from runbook.files.yaml_document import KeyPath
from runbook.launch.job import Job
from runbook.launch.launchers import launch_spec, launcher_problems, ranks_spec
from runbook.launch.quote import CannotQuote
from runbook.launch.ranks import RankLayout, rank_layout
from runbook.launch.script import LAUNCH_SCRIPT_NAME, ScriptSpec, make_script, quoting_refusals
from runbook.model.errors import FilesWrong, Problem, Span
from runbook.model.inventory import Inventory, Node
from runbook.model.redact import Redactor
from runbook.model.safe_files import open_regular_file

_DERIVED_VARIABLES: Mapping[str, KeyPath] = {
    "MASTER_ADDR": ("rendezvous", "address"),
    "GLOO_SOCKET_IFNAME": ("network", "interface"),
    "NCCL_SOCKET_IFNAME": ("network", "interface"),
    "NCCL_IB_HCA": ("infiniband", "hca"),
}
"""By variable that no `env:` sets, the place in the inventory that its value comes from."""


def refused_value_problems(
    error: CannotQuote, spec: ScriptSpec, node: Node, job: Job | None, origins: Origins
) -> list[Problem]:
    """A problem, with its place, for everything in the spec that the node's shell refuses; at least one.

    `error` is the refusal that stopped the script. It is reported if no single value is the reason, as with a line that
    is too long.
    """
    redactor = Redactor(spec.environment.values())
    refused = list(quoting_refusals(spec, node.shell))
    return [
        Problem(
            "script.cannot-carry",
            f"no .{node.shell} script can hold this: {redactor.text(str(one))}",
            _refused_value_span(one, spec, node, job, origins)
            if refused
            else _longest_word_span(one, spec, node, job, origins),
        )
        for one in refused or [error]
    ]


def _longest_word_span(
    error: CannotQuote, spec: ScriptSpec, node: Node, job: Job | None, origins: Origins
) -> Span | None:
    """The place of the longest word of a command whose words are valid one by one and too long together."""
    words = job.programs[node.name].command if job else ()
    longest = max(range(len(words)), key=lambda index: len(words[index]), default=0)
    return job.span("command", longest) if job else _refused_value_span(error, spec, node, job, origins)


def _refused_value_span(
    refused: CannotQuote, spec: ScriptSpec, node: Node, job: Job | None, origins: Origins
) -> Span | None:
    """The place in the user's files of a value that the shell refuses."""
    what, *names = refused.place or ("",)
    if what in ("environment", "secret") and names:
        # If two names are the same variable on Windows, `value` is one of them, and `place` names only the last of all.
        alike = [name for name in reversed(list(spec.environment)) if name.upper() == (refused.value or "").upper()]
        spans = (_variable_span(name, node, job, origins) for name in (names[0], *alike))
        return next((span for span in spans if span), None)
    if what == "command" and job and spec.command:
        # A launcher puts its own words before the job's, so the index is counted from the end.
        index = int(names[0]) + len(job.programs[node.name].command) - len(spec.command)
        return job.span("command", index) if index >= 0 else origins.span(node.name, "python")
    if what == "workdir" and job:
        return job.span("workdir")
    if what == "activate":
        return origins.span(node.name, "activate")
    if what in ("command", "python"):
        return origins.span(node.name, "python")
    if what == "address":
        return _variable_span("MASTER_ADDR", node, job, origins)
    return job.span() if job else None


def _variable_span(name: str, node: Node, job: Job | None, origins: Origins) -> Span | None:
    """The place that sets a variable: the job, the inventory, or the setting that it is derived from."""
    if job and name in job.programs[node.name].env:
        return job.span("env", name)
    own = origins.span(node.name, "env", name)
    return origins.document.span(*_DERIVED_VARIABLES[name]) if own is None and name in _DERIVED_VARIABLES else own


SCRIPT_MODE = 0o700
"""The mode of a script."""
FILE_MODE = 0o600
"""The mode of any other file."""

StageLayout = tuple[PlannedStage, RankLayout]
"""A stage that starts ranks, and which ranks run on its nodes."""


@dataclass(frozen=True, slots=True)
class ScriptFile:
    """The contents and mode of one file. `secret`: it holds values that must not be shown."""

    data: bytes
    mode: int = FILE_MODE
    secret: bool = False


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """All files of one node, by name. `launch`: the name of the script that starts its job or, with `takes_command`,
    the command that the script gets as arguments; empty for a spare, which has no ranks until it takes another node's
    place."""

    node: Node
    launch: str
    takes_command: bool
    files: Mapping[str, ScriptFile]


def node_files(plan: Plan, origins: Origins) -> list[NodeFiles]:
    """The files of every node of the plan. Raises FilesWrong with everything that no script can do or carry."""
    problems: dict[Problem, None] = {}
    stages: list[StageLayout] = []
    whole = rank_layout(plan.inventory)
    for stage in plan.stages:
        if not stage.starts_ranks or stage.skip is not None:
            continue
        found = launcher_problems(stage.check.user_job, stage.inventory.nodes) if stage.check.user_job else []
        problems.update(dict.fromkeys(found))
        if not found:
            stages.append((stage, whole if stage.inventory is plan.inventory else rank_layout(stage.inventory)))
    made: list[NodeFiles] = []
    for node in plan.inventory.nodes:
        files: dict[str, ScriptFile] = {}
        launch, takes_command = "", False
        for spec, job in _script_specs(plan, stages, whole, node):
            try:
                script = make_script(spec, node.shell)
            except CannotQuote as error:
                problems.update(dict.fromkeys(refused_value_problems(error, spec, node, job, origins)))
                continue
            for name, data in script.files.items():
                files[name] = ScriptFile(data, SCRIPT_MODE) if name == script.name else ScriptFile(data, secret=True)
            if spec.name == LAUNCH_SCRIPT_NAME:
                launch, takes_command = script.name, spec.command is None
            elif job is None:
                files["rank.py"] = RANK_PROGRAM
        if files and not problems:  # with a problem nothing will be written; the loop only looks for more problems
            made.append(NodeFiles(node, launch, takes_command, files))
    if problems:
        raise FilesWrong(list(problems))
    return made


RANK_PROGRAM = ScriptFile(resources.files("runbook.node").joinpath("rank.py").read_bytes())
"""The file `rank.py`, the same for every node."""


def _script_specs(
    plan: Plan, stages: Sequence[StageLayout], whole: RankLayout, node: Node
) -> Iterator[tuple[ScriptSpec, Job | None]]:
    """The specs of a node's scripts, one for each stage that starts ranks there, with its job if it has one. The script
    of the first job is called `launch`. Without a job, `launch` is a script that takes any command."""
    launched = False
    for stage, by_node in stages:
        node_ranks = by_node.by_node.get(node.name)
        if node_ranks is None:
            continue
        if job := stage.check.user_job:
            name = stage.script if launched else LAUNCH_SCRIPT_NAME
            yield launch_spec(by_node, node_ranks, job, name=name, made_from=plan.sources), job
            launched = True
        else:
            yield ranks_spec(by_node, node_ranks, name=stage.script, made_from=plan.sources), None
    if not launched and not any(node.name in stage.check.spares for stage, _ in stages):
        yield launch_spec(whole, whole.by_node[node.name], None, name=LAUNCH_SCRIPT_NAME, made_from=plan.sources), None


SCRIPT_ENDINGS = (".sh", ".bat", ".ps1")
"""The endings of scripts."""
MAX_SCRIPT_FILE_BYTES = 64 << 20
"""The most bytes of a file in the folder of scripts that are read: no file of ours is as large."""
_HEAD_CHARACTERS = 1000  # characters at the beginning of a script that hold the line which says whose it is
_SCRIPT_OWNER = re.compile(r"runbook \S+: (\S+), [0-9]+ of [0-9]+ ranks")
"""The text in a script's head that says that it is ours, and for which node."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file before and after rendering. `before` is None for a new file, `after` is None for a file to be removed; a
    file that stays as it is has both, with the same contents."""

    path: Path
    before: bytes | None
    after: ScriptFile | None
    secret: bool

    @property
    def kind(self) -> str:
        """new, changed, as before, or removed."""
        if self.after is None:
            return "removed"
        if self.before is None:
            return "new"
        return "as before" if self.before == self.after.data else "changed"


def file_changes(
    out: Path, made: Iterable[NodeFiles], *, endings: Collection[str] = SCRIPT_ENDINGS
) -> Iterator[FileChange]:
    """The changes for every file of every node, and for the files to be removed, which an earlier rendering for these
    `endings` left behind.

    Only files that are known to be ours are removed: scripts whose head says so, for this very node, and their files.
    """
    for one in made:
        folder = out / one.node.name
        there = _regular_files(folder)
        old = _files_to_remove(there, one, endings)  # before the scripts that it reads are written over
        for name, file in one.files.items():
            yield FileChange(folder / name, _file_bytes(there.get(name)), file, file.secret)
        for name, secret in old.items():
            yield FileChange(folder / name, _file_bytes(there[name]), None, secret)


def abandoned_folders(out: Path, inventory: Inventory) -> list[str]:
    """The names of folders with scripts for nodes that this inventory no longer has. They are not removed."""
    known = {node.name for node in inventory.nodes}
    made_from = re.compile(rf"made from inventory {re.escape(inventory.source)}\r?\n")
    found: set[str] = set()
    with contextlib.suppress(OSError), os.scandir(out) as entries:
        for entry in entries:
            scripts = [] if entry.name in known else _regular_files(Path(entry.path)).values()
            heads = (_first_bytes(path).decode("utf-8", "replace") for path in scripts if path.suffix in SCRIPT_ENDINGS)
            if any(
                (ours := _SCRIPT_OWNER.search(head)) and ours[1] == entry.name and made_from.search(head)
                for head in heads
            ):
                found.add(entry.name)
    return sorted(found)


class Writer:
    """Changes the folder `out`, one file at a time. A file is replaced as a whole, and others can never read it."""

    def __init__(self, out: Path) -> None:
        # All drafts lie in one folder: a file made in each of 10,000 new folders costs ext4 three times as much.
        self._draft = out / f".draft-{os.getpid()}"
        self._draft.unlink(missing_ok=True)
        self._folder: Path | None = None
        self._rank_program: Path | None = None

    def apply(self, change: FileChange) -> None:
        """Writes or removes one file. Raises OSError."""
        if change.after is None:
            change.path.unlink(missing_ok=True)
        elif change.kind == "as before":
            if stat.S_IMODE(change.path.stat().st_mode) != change.after.mode:
                change.path.chmod(change.after.mode)
        else:
            self._replace(change.path, change.after)

    def _replace(self, path: Path, file: ScriptFile) -> None:
        """Replaces a file through the draft. Raises OSError."""
        if path.parent != self._folder:
            self._folder = path.parent
            self._folder.mkdir(parents=True, exist_ok=True)
        try:
            self._write_draft(file)
            self._draft.replace(path)
        except OSError:
            self._draft.unlink(missing_ok=True)
            raise
        if file is RANK_PROGRAM:
            self._rank_program = path

    def _write_draft(self, file: ScriptFile) -> None:
        """Writes the contents of a file into the draft. `rank.py`, which is the same for every node, becomes a hard
        link if the file system has those: that saves space."""
        if file is RANK_PROGRAM and self._rank_program is not None:
            with contextlib.suppress(OSError):
                os.link(self._rank_program, self._draft)
                return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(self._draft, flags, file.mode), "wb") as stream:
            stream.write(file.data)


def _regular_files(folder: Path) -> dict[str, Path]:
    """The regular files of a folder, by name, without links; empty if there is no such folder."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name: Path(entry.path) for entry in entries if entry.is_file(follow_symlinks=False)}
    except (FileNotFoundError, NotADirectoryError):
        return {}


def _file_bytes(path: Path | None) -> bytes | None:
    return None if path is None else _first_bytes(path, MAX_SCRIPT_FILE_BYTES)


def _first_bytes(path: Path, most: int = _HEAD_CHARACTERS) -> bytes:
    """The first bytes of a file."""
    with open_regular_file(path) as file:
        return file.read(most)


def _files_to_remove(there: Mapping[str, Path], one: NodeFiles, endings: Collection[str]) -> dict[str, bool]:
    """The names of the files to remove, and whether each is secret."""
    found: dict[str, bool] = {}
    still_needed = False
    for name, path in there.items():
        if path.suffix not in SCRIPT_ENDINGS:
            continue
        text = _first_bytes(path, MAX_SCRIPT_FILE_BYTES).decode("utf-8", "replace")
        head = _SCRIPT_OWNER.search(text[:_HEAD_CHARACTERS])
        if head is None or head[1] != one.node.name:
            continue
        if path.suffix not in endings:
            still_needed = still_needed or "rank.py" in text
            continue
        if name not in one.files:
            found[name] = False
        for other in there:  # a script names the file with its secrets
            if other.startswith(f"{path.stem}.env") and other not in one.files and other in text:
                found[other] = True
    if "rank.py" in there and "rank.py" not in one.files and not still_needed:
        first_line = RANK_PROGRAM.data.split(b"\n", 1)[0]
        if _first_bytes(there["rank.py"]).startswith(first_line):
            found["rank.py"] = False
    return found
