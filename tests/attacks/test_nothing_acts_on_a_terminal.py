"""Names and texts of nodes, logs and files are shown, and never act: whatever the command, whatever its format."""

from __future__ import annotations

import ast
import io
import json
import os
import sys
import tarfile
import unicodedata
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import one_in
from report.made_up_runs import Story
from syntax_trees import SOURCE, nodes

import runbook
from runbook.cli import jobs as jobs_command
from runbook.cli.main import main
from runbook.jobs.known_jobs import Cleaned, KnownJob, Stopped
from runbook.model.errors import FilesWrong, Problem, RunbookError, Span, Unreachable
from runbook.model.inventory import Inventory, Rendezvous
from runbook.model.safe_text import visible_json, visible_multiline_text, visible_text
from runbook.model.verdict import Finding, Outcome, Verdict
from runbook.report.console import Console
from runbook.report.junit import Junit
from runbook.report.run_json import event_to_json
from runbook.report.standard_streams import OutputStream, encodable_text, guard_standard_streams, stderr, stdout

PACKAGE = Path(runbook.__file__).parent
HOSTILE = {
    "colour": "\x1b[31mred\x1b[0m",
    "clear": "\x1b[2J\x1b[H",
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;ZXZpbA==\x1b\\",
    "C1": "\x9b31mx\x9d0;y\x9c",
    "bidi": "a\u202etxt.exe\u2066b\u2069",
    "hidden": "a\u200bb\u2060c\ufeffd\u00ade",
    "joiners": "no\u200dde\u200c-a",
    "blanks": "\u3164\u115f\U000e0041\ufe0f",
    "bell": "\x07\x08\x7f\x0e",
    "return": "good\rbad",
    "line": "good\nFAIL: bad",
    "separators": "a\u2028b\u2029c\x85d\x0ce",
}
NOT_IN_A_NAME = {"surrogate": "half\udcff", "NUL": "a\0b"}
EVERY = {**HOSTILE, **NOT_IN_A_NAME}
TEXT = st.text(st.characters(codec=None, categories=None), max_size=60) | st.sampled_from(list(EVERY.values()))


def acting(text: str) -> list[str]:
    """The characters of an output that would act or hide. Newlines end lines; emoji and scripts keep their joiners."""
    found = [
        character
        for character in text
        if character != "\n" and unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    ]
    return [hex(ord(character)) for character in found if character not in "\u200c\u200d"] + [
        hex(ord(character)) for character in text if character in "\u3164\u115f\u2060\U000e0041"
    ]


# The one function.


@given(TEXT)
def test_what_is_visible_does_not_act(text: str) -> None:
    assert acting(visible_text(text)) == []
    assert "\n" not in visible_text(text)
    assert visible_text(visible_text(text)) == visible_text(text)
    assert visible_multiline_text(text).count("\n") == text.count("\n")
    visible_text(text).encode("utf-8")


@given(st.text("abc äöü漢字Жد☃😀·…—", max_size=30))
def test_ordinary_text_stands_as_it_is(text: str) -> None:
    assert visible_text(text) == text


def test_joiners_stay_where_they_belong() -> None:
    for text in ("👨‍👩‍👧", "❤️‍🔥", "می‌خواهم"):
        assert visible_text(text) == text
    assert visible_text("node\u200d-a") == "node\\u200d-a"
    assert visible_text("a\ufe0fb") == "a\\ufe0fb"


@given(
    st.recursive(
        TEXT, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8
    )
)
def test_json_keeps_its_strings(value: Any) -> None:
    document = visible_json(json.dumps(value, ensure_ascii=False, indent=1))
    assert acting(document) == []
    assert json.loads(document) == json.loads(json.dumps(value))


@given(TEXT, st.sampled_from(["ascii", "latin-1", "utf-8", "cp1252", "utf-16"]))
def test_any_stream_can_carry_it(text: str, encoding: str) -> None:
    told = encodable_text(visible_text(text), encoding)
    assert told.encode(encoding).decode(encoding) == told


# Nobody prints but that module.


@SOURCE
def test_nobody_else_writes_to_a_standard_stream() -> None:
    allowed = "report/standard_streams.py"
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name.startswith("node/") or name == allowed:
            continue
        for node in nodes(path):
            printing = isinstance(node, ast.Call) and ast.unparse(node.func) in PRINTERS
            if printing and isinstance(node, ast.Call) and ast.unparse(node.func) == "os.write":
                printing = not isinstance(node.args[0], ast.Name)  # a descriptor that was opened for it
            stream = isinstance(node, ast.Attribute) and ast.unparse(node) in STREAMS
            imported = isinstance(node, ast.ImportFrom) and (
                (
                    node.module == "sys"
                    and {one.name for one in node.names} & {"stdout", "stderr", "__stdout__", "__stderr__"}
                )
                or (node.module == "rich" and any(one.name == "print" for one in node.names))
            )
            if printing or stream or imported:
                found.append(f"{name}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)[:80]}")
    assert [line for line in found if not line.startswith("cli/main.py")] == []
    assert len(found) == 2, found  # `entry` flushes both when all is said


