"""The output of a job's processes on the controller, complete and with secrets masked: as files
RUN_DIR/logs/attempt-NN/NAME.out and .err, and line by line for reports.

Two places know the secrets: the environment of this shell, where the inventory says `{env: NAME}`, and on each node the
file with the job's secrets, mode 0600, which the launch script reads. The secrets that a node reports are used for that
node's output alone: a node must not be able to mask the output of others.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbook.jobs.attempt import ProcessSpec
from runbook.jobs.known_jobs import Cluster, KnownJob
from runbook.launch.script import LAUNCH_SCRIPT_NAME
from runbook.model.inventory import Inventory, Node
from runbook.model.redact import Redactor, is_searchable_secret, known_inventory_secrets, short_secret_text
from runbook.model.safe_files import BadName, make_folders_below, open_append_below
from runbook.model.secrets import Secret
from runbook.transport.remote_program import MESSAGE_MARK

MAX_LOG_LINE_BYTES = 1 << 16
"""Bytes after which a line is passed on in pieces: a progress bar may never end its line."""


@dataclass
class _File:
    """What is known about one log: which source wrote it, and how much of it is here."""

    name: str
    place: ProcessSpec
    redactor: Redactor
    at: int = 0  # bytes that were fetched
    held: bytes = b""  # fetched bytes that wait for the rest of their line
    there: int = 0  # bytes at the beginning of the log that an earlier reader wrote, and that are not written again


class RankLogs:
    """The log files of one attempt. `tell(place, stream, lines)` is called with every line once it is whole."""

    def __init__(
        self,
        run_dir: Path | None,
        attempt: str,
        redactor: Redactor,
        tell: Callable[[ProcessSpec, str, list[str]], None],
        stopped: Callable[[ProcessSpec, Mapping[str, Any]], None] = lambda place, event: None,
        of_nodes: Mapping[str, Redactor] | None = None,
        *,
        goes_on: bool = False,
    ) -> None:
        """`attempt`: the name of the attempt's folder. `stopped`: called when a launch script reports that it stopped.
        `of_nodes`: by node, the redactor for its output, where it has its own. `goes_on`: an earlier reader wrote the
        beginning of the logs into the files. Without `run_dir` no files are written."""
        self._keeps = run_dir is not None
        self._place = (run_dir or Path(os.devnull), "logs", attempt)
        self.folder = Path(*self._place)
        self._redactor = redactor
        self._of_nodes = of_nodes or {}
        self._goes_on = goes_on
        self._tell = tell
        self._stopped = stopped
        self.drawn: Callable[[ProcessSpec, str], None] = lambda place, bar: None
        """Called with the text of a progress bar, whose line ends only with its epoch, if ever."""
        self._lock = threading.Lock()
        self._files: dict[str, _File] = {}
        self.unwritten: dict[str, str] = {}  # by node, why a part of its logs could not be written on this machine
        with contextlib.suppress(OSError, BadName):
            if self._keeps:
                make_folders_below(*self._place)

    def begin(self, names: Iterable[str]) -> None:
        """Creates these files, empty: a file that stays empty says that its process wrote nothing."""
        for name in names:
            with contextlib.suppress(OSError, BadName):
                self._write(name, b"")

    def at(self, name: str) -> int:
        """How many bytes of this log were fetched."""
        return self._files[name].at if name in self._files else 0

    def redactor_of(self, node: str) -> Redactor:
        """The redactor for a node's output."""
        return self._of_nodes.get(node, self._redactor)

    def learn(self, of_nodes: Mapping[str, Redactor]) -> None:
        """Takes the redactors of nodes that may not have been known before, for logs that are open as well."""
        with self._lock:
            self._of_nodes = {**self._of_nodes, **of_nodes}
            for file in self._files.values():
                file.redactor = self.redactor_of(file.place.node)

    def take(self, place: ProcessSpec, name: str, data: bytes, begin: int) -> None:
        """Takes bytes of a log that begin at offset `begin`; bytes that were fetched before are skipped."""
        with self._lock:
            file = self._files.get(name)
            if file is None:
                there = self._size(name) if self._goes_on else 0
                file = self._files[name] = _File(name, place, self.redactor_of(place.node), there=there)
            data = data[max(0, file.at - begin) :]
            file.at += len(data)
            *whole, file.held = (file.held + data).split(b"\n")
            pieces = [line + b"\n" for line in whole]
            if len(file.held) > MAX_LOG_LINE_BYTES + file.redactor.longest:
                # Keep back the end of the text that may be the beginning of a secret.
                text = file.held.decode("utf-8", "surrogateescape")
                ready = text[: file.redactor.cut(text)].encode("utf-8", "surrogateescape")
                pieces.append(ready)
                file.held = file.held[len(ready) :]
            self._pass_on(place, file, pieces)
            if bar := progress_bar_text(file.held):
                self.drawn(place, bar.decode("utf-8", "replace"))

    def close(self) -> None:
        """Passes on the text that still waits for its end of line."""
        with self._lock:
            for file in self._files.values():
                if file.held:
                    held, file.held = file.held, b""
                    self._pass_on(file.place, file, [held])

    def _pass_on(self, place: ProcessSpec, file: _File, pieces: list[bytes]) -> None:
        """Writes and reports lines, each with its end of line; a piece without one is a part of a line."""
        said: list[str] = []
        kept: list[bytes] = []
        # Most output holds no secret, and searching all pieces at once takes a tenth of the time.
        clean = not file.redactor.places(b"".join(pieces).decode("utf-8", "surrogateescape"))
        for piece in pieces:
            line = piece.removesuffix(b"\n")
            text = line.decode("utf-8", "surrogateescape")
            text = text if clean else file.redactor.text(text)
            kept.append(text.encode("utf-8", "surrogateescape") + piece[len(line) :])
            before, mark, event = line.partition(MESSAGE_MARK)
            if mark and not before:
                with contextlib.suppress(ValueError, RecursionError):
                    reported = json.loads(event)
                    if isinstance(reported, dict) and isinstance(reported.get("event"), str):
                        self._stopped(place, reported)
                continue
            said.append(text.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
        data = b"".join(kept)
        known = min(file.there, len(data))
        file.there -= known
        try:
            self._write(file.name, data[known:])
        except (OSError, BadName) as error:
            says = f"{self.folder / file.name}: {getattr(error, 'strerror', None) or error}"
            self.unwritten.setdefault(place.node, says)
        if said:
            self._tell(place, file.name.rpartition(".")[2], said)

    def _size(self, name: str) -> int:
        try:
            return (self.folder / name).stat().st_size
        except OSError:
            return 0

    def _write(self, name: str, data: bytes) -> None:
        if self._keeps:
            with open_append_below(*self._place, name) as out:
                out.write(data)


def progress_bar_text(line: bytes) -> bytes:
    """The latest complete text of a progress bar in a line that has not ended; empty if there is none. A text is
    complete if the next was drawn over it (after a carriage return), or if it ends in a bracket, as tqdm's bars do."""
    before, over, last = line.rpartition(b"\r")
    if not over:
        return b""
    return last if last.rstrip().endswith(b"]") else before.rpartition(b"\r")[2]


def log_tail(path: Path, most: int) -> str:
    """The last `most` bytes of a log as text; empty if the log cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most))
            return file.read(most).decode("utf-8", "replace")
    except OSError:
        return ""


SECRETS_FILE_TIMEOUT_S = 5.0
"""Seconds that a node may take to send its job's file of secrets."""
MAX_SECRET_LINES = 1000
"""The most lines of a file of secrets that are read."""
MAX_SECRET_CHARACTERS = 1 << 17
"""The most characters of a line with a secret: the kernel passes no longer variable to a process."""


@dataclass(frozen=True)
class JobSecrets:
    """The redactors for a job's output: `everywhere` for text that belongs to no single node, `of_nodes` by node.
    `unknown`: sentences about secrets that cannot be masked."""

    everywhere: Redactor
    of_nodes: Mapping[str, Redactor]
    unknown: tuple[str, ...]

    def joined_with(self, redactor: Redactor) -> JobSecrets:
        """These secrets and those of another redactor."""
        of_nodes = {name: own.joined_with(redactor) for name, own in self.of_nodes.items()}
        return JobSecrets(self.everywhere.joined_with(redactor), of_nodes, self.unknown)


def job_secrets(cluster: Cluster, job: KnownJob, launch: Redactor | None = None) -> JobSecrets:
    """The secrets of a job, asked of every node that is reached. If a node gives no answer, only its secrets are
    unknown, and it has no redactor of its own. `launch`: the redactor of the launch, whose file may give secrets as
    plain text that no node has in a file of secrets."""
    inventory = cluster.inventory
    here = known_inventory_secrets(inventory)
    nodes = [inventory.node(name) for name in job.folders if name in cluster.site.sessions]

    def ask(node: Node) -> bytes:
        path = f"{job.folders[node.name]}/{job.attempt}/{LAUNCH_SCRIPT_NAME}.env"
        return cluster.site.sessions[node.name].read_file(path, timeout_s=SECRETS_FILE_TIMEOUT_S)

    answers = cluster.site.each(nodes, ask, timeout_s=SECRETS_FILE_TIMEOUT_S + 1.0)
    given = {name: variables_in(answer) for name, answer in answers.items() if isinstance(answer, bytes)}
    of_nodes = {
        name: Redactor([*here, *(Secret(text, name) for text in found.values())]) for name, found in given.items()
    }
    found = JobSecrets(Redactor(here), of_nodes, tuple(dict.fromkeys(_unmaskable_secret_texts(inventory, given))))
    return found.joined_with(launch) if launch else found


def variables_in(data: bytes) -> dict[str, str]:
    """The variables in a file of secrets, one `export NAME='value'` a line; other lines are ignored."""
    found: dict[str, str] = {}
    for line in data.decode("utf-8", "replace").splitlines()[:MAX_SECRET_LINES]:
        try:
            words = shlex.split(line) if len(line) <= MAX_SECRET_CHARACTERS else []
        except ValueError:
            continue
        if len(words) == 2 and words[0] == "export":
            name, _, text = words[1].partition("=")
            found[name] = text
    return found


def _unmaskable_secret_texts(inventory: Inventory, given: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Sentences about secrets that cannot be masked."""
    sentences = []
    for node in inventory.nodes:
        for name, value in {**inventory.env, **node.env}.items():
            if not isinstance(value, Secret):
                continue
            text = value.reveal() or given.get(node.name, {}).get(name)
            if text is None:
                sentences.append(
                    f"{value.source} is not set here, and {node.name} does not give it: it cannot be masked"
                )
            elif not is_searchable_secret(text):
                sentences.append(short_secret_text(value.source))
    return sentences
