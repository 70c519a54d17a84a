"""The command as a script would use it: what goes where, and the exit codes. Nodes are this machine, stages are shell."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from runbook.cli.main import main

INVENTORY = """\
name: here
network: {interface: lo}
defaults: {connection: local, workdir: WORKDIR, env: {TOKEN: {env: SECRET_OF_MINE}}}
nodes:
  node-a: {address: 127.0.0.1}
  node-b: {address: 127.0.0.1}
groups:
  second: {nodes: node-b}
"""

PLAYBOOK = """\
name: shell only
vars: {word: hello}
stages:
  - {name: first, shell: "echo {{ word }}", expect: {stdout: "^hello"}}
  - {name: second, shell: "exit 3", expect: {exit: 3}, tags: [odd]}
  - {name: third, shell: "test -d /", when: "node_count == 2"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inventory.yml").write_text(INVENTORY.replace("WORKDIR", str(tmp_path / "work")))
    (tmp_path / "playbook.yml").write_text(PLAYBOOK)
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "runbook", "run", "playbook.yml", "-i", "inventory.yml", *arguments],
        cwd=folder,
        env={
            **os.environ,
            "SECRET_OF_MINE": "s3cr3t-0815",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_json_is_one_document_and_the_same_lies_in_the_run_folder(folder: Path) -> None:
    done = run(folder, "-o", "json", "--run-dir", "out")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document == json.loads((folder / "out" / "result.json").read_text())
    assert [stage["name"] for stage in document["stages"]] == ["reach", "first", "second", "third"]
    assert document["stages"][1]["outcomes"][0]["proof"] == "exit 0: hello"
    assert done.stderr == ""


def test_a_run_folder_that_cannot_be_written_is_2(folder: Path) -> None:
    (folder / "out" / "events.jsonl").mkdir(parents=True)
    done = run(folder, "--run-dir", "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert "error[arguments.run-dir]: out holds events.jsonl" in done.stderr


def test_a_run_folder_that_somebody_removes_is_made_again(folder: Path) -> None:
    (folder / "playbook.yml").write_text(f"name: gone\nstages:\n  - {{name: first, shell: 'rm -r {folder}/out'}}\n")
    done = run(folder, "--run-dir", "out", "-l", "node-a")
    assert done.returncode == 0, done
    assert json.loads((folder / "out" / "result.json").read_text())["verdict"] == "pass"


def test_a_full_disk_for_its_files_changes_no_verdict(folder: Path) -> None:
    script = (
        f"ulimit -f 1; exec {shlex.quote(sys.executable)} -m runbook run playbook.yml -i inventory.yml --run-dir out"
    )
    (folder / "playbook.yml").write_text(
        PLAYBOOK + "".join(f"  - {{name: more {n}, shell: 'true'}}\n" for n in range(9))
    )
    environment = {**os.environ, "SECRET_OF_MINE": "s3cr3t-0815", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        ["/bin/sh", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done
    assert re.search(r"warning: a report cannot be written: \S+/(events.jsonl|result.json): ", done.stderr)
    assert "Traceback" not in done.stderr


def test_jsonl_is_the_stream_of_events(folder: Path) -> None:
    done = run(folder, "-o", "jsonl", "--run-dir", "out")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[0]["event"] == "run-started"
    assert events[-1]["event"] == "run-finished"
    assert (folder / "out" / "events.jsonl").read_text() == done.stdout


def test_junit_has_a_case_for_each_node_of_each_stage(folder: Path) -> None:
    done = run(folder, "-o", "junit")
    cases = ElementTree.fromstring(done.stdout).findall(".//testcase")
    assert len(cases) == 4 * 2


def test_a_failing_stage_stops_the_run_with_1(folder: Path) -> None:
    done = run(folder, "-e", "word=bye", "-o", "json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["exit_code"], document["stopped_at"]) == (1, 1, "first")
    assert len(document["stages"]) == 2


def test_a_value_in_a_shell_line_stays_one_word(folder: Path) -> None:
    done = run(folder, "-e", "word=hello; touch broken; echo $(id) '`x`'", "-o", "json")
    assert done.returncode == 0, done.stdout
    assert not list(folder.rglob("broken"))


def test_the_plan_touches_nothing(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    done = run(folder, "-C", "-l", "second", "--start-at", "second")
    assert done.returncode == 0
    assert "1. reach" in done.stdout
    assert "first" not in done.stdout
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("-l", "nobody"),
        ("-t", "evn"),
        ("--start-at", "frist"),
        ("-e", "word"),
        ("-l", "all:!node-a:!node-b"),
        ("--skip-tags", "all"),
        ("-i", "missing.yml"),
    ],
)
def test_a_wrong_argument_is_2_and_nothing_is_run(folder: Path, arguments: tuple[str, ...]) -> None:
    done = run(folder, *arguments)
    assert done.returncode == 2, done.stdout
    assert done.stderr.startswith("error[")
    assert not (folder / ".runbook").exists()
    assert not (folder / "work").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "-f", "many"], "argument -f/--forks: 'many' is not a number"),
        (["run", "-f", "0"], "argument -f/--forks: must be 1 or more"),
        (["run", "--drain-at-most", "all"], "argument --drain-at-most: 'all' is not a percentage"),
        (["logs", "--only-rank", "first"], "argument --only-rank: 'first' is not a number"),
        (["inventory", "init", "gn1", "--port", "ssh"], "argument --port: 'ssh' is not a number"),
    ],
)
def test_a_number_that_is_none_is_told_in_peoples_words(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"error: {says}")


