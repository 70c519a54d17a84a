"""A launch as a script would use it, with this machine as its node: what stays, what is said, and the help."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ports import free_port
from profiles import one_in

INVENTORY = """\
rendezvous: {port: PORT}
network: {interface: lo}
defaults: {connection: local, workdir: WORKDIR, env: {TOKEN: {env: SECRET_OF_MINE}}}
nodes:
  here: {address: 127.0.0.1}
"""
JOBS = ("ps", "logs", "attach", "stop", "clean")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inventory.yml").write_text(
        INVENTORY.replace("WORKDIR", str(tmp_path / "work")).replace("PORT", str(free_port()))
    )
    return tmp_path


def runbook(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "runbook", *arguments],
        cwd=folder,
        env={**os.environ, "SECRET_OF_MINE": "s3cr3t-0815", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def launch(
    folder: Path, script: str, *arguments: str, keys: str = "", stage: str = ""
) -> subprocess.CompletedProcess[str]:
    (folder / "program.sh").write_text(script)
    job = f"{{command: [sh, {folder / 'program.sh'}]{keys}}}"
    (folder / "playbook.yml").write_text(f"stages:\n  - {{name: train{stage}, launch: {job}}}\n")
    return runbook(folder, "run", "playbook.yml", "-i", "inventory.yml", "--run-dir", "out", *arguments)


def left(folder: Path) -> list[Path]:
    return [path for path in (folder / "work").rglob("*") if path.is_file()]


def test_what_it_wrote_on_the_node_stays_only_with_keep_and_clean_removes_it(folder: Path) -> None:
    assert launch(folder, "echo hello").returncode == 0
    assert left(folder) == []
    assert launch(folder, "echo hello", "--keep").returncode == 0
    assert {"launch.sh", "rank-00000.here.l0.out"} <= {path.name for path in left(folder)}
    told = runbook(folder, "ps", "-i", "inventory.yml", "-o", "json")
    assert [job["state"] for job in json.loads(told.stdout)["jobs"]] == ["finished"]
    assert runbook(folder, "clean", "--all", "-i", "inventory.yml").returncode == 0
    assert left(folder) == []


def test_logs_print_what_is_on_the_node_and_keep_nothing_here(folder: Path) -> None:
    assert launch(folder, "echo hello; echo sorry >&2", "--keep").returncode == 0
    (job,) = json.loads(runbook(folder, "ps", "-i", "inventory.yml", "-o", "json").stdout)["jobs"]
    for more in ([], ["-f"], ["--only-rank", "0"]):
        told = runbook(folder, "logs", job["job"], "-i", "inventory.yml", *more)
        assert (told.returncode, told.stdout, told.stderr) == (0, "[0 here] hello\n", "[0 here] sorry\n")
    assert not (folder / ".runbook").exists()


def test_a_rank_that_wrote_nothing_has_its_empty_files_and_is_said_to_have(folder: Path) -> None:
    done = launch(folder, "exit 3")
    assert done.returncode == 1
    assert "exited with code 3" in done.stdout
    assert "it printed nothing" in done.stdout
    files = sorted((folder / "out" / "logs" / "attempt-01").iterdir())
    assert [(file.name, file.stat().st_size) for file in files] == [
        ("rank-00000.here.l0.err", 0),
        ("rank-00000.here.l0.out", 0),
    ]


def test_a_rank_that_no_launch_has_is_refused_before_anything_is_touched(folder: Path) -> None:
    odd = launch(folder, "echo hello", "--only-rank", "0", "--only-rank", "1")
    assert odd.returncode == 2
    assert "--only-rank 1: there is no such rank" in odd.stderr
    assert not (folder / "out").exists()
    assert "hello" in launch(folder, "echo hello", "--only-rank", "0").stdout


@pytest.mark.parametrize("how", one_in(3, ["activate", "env", "nothing"]))
def test_whatever_sets_pythonpath_a_rank_can_be_asked_where_it_is(folder: Path, how: str) -> None:
    """By the `sitecustomize` of ours, which comes first; what the user's path leads to is found all the same."""
    (folder / "lib").mkdir()
    (folder / "lib" / "of_ours.py").write_text("")
    inventory = folder / "inventory.yml"
    if how == "activate":
        line = f", activate: 'export PYTHONPATH={folder / 'lib'}'}}"
        inventory.write_text(inventory.read_text().replace("127.0.0.1}", "127.0.0.1" + line))
    keys = f", env: {{PYTHONPATH: {folder / 'lib'}}}" if how == "env" else ""
    look = "import importlib.util as u, sys; print(sys.modules['sitecustomize'].register_stack_signals, bool(u.find_spec('of_ours')))"
    assert launch(folder, f'exec {sys.executable} -c "{look}"', keys=keys).returncode == 0
    (out,) = (folder / "out" / "logs" / "attempt-01").glob("*.out")
    assert "<function register" in out.read_text()
    assert out.read_text().split()[-1] == str(how != "nothing")


