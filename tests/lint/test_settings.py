from __future__ import annotations

from pathlib import Path

import pytest

from runbook.lint.run import lint
from runbook.model.errors import FilesWrong

from .write import PAIR, ids, write

OCTAL = "nodes:\n  node-a: {address: 10.0.0.1, vars: {mode: 0644, since: 2026-01-01}}\n"


def settings(folder: Path, text: str, *, toml: bool = False) -> None:
    (folder / ("pyproject.toml" if toml else ".runbook-lint.yml")).write_text(text)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path, inventories__a_yml=OCTAL, inventories__lab__b_yml=OCTAL.replace("10.0.0.1", "10.0.0.9"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_settings_everything_is_told(project: Path) -> None:
    assert len(ids("inventories")) == 4


@pytest.mark.parametrize("toml", [False, True])
def test_a_rule_can_be_ignored_everywhere(project: Path, toml: bool) -> None:
    settings(project, '[tool.runbook.lint]\nignore = ["yaml.octal"]\n' if toml else "ignore: [yaml.octal]\n", toml=toml)
    assert ids("inventories") == ["a.yml:2 yaml.date", "b.yml:2 yaml.date"]


@pytest.mark.parametrize(
    ("glob", "fits"),
    [
        ("inventories/a.yml", "a"),
        ("./inventories/a.yml", "a"),
        ("a.yml", "a"),
        ("inventories/lab", "b"),
        ("inventories/lab/", "b"),
        ("*/lab/*", "b"),
        ("inventories/*.yml", "ab"),
        ("lab", ""),
        ("*.yaml", ""),
    ],
)
@pytest.mark.parametrize("what", ["per_file", "exclude"])
def test_globs_are_of_files_of_names_and_of_folders(project: Path, glob: str, fits: str, what: str) -> None:
    settings(
        project, f'per_file: {{"{glob}": [yaml.octal, yaml.date]}}' if what == "per_file" else f'exclude: ["{glob}"]'
    )
    if what == "exclude" and fits == "ab":
        with pytest.raises(FilesWrong, match=r"are excluded by \.runbook-lint\.yml"):
            lint(["inventories"])
        return
    left = {one.partition(".")[0] for one in ids("inventories")}
    assert left == set("ab") - set(fits)


def test_files_that_are_named_and_excluded_are_no_error(project: Path) -> None:
    """pre-commit names every file that changed, whatever the settings say of it."""
    settings(project, 'exclude: ["inventories/*.yml"]')
    report = lint(["inventories/a.yml"])
    assert (report.findings, report.files, report.notes) == ((), (), ("inventories/a.yml: excluded",))


def test_the_nearest_settings_count_from_wherever_one_calls(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings(project, "ignore: [yaml.octal]\nper_file: {inventories/a.yml: [yaml.date]}\n")
    settings(project / "inventories" / "lab", "ignore: [yaml.date]\n")
    assert ids("inventories") == ["b.yml:2 yaml.octal"]
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert ids(project / "inventories") == ["b.yml:2 yaml.octal"]
    monkeypatch.chdir(project / "inventories")
    assert ids("lab/../a.yml", "lab") == ["b.yml:2 yaml.octal"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[tool.runbook.lint]\nignore = [yaml]\n", "2 settings.syntax"),
        ('[tool.runbook.lint]\n# "yaml.octl" is wrong\nignore = [\n  "yaml.octl",\n]\n', "4 settings.unknown-rule"),
        ('[project]\nname = "ignores"\n[tool.runbook.lint]\nignores = []\n', "4 settings.unknown-key"),
        ('[tool.runbook.lint]\nexclude = "old"\n', "2 settings.wrong-type"),
        ('[tool.runbook]\nlint = ["yaml.octal"]\n', "1 settings.wrong-type"),
        ('[tool.runbook.lint]\nignore = ["yaml.syntax"]\n', "2 settings.refused"),
        ('[tool.runbook.lnt]\nignore = ["yaml.octal"]\n', "1 settings.unknown-key"),
        (f"[tool.runbook.lint]\nignore = [{'1' * 5000}]\n", "2 settings.syntax"),
        ('[tool.runbook.lint.per_file]\n"a.yml" = ["yaml.octal", "yaml.octl"]\n', "2 settings.unknown-rule"),
    ],
)
def test_mistakes_in_pyproject_are_findings_with_their_place(project: Path, text: str, place: str) -> None:
    settings(project, text, toml=True)
    assert f"pyproject.toml:{place}" in ids("inventories")


def test_a_pyproject_that_is_not_about_us_is_nobodys_business(project: Path) -> None:
    settings(project, "[tool.black\n", toml=True)
    assert len(ids("inventories")) == 4
    settings(project, "[tool.ruff]\nline-length = 120\n", toml=True)
    assert len(ids("inventories")) == 4
    settings(project, f"[tool.ruff]\nline-length = {'1' * 5000}\n", toml=True)
    assert len(ids("inventories")) == 4


def test_two_settings_in_one_folder_are_one_too_many(project: Path) -> None:
    settings(project, "ignore: [yaml.octal]\n")
    settings(project, '[tool.runbook.lint]\nignore = ["yaml.date"]\n', toml=True)
    found = ids("inventories")
    assert found[0] == ".runbook-lint.yml:1 settings.two-files"
    assert len(found) == 3


def test_settings_that_are_all_comments_are_none(project: Path) -> None:
    settings(project, "# ignore: [yaml.octal]\n")
    assert len(ids("inventories")) == 4


@pytest.mark.parametrize(("text", "found"), [("- a\n", "yaml.not-a-mapping"), ("a: [\n", "yaml.syntax")])
def test_settings_that_cannot_be_read_are_findings(project: Path, text: str, found: str) -> None:
    settings(project, text)
    assert any(one.startswith(".runbook-lint.yml") and one.endswith(found) for one in ids("inventories"))


def test_what_keeps_a_file_from_being_used_cannot_be_ignored(project: Path) -> None:
    write(project, inventories__a_yml=PAIR + "  c: {adress: x}\n")
    settings(project, "ignore: [inventory.unknown-key]\n")
    assert "a.yml:4 inventory.unknown-key" in ids("inventories")
    assert ".runbook-lint.yml:1 settings.refused" in ids("inventories")
