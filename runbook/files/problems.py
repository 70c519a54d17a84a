"""Gathers the problems of a file, puts each at the place that it is about, and prints them."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from runbook.files.yaml_document import Document, KeyPath
from runbook.model.errors import FilesWrong, Problem, Span
from runbook.model.safe_text import visible_text

# Problems reported for one document; more than these come from one mistake of the program that wrote it.
MAX_DOCUMENT_PROBLEMS = 1000


class PlacedProblems:
    """Gathers problems instead of raising the first. `kind`, e.g. `inventory`, begins every id."""

    def __init__(self, document: Document, kind: str) -> None:
        self.document = document
        self.problems: list[Problem] = []
        self.wrong: set[KeyPath] = set()
        self._kind = kind

    def about_value(self, keys: KeyPath, id: str, message: str, help: str | None = None) -> None:
        self._add(keys, id, message, self.document.span(*keys), help)

    def about_key(self, keys: KeyPath, id: str, message: str, help: str | None = None) -> None:
        self._add(keys, id, message, self.document.key_span(*keys), help)

    def no_secret(self, value: object, keys: KeyPath) -> None:
        """Reports a variable of templates whose value is `{env: NAME}`: variables are put into commands, which
        everybody on a node can read, so no secret is looked up for them."""
        if isinstance(value, Mapping) and set(value) == {"env"} and isinstance(value["env"], str):
            message = f"a variable takes nothing from the environment: `{keys[-1]}` would be the text `{{env: …}}`"
            help = "a secret stands below `env:`, for every rank; other values come with -e"
            self.about_value(keys, "wrong-type", message, help)

    def take_over(self, wrong: FilesWrong) -> None:
        self.problems.extend(wrong.problems)

    def _add(self, keys: KeyPath, id: str, message: str, span: Span | None, help: str | None) -> None:
        """Adds a problem once; after MAX_DOCUMENT_PROBLEMS of them, one that says that there are more."""
        self.wrong.add(keys)
        if len(self.problems) > MAX_DOCUMENT_PROBLEMS:
            return
        if len(self.problems) == MAX_DOCUMENT_PROBLEMS:
            id, message = "more-problems", "more is wrong as well; mend these first"
            span, help = self.document.span(), None
        problem = Problem(f"{self._kind}.{id}", message, span, help)
        if problem not in self.problems[-20:]:  # a value that many nodes share may be judged once for each of them
            self.problems.append(problem)


def line_break_help(document: Document, keys: KeyPath) -> str:
    """The help for a value that holds a line break or a tab; in `"C:\\train\\new"` the escapes stand for both."""
    span = document.span(*keys)
    begins = "" if span is None else document.lines[span.line - 1][span.column - 1 :]
    if begins.startswith('"') and "\\" in begins:
        return "in double quotes a backslash begins an escape: `\\n`, `\\t`; use single quotes for paths"
    return "write it on one line"


class NumberedLines:
    """The lines of a file, numbered; makes the error that shows one of them."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.lines = text.splitlines()

    def span(self, number: int, part: str = "") -> Span:
        """Where `part` stands on a line; the whole line if it is not to be found."""
        line = self.lines[number - 1] if 0 < number <= len(self.lines) else ""
        column = line.find(part) if part else -1
        if column < 0:
            part, column = line.strip(), len(line) - len(line.lstrip())
        return Span(self.file, number, column + 1, max(1, len(part)))

    def wrong(self, number: int, part: str, id: str, message: str, help: str | None = None) -> FilesWrong:
        return FilesWrong.of(f"import.{id}", message, span=self.span(number, part), help=help)


def in_file_order(problems: list[Problem]) -> tuple[Problem, ...]:
    """Each problem once, from the top of the file to its end."""

    def place(problem: Problem) -> tuple[int, int]:
        return (problem.span.line, problem.span.column) if problem.span else (0, 0)

    return tuple(sorted(dict.fromkeys(problems), key=place))


# A problem as a good compiler would print it: id, message, place, the line with a caret, help. Pure.

_TAB_COLUMNS = 4  # columns
_MAX_SOURCE_COLUMNS = 160  # columns of a source line that are shown around the caret


def render(problem: Problem, source_lines: Sequence[str], severity: str = "error") -> str:
    """The problem as text without a final line break; `source_lines` are those of the file its span names."""
    out = [f"{severity}[{problem.id}]: {_visible_line(problem.message)}"]
    gutter = ""
    span = problem.span
    if span is not None:
        gutter = " " * len(str(span.line))
        out.append(f"{gutter}--> {_visible_line(str(span))}")
        if 1 <= span.line <= len(source_lines):
            shown, pad, width = _line_with_caret(source_lines[span.line - 1], span)
            out += [f"{gutter} |", f"{span.line} | {shown}", f"{gutter} | {' ' * pad}{'^' * width}"]
    if problem.help:
        first, *more = problem.help.splitlines()
        out.append(f"{gutter} = help: {_visible_line(first)}")
        out += [f"{gutter}         {_visible_line(line)}" for line in more]
    return "\n".join(out)


def render_all(problems: Iterable[Problem], lines_of: Callable[[str], Sequence[str]]) -> str:
    """Every problem, an empty line between two. `lines_of` gives a file's lines, as `document.source_lines` does."""
    known: dict[str, Sequence[str]] = {"": ()}
    texts = []
    for problem in problems:
        file = problem.span.file if problem.span else ""
        if file not in known:
            known[file] = lines_of(file)
        texts.append(render(problem, known[file]))
    return "\n\n".join(texts)


def _line_with_caret(line: str, span: Span) -> tuple[str, int, int]:
    """The line as a terminal shows it, the column in it where the caret begins (from 0), and the caret's width."""
    begin = max(0, span.column - 1 - _MAX_SOURCE_COLUMNS) if len(line) > 4 * _MAX_SOURCE_COLUMNS else 0
    cells = [_terminal_cell(char) for char in line[begin : begin + 4 * _MAX_SOURCE_COLUMNS]]  # the rest is not shown
    start = min(span.column - 1 - begin, len(cells))
    end = min(start + span.length, len(cells))
    if sum(width for _, width in cells) > _MAX_SOURCE_COLUMNS:
        return _window_around_caret(cells, start, end)
    pad = sum(width for _, width in cells[:start])
    return "".join(text for text, _ in cells).rstrip(), pad, max(1, sum(width for _, width in cells[start:end]))


def _window_around_caret(cells: list[tuple[str, int]], start: int, end: int) -> tuple[str, int, int]:
    """The part of a very long line around the caret, with `…` where it goes on."""
    first = max(0, start - _MAX_SOURCE_COLUMNS // 4)
    last = min(len(cells), first + _MAX_SOURCE_COLUMNS // 2)
    text = "".join(text for text, _ in cells[first:last])
    before = "…" if first else ""
    after = "…" if last < len(cells) else ""
    pad = len(before) + sum(width for _, width in cells[first:start])
    return f"{before}{text.rstrip()}{after}", pad, max(1, sum(width for _, width in cells[start : min(end, last)]))


@lru_cache(maxsize=4096)
def _terminal_cell(char: str) -> tuple[str, int]:
    """A character as it is shown, and its width on a terminal. Nothing in a file may steer the terminal."""
    if char == "\t":
        return " " * _TAB_COLUMNS, _TAB_COLUMNS
    shown = visible_text(char)
    if shown != char:
        return shown, len(shown)
    if unicodedata.category(char) in ("Mn", "Me"):
        return char, 0
    return char, 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _visible_line(text: str) -> str:
    return visible_text(text.expandtabs(_TAB_COLUMNS))
