"""What the owner of a node allows the server to do there, and how the agent enforces it.

The rules are in `agent.yml`. Without that file the server may do what an SSH login of this account could do.

users: [ann, ops]          # people of the server, by name, who may run anything here at all: whoever pressed the
                           # button, or whom RUNBOOK_PERSON names where `runbook` is typed on the server
workdirs: [/scratch/rb]    # a run's workdir has to be one of these, or below one
commands: look             # all | look: this host's own programs that look, `ps` and `stop`; no shell, no launch,
                           # no other program

With `commands: look` the agent lets only orders to look through, and no code of the server. The supervisor and the
programs that look are this host's own; of those that the server sends, only the names count. Every order is parsed and
written anew, so that a supervisor cannot read it in another way. A forbidden order becomes an order that no supervisor
knows, and is answered as such. Bytes that are no orders, or too many to hold, end the stream.
"""

from __future__ import annotations

import json
import os
import re
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from runbook.agent.protocol import Open
from runbook.files.yaml_document import read_document
from runbook.model.errors import FilesWrong, Problem
from runbook.node.journal import ATTEMPT_FOLDER, FILE_NAME_PATTERN
from runbook.transport import node_programs
from runbook.transport.bootstrap import bootstrap_command, bootstrap_input


class OwnerRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `agent.yml`. With `users` None, everybody whom the server lets run things may do so here."""

    users: frozenset[str] | None = None
    workdirs: tuple[str, ...] = ()
    commands: Literal["all", "look"] = "all"

    @property
    def looks_only(self) -> bool:
        return self.commands == "look"

    def against(self, order: Open) -> str | None:
        """Why a channel must not be opened; None if it may be opened."""
        if self.users is not None and order.person not in self.users:
            who = repr(order.person) if order.person else "a command without a name (set RUNBOOK_PERSON on the server)"
            return f"agent.yml of this node lets {', '.join(sorted(self.users)) or 'nobody'} run things, and not {who}"
        return self.against_workdir(order.workdir)

    def against_workdir(self, workdir: str) -> str | None:
        """Why this workdir is not allowed; None if it is."""
        if self.workdirs and not any(_is_below(workdir, one) for one in self.workdirs):
            return f"agent.yml of this node allows the workdirs {', '.join(self.workdirs)}, and not {workdir!r}"
        return None


def read_rules(path: Path) -> OwnerRules:
    """The rules in this file; those without restrictions if there is none. Raises FilesWrong: rules that cannot be read
    allow nothing."""
    if not os.path.lexists(path):
        return OwnerRules()
    if not path.is_file():  # a dangling link as well: the owner meant some rules
        raise FilesWrong.of("agent.rules", f"{path} is no file that can be read, and so allows nothing")
    document = read_document(path)
    problems = list(document.problems)
    if not problems:
        try:
            return msgspec.convert(document.data, OwnerRules)
        except msgspec.ValidationError as error:
            keys = "keys are `users`, `workdirs` and `commands`, which is all or look"
            problems = [Problem("agent.rules", str(error), document.span(), keys)]
    raise FilesWrong(problems)


def _is_below(path: str, folder: str) -> bool:
    """Whether a path is this folder or below it, once links are followed."""
    try:
        one, above = (os.path.realpath(Path.home() / Path(text).expanduser()) for text in (path, folder))
    except (RuntimeError, ValueError):  # RuntimeError: `~USER` of an unknown user; ValueError: a NUL in the path
        return False
    return os.path.commonpath([one, above]) == above


LOOK_PROGRAMS = frozenset(
    (
        *("host_facts", "gpus", "ibstat", "adapters", "ping", "port", "route"),
        *("rank_connections", "ephemeral_ports", "job_control"),
    )
)
"""Node programs that an agent which only looks may run: they run tools of their own choice only. Of `job_control` only
orders that list, watch and end jobs are let through: its other orders write and remove files wherever they are told."""

_PLAIN_NAME = FILE_NAME_PATTERN.pattern.removesuffix(r"\Z")
_ATTEMPT_FOLDER = re.compile(rf"(?P<workdir>/.*)/{_PLAIN_NAME}/{_PLAIN_NAME}/{ATTEMPT_FOLDER.pattern}", re.DOTALL)

MAX_ORDER_LINE_BYTES = 1 << 20
"""The most bytes of an order's line."""
MAX_ORDER_PAYLOAD_BYTES = 8 << 20
"""The most bytes of a payload, and of logs that an order may ask for."""
BOOTSTRAP_LINE_PREFIX = b"exit #"
"""How each line begins that the bootstrap sends before the first order (see `transport/bootstrap.py`)."""
REFUSED_ORDER = "refused: agent.yml of this node says `commands: look`"
"""The name of the order that a forbidden order becomes; the supervisor's answer shows it."""


class NotAllowed(Exception):
    """The stream has to end: what the server sends cannot be checked, or breaks a rule."""


