"""Masks secrets in messages and in lines of files before they are shown: secrets that lint finds, and, since a file may
be no YAML that a reader understands, all text that stands behind or below a name of a secret.

Output of lint goes into logs of CI, which many people read. A line that is shown with too many stars can still be found
by its number; a line with too few stars cannot be taken back.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from runbook.collect.scrub import secret_text_spans
from runbook.files.yaml_document import Document, parse_document, source_lines
from runbook.lint.find_files import outside_target, real_tree_roots
from runbook.lint.findings import LintFinding
from runbook.lint.rules.security import named_secrets, secrets_in_commands, secrets_of_known_format
from runbook.model.errors import Problem, Span
from runbook.model.grouping import values_by_key
from runbook.model.redact import Redactor, merged_places, text_with_replacements
from runbook.model.secrets import Secret, possible_secret_kind
from runbook.model.text_search import TextSpan

_MAX_LINES_ABOVE = 60  # lines above a line in which a name of a secret is looked for
_MAX_LINE_CHARACTERS = 2000  # characters of each of these lines
_MAX_WORD_CHARACTERS = 32  # characters of a name that are compared with others
_NAME_WORD = re.compile(r"[A-Za-z_][\w.-]*")
_HINT = re.compile(r"(?i)pass|pwd|token|secret|credential|key|auth|jwt|cookie|session")
_USER_AND_PASSWORD = re.compile(r"(?<![\w.:/-])[\w.-]{1,64}:([^\s\"'@:/][^\s\"'@]{0,127})@(?=[\w.\[])")
_SECRET_WORDS = ("password", "passwd", "passphrase", "token", "secret", "credential", "credentials", "apikey")
_VALUE_START = re.compile(r"[\"']?\s*[:=]\s*[\"']?(?P<like_a_token>(?=[A-Za-z_-]{0,64}[0-9])[A-Za-z0-9_-]{20,})?")
_NAME_VALUE_JOINT = re.compile(r"[\s\"'`:=,>)\]]*")
_HARMLESS_VALUE = re.compile(
    r"[\"']?(?:\$\{?(?:[A-Z_][A-Z0-9_]*|[a-z_]+)\}?|\{\{\s*[a-z_.]+\s*\}\}|\{\s*env:\s*[A-Za-z_]+[A-Z0-9_]*\s*\}"
    r"|<[a-z _-]*>|\*+|[Tt]rue|[Ff]alse|[Nn]ull|[Nn]one|yes|no|~|[a-z](?=\s*[,}])|[0-9]{1,5})"
    r"[\"']?(?=\s*(?:[,}\])#&|;]|$))"
)
_YAML_KEY_LINE = re.compile(r"\s*(?:-\s+)*[\"']?(?P<key>[\w.-]+)[\"']?\s*:(?:\s|$)")
_VALUE_KEYS = {"value", "val", "default", "content", "data", "literal"}
_QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"")
_LONG_WORD = re.compile(r"[^\s\"'`,;:=\[\]{}()<>&*!|#%@?\\/$-]{6,}")


def doubtful_places(lines: Sequence[str], number: int) -> Iterator[TextSpan]:
    """Yields the places on the line of this number (from 1) that may be secrets: a login's password, or text behind or
    below a name of a secret."""
    line = lines[number - 1]
    login, host = line.find("://") + 3, line.rfind("@")
    if (
        2 < login < host
        and (colon := line.find(":", login, host)) > 0
        and not _HARMLESS_VALUE.match(line[colon + 1 : host])
    ):
        yield colon + 1, host
    yield from (
        match.span(1)
        for match in _USER_AND_PASSWORD.finditer(line)
        if not _HARMLESS_VALUE.match(line[match.start(1) : match.end(1)])
    )
    begins = _text_after_secret_name(line)
    if begins is None and _is_below_secret_name(lines, number):
        begins = len(line) - len(line.lstrip(" \t-\"'"))
    if begins is not None:
        yield begins, max(begins, len(line.rstrip(" \t\r,;)}]\"'")))


def maskable_words(text: str) -> list[str]:
    """The words of a doubtful text that messages may quote, and in which they are masked: those with a digit."""
    return [word for word in _LONG_WORD.findall(text) if any(char.isdigit() for char in word)]


def mask_doubtful_quotes(message: str) -> str:
    """The message with stars in quoted values, behind names of secrets: a value may go on behind the line that is
    shown."""
    return _QUOTED.sub(lambda match: _quoted_without_secret(match[0]), message)


def _quoted_without_secret(quoted: str) -> str:
    begins = _text_after_secret_name(quoted[:-1])
    return quoted if begins is None else f"{quoted[:begins]}***{quoted[-1]}"


def _text_after_secret_name(line: str) -> int | None:
    """The index of the first text on a line that may be a secret, since it follows a name of a secret; None if there is
    none."""
    for match in _NAME_WORD.finditer(line):
        if possible_secret_kind(match[0].strip(".-")) is None and not _nearly_names_secret(line, match):
            continue
        start = _end_of_separator(line, match.end())
        if (
            line[max(0, match.start() - 2) : match.start()].endswith(("$", "${"))
            and "=" not in line[match.end() : start]
        ):
            continue  # `$NAME` stands for a secret, and shows none
        if (
            start < len(line)
            and not _HARMLESS_VALUE.match(line, start)
            and not _HARMLESS_VALUE.match(line, match.end())
        ):
            return start
    return None


def _nearly_names_secret(line: str, name: re.Match[str]) -> bool:
    """Whether a name is a misspelt name of a secret, `pasword: …`, or ends in `key` and has a value like a token."""
    given = _VALUE_START.match(line, name.end())
    if given is None:
        return False
    word = re.split(r"[\W\d_]+", name[0][-_MAX_WORD_CHARACTERS:].lower())[-1]
    if word.endswith("key"):
        return given["like_a_token"] is not None
    return word != "tokens" and bool(difflib.get_close_matches(word, _SECRET_WORDS, n=1, cutoff=0.85))


def _end_of_separator(line: str, at: int) -> int:
    joint = _NAME_VALUE_JOINT.match(line, at)
    return joint.end() if joint else at


def _is_below_secret_name(lines: Sequence[str], number: int) -> bool:
    """Whether the line of this number may be, or belong to, the value of a name of a secret on a line above it."""
    line = lines[number - 1]
    level, key = _indent_width(line), _YAML_KEY_LINE.match(line[:_MAX_LINE_CHARACTERS])
    dash = line.lstrip().startswith("- ")
    for above in reversed(lines[max(0, number - 1 - _MAX_LINES_ABOVE) : number - 1]):
        text = above[:_MAX_LINE_CHARACTERS]
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        indent = _indent_width(text)
        if dash and text.lstrip().startswith("- ") and indent >= level:
            continue  # a neighbour in the same list
        if key is None or key["key"].lower() in _VALUE_KEYS or indent < level or (dash and indent == level):
            if _may_continue_below(text):
                return True
            if _YAML_KEY_LINE.match(text) and (key is None or indent < level):
                if indent == 0 or key is None:
                    return False
                level = indent
            elif key is not None and indent < level:
                level = indent
    return False


def _may_continue_below(line: str) -> bool:
    """Whether a line has a name of a secret whose value may stand below it."""
    if not _HINT.search(line):
        return False
    if _text_after_secret_name(line) is not None:
        return True
    names = [match for match in _NAME_WORD.finditer(line) if possible_secret_kind(match[0].strip(".-"))]
    return bool(names) and not line[_end_of_separator(line, names[-1].end()) :].strip()


def _indent_width(line: str) -> int:
    return len(line) - len(line.lstrip())


_MAX_GLOBAL_SECRETS = 100  # secrets that are looked for in every message; all others, only in messages about their line
# Characters of a secret that is looked for in messages: shorter ones are parts of ordinary words.
_MIN_SECRET_CHARACTERS = 4


class RedactedReport:
    """Masks the findings of one lint and the lines of its files. `secret` has the places where rules found secrets."""

    def __init__(self, documents: Mapping[str, Document], secret: Iterable[Span]) -> None:
        self._documents = documents
        self._places: dict[str, list[Span]] = {}
        self._texts: dict[tuple[str, int], set[str]] = {}  # secrets, by file and line
        self._few: set[str] = set()
        for span in secret:
            self._places.setdefault(span.file, []).append(span)
            text = _text_at(documents[span.file].lines, span)
            if len(text) >= _MIN_SECRET_CHARACTERS:
                self._texts.setdefault((span.file, span.line), set()).update((text, *maskable_words(text)))
                if len(self._few) < _MAX_GLOBAL_SECRETS:
                    self._few.add(text)

    def finding(self, finding: LintFinding) -> LintFinding:
        """The finding with its secrets masked: rules quote values, whole or shortened, without knowing that they are
        secrets."""
        texts = self._few | self._texts.get((finding.span.file, finding.span.line), set())
        longest_first = sorted(texts, key=len, reverse=True)
        help = finding.help and _without_cut_secrets(finding.help, longest_first)
        return replace(
            finding, message=mask_doubtful_quotes(_without_cut_secrets(finding.message, longest_first)), help=help
        )

    def lines(self, file: str) -> Sequence[str]:
        if file not in self._documents and outside_target(file, real_tree_roots([file])):
            return []
        lines = list(self._documents[file].lines if file in self._documents else source_lines(file))
        for number, places in values_by_key(
            (span.line, _column_range(span)) for span in self._places.get(file, ())
        ).items():
            lines[number - 1] = _masked_line(lines[number - 1], places)
        return lines


def likely_secrets(documents: Mapping[str, Document], shown: Iterable[Span], known: Iterable[Span]) -> Iterator[Span]:
    """Yields the places on shown lines that look like secrets. A file with problems may hold secrets where no rule
    looks, and longer ones than a rule found. In a sound file, a line with a `known` secret holds no other."""
    sound = {(span.file, span.line) for span in known if not documents[span.file].problems}
    texts = {file: document.lines for file, document in documents.items()}
    for file, number in dict.fromkeys((span.file, span.line) for span in shown):
        lines = texts.get(file, ())
        if 1 <= number <= len(lines) and (file, number) not in sound:
            for start, end in likely_secret_places(lines, number):
                if end - start >= _MIN_SECRET_CHARACTERS:
                    yield Span(file, number, start + 1, end - start)


def likely_secret_places(lines: Sequence[str], number: int) -> list[TextSpan]:
    """The places on one line of a file that look like a secret, or where a secret would stand."""
    return merged_places([*secret_text_spans(lines[number - 1]), *doubtful_places(lines, number)])


class RedactedProblems:
    """Masks the problems of any command, and the lines that they point at: in lines, one star for each character."""

    def __init__(self, problems: Iterable[Problem], lines_of: Callable[[str], Sequence[str]] = source_lines) -> None:
        self.problems = list(problems)
        self._lines: dict[str, list[str]] = {}
        secrets: list[Secret] = []
        for file in dict.fromkeys(problem.span.file for problem in self.problems if problem.span):
            lines = list(lines_of(file))
            reported = {problem.span.line for problem in self.problems if problem.span and problem.span.file == file}
            try:
                document = parse_document("\n".join(lines), file)
                secrets += secrets_in(document)
                places = secret_spans(document)
                starred: dict[int, str] = {}
                for number in reported:
                    if 1 <= number <= len(lines):
                        line = lines[number - 1]
                        known = [_column_range(span) for span in places if span.line == number]
                        likely = likely_secret_places(lines, number)
                        texts = [line[start:end] for start, end in likely]
                        texts += [word for text in texts for word in maskable_words(text)]
                        secrets += [Secret(text, f"{file}:{number}") for text in texts]
                        starred[number] = _masked_line(line, [*known, *likely])
            except Exception:  # noqa: BLE001  lines that cannot be searched are not shown; the problem is
                continue
            self._lines[file] = [starred.get(number, line) for number, line in enumerate(lines, 1)]
        redactor = Redactor(secrets)
        self.problems = [
            replace(
                one,
                message=mask_doubtful_quotes(redactor.text(one.message)),
                help=one.help and redactor.text(one.help),
            )
            for one in self.problems
        ]

    def lines(self, file: str) -> Sequence[str]:
        return self._lines.get(file, ())


def secret_spans(document: Document) -> list[Span]:
    """The places where a file holds secrets in plain text."""
    rules = (
        (secrets_of_known_format, named_secrets, secrets_in_commands)
        if document.data is not None
        else (secrets_of_known_format,)
    )
    return [problem.span for rule in rules for problem in rule(document) if problem.span]


def secrets_in(document: Document) -> list[Secret]:
    """The secrets that a file holds in plain text."""
    return [Secret(_text_at(document.lines, span), str(span)) for span in secret_spans(document)]


def _text_at(lines: Sequence[str], span: Span) -> str:
    start, end = _column_range(span)
    return lines[span.line - 1][start:end].strip("\"'")


def _column_range(span: Span) -> TextSpan:
    return span.column - 1, span.column - 1 + span.length


def _masked_line(line: str, places: Iterable[TextSpan]) -> str:
    return text_with_replacements(line, ((place, "*" * len(line[slice(*place)])) for place in merged_places(places)))


def _without_cut_secrets(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        if secret[:_MIN_SECRET_CHARACTERS] in text:
            shortened = re.escape(secret[:_MIN_SECRET_CHARACTERS]) + r"[^\s`…]*…"
            text = re.sub(shortened, "***…", text.replace(secret, "***"))
    return text
