"""`runbook agent`: the program on a node without SSH logins that dials a runbook server."""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from runbook.cli.extras import not_installed_error
from runbook.model.errors import FilesWrong
from runbook.model.safe_text import printable_line
from runbook.model.verdict import EXIT_DONE, EXIT_FAILED
from runbook.report.standard_streams import report_error, stderr, stdout

if TYPE_CHECKING:
    from runbook.agent.folder import AgentFolder, Identity


def agent(arguments: argparse.Namespace) -> int:
    """0 done (run: ended on request), 1 the server refuses this agent, or none runs (status), 2 not enrolled, wrong
    files."""
    if os.name == "nt":
        raise FilesWrong.of("agent.windows", "an agent runs on Linux and macOS, and this is Windows")
    from runbook.agent.folder import AgentFolder

    folder = AgentFolder(arguments.dir)
    commands = {
        "enrol": _enrol,
        "run": _run,
        "status": _status,
        "drain": _drain,
        "install": _install,
        "uninstall": _uninstall,
    }
    return commands[arguments.agent_command](folder, arguments)


def _enrol(folder: AgentFolder, arguments: argparse.Namespace) -> int:
    from runbook.agent.enrolment import enrol_host
    from runbook.agent.folder import short_hostname

    if (known := folder.identity()) is not None and not arguments.again:
        why = f"this host is enrolled already, as {known.name} at {known.url}"
        raise FilesWrong.of("agent.enrolled", why, help="`runbook agent enrol STRING --again` forgets that")
    identity = enrol_host(folder, arguments.string, arguments.name or short_hostname())
    stdout.line(f"enrolled as {printable_line(identity.name)} at {identity.url}")
    stdout.line("start it: runbook agent run; with systemd: runbook agent install --systemd")
    return EXIT_DONE


def _run(folder: AgentFolder, arguments: argparse.Namespace) -> int:
    if os.geteuid() == 0 and not arguments.as_root:
        fix = "start it as the user who trains; `sudo runbook agent install --systemd --user NAME` does so at boot"
        raise FilesWrong.of("agent.root", "an agent runs as an ordinary user, and this is root", help=fix)
    identity = _require_identity(folder)
    try:
        from runbook.agent.agent import Agent
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "websockets":
            raise
        raise not_installed_error("agent", "agent run", "websockets") from None
    from runbook.agent.permissions import read_rules

    rules = read_rules(folder.rules)
    with folder.alone():
        return asyncio.run(Agent(folder, identity, rules, _print_agent_message).run())


def _require_identity(folder: AgentFolder) -> Identity:
    identity = folder.identity()
    if identity is None:
        fix = "`runbook serve enrol` on the server prints a string; here: runbook agent enrol STRING"
        raise FilesWrong.of("agent.not-enrolled", "this host is not enrolled", help=fix)
    return identity


def _print_agent_message(text: str) -> None:
    stderr.line(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {printable_line(text)}")


def _status(folder: AgentFolder, _arguments: argparse.Namespace) -> int:
    identity = folder.identity()
    if identity is None:
        stdout.line("not enrolled")
        return EXIT_FAILED
    stdout.line(f"{identity.name} at {identity.url}" + (", drained" if folder.drained else ""))
    state = folder.state()
    if state is None:
        stdout.line("no agent runs: runbook agent run")
        return EXIT_FAILED
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state.since))
    stdout.line(f"pid {state.pid}, since {since}: {printable_line(state.says)}")
    return EXIT_DONE if state.connected else EXIT_FAILED


def _drain(folder: AgentFolder, arguments: argparse.Namespace) -> int:
    _require_identity(folder)
    folder.drain(not arguments.undo)
    stdout.line("takes new runs again" if arguments.undo else "takes no new runs; what runs goes on")
    return EXIT_DONE


def _install(folder: AgentFolder, arguments: argparse.Namespace) -> int:
    from runbook.agent.systemd import install_unit, unit_text, unit_user

    user = unit_user(arguments.user)
    text = unit_text(user, Path(arguments.dir).absolute() if arguments.dir else None)
    if not arguments.systemd:
        stdout.tell(text)
        return EXIT_DONE
    if user is None and folder.identity() is None:
        raise FilesWrong.of("agent.not-enrolled", "this host is not enrolled: runbook agent enrol STRING")
    try:
        for line in install_unit(user, text):
            stdout.line(line)
    except (OSError, subprocess.SubprocessError) as error:
        report_error(f"error: {printable_line(str(error))}\n")
        return EXIT_FAILED
    return EXIT_DONE


def _uninstall(folder: AgentFolder, arguments: argparse.Namespace) -> int:
    from runbook.agent.systemd import uninstall_unit, unit_user

    user = None
    # An agent of root's own has no unit.
    if arguments.user or os.geteuid() != 0 or os.environ.get("SUDO_USER", "root") != "root":
        user = unit_user(arguments.user)
        for line in uninstall_unit(user):
            stdout.line(line)
    state = folder.state()
    folder.forget()
    if state is not None:  # started by hand, or by a unit that is not this user's
        stdout.line(f"an agent still runs here, pid {state.pid}: end it, with `kill {state.pid}` or its own unit")
        return EXIT_FAILED
    if user is not None:
        stdout.line(f"the enrolment of {user} is left: as {user}, `runbook agent uninstall` forgets it")
    stdout.line("no agent runs here; jobs go on. Revoke its token on the server's page as well")
    return EXIT_DONE
