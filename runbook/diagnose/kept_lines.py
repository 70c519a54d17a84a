"""What a scan keeps of one source of logs: how many lines of one shape, and hits of one sign; and its limits."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from runbook.diagnose.rule_types import Hit

Speaker = tuple[int | None, str | None]
"""Rank and node."""
Raw = tuple[int, bytes, tuple[int, ...], Speaker]
"""Number of a line, its bytes, signs that may be on it, and who speaks."""
SIGNS_AT_ONCE = 8  # that are looked for in a line at the price of one
SEARCHED = 4000  # bytes of a line that are asked how far the run is
COLOURS = re.compile(rb"\x1b?\[(?:\d{1,3};)*\d{1,3}m(?!\d*(?:s\b|<))")


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """What bounds the time and the memory of a scan, whatever is in the logs."""

    # shapes, over all sources
    shapes: int = 25_000  # remembered
    # of them, after which lines of new shapes are put off where enough were read in full
    unlike: int = 8_000
    unlike_bytes: int = 384 << 10
    asked: int = 300_000  # bytes that are asked how far the run is; of a run that goes on, and of last lines, all are
    shape_bytes: int = 2000  # a longer line is not remembered
    all_shapes_bytes: int = 16 << 20
    # lines of one shape that are read in full
    of_a_shape: int = 24  # in one source
    last_of_a_shape: int = 4
    settled: int = 500  # shapes of which enough was read: their lines are counted in bytes after each chunk only
    often: int = 500  # over all sources; after that `of_an_often_one` of each source
    of_an_often_one: int = 3
    # lines of one source
    read: int = 2_000  # in full; a line that may tell very many things counts more than once
    read_of_all: int = 3_500  # the same where every rank's line is wanted
    read_bytes: int = 176 << 10
    kept_bytes: int = 16 << 20  # of the lines that are remembered
    late: int = 1_000  # put off, at its end
    pending: int = 1 << 20  # bytes without a line break that are taken as one line
    # lines of shapes that were not met before, over all sources
    unlike_read: int = 5_000  # in full: of what is left, a source has a quarter
    least: int = 4  # that any source has, and of those that are put off
    # hits, over all sources
    keeps_all: int = 100  # a sign that keeps more hits than this wants every rank's
    hits: int = 4000  # of a sign
    texts: int = 16 << 20  # characters of their lines

    def of_the_next(self, unlike: int) -> ScanLimits:
        """The limits of one more source, where so many lines of others, each unlike all before, were read in full."""
        part = max(self.least, (self.unlike_read - unlike) // 4) / self.read
        if part >= 1:
            return self
        return replace(
            self,
            read=int(self.read * part),
            read_bytes=int(self.read_bytes * part),
            late=max(self.least, int(self.late * part)),
        )


LIMITS = ScanLimits()


class SourceLines:
    """What is kept of one source while it is read, and after."""

    def __init__(self, name: str, limits: ScanLimits) -> None:
        self.name = name
        self._limits = limits
        self.kept: dict[int, KeptHits] = {}
        self.shapes: dict[bytes, tuple[list[int], deque[Raw]]] = {}
        self.settled: dict[bytes, deque[Raw]] = {}
        """The last lines of shapes of which no more are read now, for whoever has many such lines to add."""
        self._last: deque[Raw] = deque(maxlen=limits.last_of_a_shape * 16)
        self.late: deque[tuple[int, bytes, Speaker]] = deque(maxlen=limits.late)
        self._read = 0.0
        self._read_bytes = 0.0
        self._bytes = 0  # of shapes and lines that are remembered, without those of settled shapes
        self._settled_bytes = 0
        self._shape_bytes = 0
        self.passed_over = 0  # lines that are not read

    @property
    def full(self) -> bool:
        """As many lines as are read in full were read."""
        return self._read >= self._limits.read or self._read_bytes >= self._limits.read_bytes

    def put_off(self, number: int, raw: bytes, speaker: Speaker) -> None:
        """A line that was not searched is read when the source has ended, if it is among the last of them."""
        long = len(raw) > SEARCHED
        self.passed_over += long or len(self.late) == self.late.maxlen
        self.late.append((number, searched(raw) if long else raw, speaker))

    def wants(self, shape: bytes, raw: Raw, most: int) -> bool:
        """Whether the line is to be read now; else it is remembered, for as long as it is among the last."""
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
                self._bytes -= _bytes_of(known[1])
                self._settled_bytes += _bytes_of(known[1])
            return False
        if known is not None:
            known[0][0] += 1
        if (
            self._read < (limits.read if most <= limits.keeps_all else limits.read_of_all)
            and self._read_bytes < limits.read_bytes
        ):
            self._read += _price(raw)
            self._read_bytes += _price(raw) * len(raw[1])
            return True
        if known is None or not self._remember(known[1], raw):
            self.passed_over += len(self._last) == self._last.maxlen or len(raw[1]) > SEARCHED
            self._last.append((raw[0], searched(raw[1]), raw[2], raw[3]))
        return False

    def _remember(self, last: deque[Raw], raw: Raw) -> bool:
        """Whether there is room for it among the last lines of its shape; where there is none left, in place of these:
        the newest tells most."""
        dropped = len(last[0][1]) if len(last) == last.maxlen else 0
        if self._bytes + self._settled_bytes + len(raw[1]) - dropped > self._limits.kept_bytes:
            dropped = _bytes_of(last)
            if len(raw[1]) > dropped:
                return False
            last.clear()
        self._bytes += len(raw[1]) - dropped
        last.append(raw)
        return True

    def count_settled(self) -> None:
        """To be called after each chunk, which bounds what came since; where it is too much, the newest line of each
        shape is kept."""
        self._settled_bytes = sum(map(_bytes_of, self.settled.values()))
        if self._bytes + self._settled_bytes > self._limits.kept_bytes:
            for last in self.settled.values():
                newest, more = last[-1], len(last) - 1
                self.passed_over += more + (len(newest[1]) > SEARCHED)
                last.clear()
                last.append((newest[0], searched(newest[1]), *newest[2:]))
            self._settled_bytes = sum(map(_bytes_of, self.settled.values()))

    def last(self) -> list[Raw]:
        """The last lines of every shape, in their order; no more than were read in full."""
        lines = [*(raw for _, last in self.shapes.values() for raw in last), *self._last]
        lines = sorted(lines, key=lambda raw: raw[0], reverse=True)
        self._read = self._read_bytes = 0
        few: list[Raw] = []
        for raw in lines:
            self._read += _price(raw)
            self._read_bytes += _price(raw) * len(raw[1])
            if self._read > self._limits.read or self._read_bytes > self._limits.read_bytes:
                break
            few.append(raw)
        self.passed_over += len(lines) - len(few)
        self._read = self._read_bytes = 0
        return few[::-1]

    def forget(self) -> None:
        """It was read to its end."""
        self.shapes.clear()
        self.settled.clear()
        self._last.clear()
        self.late.clear()


def _bytes_of(lines: deque[Raw]) -> int:
    return sum(len(raw[1]) for raw in lines)


def _price(raw: Raw) -> float:
    """How many lines with few signs are read in full in the time of this one."""
    return max(1, len(raw[2]) / SIGNS_AT_ONCE)


class KeptHits:
    """The first and the last hits of a sign in one source."""

    def __init__(self, most: int) -> None:
        self._first: list[Hit] = []
        self._most = max(1, most // 2)
        self._last: deque[Hit] = deque(maxlen=self._most)

    def add(self, hit: Hit) -> int:
        """Keep it; how many more are kept now."""
        if len(self._first) < self._most:
            self._first.append(hit)
            return 1
        before = len(self._last)
        self._last.append(hit)
        return len(self._last) - before

    def __iter__(self) -> Iterator[Hit]:
        yield from self._first
        yield from self._last


def searched(raw: bytes) -> bytes:
    """The line without its colours, of a very long one its beginning and its end."""
    few = raw if len(raw) <= SEARCHED else raw[: SEARCHED // 2] + b" " + raw[1 - SEARCHED // 2 :]
    return COLOURS.sub(b"", few) if b"[" in few else few
