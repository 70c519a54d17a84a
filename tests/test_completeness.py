"""What must not be forgotten: a page and tests for every check, every cause in the catalogue, examples that load, and
programs that a node's old Python can run."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from renderers import assigned, called, rendered, texts_in
from syntax_trees import SOURCE, nodes

import runbook
from runbook.causes.catalogue import CAUSE_KINDS, cause_pages, template_fields
from runbook.checks import CHECKS
from runbook.checks.base import Check
from runbook.checks.connection import TCP_REASONS
from runbook.checks.ranks.own_failure import SCRIPT_STOP_CAUSES
from runbook.checks.reach.gpu_faults import GPU_FAULTS
from runbook.checks.shell import Shell
from runbook.cli.explain import LAUNCH_STAGE, checked_by_lines, explain, stage_page
from runbook.diagnose.all_rules import RULES, SIGNS
from runbook.diagnose.derived_signs import DIFFERING_VALUE_SIGNS, WAITING_POD_SIGNS
from runbook.engine.plan import Choice, make_plan
from runbook.files.inventory import load_inventory
from runbook.files.playbook import load_playbook
from runbook.files.schema import compile_schema, load_schema
from runbook.files.shipped_files import find_inventory, find_playbook, shipped_names
from runbook.files.yaml_document import parse_document
from runbook.jobs.launch import Launch
from runbook.lint.findings import lint_rules, rule_pages
from runbook.model.errors import FilesWrong
from runbook.parsers.nvidia_smi_facts import SMI_REFUSALS
from runbook.transport import node_answers

PACKAGE = Path(runbook.__file__).parent
pytestmark = SOURCE
TESTS = Path(__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
NODE_PROGRAMS = sorted((PACKAGE / "node").glob("*.py"))
NOT_CHECKS = {"base", "context", "capped_output", "shell", "__init__"}
"""Modules in checks/ that every check shares, or a stage of its own."""


def page_of(name: str) -> str:
    return stage_page(name)


def module_of(check: type[Check]) -> str:
    return check.__module__.rpartition(".")[2]


# Checks.


def test_every_module_of_checks_is_registered() -> None:
    modules = {file.stem for file in (PACKAGE / "checks").glob("*.py")} - NOT_CHECKS
    pages = {file.stem for file in (PACKAGE / "checks").rglob("*.md")}
    assert modules <= pages == {module_of(check) for check in CHECKS.values()} == set(CHECKS)


def test_every_check_is_in_the_table_under_its_own_id() -> None:
    assert all(name == check.id for name, check in CHECKS.items())
    assert Launch.id == LAUNCH_STAGE

    def kinds(base: type[object]) -> Iterator[type[object]]:
        for kind in base.__subclasses__():
            yield kind
            yield from kinds(kind)

    ours = {kind for kind in kinds(Check) if kind.__module__.startswith("runbook.")}
    assert ours == {*CHECKS.values(), Launch, Shell}


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_has_tests(name: str) -> None:
    file = TESTS / "checks" / f"test_{name}.py"
    functions = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
    assert sum(node.name.startswith("test_") for node in functions) >= 5
    assert re.search(rf"runbook\.checks\.{name}\b", file.read_text())


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_has_a_page_with_its_parts(name: str) -> None:
    page = page_of(name)
    assert page.startswith(f"# {name}\n\nProves ")
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert headings == ["How", "Arguments", "Causes", "What it cannot see"]
    assert max(len(line) for line in page.splitlines() if not line.startswith("- ")) <= 120


@pytest.mark.parametrize("name", CHECKS)
def test_every_argument_is_on_the_page_with_its_unit_and_default(name: str) -> None:
    given = page_of(name).partition("## Arguments")[2].partition("## Causes")[0]
    listed = dict(re.findall(r"^- `(\w+)` \((.+?)\): ", given, re.MULTILINE))
    fields = dataclasses.fields(CHECKS[name])
    assert set(listed) == {field.name for field in fields}
    for field in fields:
        default = {"None": "none", "1024": "1K", "1048576": "1M"}.get(str(field.default)) or format(
            field.default, "" if isinstance(field.default, str) else "g"
        )
        assert listed[field.name] == f"{field.metadata['unit']}, default {default}"
    assert f"{CHECKS[name].timeout_s:g} s" in given


CAUSE_LINE = re.compile(r"^- `([a-z0-9-]+)`: [^;\n]+; .+; .+$")


def causes_on(page: str) -> list[str]:
    lines = page.partition("## Causes")[2].partition("## What it cannot see")[0].splitlines()
    listed = [line for line in lines if line.startswith("- ")]
    assert [line for line in listed if not CAUSE_LINE.match(line)] == [], "symptom; how to confirm; remedy"
    return [match[1] for line in listed if (match := CAUSE_LINE.match(line))]


@pytest.mark.parametrize("name", CHECKS)
def test_every_cause_on_a_page_is_in_the_catalogue_and_stands_there_once(name: str) -> None:
    listed = causes_on(page_of(name))
    assert listed
    assert set(listed) <= cause_pages().keys()
    assert len(set(listed)) == len(listed)


def test_the_page_of_a_launch_has_its_parts_every_key_and_known_causes() -> None:
    page = page_of("launch")
    assert page.startswith("# launch\n\nProves ")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == ["How", "Keys", "Causes", "What it cannot see"]
    assert max(len(line) for line in page.splitlines() if not line.startswith("- ")) <= 120
    keys = page.partition("## Keys")[2].partition("## Causes")[0]
    launch = load_schema("playbook")["$defs"]["launch"]["properties"]
    assert set(re.findall(r"^- `(\w+)`", keys, re.MULTILINE)) == set(launch)
    listed = dict(re.findall(r"^- `(\w+)` \(default (\w+)\):", keys, re.MULTILINE))
    defaults = {name: re.search(r"Default: (\w+)\.$", key["description"]) for name, key in launch.items()}
    assert listed == {name: found[1] for name, found in defaults.items() if found}
    assert set(causes_on(page)) <= cause_pages().keys()


# Causes.


def test_every_page_of_a_cause_is_of_bearable_width_and_speaks_of_what_there_is() -> None:
    for page in cause_pages().values():
        for part in (page.symptom, page.why, page.confirm, page.remedy):
            assert 10 < len(part) <= 240
            assert part.endswith((".", "`", "?"))
        assert set(page.kinds) <= CAUSE_KINDS.keys()
        assert set(page.follows) <= cause_pages().keys()
        assert set(page.by_check) <= {*CHECKS, "launch"}


UNITS = {"ssh": "sshd", "chrony": "chronyd"}
"""What Debian calls them, and what Red Hat and SUSE do."""
PACKAGES = ("apt-get install", "dnf install", "zypper install")


def test_commands_of_remedies_are_for_every_family_of_systems() -> None:
    root = Path(runbook.__file__).parent
    texts = [page.read_text() for page in (root / "causes" / "pages").glob("*.md")]
    texts += [re.sub(r'"\s*\n\s*f?"', "", (root / "transport" / "ssh_errors.py").read_text())]
    found = set()
    for line in (line for text in texts for line in text.splitlines()):
        for program, unit in re.findall(r"\b(systemctl|journalctl)\b[^`|&;]*? (ssh|chrony)(?=[` |&;])", line):
            found.add((program, unit))
            assert re.search(rf"\b{UNITS[unit]}\b", line), line
        if line.startswith("- remedy") and re.search(r": `[^`]*apt-get install[^`]*`$", line):
            found.add(("apt-get", ""))
            assert all(command in line for command in PACKAGES), line
    assert {("systemctl", "ssh"), ("journalctl", "ssh"), ("systemctl", "chrony"), ("apt-get", "")} <= found


def test_what_logs_are_told_to_show_is_in_the_catalogue() -> None:
    assert {rule.cause for rule in RULES} <= cause_pages().keys()
    signs = {sign.name for sign in SIGNS}
    sources = (PACKAGE / "diagnose").rglob("*.py")
    derived = {name for source in sources for name in re.findall(r'(?:Hit\(\s*|sign=)"([a-z-]+)"', source.read_text())}
    derived |= {name for *_, name in DIFFERING_VALUE_SIGNS} | {*WAITING_POD_SIGNS.values()}
    for rule in RULES:
        assert {*rule.names, *rule.needs, *rule.unless} <= signs | derived, rule.cause


@dataclasses.dataclass(frozen=True)
class Use:
    cause: str
    file: str
    line: int


MAKERS = {
    "Finding": 0,
    "finding_for": 0,
    "remedy_from_page": 0,
    "Unreachable": 0,
    "unreachable_for": 0,
    "NoPython": 0,
    "SilentPython": 0,
    "RankFailure": 0,
    "Blocked": 0,
    "proves": 0,
    "explains": 0,
}
"""What is made with a cause, and which argument it is."""


def uses(file: Path) -> Iterator[Use]:
    for node in nodes(file):
        found: list[ast.AST] = []
        if isinstance(node, ast.Call):
            name = called(node)
            if name in MAKERS and len(node.args) > MAKERS[name]:
                found.append(node.args[MAKERS[name]])
            found += [keyword.value for keyword in node.keywords if keyword.arg == "cause"]
        elif isinstance(node, ast.Assign):
            found += assigned((node,), {"cause"})
        for value in found:
            for text in texts_in(value):
                yield Use(str(text.value), str(file.relative_to(PACKAGE)), text.lineno)


@functools.cache
def all_uses() -> list[Use]:
    return [use for file in SOURCES for use in uses(file)]


def test_the_search_finds_them() -> None:
    """It must not go blind when the code is written in another way."""
    found = {use.cause for use in all_uses()}
    assert len(found) > 50
    assert {"ssh-refused", "torch-missing", "firewall-drop", "ssh-host-key-changed", "python-too-old"} <= found
    assert {"rank-killed", "data-ports-blocked", "tcp-connection-lost-midrun"} <= found


def test_every_cause_that_is_used_is_in_the_catalogue() -> None:
    assert [use for use in all_uses() if use.cause not in cause_pages()] == []


OF_MANY = {"rank": {"node", "python"}, "limit": {"node"}} | {kind: {"indices"} for kind in GPU_FAULTS}
OF_MANY |= {"signal": {"node", "log"}, "bus-error": {"node", "log"}}
OF_MANY |= {event: {"node"} for event in SCRIPT_STOP_CAUSES} | {
    way: set() for way in (*TCP_REASONS, *(one.way for one in SMI_REFUSALS))
}
"""Ways of which a program looks up the cause, and the fields that it gives."""


def test_every_template_of_a_remedy_gets_the_fields_that_it_names_and_each_is_used() -> None:
    used = {(rule.cause, rule.way) for rule in RULES if rule.way}
    assert [(cause, way) for cause, way in used if template_fields(cause_pages()[cause].remedies[way])] == []
    for file in SOURCES:
        if file.parent.name == "causes":
            continue
        for call in rendered(file):
            used |= call.ways
            wanted = [template_fields(cause_pages()[cause].remedies[way]) for cause, way in call.ways]
            whose = f"{file}:{call.line}"
            assert wanted or not call.named, whose
            assert all(fields <= call.fields.keys() for fields in wanted), whose
            assert not wanted or set().union(*wanted) == call.fields.keys(), whose
    for page in cause_pages().values():
        for way, template in page.remedies.items():
            if (page.id, way) in used:
                continue
            if way in OF_MANY:
                assert template_fields(template) <= OF_MANY[way], (page.id, way)
            else:
                assert not way, (page.id, way, "nobody finds it so")


def causes_in(file: Path) -> set[str]:
    """Every text in a source that is a cause of the catalogue, however it comes into a finding."""
    texts = {n.value for n in nodes(file) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return texts & cause_pages().keys()


@pytest.mark.parametrize("name", CHECKS)
def test_every_cause_of_a_check_is_on_its_page(name: str) -> None:
    module = Path(str(sys.modules[CHECKS[name].__module__].__file__))
    folder = module.parent.name == name
    found = set().union(*map(causes_in, module.parent.glob("*.py") if folder else [module]))
    assert found - set(causes_on(page_of(name))) == set()


def test_what_the_ranks_may_say_is_on_the_pages_of_the_checks_that_start_them() -> None:
    shared = set().union(*map(causes_in, (PACKAGE / "checks" / "ranks").glob("*.py")))
    shared |= causes_in(PACKAGE / "node" / "rank.py")
    assert shared - set(causes_on(page_of("connection"))) <= {"allreduce-slow"}  # which only that one can tell
    assert {"rank-killed", "rank-stopped", "rank-behind"} <= set(causes_on(page_of("allreduce")))


def test_what_logging_in_may_give_is_on_the_page_of_reach() -> None:
    shared = {use.cause for use in all_uses() if use.file.startswith("transport/")}
    assert shared - set(causes_on(page_of("reach"))) == set()


@pytest.mark.parametrize("name", [*CHECKS, "launch"])
def test_explain_shows_the_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(name) == 0
    assert capsys.readouterr().out == page_of(name)


def test_explain_knows_every_cause_and_where_it_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    for cause, page in cause_pages().items():
        assert explain(cause) == 0
        said = capsys.readouterr().out
        assert said.startswith(f"{cause}: {page.summary}\n")
        assert "symptom: " in said
        assert "remedy:  " in said
    assert "checked by ping: `mtu-blackhole`: " in checked_by_lines("mtu-blackhole")


# Examples.


def test_something_is_shipped() -> None:
    assert "two_node_allreduce" in shipped_names("playbooks")
    assert {"localhost", "two_node"} <= set(shipped_names("inventories"))


@pytest.mark.parametrize("name", shipped_names("inventories"))
def test_every_shipped_inventory_loads(name: str) -> None:
    assert load_inventory(find_inventory(name))[0].nodes


@pytest.mark.parametrize("name", shipped_names("playbooks"))
def test_every_shipped_playbook_loads_and_can_be_planned_on_its_inventory(name: str) -> None:
    path = find_playbook(name)
    playbook = load_playbook(path, checks=CHECKS)
    assert playbook.stages
    assert playbook.inventory is not None
    inventory, _ = load_inventory(path.parent / playbook.inventory)
    if any(stage.kind == "launch" for stage in playbook.stages):
        return  # rendered, not run, in this version
    assert len(make_plan(playbook, inventory, Choice()).stages) == len(playbook.stages) + 1


# Programs that run on the nodes.


@pytest.mark.parametrize("file", NODE_PROGRAMS, ids=lambda file: file.stem)
def test_node_programs_are_python_3_8_and_import_nothing_of_ours(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 8))
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            modules.add(str(node.module))
    for_types = {"runbook.transport.node_answers"}
    assert {name for name in modules if name.startswith("runbook") and not name.startswith("runbook.node")} <= for_types
    others = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names
    assert others - {"runbook"} <= ({"torch", "rank_bandwidth"} if file.stem == "rank" else set())


def old_python() -> str | None:
    """A Python 3.8 of this machine, if there is one."""
    for name in (*(Path.home() / ".pyenv" / "versions").glob("3.8.*/bin/python3.8"), shutil.which("python3.8")):
        if name is not None and Path(name).exists():
            return str(name)
    return None


@pytest.mark.skipif(old_python() is None, reason="no Python 3.8 on this machine")
def test_a_real_python_3_8_compiles_them() -> None:
    python = old_python()
    assert python is not None
    script = "import pathlib, sys\nfor f in sys.argv[1:]: compile(pathlib.Path(f).read_bytes(), f, 'exec')"
    done = subprocess.run(
        [python, "-S", "-W", "error", "-c", script, *map(str, NODE_PROGRAMS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_program_a_check_runs_is_there() -> None:
    names = set()
    for file in SOURCES:
        for node in nodes(file):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("ask", "program", "push_program")
                and node.args
                and isinstance(node.args[0], ast.Constant)
            ):
                names.add(str(node.args[0].value))
    names |= {str(value) for value in vars(node_answers).values() if isinstance(value, node_answers.Asked)}
    assert names >= {"host_facts", "ping", "port", "mesh", "firewall_rules", "ibstat", "rank"}
    assert names <= {file.stem for file in NODE_PROGRAMS}


# Rules of lint.

TOLD_BY_A_RUN = {"inventory.windows-node", "playbook.detach-over-slurm", "playbook.launch-workdir"}
"""What can be written and rendered but not run: no mistake in a file."""


def problem_ids() -> tuple[set[str], set[str]]:
    """Every `family.name` in the sources that can say something about a file, and every text that may be such a name."""
    families = {rule.partition(".")[0] for rule in lint_rules()}
    ids: set[str] = set()
    words: set[str] = set()
    for file in SOURCES:
        if file.relative_to(PACKAGE).parts[0] not in ("files", "lint", "engine", "checks", "launch", "jobs"):
            continue
        for node in nodes(file):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value.removeprefix("."))
    for word in words:
        if re.fullmatch(r"[a-z]+\.[a-z0-9-]+", word) and word.partition(".")[0] in families:
            ids.add(word)
    return ids, words


def test_every_problem_about_a_file_has_a_section_and_every_section_a_problem() -> None:
    ids, words = problem_ids()
    assert ids - lint_rules().keys() == TOLD_BY_A_RUN
    assert [rule for rule in lint_rules() if rule not in ids and rule.partition(".")[2] not in words] == []


def test_pages_of_rules_are_easy_to_read() -> None:
    for name, text in rule_pages().items():
        assert re.match(r"# \S.*\n\n\S", text), name
        assert text.count("```") % 2 == 0, name
        assert max(map(len, text.splitlines())) <= 120, name
    for rule in lint_rules().values():
        assert re.fullmatch(r"[a-z]+\.[a-z0-9-]+", rule.id)
        assert rule.summary.endswith("."), rule.id
        assert len(rule.summary) <= 120, rule.id


def test_examples_on_the_pages_of_rules_are_yaml() -> None:
    """Of the good ones that is: they are copied."""
    for rule in lint_rules().values():
        for example in re.findall(r"```yaml\n(.*?)```", rule.text, re.DOTALL):
            if example.startswith("# good"):
                assert [problem.id for problem in parse_document(example, rule.id).problems] == [], rule.id


def test_every_rule_can_be_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for rule in lint_rules().values():
        assert explain(rule.id) == 0
        assert capsys.readouterr().out.startswith(f"# {rule.id}\n\n{rule.severity}; ")
    assert explain(None) == 0
    listed = capsys.readouterr().out
    assert all(f"  {rule} " in listed for rule in lint_rules())
    with pytest.raises(FilesWrong, match="no check, cause or lint rule") as wrong:
        explain("yaml.octa")
    assert wrong.value.problems[0].help == "did you mean `yaml.octal`?"


@pytest.mark.parametrize("kind", ["inventory", "playbook", "serve"])
def test_every_key_of_the_schemas_is_described_with_an_example_and_its_unit(kind: str) -> None:
    """Editors show them; what is a number says of what."""
    root = load_schema(kind)
    keys = dict(schema_keys(root, root))
    assert len(keys) >= 7
    for name, part in keys.items():
        assert str(part.get("description", "")).endswith("."), name
        assert part.get("examples"), name
        ok = compile_schema(part, root)
        assert all(ok(example) for example in part["examples"]), name
        if "port" in name or "timeout" in name or "rate" in name:
            assert re.search(r"second|Gbit/s|TCP|1 to 65535", part["description"]), name


def schema_keys(part: Mapping[str, Any], root: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key that can be written, with its schema; a `$ref` is followed, what stands beside it wins."""
    if "$ref" in part:
        part = {**root["$defs"][part["$ref"].rpartition("/")[2]], **part}
    for name, inner in part.get("properties", {}).items():
        whole = {**root["$defs"][inner["$ref"].rpartition("/")[2]], **inner} if "$ref" in inner else inner
        yield f"{at}{name}", {key: value for key, value in whole.items() if key != "$ref"}
        yield from schema_keys(inner, root, f"{at}{name}.")
    for within in ("items", "additionalProperties"):
        if isinstance(part.get(within), dict):
            yield from schema_keys(part[within], root, at)
    for branch in part.get("anyOf", []):
        yield from schema_keys(branch, root, at)


# Rooms.


def test_the_model_imports_nothing_of_ours_and_nothing_but_the_standard_library() -> None:
    for file in (PACKAGE / "model").glob("*.py"):
        for node in nodes(file):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.startswith("runbook.model") or name.partition(".")[0] in sys.stdlib_module_names


def test_nothing_below_cli_and_report_prints() -> None:
    for file in SOURCES:
        if file.relative_to(PACKAGE).parts[0] in ("cli", "report", "node"):
            continue
        calls = [node for node in nodes(file) if isinstance(node, ast.Call)]
        assert not [c.lineno for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"], file
