"""Reads YAML text into plain values, and records the place of each value.

YAML 1.1 guesses types: `NO` is false, `22:22` is 1342, `0644` is 420. Here a scalar is a boolean, a number or null only
when it can mean nothing else; all others are text. Nothing in this file raises for bad input: mistakes are listed in
`Document.problems`.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import yaml

from runbook.files.scalars import TypedFloat, plain_scalar
from runbook.files.suggestions import did_you_mean, missing_colon_help, with_ascii_signs
from runbook.model.errors import Problem, Span
from runbook.model.safe_files import open_regular_file
from runbook.model.secrets import name_hints_at_secret

KeyPath = tuple[str | int, ...]  # the way from the top of a document to a value: mapping keys and list indices
LineColumn = tuple[int, int]  # line and column, from 1

MAX_BYTES = 32 * 1024 * 1024
MAX_DEPTH = 50  # levels of nesting; ours need seven
MAX_VALUES = 250_000  # keys and values, aliases written out: 20,000 nodes of five settings
MAX_ITEMS = 10_000  # items of one list
MAX_PROBLEMS = 200  # problems reported for one file: more than these come from one mistake of the program that wrote it
_TOO_DEEP = f"values are nested more than {MAX_DEPTH} levels deep"

_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # what YAML counts as the end of a line
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REVERSED_KEY = re.compile(r":([\w.-]*[A-Za-z_])")  # a key and its colon, read from right to left
_ACCEPTED_TAGS = ("!", "tag:yaml.org,2002:str", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_POSITION_BITS = 26  # of a packed place: lines and columns up to 64 Mi, twice MAX_BYTES
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Spans(Mapping[KeyPath, Span]):
    """The place of each value, by its keys. A `Span` is made when asked for: an inventory of 10,000 nodes has
    200,000."""

    def __init__(self, file: str, lines: list[str], marks: dict[KeyPath, int]) -> None:
        self._file = file
        self._lines = lines
        self._marks = marks

    def __getitem__(self, keys: KeyPath) -> Span:
        return _span_of_place(self._file, self._lines, self._marks[keys])

    def __iter__(self) -> Iterator[KeyPath]:
        return iter(self._marks)

    def __len__(self) -> int:
        return len(self._marks)

    def extent(self, keys: KeyPath) -> tuple[LineColumn, LineColumn]:
        """The place where the value at `keys` begins, and the first place after the value."""
        number, column, last, end_column = _unpack_place(self._marks[keys])
        return (number + 1, column + 1), (last + 1, end_column + 1)


@lru_cache(maxsize=1)
def line_starts(text: str) -> list[int]:
    """The offset in `text` at which each of its lines begins."""
    starts = [0]
    for line in split_lines(text)[:-1]:
        end = starts[-1] + len(line)
        starts.append(end + (2 if text.startswith("\r\n", end) else 1))
    return starts


class Anchor(NamedTuple):
    """An anchor `&name`; `used` says whether any alias or merge refers to it."""

    name: str
    span: Span
    used: bool


@dataclass(frozen=True)
class Document:
    """One YAML file. `data` is None when the file could not be read; `problems` then says why.

    `spans` and `key_spans` hold the places of values and of their keys. `texts` holds each scalar that is no text, such
    as `1.50` or `true`, as it was typed.
    """

    path: str
    text: str
    data: object
    spans: Mapping[KeyPath, Span]
    key_spans: Mapping[KeyPath, Span]
    texts: Mapping[KeyPath, str]
    problems: tuple[Problem, ...] = ()
    anchors: tuple[Anchor, ...] = ()

    @cached_property
    def lines(self) -> list[str]:
        return split_lines(self.text)

    @property
    def mapping(self) -> dict[Any, Any]:
        """`data` if it is a mapping, otherwise an empty mapping."""
        return self.data if isinstance(self.data, dict) else {}

    def span(self, *keys: str | int) -> Span | None:
        """The place of the value at `keys`, or of the innermost value around it that has a place."""
        for length in range(len(keys), -1, -1):
            if keys[:length] in self.spans:
                return self.spans[keys[:length]]
        return None

    def key_span(self, *keys: str | int) -> Span | None:
        """The place of the key at `keys`; for an item of a list, the place of the item."""
        return self.key_spans[keys] if keys in self.key_spans else self.span(*keys)

    def as_typed(self, value: object, *keys: str | int) -> Any:
        """`value`, which stands at `keys`, with each float as a `TypedFloat`, which templates print as it was typed."""
        if isinstance(value, dict):
            return {key: self.as_typed(inner, *keys, key) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.as_typed(item, *keys, index) for index, item in enumerate(value)]
        return TypedFloat(self.texts[keys]) if isinstance(value, float) and keys in self.texts else value

    def extent(self, *keys: str | int) -> tuple[LineColumn, LineColumn] | None:
        """Where the value at `keys` begins, and the first place after it; None where there is no value."""
        return self.spans.extent(keys) if isinstance(self.spans, Spans) and keys in self.spans else None

    def key_extent(self, *keys: str | int) -> tuple[LineColumn, LineColumn] | None:
        return self.key_spans.extent(keys) if isinstance(self.key_spans, Spans) and keys in self.key_spans else None


def _unpack_place(packed: int) -> tuple[int, int, int, int]:
    """The place that `_pack_place` made: first line and column, last line, and the column after its end; all from 0."""
    more, end_column = divmod(packed, 1 << _POSITION_BITS)
    more, extra_lines = divmod(more, 1 << _POSITION_BITS)
    number, column = divmod(more, 1 << _POSITION_BITS)
    return number, column, number + extra_lines, end_column


def _pack_place(node: Any) -> int:
    """The start and the end of a node or an event in one number: PyYAML's two marks would take ten times the memory."""
    start, end = node.start_mark, node.end_mark
    packed: int = (
        (start.line << _POSITION_BITS | start.column) << _POSITION_BITS | (end.line - start.line)
    ) << _POSITION_BITS | end.column
    return packed


