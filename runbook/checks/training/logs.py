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

    def take(self, place: Place, name: str, data: bytes) -> None:
        """The next bytes of a file."""
        with self._lock:
            file = self._files.setdefault(name, _File(self.folder / name))
            file.at += len(data)
            *whole, file.held = (file.held + data).split(b"\n")
            if len(file.held) > LONGEST_LINE:
                whole.append(file.held)
                file.held = b""
            self._pass_on(place, file, whole, b"\n")

    def close(self) -> None:
        """What was written without a line's end comes as well."""
        with self._lock:
            for name, file in self._files.items():
                if file.held:
                    held, file.held = file.held, b""
                    self._pass_on(_nobody(name), file, [held], b"")

    def _pass_on(self, place: Place, file: _File, lines: list[bytes], end: bytes) -> None:
        said: list[str] = []
        kept: list[bytes] = []
        for line in lines:
            text = self._redactor.text(line.decode("utf-8", "surrogateescape"))
            kept.append(text.encode("utf-8", "surrogateescape") + end)
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
