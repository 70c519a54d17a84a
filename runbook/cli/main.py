"""Runs the program: turns arguments into an exit code. Only here an error becomes text."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

import runbook
from runbook.cli.argument_parser import make_parser
from runbook.cli.extras import missing_core_module
from runbook.model.errors import FilesWrong, RunbookError, Unreachable, machine_limit_finding
from runbook.model.safe_text import unreachable_text, visible_text
from runbook.model.verdict import EXIT_BUG, EXIT_DONE, EXIT_INTERRUPTED, EXIT_UNKNOWN, EXIT_WRONG_INPUT
from runbook.report.standard_streams import guard_standard_streams, report_error, stdout

MAX_CHAINED_ERRORS = 5
"""Errors of a chain that are shown."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. 0 passed, 1 failed, 2 wrong files or arguments, 3 could not tell, 70 our bug, 130
    interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with guard_standard_streams():
        if arguments == ["--version"]:
            stdout.line(f"runbook {runbook.__version__}")
            return _code_after_lost_output(EXIT_DONE)
        try:
            parsed = make_parser().parse_args(arguments)
        except SystemExit as done:  # --help, and arguments that are wrong
            raise SystemExit(_code_after_lost_output(done.code if isinstance(done.code, int) else 2)) from None
        code = _run_command(parsed, arguments)
        prints = getattr(parsed, "prints", False) or getattr(parsed, "diff", None)
        return _code_after_lost_output(code) if prints else code


def _run_command(parsed: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Runs the command, and turns an error into text and an exit code."""
    try:
        return dispatch(parsed)
    except FilesWrong as wrong:
        from runbook.files.problems import render_all
        from runbook.lint.redaction import RedactedProblems

        shown = RedactedProblems(wrong.problems)
        report_error(render_all(shown.problems, shown.lines) + "\n")
        return EXIT_WRONG_INPUT
    except Unreachable as failure:
        report_error(unreachable_text(failure))
        return EXIT_UNKNOWN
    except RunbookError as error:
        report_error(f"error: {visible_text(str(error))}\n")
        return EXIT_WRONG_INPUT
    except KeyboardInterrupt:
        report_error("interrupted\n")
        return EXIT_INTERRUPTED
    except ModuleNotFoundError as error:
        if (lacking := missing_core_module(error.name)) is None:
            return crash(arguments, error)
        report_error(
            f"error: {sys.executable} has no {lacking}, which runbook needs: install runbook into it, in its checkout: "
            f"`{sys.executable} -m pip install .`\n"
        )
        return EXIT_WRONG_INPUT
    except Exception as error:  # noqa: BLE001  the one place where a bug of ours is caught, to say what to do with it
        if limit := machine_limit_finding(error):
            report_error(f"error: {limit.says}: {limit.remedy}\n")
            return EXIT_UNKNOWN
        return crash(arguments, error)


def _code_after_lost_output(code: int) -> int:
    """The exit code of a command that only prints: EXIT_WRONG_INPUT if some output was lost, as on a full disk."""
    return code or (EXIT_WRONG_INPUT if stdout.lost else EXIT_DONE)


def entry() -> NoReturn:
    """Runs the program as the installed command. Leaves at once: a thread that still waits for a dead node must not
    delay the exit."""
    try:
        code = main()
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else 2
    except Exception as error:  # noqa: BLE001  uncaught, it would exit with the code of a failed check
        code = crash_without_report(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def dispatch(arguments: argparse.Namespace) -> int:
    code: int = arguments.func(arguments)
    return code


def crash(arguments: Sequence[str], error: Exception) -> int:
    """Prints on stderr everything that the report of a bug of ours needs, without the known secrets."""
    import platform
    import shlex
    import traceback

    from runbook.collect.scrub import secret_text_spans
    from runbook.model.redact import Redactor, environment_secrets
    from runbook.model.secrets import Secret

    typed = dict(word.partition("=")[::2] for word in arguments if "=" in word)
    looks = [Secret(word[start:end], "an argument") for word in arguments for start, end in secret_text_spans(word)]
    redactor = Redactor([*environment_secrets(os.environ, typed), *looks, *_secrets_in_traceback(error)])
    report = (
        "runbook crashed. This is a bug; please report it with all of this:\n"
        f"  runbook {runbook.__version__}, Python {platform.python_version()}, {platform.platform()}\n"
        f"  command: runbook {shlex.join(arguments)}\n"
    )
    report_error(redactor.text(report + "".join(traceback.format_exception(error))))
    return EXIT_BUG


def crash_without_report(error: BaseException) -> int:
    """Tells of a bug in the code that reports errors, or of an installation that lacks a part. Prints the places in the
    code, and no error's text, since nothing masks secrets here."""
    import traceback

    places: list[str] = []
    one: BaseException | None = error
    while one is not None and len(places) < MAX_CHAINED_ERRORS:
        places.append("".join(traceback.format_tb(one.__traceback__)) + type(one).__name__)
        one = one.__cause__ or one.__context__
    trace = "\n\nwhile it told of another error:\n\n".join(places)
    report_error(
        f"runbook {runbook.__version__} crashed, and so did what reports it. Is it installed whole? Install it again, "
        f"in its checkout: `{sys.executable} -m pip install .`; if this stays, please report it with all of this:\n"
        f"{trace}\n"
    )
    return EXIT_BUG


def _secrets_in_traceback(error: Exception) -> Iterator[object]:
    """The secrets of every inventory in the frames of the traceback."""
    import traceback

    from runbook.model.inventory import Inventory
    from runbook.model.redact import known_inventory_secrets

    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in list(frame.f_locals.values()):
            found = value if isinstance(value, Inventory) else getattr(value, "inventory", None)
            if isinstance(found, Inventory):
                yield from known_inventory_secrets(found)