PRINTERS = ("print", "pprint", "pprint.pprint", "traceback.print_exc", "traceback.print_exception", "traceback.print_stack", "faulthandler.dump_traceback", "warnings.warn", "os.write", "rich.print", "logging.basicConfig")  # fmt: skip
STREAMS = ("sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__")


def test_painted_pages_are_the_only_verbatim_text() -> None:
    users = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if ".verbatim" in path.read_text(encoding="utf-8") and path.name != "standard_streams.py"
    ]
    assert sorted(users) == ["cli/diagnose.py", "cli/run.py"]


@pytest.mark.parametrize("hostile", EVERY)
def test_what_libraries_print_comes_by_here_as_well(hostile: str, capfd: pytest.CaptureFixture[str]) -> None:
    with guard_standard_streams():
        print(EVERY[hostile])
        print(EVERY[hostile], file=sys.stderr)
        sys.stderr.writelines([EVERY[hostile]])
    said = capfd.readouterr()
    assert acting(said.out + said.err) == []


@given(TEXT)
def test_a_line_stays_one_line(text: str) -> None:
    stream, file = OutputStream("stdout"), io.StringIO()
    before, sys.stdout = sys.stdout, file
    try:
        stream.line(text)
    finally:
        sys.stdout = before
    assert file.getvalue().count("\n") == 1


def test_a_reader_that_has_gone_ends_nothing() -> None:
    """`runbook logs -f JOB | head`: the following asks `unread`, and ends by itself."""
    read, write = os.pipe()
    os.close(read)
    stream, before = OutputStream("stdout"), sys.stdout
    with os.fdopen(write, "w", buffering=1) as file:
        sys.stdout = file
        try:
            assert not stream.tell("hello\n")
            assert not stream.tell("hello\n")
        finally:
            sys.stdout = before
        assert stream.unread
        assert stream.lost is None
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())  # what is left in the buffer


# Every command, with hostile names wherever a foreign name may stand.

Say = Callable[..., str]


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Say:
    """Call a command; its output, in which nothing acts."""

    def call(*arguments: str) -> str:
        capfd.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", ["runbook", *arguments])
            try:
                code = main(arguments)
            except SystemExit as done:
                code = int(done.code or 0)
        out, err = capfd.readouterr()
        assert code != 70, err
        assert acting(out) == []
        assert acting(err) == []
        assert "\nFAIL: bad" not in f"\n{out}\n{err}"  # nor does a name make a line of its own
        return out + err

    return call


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


FILE_NAMES = {
    what: text.replace("/", "_") for what, text in {**HOSTILE, "surrogate": NOT_IN_A_NAME["surrogate"]}.items()
}


@pytest.mark.parametrize(("hostile", "output"), one_in(3, product(FILE_NAMES, ["text", "json", "sarif", "github"])))
def test_lint(hostile: str, output: str, say: Say, folder: Path) -> None:
    name = FILE_NAMES[hostile]
    (folder / f"{name}.yml").write_text(
        f"name: x\nnodes: {{a: {{adress: {json.dumps(name)}}}}}\n", encoding="utf-8", errors="replace"
    )
    said = say("lint", "-o", output, ".")
    if output == "json":
        files = {finding["file"] for finding in json.loads(said)["findings"]}
        assert files == {f"{name}.yml"}
    elif output == "text":
        assert visible_text(f"{name}.yml") in said
    say("lint", "-o", output, f"{name}.yml")
    say("lint", "-o", output, f"no-{name}.yml")


@pytest.mark.parametrize(("hostile", "output"), one_in(3, product(FILE_NAMES, ["text", "json"])))
def test_diagnose(hostile: str, output: str, say: Say, folder: Path) -> None:
    name = FILE_NAMES[hostile]
    oom = f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB {name}\n"
    (folder / f"{name}.log").write_bytes(oom.encode("utf-8", "surrogateescape"))
    said = say("diagnose", "-o", output, f"{name}.log")
    assert "out-of-memory" in said
    if output == "json":
        assert json.JSONDecoder().raw_decode(said)[0]["causes"][0]["evidence"][0]["file"] == f"{name}.log"
    else:
        assert visible_text(f"{name}.log") in said
    say("diagnose", "-o", output, ".")
    say("diagnose", "-o", output, f"no-{name}.log")
    with tarfile.open(folder / "logs.tar.gz", "w:gz") as archive:
        archive.add(folder / f"{name}.log", f"sub/{name}.log")
    (folder / f"{name}.log").unlink()
    assert "out-of-memory" in say("diagnose", "-o", output, "logs.tar.gz")


