"""`runbook inventory`: `list`, `graph` and `explain` show an inventory; `import FILE` makes one from another kind of
inventory, `init HOST…` from the answers of hosts.

The result goes to stdout, or to a new file, whole or not at all.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

from runbook.cli.inventory_source import cluster_inventory_text, is_cluster_source, load_named_inventory
from runbook.files.environment_values import AnyVariable
from runbook.files.extra_vars import parse_extra_vars
from runbook.files.file_kinds import ansible_import_command
from runbook.files.inventory_draft import draft_text
from runbook.files.node_sets import foreign_range, select_nodes
from runbook.files.playbook import has_launch, load_launch
from runbook.files.problems import render_all
from runbook.files.value_origins import Origins
from runbook.files.yaml_document import read_document
from runbook.importers.convert import draft_of_foreign_inventory, read_foreign_inventory
from runbook.importers.foreign_inventory import ANSIBLE_FORMAT, Remark
from runbook.model.command_quoting import shell_word
from runbook.model.errors import FilesWrong, Unreachable
from runbook.model.inventory import Inventory
from runbook.model.redact import Redactor, known_inventory_secrets
from runbook.model.safe_files import is_folder, path_exists, path_lookup_error, write_file_atomically
from runbook.model.safe_text import visible_text
from runbook.model.units import count_text
from runbook.model.verdict import EXIT_DONE, EXIT_UNKNOWN, EXIT_WRONG_INPUT
from runbook.report.folding import fold_unreached
from runbook.report.standard_streams import report_error, stderr, stdout

STDIN_SOURCE, HOST_LIST_SOURCE = "stdin", "the command line"  # the name for text without a file
_HOST_LIST_ARGUMENT = re.compile(
    r"[A-Za-z0-9_.-]+(\[[0-9,-]+\][A-Za-z0-9_.-]*)*(,[A-Za-z0-9_.-]+(\[[0-9,-]+\][A-Za-z0-9_.-]*)*)*,?"
)


def inventory(arguments: argparse.Namespace) -> int:
    """Runs `runbook inventory list`, `graph` and `explain`."""
    from runbook.lint.redaction import secrets_in

    found, origins = load_named_inventory(arguments)
    text = Redactor([*known_inventory_secrets(found), *secrets_in(origins.document)]).text(
        inventory_output_text(arguments, found, origins)
    )
    if arguments.action == "list" and arguments.output == "json":
        stdout.document(text)
    else:
        stdout.tell(text)
    return 0


def inventory_output_text(arguments: argparse.Namespace, found: Inventory, origins: Origins) -> str:
    from runbook.report.inventory import (
        inventory_explain_text,
        inventory_graph_text,
        inventory_list_json,
        inventory_list_text,
    )

    ranked = without_spares(found, origins, arguments.extra_vars)
    if arguments.action == "graph":
        return inventory_graph_text(found, ranked)
    if arguments.action == "explain":
        return inventory_explain_text(found, ranked, origins, arguments.node, arguments.key)
    nodes = select_nodes(arguments.limit, found) if arguments.limit is not None else found.nodes
    return (
        inventory_list_json(found, ranked, nodes)
        if arguments.output == "json"
        else inventory_list_text(found, ranked, nodes)
    )


def without_spares(found: Inventory, origins: Origins, extra_vars: list[str]) -> Inventory:
    """The inventory with only the nodes that have ranks: spares of its own `launch:` have none."""
    if not has_launch(origins.document):
        return found
    from runbook.checks import CHECKS
    from runbook.engine.plan import Choice, make_plan

    try:
        launch = load_launch(origins.document, checks=CHECKS, environ=AnyVariable.here())
        return make_plan(launch, found, Choice(extra=parse_extra_vars(extra_vars))).ranked
    except FilesWrong:
        lint = f"runbook lint {shell_word(origins.document.path)}"
        stderr.line(f"note: its `launch:` has mistakes ({lint}): every node is taken for one with ranks")
        return found


def import_inventory(arguments: argparse.Namespace) -> int:
    """Runs `runbook inventory import`."""
    refuse_to_replace(arguments.out, force=arguments.force)
    text, source = _read_import_source(arguments.file)
    try:
        found = read_foreign_inventory(text, source, arguments.kind)
        if found.kind == ANSIBLE_FORMAT and source != STDIN_SOURCE:
            found = replace(found, remarks=(*found.remarks, *_unread_variable_remarks(source)))
        name = arguments.name or (Path(source).stem if source not in (STDIN_SOURCE, HOST_LIST_SOURCE) else "imported")
        made = draft_text(draft_of_foreign_inventory(found, name))
    except FilesWrong as wrong:
        # Here and not in main: the lines may have come from stdin, or from the command line.
        from runbook.lint.redaction import RedactedProblems

        shown = RedactedProblems(wrong.problems, lambda _: text.splitlines())
        report_error(render_all(shown.problems, shown.lines) + "\n")
        return EXIT_WRONG_INPUT
    write_product(made, arguments.out)
    return EXIT_DONE


def _read_import_source(file: str) -> tuple[str, str]:
    """The text to import, and the name for it in messages. Raises FilesWrong if it cannot be read."""
    if file == "-":
        return _read_stdin_text(), STDIN_SOURCE
    there = path_exists(file)
    if not there and _HOST_LIST_ARGUMENT.fullmatch(file) and ("[" in file or "," in file):
        return file, HOST_LIST_SOURCE
    if not there and (foreign := foreign_range(file)):
        raise FilesWrong.of("import.range", foreign[0], help=foreign[1])
    if is_folder(file):
        message = f"{file} is a folder: name one inventory in it"
        help = f"or let Ansible put it together: {ansible_import_command(file)}"
        raise FilesWrong.of("import.folder", message, help=help)
    if not file:
        help = "outside a job $SLURM_JOB_NODELIST is not set; name a file, or a host list such as gn[01-04]"
        raise FilesWrong.of("import.empty", "the name of the file is empty", help=help)
    document = read_document(file)  # as YAML it may be anything: only errors of reading matter here
    unread = [problem for problem in document.problems if problem.id.startswith("file.") or "control" in problem.id]
    if unread:
        raise FilesWrong(unread)
    return document.text, file


def _unread_variable_remarks(source: str) -> list[Remark]:
    """Remarks on folders beside the file that Ansible would read as well."""
    how = f"{ansible_import_command(source)} has them"
    beside = [Path(source).parent / name for name in ("group_vars", "host_vars")]
    return [Remark(f"the variables in {folder}/ were not read; {how}", 1) for folder in beside if is_folder(folder)]


def _read_stdin_text() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FilesWrong.of("file.not-utf8", "what came over stdin is not UTF-8 text") from None


INIT_OPTION_HINTS = {
    "ssh-host-key-unknown": "--accept-new trusts the key that it shows now",
    "ssh-auth-failed": "--user NAME and --key FILE say who logs in, and with what",
    "ssh-refused": "--port N, or HOST:PORT, names another port",
}
"""By cause, what to type for `init`: the causes' own remedies mention the inventory, which does not exist yet."""