def test_every_launch_of_a_run_has_files_of_its_own(folder: Path) -> None:
    stages = "".join(f"  - {{name: {name}, launch: {{command: [sh, -c, echo {name}]}}}}\n" for name in ("one", "two"))
    (folder / "playbook.yml").write_text(f"stages:\n{stages}")
    done = runbook(folder, "run", "playbook.yml", "-i", "inventory.yml", "--run-dir", "out", "--keep")
    assert done.returncode == 0, done.stdout
    logs = folder / "out" / "logs"
    told = {path.name: (path / "rank-00000.here.l0.out").read_text() for path in logs.iterdir()}
    assert told == {"attempt-01": "one\n", "attempt-02": "two\n"}
    assert "at attempt" not in done.stdout


def test_a_secret_that_a_rank_prints_as_its_last_line_is_masked(folder: Path) -> None:
    done = launch(folder, 'echo "refused: $TOKEN" >&2; exit 3')
    said = done.stdout + done.stderr + "".join(p.read_text() for p in (folder / "out").rglob("*") if p.is_file())
    assert "refused: ***" in done.stdout
    assert "s3cr3t-0815" not in said


def test_at_its_timeout_a_rank_gets_its_whole_grace_and_the_stage_its_own_words(folder: Path) -> None:
    """The grace is longer than what the engine leaves to a check that does not end."""
    script = "trap 'sleep 6; echo saved; exit 0' TERM; echo begun; while :; do sleep 0.1; done"
    done = launch(folder, script, stage=", timeout: 2s", keys=", grace: 20s")
    assert done.returncode == 1
    assert "did not end within the stage's `timeout:`" in done.stdout
    assert (folder / "out/logs/attempt-01/rank-00000.here.l0.out").read_text() == "begun\nsaved\n"
    assert left(folder) == []


def test_no_attempt_begins_after_the_timeout(folder: Path) -> None:
    done = launch(folder, "kill -9 $$", stage=", timeout: 8s", keys=", retries: 3")
    assert done.returncode == 1
    assert "evidence" in done.stdout
    assert "leaves no time for attempt 2" in done.stdout.partition("evidence")[2]
    assert not (folder / "out/logs/attempt-02").exists()


@pytest.mark.parametrize("command", ["run", *JOBS])
def test_help_has_an_example_and_what_the_exit_code_means(folder: Path, command: str) -> None:
    said = runbook(folder, command, "--help").stdout
    assert f"runbook {command} " in said.partition("\nexample")[2]
    assert "\nexit codes:\n  0 " in said


def test_commands_on_jobs_are_completed(folder: Path) -> None:
    (folder / "c.bash").write_text(runbook(folder, "completion", "bash").stdout)
    line = 'source c.bash; COMP_WORDS=(runbook ""); COMP_CWORD=1; _runbook_complete; printf "%s\\n" "${COMPREPLY[@]}"'
    offered = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, timeout=120, check=True)
    assert {"run", *JOBS} <= set(offered.stdout.split())
