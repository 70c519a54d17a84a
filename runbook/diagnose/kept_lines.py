"""What a scan keeps of one source of logs, lines by shape and hits by sign, and the limits of it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from runbook.diagnose.rule_types import Hit

Speaker = tuple[int | None, str | None]
"""Rank and node of the process that printed a line, each None if not known."""
UnreadLine = tuple[int, bytes, tuple[int, ...], Speaker]
"""A line that is not read yet: its number, its bytes, the indexes of the signs that may be on it, its speaker."""
SIGNS_PER_LINE_COST = 8  # a line that may hold so many signs still costs as much as any line
MAX_SEARCHED_BYTES = 4000  # bytes of a line that are searched for progress
COLOUR_ESCAPES = re.compile(rb"\x1b?\[(?:\d{1,3};)*\d{1,3}m(?!\d*(?:s\b|<))")


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """The limits that bound the time and the memory of a scan, whatever is in the logs."""

    # Shapes, over all sources.
    shapes: int = 25_000  # the most that are remembered
    # From so many shapes, or bytes of them, on, lines of new shapes are put off in a source that is `full`: searched
    # for progress and headings only, and, if they are among the last ones, read at its end.
    unlike: int = 8_000
    unlike_bytes: int = 384 << 10
    asked: int = 300_000  # bytes of lines that are searched for `Reached`, besides lines of progress and last lines
    shape_bytes: int = 2000  # a shape of so many bytes is not remembered
    all_shapes_bytes: int = 16 << 20
    # Lines of one shape that are read in full.
    of_a_shape: int = 24  # the first ones of a source
    last_of_a_shape: int = 4  # and the last ones
    settled: int = 500  # shapes with enough lines read, whose last lines' bytes are counted only after each chunk
    often: int = 500  # over all sources; beyond it only `of_an_often_one` of each source
    of_an_often_one: int = 3
    # Lines of one source.
    read: int = 2_000  # read in full; a line that may hold very many signs counts more than once
    read_of_all: int = 3_500  # the same for lines with a sign that is wanted of every rank
    read_bytes: int = 176 << 10
    kept_bytes: int = 16 << 20  # bytes of the shapes and lines that are remembered
    late: int = 1_000  # lines that were put off: the last ones, read at the end of the source
    pending: int = 1 << 20  # bytes without a line break that are taken as one line
    # Lines of shapes that no source had before, over all sources; one that may hold many signs counts more than once.
    unlike_read: int = 2_600  # read in full; each source may read a quarter of what is left of them
    least: int = 4  # every source may read so many, and so many that were put off
    least_until: int = 3_000  # from this cost on, all such lines are put off, and the last of a source is read
    last_until: int = 3_800  # from this cost on, no such line is read
    # Hits, over all sources.
    keeps_all: int = 100  # a sign that keeps more hits than this is wanted of every rank
    hits: int = 4000  # of one sign; beyond it each further source keeps 2
    texts: int = 16 << 20  # characters of the lines with hits; beyond it lines are cut

    def of_the_next(self, unlike: float) -> ScanLimits:
        """The limits of the next source after lines of new shapes of this cost were read in full in the sources
        before."""
        part = max(self.least, (self.unlike_read - unlike) // 4) / self.read
        if part >= 1:
            return self
        if unlike < self.least_until:
            late = max(self.least, int(self.late * part))
        else:
            late = 1 if unlike < self.last_until else 0
        return replace(self, read=int(self.read * part), read_bytes=int(self.read_bytes * part), late=late)


DEFAULT_SCAN_LIMITS = ScanLimits()


class SourceLines:
    """The lines and hits that are kept of one source; the lines only while the source is read."""

    def __init__(self, name: str, limits: ScanLimits) -> None:
        self.name = name
        self._limits = limits
        self.kept: dict[int, KeptHits] = {}
        self.shapes: dict[bytes, tuple[list[int], deque[UnreadLine]]] = {}
        self.settled: dict[bytes, deque[UnreadLine]] = {}
        """By a shape of which enough lines were read, its last lines. A caller with many such lines adds them here
        directly, and calls `count_settled` after each chunk."""
        self._last: deque[UnreadLine] = deque(maxlen=limits.last_of_a_shape * 16)
        self.late: deque[tuple[int, bytes, Speaker]] = deque(maxlen=limits.late)
        self._read = 0.0
        self._read_bytes = 0.0
        self._bytes = 0  # of remembered shapes and lines, without the lines of settled shapes
        self._settled_bytes = 0
        self._shape_bytes = 0
        self.passed_over = 0  # lines that are not read

    @property
    def full(self) -> bool:
        """Whether as many lines as the limits allow were read in full."""
        return self._read >= self._limits.read or self._read_bytes >= self._limits.read_bytes

    def put_off(self, number: int, raw: bytes, speaker: Speaker) -> None:
        """Keeps a line that was not searched: it is read at the end of the source, if it is among the last such
        lines."""
        long = len(raw) > MAX_SEARCHED_BYTES
        self.passed_over += long or len(self.late) == self.late.maxlen
        self.late.append((number, searchable_bytes(raw) if long else raw, speaker))

    def wants(self, shape: bytes, raw: UnreadLine, most: int) -> bool:
        """Whether the line is to be read now: `most` lines of its shape are. Else it is remembered while it is among
        the last lines."""
        limits = self._limits
        if (last := self.settled.get(shape)) is not None:
            last.append(raw)
            return False
        known = self.shapes.get(shape)
        if (
            known is None
            and len(self.shapes) < limits.shapes
            and len(shape) < limits.shape_bytes
            and self._shape_bytes < limits.kept_bytes // 2
            and self._bytes + self._settled_bytes < limits.kept_bytes
        ):
            known = self.shapes[shape] = ([0], deque(maxlen=limits.last_of_a_shape))
            self._bytes += len(shape)
            self._shape_bytes += len(shape)
        if known is not None and known[0][0] >= most:
            if self._remember(known[1], raw) and len(self.settled) < limits.settled:
                self.settled[shape] = known[1]
                self._bytes -= _total_bytes(known[1])
                self._settled_bytes += _total_bytes(known[1])
            return False
        if known is not None:
            known[0][0] += 1
        if (
            self._read < (limits.read if most <= limits.keeps_all else limits.read_of_all)
            and self._read_bytes < limits.read_bytes
        ):
            self._read += reading_cost(raw)
            self._read_bytes += reading_cost(raw) * len(raw[1])
            return True
        if known is None or not self._remember(known[1], raw):
            self.passed_over += len(self._last) == self._last.maxlen or len(raw[1]) > MAX_SEARCHED_BYTES
            self._last.append((raw[0], searchable_bytes(raw[1]), raw[2], raw[3]))
        return False

    def _remember(self, last: deque[UnreadLine], raw: UnreadLine) -> bool:
        """Adds the line to the last lines of its shape; if memory is short, in place of all of them, since the newest
        line tells most. False if there is no room even so."""
        dropped = len(last[0][1]) if len(last) == last.maxlen else 0
        if self._bytes + self._settled_bytes + len(raw[1]) - dropped > self._limits.kept_bytes:
            dropped = _total_bytes(last)
            if len(raw[1]) > dropped:
                return False
            last.clear()
        self._bytes += len(raw[1]) - dropped
        last.append(raw)
        return True

    def count_settled(self) -> None:
        """Counts the bytes of settled shapes' last lines; if they are too many, keeps only the newest line of each
        shape. To be called after each chunk, whose size bounds what came since."""
        self._settled_bytes = sum(map(_total_bytes, self.settled.values()))
        if self._bytes + self._settled_bytes > self._limits.kept_bytes:
            for last in self.settled.values():
                newest, more = last[-1], len(last) - 1
                self.passed_over += more + (len(newest[1]) > MAX_SEARCHED_BYTES)
                last.clear()
                last.append((newest[0], searchable_bytes(newest[1]), *newest[2:]))
            self._settled_bytes = sum(map(_total_bytes, self.settled.values()))

    def last(self) -> list[UnreadLine]:
        """The last lines of every shape, in order; at most as many as the limits allow to read in full."""
        lines = [*(raw for _, last in self.shapes.values() for raw in last), *self._last]
        lines = sorted(lines, key=lambda raw: raw[0], reverse=True)
        self._read = self._read_bytes = 0
        few: list[UnreadLine] = []
        for raw in lines:
            self._read += reading_cost(raw)
            self._read_bytes += reading_cost(raw) * len(raw[1])
            if few and (self._read > self._limits.read or self._read_bytes > self._limits.read_bytes):
                break
            few.append(raw)
        self.passed_over += len(lines) - len(few)
        self._read = self._read_bytes = 0
        return few[::-1]

    def forget(self) -> None:
        """Drops the lines, once the source was read to its end; hits stay."""
        self.shapes.clear()
        self.settled.clear()
        self._last.clear()
        self.late.clear()


def _total_bytes(lines: deque[UnreadLine]) -> int:
    return sum(len(raw[1]) for raw in lines)


def reading_cost(raw: UnreadLine) -> float:
    """The cost to read this line in full, in lines with few signs."""
    return max(1, len(raw[2]) / SIGNS_PER_LINE_COST)


class KeptHits:
    """The first and the last hits of a sign in one source."""

    def __init__(self, most: int) -> None:
        self._first: list[Hit] = []
        self._most = max(1, most // 2)
        self._last: deque[Hit] = deque(maxlen=self._most)

    def add(self, hit: Hit) -> int:
        """Keeps the hit; by how many the number of kept hits grows: 1, or 0 if it replaces an older one."""
        if len(self._first) < self._most:
            self._first.append(hit)
            return 1
        before = len(self._last)
        self._last.append(hit)
        return len(self._last) - before

    def __iter__(self) -> Iterator[Hit]:
        yield from self._first
        yield from self._last


def searchable_bytes(raw: bytes) -> bytes:
    """The line without colours; of a line of more than MAX_SEARCHED_BYTES bytes only its beginning and its end."""
    few = (
        raw
        if len(raw) <= MAX_SEARCHED_BYTES
        else raw[: MAX_SEARCHED_BYTES // 2] + b" " + raw[1 - MAX_SEARCHED_BYTES // 2 :]
    )
    return COLOUR_ESCAPES.sub(b"", few) if b"[" in few else few