def _span_of_place(file: str, lines: list[str], packed: int) -> Span:
    number, column, last_line, end_column = _unpack_place(packed)
    line = lines[number] if number < len(lines) else ""
    last = len(line.rstrip()) if last_line > number else end_column
    return Span(file, number + 1, column + 1, max(1, last - column))


def split_lines(text: str) -> list[str]:
    return _LINE_BREAK.split(text)


def _open_file(file: str) -> BinaryIO:
    """Opens a file for reading. A pipe that a shell makes, `<(…)`, has an end; a pipe in a folder may have none, and
    `open_regular_file` refuses it."""
    return Path(file).open("rb") if file.startswith(("/dev/", "/proc/")) else open_regular_file(Path(file))


def document_of(source: str | Path | Document) -> Document:
    """The document of a file, or the document itself."""
    return source if isinstance(source, Document) else read_document(source)


def read_document(path: str | Path) -> Document:
    """Reads a file. A file that is missing, unreadable, not UTF-8 or too large becomes a Document with that problem."""
    file = str(path)
    if "\0" in file:
        return _unread_document(file, "file.unreadable", "a file name cannot contain a NUL character")
    try:
        with _open_file(file) as stream:
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return _unread_document(file, "file.missing", f"there is no file {file}")
    except IsADirectoryError:
        return _unread_document(file, "file.directory", f"{file} is a directory, not a file")
    except OSError as error:
        return _unread_document(file, "file.unreadable", f"{file} cannot be read: {error.strerror or error}")
    if len(raw) > MAX_BYTES:
        return _unread_document(file, "file.too-large", f"{file} is larger than {MAX_BYTES // 1024 // 1024} MiB")
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        help = "save it as UTF-8: in Notepad, Save as, Encoding: UTF-8"
        return _unread_document(file, "file.not-utf8", f"{file} is UTF-16", help=help)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = split_lines(raw[: error.start].decode("utf-8-sig", errors="replace"))
        span = Span(file, len(before), len(before[-1]) + 1)
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        problem = Problem("file.not-utf8", message, span, "save the file as UTF-8")
        return _document_without_data(file, raw.decode("utf-8-sig", errors="replace"), problem)
    return parse_document(text, file)


