"""One pass over the bytes of logs that keeps the lines which tell something: constant memory, whatever the size.

Logs repeat themselves. A line's shape (its bytes without digits) is looked up in a table; only a shape that was not met
before is searched for the literals of the signs, and of the lines of one shape only some are read in full: the first,
and the last.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from runbook.causes.logs.abroad import LITERALS as ABROAD
from runbook.causes.logs.abroad import in_english
from runbook.causes.logs.index import Index
from runbook.causes.logs.line import LONGEST, SHOWN, read_line, section_of, section_of_path
from runbook.causes.logs.reached import ENDED, TESTS_PASSED, Reached
from runbook.causes.logs.reached import LITERALS as REACHED
from runbook.causes.logs.sign import Hit, Line, Sign
from runbook.causes.logs.whole import OPENERS, Whole, may_go_on, unpacked

SHAPES = 50_000  # remembered
SHAPE_BYTES = 2000  # a longer line is not remembered
OF_A_SHAPE = 24  # lines of one shape that are read in full, in one source
LAST_OF_A_SHAPE = 4
KEEPS_ALL = 100  # a sign that keeps more hits than this wants every rank's
LATE = 1_000  # lines of shapes that were not met before, at the end of a source that has too many of them
READ = 8_000  # lines that are read in full, in one source
PENDING = 1 << 20  # bytes without a line break that are taken as one line
ENDING = 20  # lines, in which a run may tell that it is over
FAR = 200  # characters before what a line says, from which on it is quoted from there
AROUND = 60
ENDLESS = 64 << 10  # bytes of a line of which the beginning and the end are read
TAIL = 8 * LONGEST
SEGMENTS = 200  # of a line that a progress bar redraws: the last ones
STEADY = 3  # lines of progress after a failure that show more than what another rank had begun to print
TOTAL = 4000  # hits of a sign over all sources
DIGITS = b"0123456789"
ESCAPED = b"\\u"  # a letter of another script in JSON, its number partly of digits
HEADINGS = ("###", "==>", "---", "===", ">>>")
HEADING_BYTES = tuple(heading.encode() for heading in HEADINGS)

Speaker = tuple[int | None, str | None]
"""Rank and node."""
Raw = tuple[int, bytes, tuple[int, ...], Speaker]
_Kind = tuple[tuple[int, ...], int, bool, bool, bool]
"""What lines of a shape may tell: signs, how many are read in full, that the run goes on, a heading, that more may follow."""


class Catalogue:
    """Signs with their patterns and literals, compiled once; what is noise, and what says that a run goes on."""

    def __init__(
        self,
        signs: Sequence[Sign],
        noise: re.Pattern[str],
        progress: str,
        goes_on: re.Pattern[bytes],
        reached: Callable[[bytes, bool], Reached],
    ) -> None:
        self.signs = [(sign, sign.compiled()) for sign in signs]
        self.noise = noise
        self.goes_on = goes_on
        self.reached = reached
        literals = [*(sign.literals for sign in signs), tuple(progress.split("|")), HEADINGS, OPENERS, REACHED, ABROAD]
        self.index = Index(literals)


class Scanner:
    """Feed it each source in turn; `hits` are what it kept, in the order of files and lines."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._signs = catalogue.signs
        self._noise = catalogue.noise
        self._goes_on = catalogue.goes_on
        self._reached = catalogue.reached
        self._index = catalogue.index
        first = len(self._signs)
        self._progress, self._heading, self._opener, self._telling, self._abroad = range(first, first + 5)
        self._shapes: dict[bytes, _Kind] = {}
        self._sources: list[_Source] = []
        self._totals = [0] * len(self._signs)
        self.lines = 0
        self.told = False  # some line has something on it
        self.reached = Reached.NOTHING
        self._asked = 0  # lines that were asked for it
        self.last_progress: dict[str, int] = {}  # lines, by source
        self.steady_progress: dict[str, int] = {}  # the first of the last STEADY such lines
        self.ends: dict[str, int] = {}
        self.passed: dict[str, int] = {}  # the line in which a suite of tests says that all is well, by source
        self.ended: dict[str, int] = {}  # the line in which a run says that it is over, by source
        self.cut: dict[str, int] = {}  # lines of which only the end was looked at, by source

    def feed(self, source: str, chunks: Iterable[bytes], speaker: Speaker | None = None) -> None:
        """Read one source from its start to its end; `speaker` is who wrote it, where its path tells."""
        here = _Source(source)
        section = speaker or section_of_path(source)
        number = 0
        went_on: deque[int] = deque(maxlen=STEADY)
        shapes = self._shapes
        open_line: Whole | None = None
        open_kind: _Kind = ((), 0, False, False, False)
        self.cut[source] = 0
        ending: list[bytes] = []
        late: deque[tuple[int, bytes, Speaker]] = deque(maxlen=LATE)
        for lines in _lines(chunks, partial(self._cut, source)):
            ending = [*ending, *lines[-ENDING:]][-ENDING:]
            for raw in lines:
                number += 1
                if open_line and not open_line.takes(raw):
                    self._close(here, open_line, open_kind, section)
                    open_line = None
                shape = raw.translate(None, DIGITS)
                kind = shapes.get(shape)
                if kind is None and here.full and len(shapes) >= SHAPES:
                    # Line after line is unlike all before: it is asked for progress alone, and the last ones are read.
                    if self._goes_on.match(raw):
                        went_on.append(number)
                    if raw.startswith(HEADING_BYTES):
                        section = section_of(raw.decode("utf-8", "replace")) or section
                    late.append((number, raw, section))
                    continue
                if kind is None:
                    self.told = self.told or bool(raw.strip())
                    kind = self._kind(raw)
                    if len(shapes) < SHAPES and len(shape) < SHAPE_BYTES and ESCAPED not in raw:
                        shapes[shape] = kind
                signs, most, goes_on, heads, opens = kind
                if goes_on:
                    went_on.append(number)
                if heads:
                    section = section_of(raw.decode("utf-8", "replace")) or section
                if opens and not open_line:
                    open_line, open_kind = Whole(number, raw), kind
                elif signs and here.wants(shape, (number, raw, signs, section), most):
                    self._read(here, number, raw, signs, section)
        if open_line:
            self._close(here, open_line, open_kind, section)
        for at, raw in enumerate(ending, number + 1 - len(ending)):
            self._note(raw)
            over = self.passed if TESTS_PASSED.match(raw) else self.ended if ENDED.match(raw) else None
            if over is not None:
                over[source] = at
                self.reached = Reached.PROGRESS
        for at, raw, who in late:
            signs, most, _, _, _ = self._kind(raw)
            if signs:
                here.wants(raw.translate(None, DIGITS), (at, raw, signs, who), most)
        for raw_line in here.last():
            self._read(here, *raw_line)
        here.shapes.clear()
        self.lines += number
        self.ends[source] = number
        self.last_progress[source] = went_on[-1] if went_on else 0
        self.steady_progress[source] = went_on[0] if len(went_on) == STEADY else 0
        self._sources.append(here)

    @property
    def hits(self) -> list[Hit]:
        return [
            hit
            for source in self._sources
            for hit in sorted((hit for few in source.kept.values() for hit in few), key=lambda hit: hit.line.number)
        ]

    def _cut(self, source: str) -> None:
        self.cut[source] += 1

    def _close(self, here: _Source, line: Whole, kind: _Kind, section: Speaker) -> None:
        """Read a line that was open, as a whole and as it stood, where its shape is still wanted."""
        for raw in line.readings:
            shape = raw.translate(None, DIGITS)
            signs, most, _, _, _ = kind if raw is line.begun else self._shapes.get(shape) or self._kind(raw)
            if signs and here.wants(shape, (line.number, raw, signs, section), most):
                self._read(here, line.number, raw, signs, section)

    def _kind(self, raw: bytes) -> _Kind:
        if b"\\" in raw:
            raw = b" ".join(unpacked(raw)) or raw
        found = self._index.find(raw.lower())
        if self._abroad in found:
            english = in_english(raw.decode("utf-8", "replace")).encode()
            found = (*self._index.find(english.lower()), self._abroad)
        signs = tuple(sign for sign in found if sign < self._progress or sign == self._abroad)
        keep = max((self._signs[at][0].keep for at in signs if at < self._progress), default=0)
        goes_on = self._progress in found and bool(self._goes_on.match(raw))
        opens = self._opener in found and may_go_on(raw)
        if goes_on or (self._telling in found and self._asked < READ):
            self._note(raw, goes_on=goes_on)
        return signs, max(OF_A_SHAPE, keep if keep > KEEPS_ALL else 0), goes_on, self._heading in found, opens

    def _note(self, raw: bytes, *, goes_on: bool = False) -> None:
        """How far the run is by this line."""
        if self.reached is not Reached.PROGRESS:
            self._asked += 1
            self.reached = max(self.reached, self._reached(raw, goes_on))

    def _read(self, here: _Source, number: int, raw: bytes, found: tuple[int, ...], section: Speaker) -> None:
        inside = raw.rstrip().split(b"\r") if b"\r" in raw.rstrip() else unpacked(raw)
        if not inside and len(raw) > ENDLESS:
            # What was printed last stands at the end of what never breaks a line.
            inside = [raw[:LONGEST], *(raw[at : at + LONGEST] for at in range(len(raw) - TAIL, len(raw), LONGEST // 2))]
        if inside:
            for segment in inside[-SEGMENTS:]:
                of_segment, _, _, _, _ = self._kind(segment)
                if of_segment:
                    self._read(here, number, segment, of_segment, section)
            return
        foreign = found[-1] == self._abroad
        line = read_line(here.name, number, raw, section, foreign=foreign)
        if self._noise.search(line.text):
            return
        for at in found[:-1] if foreign else found:
            sign, pattern = self._signs[at]
            match = pattern.search(line.text) if pattern else None
            if match or not pattern:
                groups = match.groupdict() if match else {}
                # A pattern with alternatives names what it finds host, host2, host3.
                told = {name.rstrip(DIGITS.decode()): text for name, text in groups.items() if text}
                few = here.kept.get(at)
                if few is None:
                    few = here.kept[at] = _Kept(sign.keep if self._totals[at] < TOTAL else 2)
                self._totals[at] += few.add(Hit(sign.name, _quoted_there(line, sign), told))


class _Source:
    """What is kept of one source while it is read, and after."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kept: dict[int, _Kept] = {}
        self.shapes: dict[bytes, tuple[list[int], deque[Raw]]] = {}
        self._last: deque[Raw] = deque(maxlen=LAST_OF_A_SHAPE * 16)
        self._read = 0

    @property
    def full(self) -> bool:
        """As many lines as are read in full were read."""
        return self._read >= READ

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


def _quoted_there(line: Line, sign: Sign) -> Line:
    """The line, quoted where it says it: that may be far behind its beginning."""
    if len(line.text) <= SHOWN:
        return line
    lowered = line.text.lower()
    at = min((place for key in sign.literals if (place := lowered.find(key)) >= 0), default=0)
    return replace(line, shown=f"… {line.text[at - AROUND : at - AROUND + SHOWN]}") if at > FAR else line


def _lines(chunks: Iterable[bytes], cut: Callable[[], None]) -> Iterator[list[bytes]]:
    """The complete lines of each chunk; what has no end yet is carried over, up to a limit: `cut` is called beyond it."""
    rest = b""
    whole = True
    for chunk in chunks:
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        whole = whole or bool(lines)
        if len(rest) > PENDING:
            # Not a line that anyone would read: keep its end, where the newest words are.
            rest = rest[-PENDING // 4 :]
            if whole:
                cut()
            whole = False
        yield lines
    if rest:
        yield [rest]
