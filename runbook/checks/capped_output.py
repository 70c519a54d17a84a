"""The output of one program on a node, kept in a file of the run folder up to a limit."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import TextIO

from runbook.model.redact import Redactor
from runbook.model.safe_files import BadName, open_append_below
from runbook.model.units import bytes_text

MAX_OUTPUT_CHARACTERS = 64 << 20
"""Characters of one program's output that are kept: a node that prints without end must not fill this machine's
disk."""


PIECE_TAIL_CHARACTERS = 4096
"""Characters of each further piece that are still looked at and passed on once the limit is reached."""


class OutputFile:
    """A file that takes the first MAX_OUTPUT_CHARACTERS characters, and then a line that says that the rest is not
    kept.

    When this machine cannot write the file, the run goes on without it: a full disk here is not the node's fault.
    """

    def __init__(self, run_dir: Path, name: str, redactor: Redactor) -> None:
        """`name`: the file's name in `logs/` of the run folder."""
        self._stream = redactor.stream()
        self._left = MAX_OUTPUT_CHARACTERS
        self._file: TextIO | None = None
        with contextlib.suppress(OSError, BadName):
            file = open_append_below(run_dir, "logs", name)
            self._file = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace")

    def write(self, text: str) -> str:
        """Keeps the text with secrets removed, and returns the part that can be passed on now: the rest may be the
        beginning of a secret. Beyond the limit only the end of each piece is looked at, so that a flood costs
        little."""
        if self._left <= 0:
            text = text[-PIECE_TAIL_CHARACTERS:]
        return self._kept(self._stream.take(text))

    def end(self) -> str:
        """The text that was held back until now, with secrets removed."""
        return self._kept(self._stream.end())

    def _kept(self, text: str) -> str:
        """Writes the text as far as there is room, and returns all of it."""
        if not text:
            return text
        if self._file is not None and self._left > 0:
            kept = text[: self._left]
            self._left -= len(text)
            full = f"\n[runbook keeps no more than {bytes_text(MAX_OUTPUT_CHARACTERS)} of what one program prints]\n"
            end = "" if self._left > 0 else full
            with contextlib.suppress(OSError, ValueError):  # ValueError: the run is over, and the file closed
                self._file.write(kept + end)
                self._file.flush()
        return text

    def add(self, text: str) -> None:
        self.write(text)

    def close(self) -> None:
        self.end()
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
