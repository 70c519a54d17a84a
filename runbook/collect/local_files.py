"""The entries that this machine gives to an archive: its versions, the folder of a run, the inventory and playbook, and
the launch scripts made from them."""

from __future__ import annotations

import getpass
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import runbook
from runbook.checks import CHECKS
from runbook.collect.archive import Absent, ArchiveFile, ScrubForm, read_archive_entry
from runbook.collect.scrub import REDACTED_TEXT
from runbook.engine.plan import Choice, Plan, make_plan
from runbook.engine.run_folder import is_run_folder
from runbook.engine.scripts import node_files
from runbook.files.playbook import has_launch, load_launch, load_playbook
from runbook.files.value_origins import Origins
from runbook.files.yaml_document import parse_document, read_document
from runbook.model.errors import FilesWrong
from runbook.model.inventory import EnvValue, Inventory
from runbook.model.playbook import NO_PLAYBOOK
from runbook.model.run_files import EVENTS_FILE, RESULT_FILE
from runbook.model.safe_files import is_file, path_exists
from runbook.model.secrets import Secret
from runbook.report.html.recorded_run import Recorded
from runbook.report.run_record import Record
from runbook.transport.local_programs import run_program

# --- this machine, from which runs are started -----------------------------------------------------------------------

REPORTED_PACKAGES = "runbook fabric paramiko invoke cryptography PyYAML jsonschema Jinja2 rich torch numpy".split()


def controller_entries(command: Sequence[str]) -> list[ArchiveFile | Absent]:
    """The versions of runbook, Python, the system, our packages and ssh on this machine."""
    lines = [
        f"runbook {runbook.__version__}",
        f"Python {platform.python_version()} ({platform.python_implementation()}) {sys.executable}",
        f"system {platform.platform()}",
        f"command {' '.join(command)}",
    ]
    found: list[ArchiveFile | Absent] = [
        ArchiveFile("controller/versions.txt", "\n".join(lines) + "\n"),
        ArchiveFile(
            "controller/packages.txt", "".join(f"{name}=={_package_version(name)}\n" for name in REPORTED_PACKAGES)
        ),
    ]
    return [*found, _ssh_version_entry()]


def _package_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _ssh_version_entry() -> ArchiveFile | Absent:
    """The version of the ssh client, which decides how ssh_config is read."""
    program = shutil.which("ssh")
    if program is None:
        return Absent("controller/ssh.txt", "there is no ssh here", command="ssh -V")
    try:
        done = run_program([program, "-V"], 5.0)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Absent("controller/ssh.txt", str(error), "failed", command="ssh -V")
    return ArchiveFile("controller/ssh.txt", done.stdout + done.stderr, command="ssh -V", code=done.returncode)


def current_user_names() -> tuple[str, str, str]:
    """Login name, home folder and full name of the present user; each empty if unknown."""
    try:
        import pwd

        entry = pwd.getpwuid(os.getuid())
        return entry.pw_name, entry.pw_dir, entry.pw_gecos.split(",")[0]
    except (ImportError, KeyError):
        pass
    try:
        return getpass.getuser(), str(Path.home()), ""
    except (OSError, KeyError, RuntimeError, ImportError):
        return "", "", ""


# --- the folder of a run ---------------------------------------------------------------------------------------------

MAX_RUN_LOGS = 2000
_RUN_FILES: tuple[tuple[str, ScrubForm], ...] = (
    (RESULT_FILE, "json"),
    (EVENTS_FILE, "json lines"),
    ("crash.txt", "text"),
)
FORM_BY_SUFFIX: Mapping[str, ScrubForm] = {".jsonl": "json lines", ".json": "json"}


@dataclass(frozen=True, slots=True)
class CollectedRun:
    """A run whose files are collected. `inventory` and `playbook` are the files that the run was given, None if they no
    longer exist; `named_inventory` and `named_playbook` are their paths as the run wrote them."""

    path: Path
    verdict: str
    stopped_at: str | None
    causes: tuple[str, ...]
    nodes: tuple[str, ...]
    inventory: Path | None
    playbook: Path | None
    started: float | None
    named_inventory: str
    named_playbook: str


def read_collected_run(path: Path) -> CollectedRun | None:
    """The run in a folder, as far as its files can be read; None if it is no run folder."""
    if not is_run_folder(path):
        return None
    try:
        known = Recorded(path).record
    except FilesWrong:
        known = Record()
    started, ended = known.started, known.finished
    return CollectedRun(
        path=path,
        verdict=str(ended.verdict) if ended else "unfinished",
        stopped_at=known.stopped_at,
        causes=tuple(known.causes),
        nodes=started.nodes if started else (),
        inventory=_find_named_file(path, started.inventory) if started else None,
        playbook=_find_named_file(path, started.playbook) if started else None,
        started=(started.time or None) if started else None,
        named_inventory=started.inventory if started else "",
        named_playbook=started.playbook if started else "",
    )


def run_entries(run: CollectedRun) -> Iterator[ArchiveFile | Absent]:
    """The files that `run` writes into a run folder, and no others: `--run-dir` may be a home folder."""
    for name, form in _RUN_FILES:
        if name != "crash.txt" or path_exists(run.path / name):
            yield read_archive_entry(run.path / name, f"run/{name}", form, below=run.path)
    for folder in ("logs", "hang"):
        files = sorted(_regular_files(run.path / folder))
        for path in files[:MAX_RUN_LOGS]:
            place = f"run/{path.relative_to(run.path).as_posix()}"
            yield read_archive_entry(path, place, FORM_BY_SUFFIX.get(path.suffix, "text"), below=run.path)
        if more := len(files[MAX_RUN_LOGS:]):
            yield Absent(f"run/{folder}", f"{more} more files than the {MAX_RUN_LOGS} that are here", "left out")


