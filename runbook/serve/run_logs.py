"""The files of a run, which may be very large: how they are listed, read a window at a time, and searched whole.

Requests name a file by an id that is made from its name, never by a path: so only files in the list of the run folder
can be named. A place in a file is its offset in bytes, which is found at once in a file of any size.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from runbook.model.run_files import EVENTS_FILE, RESULT_FILE
from runbook.model.safe_files import open_regular_file
from runbook.model.safe_text import visible_text

WINDOW_BYTES = 128 << 10
"""Bytes of a file that are shown at a time."""
MAX_SHOWN_LINE_BYTES = 4000
"""Bytes of a line that are shown."""
MAX_EXCERPT_CHARACTERS, MAX_EXCERPT_LEAD_CHARACTERS = 400, 150
"""Characters of a line in a list of matches, and how many of them may precede the match."""
MAX_FOLDER_ENTRIES = 20_000
"""The most entries of a folder that are listed."""
MAX_HITS = 100
"""The most lines with matches that are shown; all matches are counted."""
_SEARCH_PIECE_BYTES = 256 << 10
"""Bytes that a search reads at once. It is small, since no other thread of the server runs while matches in a piece are
counted; and a small piece stays in the CPU's cache."""
_MAX_FOLDER_DEPTH = 4
_RANK_LOG_NAME = re.compile(
    r"ranks?-([0-9]{1,9})(?:-([0-9]{1,9}))?\.(.+?)(?:\.l[0-9]+|\.launcher)?\.(out|err|log|stack)"
)
_LOG_FOLDERS = ("logs", "hang")
_TOP_FILES = ("console.txt", EVENTS_FILE, RESULT_FILE, "crash.txt")


class NoFile(LookupError):
    """The run has no such file."""


@dataclass(frozen=True, slots=True)
class RunLog:
    """A file of a run. `name` is its path below the run folder; `ranks` are the first and last rank that write to it,
    None if no rank does."""

    id: str
    name: str
    size: int
    ranks: tuple[int, int] | None
    node: str
    stream: str

    def of_rank(self, rank: int) -> bool:
        return self.ranks is not None and self.ranks[0] <= rank <= self.ranks[1]


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a file. `at` is the offset of its beginning in bytes; `cut` counts the bytes of the line that are not
    in `text`; `match` counts the characters of `text` before the match, for a line with one."""

    at: int
    text: str
    cut: int = 0
    match: int = 0

    @property
    def quoted(self) -> str:
        """The part with the match, for a list of matches."""
        begin = max(0, self.match - MAX_EXCERPT_LEAD_CHARACTERS)
        return f"{'…' if begin else ''}{self.text[begin : begin + MAX_EXCERPT_CHARACTERS]}"


@dataclass(frozen=True, slots=True)
class Window:
    """The lines of a file from the offset `begin` to before `end`; the file has `size` bytes."""

    lines: tuple[LogLine, ...]
    begin: int
    end: int
    size: int


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The matches in one file: their `count` in the first `looked` of its `size` bytes, and the first lines with
    matches. `looked` is less than `size` if the time was over."""

    count: int
    hits: tuple[LogLine, ...]
    looked: int
    size: int

    @property
    def exact(self) -> bool:
        """Whether the whole file was searched."""
        return self.looked >= self.size


@dataclass(frozen=True, slots=True)
class FoundInAll:
    """The matches in all files: their `count`, the `files` with matches and how many each has, and the first lines with
    matches (`hits`), each with its file. `unsearched` counts files that were not searched whole: the time was over."""

    count: int
    files: tuple[tuple[RunLog, int], ...]
    hits: tuple[tuple[RunLog, LogLine], ...]
    unsearched: int

    @property
    def exact(self) -> bool:
        """Whether all files were searched whole."""
        return not self.unsearched