@pytest.mark.parametrize("hostile", one_in(3, EVERY))
def test_inventories(hostile: str, say: Say, folder: Path) -> None:
    text = EVERY[hostile]
    quoted = json.dumps(text)
    env = f"env: {{A: {quoted}}}\n" if hostile not in NOT_IN_A_NAME else ""
    (folder / "i.yml").write_text(f"name: x\n{env}nodes: {{node-a: {{address: 127.0.0.1, vars: {{v: {quoted}}}}}}}\n")
    (folder / "names.yml").write_text(
        f"name: {quoted}\ngroups: {{{quoted}: {{nodes: node-a}}}}\nnodes: {{{quoted}: {{address: {quoted}}}}}\n"
    )
    (folder / "hosts").write_text(f"{text} slots=2\n", encoding="utf-8", errors="surrogateescape")
    (folder / "p.yml").write_text(
        f"name: {quoted}\nstages: [{{name: {quoted}, shell: {quoted}}}, {{check: {quoted}}}]\n"
    )
    (folder / "q.yml").write_text(f"name: {quoted}\nstages: [{{name: {quoted}, shell: 'echo hello'}}]\n")
    for inventory in ("i.yml", "names.yml"):
        for action in ("list", "graph", "explain"):
            say("inventory", action, "-i", inventory, *["node-a"] * (action == "explain"))
        say("inventory", "list", "-i", inventory, "-o", "json")
        say("run", "p.yml", "-i", inventory, "-C")
        say("run", "q.yml", "-i", inventory, "-C")
        say("run", "q.yml", "-i", inventory, "-C", "-o", "json")
        say("render", "q.yml", "-i", inventory)
        say("render", "q.yml", "-i", inventory, "--diff")
    say("inventory", "import", "hosts")
    for kind in ("hostfile", "slurm", "ansible"):
        say("inventory", "import", "hosts", "--from", kind)


@pytest.mark.parametrize("hostile", one_in(3, HOSTILE))
def test_arguments(hostile: str, say: Say) -> None:
    text = HOSTILE[hostile]
    for words in (
        [text],
        ["run", f"--{text}", text],
        ["run", "-o", text, text],
        ["explain", text],
        ["lint", text],
        ["diagnose", text],
        ["run", text, "-i", text],
        ["run", "two_node_allreduce", "-i", text],
        ["run", "two_node_allreduce", "-i", text, "-e", text],
        ["render", text],
        ["inventory", "import", text],
        ["inventory", "list", "-i", text],
        ["inventory", "explain", text],
        ["inventory", "init", f"{text}.invalid", "--user", text],
        ["ps", "-i", text],
        ["completion", text],
        ["collect", "-i", text, "--out", "a.tar.gz"],
        ["collect", "--run-dir", text],
    ):
        say(*words)


