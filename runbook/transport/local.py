"""This machine as a node: the same supervisor, behind a pair of pipes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading

from runbook.transport.bootstrap import command


class LocalStream:
    """Runs the bootstrap under a shell, in a session of its own so that Ctrl-C reaches only the controller."""

    def __init__(self, python: str, shell: str = "/bin/sh") -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        self._drained = threading.Event()
        self._process = subprocess.Popen(
            [shell, "-c", command(python)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
        )

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

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
            self._process.wait(6)
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
            return os.pread(self._stderr.fileno(), 4096, 0).decode(errors="replace").strip()
        return ""
