"""README, CONTRIBUTING, SECURITY and docs/: what they tell people to type is understood, what they link to is there."""

from __future__ import annotations

import argparse
import importlib.util
import posixpath
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import runbook
from runbook.agent.permissions import read_rules
from runbook.causes.catalogue import cause_pages as known_causes
from runbook.checks import CHECKS
from runbook.cli.argument_parser import make_parser
from runbook.cli.explain import term_meanings as known_words
from runbook.cli.main import main
from runbook.files.shipped_files import shipped_files
from runbook.lint.findings import lint_rules
from runbook.lint.variables import known_variables

ROOT = Path(__file__).parents[1]
PACKAGE = Path(runbook.__file__).parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "tests" / "lint" / "broken" / "README.md"])
README, CHINESE, CONTRIBUTING = ROOT / "README.md", ROOT / "README.zh-CN.md", ROOT / "CONTRIBUTING.md"
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
COMMAND = re.compile(r"(?:^|[\s;&|(\"])runbook (?=[a-z-])(.+)")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


every_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


def fences(page: Path) -> list[tuple[str, str]]:
    """Language and text of each block of code."""
    return FENCE.findall(page.read_text(encoding="utf-8"))


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    return {reference().slug(re.sub("[`*]", "", title)) for _, title in HEADING.findall(prose(page))}


_loaded: list[ModuleType] = []


def reference() -> ModuleType:
    """docs/reference.py, which no package holds."""
    if not _loaded:
        spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        _loaded.append(module)
    return _loaded[0]


# What people are told to type.

PARSER = make_parser()
SPOKEN_OF = (["lint"],)
"""Commands that sentences speak of without their arguments."""


def typed(page: Path) -> Iterator[str]:
    """What stands behind `runbook` in every command of a page: in blocks, and in code type within sentences."""
    for language, text in fences(page):
        lines = text.splitlines()
        if language == "text":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        for line in lines:
            listed = re.search(r"\[runbook, ([^\]]+)\]", line)
            if listed:
                yield listed[1].replace(",", "")
            elif found := COMMAND.search(line):
                yield found[1]
    for span in SPAN.findall(prose(page)):
        if span.startswith("runbook ") and "…" not in span:
            yield span.removeprefix("runbook ")


def words(command: str) -> list[str]:
    """The words of one command: what comes after it in the line, and a comment, are not its own."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[str] = []
    for word in lexer:
        if set(word) <= set("();<>|&"):
            break
        found.append(word)
    return found


@every_page
def test_every_command_is_one_that_the_program_takes(page: Path) -> None:
    for command in typed(page):
        given = words(command)
        if given == ["--version"] or given in SPOKEN_OF:
            continue
        try:
            parsed = PARSER.parse_args(given)
        except SystemExit:
            raise AssertionError(f"{name_of(page)}: runbook {command}") from None
        if parsed.command == "explain" and parsed.id:
            ids = {
                *CHECKS,
                "launch",
                *known_causes(),
                *lint_rules(),
                *known_variables(),
                *known_words(),
                *shipped_files(),
                "RULE",
            }
            assert parsed.id in ids, command


def test_the_search_for_commands_finds_them() -> None:
    found = [words(command)[0] for page in PAGES for command in typed(page)]
    assert len(found) > 80
    commands = next(one for one in PARSER._actions if isinstance(one, argparse._SubParsersAction)).choices
    assert set(commands) - set(found) == set(), "a command that no page shows"


@every_page
def test_every_target_of_make_is_there(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = [line for language, text in fences(page) if language == "sh" for line in text.splitlines()]
    told = [match[1] for line in [*lines, *SPAN.findall(prose(page))] if (match := re.match(r"make ([a-z-]+)", line))]
    assert set(told) <= targets


BY_NAME = re.compile(r"pip3? install[^\n]*[ '\"`]runbook(?![\w/.-])")


def test_nothing_installs_the_package_by_its_name() -> None:
    """In public indexes that name is another project's."""
    assert BY_NAME.search("python -m pip install 'runbook[agent]==1'")
    suffixes = {".py", ".md", ".toml", ".j2", ".html", ".yml", ".sh", ".sbatch"}
    beside = (PACKAGE, ROOT / "examples", ROOT / "playbooks", ROOT / "inventories")
    told = [*PAGES, *(file for folder in beside for file in folder.rglob("*") if file.suffix in suffixes)]
    whole = {file: re.sub(r'"\n\s*f?"', "", file.read_text(encoding="utf-8")) for file in told}  # literals side by side
    assert [name_of(file) for file, text in whole.items() if BY_NAME.search(text)] == []


