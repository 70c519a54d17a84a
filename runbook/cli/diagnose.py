"""`runbook diagnose LOG…`: prints the cause that logs show, the lines that prove it, and the remedy."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path

from runbook.causes.catalogue import cause_pages
from runbook.diagnose.all_rules import make_scanner
from runbook.diagnose.judge import NO_EVIDENCE, Cause, judge_logs
from runbook.diagnose.progress_lines import Reached
from runbook.diagnose.rule_types import Tier
from runbook.diagnose.scan import Scanner
from runbook.diagnose.sources.decoding import Account
from runbook.diagnose.sources.logfiles import LogFile, find_logs, log_chunks
from runbook.diagnose.sources.own_runs import OwnRun, latest_run_below, parse_own_run, read_own_run
from runbook.diagnose.tool_outputs import UNKNOWN_OUTPUT_CAUSE, Paste, Source, merge_tool_causes, read_paste
from runbook.model.run_files import RESULT_FILE
from runbook.report.diagnosis import Coverage, diagnosis_json, diagnosis_text
from runbook.report.standard_streams import stderr, stdout

EXIT_FOUND_OR_HEALTHY = 0
EXIT_DOES_NOT_TELL = 1
SCAN_PROGRESS_INTERVAL_S = 0.1
MAX_HEAD_BYTES = 128 * 1024
"""Bytes at a file's beginning in which outputs of tools are looked for."""
MAX_SMALL_FILE_BYTES = 16 * 1024
MAX_PACKED_WORK = 5_000_000  # lines, as the scanner counts its work, that any packed file may cost
BYTES_PER_WORK_UNIT = 32  # unpacked bytes that cost as much as a line
# Lines for each byte of a packed file beyond half a megabyte, if that is more than MAX_PACKED_WORK.
MAX_WORK_PER_BYTE = 10
MAX_FILES_IN_SENTENCE = 4  # files that a sentence names
RDMA = re.compile(
    rb"""
    \bmlx[45]_\d | \b(?:irdma|hfi1_|efa_|bnxt_re|rocep|ibp?s)\d  # names of adapters
    | \bhca_id\b | link\ layer:\ infiniband  # ibv_devinfo, ibstat
    | /sys/class/infiniband/\w | infiniband\ controller  # the kernel, lspci
    """,
    re.VERBOSE,
)
"""Signs that a machine has an adapter for RDMA, in lower case."""
RDMA_KEYS = b"mlx4_ mlx5_ irdma hfi1_ efa_ bnxt_re rocep ibs ibps hca_id infiniband".split()
"""Every text that RDMA matches holds one of these keys, and they are found in a hundredth of the time."""
RDMA_SPAN_BYTES = 40
"""Bytes before and behind such a key that hold all that RDMA matches."""
MAX_ALL_HEADS_BYTES = 8 << 20
"""Bytes of the heads of all files together, small files aside, in which outputs of tools are looked for: the logs of a
thousand ranks are not pasted outputs."""


def diagnose(arguments: argparse.Namespace) -> int:
    """Prints the diagnosis; 0 when a cause was found or the logs are healthy, 1 when they do not tell."""
    named, run = _with_latest_run(arguments.logs)
    found = find_logs(named)
    if run is None and len(found.results) == 1:
        name, result = found.results[0]
        run = parse_own_run(Path(f"{name}!run"), result)
    coverage = Coverage(files=len(found.logs))
    for file, why in found.unread:
        coverage.miss(file, why)
    for name, _ in found.results if run is None else ():
        coverage.miss(name, "it holds what a run said of itself, which is read of one archive at a time")
    coverage.leave(found.aside)
    scan = make_scanner()
    progress = ReadingProgress(found.logs)
    reader = Reader(scan, coverage)
    for archive, logs in groupby(found.logs, key=lambda log: log.member.archive if log.member else None):
        for log in logs:
            reader.read(log, progress.over(log, FileAccount(coverage, log.name)))
        if archive is not None:
            archive.close()
    progress.clear()
    coverage.lines = reader.lines
    causes = reader.causes() if run is None else run.with_logs(reader.causes())
    if run is not None and run.unread:
        coverage.miss(str(run.path / RESULT_FILE), run.unread)
    if coverage.unread and (not causes or (causes[0].cause == NO_EVIDENCE and not causes[0].evidence)):
        causes = [_unread_files_cause(coverage)]
    pages = cause_pages()
    if arguments.output == "json":
        stdout.document(diagnosis_json(causes, pages, coverage))
    else:
        went_on = scan.reached is not Reached.SETUP or run is not None
        stdout.tell(diagnosis_text(causes, pages, coverage, went_on=went_on))
    return (
        EXIT_DOES_NOT_TELL
        if causes and causes[0].cause in (NO_EVIDENCE, UNKNOWN_OUTPUT_CAUSE)
        else EXIT_FOUND_OR_HEALTHY
    )


def _with_latest_run(named: Sequence[str]) -> tuple[Sequence[str], OwnRun | None]:
    """The folder of the latest run and that run's own findings, if one folder of our own runs is named; otherwise the
    names as given, and None."""
    folder = latest_run_below(Path(named[0])) if len(named) == 1 else None
    if folder is None:
        return named, None
    if folder != Path(named[0]):
        stderr.line(f"note: of the runs in {named[0]} this is the latest, {folder.name}")
    return [str(folder)], read_own_run(folder)


