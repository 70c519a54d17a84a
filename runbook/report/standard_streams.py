"""Writes to standard output and standard error; nothing else does. All text passes `visible`, so nothing from a node, a
log or a file's name can act on a terminal. A stream that is closed, full, of another encoding or without a reader ends
no command: that is said once, on a stream that works, and the exit code is that of the command's result."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
import threading
from collections.abc import Iterator
from typing import TextIO, cast

from runbook.model.safe_text import ascii_text, visible_json, visible_multiline_text, visible_text

STREAM_NAMES = {"stdout": "standard output", "stderr": "standard error"}


class OutputStream:
    """Standard output or standard error; several threads may use it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.RLock()
        self.verbatim = cast("TextIO", _Verbatim(self))
        """Writes text that is safe already: JSON lines, and pages of which every span has been made visible."""
        self.begin()

    def begin(self) -> None:
        """Begins anew with the present `sys.stdout` (`sys.stderr`)."""
        self._guarded = False
        self._file: TextIO | None = None
        self.unread = False
        """The reader has gone (`| head`)."""
        self.lost: str | None = None
        """Why some of what was written did not arrive (a full disk); None as long as all did."""
        self._told_closed = False

    def guard(self) -> None:
        """Takes the place of `sys.stdout` (`sys.stderr`) until `release`: what libraries print there is written
        here."""
        self._file = getattr(sys, self._name)
        self._guarded = True
        setattr(sys, self._name, _Strays(self))

    def release(self) -> None:
        setattr(sys, self._name, self._file)
        self._guarded, self._file = False, None

    @property
    def file(self) -> TextIO | None:
        """The stream itself; None if it is closed."""
        file: TextIO | None = self._file if self._guarded else getattr(sys, self._name)
        return None if file is None or file.closed else file

    @property
    def encoding(self) -> str:
        return (self.file and self.file.encoding) or "utf-8"

    def isatty(self) -> bool:
        file = self.file
        return file is not None and file.isatty()

    def tell(self, text: str) -> bool:
        """Writes text for people. Newlines stay, everything else that is not printable is shown escaped. False if it
        was not written."""
        return self._send(visible_multiline_text(text))

    def line(self, text: str) -> bool:
        """Writes text for people as `tell` does, as one line, whatever is in it."""
        return self._send(visible_text(text) + "\n")

    def document(self, text: str) -> bool:
        """Writes a JSON document, or another document in ASCII."""
        return self._send(visible_json(text))

    def _send(self, text: str) -> bool:
        """Writes a text that is safe already; remembers, and says once, why it could not be written. False: not
        written."""
        if not text:
            return True
        with self._lock:
            file = self.file
            if file is None:
                self._is_closed()
                return False
            if self.unread or self.lost:
                return False
            try:
                file.write(encodable_text(text, file.encoding))
                file.flush()
            except BrokenPipeError:
                self.unread = True
            except OSError as error:
                self.lost = error.strerror or str(error)
                self._say_to_the_other(f"warning: {STREAM_NAMES[self._name]} cannot be written: {self.lost}\n")
            return not (self.unread or self.lost)

    def _is_closed(self) -> None:
        if not self._told_closed:
            self._told_closed = True
            self._say_to_the_other(f"note: {STREAM_NAMES[self._name]} is closed: nothing is printed there\n")

    def _say_to_the_other(self, text: str) -> None:
        """Says on standard error what is wrong with standard output; never the other way round, since documents go to
        standard output."""
        if self._name == "stdout":
            stderr.tell(text)


class _Strays(io.TextIOBase):
    """Stands in for `sys.stdout` or `sys.stderr` while a command runs, for argparse, warnings and tracebacks of
    threads."""

    def __init__(self, stream: OutputStream) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.tell(text)
        return len(text)

    def isatty(self) -> bool:
        return self._stream.isatty()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def fileno(self) -> int:
        file = self._stream.file
        if file is None:
            raise io.UnsupportedOperation("closed")
        return file.fileno()


class _Verbatim(_Strays):
    """A text stream that writes to an OutputStream without changing the text."""

    def write(self, text: str) -> int:
        self._stream._send(text)
        return len(text)


stdout, stderr = OutputStream("stdout"), OutputStream("stderr")


def report_error(text: str) -> None:
    """Says why a command ends without what was asked for: on standard error or, if that is closed, on standard
    output."""
    if not stderr.tell(text):
        stdout.tell(text)


@contextlib.contextmanager
def guard_standard_streams() -> Iterator[None]:
    """Guards both streams while a command runs. Closed ones of the descriptors 0 to 2 are opened on /dev/null first, so
    that no file of ours becomes standard error."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
    stdout.begin()
    stderr.begin()
    stdout.guard()
    stderr.guard()
    given = sys.stdin
    try:
        with contextlib.ExitStack() as stack:
            if given is None:  # closed: it holds nothing
                sys.stdin = stack.enter_context(open(os.devnull, encoding="utf-8"))  # noqa: PTH123
            yield
    finally:
        sys.stdin = given
        stdout.release()
        stderr.release()


def encodable_text(text: str, encoding: str | None) -> str:
    """The text as a stream of this encoding can carry it: with look-alikes of other characters, or else escapes."""
    encoding = encoding or "utf-8"
    return text.encode(encoding, "look-alike").decode(encoding)


def _replace_with_look_alike(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return ascii_text(error.object[error.start : error.end]), error.end


codecs.register_error("look-alike", _replace_with_look_alike)
