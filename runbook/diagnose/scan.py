"""One pass over the bytes of logs that keeps the lines which tell something: constant memory, whatever the size.

Logs repeat themselves. A line's shape (its bytes without digits) is looked up in a table; only a shape that was not met
before is searched for the literals of the signs, and of the lines of one shape only some are read in full: the first,
and the last.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from runbook.diagnose.broken_lines import OPENERS, Whole, may_go_on, unpacked
from runbook.diagnose.index import Index
from runbook.diagnose.languages import LITERALS as ABROAD
from runbook.diagnose.languages import in_english
from runbook.diagnose.line import LONGEST, SHOWN, read_line, section_of, section_of_path
from runbook.diagnose.reached import ENDED, TESTS_PASSED, Reached
from runbook.diagnose.reached import LITERALS as REACHED
from runbook.diagnose.sign import Hit, Line, Sign

SHAPES = 25_000  # remembered
UNLIKE = 8_000  # of them, after which lines of new shapes are passed over where enough were read in full
SHAPE_BYTES = 2000  # a longer line is not remembered
OF_A_SHAPE = 24  # lines of one shape that are read in full, in one source
LAST_OF_A_SHAPE = 4
OFTEN = 500  # lines of one shape that are read in full, over all sources; after that, of each source
OF_AN_OFTEN_ONE = 3
KEEPS_ALL = 100  # a sign that keeps more hits than this wants every rank's
LATE = 1_000  # lines of shapes that were not met before, at the end of a source that has too many of them
READ = 2_500  # lines that are read in full, in one source
READ_OF_ALL = 4_000  # the same where every rank's line is wanted
READ_BYTES = 256 << 10  # of them; a line that may tell very many things counts more than once, as in READ
SIGNS_AT_ONCE = 10  # that are looked for in a line at the price of one
SHAPES_BYTES = 16 << 20  # of all shapes that are remembered
KEPT_BYTES = 16 << 20  # of the lines that are remembered, in one source
TEXTS = 16 << 20  # characters of the lines with hits, over all sources
PENDING = 1 << 20  # bytes without a line break that are taken as one line
ENDING = 20  # lines, in which a run may tell that it is over
FAR = 200  # characters before what a line says, from which on it is quoted from there
AROUND = 60
OVERLAP = 200  # bytes that pieces of a long line share
SEARCHED = 4000  # bytes of a line that are asked how far the run is
NEW_SHAPE, IN_FULL, A_BYTE = (
    100,
    400,
    10,
)  # the work of such a line, and of each byte in full; one of a known shape is 1
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
_TELLS_NOTHING: _Kind = ((), OF_A_SHAPE, False, False, False)


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
        self._keeps = {at: sign.keep for at, (sign, _) in enumerate(self._signs) if sign.keep > KEEPS_ALL}
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
        self.work = 0  # lines, in the time that one takes which is known already
        self._remembered = 0  # bytes of shapes
        self._often: Counter[bytes] = Counter()  # lines of a shape that were read in full, over all sources
        self._texts = 0  # characters of lines with hits
        self._cut: Counter[str] = Counter()  # lines of which only the end was looked at, by source
        self._passed_over: Counter[str] = Counter()  # lines that were not searched, by source

    def feed(self, source: str, chunks: Iterable[bytes], speaker: Speaker | None = None) -> None:
        """Read one source from its start to its end; `speaker` is who wrote it, where its path tells."""
        here = _Source(source)
        section = speaker or section_of_path(source)
        number = 0
        went_on: deque[int] = deque(maxlen=STEADY)
        shapes = self._shapes
        open_line: Whole | None = None
        open_kind: _Kind = ((), 0, False, False, False)
        ending: list[bytes] = []
        late: deque[tuple[int, bytes, Speaker]] = deque(maxlen=LATE)
        for lines in _lines(chunks, partial(self._cut.update, [source])):
            ending = [*ending, *map(_searched, lines[-ENDING:])][-ENDING:]
            self.work += len(lines)
            for raw in lines:
                number += 1
                if open_line and not open_line.takes(raw):
                    self._close(here, open_line, open_kind, section)
                    open_line = None
                shape = raw.translate(None, DIGITS)
                kind = shapes.get(shape)
                if kind is None and here.full and len(shapes) >= UNLIKE:
                    # Line after line is unlike all before: it is asked for progress alone, and the last ones are read.
                    if self._goes_on.match(_searched(raw)):
                        went_on.append(number)
                    if raw.startswith(HEADING_BYTES):
                        section = _section(raw) or section
                    self._passed_over[source] += len(late) == LATE or len(raw) > SEARCHED
                    late.append((number, _searched(raw), section))
                    continue
                if kind is None:
                    self.told = self.told or bool(raw.strip())
                    kind = self._kind(raw)
                    if not self._crowded and len(shape) < SHAPE_BYTES and ESCAPED not in raw:
                        shapes[shape] = kind
                        self._remembered += len(shape)
                signs, most, goes_on, heads, opens = kind
                if goes_on:
                    went_on.append(number)
                if heads:
                    section = _section(raw) or section
                if opens and not open_line:
                    open_line, open_kind = Whole(number, raw), kind
                elif signs and self._wants(here, shape, (number, raw, signs, section), most):
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
                self._wants(here, raw.translate(None, DIGITS), (at, raw, signs, who), most)
        for raw_line in here.last():
            self._read(here, *raw_line)
        self._passed_over[source] += here.passed_over
        here.forget()
        self.lines += number
        self.ends[source] = number
        self.last_progress[source] = went_on[-1] if went_on else 0
        self.steady_progress[source] = went_on[0] if len(went_on) == STEADY else 0
        if here.kept:
            self._sources.append(here)

    def unread(self, source: str) -> Iterator[str]:
        """What of a source was not searched, in words."""
        if cut := self._cut[source]:
            yield f"of {cut:,} of its lines, each longer than {PENDING:,} bytes, only the end was read"
        if self._passed_over[source]:
            yield "not all of its lines were searched, since too many are unlike each other; give the part in which it ended"

    @property
    def _crowded(self) -> bool:
        """No more shapes are remembered."""
        return len(self._shapes) >= SHAPES or self._remembered >= SHAPES_BYTES

    @property
    def hits(self) -> list[Hit]:
        return [
            hit
            for source in self._sources
            for hit in sorted((hit for few in source.kept.values() for hit in few), key=lambda hit: hit.line.number)
        ]

    def _close(self, here: _Source, line: Whole, kind: _Kind, section: Speaker) -> None:
        """Read a line that was open, as a whole and as it stood, where its shape is still wanted."""
        for raw in line.readings:
            shape = raw.translate(None, DIGITS)
            signs, most, _, _, _ = kind if raw is line.begun else self._shapes.get(shape) or self._kind(raw)
            if signs and self._wants(here, shape, (line.number, raw, signs, section), most):
                self._read(here, line.number, raw, signs, section)

    def _wants(self, here: _Source, shape: bytes, raw: Raw, most: int) -> bool:
        """Whether the line is to be read now; of a shape that many sources had, some lines of each are enough."""
        if most <= KEEPS_ALL and self._often[shape] >= OFTEN:
            most = OF_AN_OFTEN_ONE
        wanted = here.wants(shape, raw, most)
        if wanted and len(self._often) < SHAPES and len(shape) < SHAPE_BYTES:
            self._often[shape] += 1
        return wanted

    def _kind(self, raw: bytes) -> _Kind:
        self.work += NEW_SHAPE
        if b"\\" in raw:
            raw = b" ".join(unpacked(raw)) or raw
        found = self._index.find(raw.lower())
        if not found:
            return _TELLS_NOTHING
        foreign = self._abroad in found
        if foreign and len(raw) <= LONGEST:
            english = in_english(raw.decode("utf-8", "replace")).encode()
            found = self._index.find(english.lower())
        signs = found[: bisect_left(found, self._progress)]
        most = max((self._keeps[at] for at in self._keeps.keys() & signs), default=OF_A_SHAPE)
        goes_on = self._progress in found and bool(self._goes_on.match(_searched(raw)))
        opens = self._opener in found and may_go_on(raw)
        if goes_on or (self._telling in found and self._asked < READ):
            self._note(raw, goes_on=goes_on)
        told = (*signs, self._abroad) if foreign else signs
        return told, most, goes_on, self._heading in found, opens

    def _note(self, raw: bytes, *, goes_on: bool = False) -> None:
        """How far the run is by this line."""
        if self.reached is not Reached.PROGRESS:
            self._asked += 1
            self.reached = max(self.reached, self._reached(_searched(raw), goes_on))

    def _read(self, here: _Source, number: int, raw: bytes, found: tuple[int, ...], section: Speaker) -> None:
        inside = raw.rstrip().split(b"\r") if b"\r" in raw.rstrip() else unpacked(raw)
        if not inside and len(raw) > LONGEST:
            inside = [raw[at : at + LONGEST] for at in range(0, len(raw) - OVERLAP, LONGEST - OVERLAP)]
        if inside:
            for segment in inside:
                shape = segment.translate(None, DIGITS)
                of_segment, most, _, _, _ = self._shapes.get(shape) or self._kind(segment)
                self.work += 1
                if of_segment and self._wants(here, shape, (number, segment, of_segment, section), most):
                    self._read(here, number, segment, of_segment, section)
            return
        self.work += IN_FULL + A_BYTE * len(raw)
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
                self._texts += len(line.text)
                if self._texts > TEXTS:
                    line = replace(line, text=line.text[:SHOWN])
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
        self._read = 0.0
        self._read_bytes = 0.0
        self._bytes = 0  # of shapes and lines that are remembered
        self.passed_over = 0  # lines that nobody reads

    @property
    def full(self) -> bool:
        """As many lines as are read in full were read."""
        return self._read >= READ or self._read_bytes >= READ_BYTES

    def wants(self, shape: bytes, raw: Raw, most: int) -> bool:
        """Whether the line is to be read now; else it is remembered, for as long as it is among the last."""
        known = self.shapes.get(shape)
        if known is None and len(self.shapes) < SHAPES and len(shape) < SHAPE_BYTES and self._bytes < KEPT_BYTES:
            known = self.shapes[shape] = ([0], deque(maxlen=LAST_OF_A_SHAPE))
            self._bytes += len(shape)
        if known is not None and known[0][0] >= most:
            self._remember(known[1], raw)
            return False
        if known is not None:
            known[0][0] += 1
        if self._read < (READ if most <= KEEPS_ALL else READ_OF_ALL) and self._read_bytes < READ_BYTES:
            self._read += _price(raw)
            self._read_bytes += _price(raw) * len(raw[1])
            return True
        if known is None or not self._remember(known[1], raw):
            self.passed_over += len(self._last) == self._last.maxlen or len(raw[1]) > SEARCHED
            self._last.append((raw[0], _searched(raw[1]), raw[2], raw[3]))
        return False

    def _remember(self, last: deque[Raw], raw: Raw) -> bool:
        """Whether there is room for it among the last lines of its shape."""
        dropped = len(last[0][1]) if len(last) == last.maxlen else 0
        if self._bytes + len(raw[1]) - dropped > KEPT_BYTES:
            return False
        self._bytes += len(raw[1]) - dropped
        last.append(raw)
        return True

    def last(self) -> list[Raw]:
        """The last lines of every shape, in their order; no more than were read in full."""
        lines = [*(raw for _, last in self.shapes.values() for raw in last), *self._last]
        lines = sorted(lines, key=lambda raw: raw[0], reverse=True)
        self._read = self._read_bytes = 0
        few: list[Raw] = []
        for raw in lines:
            self._read += _price(raw)
            self._read_bytes += _price(raw) * len(raw[1])
            if self._read > READ or self._read_bytes > READ_BYTES:
                break
            few.append(raw)
        self.passed_over += len(lines) - len(few)
        self._read = self._read_bytes = 0
        return few[::-1]

    def forget(self) -> None:
        """It was read to its end."""
        self.shapes.clear()
        self._last.clear()


def _price(raw: Raw) -> float:
    """How many lines with few signs are read in full in the time of this one."""
    return max(1, len(raw[2]) / SIGNS_AT_ONCE)


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


def _searched(raw: bytes) -> bytes:
    """The line, of a very long one its beginning and its end."""
    return raw if len(raw) <= SEARCHED else raw[: SEARCHED // 2] + b" " + raw[1 - SEARCHED // 2 :]


def _section(raw: bytes) -> Speaker | None:
    return section_of(raw[:LONGEST].decode("utf-8", "replace"))


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
