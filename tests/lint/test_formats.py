from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from runbook.cli.argument_parser import make_parser
from runbook.cli.main import main
from runbook.lint.findings import REPORT_FORMATS, LintFinding, Report, lint_rules
from runbook.model.errors import Span

from .write import PAIR, write

ROOT = Path(__file__).parents[2]
BAD = "nodes:\n  node-a: {adress: 10.0.0.1, vars: {mode: 0644}}\n  node-b: {gpus: x}\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path, inventories__bad_yml=BAD, inventories__good_yml=PAIR.replace("10.0.0", "10.0.9"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["lint", *arguments])
    out = capsys.readouterr()
    return code, out.out, out.err


# Text.


def test_text_ends_with_a_sum(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys, "inventories")
    assert (code, err) == (1, "")
    assert out.endswith("\n\n2 errors, 1 warning in 1 of 2 files\n")
    assert out.startswith("error[inventory.unknown-key]: unknown key `adress` in `node-a`\n")
    assert "\nwarning[yaml.octal]: " in out


def test_a_clean_lint_says_so(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "inventories/good.yml") == (0, "clean: 1 file\n", "")


def test_what_was_left_out_is_said_beside_the_output(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(project, compose_yml="services: {}\n")
    _, out, err = said(capsys, "-o", "json", ".")
    assert json.loads(out)["version"] == 1
    assert err == "note: compose.yml: neither an inventory nor a playbook\n"


def test_nothing_to_look_at_is_exit_2(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys, "-o", "json", "nowhere")
    assert (code, out) == (2, "")
    assert "nowhere" in err


# JSON.


def test_json_has_every_key_always(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "-o", "json", "inventories")
    document = json.loads(out)
    assert code == 1
    assert set(document) == {"version", "findings"}
    assert document["version"] == 1
    for finding in document["findings"]:
        assert list(finding) == ["rule", "severity", "file", "line", "column", "message", "help"]
        assert all(isinstance(finding[key], str) for key in ("rule", "severity", "file", "message", "help"))
        assert all(type(finding[key]) is int for key in ("line", "column"))
        assert finding["severity"] in ("error", "warning")
    assert document["findings"][0] == {
        "rule": "inventory.unknown-key",
        "severity": "error",
        "file": "inventories/bad.yml",
        "line": 2,
        "column": 12,
        "message": "unknown key `adress` in `node-a`",
        "help": "did you mean `address`?",
    }


def test_json_of_a_clean_lint(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "-o", "json", "inventories/good.yml")
    assert (code, json.loads(out)) == (0, {"version": 1, "findings": []})


@pytest.mark.parametrize("output", REPORT_FORMATS)
def test_two_runs_give_the_same_bytes_whatever_the_order_of_the_paths(
    project: Path, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    one = said(capsys, "-o", output, "inventories/bad.yml", "inventories/good.yml")
    assert one == said(capsys, "-o", output, "inventories/good.yml", "inventories/bad.yml", "inventories")


@pytest.mark.parametrize("output", REPORT_FORMATS)
def test_a_name_that_is_not_text_can_be_told(project: Path, output: str) -> None:
    Path(os.fsdecode(b"inventories/\xff.yml")).write_text(BAD)
    command = [sys.executable, "-m", "runbook", "lint", "-o", output, "inventories"]
    done = subprocess.run(
        command, capture_output=True, cwd=project, env={**os.environ, "PYTHONIOENCODING": "utf-8"}, check=False
    )
    assert (done.returncode, done.stderr) == (1, b"")
    shown = {"sarif": b"%FF"}.get(output, b"\\udcff")
    assert b"inventories/" + shown + b".yml" in done.stdout


# SARIF.

TEXT = {"type": "string", "minLength": 1}
POSITIVE = {"type": "integer", "minimum": 1}


def strict(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


SARIF = strict(
    **{
        "$schema": {"const": "https://json.schemastore.org/sarif-2.1.0.json"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "minItems": 1,
            "items": strict(
                tool=strict(
                    driver=strict(
                        name={"const": "runbook"},
                        semanticVersion={"type": "string", "pattern": r"^\d+\.\d+\.\d+"},
                        rules={
                            "type": "array",
                            "uniqueItems": True,
                            "items": strict(
                                id=TEXT,
                                shortDescription=strict(text=TEXT),
                                fullDescription=strict(text=TEXT),
                                help=strict(text=TEXT, markdown=TEXT),
                                defaultConfiguration=strict(level={"enum": ["none", "note", "warning", "error"]}),
                            ),
                        },
                    )
                ),
                columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                results={
                    "type": "array",
                    "items": strict(
                        ruleId=TEXT,
                        ruleIndex={"type": "integer", "minimum": 0},
                        level={"enum": ["none", "note", "warning", "error"]},
                        message=strict(text=TEXT),
                        locations={
                            "type": "array",
                            "minItems": 1,
                            "items": strict(
                                physicalLocation=strict(
                                    artifactLocation={
                                        "type": "object",
                                        "required": ["uri"],
                                        "properties": {"uri": TEXT, "uriBaseId": {"const": "%SRCROOT%"}},
                                        "additionalProperties": False,
                                    },
                                    region=strict(
                                        startLine=POSITIVE, startColumn=POSITIVE, endLine=POSITIVE, endColumn=POSITIVE
                                    ),
                                )
                            ),
                        },
                        partialFingerprints={
                            "type": "object",
                            "minProperties": 1,
                            "additionalProperties": {"type": "string"},
                        },
                    ),
                },
            ),
        },
    }
)
"""What we use of SARIF 2.1.0, narrower than its own schema, which forbids other properties at all these places."""


def sarif_of(capsys: pytest.CaptureFixture[str], *paths: str) -> Any:
    document = json.loads(said(capsys, "-o", "sarif", *paths)[1])
    jsonschema.validate(document, SARIF)
    return document


def test_sarif_is_as_the_standard_wants_it(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = sarif_of(capsys, "inventories")["runs"][0]
    listed = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        rule = listed[result["ruleIndex"]]
        assert rule["id"] == result["ruleId"]
        assert rule["defaultConfiguration"]["level"] == result["level"] == lint_rules()[rule["id"]].severity
        region = result["locations"][0]["physicalLocation"]["region"]
        assert (region["endLine"], region["endColumn"]) > (region["startLine"], region["startColumn"])
    assert sarif_of(capsys, "inventories/good.yml")["runs"][0]["results"] == []


def test_files_have_uris_that_can_be_found_again(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(project, **{"inventories__ä b#%_yml": BAD})
    outside = project.parent / "outside.yml"
    outside.write_text(BAD)
    document = sarif_of(capsys, "inventories/ä b#%.yml", "../outside.yml", str(project / "inventories" / "bad.yml"))
    found = {
        json.dumps(result["locations"][0]["physicalLocation"]["artifactLocation"])
        for result in document["runs"][0]["results"]
    }
    places = [json.loads(place) for place in found]
    below = sorted(unquote(place["uri"]) for place in places if place.get("uriBaseId") == "%SRCROOT%")
    assert below == ["inventories/bad.yml", "inventories/ä b#%.yml"]
    assert [place["uri"] for place in places if "uriBaseId" not in place] == [outside.as_uri()]
    assert all(re.fullmatch(r"[A-Za-z0-9._~/%:-]+", place["uri"]) for place in places)


def test_a_fingerprint_outlives_new_lines_and_tells_twins_apart(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def prints() -> list[str]:
        results = sarif_of(capsys, "a.yml")["runs"][0]["results"]
        return [result["partialFingerprints"]["runbookLine/v1"] for result in results]

    twins = "  - {check: ping, name: x, tags: [never]}\n"
    write(project, a_yml="stages:\n" + twins + "  - {check: port, timeout: soon}\n")
    before = prints()
    write(project, a_yml="# new\n\nstages:\n" + twins + "  - {check: port, timeout: soon}\n")
    assert prints() == before
    assert len(set(before)) == len(before) == 2
    write(project, a_yml="nodes:\n  a: {address: 10.0.0.1, vars: {x: 0644, y: 0644}}\n")
    assert len(set(prints())) == 2


# GitHub.

COMMAND = re.compile(r"::(error|warning) ([^:]*)::(.*)")


def unescaped(text: str) -> str:
    for code, char in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, char)
    return text


def test_github_gets_one_command_a_finding(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "-o", "github", "inventories")
    assert code == 1
    assert out.splitlines()[0] == (
        "::error file=inventories/bad.yml,line=2,endLine=2,col=12,endColumn=18,title=inventory.unknown-key"
        "::unknown key `adress` in `node-a`%0Adid you mean `address`?"
    )
    assert out.splitlines()[-1] == "2 errors, 1 warning in 1 of 2 files"


WILD = st.text(alphabet="a:,%\r\n`=é\u2028", max_size=12)


@given(WILD, WILD, WILD)
def test_nothing_escapes_a_workflow_command(file: str, message: str, help: str) -> None:
    rule = lint_rules()["yaml.syntax"]
    report = Report((LintFinding(rule, Span(file, 1, 1), message, help),), (file,), (), lambda _: [])
    first, *rest = REPORT_FORMATS["github"](report).split("\n")
    assert rest == ["1 error", ""]
    match = COMMAND.fullmatch(first)
    assert match is not None
    properties = dict(pair.split("=", 1) for pair in match[2].split(","))
    assert unescaped(properties["file"]) == file
    assert unescaped(match[3]) == f"{message}\n{help}"


# The pre-commit hook.


def test_the_hook_calls_what_there_is() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    program, *arguments = hook["entry"].split()
    assert program == "runbook"
    assert make_parser().parse_args([*arguments, "inventories/a.yml", "playbooks/b.yml"]).paths
    assert (hook["id"], hook["language"], hook["types"]) == ("runbook-lint", "python", ["yaml"])
    for path, ours in {
        "inventories/a.yml": True,
        "cluster/playbooks/x/b.yaml": True,
        "src/my_inventories/a.yml": False,
        "docker-compose.yml": False,
    }.items():
        assert bool(re.search(hook["files"], path)) == ours


@pytest.mark.parametrize("output", REPORT_FORMATS)
def test_no_file_steers_the_terminal(project: Path, output: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("red\x1b[31m.yml").write_text(
        'env: {NCCL_DEBUG: "\\e[31mx", NCCL_SOCKET_IFNAME: "eth0\\e[31m, b"}\nnodes: {a: {}}\n'
    )
    Path("other\x1b[31m.yml").write_text("services: {}\n")
    assert main(["lint", "-o", output, "."]) == 1
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert "NCCL_DEBUG" in said.out