def init_inventory(arguments: argparse.Namespace) -> int:
    """0 written; 2 wrong arguments; 3 a host was not reached: it is a comment in `--out`, and nothing is printed."""
    from runbook.cli.run import interrupt_on_termination
    from runbook.importers.survey import Login, parse_hosts, survey_hosts
    from runbook.importers.survey_draft import draft_of_survey

    refuse_to_replace(arguments.out, force=arguments.force)
    if len(arguments.hosts) == 1 and is_cluster_source(arguments.hosts[0]):
        given = [name for name in ("user", "key", "port", "jump", "accept_new") if getattr(arguments, name)]
        if given:
            message = f"--{given[0].replace('_', '-')} does nothing with {arguments.hosts[0]}: nobody logs in there"
            raise FilesWrong.of("arguments.host", message, help="leave it away, or name hosts")
        write_product(cluster_inventory_text(arguments.hosts[0], arguments.name), arguments.out)
        return EXIT_DONE
    login = Login(arguments.user, arguments.key, arguments.port, arguments.jump, arguments.accept_new)
    hosts = parse_hosts(arguments.hosts, login)
    if stderr.isatty():
        stderr.line(f"asking {count_text(len(hosts), 'host')} …")
    with interrupt_on_termination():
        heard = survey_hosts(hosts)
    for names, failure in fold_unreached(heard.failures):
        stderr.tell(_unreached_text(names, failure))
    for name, first in heard.same.items():
        stderr.line(f"warning: {name} is the same machine as {first}: left out")
    if not heard.answers:
        stderr.line("no host was reached; nothing was written")
        return EXIT_UNKNOWN
    if heard.failures and arguments.out is None:
        some = "the host that was" if len(heard.answers) == 1 else f"the {len(heard.answers)} hosts that were"
        stderr.line(f"nothing was written: mend that, or give --out FILE for an inventory of {some} reached")
        return EXIT_UNKNOWN
    name = arguments.name or (Path(arguments.out).stem if arguments.out else "cluster")
    write_product(draft_text(draft_of_survey(hosts, heard, name)), arguments.out, len(heard.answers))
    return EXIT_UNKNOWN if heard.failures else EXIT_DONE


