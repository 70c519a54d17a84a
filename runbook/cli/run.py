"""`runbook run`: load → plan → execute → report."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from runbook.checks import CHECKS
from runbook.cli.inventory_source import inventory_naming_help, inventory_source
from runbook.engine import slurm_drain
from runbook.engine.plan import Choice, Plan, make_plan, refuse_what_cannot_run
from runbook.engine.run import RunSettings, run_plan
from runbook.engine.run_folder import RUN_FOLDER_FILES, RUN_ID, new_run_id, run_folder
from runbook.files.extra_vars import parse_extra_vars, unknown_extra_vars
from runbook.files.file_kinds import INVENTORY, PLAYBOOK, kind_by_keys
from runbook.files.inventory import load_inventory
from runbook.files.playbook import has_launch, load_launch, load_playbook
from runbook.files.shipped_files import find_playbook
from runbook.files.value_origins import Origins
from runbook.files.yaml_document import Document, document_of
from runbook.launch.ranks import rank_layout
from runbook.model.command_quoting import shell_word
from runbook.model.errors import FilesWrong, Problem, Unreachable, machine_limit_finding
from runbook.model.events import Emit, Event
from runbook.model.inventory import Inventory
from runbook.model.node_ranges import fold
from runbook.model.playbook import Playbook
from runbook.model.redact import Redactor, is_searchable_secret, short_secret_text
from runbook.model.run_files import EVENTS_FILE, RESULT_FILE
from runbook.model.safe_files import is_file, open_append_below, write_file_below
from runbook.model.safe_text import visible_text
from runbook.model.units import count_text, range_text
from runbook.report.console import Console
from runbook.report.run_json import Jsonl, Result
from runbook.report.standard_streams import stderr, stdout


def run(arguments: argparse.Namespace) -> int:
    """Runs `runbook run`; the exit code."""
    extra = parse_extra_vars(arguments.extra_vars)
    playbook, inventory, origins = load_run_files(arguments, extra)
    choice = Choice(
        limit=arguments.limit,
        tags=split_commas(arguments.tags),
        skip_tags=split_commas(arguments.skip_tags),
        start_at=arguments.start_at,
        extra=extra,
        without_bad=arguments.without_bad,
        min_nodes=arguments.min_nodes,
    )
    if arguments.detach:
        playbook = detach_launches(playbook)
    plan = make_plan(playbook, inventory, choice)  # explains a misspelt template: checked first
    if arguments.min_nodes is not None and not any(stage.drop_bad for stage in plan.stages):
        message = "--min-nodes does nothing here: no stage goes on without bad nodes"
        raise FilesWrong.of("arguments.min-nodes", message, help="add --without-bad, or write `when_bad: drop`")
    refuse_options_without_launch(arguments, plan)
    if arguments.drain and shutil.which("scontrol") is None:
        message = "--drain asks Slurm, and this machine has no `scontrol`"
        raise FilesWrong.of("arguments.drain", message, help="run it in the cluster, or leave --drain away")
    note_unknown_names(arguments.extra_vars, playbook, origins)
    note_reach(playbook)
    note_short_secrets(plan)
    refuse_what_cannot_run(plan)
    if arguments.check:
        redactor = Redactor(plan.secrets)
        if arguments.output in ("json", "jsonl"):
            stdout.document(redactor.text(plan_as_json(plan)))
        else:
            stdout.tell(redactor.text(plan_as_text(plan)))
        return 0
    run_id = run_id_for_folder(arguments.run_dir)
    with run_folder(arguments.run_dir, run_id, print_note) as run_dir:
        settings = RunSettings(run_id, run_dir, arguments.forks, arguments.keep)
        verdicts = slurm_drain.Verdicts() if arguments.drain else None
        with interrupt_on_termination(), event_readers(arguments, run_dir, *([verdicts] if verdicts else [])) as emit:
            code = run_plan(plan, settings, emit)
        if arguments.report:
            write_run_report(run_dir, arguments.output)
        if verdicts:
            drain_bad_nodes(verdicts, run_id, arguments.drain_at_most)
        return code


def run_id_for_folder(named: str | None) -> str:
    """The id of a run: the name of the folder `named` if it is an id, as the server's folders have, and the folder
    holds no run yet; otherwise a new id."""
    folder = Path(named or "")
    if RUN_ID.fullmatch(folder.name) and not any(os.path.lexists(folder / file) for file in RUN_FOLDER_FILES):
        return folder.name
    return new_run_id()


def load_run_files(arguments: argparse.Namespace, extra: Mapping[str, object]) -> tuple[Playbook, Inventory, Origins]:
    """The named playbook and its inventory, or else the inventory of `-i` and its own launch. Raises FilesWrong."""
    if arguments.playbook is not None:
        file = find_playbook(arguments.playbook)
        try:
            playbook = load_playbook(file, checks=CHECKS)
        except FilesWrong as wrong:
            raise FilesWrong(
                [with_argument_order_help(problem, file, arguments) for problem in wrong.problems]
            ) from None
        return playbook, *load_inventory(chosen_inventory(arguments.inventory, playbook), extra_vars=extra)
    if arguments.inventory is None:
        message = "neither a playbook nor an inventory is named"
        help = f"runbook {arguments.command} PLAYBOOK, or -i with an inventory that has a `launch:`"
        raise FilesWrong.of("arguments.no-playbook", message, help=help)
    source = inventory_source(arguments.inventory)
    document = document_of(source)
    inventory, origins = load_inventory(document, extra_vars=extra)
    return load_launch(document, checks=CHECKS), inventory, origins


def with_argument_order_help(problem: Problem, file: Path, arguments: argparse.Namespace) -> Problem:
    """The problem; if an inventory was given in the place of the playbook, with the command that was meant as help."""
    named = arguments.inventory
    document = document_of(file)
    if problem.id != "file.kind" or kind_by_keys(document.data) != INVENTORY:
        return problem
    if named is None and has_launch(document):
        help = f"its own `launch:` needs no playbook: runbook {arguments.command} -i {shell_word(str(file))}"
    elif named is not None and is_file(named) and kind_by_keys(document_of(named).data) == PLAYBOOK:
        help = f"the other way round: runbook {arguments.command} {shell_word(named)} -i {shell_word(str(file))}"
    else:
        return problem
    return replace(problem, help=help)


def refuse_options_without_launch(arguments: argparse.Namespace, plan: Plan) -> None:
    """Raises FilesWrong for options about the ranks of a launch if no launch has such ranks."""
    worlds = [stage.inventory.world_size for stage in plan.stages if stage.check.user_job]
    if arguments.detach and not worlds:
        message = "--detach does nothing here: there is no `launch:` that could go on"
        raise FilesWrong.of("arguments.detach", message, help="leave it out, or name a playbook with a launch")
    unknown = next((rank for rank in arguments.only_rank if rank >= max(worlds, default=0)), None)
    if unknown is not None:
        message = f"--only-rank {unknown}: there is no such rank in any `launch:` here"
        help = (
            f"its ranks are {range_text(0, max(worlds) - 1)}"
            if worlds
            else "it chooses whose output of a launch is shown"
        )
        raise FilesWrong.of("arguments.only-rank", message, help=help)


def detach_launches(playbook: Playbook) -> Playbook:
    """The playbook with `detach: true` in every launch."""
    stages = [
        replace(stage, launch=replace(stage.launch, detach=True)) if stage.kind == "launch" else stage
        for stage in playbook.stages
    ]
    return replace(playbook, stages=tuple(stages))


def write_run_report(run_dir: Path, output: str) -> None:
    """Writes the page and says where it is: on stdout, or on stderr if stdout has a machine's format. It raises
    nothing: the exit code is that of the run."""
    from runbook.cli.report import write_report

    try:
        line = f"report  {write_report(run_dir)}"
    except Exception as error:  # noqa: BLE001  whatever is wrong with a picture of the run, its verdict is told already
        stderr.line(f"warning: the report cannot be written: {type(error).__name__}: {error}")
        return
    if output == "text":
        stdout.line(line)
    else:
        stderr.line(line)


def drain_bad_nodes(verdicts: slurm_drain.Verdicts, run_id: str, at_most: float) -> None:
    """Drains the nodes that were proven bad, and says on stderr what became of each; the exit code is that of the
    run."""
    try:
        done = slurm_drain.drain(verdicts.bad(), run_id, at_most)
    except Unreachable as error:
        stderr.line(f"drain: nothing is drained: {error.says} [{error.cause}]")
        return
    for line in slurm_drain.drain_lines(done):
        stderr.line(line)


def print_note(text: str) -> None:
    stderr.line(f"note: {text}")


def note_unknown_names(extra_vars: list[str], playbook: Playbook, origins: Origins) -> None:
    for name in unknown_extra_vars(extra_vars, playbook, origins.document.data):
        stderr.line(f"note: -e {name} has no effect: neither the playbook nor the inventory has that variable")


def note_short_secrets(plan: Plan) -> None:
    for source in sorted({secret.source for secret in plan.secrets if not is_searchable_secret(secret.reveal())}):
        stderr.line(f"warning: {short_secret_text(source)}")


def note_reach(playbook: Playbook) -> None:
    for stage in playbook.stages:
        if stage.check == "reach":
            stderr.line(f"note: {stage.span}: `reach` always runs first and need not be listed; it runs once")


def split_commas(options: list[str]) -> tuple[str, ...]:
    return tuple(word.strip() for option in options for word in option.split(",") if word.strip())


def chosen_inventory(named: str | None, playbook: Playbook) -> Path | Document:
    """The inventory of `-i`, or the one that the playbook names, by a path relative to the playbook."""
    if named is not None:
        return inventory_source(named)
    if playbook.inventory is None:
        raise FilesWrong.of(
            "arguments.no-inventory", f"{playbook.source} names no inventory", help=inventory_naming_help()
        )
    return Path(os.path.normpath(Path(playbook.source).parent / playbook.inventory))


@contextlib.contextmanager
def interrupt_on_termination() -> Iterator[None]:
    """SIGTERM and SIGHUP end a run as Ctrl-C does: with everything cleaned up."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # Under nohup SIGHUP is ignored, and stays so.
    before = {number: signal.getsignal(number) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def event_readers(arguments: argparse.Namespace, run_dir: Path, *others: Emit) -> Iterator[Emit]:
    """Sets up the readers of the run's events: always events.jsonl and result.json, and what `-o` asks for on stdout.

    With a machine's format on stdout, progress still goes to stderr if that is a terminal, or with -v.
    """
    result = Result()
    junit = None
    readers: list[Emit] = [result, *others]
    with contextlib.ExitStack() as stack:
        try:
            events = io.TextIOWrapper(open_append_below(run_dir, EVENTS_FILE), encoding="utf-8")
        except OSError as error:
            if machine_limit_finding(error):
                raise
            raise FilesWrong.of("arguments.run-dir", f"{run_dir}: {error.strerror}") from None
        stack.callback(close_report_file, events, run_dir / EVENTS_FILE)
        readers.append(Jsonl(events, of_ranks=False))
        if arguments.output == "junit":
            from runbook.report.junit import Junit

            readers.append(junit := Junit())
        if arguments.output == "jsonl":
            readers.append(Jsonl(stdout.verbatim))
        if arguments.output == "text" or arguments.verbose or stderr.isatty():
            stream = stdout if arguments.output == "text" else stderr
            console = Console(stream.verbatim, verbose=arguments.verbose, only_ranks=arguments.only_rank)
            readers.append(stack.enter_context(console))

        def emit(event: Event) -> None:
            for reader in list(readers):
                done = False
                with unwritable_as_warning(run_dir):  # a full disk: no reason to end a run
                    reader(event)
                    done = True
                if not done:
                    with contextlib.suppress(ValueError):  # another thread has removed it meanwhile
                        readers.remove(reader)

        try:
            yield emit
        finally:
            with unwritable_as_warning(run_dir / RESULT_FILE):
                run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)  # if it was removed meanwhile
                write_file_below(run_dir, RESULT_FILE, data=result.text())
    if arguments.output == "json":
        stdout.document(result.text())
    elif junit:
        stdout.document(junit.text())