def test_a_mistake_in_a_playbook_is_shown_with_its_place(folder: Path) -> None:
    (folder / "playbook.yml").write_text("name: x\nstages:\n  - {check: allreduce, with: {iteratons: 3}}\n")
    done = run(folder)
    assert done.returncode == 2
    assert "playbook.yml:3:31" in done.stderr
    assert "did you mean `iterations`?" in done.stderr


def test_a_secret_is_nowhere_to_be_read(folder: Path) -> None:
    done = run(folder, "-o", "json", "--run-dir", "out", "-v")
    said = done.stdout + done.stderr + "".join(p.read_text() for p in (folder / "out").rglob("*") if p.is_file())
    assert "s3cr3t-0815" not in said


def test_what_was_pushed_stays_only_with_keep(folder: Path) -> None:
    run(folder)
    assert list((folder / "work").iterdir()) == []
    run(folder, "--keep")
    assert len(list((folder / "work").iterdir())) == 1


def test_a_bug_of_ours_is_70_and_asks_to_be_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from runbook.cli import main as program

    def broken(_: object) -> int:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(program, "dispatch", broken)
    assert program.main(["explain", "ping"]) == 70
    assert "please report it" in capsys.readouterr().err


BROKEN = """
import sys
from runbook.cli import main as program

def broken(_):
    raise ZeroDivisionError("s3cr3t-0815")

program.dispatch = broken
sys.modules["runbook.collect.scrub"] = None
program.entry()
"""