def _unreached_text(names: str, failure: Unreachable) -> str:
    were = "were" if re.search(r"[\[,]", names) else "was"
    lines = [f"{names} {were} not reached: {failure.cause}", f"  {failure.says}"]
    lines += [f"  {'evidence' if number == 0 else '':<8}  {line}" for number, line in enumerate(failure.evidence)]
    lines.append(f"  fix       {failure.remedy}")
    lines += [f"  or here   {INIT_OPTION_HINTS[failure.cause]}"] if failure.cause in INIT_OPTION_HINTS else []
    lines += [f"  more      runbook explain {failure.cause}"]
    return "\n".join(map(visible_text, lines)) + "\n\n"


def refuse_to_replace(
    out: str | None, *, force: bool, such_as: str = "inventory.yml", instead: str = "--force replaces it"
) -> None:
    """Raises FilesWrong, before any work is done, if the file `out` could not be written. `such_as`: a name of a file
    for the help; `instead`: the help if the file exists."""
    if out is None:
        return
    if is_folder(out):
        raise FilesWrong.of("arguments.out", f"--out {out} is a folder", help=f"name a file: --out {out}/{such_as}")
    if os.path.lexists(out) and not force:
        raise FilesWrong.of("arguments.out", f"--out {out}: the file exists", help=instead)
    folder = Path(os.path.realpath(out)).parent
    unseen = path_lookup_error(out)
    if is_folder(folder) and not os.access(folder, os.W_OK | os.X_OK):
        unseen = f"no file can be made in {folder}"
    if unseen:
        raise FilesWrong.of("arguments.out", f"--out {out}: {unseen}", help="name a file in a folder of yours")
    if not is_folder(folder):
        raise FilesWrong.of(
            "arguments.out", f"--out {out}: there is no folder {Path(out).parent}", help="make it, or name another"
        )


def write_product(text: str, out: str | None, nodes: int | None = None) -> None:
    """Writes a text to the file `out`, or prints it. Raises FilesWrong if the file cannot be written; an existing file
    then stays. After a file, stderr has the next step. `nodes`: the number of nodes in it, if runbook asked these."""
    if out is None:
        stdout.tell(text)
        return
    try:
        write_file_atomically(out, text, mode=0o666 & ~_current_umask())
    except OSError as error:
        raise FilesWrong.of("arguments.out", f"--out {out}: {error.strerror or error}") from None
    if nodes is None:
        stderr.line(f"wrote {out}; next: runbook lint {shell_word(out)}")
    else:
        look = f"Look it over, then: runbook run two_node_allreduce -i {shell_word(out)}"
        stderr.line(f"wrote {out}: {count_text(nodes, 'node')}. {look}")


def _current_umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
