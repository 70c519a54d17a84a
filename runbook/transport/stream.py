"""The seam between "how to get there" and "what to say": a stream of bytes to a shell on the node."""

from __future__ import annotations

from typing import ClassVar, Protocol

from runbook.model.errors import Unreachable


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
        """End what was started at the far end, which does not listen to us; `close` is still to be called. Never raises."""

    def why(self, says: str) -> Unreachable | None:
        """Why nobody is there any more, or never was, where the way there knows more than that it ended. `says` is what
        was noticed."""

    def complaint(self) -> str:
        """What the far end wrote to stderr so far (the last few KiB): evidence when something went wrong."""
