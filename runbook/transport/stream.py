"""A stream of bytes to a shell on a node, for every transport; and the two simplest: a program of this machine that
carries it, whose complaints on stderr are kept as far as they are the last, and this machine itself."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

from runbook.model.errors import Unreachable
from runbook.transport.bootstrap import command

KEPT = 4096  # bytes
_MOST = 8 << 20  # bytes on disk, at which all but the end is let go


class Complaints:
    """The end of what a program writes to stderr for as long as it carries a connection: in a file, so that it never
    waits for us, and may outlive us."""

    def __init__(self) -> None:
        # Without a buffer: two threads may close it at once. It lives as long as the process.
        self.file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self._from = 0  # before this nothing lies on disk

    def trim(self) -> None:
        """To be called while data flows. The program writes on where it was: what is let go becomes a hole."""
        with contextlib.suppress(OSError, ValueError):
            size = os.fstat(self.file.fileno()).st_size
            if size - self._from > _MOST:
                last = os.pread(self.file.fileno(), KEPT, size - KEPT)
                os.ftruncate(self.file.fileno(), 0)
                os.pwrite(self.file.fileno(), last, size - KEPT)
                self._from = size - KEPT

    def last(self) -> str:
        """The last KEPT bytes of it; nothing where it is closed."""
        with contextlib.suppress(OSError, ValueError):
            size = os.fstat(self.file.fileno()).st_size
            return os.pread(self.file.fileno(), KEPT, max(0, size - KEPT)).decode(errors="replace").strip("\0").strip()
        return ""

    def close(self) -> None:
        self.file.close()

    @property
    def closed(self) -> bool:
        return self.file.closed


class Stream(Protocol):
    """A program on the node whose stdin we write and whose stdout we read. One reader, any number of writers."""

    unanswered: ClassVar[str]
    """The cause of a node that does not answer, reached in this way."""

    def write(self, data: bytes) -> None:
        """Send all of `data`, or raise OSError."""

    def read(self) -> bytes:
        """Wait for some bytes; `b""` when the far end has closed."""

    def close(self) -> None:
        """Close both ways. Closing is also what makes the far end clean up. Never raises."""

    def kill(self) -> None:
        """Kill what was started at the far end, which does not react to us; `close` still has to be called. Never
        raises."""

    def why(self, says: str) -> Unreachable | None:
        """Why the far end no longer answers, or never did, if the transport knows more than that it ended. `says` is
        what was noticed."""

    def complaint(self) -> str:
        """What the far end wrote to stderr so far (the last few KiB): evidence when something went wrong."""


ENDING_S = 6.0
"""How long it may live after the end of its stdin: as long as a supervisor that stops what it started."""


class ProcessStream:
    """Runs in a session of its own, so that Ctrl-C reaches only the controller. Raises OSError where it does not
    start."""

    unanswered: ClassVar[str] = "ssh-unreachable"

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self._stderr = Complaints()
        self._drained = threading.Event()
        try:
            self._process = subprocess.Popen(
                argv,
                bufsize=0,  # a buffer would have `close` wait for a thread that writes to a program that does not read
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr.file,
                env=env,
                start_new_session=True,
            )
        except OSError:
            self._stderr.close()
            raise

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._stderr.trim()
        left = memoryview(data)
        try:
            while left:
                left = left[self._process.stdin.write(left) :]
        except ValueError as error:  # closed meanwhile
            raise BrokenPipeError(str(error)) from error

    def read(self) -> bytes:
        assert self._process.stdout is not None
        self._stderr.trim()
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
        # Not during a read: the descriptor could by then be another file's.
        self._drained.wait(0.5)
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdout.close()
        self._stderr.close()

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def lives(self) -> bool:
        """Whether neither the program nor what it says has ended."""
        return self._process.poll() is None and not self._drained.is_set()

    def complaint(self) -> str:
        return self._stderr.last()

    def why(self, _says: str) -> Unreachable | None:
        return None


class LocalStream(ProcessStream):
    """Runs the bootstrap under a shell."""

    def __init__(self, python: str) -> None:
        super().__init__(["/bin/sh", "-c", command(python)])
