"""This machine as a node: the same supervisor, behind a pair of pipes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile

from runbook.transport.bootstrap import command


class LocalStream:
    """Runs the bootstrap under `/bin/sh`, in a session of its own so that Ctrl-C reaches only the controller."""

    def __init__(self, python: str) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", command(python)],
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
        return os.read(self._process.stdout.fileno(), 65536)

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(6)
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdout.close()
        self._stderr.close()

    def complaint(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            return os.pread(self._stderr.fileno(), 4096, 0).decode(errors="replace").strip()
        return ""
