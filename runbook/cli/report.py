"""`runbook report`: writes a run, or the difference of two, as one HTML file; also for `run --report`."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from runbook.diagnose.sources.own_runs import latest_run_below
from runbook.engine.run_folder import default_parents, latest_run
from runbook.model.errors import FilesWrong, machine_limit_finding
from runbook.model.run_files import EVENTS_FILE, RESULT_FILE
from runbook.model.safe_files import is_file, path_exists, path_lookup_error, write_file_atomically, write_file_below
from runbook.report.standard_streams import stdout

REPORT_FILE = "report.html"


def report(arguments: argparse.Namespace) -> int:
    """Writes the report and says where it is. Raises FilesWrong if there is no such run, or no file can be made."""
    from runbook.report.html.render import render, render_comparison  # Jinja takes a while to load

    one = find_run_folder(arguments.run_dir)
    if arguments.other is None:
        document, default = render(one), one / REPORT_FILE
    else:
        other = find_run_folder(arguments.other)
        document, default = render_comparison(one, other), one / f"compared-with-{_file_name_part(other)}.html"
    stdout.line(str(write_document(document, default, arguments.out)))
    return 0


def write_report(run_dir: Path) -> Path:
    """Writes the report of a run that has just ended into its folder; the path of the file. Raises OSError,
    FilesWrong."""
    from runbook.report.html.render import render

    write_file_below(run_dir, REPORT_FILE, data=render(run_dir))
    return run_dir / REPORT_FILE


def find_run_folder(named: str | None) -> Path:
    """The folder of the run with this path or id; of several runs in it, the latest; without a name, the latest run of
    all. Raises FilesWrong."""
    if named is None:
        if run := latest_run():
            return run
        raise _report_argument_error(
            f"no run of yours is in {' or '.join(map(str, default_parents()))}", "name the folder of one"
        )
    places = [Path(named), *(home / named for home in default_parents())]
    for place in places:
        if is_file(place / RESULT_FILE) and not path_exists(place / EVENTS_FILE):
            return place
        if run := latest_run_below(place):
            return run
    if unseen := path_lookup_error(places[0] / EVENTS_FILE):
        raise _report_argument_error(f"{named}: {unseen}", "name the folder of a run of yours")
    raise _report_argument_error(
        f"{named}: no run's files are there", "name the folder of a run: it holds `events.jsonl`"
    )


def _file_name_part(folder: Path) -> str:
    """The folder's name, as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(os.path.realpath(folder)).name)[:200]


def write_document(document: str, default: Path, out: str | None) -> Path:
    """Writes the file whole or not at all, for its owner alone to read, and replaces an existing file."""
    path = Path(out) if out else default
    try:
        if out:
            write_file_atomically(path, document)
        else:
            write_file_below(path.parent, path.name, data=document)  # no link in a run's folder is followed
    except OSError as error:
        if machine_limit_finding(error):
            raise
        raise _report_argument_error(
            f"{path}: {error.strerror or os.strerror(error.errno or 0)}", "name another file: --out"
        ) from None
    return path


def _report_argument_error(message: str, help: str) -> FilesWrong:
    return FilesWrong.of("arguments.report", message, help=help)
