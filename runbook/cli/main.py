"""The program: arguments in, exit code out. The only place where an error becomes text."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import runbook
from runbook.cli.arguments import parser
from runbook.model.errors import FilesWrong, RunbookError

CRASHED = 70


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. 0 passed, 1 failed, 2 wrong files or arguments, 3 could not tell, 70 our bug, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        print(f"runbook {runbook.__version__}")  # noqa: T201
        return 0
    parsed = parser().parse_args(arguments)
    try:
        return dispatch(parsed)
    except FilesWrong as wrong:
        from runbook.load.document import source_lines
        from runbook.load.explain import render_all

        sys.stderr.write(render_all(wrong.problems, source_lines) + "\n")
        return 2
    except RunbookError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    except Exception:  # noqa: BLE001  the one place where a bug of ours is caught, to say what to do with it
        return crash(arguments)


def entry() -> NoReturn:
    """What the installed command calls. Leaves at once: a thread that still waits for a dead node must not keep us."""
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def dispatch(arguments: argparse.Namespace) -> int:
    """Each command is imported when it is called: `--version` and `lint` must not pay for SSH."""
    if arguments.command == "run":
        from runbook.cli.run import run

        return run(arguments)
    if arguments.command == "render":
        from runbook.cli.render import render

        return render(arguments)
    if arguments.command == "lint":
        from runbook.cli.lint import lint

        return lint(arguments)
    if arguments.command == "inventory":
        from runbook.cli.inventory import inventory

        return inventory(arguments)
    if arguments.command == "diagnose":
        from runbook.cli.diagnose import diagnose

        return diagnose(arguments.logs, output=arguments.output)
    if arguments.command == "collect":
        from runbook.cli.collect import collect

        return collect(arguments)
    if arguments.command in ("ps", "logs", "attach", "stop", "clean"):
        from runbook.cli.jobs import jobs

        return jobs(arguments)
    if arguments.command == "explain":
        from runbook.cli.explain import explain

        return explain(arguments.id)
    from runbook.cli.completion import completion
    from runbook.load.shipped import shipped_names

    sys.stdout.write(completion(parser(), arguments.shell, shipped=shipped_names("playbooks")))
    return 0


def crash(arguments: Sequence[str]) -> int:
    """A bug of ours: everything a report needs, on stderr."""
    import platform
    import traceback

    sys.stderr.write(
        "runbook crashed. This is a bug; please report it with all of this:\n"
        f"  runbook {runbook.__version__}, Python {platform.python_version()}, {platform.platform()}\n"
        f"  command: runbook {' '.join(arguments)}\n"
    )
    traceback.print_exc()
    return CRASHED