class OrderFilter:
    """The filter of an agent that only looks: `feed` takes the bytes from the server, and returns those for the
    supervisor."""

    def __init__(self, rules: OwnerRules) -> None:
        self._rules = rules
        self._buffer = bytearray()
        self._skip = 0  # bytes still to be dropped: of the server's own supervisor, or of a payload
        self._take: Callable[[bytes], bytes] = self._opening
        self._config = False

    @property
    def command(self) -> str:
        """The command that is run here, whatever command the server asked for."""
        return bootstrap_command(sys.executable)

    def feed(self, data: bytes) -> bytes:
        """The bytes for the supervisor that follow from the next bytes of the server. Raises NotAllowed."""
        self._buffer += data
        passed = bytearray()
        while True:
            skipped = min(self._skip, len(self._buffer))
            del self._buffer[:skipped]
            self._skip -= skipped
            end = self._buffer.find(b"\n")
            if self._skip or end < 0:
                break
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            passed += self._take(line)
        if len(self._buffer) > MAX_ORDER_LINE_BYTES:
            raise NotAllowed("a line without an end")
        return bytes(passed)

    def _opening(self, line: bytes) -> bytes:
        """For a line of the bootstrap: nothing for the interpreter's name; for the length of the server's supervisor,
        which is then dropped, our own supervisor. Raises NotAllowed."""
        word = line.removeprefix(BOOTSTRAP_LINE_PREFIX)
        if not line.startswith(BOOTSTRAP_LINE_PREFIX):
            raise NotAllowed("this is not a stream to a supervisor")
        if not word.isdigit():
            return b""
        self._skip = _bounded_count(int(word[:12]))
        self._take = self._order
        return bootstrap_input(sys.executable)

    def _order(self, line: bytes) -> bytes:
        """The order of this line, written anew, or the one that takes its place. Raises NotAllowed."""
        try:
            frame = json.loads(line)
        except (ValueError, RecursionError):
            raise NotAllowed("an order that is not JSON") from None
        if not isinstance(frame, dict) or not isinstance(frame.get("bytes", 0), int):
            raise NotAllowed("an unknown order")
        self._skip = _bounded_count(frame.pop("bytes", 0))
        passed, payload = self._allowed(frame)
        if payload:
            passed = {**passed, "bytes": len(payload)}
        return json.dumps(passed).encode() + b"\n" + payload

    def _allowed(self, frame: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """The allowed form of an order and its payload; a REFUSED_ORDER order for a forbidden one. Raises
        NotAllowed."""
        do = frame.get("do")
        if do == "config":
            return self._configured(frame), b""
        if do == "call" and self._looks(frame.get("program"), frame.get("arguments")):
            known = {key: frame.get(key) for key in ("do", "id", "program", "arguments")}
            return known, zlib.compress(node_programs.in_supervisor_program(str(frame["program"])))
        if do == "beat":
            return {key: frame[key] for key in ("do", "echo", "silence_s") if key in frame}, b""
        if do == "bye":
            return {"do": "bye", "id": frame.get("id")}, b""
        return {"do": REFUSED_ORDER, "id": frame.get("id")}, b""

    def _looks(self, program: object, arguments: object) -> bool:
        """Whether a call of a node program is allowed: the program only looks, or lists, watches or ends jobs in a
        workdir that the owner allows."""
        if not isinstance(program, str) or program not in LOOK_PROGRAMS or not isinstance(arguments, dict):
            return False
        if program != "job_control":
            return True
        if arguments.get("do") == "list":
            return self._rules.against_workdir(str(arguments.get("workdir"))) is None
        attempt = _ATTEMPT_FOLDER.fullmatch(str(arguments.get("folder")))
        if attempt is None or arguments.get("do") not in ("watch", "stop", "kill"):
            return False
        return self._rules.against_workdir(attempt["workdir"]) is None and _is_small(arguments.get("most", 0))

    def _configured(self, frame: dict[str, Any]) -> dict[str, Any]:
        """The stream's one `config` order, for an allowed workdir. It has no `again` and no `keep`: the run's folder
        must be new, and is removed at the end. Raises NotAllowed."""
        names = (str(frame.get("run_id")), str(frame.get("node")))
        workdir = str(frame.get("workdir"))
        if self._config or not all(FILE_NAME_PATTERN.match(name) for name in names):
            raise NotAllowed("a run of no name, or two of them")
        if why := self._rules.against_workdir(workdir):
            raise NotAllowed(why)
        self._config = True
        return {"do": "config", "run_id": names[0], "node": names[1], "workdir": workdir}


def _is_small(count: object) -> bool:
    """Whether this is a number of bytes that may be held at once."""
    return isinstance(count, int) and 0 <= count <= MAX_ORDER_PAYLOAD_BYTES


def _bounded_count(count: int) -> int:
    """The number of bytes, if so many may be held at once. Raises NotAllowed."""
    if not _is_small(count):
        raise NotAllowed(f"{count} bytes at once")
    return count
