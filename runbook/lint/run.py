"""Runs lint on files: reads each file once, runs every rule, and applies silences and settings last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from runbook.files.yaml_document import garbage_collector_paused
from runbook.lint.find_files import FoundFile, find_files, real_tree_roots
from runbook.lint.findings import LintFinding, Report, finding_from_problem, sorted_findings
from runbook.lint.redaction import RedactedReport, likely_secrets
from runbook.lint.rule_inputs import InventoryFile, PlaybookFile, ReadFile, ReadFiles
from runbook.lint.rules import DOCUMENT_RULES, INVENTORY_RULES, PLAYBOOK_RULES, TOGETHER_RULES
from runbook.lint.rules.across_files import named_inventory
from runbook.lint.rules.security import secrets_of_known_format
from runbook.lint.settings import LintSettings, SettingsOf
from runbook.lint.silences import apply_silences, silences_in, unused_silence
from runbook.model.errors import FilesWrong, Problem, Span
from runbook.model.grouping import values_by_key


class RuleFailed(Exception):
    """A rule raised: a bug of ours, reported with the rule and the file."""


FILE_KIND_HELP = "an inventory has `nodes:`, a playbook has `stages:`"
# Findings of one rule in one file that are shown; more come of one mistake of the program that wrote it.
_MAX_SHOWN_FINDINGS = 500
_MOST_LOOKED_FOR = 10_000  # findings of one rule in one file, after which the rule is not run further


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The files of one lint: `files` to read, those that settings exclude, and links that lead outside."""

    files: tuple[FoundFile, ...]
    settings: tuple[LintSettings, ...]
    excluded: tuple[FoundFile, ...]
    outside: tuple[FoundFile, ...]


def lint(paths: Sequence[str]) -> Report:
    """The report on these files and folders. Raises FilesWrong if there is nothing to lint."""
    with garbage_collector_paused():
        settings_of = SettingsOf()
        chosen = _choose_files(find_files(paths), settings_of)
        reading = ReadFiles(real_tree_roots(paths))
        reads = [reading.read(found.path, named=found.named) for found in chosen.files]
        ours = [read for read, found in zip(reads, chosen.files, strict=True) if read.kind or found.named]
        notes = [f"{read.document.path}: neither an inventory nor a playbook" for read in reads if read not in ours]
        notes += [f"{one.path}: left out: it leads out of what is linted, to {one.leads_to}" for one in chosen.outside]
        if not ours and chosen.excluded and not notes and all(one.named for one in chosen.excluded):
            # Named files are not reported: pre-commit names every file that changed.
            return Report(
                (), (), tuple(f"{one.path}: excluded" for one in chosen.excluded), RedactedReport({}, ()).lines
            )
        if not ours:
            raise FilesWrong([_nothing_to_lint_problem(len(reads), chosen)])
        findings = [finding for read in ours for finding in _findings_of_file(read, settings_of(read.document.path))]
        findings += _findings_across_files(ours, reading)
        left = _unsilenced_findings(findings, ours, settings_of)
        left += [
            finding_from_problem(problem, read.document.path) for read in ours for problem in _loading_problems(read)
        ]
        for settings in chosen.settings:
            left += [finding_from_problem(problem, settings.source) for problem in settings.problems]
        notes += [f"{one.path}: excluded" for one in chosen.excluded]
        texts = {read.document.path: read.document for read in ours}
        # Secrets of silenced findings count as well: another finding may stand on their line.
        secret = [finding.span for finding in (*findings, *left) if finding.rule.id.startswith("secret.")]
        shown, more = _limit_findings(sorted_findings(left))
        likely = likely_secrets(texts, [finding.span for finding in shown], secret)
        redacted = RedactedReport(texts, [*secret, *likely])
        return Report(tuple(map(redacted.finding, shown)), tuple(texts), (*notes, *more), redacted.lines)


