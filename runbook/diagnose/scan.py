"""Scans the bytes of logs in one pass and keeps the lines with signs, in constant memory whatever the size.

Logs repeat themselves. A line's shape (its bytes without digits) is looked up in a table. Only a line of a new shape is
searched for the literals of the signs, and only some lines of a shape are read in full: the first and the last ones.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from runbook.diagnose.kept_lines import (
    DEFAULT_SCAN_LIMITS,
    MAX_SEARCHED_BYTES,
    KeptHits,
    ScanLimits,
    SourceLines,
    Speaker,
    UnreadLine,
    reading_cost,
    searchable_bytes,
)
from runbook.diagnose.literal_index import DIGITS, Index, longest_key_pattern
from runbook.diagnose.log_lines import (
    BROKEN_LINE_OPENERS,
    FOREIGN_PHRASES,
    MAX_LABEL_BYTES,
    MAX_LINE_BYTES,
    MAX_SHOWN_CHARACTERS,
    BrokenLine,
    may_continue,
    names_in_a_loop,
    read_line,
    section_speaker,
    speaker_of_path,
    starts_a_run,
    strip_prefixes,
    translate_phrases,
    unpack_line,
)
from runbook.diagnose.progress_lines import (
    EXIT_CODE_ASKED,
    GOES_ON,
    GOES_ON_LITERALS,
    HARMLESS_ERROR,
    LAST_WORDS,
    QUOTED,
    REACHED_LITERALS,
    RUN_ENDED,
    RUN_ENDED_WELL,
    SAYS_IT_HANGS,
    STEPS,
    TABLE_HEAD,
    TABLE_ROW,
    WENT_WELL,
    WENT_WELL_HINTS,
    Reached,
    is_a_question,
    is_of_a_person,
    progress_reached,
)
from runbook.diagnose.rule_types import Hit, Line, Sign
from runbook.diagnose.training_pace import lasting_pace_fall

# So many steps after a failure are more than other ranks make before they notice it. Lines that tell of one step, as
# all ranks print them, count as one.
MIN_STEADY_STEPS = 3
STEP_NUMBERS = re.compile(rb"(?i)(?:step|iter|iteration|epoch|episode|tick|batch)\W{0,5}(\d{1,15})")
MAX_STEP_LINES = 1_000  # the last lines of progress of a source that are kept
MAX_STEP_BYTES = 400  # so much of each
WENT_ON = "went-on"
"""The sign of the last line of progress of a source, for its time."""
MAX_COMMANDS = 10_000  # the most commands that are remembered of a source
MAX_COMMAND_BYTES = 400  # so much of each
MAX_ENDING_LINES = 20  # the last lines of a source, in which a run may say that it has ended
MAX_LAST_WORDS = 3  # the last lines of these, which are taken as a run's last words
# a match that begins behind so many characters of a long line is quoted from QUOTE_LEAD_CHARACTERS characters before it
MAX_QUOTE_OFFSET = 200
QUOTE_LEAD_CHARACTERS = 60
# Texts of which the signs are remembered: so many, of so many characters, without a digit.
DIGIT = re.compile(r"\d")
MAX_REMEMBERED_CHARACTERS = 500
MAX_REMEMBERED_TEXTS = 5_000
OVERLAP_BYTES = 200  # bytes that pieces of a long line share
# `Scanner.work` counts in the time of a line with a known shape. It adds NEW_SHAPE_WORK for a line of a new shape, and
# for a line that is read in full FULL_READ_WORK and BYTE_WORK for each of its bytes; PUT_OFF_WORK for a line that is
# put off, OPEN_LINE_WORK for one that may go on in the next, and SIGNS_WORK for one that may hold a sign.
NEW_SHAPE_WORK, FULL_READ_WORK, BYTE_WORK = 100, 400, 10
PUT_OFF_WORK, OPEN_LINE_WORK, SIGNS_WORK = 25, 16, 5
JSON_ESCAPE = b"\\u"  # escapes of JSON hold digits: lines with other letters would have the same shape
HEADINGS = ("###", "==>", "---", "===", ">>>")
GOES_ON_HINT = re.compile(longest_key_pattern([key.encode() for key in GOES_ON_LITERALS]))
HEADING_BYTES = tuple(heading.encode() for heading in HEADINGS)


class _Kind(NamedTuple):
    """What lines of one shape may hold."""

    signs: tuple[int, ...] = ()  # indexes of the signs
    most: int = 0  # how many lines of the shape are read in full in one source
    goes_on: bool = False  # they show that the run goes on
    heads: bool = False  # they are headings, which name the speaker of the lines below
    starts: bool = False  # they are commands that start a run
    opens: bool = False  # they may go on in the next line
    late: bool = False  # they were not searched, and are read at the end of the source, if at all


class Command(NamedTuple):
    """A line with a command that starts a run."""

    number: int
    text: str


READ_LATER = _Kind(late=True)


class Catalogue:
    """The signs that a scanner looks for, with the index of their literals; scanners share it."""

    def __init__(self, signs: Sequence[Sign]) -> None:
        self.signs = signs
        others = (GOES_ON_LITERALS, HEADINGS, BROKEN_LINE_OPENERS, REACHED_LITERALS, FOREIGN_PHRASES)
        self.index = Index([*(sign.literals for sign in signs), *others])


class Scanner:
    """A scan over logs. Feed it each source in turn; then `hits` are the hits that it kept, by sources and lines."""

    def __init__(self, catalogue: Catalogue, limits: ScanLimits = DEFAULT_SCAN_LIMITS) -> None:
        self._limits = limits
        self._signs = catalogue.signs
        self._index = catalogue.index
        first = len(self._signs)
        self._progress, self._heading, self._opener, self._telling, self._abroad = range(first, first + 5)
        self._keeps = {at: sign.keep for at, sign in enumerate(self._signs) if sign.keep > limits.keeps_all}
        self._patterns: dict[int, re.Pattern[str] | None] = {}  # of signs of which a line was read
        # by the text of a line and the signs that it may show, those that it shows
        self._shown: dict[tuple[str, tuple[int, ...]], tuple[tuple[int, Mapping[str, str]], ...]] = {}
        self._shapes: dict[bytes, _Kind] = {}
        self._sources: list[SourceLines] = []
        self._totals = [0] * len(self._signs)
        self.lines = 0
        self.told = False  # whether any line is not blank
        self.reached = Reached.NOTHING
        self._asked = 0  # bytes of lines that were searched for `reached`
        self._noted: deque[bytes] = deque(maxlen=MAX_ENDING_LINES)  # the last lines that were searched for `reached`
        self.last_progress: dict[str, int] = {}  # by source, the number of the last line of progress; 0: none
        self.steady_progress: dict[
            str, int
        ] = {}  # by source, the first of the last MIN_STEADY_STEPS such lines; 0: fewer
        self.ends: dict[str, int] = {}  # by source, how many lines it has
        self.went_well: dict[str, int] = {}  # by source, the line which says that all went well
        self.commands: dict[str, list[Command]] = {}  # by source, the commands that start a run
        self.ended: dict[str, int] = {}  # by source, the line in which a run says that it has ended
        self.ended_well: dict[str, int] = {}  # by source, the line in which a run says that it has ended well
        self.went_on: list[Hit] = []  # of each source, the last line of progress
        self.slowed: list[Hit] = []  # lines from which on steps take longer, to the end of their source
        self.last_words: list[Hit] = []  # last lines after which nobody would call the run healthy
        self.work = 0  # the work so far, in lines of a known shape
        self._remembered = 0  # bytes of shapes
        self._unlike_read = 0.0  # cost of lines of shapes that no source had before, read in full, over all sources
        self._often: Counter[bytes] = Counter()  # by shape, lines that were read in full, over all sources
        self._texts = 0  # characters of lines with hits
        self._cut: Counter[str] = Counter()  # by source, lines of which only the end was searched
        self._passed_over: Counter[str] = Counter()  # by source, lines that were not searched

    def feed(self, source: str, chunks: Iterable[bytes], speaker: Speaker | None = None) -> None:
        """Reads one source from its start to its end. `speaker` wrote it; None: as its path shows, if it does."""
        here = SourceLines(source, self._limits.of_the_next(self._unlike_read))
        section = speaker or speaker_of_path(source)
        hosts: frozenset[str] = frozenset()
        number = 0
        flooded = self._unlike_read >= self._limits.least_until
        went_on: deque[tuple[int, bytes]] = deque(maxlen=MAX_STEP_LINES)
        kinds, settled, commands = self._shapes, here.settled, self.commands.setdefault(source, [])
        open_line: BrokenLine | None = None
        open_kind, open_shape = _Kind(), b""
        ending: list[bytes] = []
        for lines, shapes in _split_lines(chunks, partial(self._cut.update, [source]), self._limits.pending):
            ending = [*ending, *map(searchable_bytes, lines[-MAX_ENDING_LINES:])][-MAX_ENDING_LINES:]
            self.work += len(lines)
            for raw, shape in zip(lines, shapes, strict=True):
                number += 1
                # A line of the open line's shape is another such line, and no rest of it.
                if open_line and (shape == open_shape or not open_line.takes(raw)):
                    self._close(here, open_line, open_kind, section)
                    open_line = None
                kind = kinds.get(shape)
                if kind is None:
                    flooded = flooded or (here.full and self._has_many_shapes)
                    kind = self._put_off(raw) if flooded else self._unlike_all_before(shape, raw)
                if kind.goes_on:
                    went_on.append((number, raw[:MAX_STEP_BYTES]))
                if kind.heads:
                    text = raw[:MAX_LINE_BYTES].decode("utf-8", "replace")
                    section = section_speaker(text) or section
                    hosts = names_in_a_loop(text) or hosts
                elif hosts and len(raw) < MAX_LABEL_BYTES and (name := _bare_text(raw)) in hosts:
                    section = (None, name)
                if kind.starts and len(commands) < MAX_COMMANDS:
                    commands.append(Command(number, raw[:MAX_COMMAND_BYTES].decode("utf-8", "replace")))
                if kind.opens and not open_line:
                    open_line, open_kind, open_shape = BrokenLine(number, raw), kind, shape
                elif kind.signs:
                    if (last := settled.get(shape)) is not None:  # so are nearly all lines of ordinary logs
                        last.append((number, raw, kind.signs, section))
                    elif self._wants(here, shape, (number, raw, kind.signs, section), kind.most):
                        self._read(here, number, raw, kind.signs, section)
                elif kind.late:
                    here.put_off(number, raw, section)
            here.count_settled()
        if open_line:
            self._close(here, open_line, open_kind, section)
        self._look_for_its_end(source, ending, number, section)
        self._read_what_was_left(here)
        self._passed_over[source] += here.passed_over
        self.lines += number
        self.ends[source] = number
        self.last_progress[source] = went_on[-1][0] if went_on else 0
        self.steady_progress[source] = _begin_of_last_steps(went_on)
        if went_on:
            self.went_on.append(Hit(WENT_ON, read_line(source, *went_on[-1], section, foreign=False)))
        if slow := lasting_pace_fall(went_on):
            line = read_line(source, slow.number, dict(went_on)[slow.number], section, foreign=False)
            self.slowed.append(Hit("pace-fell", line, {"times": f"{slow.times:.1f}"}))
        if here.kept:
            self._sources.append(here)

    @property
    def _has_many_shapes(self) -> bool:
        return len(self._shapes) >= self._limits.unlike or self._remembered >= self._limits.unlike_bytes

    def _put_off(self, raw: bytes) -> _Kind:
        """The kind of a line with a new shape where there are too many of them, in its source or in those before: it is
        searched for progress and headings only."""
        self.work += PUT_OFF_WORK
        low = (raw if len(raw) <= MAX_SEARCHED_BYTES else searchable_bytes(raw)).lower()
        goes_on = GOES_ON_HINT.search(low) is not None and STEPS.match(searchable_bytes(low)) is not None
        heads = raw.startswith(HEADING_BYTES)
        return _Kind(goes_on=goes_on, heads=heads, late=True) if goes_on or heads else READ_LATER

    def _unlike_all_before(self, shape: bytes, raw: bytes) -> _Kind:
        """The kind of a line with a new shape; remembers the shape while there is room."""
        self.told = self.told or bool(raw.strip())
        kind = self._kind(raw)
        if not self._crowded and len(shape) < self._limits.shape_bytes and JSON_ESCAPE not in raw:
            self._shapes[shape] = kind
            self._remembered += len(shape)
        return kind

    def _look_for_its_end(self, source: str, ending: Sequence[bytes], number: int, section: Speaker) -> None:
        """Notes whether the last lines of a source say that the run has ended well, or that something is wrong. The
        last of them has the line number `number`."""
        in_table = exit_code_asked = False
        for at, raw in enumerate(ending, number + 1 - len(ending)):
            if raw not in self._noted and (self._asked < self._limits.asked or at > number - MAX_LAST_WORDS):
                self._note(raw)
            low = raw.lower()
            if exit_code_asked and low.strip() == b"0":
                self.ended[source] = self.ended_well[source] = at
                self.reached = Reached.PROGRESS
            exit_code_asked = EXIT_CODE_ASKED.match(low) is not None
            in_table = in_table or TABLE_HEAD.match(low) is not None
            if in_table and TABLE_ROW.match(low):
                self.went_well[source] = at
                self.reached = Reached.PROGRESS
            may_say_so = any(word in low for word in WENT_WELL_HINTS)
            went_well = may_say_so and any(map(WENT_WELL.match, (low, *_bare_texts(raw))))
            if went_well:
                self.went_well[source] = at
            if ended := RUN_ENDED.match(low) is not None:
                self.ended[source] = at
                if RUN_ENDED_WELL.match(low):
                    self.ended_well[source] = at
            if went_well or ended:
                self.reached = Reached.PROGRESS
        told = [(at, raw) for at, raw in enumerate(ending, number + 1 - len(ending)) if raw.strip()]
        earlier, last = told[:-MAX_LAST_WORDS], told[-MAX_LAST_WORDS:]
        remarks = ((at, raw) for at, raw in earlier if _says_it_hangs(raw.decode("utf-8", "replace").lower()))
        pieces = ((at, piece) for at, raw in last for piece in unpack_line(raw)[-MAX_LAST_WORDS:] or [raw])
        for at, piece in (*remarks, *pieces):
            bare = strip_prefixes(searchable_bytes(piece).decode("utf-8", "replace").rstrip())[0]
            if _ends_badly(bare.lower()):  # few do: only these are read in full
                line = read_line(source, at, piece, section, foreign=False)
                if _ends_badly(line.text.lower()):
                    self.last_words.append(Hit("last-words", line))

    def _read_what_was_left(self, here: SourceLines) -> None:
        """Reads the lines of a source that were put off, and the last lines of its shapes."""
        for at, raw, who in here.late:
            kind = self._kind(raw)
            if kind.signs and self._wants(here, raw.translate(None, DIGITS), (at, raw, kind.signs, who), kind.most):
                self._read(here, at, raw, kind.signs, who)
        for raw_line in here.last():
            self._read(here, *raw_line)
        here.forget()

    def unread(self, source: str) -> Iterator[str]:
        """Sentences about lines of a source that were not searched."""
        if cut := self._cut[source]:
            yield f"of {cut:,} of its lines, each longer than {self._limits.pending:,} bytes, only the end was read"
        if self._passed_over[source]:
            yield (
                "not all of its lines were searched, since too many are unlike each other; give the part in which "
                "it ended"
            )

    @property
    def _crowded(self) -> bool:
        """Whether there is no room to remember more shapes."""
        return len(self._shapes) >= self._limits.shapes or self._remembered >= self._limits.all_shapes_bytes

    @property
    def hits(self) -> list[Hit]:
        """The hits that were kept, in the order of sources and lines."""
        return [
            hit
            for source in self._sources
            for hit in sorted((hit for few in source.kept.values() for hit in few), key=lambda hit: hit.line.number)
        ]

    def _close(self, here: SourceLines, line: BrokenLine, kind: _Kind, section: Speaker) -> None:
        """Reads a line that may have gone on in the next ones, both joined with them and alone, unless enough lines of
        its shape were read."""
        self.work += OPEN_LINE_WORK
        for raw in line.readings:
            shape = raw.translate(None, DIGITS)
            told = kind if raw is line.begun else self._shapes.get(shape) or self._kind(raw)
            if told.signs and self._wants(here, shape, (line.number, raw, told.signs, section), told.most):
                self._read(here, line.number, raw, told.signs, section)

    def _wants(self, here: SourceLines, shape: bytes, raw: UnreadLine, most: int) -> bool:
        """Whether the line is to be read now. If lines of its shape were read often, a few of each further source are
        enough."""
        self.work += SIGNS_WORK
        limits = self._limits
        if most <= limits.keeps_all and self._often[shape] >= limits.often:
            most = limits.of_an_often_one
        wanted = here.wants(shape, raw, most)
        if wanted and shape not in self._often:
            self._unlike_read += reading_cost(raw)
        if wanted and len(self._often) < limits.shapes and len(shape) < limits.shape_bytes:
            self._often[shape] += 1
        return wanted

    def _kind(self, raw: bytes) -> _Kind:
        """The kind of a line, by searching it for all literals."""
        self.work += NEW_SHAPE_WORK + len(raw) // 2
        if b"\\" in raw:
            raw = b" ".join(unpack_line(raw)) or raw
        found = self._index.find(raw.lower())
        text = raw[:MAX_LINE_BYTES].decode("utf-8", "replace")
        starts = starts_a_run(text)
        heads = self._heading in found or section_speaker(text) is not None or bool(names_in_a_loop(text))
        if not found:
            return _Kind(heads=heads, starts=starts)
        foreign = self._abroad in found
        if foreign and len(raw) <= MAX_LINE_BYTES:
            english = translate_phrases(raw.decode("utf-8", "replace")).encode()
            found = self._index.find(english.lower())
        signs = found[: bisect_left(found, self._progress)]
        most = max((self._keeps[at] for at in self._keeps.keys() & signs), default=self._limits.of_a_shape)
        low = searchable_bytes(raw).lower() if self._progress in found else b""
        goes_on_or_ended = bool(low) and GOES_ON.match(low) is not None
        goes_on = goes_on_or_ended and STEPS.match(low) is not None
        opens = self._opener in found and may_continue(raw)
        if goes_on_or_ended or (self._telling in found and self._asked < self._limits.asked):
            self._note(raw, goes_on=goes_on_or_ended)
            if len(raw) <= MAX_SEARCHED_BYTES:
                self._noted.append(raw)
        told = (*signs, self._abroad) if foreign else signs
        return _Kind(told, most, goes_on, heads=heads, starts=starts, opens=opens)

    def _note(self, raw: bytes, *, goes_on: bool = False) -> None:
        """Updates `reached` by what this line shows."""
        if self.reached is not Reached.PROGRESS:
            whole = searchable_bytes(raw).lower()
            self._asked += len(whole)
            self.reached = max(self.reached, progress_reached(whole, goes_on))
            if self.reached is Reached.NOTHING:
                self.reached = max(
                    (progress_reached(said, False) for said in {*_bare_texts(raw)} - {whole}), default=Reached.NOTHING
                )

    def _read(self, here: SourceLines, number: int, raw: bytes, found: tuple[int, ...], section: Speaker) -> None:
        """Reads a line in full and keeps its hits; `found` are the indexes of the signs that may be on it."""
        inside = raw.rstrip().split(b"\r") if b"\r" in raw.rstrip() else unpack_line(raw)
        if not inside and len(raw) > MAX_LINE_BYTES:
            inside = [
                raw[at : at + MAX_LINE_BYTES]
                for at in range(0, len(raw) - OVERLAP_BYTES, MAX_LINE_BYTES - OVERLAP_BYTES)
            ]
        if inside:
            for segment in inside:
                shape = segment.translate(None, DIGITS)
                kind = self._shapes.get(shape) or self._kind(segment)
                self.work += 1
                if kind.signs and self._wants(here, shape, (number, segment, kind.signs, section), kind.most):
                    self._read(here, number, segment, kind.signs, section)
            return
        self.work += FULL_READ_WORK + BYTE_WORK * len(raw)
        foreign = found[-1] == self._abroad
        line = read_line(here.name, number, raw, section, foreign=foreign)
        for at, groups in self._signs_on(line.text, found[:-1] if foreign else found):
            sign = self._signs[at]
            self._texts += len(line.text)
            if self._texts > self._limits.texts:
                line = replace(line, text=line.text[:MAX_SHOWN_CHARACTERS])
            few = here.kept.get(at)
            if few is None:
                few = here.kept[at] = KeptHits(sign.keep if self._totals[at] < self._limits.hits else 2)
            self._totals[at] += few.add(Hit(sign.name, _quote_around_literal(line, sign), groups))

    def _signs_on(self, text: str, found: tuple[int, ...]) -> Sequence[tuple[int, Mapping[str, str]]]:
        """The indexes of the signs of `found` that the text of a line shows, each with what the groups of its pattern
        take. Ranks print the same lines, so that short ones without numbers are remembered."""
        if len(text) > MAX_REMEMBERED_CHARACTERS or DIGIT.search(text):
            return tuple(self._search_signs(text, found))
        shown = self._shown.get((text, found))
        if shown is None:
            if len(self._shown) == MAX_REMEMBERED_TEXTS:
                self._shown.clear()
            shown = self._shown[text, found] = tuple(self._search_signs(text, found))
        return shown

    def _search_signs(self, text: str, found: Iterable[int]) -> Iterator[tuple[int, Mapping[str, str]]]:
        low = text.lower()
        if HARMLESS_ERROR.search(low) or is_a_question(low):
            return
        patterns = self._patterns
        for at in found:
            if at not in patterns:
                patterns[at] = self._signs[at].compiled()
            pattern = patterns[at]
            match = pattern.search(text) if pattern else None
            if match or not pattern:
                groups = match.groupdict() if match else {}
                # A pattern with alternatives calls one group host, host2, host3.
                yield at, {name.rstrip(DIGITS.decode()): told for name, told in groups.items() if told}


def _begin_of_last_steps(lines: Sequence[tuple[int, bytes]]) -> int:
    """The number of the first of the last MIN_STEADY_STEPS lines of progress, of those of one step the last; 0 if there
    are fewer."""
    steps = 0
    step: list[bytes] = []
    later = b""
    for number, raw in reversed(lines):
        told = STEP_NUMBERS.findall(raw)
        if not told or told != step or raw == later:
            steps += 1
            if steps == MIN_STEADY_STEPS:
                return number
        step, later = told, raw
    return 0


def _ends_badly(text: str) -> bool:
    """Whether nobody would call a run healthy whose log ends with this text, in lower case."""
    if LAST_WORDS.match(text.encode()) and not HARMLESS_ERROR.search(text) and not is_of_a_person(text):
        return True
    return _says_it_hangs(text)


def _says_it_hangs(text: str) -> bool:
    """Whether a line, in lower case, says of the run that it came to a stop."""
    return SAYS_IT_HANGS.search(QUOTED.sub("", text)) is not None


def _bare_text(raw: bytes) -> str:
    """The line's text without prefixes of launchers and loggers."""
    return strip_prefixes(raw.decode("utf-8", "replace"))[0].strip()


