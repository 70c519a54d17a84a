"""`runbook diagnose LOG…`: the cause that logs show, the lines that prove it, and the remedy."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TextIO

from runbook.causes.logs.judge import Cause, judge
from runbook.causes.logs.reached import Reached
from runbook.causes.logs.rules import scanner
from runbook.causes.logs.scan import Scanner
from runbook.causes.logs.sign import Tier
from runbook.causes.tools.paste import read_paste
from runbook.causes.tools.verdict import UNREAD, Source, with_tools
from runbook.cli.causepages import cause_pages
from runbook.cli.logfiles import LogFile, chunks, find_logs
from runbook.cli.ownruns import OwnRun, latest_run, read_run
from runbook.report.diagnosis import as_json, as_text

FOUND_OR_HEALTHY = 0
DOES_NOT_TELL = 1
EVERY_S = 0.1
HEAD = 128 * 1024
"""Bytes at a file's beginning in which outputs of tools are looked for."""
SMALL = 16 * 1024
CONTROLS = bytes({*range(32), 127} - set(b"\b\t\n\f\r\x1b"))
BINARY = 0.03
"""Share of control characters from which on bytes are no text."""
RDMA = re.compile(rb"\bmlx[45]_\d|\bhca_id\b|/sys/class/infiniband/\w|infiniband controller|Link layer: InfiniBand|\b(?:irdma|hfi1_|efa_|bnxt_re|rocep|ibp?s)\d", re.IGNORECASE)  # fmt: skip
"""What a machine prints that has an adapter for RDMA."""
HEADS = 8 << 20
"""Bytes of all files together that are looked at so, small ones aside: a thousand ranks' logs are no paste."""


def diagnose(named: Sequence[str], *, output: str) -> int:
    """Print what the logs tell; 0 when a cause was found or they are healthy, 1 when they do not tell."""
    named, run = _with_latest_run(named)
    found = find_logs(named)
    logs, closed = [log for log in found if log.readable], [log for log in found if not log.readable]
    scan = scanner()
    progress = Progress(logs, sys.stderr)
    reader = Reader(scan)
    for log in logs:
        reader.read(log, progress.over(log, partial(reader.broken.append, log.name)))
    progress.clear()
    causes = reader.causes() if run is None else run.with_logs(reader.causes())
    unread = _unread([log.name for log in closed], reader)
    if unread and (not causes or (causes[0].cause == "insufficient-evidence" and not causes[0].evidence)):
        causes = [_not_looked(unread)]
    elif unread:
        sys.stderr.write("".join(f"warning: {what}\n" for what in unread))
    pages = cause_pages()
    if output == "json":
        sys.stdout.write(as_json(causes, pages))
    else:
        went_on = scan.reached is not Reached.SETUP or run is not None
        told = as_text(causes, pages, files=len(logs), lines=reader.lines, went_on=went_on)
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(told.encode(encoding, "backslashreplace").decode(encoding))
    return DOES_NOT_TELL if causes and causes[0].cause in ("insufficient-evidence", UNREAD) else FOUND_OR_HEALTHY


def _with_latest_run(named: Sequence[str]) -> tuple[Sequence[str], OwnRun | None]:
    """Of a folder of our own runs the latest, with what that run found itself."""
    folder = latest_run(Path(named[0])) if len(named) == 1 else None
    if folder is None:
        return named, None
    if folder != Path(named[0]):
        sys.stderr.write(f"note: of the runs in {named[0]} this is the latest, {folder.name}\n")
    return [str(folder)], read_run(folder)


def _unread(closed: Sequence[str], reader: Reader) -> list[str]:
    """What of the files nobody has looked at, in words."""
    told = {
        "this user may not read {}": closed,
        "{} breaks off in the middle of its packing": reader.broken,
        "{} is no text": reader.binary,
        "a line of {} is so long that only its end was read": reader.cut,
    }
    return [
        text.format(", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else ""))
        for text, names in told.items()
        if names
    ]


def _not_looked(unread: Sequence[str]) -> Cause:
    """What nobody could read is not healthy."""
    says = f"nothing in what could be read says that anything failed, and {'; '.join(unread)}"
    remedy = "give it as whole files of text that this user may read (`ls -l`, `file`, `gzip -t`)"
    return Cause("insufficient-evidence", "high", says, remedy, (), Tier.WRAPPER)


class Reader:
    """Tells outputs of tools, which are kept in `tools`, from logs, which are scanned."""

    def __init__(self, scan: Scanner) -> None:
        self.tools: list[Source] = []
        self._scan = scan
        self._left = HEADS
        self._lines = 0
        self._logs = False
        self._rdma = False
        self.broken: list[str] = []  # packed files that break off
        self.binary: list[str] = []  # files that are no text

    @property
    def cut(self) -> list[str]:
        """Files with a line that is too long to be read."""
        return [name for name, lines in self._scan.cut.items() if lines]

    @property
    def lines(self) -> int:
        return self._scan.lines + self._lines

    @property
    def logs(self) -> bool:
        """Some log has something on it."""
        return self._logs and self._scan.told

    def causes(self) -> list[Cause]:
        """What all that was read tells, the root first."""
        return with_tools(judge(self._scan), self.tools, logs=self.logs, rdma=self._rdma)

    def read(self, log: LogFile, stream: Iterator[bytes]) -> None:
        head = b""
        free = log.tool or 0 < log.size <= SMALL
        most = HEAD if free else min(HEAD, self._left)
        for chunk in stream:
            head += chunk
            if len(head) > most:
                break
        self._left -= 0 if free else min(len(head), most)
        self._rdma = self._rdma or RDMA.search(head) is not None
        if _is_binary(head[:HEAD]):
            self.binary.append(log.name)
        paste = read_paste(head[:most].decode("utf-8", "replace"), log.name)
        whole = len(head) <= most
        if log.tool or (whole and paste.only):
            self._lines += head.count(b"\n")
        else:
            known = log.rank is not None or log.node is not None
            self._scan.feed(log.name, chain([head], stream), (log.rank, log.node) if known else None)
            self._logs = self._logs or not (whole and paste.meant)
        named = log.member is None and whole and paste.meant
        self.tools += [Source(log.name, found, log.node, named) for found in paste.found]


def _is_binary(head: bytes) -> bool:
    """Control characters all over: no text of any encoding. A hole of NULs, as a truncated log has, is one."""
    head = re.sub(rb"\0+", b"\0", head)
    return len(head.translate(None, CONTROLS)) < (1 - BINARY) * len(head)


class Progress:
    """How far the reading is, on a terminal; nothing anywhere else."""

    def __init__(self, logs: Sequence[LogFile], stream: TextIO) -> None:
        self._stream = stream
        self._shown = stream.isatty()
        self._of = sum(log.size for log in logs)
        self._read = 0
        self._next = time.monotonic() + 3 * EVERY_S

    def over(self, log: LogFile, cut: Callable[[], None]) -> Iterator[bytes]:
        for chunk in chunks(log, cut):
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
