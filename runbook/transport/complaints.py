"""What a program writes to stderr for as long as it carries a connection: the end of it is kept, whatever it writes."""

from __future__ import annotations

import contextlib
import os
import tempfile

KEPT = 4096  # bytes
_MOST = 8 << 20  # bytes on disk, at which all but the end is let go


class Complaints:
    """A file, so that the program never waits for us, and may outlive us."""

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