def _unread_files_cause(coverage: Coverage) -> Cause:
    """The cause that is reported for unread files if nothing else is found: an unread file is never healthy."""
    few = [f"{one.file}: {one.why}" for one in coverage.unread[:MAX_FILES_IN_SENTENCE]]
    more = len(coverage.unread) + coverage.more - len(few)
    unread = "; ".join([*few, *([f"and {more} more"] if more else [])])
    says = f"nothing in what could be read says that anything failed, and not all could be read: {unread}"
    remedy = "give it as whole files of text that this user may read (`ls -l`, `file`, `gzip -t`)"
    return Cause(NO_EVIDENCE, "high", says, remedy, (), Tier.WRAPPER)


@dataclass(frozen=True, slots=True)
class FileAccount:
    """Takes the notes on one file for the coverage."""

    coverage: Coverage
    name: str

    def unread(self, why: str) -> None:
        self.coverage.miss(self.name, why)

    def note(self, says: str) -> None:
        self.coverage.note(self.name, says)


class Reader:
    """Separates outputs of tools, which are kept in `tools`, from logs, which are scanned."""

    def __init__(self, scan: Scanner, coverage: Coverage | None = None) -> None:
        self.tools: list[Source] = []
        self._scan = scan
        self._coverage = coverage or Coverage()
        self._left = MAX_ALL_HEADS_BYTES
        self._lines = 0
        self._logs = False
        self._rdma = False
        self._begun: dict[str, int] = {}  # by file, the scanner's work when its first log began

    @property
    def lines(self) -> int:
        return self._scan.lines + self._lines

    @property
    def logs(self) -> bool:
        """Whether a log has any content."""
        return self._logs and self._scan.told

    def causes(self) -> list[Cause]:
        """The causes from all that was read, the root first."""
        return merge_tool_causes(judge_logs(self._scan), self.tools, logs=self.logs, rdma=self._rdma)

    def read(self, log: LogFile, stream: Iterator[bytes]) -> None:
        stream = self._affordable(log, stream)
        head = b""
        free = log.tool or 0 < log.size <= MAX_SMALL_FILE_BYTES
        most = MAX_HEAD_BYTES if free else min(MAX_HEAD_BYTES, self._left)
        for chunk in stream:
            head += chunk
            if len(head) > most:
                break
        self._left -= 0 if free else min(len(head), most)
        self._rdma = self._rdma or _has_rdma_signs(head)
        paste = read_paste(head[:most].decode("utf-8", "replace"), log.name)
        whole = len(head) <= most
        if log.tool or (whole and paste.only):
            self._lines += head.count(b"\n")
        else:
            known = log.rank is not None or log.node is not None
            self._scan.feed(log.name, chain([head], stream), (log.rank, log.node) if known else None)
            self._logs = self._logs or not (whole and paste.meant)
            for why in self._scan.unread(log.name):
                self._coverage.miss(log.name, why)
        if not whole and (log.tool or _is_last_output_cut(paste, head[:most])):
            self._coverage.miss(log.name, f"an output of a tool is longer than the {most:,} bytes that are read of one")
        named = log.member is None and whole and paste.meant
        self.tools += [Source(log.name, found, log.node, named) for found in paste.found]

    def _affordable(self, log: LogFile, stream: Iterator[bytes]) -> Iterator[bytes]:
        """The stream, as long as the work on it is in proportion to the file's size: a small packed file can hold very
        many lines."""
        size = log.on_disk
        begun = self._begun.setdefault(str(log.path), self._scan.work)
        given = 0
        for chunk in stream:
            packed = log.member is not None or 0 < size < given
            work = self._scan.work - begun + given // BYTES_PER_WORK_UNIT
            if packed and work > max(MAX_PACKED_WORK, MAX_WORK_PER_BYTE * (size - (1 << 19))):
                why = "it unpacks to far more lines than its size explains, and was read up to there; unpack it first"
                self._coverage.miss(log.name, why)
                return
            given += len(chunk)
            yield chunk


def _has_rdma_signs(head: bytes) -> bool:
    lowered = head.lower()
    return any(
        RDMA.search(lowered, max(0, found.start() - RDMA_SPAN_BYTES), found.end() + RDMA_SPAN_BYTES)
        for key in RDMA_KEYS
        if key in lowered
        for found in re.finditer(key, lowered)
    )


def _is_last_output_cut(paste: Paste, head: bytes) -> bool:
    """Whether the last output of a tool reaches the end of the bytes that were looked at, which may have cut it."""
    last = paste.found[-1] if paste.found else None
    return last is not None and last.above + len(last.lines) >= head.count(b"\n")


class ReadingProgress:
    """Shows the progress of reading, on a terminal only."""

    def __init__(self, logs: Sequence[LogFile]) -> None:
        self._shown = stderr.isatty()
        self._of = sum(log.size for log in logs)
        self._read = 0
        self._next = time.monotonic() + 3 * SCAN_PROGRESS_INTERVAL_S

    def over(self, log: LogFile, account: Account) -> Iterator[bytes]:
        for chunk in log_chunks(log, account):
            self._read += len(chunk)
            if self._shown and time.monotonic() >= self._next:
                self._next = time.monotonic() + SCAN_PROGRESS_INTERVAL_S
                of = f" of {self._of / 1e6:.0f}" if self._of >= self._read else ""
                stderr.verbatim.write(f"\r\x1b[Kreading {self._read / 1e6:.0f}{of} MB")
            yield chunk

    def clear(self) -> None:
        if self._shown:
            stderr.verbatim.write("\r\x1b[K")
