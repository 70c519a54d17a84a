"""`runbook serve`: runs the server of a cluster's page; its subcommands manage people and enrol nodes."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from runbook.cli.extras import not_installed_error
from runbook.model.errors import FilesWrong
from runbook.model.safe_text import visible_text
from runbook.node.proc import raise_open_file_limit
from runbook.report.standard_streams import report_error, stderr, stdout

if TYPE_CHECKING:
    from runbook.serve.people import People
    from runbook.serve.settings import ServeOptions
    from runbook.serve.store import Store

SERVE_EXTRA_MODULES = ("starlette", "uvicorn", "httptools", "websockets", "prometheus_client")
"""Modules that the extra `serve` brings."""


def serve(arguments: argparse.Namespace) -> int:
    """Runs the server until SIGINT or SIGTERM, or runs the subcommand."""
    try:
        from runbook.serve.server import tune_interpreter
        from runbook.serve.settings import make_data_folder, read_options
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in SERVE_EXTRA_MODULES:
            raise
        raise not_installed_error("serve", "serve", error.name or "") from None
    asked = read_options(arguments.listen, arguments.data, arguments.config, insecure_http=arguments.insecure_http)
    data = make_data_folder(asked.data)
    if arguments.action == "user":
        return user(arguments, data)
    if arguments.action == "enrol":
        return enrol(arguments, data)
    raise_open_file_limit()
    tune_interpreter()
    with lock_data_folder(data), log_to_stderr():
        return run(asked)


def enrol(arguments: argparse.Namespace, data: Path) -> int:
    """Prints a string by which a host becomes a node. The running server makes the string, since it knows its
    address."""
    from runbook.agent.protocol import Enrolment
    from runbook.transport.agent import AGENT_SOCKET_FILE, ask_enrolment_string

    string = ask_enrolment_string(data / AGENT_SOCKET_FILE, own_account_name(), arguments.name)
    stdout.line(string)
    where = (
        "on this machine, which alone reaches the server (--listen)" if Enrolment.of(string).local else "on the node"
    )
    stderr.line(f"{where}, within the hour, once: runbook agent enrol STRING")
    return 0


def run(asked: ServeOptions) -> int:
    """Serves until it is told to stop; the exit code."""
    from runbook.serve.server import create_app, make_server, open_listening_socket
    from runbook.serve.settings import make_serve_settings

    try:
        listener = open_listening_socket(asked.host, asked.port)
    except OSError as error:
        message = f"cannot listen on {asked.host}, port {asked.port}: {error.strerror}"
        raise FilesWrong.of("serve.listen", message, help="name another --listen ADDR:PORT") from None
    with contextlib.closing(listener):
        with open_people(asked.data) as (_, people):
            settings = make_serve_settings(asked, listener.getsockname()[1], people=bool(people.all()))
            first = None
            if asked.loopback:
                first = f"{settings.url}/login/{people.link(starter_login_name(people))}"
        if settings.tls is not None:
            stderr.line(f"its certificate's SHA-256 is {settings.tls.fingerprint}")
        if first is not None:
            stderr.line(f"log in, once, within five minutes: {first}")
        app = create_app(settings)
        stderr.line(f"runbook serves {settings.data} at {settings.url}")
        make_server(app, settings).run(sockets=[listener])
    stderr.line("stopped")
    return 0


def own_account_name() -> str:
    """The name of the present account, or its number if it has no name, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"


def starter_login_name(people: People) -> str:
    """The name under which the person who starts the server logs in: that of the present account, which becomes an
    admin if no person has that name yet."""
    from runbook.serve.people import PERSON_NAME

    name = own_account_name()
    name = name if PERSON_NAME.match(name) else "admin"
    known = {one.name: one for one in people.all()}
    if name not in known:
        people.add(name, "admin")
    return name


@contextlib.contextmanager
def open_people(data: Path) -> Iterator[tuple[Store, People]]:
    from runbook.serve.people import People
    from runbook.serve.server import DATABASE_FILE
    from runbook.serve.store import Store

    with contextlib.closing(Store(data / DATABASE_FILE)) as store:
        yield store, People(store)


def user(arguments: argparse.Namespace, data: Path) -> int:
    """Runs `serve user add | list | remove | link`, also while the server runs."""
    from runbook.serve.people import Audit, parse_role

    with open_people(data) as (store, people):
        if arguments.deed == "list":
            for one in people.all():
                stdout.line(f"{one.role:<9} {one.name}")
            return 0
        if arguments.deed == "add":
            people.add(arguments.name, parse_role(arguments.role), read_new_password())
            stderr.line(f"{arguments.name} is {arguments.role}")
        elif arguments.deed == "remove":
            people.remove(arguments.name)
            stderr.line(f"{arguments.name} is removed")
        elif arguments.deed == "link":
            stdout.line(f"{arguments.url.rstrip('/')}/login/{people.link(arguments.name)}")
            stderr.line("it logs in once, within five minutes")
        Audit(store).note(own_account_name(), "command line", f"serve user {arguments.deed} {arguments.name}", "")
    return 0


def read_new_password() -> str:
    """A new password: typed twice on a terminal, or else the first line of standard input. Raises FilesWrong."""
    if not sys.stdin.isatty():
        return sys.stdin.readline(2000).rstrip("\r\n")
    first = getpass.getpass("password: ")
    if getpass.getpass("again: ") != first:
        raise FilesWrong.of("serve.password", "the two passwords differ")
    return first


@contextlib.contextmanager
def lock_data_folder(data: Path) -> Iterator[None]:
    """Refuses a second server of one folder: they would not know each other's agents and runs."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with (data / "serve.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            message = f"a server of {data} runs already"
            raise FilesWrong.of("serve.runs-already", message, help="end it, or name another --data") from None
        yield


class StderrHandler(logging.Handler):
    """The server's log, on stderr, one line each."""

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        report_error("".join(f"{visible_text(line)}\n" for line in text.splitlines()))


@contextlib.contextmanager
def log_to_stderr() -> Iterator[None]:
    handler = StderrHandler(logging.WARNING)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    names = ("runbook.serve", "uvicorn.error")
    for name in names:
        logging.getLogger(name).addHandler(handler)
    try:
        yield
    finally:
        for name in names:
            logging.getLogger(name).removeHandler(handler)