def _limit_findings(findings: Iterable[LintFinding]) -> tuple[list[LintFinding], list[str]]:
    """The first findings of each rule in each file, and how many more there are."""
    counts: Counter[tuple[str, str]] = Counter()
    shown = []
    for finding in findings:
        of_rule = (finding.span.file, finding.rule.id)
        counts[of_rule] += 1
        if counts[of_rule] <= _MAX_SHOWN_FINDINGS:
            shown.append(finding)
    more = [
        f"{file}: {count - _MAX_SHOWN_FINDINGS:,} more of {rule} are not shown"
        for (file, rule), count in counts.items()
        if count > _MAX_SHOWN_FINDINGS
    ]
    return shown, more


def _choose_files(found: Sequence[FoundFile], settings_of: SettingsOf) -> _Chosen:
    """The files of one lint, divided by settings and links."""
    outside = tuple(one for one in found if one.leads_to)
    found = [one for one in found if not one.leads_to]
    excluded = [one for one in found if settings_of(one.path).excludes(one.path)]
    return _Chosen(
        tuple(one for one in found if one not in excluded),
        tuple({settings.source: settings for one in found if (settings := settings_of(one.path)).source}.values()),
        tuple(excluded),
        outside,
    )


def _nothing_to_lint_problem(foreign: int, chosen: _Chosen) -> Problem:
    looked = [f"{foreign} are neither inventories nor playbooks"] * bool(foreign)
    if chosen.excluded:
        looked.append(f"{len(chosen.excluded)} are excluded by {', '.join(one.source for one in chosen.settings)}")
    help = FILE_KIND_HELP
    if chosen.outside:
        looked.append(
            f"{len(chosen.outside)} lead out of it ({chosen.outside[0].path} to {chosen.outside[0].leads_to})"
        )
        help = "name what is meant itself: runbook lint FILE"
    return Problem("arguments.nothing-to-lint", f"there is nothing to lint: {', '.join(looked)}", None, help)


def _findings_of_file(read: ReadFile, settings: LintSettings) -> list[LintFinding]:
    """The findings of rules that look at one file."""
    file = read.document.path
    ignored = settings.ignored(file)
    problems: list[Problem] = []
    if read.kind is not None:
        problems += _run_rules(
            DOCUMENT_RULES if read.document.data is not None else [secrets_of_known_format],
            file,
            read.document,
            ignored=ignored,
        )
    if isinstance(read.subject, InventoryFile):
        problems += _run_rules(INVENTORY_RULES, file, read.subject, ignored=ignored)
        if read.launch is not None:
            problems += _run_rules(PLAYBOOK_RULES, file, read.launch, ignored=ignored)
    elif isinstance(read.subject, PlaybookFile):
        problems += _run_rules(PLAYBOOK_RULES, file, read.subject, ignored=ignored)
    return findings_without_echoes([finding_from_problem(problem, file) for problem in problems], read.problems)


def _findings_across_files(reads: Sequence[ReadFile], reading: ReadFiles) -> list[LintFinding]:
    """The findings of rules that look at several files."""
    inventories = [read.subject for read in reads if isinstance(read.subject, InventoryFile)]
    playbooks = [read.subject for read in reads if isinstance(read.subject, PlaybookFile)]
    playbooks += [read.launch for read in reads if read.launch is not None]
    file = reads[0].document.path
    problems = list(_run_rules(TOGETHER_RULES, file, inventories, playbooks))
    problems += _run_rules([named_inventory], file, [read for read in reads if read.kind == "playbook"], reads, reading)
    return [finding_from_problem(problem, file) for problem in problems]


def _run_rules(
    rules: Iterable[Callable[..., Iterable[Problem]]], file: str, *about: object, ignored: Collection[str] = ()
) -> Iterator[Problem]:
    for rule in rules:
        try:
            yield from _bounded_problems(rule(*about), file, ignored)
        except Exception as error:
            raise RuleFailed(f"the rule {rule.__module__}.{rule.__name__} failed on {file}: {error!r}") from error


