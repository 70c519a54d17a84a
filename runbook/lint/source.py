"""Messages and source lines as they are shown outside of `lint`: without the secrets that `lint` would find in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from runbook.collect.scrub import looks
from runbook.lint.rules.secrets import known_formats, named_secrets, secrets_in_commands
from runbook.load.document import Document, parse_document, source_lines
from runbook.model.errors import Problem, Span
from runbook.model.redact import Redactor, joined
from runbook.model.secret import Secret


def secret_spans(document: Document) -> list[Span]:
    """Where a file holds secrets in plain text."""
    rules = (known_formats, named_secrets, secrets_in_commands) if document.data is not None else (known_formats,)
    return [problem.span for rule in rules for problem in rule(document) if problem.span]


def secrets_in(document: Document) -> list[Secret]:
    """The same as texts."""
    found = []
    for span in secret_spans(document):
        text = document.lines[span.line - 1][span.column - 1 : span.column - 1 + span.length].strip("\"'")
        found.append(Secret(text, str(span)))
    return found


class Shown:
    """What may be told of problems in files. `lines` gives a file's lines, with stars over as many characters."""

    def __init__(self, problems: Iterable[Problem], lines_of: Callable[[str], Sequence[str]] = source_lines) -> None:
        self.problems = list(problems)
        self._lines: dict[str, list[str]] = {}
        secrets: list[Secret] = []
        for file in dict.fromkeys(problem.span.file for problem in self.problems if problem.span):
            lines = list(lines_of(file))
            told = {problem.span.line for problem in self.problems if problem.span and problem.span.file == file}
            try:
                document = parse_document("\n".join(lines), file)
                secrets += secrets_in(document)
                self._lines[file] = _starred(lines, secret_spans(document), told)
            except Exception:  # noqa: BLE001  a line that cannot be looked through is not shown; the problem itself is
                continue
        redactor = Redactor(secrets)
        self.problems = [
            replace(one, message=redactor.text(one.message), help=one.help and redactor.text(one.help))
            for one in self.problems
        ]

    def lines(self, file: str) -> Sequence[str]:
        return self._lines.get(file, ())


def _starred(lines: list[str], spans: Iterable[Span], told: Iterable[int]) -> list[str]:
    by_line: dict[int, list[tuple[int, int]]] = {}
    for span in spans:
        by_line.setdefault(span.line, []).append((span.column - 1, span.column - 1 + span.length))
    for number in told:
        if not 1 <= number <= len(lines):
            continue
        line = lines[number - 1]
        for start, end in joined([*by_line.get(number, ()), *looks(line)]):
            line = line[:start] + "*" * len(line[start:end]) + line[end:]
        lines[number - 1] = line
    return lines
