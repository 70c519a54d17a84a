"""A program of this machine as the way to a node: what we write goes to its stdin, what the node says comes from its stdout."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import ClassVar

from runbook.model.errors import Unreachable

ENDING_S = 6.0
"""From the end of its stdin to its own: that of a supervisor which stops what it started."""


class ProcessStream:
    """Runs in a session of its own, so that Ctrl-C reaches only the controller. Raises OSError where it does not start."""

    unanswered: ClassVar[str] = "ssh-unreachable"

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        self._drained = threading.Event()
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=env,
                start_new_session=True,
            )
        except OSError:
            self._stderr.close()
            raise

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except ValueError as error:  # closed meanwhile
            raise BrokenPipeError(str(error)) from error

    def read(self) -> bytes:
        assert self._process.stdout is not None
        try:
            data = os.read(self._process.stdout.fileno(), 65536)
        except ValueError:  # closed meanwhile
            return b""
        if not data:
            self._drained.set()
        return data

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING_S)
        # Not while somebody reads: the number could by then be another file's.
        self._drained.wait(0.5)
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdout.close()
        self._stderr.close()

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def complaint(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            size = os.fstat(self._stderr.fileno()).st_size
            return os.pread(self._stderr.fileno(), 4096, max(0, size - 4096)).decode(errors="replace").strip()
        return ""

    def why(self, _says: str) -> Unreachable | None:
        return None