def _bounded_problems(problems: Iterable[Problem], file: str, ignored: Collection[str]) -> Iterator[Problem]:
    """All problems that a rule finds; after `_MOST_LOOKED_FOR` of one id, a problem that says so, and no more.

    Secrets have no such limit: a secret that is not found is not masked.
    """
    counts: Counter[str] = Counter()
    for problem in problems:
        counts[problem.id] += not (problem.id.startswith("secret.") or problem.id in ignored)
        if counts[problem.id] > _MOST_LOOKED_FOR:
            message = f"{_MOST_LOOKED_FOR:,} times {problem.id}: from here on nothing more of that kind was looked for"
            help = "mend what wrote the file, or ignore that rule for it, and look again"
            yield Problem("file.too-many-findings", message, problem.span or Span(file, 1, 1), help)
            return
        yield problem


def _loading_problems(read: ReadFile) -> tuple[Problem, ...]:
    """The problems that keep a file from being used, which no silence reaches."""
    if read.problems or read.kind:
        return read.problems
    message = "this is neither an inventory nor a playbook"
    return (Problem("file.kind", message, read.document.span(), FILE_KIND_HELP),)


def _unsilenced_findings(
    findings: Iterable[LintFinding], reads: Sequence[ReadFile], settings_of: SettingsOf
) -> list[LintFinding]:
    """The findings that no silence and no setting takes away, and what is wrong with the silences."""
    by_file = values_by_key((finding.span.file, finding) for finding in findings)
    left: list[LintFinding] = []
    for read in reads:
        file = read.document.path
        silences, problems = silences_in(read.document)
        kept, unused = apply_silences(silences, by_file.pop(file, []))
        ignored = settings_of(file).ignored(file)
        left += [finding for finding in kept if finding.rule.always or finding.rule.id not in ignored]
        left += [finding_from_problem(problem, file) for problem in problems]
        # In a file that was not read or not searched in full, a silence may have a use that is not known.
        if not read.problems and not any(finding.rule.id == "file.too-many-findings" for finding in kept):
            left += [finding_from_problem(unused_silence(silence), file) for silence in unused]
    return left + [finding for others in by_file.values() for finding in others]


def findings_without_echoes(findings: list[LintFinding], of_loading: Collection[Problem]) -> list[LintFinding]:
    """The findings of rules without those about a value that is known to be wrong already.

    Such a value is at a mistake of YAML, or is refused by loading. For the `yaml.` rules, which tell how other YAML
    readers take a value, it may also have any other error, or an unknown key. Findings of secrets are all kept: only
    secrets that are found can be masked.
    """
    misread = [problem.span for problem in of_loading if problem.span and problem.id.startswith("yaml.")]
    refused = {_span_start(problem.span) for problem in of_loading if problem.span}
    unknown = {
        (problem.span.line, problem.span.column + problem.span.length)
        for problem in of_loading
        if problem.span and problem.id.endswith(".unknown-key")
    }
    errors = refused | {_span_start(finding.span) for finding in findings if finding.rule.severity == "error"}
    lines = values_by_key((span.line, span) for span in misread)
    return [
        finding
        for finding in findings
        if finding.rule.id.startswith("secret.")
        or (
            _span_start(finding.span) not in (errors if finding.rule.id.startswith("yaml.") else refused)
            and not any(_spans_overlap(finding.span, span) for span in lines.get(finding.span.line, ()))
            and not (finding.rule.id.startswith("yaml.") and _is_value_of_key(finding.span, unknown))
        )
    ]


def _span_start(span: Span) -> tuple[int, int]:
    return (span.line, span.column)


def _is_value_of_key(span: Span, keys: Collection[tuple[int, int]]) -> bool:
    """Whether `span` is the value of one of these keys, on the key's line. `keys` has the place after each key, which
    is a colon and one or two blanks before the value."""
    return any((span.line, span.column - blanks) in keys for blanks in (2, 3))


def _spans_overlap(one: Span, other: Span) -> bool:
    return one.column < other.column + other.length and other.column < one.column + one.length
