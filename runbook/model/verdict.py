"""What a check concluded, and the exit codes of commands. The types make it impossible to mistake "could not look" for
"healthy"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from runbook.model.remedy import Remedy

MAX_FINDING_TEXT_CHARACTERS = 2000
"""The most characters that a finding keeps of its sentence, and of each line of evidence: a program may print megabytes
without ending a line."""


class Verdict(str, Enum):
    """`unknown` means that the check could not look; it stops a run just as `fail` does."""

    PASS = "pass"
    FAIL = "fail"
    UNKNOWN = "unknown"
    SKIP = "skip"

    def __str__(self) -> str:
        return self.value

    @property
    def stops(self) -> bool:
        return self in (Verdict.FAIL, Verdict.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a node did not pass: a cause of the catalogue, one sentence, the remedy, the evidence, and the nodes at the
    other end (`peers`).

    ValueError without a cause, a sentence or a remedy. A text longer than MAX_FINDING_TEXT_CHARACTERS loses its middle.
    """

    cause: str
    says: str
    remedy: str
    evidence: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (self.cause and self.says and self.remedy):
            raise ValueError("a finding needs a cause, a sentence and a remedy")
        if any(len(text) > MAX_FINDING_TEXT_CHARACTERS for text in (self.says, *self.evidence)):
            object.__setattr__(self, "says", _text_without_middle(self.says))
            object.__setattr__(self, "evidence", tuple(map(_text_without_middle, self.evidence)))

    @property
    def mended(self) -> Remedy:
        """The remedy as a Remedy; a remedy that is a plain text becomes a note."""
        return self.remedy if isinstance(self.remedy, Remedy) else Remedy.note(self.remedy)

    def with_evidence(self, *lines: str) -> Finding:
        """The same finding with more lines of evidence."""
        return replace(self, evidence=(*self.evidence, *lines))


FindingsByNode = dict[str, list[Finding]]
"""The findings of each node, by its name."""


def _text_without_middle(text: str) -> str:
    if len(text) <= MAX_FINDING_TEXT_CHARACTERS:
        return text
    half = MAX_FINDING_TEXT_CHARACTERS // 2 - 50
    return f"{text[:half]} … {len(text) - 2 * half:,} characters left out … {text[-half:]}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one check says about one node.

    A `pass` needs a `proof` sentence, a `skip` needs its reason there too, a `fail` or `unknown` needs a finding:
    anything else cannot be constructed. `warnings` go with any verdict and are shown to the user. `metrics` hold plain
    JSON values.
    """

    node: str
    verdict: Verdict
    proof: str | None = None
    findings: tuple[Finding, ...] = ()
    metrics: Mapping[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.verdict in (Verdict.PASS, Verdict.SKIP) and not self.proof:
            raise ValueError(f"{self.node}: a {self.verdict} without a proof is not a {self.verdict}")
        if self.verdict.stops and not self.findings:
            raise ValueError(f"{self.node}: a {self.verdict} without a finding explains nothing")

    def with_evidence(self, line: str) -> Outcome:
        """The same outcome with `line` added to the evidence of its first finding; unchanged if it has no finding or
        `line` is empty."""
        if not self.findings or not line:
            return self
        first, *more = self.findings
        return replace(self, findings=(first.with_evidence(line), *more))

    @classmethod
    def passed(
        cls, node: str, proof: str, *, metrics: Mapping[str, object] | None = None, warnings: Iterable[str] = ()
    ) -> Outcome:
        return cls(node, Verdict.PASS, proof, metrics=metrics or {}, warnings=tuple(warnings))

    @classmethod
    def failed(
        cls, node: str, *findings: Finding, metrics: Mapping[str, object] | None = None, warnings: Iterable[str] = ()
    ) -> Outcome:
        return cls(node, Verdict.FAIL, None, findings, metrics or {}, tuple(warnings))

    @classmethod
    def unknown(cls, node: str, *findings: Finding, metrics: Mapping[str, object] | None = None) -> Outcome:
        return cls(node, Verdict.UNKNOWN, None, findings, metrics or {})

    @classmethod
    def skipped(cls, node: str, reason: str) -> Outcome:
        return cls(node, Verdict.SKIP, reason)


def outcomes_from_findings(
    nodes: Iterable[str], found: Mapping[str, Sequence[Finding]], rest: Finding | str
) -> list[Outcome]:
    """One outcome a node: a node of `found` fails with its findings. Every other node passes if `rest` is a sentence of
    proof, and is unknown if `rest` is a finding."""
    return [
        Outcome.failed(node, *found[node])
        if node in found
        else (Outcome.passed(node, rest) if isinstance(rest, str) else Outcome.unknown(node, rest))
        for node in nodes
    ]


def outcomes_with_findings(outcomes: Iterable[Outcome], found: Mapping[str, Finding]) -> list[Outcome]:
    """The outcomes, in which each node of `found` now fails, with its finding added to those it had."""
    return [
        Outcome.failed(one.node, *one.findings, found[one.node], metrics=one.metrics) if one.node in found else one
        for one in outcomes
    ]


def overall_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """One verdict for all: fail beats unknown, which beats pass, which beats skip; no verdict at all is unknown."""
    seen = set(verdicts)
    for verdict in (Verdict.FAIL, Verdict.UNKNOWN, Verdict.PASS, Verdict.SKIP):
        if verdict in seen:
            return verdict
    return Verdict.UNKNOWN


EXIT_DONE, EXIT_FAILED, EXIT_WRONG_INPUT, EXIT_UNKNOWN = 0, 1, 2, 3
"""Exit codes: done as asked; something failed; files or arguments are wrong; the command could not tell, as when a node
was not reached."""
EXIT_BUG, EXIT_INTERRUPTED = 70, 130
"""Exit codes: runbook itself has a bug; the user interrupted it."""

EXIT_OF_VERDICT = {
    Verdict.PASS: EXIT_DONE,
    Verdict.SKIP: EXIT_DONE,
    Verdict.FAIL: EXIT_FAILED,
    Verdict.UNKNOWN: EXIT_UNKNOWN,
}
"""The exit code of a command whose result is a verdict."""