# Links.


@every_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if link.startswith("https:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_of_the_site_is_in_its_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert pages <= set(re.findall(r"[\w/-]+\.md", text))


def test_every_page_is_linked_from_readme() -> None:
    linked = {posixpath.normpath(link) for link in LINK.findall(prose(README))}
    assert {page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md")} <= linked


def test_no_picture_is_left_over() -> None:
    used = {(page.parent / link).resolve() for page in PAGES for link in LINK.findall(prose(page))}
    assert {picture for picture in (ROOT / "docs" / "pictures").iterdir() if picture.suffix in (".svg", ".png")} <= used


# The reference that is made.


def test_the_reference_tells_every_id_where_it_says_that_it_does() -> None:
    places, pages = reference().places(), reference().pages()
    assert places.keys() >= {*CHECKS, *known_causes(), *lint_rules(), *known_variables()}
    titles = {path: {reference().slug(title) for _, title in HEADING.findall(text)} for path, text in pages.items()}
    for id, place in places.items():
        path, _, anchor = place.partition("#")
        assert anchor == "" or anchor in titles[path], id


def test_the_reference_has_every_command_and_every_key() -> None:
    pages = reference().pages()
    commands = re.findall(r"^## runbook (\S+)$", pages["reference/commands.md"], re.MULTILINE)
    assert {"run", "lint", "diagnose", "explain", "serve", "agent"} <= set(commands)
    assert "--drain-at-most P" in pages["reference/commands.md"]
    inventory = pages["reference/files/inventory.md"]
    assert {"hca", "jump", "interface", "gpus", "on_stall"} <= set(re.findall(r"^\| `(\w+)`", inventory, re.MULTILINE))
    assert "`POST /api/v1/agents`" in pages["reference/api.md"]


# README in two languages.


def in_step(page: Path) -> tuple[object, ...]:
    """What both have alike: levels of headings, code without comments, rows of tables, where links lead."""
    text = page.read_text(encoding="utf-8")
    code = [[re.sub(r"\s+#.*", "", line) for line in block.splitlines()] for _, block in fences(page)]
    links = [link for link in LINK.findall(prose(page)) if not link.startswith("README")]
    return [len(level) for level, _ in HEADING.findall(prose(page))], code, links, text.count("\n|"), text.count("\n- ")


def test_readme_says_the_same_in_chinese() -> None:
    for english, chinese in zip(in_step(README), in_step(CHINESE), strict=True):
        assert english == chinese
    spans = [set(SPAN.findall(prose(page))) for page in (README, CHINESE)]
    assert spans[0] == spans[1], "what stands in code type is never translated"


@pytest.mark.parametrize("page", [README, CHINESE], ids=name_of)
def test_readme_fits_on_a_few_screens(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 130


# Files that are shown.


@every_page
def test_every_inventory_and_playbook_that_is_shown_is_sound(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "inventories", tmp_path / "inventories")
    (tmp_path / "playbooks").mkdir()
    for number, (language, text) in enumerate(fences(page)):
        data = yaml.safe_load(text) if language == "yaml" else None
        if isinstance(data, dict) and ({"nodes", "stages"} & set(data)):
            file = tmp_path / "playbooks" / f"shown-{number}.yml"
            file.write_text(text)
            assert main(["lint", str(file)]) == 0, capsys.readouterr().out
        elif isinstance(data, dict) and "workdirs" in data:
            (tmp_path / "agent.yml").write_text(text)
            assert read_rules(tmp_path / "agent.yml").looks_only


# CONTRIBUTING.


def test_every_room_has_its_line() -> None:
    told = CONTRIBUTING.read_text().partition("## The rooms")[2].partition("## The words")[0]
    named = set(re.findall(r"^ (\w+)   ", told, re.MULTILINE)) | set(re.findall(r"   (\w+)    plan", told))
    rooms = {folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").exists()}
    assert named == rooms


def test_the_glossary_is_short_and_every_word_is_used() -> None:
    terms = known_words()
    assert 30 < len(terms) <= 40
    code = "\n".join(file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py")).lower()
    assert [term for term in terms if term not in code] == []