def test_where_the_report_of_a_bug_fails_as_well_it_is_70_and_prints_the_text_of_no_error() -> None:
    done = subprocess.run([sys.executable, "-c", BROKEN, "ps"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 70, done
    assert "Is it installed whole?" in done.stderr
    assert "in broken\n" in done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert "s3cr3t" not in done.stderr.replace('raise ZeroDivisionError("s3cr3t-0815")', "")


NEITHER = "neither the playbook nor the inventory has that variable"


def test_a_misspelt_variable_is_2(folder: Path) -> None:
    done = run(folder, "-C", "-e", "wrod=bye")
    assert (done.returncode, done.stdout) == (2, "")
    assert "error[extra.unknown-variable]: -e wrod: neither the playbook nor the inventory" in done.stderr
    assert "did you mean `word`?" in done.stderr
    assert run(folder, "-C", "-e", "word=bye").returncode == 0
    done = run(folder, "-C", "-e", "batch_size=8")
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (0, [f"note: -e batch_size has no effect: {NEITHER}"])


def test_reach_that_is_listed_runs_once_and_run_says_so(folder: Path) -> None:
    (folder / "playbook.yml").write_text("stages:\n  - check: reach\n  - shell: echo\n")
    done = run(folder, "-C", "-o", "json")
    assert [stage["name"] for stage in json.loads(done.stdout)["stages"]] == ["reach", "shell"]
    assert "note: playbook.yml:2:5: `reach` always runs first and need not be listed" in done.stderr


def test_files_the_other_way_round_are_put_right(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    playbook, inventory = str(folder / "playbook.yml"), str(folder / "inventory.yml")
    assert main(["run", inventory, "-i", playbook]) == 2
    assert f"the other way round: runbook run {playbook} -i {inventory}" in capsys.readouterr().err


def test_an_inventory_of_another_name_is_proposed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "inventory.yml").rename(folder / "mine.yml")
    monkeypatch.chdir(folder)
    for command in (["run", "playbook.yml"], ["ps"]):
        assert main(command) == 2
        assert "name it: -i mine.yml" in capsys.readouterr().err
    (folder / "other.yml").write_text((folder / "mine.yml").read_text())
    assert main(["ps"]) == 2
    assert "name one: -i mine.yml, -i other.yml\n" in capsys.readouterr().err


def test_a_plan_names_a_check_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "s3cr3t-0815")
    assert main(["run", str(folder / "playbook.yml"), "-i", str(folder / "inventory.yml"), "-C"]) == 0
    told = capsys.readouterr().out
    assert "\n0      node-a  127.0.0.1  cpu   sh     this machine\n" in told
    assert "  1. reach on 2 nodes" in told
    assert "  2. first  [shell] on 2 nodes" in told


def test_a_run_in_a_folder_that_is_called_like_one_has_its_id_once(folder: Path) -> None:
    id = "20260102-030405-abcdef"

    def told() -> str:
        assert run(folder, "--run-dir", f"runs/{id}").returncode == 0
        return str(json.loads((folder / "runs" / id / "result.json").read_text())["run_id"])

    assert told() == id
    assert told() != id  # its files are moved aside, and what it left on nodes may still be there


def test_what_can_do_nothing_here_is_refused_before_anything_is_touched(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(folder))
    drained = run(folder, "--drain", "--run-dir", "out")
    assert drained.returncode == 2
    assert "this machine has no `scontrol`" in drained.stderr
    fewer = run(folder, "--min-nodes", "2", "--run-dir", "out")
    assert fewer.returncode == 2
    assert "no stage goes on without bad nodes" in fewer.stderr
    for option, words in (("--detach", "error[arguments.detach]: "), ("--only-rank=0", "error[arguments.only-rank]: ")):
        odd = run(folder, option, "--run-dir", "out")
        assert odd.returncode == 2
        assert words in odd.stderr
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("launch", "line", "words"),
    [
        ("  command: [torchrun, train.py]\n  launcher: torchrun\n", 3, "is to start a `torchrun`"),
        ("  command: [train.py]\n  workdir: work\n", 4, "`workdir: work` begins nowhere"),
    ],
)
def test_a_launch_that_cannot_start_is_refused_before_anything_is_touched(
    launch: str, line: int, words: str, folder: Path
) -> None:
    (folder / "mine.yml").write_text("nodes: {here: {connection: local}}\nlaunch:\n" + launch)
    done = subprocess.run(
        [sys.executable, "-m", "runbook", "run", "-i", "mine.yml", "--run-dir", "out"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2, done.stdout
    assert f"mine.yml:{line}" in done.stderr
    assert words in done.stderr
    assert not (folder / "out").exists()