def _regular_files(folder: Path) -> Iterator[Path]:
    if folder.is_symlink():  # which os.walk would follow
        return
    for base, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (
            path for name in files if not (path := Path(base) / name).is_symlink() and is_file(path) and name[0] != "."
        )


def _find_named_file(run: Path, named: str) -> Path | None:
    """The file that a run names by the path `named`, relative to the present folder or to the one that the run was
    started in, which holds `.runbook/runs/RUN_ID`. None if it no longer exists."""
    if not named or "\0" in named:
        return None
    bases = [Path()]
    if run.parent.name == "runs" and run.parent.parent.name == ".runbook":
        bases.append(run.parent.parent.parent)
    return next((base / named for base in bases if is_file(base / named)), None)


# --- inventory, playbook, and the scripts that `render` makes of them -----------------------------------------------

RANK_PROGRAM_NAME = "rank.py"
TOP_KEY_BY_KIND = {"inventory": "nodes", "playbook": "stages"}


def source_entries(inventory: Path | None, run: CollectedRun | None) -> Iterator[ArchiveFile | Absent]:
    """The inventory and the playbook, or why they are absent."""
    for path, kind, named in (
        (inventory, "inventory", run.named_inventory if run else ""),
        (run.playbook if run else None, "playbook", run.named_playbook if run else ""),
    ):
        place = f"{kind}.yml"
        if path is None:
            why = f"the run names {named}, which no longer exists" if named else "no run, so no playbook"
            yield Absent(place, why)
            continue
        entry = read_archive_entry(path, place, "yaml")
        if kind == "playbook" and path == inventory:
            yield Absent(place, "the launch is in the inventory")
            continue
        if isinstance(entry, ArchiveFile) and not _is_file_of_kind(entry.text, kind):
            # A run folder may come from elsewhere, and name any file of this machine.
            entry = Absent(place, f"{path} is no {kind}", "left out")
        began = run.started if run else None
        if isinstance(entry, ArchiveFile) and began is not None and _has_changed_since(path, began):
            entry = replace(entry, trouble="changed since the run")
        yield entry


def _is_file_of_kind(text: str, kind: str) -> bool:
    """Whether a text is a file of this kind (inventory or playbook), by a key at its top."""
    data = parse_document(text, kind).data
    return isinstance(data, dict) and TOP_KEY_BY_KIND[kind] in data


def _has_changed_since(path: Path, time: float) -> bool:
    try:
        return path.stat().st_mtime > time
    except OSError:
        return False


def plan_for_scripts(inventory: Inventory, playbook: Path | None, environ: Mapping[str, str]) -> Plan:
    """The plan whose launch scripts are collected: of the playbook, or of the launch in the inventory. Without either,
    it still gives the script that starts any command as every rank. Raises FilesWrong."""
    own = Path(inventory.source)
    if is_file(own) and (playbook is None or playbook.resolve() == own.resolve()):
        document = read_document(own)
        if has_launch(document):
            return make_plan(load_launch(document, checks=CHECKS, environ=environ), inventory, Choice())
    if playbook is None:
        return Plan(NO_PLAYBOOK, inventory, ())
    return make_plan(load_playbook(playbook, checks=CHECKS, environ=environ), inventory, Choice())


def script_entries(plan: Plan, origins: Origins, nodes: frozenset[str]) -> Iterator[ArchiveFile | Absent]:
    """The files that `render` would write for each of these nodes. Secrets are taken out before the files are made, not
    after."""
    try:
        made = node_files(_plan_without_secrets(plan), origins)
    except FilesWrong as wrong:
        yield Absent("scripts", f"they cannot be rendered: {wrong}", "failed")
        return
    for one in made:
        if one.node.name not in nodes:
            continue
        for name, file in one.files.items():
            if name != RANK_PROGRAM_NAME:  # it is the same in every archive of this version of runbook
                text = file.data.decode("utf-8", "replace")
                yield ArchiveFile(f"scripts/{one.node.name}/{name}", text, node=one.node.name)


def _plan_without_secrets(plan: Plan) -> Plan:
    """The plan with a placeholder for every secret in its environments."""

    def inventory(whole: Inventory) -> Inventory:
        nodes = tuple(replace(node, env=_environment_without_secrets(node.env)) for node in whole.nodes)
        return replace(whole, env=_environment_without_secrets(whole.env), nodes=nodes)

    stages = tuple(
        replace(
            stage,
            check=stage.check.with_environments(_environment_without_secrets),
            inventory=inventory(stage.inventory),
        )
        for stage in plan.stages
    )
    return replace(plan, inventory=inventory(plan.inventory), stages=stages)


def _environment_without_secrets(env: Mapping[str, EnvValue]) -> dict[str, EnvValue]:
    """An environment with a placeholder as the value of every secret, which is rendered in the same places."""
    return {
        name: Secret(REDACTED_TEXT, value.source) if isinstance(value, Secret) else value for name, value in env.items()
    }