def _bare_texts(raw: bytes) -> Iterator[bytes]:
    """The line's text without prefixes of launchers and loggers, in lower case; several if the line packs several."""
    for piece in unpack_line(raw)[:MAX_LAST_WORDS] or [raw]:
        yield strip_prefixes(searchable_bytes(piece).decode("utf-8", "replace"))[0].lower().encode()


def _quote_around_literal(line: Line, sign: Sign) -> Line:
    """The line; if the sign's literal is far from its beginning, it is quoted around the literal."""
    if len(line.text) <= MAX_SHOWN_CHARACTERS:
        return line
    lowered = line.text.lower()
    at = min((place for key in sign.literals if (place := lowered.find(key)) >= 0), default=0)
    return (
        replace(
            line, shown=f"… {line.text[at - QUOTE_LEAD_CHARACTERS : at - QUOTE_LEAD_CHARACTERS + MAX_SHOWN_CHARACTERS]}"
        )
        if at > MAX_QUOTE_OFFSET
        else line
    )


def _split_lines(
    chunks: Iterable[bytes], cut: Callable[[], None], most: int
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """(lines, shapes) for each chunk: its complete lines, and their shapes. An unfinished line is carried over to the
    next chunk; beyond `most` bytes only its end is kept, and `cut` is called."""
    rest = b""
    whole = True
    for chunk in chunks:
        text = rest + chunk
        whole_lines, end, rest = text.rpartition(b"\n")
        lines = whole_lines.split(b"\n") if end else []
        shapes = whole_lines.translate(None, DIGITS).split(b"\n") if end else []
        whole = whole or bool(lines)
        if len(rest) > most:
            # Not a line for reading: keep its end, which is the newest part.
            rest = rest[-most // 4 :]
            if whole:
                cut()
            whole = False
        yield lines, shapes
    if rest:
        yield [rest], [rest.translate(None, DIGITS)]