def close_report_file(file: TextIO, path: Path) -> None:
    """Closes a file; data that a full disk did not take is lost."""
    with unwritable_as_warning(path):
        file.close()


@contextlib.contextmanager
def unwritable_as_warning(what: Path) -> Iterator[None]:
    """Says on stderr that a file or folder cannot be written; the run and its exit code stand."""
    try:
        yield
    except OSError as error:
        stderr.line(f"warning: a report cannot be written: {what}: {error.strerror or error}")


def plan_as_text(plan: Plan) -> str:
    """What a run would do: nodes with their ranks, as `inventory list` shows them, then stages."""
    from runbook.report.inventory import inventory_list_text

    lines = []
    for number, stage in enumerate(plan.stages, 1):
        skipped = f"  (skipped: {stage.skip})" if stage.skip else ""
        limit = f", at most {stage.timeout_s:g} s" if math.isfinite(stage.timeout_s) else ""
        spares = f", spares: {fold(stage.check.spares)}" if stage.check.spares else ""
        of_check = "" if stage.name == stage.check.id else f"  [{stage.check.id}]"
        drops = f", goes on without bad nodes if {stage.min_nodes} are left" if stage.drop_bad else ""
        lines.append(
            f"{number:>3}. {stage.name}{of_check} on {count_text(len(stage.inventory.nodes), 'node')}"
            f"{spares}{limit}{drops}{skipped}"
        )
        if summary := stage.check.summary:
            lines.append(f"     {summary}")
    nodes = inventory_list_text(plan.inventory, plan.ranked, plan.inventory.nodes)
    stages = "\n".join(map(visible_text, lines))
    return f"{visible_text(plan.playbook.name)}: nothing is touched\n{nodes}\nstages:\n{stages}\n"


def plan_as_json(plan: Plan) -> str:
    stages = [
        {
            "name": stage.name,
            "check": stage.check.id,
            "nodes": stage.nodes,
            "timeout_s": stage.timeout_s if math.isfinite(stage.timeout_s) else None,
            "skip": stage.skip,
            "when_bad": "drop" if stage.drop_bad else "stop",
            "min_nodes": stage.min_nodes,
        }
        for stage in plan.stages
    ]
    return json.dumps({"version": 1, **inventory_summary(plan.ranked), "stages": stages}, indent=2) + "\n"


def inventory_summary(inventory: Inventory) -> dict[str, object]:
    ranks = [
        {"rank": r.rank, "node": r.node, "local_rank": r.local_rank, "node_rank": r.node_rank, "device": r.device}
        for r in rank_layout(inventory).ranks
    ]
    return {"inventory": inventory.source, "backend": inventory.rendezvous.backend, "ranks": ranks}
