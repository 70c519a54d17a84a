"""Sessions with this very machine, and streams that misbehave."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

from runbook.transport.bootstrap import bootstrap_command
from runbook.transport.session import Session
from runbook.transport.stream import LocalStream, ProcessStream, Stream

RUN_ID = f"run-{os.getpid()}"
"""Of this process alone: at its end a supervisor ends whatever bears the name of its run, wherever that is on the
machine."""


def opened(
    workdir: Path, *, node: str = "node-a", python: str = sys.executable, stream: Stream | None = None, **config: object
) -> Session:
    """A session with the supervisor on this machine; `config` as the supervisor takes it: silence_s, grace_s, keep.

    Nobody sends beats here, so silence is only minded where a test asks for it.
    """
    settings = {"run_id": RUN_ID, "node": node, "workdir": str(workdir), "silence_s": 300.0, **config}
    return Session(node, stream or LocalStream(python), settings, python, 20.0)


@contextlib.contextmanager
def session(workdir: Path, **options: object) -> Iterator[Session]:
    one = opened(workdir, **options)  # type: ignore[arg-type]
    try:
        yield one
    finally:
        if one.lost:
            one._stream.close()
        else:
            one.goodbye()


class ShellStream(ProcessStream):
    """As if this were the account's login shell, which sshd calls with `-c`."""

    def __init__(self, shell: str, python: str) -> None:
        super().__init__([shell, "-c", bootstrap_command(python)])


class Noisy(LocalStream):
    """A talkative profile: these pieces come before what the far end says."""

    def __init__(self, python: str, *pieces: bytes) -> None:
        super().__init__(python)
        self._pieces = list(pieces)

    def read(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else super().read()


class Scripted:
    """A far end that says these pieces and then hangs up, or, with `hang`, says nothing more."""

    def __init__(self, *pieces: bytes, complaint: str = "", hang: bool = False) -> None:
        self._pieces: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        for piece in (*pieces, *(() if hang else (b"",))):
            self._pieces.put(piece)
        self._complaint = complaint
        self.closed = self.killed = False
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def read(self) -> bytes:
        return self._pieces.get()

    def close(self) -> None:
        self.closed = True
        self._pieces.put(b"")

    def kill(self) -> None:
        self.killed = True

    unanswered: ClassVar[str] = "ssh-unreachable"
    shared = False

    def why(self, _says: str) -> None:
        return None

    def complaint(self) -> str:
        return self._complaint


def alive(pid: int) -> bool:
    """Whether this process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"


def eventually(what: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether it comes to hold. How soon is not judged."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def gone(*pids: int) -> bool:
    return eventually(lambda: not any(alive(pid) for pid in pids))
