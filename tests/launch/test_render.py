"""Launch scripts, judged by running them: environment and arguments of every rank, exit codes, activation."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runbook.launch.quote import CannotQuote
from runbook.launch.render import render_sh
from runbook.launch.script import Script
from runbook.model.inventory import Inventory, Node
from runbook.model.secret import Secret

from .world import cluster, node

SHELLS = [shell for shell in ("sh", "dash", "bash") if shutil.which(shell)]
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\n"), max_size=20)
DUMP = (
    "import json, os, sys\n"
    "say = {'argv': sys.argv[1:], 'env': dict(os.environ), 'cwd': os.getcwd()}\n"
    "print(json.dumps(say))\n"
)


def rendered(inventory: Inventory, one: Node, *command: str, name: str = "launch") -> Script:
    return render_sh(inventory, one, name=name, command=command, made_from=("inventory x.yml",))


def written(folder: Path, script: Script) -> Path:
    for name, data in script.files.items():
        (folder / name).write_bytes(data)
    return folder / script.name


def run(shell: str, path: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    base = {"PATH": os.environ["PATH"], "HOME": str(path.parent), "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        [shell, str(path), *arguments], capture_output=True, text=True, env={**base, **environ}, timeout=20, check=False
    )


def messages(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What the script itself says to the controller."""
    return [json.loads(line.partition("runbook ")[2]) for line in done.stdout.split("\n") if line.startswith("\x1e")]


def dumped(shell: str, folder: Path, inventory: Inventory, one: Node, *arguments: str, rank: int = 0) -> dict[str, Any]:
    """What the program of a rank finds, started through the rendered script."""
    (folder / "dump.py").write_text(DUMP)
    path = written(folder, rendered(inventory, one, sys.executable, "-S", "./dump.py", *arguments))
    done = run(shell, path, str(rank))
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("shell", SHELLS)
@given(values=st.lists(TEXT, min_size=12, max_size=12), words=st.lists(TEXT, min_size=4, max_size=4))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_environment_and_arguments_arrive_byte_for_byte(shell: str, values: list[str], words: list[str]) -> None:
    env: dict[str, str | Secret] = {f"V{number}": value for number, value in enumerate(values)}
    env["V11"] = Secret(values[11], "the environment")
    one = node("node-a", env=env)
    # `./` and `~/` at the start of a word mean a place; everything else is a word.
    words = [word for word in words if not word.startswith(("./", "~/"))]
    with tempfile.TemporaryDirectory() as folder:
        found = dumped(shell, Path(folder), cluster(one), one, *words)
    assert [found["env"][f"V{number}"] for number in range(12)] == values
    assert found["argv"] == words


@pytest.mark.parametrize("shell", SHELLS)
def test_every_rank_gets_its_own_numbers(shell: str, tmp_path: Path) -> None:
    one = node("node-b", "10.0.0.2", gpus=(4, 1))
    inventory = cluster(node("node-a", gpus=(0,)), one)
    for local_rank, rank in enumerate((1, 2)):
        env = dumped(shell, tmp_path, inventory, one, rank=local_rank)["env"]
        assert (env["RANK"], env["LOCAL_RANK"], env["WORLD_SIZE"]) == (str(rank), str(local_rank), "3")
        assert (env["CUDA_VISIBLE_DEVICES"], env["MASTER_ADDR"], env["NODE_RANK"]) == ("1,4", "10.0.0.1", "1")


def test_places_in_the_command(tmp_path: Path) -> None:
    folder = tmp_path / "it's a $HOME"
    folder.mkdir()
    found = dumped("sh", folder, cluster(node("node-a")), node("node-a"), "./data file", "~/in home", "~", "a/./b")
    assert found["argv"] == [f"{folder}/data file", f"{folder}/in home", "~", "a/./b"]
    assert found["cwd"] == str(folder)


def test_without_a_number_every_rank_runs_and_the_first_failure_is_the_exit_code(tmp_path: Path) -> None:
    one = node("node-a", processes=3)
    (tmp_path / "p.py").write_text(
        "import os, sys\nprint(os.environ['RANK'])\nsys.exit({'1': 7, '2': 9}.get(os.environ['RANK'], 0))\n"
    )
    path = written(tmp_path, rendered(cluster(one), one, sys.executable, "-S", "./p.py"))
    for shell in SHELLS:
        done = run(shell, path)
        assert sorted(done.stdout.split()) == ["0", "1", "2"]
        assert done.returncode == 7