def parse_document(text: str, file: str) -> Document:
    """Parses one YAML document; `file` is only its name for messages."""
    lines = split_lines(text)
    odd = _UNPRINTABLE.search(text)
    if odd:
        before = split_lines(text[: odd.start()])
        span = Span(file, len(before), len(before[-1]) + 1)
        message = f"control character U+{ord(odd.group()):04X} is not allowed in YAML"
        return _document_without_data(
            file, text, Problem("yaml.control-character", message, span, "delete it and retype")
        )
    reader = _TreeReader(file, lines)
    try:
        with garbage_collector_paused():
            root = reader.tree(text)
            data = None if root is None else reader.value(root, ())
    except _Stop as stop:
        return _document_without_data(file, text, *reader.problems, stop.problem)
    except yaml.YAMLError as error:
        return _document_without_data(file, text, *reader.problems, *_syntax_problems(error, file, lines))
    if root is None or (data is None and not reader.problems):
        problem = Problem("yaml.empty", "the file is empty", Span(file, 1, 1), "it should hold a mapping of keys")
        return _document_without_data(file, text, problem)
    return Document(
        file,
        text,
        data,
        spans=Spans(file, lines, reader.marks),
        key_spans=Spans(file, lines, reader.key_marks),
        texts=reader.texts,
        problems=tuple(reader.problems),
        anchors=reader.anchors(),
    )


