"""What every transport gives: `Stream`, the bytes to and from a supervisor. `ProcessStream` is carried by a program on
this machine (srun, kubectl); `LocalStream` leads to a supervisor on this machine itself."""

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
from runbook.transport.bootstrap import bootstrap_command

SHOWN_STDERR_BYTES = 4096  # bytes: the end of stderr that is told as evidence
_MAX_STDERR_FILE_BYTES = 8 << 20  # bytes of stderr on disk: beyond this, all but the last SHOWN_STDERR_BYTES are freed


class Complaints:
    """The end of what a program that carries a connection writes to stderr. It is a file and no pipe, so that the
    program never waits for us to read, and can go on writing after we have ended."""

    def __init__(self) -> None:
        # Without a buffer, since two threads may close the file at once. It stays open as long as the program runs.
        self.file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self._from = 0  # the offset before which the file is a hole

    def trim(self) -> None:
        """Free the disk space of old output; called while data flows. The program's offset in the file does not change:
        the freed part becomes a hole."""
        with contextlib.suppress(OSError, ValueError):
            size = os.fstat(self.file.fileno()).st_size
            if size - self._from > _MAX_STDERR_FILE_BYTES:
                last = os.pread(self.file.fileno(), SHOWN_STDERR_BYTES, size - SHOWN_STDERR_BYTES)
                os.ftruncate(self.file.fileno(), 0)
                os.pwrite(self.file.fileno(), last, size - SHOWN_STDERR_BYTES)
                self._from = size - SHOWN_STDERR_BYTES

    def last(self) -> str:
        """The last SHOWN_STDERR_BYTES bytes of stderr as text, stripped; empty once the file is closed."""
        with contextlib.suppress(OSError, ValueError):
            size = os.fstat(self.file.fileno()).st_size
            return (
                os.pread(self.file.fileno(), SHOWN_STDERR_BYTES, max(0, size - SHOWN_STDERR_BYTES))
                .decode(errors="replace")
                .strip("\0")
                .strip()
            )
        return ""

    def close(self) -> None:
        self.file.close()

    @property
    def closed(self) -> bool:
        return self.file.closed


class Stream(Protocol):
    """A program on the node whose stdin we write and whose stdout we read. One reader, any number of writers."""

    unanswered: ClassVar[str]
    """The cause that is reported for a node that does not answer over this transport."""

    shared: bool
    """Whether streams to other nodes use the same connection, so that a write may wait long for what they send."""

    def write(self, data: bytes) -> None:
        """Send all of `data`, or raise OSError."""

    def read(self) -> bytes:
        """Wait for some bytes; `b""` when the far end has closed."""

    def close(self) -> None:
        """Close both ways. Closing is also what makes the far end clean up. Never raises."""

    def kill(self) -> None:
        """Kill the program at the far end when it does not react; `close` still has to be called. Never raises."""

    def why(self, says: str) -> Unreachable | None:
        """Why the far end no longer answers, or never did; None when the transport knows no more than that the stream
        ended. `says` is the sentence about what was noticed."""

    def complaint(self) -> str:
        """The last few KiB that the far end wrote to stderr so far: evidence when something went wrong."""


END_TIMEOUT_S = 6.0
"""How long a carrying program may live after the end of its stdin: as long as the supervisor at the far end needs to
stop what it started."""


class ProcessStream:
    """The stdin and stdout of a program on this machine. The program runs in a session of its own, so that Ctrl-C
    reaches only the controller. Raises OSError when the program does not start."""

    unanswered: ClassVar[str] = "ssh-unreachable"
    shared = False

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
            self._process.wait(END_TIMEOUT_S)
        # Closed during a read, the descriptor could by then belong to another file: wait until `read` saw the end.
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
        """Whether the program still runs and its stdout has not ended."""
        return self._process.poll() is None and not self._drained.is_set()

    def complaint(self) -> str:
        return self._stderr.last()

    def why(self, _says: str) -> Unreachable | None:
        return None


class LocalStream(ProcessStream):
    """The stream to a supervisor on this machine: the bootstrap command, run by /bin/sh."""

    def __init__(self, python: str) -> None:
        super().__init__(["/bin/sh", "-c", bootstrap_command(python)])
