"""Every broken file gives exactly the text beside it: see broken/README.md. Made anew with UPDATE_GOLDEN=1."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runbook.lint.findings import Report, lint_rules, report_text
from runbook.lint.run import lint

BROKEN = Path(__file__).parent / "broken"
CASES = sorted(path for path in BROKEN.iterdir() if path.suffix == ".yml" or (path.is_dir() and path.name[0] != "."))
ELSEWHERE = {
    "file.missing",
    "file.unreadable",
    "file.directory",
    "file.too-large",
    "inventory.more-problems",
    "inventory.too-many-names",
    "file.too-many-findings",
    "playbook.more-problems",
    "playbook.too-many-stages",
    "yaml.more-problems",
    "settings.syntax",
    "settings.two-files",
}
"""Rules whose cases cannot lie in a repository: test_files.py, test_settings.py and tests/attacks make them."""
NEVER_LINTED = {"inventory.missing-variable", "playbook.missing-variable"}
"""What only a run says: lint does not have its environment."""


def name_of(case: Path) -> str:
    return case.name.removesuffix(".yml")


def report_of(case: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.chdir(BROKEN)
    return lint([case.name])


def is_named_after(name: str, rule: str) -> bool:
    return name == rule or name.startswith(f"{rule}-")


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_broken_file_gives_exactly_these_findings_and_the_one_it_is_named_after(
    case: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = report_of(case, monkeypatch)
    shown = report_text(report)
    golden = BROKEN / f"{name_of(case)}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(shown, encoding="utf-8")
    assert shown == golden.read_text(encoding="utf-8")
    found = {finding.rule.id for finding in report.findings}
    assert any(is_named_after(name_of(case), rule) for rule in found), found


def test_no_golden_file_is_left_over() -> None:
    assert sorted(path.stem for path in BROKEN.glob("*.txt")) == sorted(map(name_of, CASES))


def test_every_rule_has_a_case() -> None:
    names = [name_of(case) for case in CASES]
    without = {rule for rule in lint_rules() if not any(is_named_after(name, rule) for name in names)}
    assert without <= ELSEWHERE | NEVER_LINTED
    assert len(names) >= 60