def iterate_scalars(data: object, keys: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    """Yields every value inside `data` that is neither a mapping nor a list, with its keys, in the order of the file.
    `keys` is where `data` stands."""
    todo: list[tuple[KeyPath, object]] = [(keys, data)]
    while todo:
        keys, value = todo.pop()
        if isinstance(value, dict):
            todo.extend([((*keys, key), inner) for key, inner in value.items()][::-1])
        elif isinstance(value, list):
            todo.extend([((*keys, index), inner) for index, inner in enumerate(value)][::-1])
        else:
            yield keys, value


VAULT_HELP = "`ansible-vault view` shows what is in it; secrets come from the environment here, `{env: NAME}`"


def mapping_problem(document: Document, what: str) -> Problem | None:
    """The problem of a document that is not a mapping; None if it is a mapping. `what` is e.g. `an inventory`."""
    if isinstance(document.data, dict):
        return None
    kind = "a list" if isinstance(document.data, list) else "a single value"
    message = f"{what} is a mapping of keys to values, and this file holds {kind}"
    if document.text.startswith("$ANSIBLE_VAULT"):
        message = f"{what} is plain text, and Ansible Vault has encrypted this file"
        return Problem("yaml.not-a-mapping", message, document.span(), VAULT_HELP)
    return Problem("yaml.not-a-mapping", message, document.span(), "begin with `name: …` at the left margin")


def source_lines(file: str) -> list[str]:
    """The lines of a file in which a problem is shown; empty if the file cannot be read any more."""
    return read_document(file).lines if file else []


def _unread_document(file: str, id: str, message: str, help: str | None = None) -> Document:
    return _document_without_data(file, "", Problem(id, message, None, help))


def _document_without_data(file: str, text: str, *problems: Problem) -> Document:
    return Document(file, text, None, spans={}, key_spans={}, texts={}, problems=problems)


class _Stop(Exception):
    """Reading ends here: the problem leaves no data."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem


class _Mapping(NamedTuple):
    place: int
    pairs: list[tuple[Any, Any]]


class _Sequence(NamedTuple):
    place: int
    items: list[Any]


class _Scalar(NamedTuple):
    place: int
    text: str
    plain: bool


class _Marked(NamedTuple):
    start_mark: Any
    end_mark: Any


class _TreeReader:
    """Makes a tree from parser events, and values from the tree: two passes, so that aliases can be written out.

    It reads events instead of calling `yaml.compose`, because the composer recurses without a limit, in C as well.
    """

    def __init__(self, file: str, lines: list[str]) -> None:
        self.file = file
        self.lines = lines
        self.problems: list[Problem] = []
        self._reported: set[Problem] = set()
        self.marks: dict[KeyPath, int] = {}
        self.key_marks: dict[KeyPath, int] = {}
        self.texts: dict[KeyPath, str] = {}
        self._anchors: dict[str, Any] = {}
        self._anchored: list[tuple[str, Any]] = []  # the name and the event of every `&name`
        self._numbers: dict[str, int] = {}  # by name, the index in `_anchored` of the last anchor with that name
        self._aliased: set[int] = set()  # indices in `_anchored`
        self._nodes = 0
        self._values = 0

    def anchors(self) -> tuple[Anchor, ...]:
        found = []
        for index, (name, event) in enumerate(self._anchored):
            span = _span_of_place(self.file, self.lines, _pack_place(event))
            found.append(Anchor(name, replace(span, length=len(name) + 1), index in self._aliased))
        return tuple(found)

    def tree(self, text: str) -> Any:
        """The tree of the only document in a text, None if there is none. Raises _Stop, and YAMLError."""
        loader = _LOADER(text)
        try:
            root = None
            documents = 0
            while True:
                event = loader.get_event()
                if isinstance(event, yaml.StreamEndEvent):
                    return root
                if isinstance(event, yaml.DocumentStartEvent):
                    documents += 1
                    if documents > 1:
                        help = "keep one document a file; `---` begins a new one"
                        raise self._stop("yaml.several-documents", "a second document begins here", event, help)
                elif isinstance(event, yaml.NodeEvent):
                    root = self._node(loader, event, 0)
        finally:
            loader.dispose()

    def _node(self, loader: Any, event: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise self._stop("yaml.too-deep", _TOO_DEEP, event)
        self._nodes += 1
        if self._nodes > MAX_VALUES:
            raise self._stop("yaml.too-many-values", f"this file holds more than {MAX_VALUES:,} keys and values", event)
        if type(event) is yaml.ScalarEvent and event.tag is None and event.anchor is None:  # nearly all
            return _Scalar(_pack_place(event), event.value, not event.style)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        if event.tag is not None and event.tag not in _ACCEPTED_TAGS:
            message = f"the tag `{event.tag.replace('tag:yaml.org,2002:', '!!')}` is not supported"
            help = "remove the tag: values have the type they are written as"
            if event.tag == "!vault":
                help = "nothing is decrypted here: a secret comes from the environment, `{env: NAME}`"
            self._tell(self._stop("yaml.tag", message, event, help).problem)
        if event.anchor is not None:
            self._numbers[event.anchor] = len(self._anchored)
            self._anchored.append((event.anchor, event))
        node: Any
        if isinstance(event, yaml.ScalarEvent):
            node = _Scalar(_pack_place(event), event.value, event.tag is None and not event.style)
        elif isinstance(event, yaml.SequenceStartEvent):
            self._open(event)
            items: list[Any] = []
            while not isinstance(inner := loader.get_event(), yaml.SequenceEndEvent):
                if len(items) == MAX_ITEMS:
                    raise self._stop("yaml.too-many-values", f"this list has more than {MAX_ITEMS:,} items", event)
                items.append(self._node(loader, inner, depth + 1))
            node = _Sequence(_pack_place(_Marked(event.start_mark, inner.end_mark)), items)
        else:
            self._open(event)
            pairs = []
            while not isinstance(inner := loader.get_event(), yaml.MappingEndEvent):
                key = self._node(loader, inner, depth + 1)
                pairs.append((key, self._node(loader, loader.get_event(), depth + 1)))
            node = _Mapping(_pack_place(_Marked(event.start_mark, inner.end_mark)), pairs)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _open(self, event: Any) -> None:
        if event.anchor is not None:
            self._anchors[event.anchor] = None  # not finished: an alias to it from inside would never end

    def _alias(self, event: Any) -> Any:
        name = event.anchor
        if name not in self._anchors:
            help = did_you_mean(name, self._anchors)
            raise self._stop("yaml.unknown-alias", f"no anchor `&{name}` stands before this alias", event, help)
        if self._anchors[name] is None:
            raise self._stop("yaml.endless-alias", f"`*{name}` is inside the value that it repeats", event)
        self._aliased.add(self._numbers[name])
        return self._anchors[name]

    def value(self, node: Any, keys: KeyPath) -> object:
        """The value of a node of the tree, with aliases written out; records its place. Raises _Stop."""
        self._values += 1
        if self._values > MAX_VALUES:
            message = f"aliases make this file larger than {MAX_VALUES:,} values"
            raise _Stop(Problem("yaml.too-many-values", message, self._span(node)))
        if len(keys) > MAX_DEPTH:
            raise _Stop(Problem("yaml.too-deep", _TOO_DEEP, self._span(node)))
        self.marks[keys] = node.place
        if isinstance(node, _Scalar):
            if not node.plain:
                return node.text
            plain = plain_scalar(node.text)
            if not isinstance(plain, str):
                self.texts[keys] = node.text
            return plain
        if isinstance(node, _Sequence):
            return [self.value(item, (*keys, index)) for index, item in enumerate(node.items)]
        return self._mapping(node, keys)

    def _mapping(self, node: _Mapping, keys: KeyPath) -> dict[str, object]:
        values: dict[str, object] = {}
        for name, (key, inner) in self._pairs(node).items():
            here = (*keys, name)
            self.key_marks[here] = key.place
            values[name] = self.value(inner, here)
            if isinstance(inner, _Scalar) and not inner.text and inner.plain:
                self.marks[here] = self.key_marks[here]  # nothing stands after the colon: the key is the place
        return values

    def _pairs(self, node: _Mapping, depth: int = 0) -> dict[str, tuple[_Scalar, Any]]:
        """The pairs of a mapping with `<<` written out; own keys win over merged ones, earlier merged over later."""
        if depth > MAX_DEPTH:
            raise _Stop(Problem("yaml.too-deep", "merge keys are nested too deep", self._span(node)))
        own: dict[str, tuple[_Scalar, Any]] = {}
        merged: dict[str, tuple[_Scalar, Any]] = {}
        for key, inner in self._whole(node.pairs):
            if not isinstance(key, _Scalar):
                self._complex_key(key)
            elif key.text == "<<" and key.plain:
                for source in inner.items if isinstance(inner, _Sequence) else [inner]:
                    if isinstance(source, _Mapping):
                        merged = {**self._pairs(source, depth + 1), **merged}
                    else:
                        self._add("yaml.merge", "`<<` merges mappings, and this is not one", source)
            elif key.text in own:
                first = self._span(own[key.text][0]).line
                message = f"the key `{key.text}` was already given on line {first}"
                self._add("yaml.duplicate-key", message, key, "keep one of the two")
            else:
                own[key.text] = (key, inner)
        return {**merged, **own} if merged else own

    def _whole(self, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """The pairs without those that a comma cut off from the value before, which it reports: YAML reads `{A: 0,1}`
        as `A: 0` and a key `1` without a value."""
        cut = {
            number
            for number, (key, inner) in enumerate(pairs)
            if type(inner) is _Scalar and inner.plain and not inner.text and self._without_colon(key)
        }
        if not cut:
            return pairs
        kept: list[tuple[Any, Any]] = []
        pieces: dict[int, list[_Scalar]] = {}  # by the index in `kept` of the pair that they belong to
        for number, (key, inner) in enumerate(pairs):
            before = kept[-1][1] if kept else None
            if number in cut and isinstance(before, _Scalar) and before.text:
                pieces.setdefault(len(kept) - 1, []).append(key)
            else:
                kept.append((key, inner))
        for number, keys in pieces.items():
            self._cut_off(*kept[number], keys)
        return kept

    def _without_colon(self, key: Any) -> bool:
        """Whether a key of a mapping in braces is followed by a comma or by the closing brace instead of a colon."""
        _, _, line, column = _unpack_place(key.place)
        behind = "".join(self.lines[line : line + 1])[column:].lstrip()
        return isinstance(key, _Scalar) and behind[:1] in (",", "}")

    def _cut_off(self, key: Any, value: _Scalar, pieces: list[_Scalar]) -> None:
        """Reports the `pieces` that a comma in braces cut off from the value of a key."""
        names = [f"`{piece.text}`" for piece in pieces]
        message = f"in braces a comma ends the value: {', '.join(names)} {'is' if len(names) == 1 else 'are'} not in it"
        name = key.text if isinstance(key, _Scalar) else "…"
        texts = [one.text for one in (value, *pieces)]
        if name_hints_at_secret(name) or any(sign in text for text in texts for sign in '"[]{},'):
            texts = ["…"]
        help = f'quote it as a whole: `{name}: "{",".join(texts)}"`'
        if not name.isupper():  # an environment variable of the ranks cannot be a list
            help += f", or write a list: `[{', '.join(texts)}]`"
        span, first, last = self._span(value), self._span(pieces[0]), self._span(pieces[-1])
        if self.lines[first.line - 1][: first.column - 1].endswith(" "):
            help += f"; a key of its own needs a colon: `{pieces[0].text}: …`"
        if last.line == span.line:
            span = replace(span, length=last.column + last.length - span.column)
        self._tell(Problem("yaml.comma", message, span, help))

    def _complex_key(self, key: Any) -> None:
        span = self._span(key)
        if self.lines[span.line - 1][span.column - 2 : span.column] == "{{":
            message = "YAML reads an unquoted `{{` as a mapping"
            self._tell(Problem("yaml.unquoted-template", message, span, 'quote it: "{{ … }}"'))
        else:
            self._tell(Problem("yaml.complex-key", "a key must be a single word or text", span))

    def _span(self, node: Any) -> Span:
        return _span_of_place(self.file, self.lines, node.place)

    def _add(self, id: str, message: str, node: Any, help: str | None = None) -> None:
        self._tell(Problem(id, message, self._span(node), help))

    def _tell(self, problem: Problem) -> None:
        if problem in self._reported:  # an aliased mapping is walked once for each use
            return
        if len(self._reported) >= MAX_PROBLEMS:
            message = "more is wrong below; mend what is above first"
            raise _Stop(Problem("yaml.more-problems", message, problem.span))
        self._reported.add(problem)
        self.problems.append(problem)

    def _stop(self, id: str, message: str, event: Any, help: str | None = None) -> _Stop:
        return _Stop(Problem(id, message, _span_of_place(self.file, self.lines, _pack_place(event)), help))


_SYNTAX_HELP = (
    ("mapping values are not allowed", "a value that contains `: ` needs quotes; otherwise check the indentation"),
    ("found unexpected ':'", "inside braces and brackets a colon is followed by a space"),
    ("could not find expected ':'", "a key is followed by a colon and a space: `key: value`"),
    (
        "did not find expected key|expected <block end>",
        "check the indentation and the quotes of this line and the one before",
    ),
    ("did not find expected '-' indicator", "check the indentation: items of one list begin in one column"),
    ("expected ',' or", "a list or mapping in brackets was not closed, or a comma is missing"),
    ("unexpected end of stream", "a quote was opened and never closed"),
    ("cannot start any token", "a value that begins with @, `, % or another special character needs quotes"),
    ("expected alphabetic or numeric", "a value that begins with * or & needs quotes"),
    (
        "unknown escape character|hexdecimal number|expected escape sequence",
        "in double quotes a backslash begins an escape; use single quotes for paths",
    ),
)
"""Patterns of the parser's error messages, each with the help for that mistake."""


_ENTRY = re.compile(r"\s*[\w.-]+:[ \t]+[^\s#]")
"""A key and its value on one line."""
_BRACKET = re.compile(r"[\[{][^\]}\s]{0,60}[\]}][^\s,}\]]{0,60}")
"""A bracket, its content and the text that follows without a blank: the rest of a value such as `10.0.1.[1-4]`."""

_MAX_SYNTAX_MISTAKES = 10  # syntax mistakes reported for one file, the first included
_MAX_REPARSED_CHARACTERS = 1_000_000  # characters: of a longer file only the first mistake is reported


def _syntax_problems(error: yaml.YAMLError, file: str, lines: list[str]) -> Iterator[Problem]:
    """Yields the mistake that ended the reading, and those behind it: each mistake's lines are blanked, and the rest is
    parsed again to find the next mistake.

    A line is blanked together with the deeper lines below it and its closing bracket, so that the rest stays as sound
    as it was. A mistake on an indented line directly behind blanked lines may come of the blanking, and is not
    reported.
    """
    left, behind = list(lines), -1
    for _ in range(_MAX_SYNTAX_MISTAKES):
        problem = _syntax_problem(error, file, left)
        if problem.span is None or problem.span.line - 1 < behind:
            return
        if problem.span.line - 1 > behind or _indent_width(left[problem.span.line - 1]) == 0:
            yield problem
        first, last = _lines_of_mistake(error, problem.span.line - 1, left)
        if first < behind or sum(map(len, lines)) > _MAX_REPARSED_CHARACTERS:
            return
        left[first : last + 1] = [""] * (last + 1 - first)
        behind = last + 1
        try:
            for _event in yaml.parse("\n".join(left), _LOADER):
                pass
            return
        except yaml.YAMLError as next_one:
            error = next_one


def _lines_of_mistake(error: yaml.YAMLError, told: int, lines: list[str]) -> tuple[int, int]:
    """The first and the last line of the value in which the reading ended; lines count from 0."""
    marks = [getattr(error, name, None) for name in ("context_mark", "problem_mark")]
    numbers = [told, *(mark.line for mark in marks if mark is not None)]
    context = str(getattr(error, "context", None))
    if "end of stream" in str(error) or "block" in context:  # one mark is useless: the file's end or beginning
        numbers = [told]
    first, last = min(numbers), min(max(numbers), len(lines) - 1)
    depth = _indent_width(lines[first])
    while last + 1 < len(lines) and (
        not lines[last + 1].strip()
        or _indent_width(lines[last + 1]) > depth
        or (_indent_width(lines[last + 1]) == depth and lines[last + 1].lstrip()[0] in "]}")
    ):
        last += 1
    return first, last


def _indent_width(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def _syntax_problem(error: yaml.YAMLError, file: str, lines: list[str]) -> Problem:
    """The problem of an error of the parser, at the place where the mistake most likely is, with help."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:  # PyYAML's reader failed before any token: no place is known
        return Problem("yaml.syntax", f"this is not YAML: {error}", Span(file, 1, 1))
    said = str(getattr(error, "problem", None) or error)
    if "maximum nesting" in said:  # libyaml 0.2.6 looks ahead, and gives up before a value of ours is too deep
        return Problem("yaml.too-deep", _TOO_DEEP, Span(file, mark.line + 1, mark.column + 1))
    context = getattr(error, "context_mark", None)
    if "end of stream" in said and context is not None:
        mark = context  # the place where the quote was opened; the end of the file would not help
    line = min(mark.line, len(lines) - 1)
    indent = len(lines[line]) - len(lines[line].lstrip(" \t"))
    tab = lines[line].find("\t", 0, indent)
    if tab < 0 and lines[line][mark.column : mark.column + 1] == "\t":  # behind a `-`
        tab = mark.column
    if tab >= 0:
        span = Span(file, line + 1, tab + 1)
        return Problem("yaml.tab", "a tab indents this line", span, "YAML is indented with spaces only")
    if (
        wide := _find_fullwidth_sign(lines, context.line if context is not None else line, line, mark.column)
    ) is not None:
        number, column, sign = wide
        write = f"`{sign}` means nothing to YAML: write `{with_ascii_signs(sign)}`"
        return Problem("yaml.syntax", f"this is not YAML: {said}", Span(file, number + 1, column + 1), write)
    help: str | None = next((help for words, help in _SYNTAX_HELP if re.search(words, said)), None)
    if "find expected ':'" in said and context is not None:
        line, mark = context.line, context  # where the key without a colon begins, not where the search for one ended
        help = missing_colon_help(lines[line]) or help
    elif "mapping values are not allowed" in said:
        above = next((n for n in range(line - 1, -1, -1) if lines[n].strip() and lines[n].lstrip()[0] != "#"), line)
        cure = missing_colon_help(lines[above]) if above != line else None
        if cure is not None:
            column = len(lines[above]) - len(lines[above].lstrip())
            place = Span(file, above + 1, column + 1, max(1, len(lines[above].strip())))
            return Problem("yaml.syntax", f"this is not YAML: {said}", place, cure)
        if (
            _indent_width(lines[line]) > _indent_width(lines[above])
            and _ENTRY.match(lines[line])
            and _ENTRY.match(lines[above])
        ):
            help = f"it is indented deeper than line {above + 1}, whose key has its value: begin both in one column"
    elif "unexpected ':'" in said:
        joined = _REVERSED_KEY.match(lines[line][mark.column :: -1])
        help = f"a space is missing after the colon: `{joined[1][::-1]}: …`" if joined else help
    if "expected ',' or" in said and lines[line][: mark.column].endswith("$"):
        help = "nothing fills in `${…}` here: a value from your environment is `{env: NAME}`"
    elif "expected ',' or" in said and lines[line][: mark.column].rstrip().endswith("}}"):
        help = 'a value with a template needs quotes, all of it: "{{ … }}"'
    elif "expected ',' or" in said and lines[line][mark.column :][:1] == ":" and context and context.line == line:
        help = "a value that contains `: ` needs quotes"
    elif "expected ',' or" in said and lines[line][mark.column : mark.column + 1] in ("[", "{"):
        begun = re.search(r"[^\s,:{\[]*$", lines[line][: mark.column])
        goes_on = _BRACKET.match(lines[line], mark.column)
        value = f"{begun[0]}{goes_on[0]}" if begun and goes_on else "10.0.1.[1-4]"
        help = f'a value that goes on with a bracket needs quotes: "{value}"'
    elif "expected ',' or" in said and context is not None and context.line < line:
        help = f"the bracket that was opened on line {context.line + 1} is not closed, or a comma is missing"
    length = 1 if mark.column < len(lines[line]) else 0
    column = mark.column + 1 if length else max(1, len(lines[line]))
    return Problem("yaml.syntax", f"this is not YAML: {said}", Span(file, line + 1, column), help)


_FULLWIDTH_SIGN = re.compile("[\uff0c\uff1a\u3010\u3011\uff3b\uff3d\uff5b\uff5d\u201c\u201d\u2018\u2019\u3001]")


def _find_fullwidth_sign(lines: list[str], first: int, last: int, column: int) -> tuple[int, int, str] | None:
    """Line and column (from 0) and the sign: the first Chinese or typographic comma, colon, quote or bracket outside of
    comments and quotes, up to the place where the parser gave up. None if there is none."""
    for number in range(first, last + 1):
        text = re.sub("(\"[^\"]*\"|'[^']*'|(?:^| )#.*)", lambda quoted: " " * len(quoted[0]), lines[number])
        found = _FULLWIDTH_SIGN.search(text, 0, column + 1 if number == last else len(text))
        if found is not None and missing_colon_help(lines[number]) is None:
            return number, found.start(), found[0]
    return None


@contextmanager
def garbage_collector_paused() -> Iterator[None]:
    """Turns off the garbage collector for a block. Reading makes a million small objects and no cycles; the collector
    would walk all of them, again and again, and take three quarters of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