def readable_files(folder: Path) -> list[RunLog]:
    """Every file of a run folder that people may read; the files of ranks come first, by rank."""
    found = [*_log_files_below(folder, "", 0)]
    return sorted(found, key=lambda one: (one.ranks is None, one.ranks or (0, 0), one.name))


def _log_files_below(folder: Path, above: str, depth: int) -> Iterator[RunLog]:
    """The files below a folder of a run, as far as people may read them."""
    try:
        entries = sorted(os.scandir(folder / above), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries[:MAX_FOLDER_ENTRIES]:
        name = f"{above}/{entry.name}" if above else entry.name
        if entry.is_dir(follow_symlinks=False) and depth < _MAX_FOLDER_DEPTH and (above or entry.name in _LOG_FOLDERS):
            yield from _log_files_below(folder, name, depth + 1)
        elif entry.is_file(follow_symlinks=False) and (above or entry.name in _TOP_FILES):
            match = _RANK_LOG_NAME.fullmatch(entry.name)
            ranks = (int(match[1]), int(match[2] or match[1])) if match else None
            size = entry.stat(follow_symlinks=False).st_size
            yield RunLog(log_file_id(name), name, size, ranks, match[3] if match else "", match[4] if match else "")


def log_file_id(name: str) -> str:
    """The id of a file with this name, the same in every run."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def find_log_file(folder: Path, id: str) -> RunLog:
    """The file with this id. Raises NoFile."""
    for file in readable_files(folder):
        if file.id == id:
            return file
    raise NoFile(id)


def open_log_file(folder: Path, file: RunLog) -> BinaryIO:
    """The file, open for reading. Raises NoFile if it is no longer a plain file."""
    try:
        return open_regular_file(folder / file.name, links=False)
    except OSError:
        raise NoFile(file.id) from None


def read_window(
    stream: BinaryIO, *, before: int | None = None, after: int | None = None, around: int | None = None
) -> Window:
    """The whole lines that end `before` a place, begin `after` it, or are `around` it; without a place, the last lines
    of the file. A line that is longer than a window is given in pieces. If `around` is inside of a line, the line is
    cut there, and a piece begins at that place."""
    size = stream.seek(0, os.SEEK_END)
    if around is not None:
        begin, end = max(0, min(around, size) - WINDOW_BYTES // 4), min(size, around + WINDOW_BYTES * 3 // 4)
    elif after is not None:
        begin, end = min(max(0, after), size), min(size, after + WINDOW_BYTES)
    else:
        end = size if before is None else max(0, min(before, size))
        begin = max(0, end - WINDOW_BYTES)
    begin_is_line = begin == 0 or after is not None
    stream.seek(begin)
    data = stream.read(end - begin)
    if not begin_is_line:
        first = data.find(b"\n") + 1
        if first < len(data) and (around is None or begin + first <= around):
            begin, data = begin + first, data[first:]
    if begin + len(data) < size and before is None:  # with `before`, the lines up to it are whole already
        last = data.rfind(b"\n") + 1
        data = data[:last] if last and (around is None or around < begin + last) else data
    parted = around is not None and 0 < around - begin < len(data) and data[around - begin - 1] != ord("\n")
    at = around if around is not None and parted else begin
    lines = *_split_log_lines(data[: at - begin], begin), *_split_log_lines(data[at - begin :], at)
    return Window(lines, begin, begin + len(data), size)


def _split_log_lines(data: bytes, at: int) -> Iterator[LogLine]:
    for raw in data.removesuffix(b"\n").split(b"\n") if data else ():
        yield _shown_log_line(raw, at)
        at += len(raw) + 1


def _shown_log_line(raw: bytes, at: int) -> LogLine:
    """A line of a file, made visible and cut to MAX_SHOWN_LINE_BYTES bytes."""
    raw = raw.rstrip(b"\r")
    return LogLine(
        at, visible_text(raw[:MAX_SHOWN_LINE_BYTES].decode("utf-8", "replace")), max(0, len(raw) - MAX_SHOWN_LINE_BYTES)
    )


def search_log_file(
    stream: BinaryIO,
    text: str,
    *,
    any_case: bool = False,
    skip: int = 0,
    until: float | None = None,
    most: int = MAX_HITS,
) -> SearchResult:
    """How often `text` occurs in the whole file, and at most `most` lines with it after the first `skip` matches.

    `until` is the time on the monotonic clock at which the search gives up. Raises ValueError for a text that is empty
    or has a line break.
    """
    needle = text.encode()
    if not needle or b"\n" in needle:
        raise ValueError("a text of one line is searched for")
    needle = needle.lower() if any_case else needle
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    count, hits, at, held = 0, list[LogLine](), 0, b""
    while chunk := stream.read(_SEARCH_PIECE_BYTES):
        data = held + chunk
        last = data.rfind(b"\n") + 1
        if not last:  # inside of a very long line: hold back only what may be the beginning of a match
            lower = data.lower() if any_case else data
            last = max(0, len(data) - len(needle) + 1, _last_match_end(lower, needle))
        if at + len(data) >= size:
            last = len(data)
        searched = data.lower() if any_case else data
        found = searched.count(needle, 0, last)
        if found and count + found > skip and len(hits) < most:
            hits += _matching_lines(data[:last], searched[:last], needle, at, max(0, skip - count), most - len(hits))
        count += found
        held, at = data[last:], at + last
        if until is not None and time.monotonic() > until:
            return SearchResult(count, tuple(hits), at, size)
    return SearchResult(count, tuple(hits), max(at, size), size)


def _last_match_end(data: bytes, needle: bytes) -> int:
    """The end of the last match, when matches are counted from the left without overlaps; -1 without a match."""
    place = data.rfind(needle)
    if place < 0:
        return -1
    if any(needle.startswith(needle[at:]) for at in range(1, len(needle))):  # matches can overlap: count from the left
        return max(match.end() for match in re.finditer(re.escape(needle), data))
    return place + len(needle)


def search_all_files(folder: Path, among: Sequence[RunLog], text: str, *, any_case: bool, until: float) -> FoundInAll:
    """Searches each of these files of a run as `search_log_file` does, one after the other."""
    count, holding, hits, unsearched = 0, list[tuple[RunLog, int]](), list[tuple[RunLog, LogLine]](), 0
    for file in among:
        if time.monotonic() > until:
            unsearched += 1
            continue
        try:
            with open_log_file(folder, file) as stream:
                found = search_log_file(stream, text, any_case=any_case, until=until, most=MAX_HITS - len(hits))
        except NoFile:
            continue
        unsearched += not found.exact
        if found.count:
            holding.append((file, found.count))
            hits += [(file, line) for line in found.hits]
            count += found.count
    return FoundInAll(count, tuple(holding), tuple(hits), unsearched)


def _matching_lines(part: bytes, searched: bytes, needle: bytes, at: int, skip: int, most: int) -> Iterator[LogLine]:
    """The lines with matches in a part of a file that begins at the offset `at`. `searched` is the same part as it is
    searched: in lower case if the case does not matter."""
    place, seen, shown, end = -len(needle), 0, 0, -1
    while shown < most and (place := searched.find(needle, place + len(needle))) >= 0:
        seen += 1
        if seen <= skip or place < end:
            continue  # the line is shown already
        start = part.rfind(b"\n", max(0, end), place) + 1
        end = part.find(b"\n", place)
        end = end if end >= 0 else len(part)
        shows = place + len(needle) - start <= MAX_SHOWN_LINE_BYTES
        near = start if shows else place - MAX_SHOWN_LINE_BYTES // 4  # of a long line the part with the match
        before = visible_text(part[near:place].decode("utf-8", "replace"))
        yield replace(_shown_log_line(part[near:end], at + near), match=len(before))
        shown += 1