def test_a_crash_report(say: Say, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def fail(_: object) -> int:
        raise ValueError("".join(HOSTILE.values()))

    monkeypatch.setattr("runbook.cli.main.dispatch", fail)
    assert main(["lint", HOSTILE["title"]]) == 70
    said = capfd.readouterr()
    assert acting(said.out + said.err) == []
    assert "ValueError" in said.err


@pytest.mark.parametrize(
    "error",
    [
        RunbookError("".join(HOSTILE.values())),
        Unreachable("ssh-refused", "".join(HOSTILE.values()), "x"),
        FilesWrong([Problem("a.b", HOSTILE["bidi"], Span(HOSTILE["title"], 1, 1), HOSTILE["clear"])]),
    ],
)
def test_errors(error: Exception, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr("runbook.cli.main.dispatch", fail)
    say("lint", ".")


@pytest.mark.parametrize("output", ["text", "json", "jsonl", "junit"])
@pytest.mark.parametrize("hostile", one_in(2, ["title", "bidi", "C1", "line", "return"]))
def test_run(hostile: str, output: str, say: Say, folder: Path) -> None:
    """A real stage on this machine prints it, and fails with it."""
    (folder / "raw").write_text(HOSTILE[hostile] + "\n")
    (folder / "i.yml").write_text(
        f"name: x\nnetwork: {{interface: lo}}\nnodes: {{a: {{address: 127.0.0.1, connection: local, workdir: {folder}/work}}}}\n"
    )
    shell = f"cat {folder}/raw; cat {folder}/raw >&2; exit 1"
    (folder / "p.yml").write_text(f"name: x\nstages: [{{name: one, shell: {json.dumps(shell)}}}]\n")
    said = say("run", "p.yml", "-i", "i.yml", "-o", output, "-v", "--run-dir", "out")
    if output == "junit":
        ElementTree.fromstring(said.partition("</testsuites>")[0] + "</testsuites>")


# What nodes answer, told without nodes.


def hostile_job(text: str) -> KnownJob:
    journal: dict[str, Any] = {
        "name": text,
        "ranks": [0],
        "node": text,
        "state": text,
        "lives": False,
        "keeper_lives": True,
        "code": 1,
        "why": text,
        "pid": 7,
        "started": 1.0,
        "ended": 2.0,
    }
    about = {"stage": text, "began": 1.0, "command": [text], "port": 1, "nodes": [text, f"{text}2"], "attempts": 1}
    return KnownJob(text, about, {text: text}, {text: {"attempt-01": [journal]}}, clocks={text: 3.0})


class Answers:
    """Stands where the nodes are: they answer with hostile names."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.inventory = Inventory("x", (), Rendezvous("a", "127.0.0.1"))
        self.unreached = {text: Unreachable("ssh-refused", text, text, (text,))}

    def __call__(self, *_: object, **__: object) -> Answers:
        return self

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None: ...

    def jobs(self) -> list[KnownJob]:
        return [hostile_job(self.text)]

    def job(self, *_: object, **__: object) -> KnownJob:
        return hostile_job(self.text)


@pytest.mark.parametrize("hostile", EVERY)
def test_jobs(hostile: str, say: Say, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = EVERY[hostile]
    (folder / "i.yml").write_text("name: x\nnodes: {a: {address: 127.0.0.1}}\n")
    monkeypatch.setattr(jobs_command, "Cluster", Answers(text))
    monkeypatch.setattr(jobs_command, "stop", lambda *_, **__: Stopped(1, {text: [text]}, {text: text}))
    monkeypatch.setattr(jobs_command, "clean", lambda *_: Cleaned([text], {text: [text]}, {text: text}))
    lines = len(say("ps", "-i", "i.yml", "-v").splitlines())
    if hostile != "line":
        assert lines == len(EVERY_PS)
    json.loads(say("ps", "-i", "i.yml", "-o", "json"))
    assert len(say("stop", "x", "-i", "i.yml").splitlines()) == 3
    assert len(say("clean", "x", "-i", "i.yml").splitlines()) == 3
    finding = Finding("rank-failed", text, text, (text,) * 3)
    jobs_command._print_outcome(Outcome.failed(text, finding))


EVERY_PS = ("head", "job", "", "title", "head", "rank", "absent", "unreached")


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("colour", [True, False])
@pytest.mark.parametrize("hostile", EVERY)
def test_the_page_of_a_run(hostile: str, colour: bool, live: bool) -> None:
    """On a terminal as well, where rich moves the cursor: nothing of the text does."""
    text = EVERY[hostile]
    plain, told = page("plain", colour, live), page(text, colour, live)
    for dangerous in (
        "\x1b]",
        "\x1b[2J",
        "\x1b[H",
        "\x9b",
        "\x9d",
        "\x07",
        "\x08",
        "\u202e",
        "\u2066",
        "\x1b[31mred",
        "\u200b",
        "\0",
    ):
        assert dangerous not in told
    if not live:
        assert acting(told.replace("\x1b", "")) == []
        assert ("\x1b" in told) == ("\x1b" in plain)
    events = story(text).events
    assert all(line.isascii() and line.isprintable() for line in map(event_to_json, events))
    reader = Junit()
    for event in events:
        reader(event)
    ElementTree.fromstring(reader.text())


def page(text: str, colour: bool, live: bool) -> str:
    stream = io.StringIO()
    with Console(stream, live=live, colour=colour, verbose=2, width=100, environ={}) as console:
        for event in story(text).events:
            console(event)
    return stream.getvalue()


def story(text: str) -> Story:
    finding = Finding("port-blocked", text or "says", text or "remedy", (text, text), (text,))
    told = Story(["a", text], "one", text, name=text).begin("one").progress(3.0, text, text)
    told.reach(1.0, Outcome.failed(text, finding), Outcome.passed("a", text, warnings=[text])).finish(1.0)
    told.end(Verdict.FAIL, 1, text, (text,), text)
    return told


def test_both_streams_are_whole_again_after_a_command() -> None:
    before = sys.stdout, sys.stderr, sys.stdin
    main(["--version"])
    assert (sys.stdout, sys.stderr, sys.stdin) == before
    assert stdout.lost is None
    assert stderr.lost is None
    assert os.fstat(0)
