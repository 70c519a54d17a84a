"""What the kept processes write, brought here whole: RUN_DIR/logs/attempt-NN/NAME.out and .err, and line by line to reports."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbook.checks.training.attempt import Place
from runbook.model.redact import Redactor

MARK = b"\x1erunbook "
LONGEST_LINE = 1 << 16
"""Bytes after which a line is passed on in pieces: a progress bar may never end its own."""


@dataclass
class _File:
    path: Path
    at: int = 0  # bytes that were fetched
    held: bytes = b""


class RankLogs:
    """The files of one attempt. `tell(place, stream, lines)` hears every line once it is whole."""

    def __init__(
        self,
        folder: Path,
        redactor: Redactor,
        tell: Callable[[Place, str, list[str]], None],
        stopped: Callable[[Place, Mapping[str, Any]], None] = lambda place, event: None,
    ) -> None:
        self.folder = folder
        self._redactor = redactor
        self._tell = tell
        self._stopped = stopped
        self._lock = threading.Lock()
        self._files: dict[str, _File] = {}
        self.unwritten: str | None = None  # why this machine could not keep some of it
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)

    def at(self, name: str) -> int:
        """How many bytes of the file are here."""
        return self._files[name].at if name in self._files else 0

    def take(self, place: Place, name: str, data: bytes, begin: int) -> None:
        """Bytes of a file from `begin` on; those that are here already count once."""
        with self._lock:
            file = self._files.setdefault(name, _File(self.folder / name))
            data = data[max(0, file.at - begin) :]
            file.at += len(data)
            *whole, file.held = (file.held + data).split(b"\n")
            pieces = [line + b"\n" for line in whole]
            if len(file.held) > LONGEST_LINE:
                pieces.append(file.held)
                file.held = b""
            self._pass_on(place, file, pieces)

    def close(self) -> None:
        """What was written without a line's end comes as well."""
        with self._lock:
            for name, file in self._files.items():
                if file.held:
                    held, file.held = file.held, b""
                    self._pass_on(_nobody(name), file, [held])

    def _pass_on(self, place: Place, file: _File, pieces: list[bytes]) -> None:
        """Lines, each with its end; a piece without one is a part of a line."""
        said: list[str] = []
        kept: list[bytes] = []
        for piece in pieces:
            line = piece.removesuffix(b"\n")
            text = self._redactor.text(line.decode("utf-8", "surrogateescape"))
            kept.append(text.encode("utf-8", "surrogateescape") + piece[len(line) :])
            before, mark, event = line.partition(MARK)
            if mark and not before:
                with contextlib.suppress(ValueError):
                    self._stopped(place, json.loads(event))
                continue
            said.append(text.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
        try:
            with file.path.open("ab") as out:
                out.write(b"".join(kept))
        except OSError as error:
            self.unwritten = f"{file.path}: {error.strerror}"
        if said:
            self._tell(place, file.path.suffix[1:], said)


def _nobody(name: str) -> Place:
    return Place(Path(name).stem, "", 0, (int(name[5:10]) if name[5:10].isdigit() else 0,))
