"""`runbook collect`: writes one archive for a colleague or a forum, and says what is and what is not in it."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runbook.cli.inventory import refuse_to_replace
from runbook.cli.inventory_source import find_only_inventory, inventory_source
from runbook.cli.run import interrupt_on_termination
from runbook.collect.archive import UNFIT_KIND, Absent, archive_files, pack_archive, taken_out_text, write_archive
from runbook.collect.ask_nodes import WINDOWS_NODE, NodeAnswer
from runbook.collect.gather import CollectRequest, Gathered, gather_entries
from runbook.collect.local_files import CollectedRun, read_collected_run
from runbook.engine.run_folder import latest_run
from runbook.files.environment_values import AnyVariable
from runbook.files.inventory import load_inventory
from runbook.files.node_sets import select_nodes
from runbook.files.value_origins import Origins
from runbook.files.yaml_document import Document
from runbook.model.command_quoting import shell_word
from runbook.model.errors import FilesWrong
from runbook.model.grouping import values_by_key
from runbook.model.inventory import Inventory, Node
from runbook.model.node_ranges import fold
from runbook.model.run_files import EVENTS_FILE
from runbook.model.safe_files import is_folder, path_lookup_error
from runbook.model.safe_text import printable_line, visible_text
from runbook.model.units import bytes_text, count_text, seconds_text
from runbook.model.verdict import EXIT_DONE, EXIT_UNKNOWN
from runbook.report.folding import Gist, fold_texts, fold_unreached
from runbook.report.standard_streams import stderr, stdout


def collect(arguments: argparse.Namespace) -> int:
    """0 everything gathered; 2 wrong files or arguments; 3 a node could not be asked, or gave what does not fit: the
    archive is there all the same."""
    refuse_to_replace(arguments.out, force=False, such_as="collected.tar.gz", instead="name another")
    if arguments.out is None and not os.access(Path(), os.W_OK | os.X_OK):
        raise FilesWrong.of("arguments.out", "no file can be made in this folder", help="name one: --out FILE")
    run, about_run = choose_run(arguments)
    subject = choose_inventory(arguments, run)
    run, about_run = keep_run_of_inventory(arguments, subject, run, about_run)
    nodes: Sequence[Node] = ()
    if subject.inventory is not None:
        nodes = (
            select_nodes(arguments.limit, subject.inventory) if arguments.limit is not None else subject.inventory.nodes
        )
    if stderr.isatty() and nodes:
        stderr.line(f"asking {count_text(len(nodes), 'node')} …")
    wanted = CollectRequest(
        inventory=subject.inventory,
        origins=subject.origins,
        inventory_path=subject.path,
        nodes=nodes,
        run=run,
        command=[shlex.quote(argument) for argument in ("runbook", *sys.argv[1:])],
        forks=arguments.forks,
        hide_addresses=arguments.hide_addresses,
    )
    when = time.time()
    with interrupt_on_termination():
        gathered = gather_entries(wanted)
        out = Path(arguments.out) if arguments.out else default_archive_path(subject, gathered, when)
        files = archive_files(gathered, re.sub(r"\.(?:tar\.gz|tgz)\Z", "", out.name), when)
        data = pack_archive(files, when)
        write_collected_archive(data, out)
    code = EXIT_UNKNOWN if subject.trouble or any(not node.whole for node in gathered.nodes) else EXIT_DONE
    if arguments.output == "json":
        stdout.document(collect_json(gathered, out, data, files=files, run=run, subject=subject, code=code))
    else:
        stdout.tell("\n".join(map(visible_text, collect_text(gathered, out, data, files, about_run, subject))) + "\n")
    return code


# What to gather.


@dataclass(frozen=True, slots=True)
class Subject:
    """The inventory to gather from; `trouble` says why there is none."""

    path: Path | None = None
    inventory: Inventory | None = None
    origins: Origins | None = None
    trouble: str | None = None


def choose_run(arguments: argparse.Namespace) -> tuple[CollectedRun | None, str]:
    """The run of --run-dir, or else the latest run, and a sentence that says which run it is. Raises FilesWrong."""
    if arguments.run_dir is not None:
        path = Path(arguments.run_dir)
        run = read_collected_run(path)
        if run is None:
            why = "holds no run: there is no result.json and no events.jsonl in it"
            unseen = path_lookup_error(path / EVENTS_FILE)
            what = f"cannot be looked into: {unseen}" if unseen else why if is_folder(path) else "is no folder"
            raise FilesWrong.of("arguments.run-dir", f"--run-dir {arguments.run_dir} {what}")
        return run, f"{run.path}: {run_verdict_text(run)}"
    latest = latest_run()
    run = read_collected_run(latest) if latest else None
    if run is None:
        return None, "none: there is no run here yet"
    return run, f"{run.path}: {run_verdict_text(run)} (the latest; --run-dir DIR takes another)"


def run_verdict_text(run: CollectedRun) -> str:
    where = f" at {run.stopped_at}" if run.stopped_at else ""
    why = f": {', '.join(run.causes)}" if run.causes else ""
    return printable_line(f"{run.verdict}{where}{why}")


def choose_inventory(arguments: argparse.Namespace, run: CollectedRun | None) -> Subject:
    """The inventory of -i, or else the run's, or without a run the only one here. A run whose inventory is gone can be
    sent too."""
    if arguments.inventory is not None or run is None:
        return load_subject(
            inventory_source(arguments.inventory) if arguments.inventory is not None else find_only_inventory()
        )
    if run.inventory is None:
        return Subject(
            trouble=f"the run's inventory, {run.named_inventory or 'of no name'}, does not exist: name one with -i"
        )
    try:
        return load_subject(run.inventory)
    except FilesWrong as wrong:
        return Subject(run.inventory, trouble=f"the run's inventory does not load: {wrong}")


def load_subject(path: Path | Document) -> Subject:
    inventory, origins = load_inventory(path, environ=AnyVariable.here())
    return Subject(path if isinstance(path, Path) else None, inventory, origins)


def keep_run_of_inventory(
    arguments: argparse.Namespace, subject: Subject, run: CollectedRun | None, about_run: str
) -> tuple[CollectedRun | None, str]:
    """The run and the sentence about it; a latest run on other machines than those of -i is left out, since it would
    mislead the reader of the archive."""
    if run is None or arguments.run_dir is not None or arguments.inventory is None:
        return run, about_run
    if subject.path is None:  # a job or pods: the next job of the same name may have other nodes
        names = {node.name for node in subject.inventory.nodes} if subject.inventory else set()
        same = run.named_inventory == arguments.inventory and names.issuperset(run.nodes)
    else:
        same = run.inventory is not None and os.path.realpath(run.inventory) == os.path.realpath(subject.path)
    if same:
        return run, about_run
    return None, f"none: the latest, {run.path}, was of {run.named_inventory}; --run-dir {run.path} takes it along"


def default_archive_path(subject: Subject, gathered: Gathered, when: float) -> Path:
    cluster = subject.inventory.name if subject.inventory else "run"
    cluster = "cluster" if gathered.scrubber.machines else gathered.scrubber.text(cluster)
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "-", cluster).strip("-.")[:60] or "cluster"
    return Path(f"runbook-collect-{safe}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(when))}.tar.gz")


def write_collected_archive(data: bytes, out: Path) -> None:
    try:
        write_archive(data, out)
    except FileExistsError:
        raise FilesWrong.of("arguments.out", f"{out}: the file exists", help="name another with --out") from None
    except OSError as error:
        message = f"{out} cannot be written: {error.strerror or error}"
        raise FilesWrong.of("arguments.out", message, help="name another place with --out") from None


# What is printed.


def collect_text(
    gathered: Gathered, out: Path, data: bytes, files: Mapping[str, bytes], about_run: str, subject: Subject
) -> Iterator[str]:
    yield f"{out} · {bytes_text(len(data))}, {len(files)} files, readable by you alone"
    yield f" run        {about_run}"
    if subject.trouble:
        yield f" nodes      not asked: {printable_line(subject.trouble)}"
    yield from asked_lines(gathered)
    yield from not_asked_lines(gathered.nodes)
    yield f" taken out  {taken_out_text(gathered)}"
    if gathered.scrubber.machines is None:
        yield "            names of hosts and addresses are in it; --hide-addresses replaces them"
    for warning in unsearched_secret_warnings(gathered):
        yield f" warning    {printable_line(warning)}"
    yield "Look through it before you send it: only you know all your secrets."
    yield f"  mkdir look && tar -xzf {shell_word(out)} -C look && less look/README.txt"


def unsearched_secret_warnings(gathered: Gathered) -> list[str]:
    """Sentences on secrets that cannot be looked for in what is gathered."""
    return [
        f"{source} is {'too short' if is_set else 'not set here'}: its value cannot be looked for"
        for source, is_set in sorted(gathered.unsearched.items())
    ]


def asked_lines(gathered: Gathered) -> Iterator[str]:
    """Yields a line on all nodes that were asked, and below it lines on what some could not give."""
    nodes = [node for node in gathered.nodes if node.asked]
    if not nodes:
        return
    seconds = seconds_text(max(node.seconds or 0.0 for node in nodes))
    counts = sorted({len(node.entries) for node in nodes})
    answers = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))) + " answers"
    each = " each" * (len(nodes) > 1)
    yield f" asked      {fold(node.node for node in nodes)}  {answers}{each} in {seconds}"
    yield from absent_lines(nodes)


def absent_lines(nodes: Sequence[NodeAnswer]) -> Iterator[str]:
    """Yields lines on what nodes could not give, reason by reason: missing tools only by their names, and the nodes if
    it is not all of them. There are at most as many lines as things to give, however many nodes there are, since
    reasons that differ only in names and numbers share a line: busy nodes run into other limits each time."""
    gist = Gist([node.node for node in nodes])
    found = values_by_key(
        ((*_absence_kind_and_name(one, node.node), gist(printable_line(one.why))), (node.node, printable_line(one.why)))
        for node in nodes
        for one in node.absent
    )
    alike = values_by_key(
        ((kind, why if kind != "missing" else "", tuple(dict.fromkeys(node for node, _ in said))), (name, said))
        for (kind, name, why), said in found.items()
    )
    for (kind, _, names), said in sorted(alike.items(), key=lambda one: one[0][0] != "missing"):
        what = ", ".join(dict.fromkeys(name for name, _ in said))
        where = "" if len(names) == len(nodes) else f" (on {fold(names)})"
        whys = list(dict.fromkeys(why for _, of in said for _, why in of))
        why = "" if kind == "missing" else f": {fold_texts(whys) or whys[0]}"
        yield f"   {'not there' if kind == 'missing' else kind:<11} {what}{where}{why}"


def _absence_kind_and_name(one: Absent, node: str) -> tuple[str, str]:
    name = (
        missing_thing_name(one)
        if one.kind == "missing"
        else one.what.removeprefix(f"nodes/{node}/").removesuffix(".txt")
    )
    return one.kind, name


def missing_thing_name(one: Absent) -> str:
    """The name of a missing tool, such as `nvidia-smi`, whatever it was to be asked; the path of a missing file."""
    words = (one.command or one.what).removeprefix("sudo -n ").split()
    return words[1] if words[0] == "cat" and len(words) > 1 else words[0]


def not_asked_lines(nodes: Sequence[NodeAnswer]) -> Iterator[str]:
    """Yields lines on the nodes that were not reached; nodes whose errors differ only in names and numbers share
    one."""
    silent = {node.node: node.failure for node in nodes if node.failure is not None}
    for names, error in fold_unreached(silent):
        yield f" not asked  {names}  {printable_line(error.says)}"
        for line in error.evidence:
            yield f"   evidence {printable_line(line)}"
        yield f"   fix      {printable_line(error.remedy)}"
        if error.cause != WINDOWS_NODE:
            yield f"   more     runbook explain {error.cause}"


def collect_json(
    gathered: Gathered,
    out: Path,
    data: bytes,
    files: Mapping[str, bytes],
    run: CollectedRun | None,
    subject: Subject,
    code: int,
) -> str:
    def of(node: NodeAnswer, kind: str) -> list[str]:
        shown = gathered.scrubber.text(node.node)
        return [one.what for one in gathered.absent if one.node == shown and one.kind == kind]

    document = {
        "version": 1,
        "archive": str(out),
        "bytes": len(data),
        "files": len(files),
        "run": str(run.path) if run else None,
        "inventory": str(subject.path) if subject.path else None,
        "nodes": [
            {
                "node": node.node,
                "asked": node.asked,
                "seconds": node.seconds,
                "cause": node.failure.cause if node.failure else None,
                "says": node.failure.says if node.failure else None,
                "remedy": node.failure.remedy if node.failure else None,
                "answers": len(node.entries),
                "missing": of(node, "missing"),
                "denied": of(node, "denied"),
                "late": of(node, "timeout"),
                "unfit": of(node, UNFIT_KIND),
            }
            for node in gathered.nodes
        ],
        "trouble": subject.trouble,
        "warnings": unsearched_secret_warnings(gathered),
        "taken_out": {"secrets": gathered.secrets, "people": gathered.people, "mail_addresses": gathered.mails},
        "exit_code": code,
    }
    return json.dumps(document, indent=2) + "\n"