def test_a_rank_that_this_node_does_not_have(tmp_path: Path) -> None:
    path = written(tmp_path, rendered(cluster(node("node-a")), node("node-a"), "true"))
    done = run("sh", path, "1")
    assert done.returncode == 2
    assert "no local rank 1" in done.stderr


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    path = written(tmp_path, rendered(cluster(node("node-a")), node("node-a"), "no-such-python", "-u"))
    for shell in SHELLS:
        done = run(shell, path, "0")
        assert done.returncode == 92
        assert messages(done) == [{"event": "program-missing"}]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("line", ["false", ". ./no-such-file", "no-such-command", "(exit 3)", "cd /no/such/folder"])
def test_an_activation_that_fails_says_so_and_starts_nothing(shell: str, line: str, tmp_path: Path) -> None:
    one = node("node-a", activate=line)
    path = written(tmp_path, rendered(cluster(one), one, "echo", "started"))
    done = run(shell, path, "0")
    assert done.returncode == 91
    assert "started" not in done.stdout
    first, *_ = messages(done)
    assert first["event"] == "activation-failed"
    assert first["code"] not in (0, 91)


@pytest.mark.parametrize("shell", SHELLS)
def test_an_activation_that_fails_says_so_once_and_with_its_own_code(shell: str, tmp_path: Path) -> None:
    one = node("node-a", activate="(exit 3)")
    done = run(shell, written(tmp_path, rendered(cluster(one), one, "true")), "0")
    assert messages(done) == [{"event": "activation-failed", "code": 3}]


@pytest.mark.parametrize("shell", SHELLS)
def test_an_activation_that_ends_the_shell_is_noticed(shell: str, tmp_path: Path) -> None:
    one = node("node-a", activate="exit 0")
    done = run(shell, written(tmp_path, rendered(cluster(one), one, "echo", "started")), "0")
    assert done.returncode == 91
    assert messages(done)[0] == {"event": "activation-failed", "code": 0}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    "line", [". $HOME/activate", "source $HOME/activate", "export COLOUR='deep blue'", ". $HOME/activate && true"]
)
def test_an_activation_that_works_is_seen_by_the_rank(shell: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "activate").write_text("COLOUR='deep blue'; export COLOUR\n")
    one = node("node-a", activate=line)
    assert dumped(shell, tmp_path, cluster(one), one)["env"]["COLOUR"] == "deep blue"


def test_a_secret_is_in_the_environment_file_and_nowhere_else() -> None:
    one = node("node-a", env={"TOKEN": Secret("s3cr3t 'x'", "the environment variable T"), "OPEN": "1"})
    files = rendered(cluster(one), one, "true", name="small").files
    assert sorted(files) == ["small.env", "small.sh"]
    assert b"s3cr3t" not in files["small.sh"]
    assert files["small.env"] == b"export TOKEN='s3cr3t '\"'\"'x'\"'\"''\n"
    assert sorted(rendered(cluster(node("a")), node("a"), "true").files) == ["launch.sh"]


@pytest.mark.parametrize(
    "one",
    [
        node("node-a", env={"A": "x\ny"}),
        node("node-a", env={"A": Secret("x\ny", "T")}),
        node("node-a", env={"A;id": "x"}),
        node("node-a", env={"": "x"}),
        node("node-a", activate="a\nb"),
    ],
)
def test_what_a_script_cannot_carry_is_refused(one: Node) -> None:
    with pytest.raises(CannotQuote):
        rendered(cluster(one), one, "true")


def test_names_and_sources_cannot_leave_their_comment(tmp_path: Path) -> None:
    one = node("node-a\necho broken")
    script = render_sh(cluster(one), one, name="x", command=("true",), made_from=("a\necho broken",))
    assert run("sh", written(tmp_path, script), "0").stdout == ""


@pytest.mark.parametrize("name", ["here", "code", "pids"])
def test_no_name_of_the_users_is_the_scripts_own(name: str, tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(f"import os\nprint(os.environ.get('{name}'))\n")
    one = node("node-a", env={name: "/no/such"}, processes=2, activate="true")
    done = run("sh", written(tmp_path, rendered(cluster(one), one, sys.executable, "-S", "./p.py")))
    assert (done.returncode, done.stdout.split()) == (0, ["/no/such", "/no/such"])


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_ascii_lf_and_parses(shell: str, tmp_path: Path) -> None:
    one = node("node-a", gpus=(0, 1), activate="conda activate train", env={"A": "1", "B": Secret("x", "T")})
    script = rendered(cluster(one), one, "~/venv/bin/python", "-u", "./rank.py")
    path = written(tmp_path, script)
    data = path.read_bytes()
    assert b"\r" not in data
    assert not data.startswith(b"\xef\xbb\xbf")
    assert subprocess.run([shell, "-n", str(path)], check=False).returncode == 0
