"""The problems found in one document, each put at the place it is about."""

from __future__ import annotations

from runbook.load.document import Document, Keys
from runbook.model.errors import FilesWrong, Problem, Span

MOST = 1000  # problems of one document; more are one mistake, made by what wrote the file


class Complaints:
    """Gathers problems instead of raising the first. `kind`, e.g. `inventory`, begins every id."""

    def __init__(self, document: Document, kind: str) -> None:
        self.document = document
        self.problems: list[Problem] = []
        self.wrong: set[Keys] = set()
        self._kind = kind

    def about_value(self, keys: Keys, id: str, message: str, help: str | None = None) -> None:
        self._add(keys, id, message, self.document.span(*keys), help)

    def about_key(self, keys: Keys, id: str, message: str, help: str | None = None) -> None:
        self._add(keys, id, message, self.document.key_span(*keys), help)

    def take_over(self, wrong: FilesWrong) -> None:
        self.problems.extend(wrong.problems)

    def _add(self, keys: Keys, id: str, message: str, span: Span | None, help: str | None) -> None:
        self.wrong.add(keys)
        if len(self.problems) > MOST:
            return
        if len(self.problems) == MOST:
            id, message, span, help = (
                "more-problems",
                "more is wrong as well; mend these first",
                self.document.span(),
                None,
            )
        problem = Problem(f"{self._kind}.{id}", message, span, help)
        if problem not in self.problems[-20:]:  # a value that many nodes share is looked at again and again
            self.problems.append(problem)


def in_file_order(problems: list[Problem]) -> tuple[Problem, ...]:
    """Each problem once, from the top of the file to its end."""

    def place(problem: Problem) -> tuple[int, int]:
        return (problem.span.line, problem.span.column) if problem.span else (0, 0)

    return tuple(sorted(dict.fromkeys(problems), key=place))
