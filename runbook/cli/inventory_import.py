"""`runbook inventory import FILE`: another kind of inventory in, ours out."""

from __future__ import annotations

import argparse
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

from runbook.cli.new_file import refuse_to_replace, write_product
from runbook.importers.convert import draft_of, read_foreign
from runbook.importers.foreign import ANSIBLE, Remark
from runbook.load.document import read_document
from runbook.load.problems import render_all
from runbook.load.write import written
from runbook.model.commands import word
from runbook.model.errors import FilesWrong, Problem
from runbook.report.output import complain

STDIN, HOST_LIST = "stdin", "the host list"  # what text is called that is in no file
_HOST_LIST = re.compile(
    r"[A-Za-z0-9_.-]+(\[[0-9,-]+\][A-Za-z0-9_.-]*)*(,[A-Za-z0-9_.-]+(\[[0-9,-]+\][A-Za-z0-9_.-]*)*)*,?"
)


def import_inventory(arguments: argparse.Namespace) -> int:
    refuse_to_replace(arguments.out, force=arguments.force)
    text, source = _read(arguments.file)
    try:
        found = read_foreign(text, source, arguments.kind)
        if found.kind == ANSIBLE and source != STDIN:
            found = replace(found, remarks=(*found.remarks, *_not_read(source)))
        name = arguments.name or (Path(source).stem if source not in (STDIN, HOST_LIST) else "imported")
        made = written(draft_of(found, name))
    except FilesWrong as wrong:
        # Here and not in main: the lines may have come from stdin, or from the command line.
        complain(render_all(wrong.problems, lambda _: text.splitlines()) + "\n")
        return 2
    write_product(made, arguments.out)
    return 0


def _read(file: str) -> tuple[str, str]:
    """The text, and what to call it. Raises FilesWrong where it cannot be read."""
    if file == "-":
        return _stdin(), STDIN
    there = os.path.exists(file)  # noqa: PTH110  (Path.exists raises where a name is too long)
    if not there and _HOST_LIST.fullmatch(file) and ("[" in file or "," in file):
        return file, HOST_LIST
    if os.path.isdir(file):  # noqa: PTH112
        message = f"{file} is a folder: name one inventory in it"
        help = f"or let Ansible put it together: ansible-inventory -i {word(file)} --list --yaml | runbook inventory import -"
        raise FilesWrong([Problem("import.folder", message, None, help)])
    if not file:
        help = "outside a job $SLURM_JOB_NODELIST is not set; name a file, or a host list such as gn[01-04]"
        raise FilesWrong([Problem("import.empty", "the name of the file is empty", None, help)])
    document = read_document(file)  # as YAML it may be anything: only what keeps it from being read matters here
    unread = [problem for problem in document.problems if problem.id.startswith("file.") or "control" in problem.id]
    if unread:
        raise FilesWrong(unread)
    return document.text, file


def _not_read(source: str) -> list[Remark]:
    """Folders beside the file that Ansible would read as well."""
    how = f"ansible-inventory -i {word(source)} --list --yaml | runbook inventory import - has them"
    beside = [Path(source).parent / name for name in ("group_vars", "host_vars")]
    return [Remark(f"the variables in {folder}/ were not read; {how}", 1) for folder in beside if folder.is_dir()]


def _stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FilesWrong([Problem("file.not-utf8", "what came over stdin is not UTF-8 text")]) from None
