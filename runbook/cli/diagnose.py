"""`runbook diagnose LOG…`: the cause that logs show, the lines that prove it, and the remedy."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TextIO

from runbook.causes.logs.judge import judge
from runbook.causes.logs.rules import scanner
from runbook.cli.causepages import cause_pages
from runbook.cli.logfiles import LogFile, chunks, find_logs
from runbook.report.diagnosis import as_json, as_text

FOUND_OR_HEALTHY = 0
DOES_NOT_TELL = 1
EVERY_S = 0.1


def diagnose(named: Sequence[str], *, output: str) -> int:
    """Print what the logs tell; 0 when a cause was found or they are healthy, 1 when they do not tell."""
    logs = find_logs(named)
    scan = scanner()
    progress = Progress(logs, sys.stderr)
    for log in logs:
        scan.feed(log.name, progress.over(log), (log.rank, None) if log.rank is not None else None)
    progress.clear()
    causes = judge(scan)
    pages = cause_pages()
    if output == "json":
        sys.stdout.write(as_json(causes, pages))
    else:
        told = as_text(causes, pages, files=len(logs), lines=scan.lines)
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(told.encode(encoding, "backslashreplace").decode(encoding))
    return DOES_NOT_TELL if causes and causes[0].cause == "insufficient-evidence" else FOUND_OR_HEALTHY


class Progress:
    """How far the reading is, on a terminal; nothing anywhere else."""

    def __init__(self, logs: Sequence[LogFile], stream: TextIO) -> None:
        self._stream = stream
        self._shown = stream.isatty()
        self._of = sum(log.size for log in logs)
        self._read = 0
        self._next = time.monotonic() + 3 * EVERY_S

    def over(self, log: LogFile) -> Iterator[bytes]:
        for chunk in chunks(log):
            self._read += len(chunk)
            if self._shown and time.monotonic() >= self._next:
                self._next = time.monotonic() + EVERY_S
                of = f" of {self._of / 1e6:.0f}" if self._of >= self._read else ""
                self._stream.write(f"\r\x1b[Kreading {self._read / 1e6:.0f}{of} MB")
                self._stream.flush()
            yield chunk

    def clear(self) -> None:
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
