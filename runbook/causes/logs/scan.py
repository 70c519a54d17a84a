"""One pass over the bytes of logs that keeps the lines which tell something: constant memory, whatever the size.

Logs repeat themselves. A line's shape (its bytes without digits) is looked up in a table; only a shape that was not met
before is searched for the literals of the signs, and of the lines of one shape only some are read in full: the first,
and the last.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from runbook.causes.logs.index import Index
from runbook.causes.logs.line import read_line, section_of, section_of_path
from runbook.causes.logs.sign import Hit, Sign

SHAPES = 50_000  # remembered
WORDS = 100_000  # remembered
SHAPE_BYTES = 2000  # a longer line is not remembered
OF_A_SHAPE = 24  # lines of one shape that are read in full, in one source
LAST_OF_A_SHAPE = 4
KEEPS_ALL = 100  # a sign that keeps more hits than this wants every rank's
READ = 8_000  # lines that are read in full, in one source
PENDING = 1 << 20  # bytes without a line break that are taken as one line
SEGMENTS = 200  # of a line that a progress bar redraws: the last ones
TOTAL = 4000  # hits of a sign over all sources
DIGITS = b"0123456789"
HEADINGS = ("###", "==>", "---", "===", ">>>")

Speaker = tuple[int | None, str | None]
"""Rank and node."""
Raw = tuple[int, bytes, tuple[int, ...], Speaker]
_Kind = tuple[tuple[int, ...], int, bool, bool]
"""What lines of a shape may tell: signs, how many are read in full, that the run goes on, that it is a heading."""


NOTHING: _Kind = ((), 0, False, False)


class Catalogue:
    """Signs with their patterns and literals, compiled once; what is noise, and what says that a run goes on."""

    def __init__(self, signs: Sequence[Sign], noise: re.Pattern[str], progress: str) -> None:
        self.signs = [(sign, sign.compiled()) for sign in signs]
        self.noise = noise
        literals = [*(sign.literals for sign in signs), tuple(progress.split("|")), HEADINGS]
        self.index = Index(literals)
        # A line that holds a literal has a word that holds the longest word of it.
        self.words = Index([tuple(max(key.split(), key=len) for keys in literals for key in keys)])


class Scanner:
    """Feed it each source in turn; `hits` are what it kept, in the order of files and lines."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._signs = catalogue.signs
        self._noise = catalogue.noise
        self._index = catalogue.index
        self._words = catalogue.words
        self._idle: set[bytes] = set()  # words that no literal is about
        self._progress, self._heading = len(self._signs), len(self._signs) + 1
        self._shapes: dict[bytes, _Kind] = {}
        self._sources: list[_Source] = []
        self._totals = [0] * len(self._signs)
        self.lines = 0
        self.told = False  # some line has something on it
        self.last_progress: dict[str, int] = {}
        self.ends: dict[str, int] = {}

    def feed(self, source: str, chunks: Iterable[bytes], speaker: Speaker | None = None) -> None:
        """Read one source from its start to its end; `speaker` is who wrote it, where its path tells."""
        here = _Source(source)
        section = speaker or section_of_path(source)
        number = went_on = 0
        shapes = self._shapes
        for lines in _lines(chunks):
            for raw in lines:
                number += 1
                shape = raw.translate(None, DIGITS)
                kind = shapes.get(shape)
                if kind is None:
                    self.told = self.told or bool(raw.strip())
                    kind = self._kind(raw) if self._may_tell(shape) else NOTHING
                    if len(shapes) < SHAPES and len(shape) < SHAPE_BYTES:
                        shapes[shape] = kind
                signs, most, goes_on, heads = kind
                if goes_on:
                    went_on = number
                if heads:
                    section = section_of(raw.decode("utf-8", "replace").strip()) or section
                if signs and here.wants(shape, (number, raw, signs, section), most):
                    self._read(here, number, raw, signs, section)
        for raw_line in here.last():
            self._read(here, *raw_line)
        here.shapes.clear()
        self.lines += number
        self.ends[source] = number
        self.last_progress[source] = went_on
        self._sources.append(here)

    @property
    def hits(self) -> list[Hit]:
        return [
            hit
            for source in self._sources
            for hit in sorted((hit for few in source.kept.values() for hit in few), key=lambda hit: hit.line.number)
        ]

    def _may_tell(self, shape: bytes) -> bool:
        """Whether a word of the line could be part of a literal; lines differ more than their words do."""
        words = shape.lower().split()
        if self._idle.issuperset(words):
            return False
        hot = [word for word in words if word not in self._idle and self._words.find(word)]
        if len(self._idle) < WORDS:
            self._idle.update(set(words).difference(hot))
        return bool(hot)

    def _kind(self, raw: bytes) -> _Kind:
        found = self._index.find(raw.lower())
        signs = tuple(sign for sign in found if sign < self._progress)
        keep = max((self._signs[at][0].keep for at in signs), default=0)
        return signs, max(OF_A_SHAPE, keep if keep > KEEPS_ALL else 0), self._progress in found, self._heading in found

    def _read(self, here: _Source, number: int, raw: bytes, found: tuple[int, ...], section: Speaker) -> None:
        if b"\r" in raw.rstrip():
            for segment in raw.rstrip().split(b"\r")[-SEGMENTS:]:
                of_segment, _, _, _ = self._kind(segment)
                if of_segment:
                    self._read(here, number, segment, of_segment, section)
            return
        line = read_line(here.name, number, raw, section)
        if self._noise.search(line.text):
            return
        for at in found:
            sign, pattern = self._signs[at]
            match = pattern.search(line.text) if pattern else None
            if match or not pattern:
                groups = match.groupdict() if match else {}
                # A pattern with alternatives names what it finds host, host2, host3.
                told = {name.rstrip(DIGITS.decode()): text for name, text in groups.items() if text}
                few = here.kept.get(at)
                if few is None:
                    few = here.kept[at] = _Kept(sign.keep if self._totals[at] < TOTAL else 2)
                self._totals[at] += few.add(Hit(sign.name, line, told))


class _Source:
    """What is kept of one source while it is read, and after."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kept: dict[int, _Kept] = {}
        self.shapes: dict[bytes, tuple[list[int], deque[Raw]]] = {}
        self._last: deque[Raw] = deque(maxlen=LAST_OF_A_SHAPE * 16)
        self._read = 0

    def wants(self, shape: bytes, raw: Raw, most: int) -> bool:
        """Whether the line is to be read now; else it is remembered, for as long as it is among the last."""
        known = self.shapes.get(shape)
        if known and known[0][0] >= most:
            known[1].append(raw)
            return False
        if known is None:
            if len(self.shapes) >= SHAPES or len(shape) >= SHAPE_BYTES:
                if self._read < READ:
                    self._read += 1
                    return True
                self._last.append(raw)
                return False
            known = self.shapes[shape] = ([0], deque(maxlen=LAST_OF_A_SHAPE))
        count, last = known
        count[0] += 1
        if self._read < READ:
            self._read += 1
            return True
        last.append(raw)
        return False

    def last(self) -> list[Raw]:
        """The last lines of every shape, in their order; no more than were read in full."""
        lines = [raw for _, last in self.shapes.values() for raw in last]
        return sorted([*lines, *self._last], key=lambda raw: raw[0])[-READ:]


class _Kept:
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


def _lines(chunks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The complete lines of each chunk; what has no end yet is carried over, up to a limit."""
    rest = b""
    for chunk in chunks:
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        if len(rest) > PENDING:
            # Not a line that anyone would read: keep its end, where the newest words are.
            rest = rest[-PENDING // 4 :]
        yield lines
    if rest:
        yield [rest]
