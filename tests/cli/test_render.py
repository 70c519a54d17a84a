"""`runbook render`: which files, with which bytes and modes, what is left alone, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from ports import free_port

from runbook.cli.main import main
from runbook.node import __file__ as node_room

SECRET = "s3cr3t 'quoted' $0815"

INVENTORY = """\
name: here
rendezvous: {port: PORT, backend: gloo}
network: {interface: lo}
defaults: {connection: local, workdir: WORKDIR, env: {TOKEN: {env: SECRET_OF_MINE}}}
nodes:
  node-a: {address: 127.0.0.1}
  node-b: {address: 127.0.0.2, processes: 2}
groups:
  second: {nodes: node-b}
"""

PLAYBOOK = """\
name: everything
vars: {epochs: 3}
stages:
  - check: ping
  - check: connection
  - {name: full AllReduce, check: allreduce, with: {max_bytes: 1M}}
  - {name: not now, check: allreduce, when: "epochs > 9"}
  - name: train
    launch: {command: [TRAIN, "{{ node }}", "--epochs={{ epochs }}"]}
  - {name: again, nodes: second, launch: {launcher: torchrun, command: [python, train.py]}}
  - {name: look, shell: uname}
"""

WINDOWS = """\
defaults: {shell: bat, gpus: 1}
nodes: {"pc[1-2]": {address: "10.0.0.[1-2]"}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "inventory.yml").write_text(
        INVENTORY.replace("WORKDIR", str(tmp_path / "work")).replace("PORT", str(free_port()))
    )
    (tmp_path / "playbook.yml").write_text(PLAYBOOK.replace("TRAIN", "train.py"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECRET_OF_MINE", SECRET)
    return tmp_path


def render(*arguments: str, playbook: str = "playbook.yml", inventory: str = "inventory.yml") -> int:
    return main(["render", playbook, "-i", inventory, *arguments])


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def with_playbook(stages: str) -> None:
    Path("playbook.yml").write_text(f"stages:\n{stages}")


def test_a_script_for_each_stage_that_starts_ranks(folder: Path) -> None:
    assert render() == 0
    both = [f"{name}.{ending}" for name in ("connection", "full-allreduce", "launch") for ending in ("env", "sh")]
    assert names(folder / "rendered" / "node-a") == sorted([*both, "rank.py"])
    assert names(folder / "rendered" / "node-b") == sorted([*both, "again.env", "again.sh", "rank.py"])
    for path in (folder / "rendered").rglob("*.*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.suffix == ".sh" else 0o600)
    assert (folder / "rendered" / "node-a" / "rank.py").read_bytes() == Path(node_room).with_name(
        "rank.py"
    ).read_bytes()


def test_the_head_says_what_it_is_made_from(folder: Path) -> None:
    render()
    for path in (folder / "rendered").rglob("*.sh"):
        head = path.read_text()[:400]
        assert "inventory inventory.yml" in head
        assert "playbook playbook.yml" in head


def test_the_same_files_give_the_same_bytes_anywhere(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Another folder, another hash seed, another home, another time."""
    render()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for file in ("inventory.yml", "playbook.yml"):
        shutil.copy(folder / file, elsewhere / file)
    env = {**os.environ, "PYTHONHASHSEED": "4711", "HOME": str(elsewhere), "TZ": "Asia/Tokyo"}
    env["PYTHONPATH"] = str(Path(node_room).parents[2])
    command = [sys.executable, "-m", "runbook", "render", "playbook.yml", "-i", "inventory.yml", "--out", "rendered"]
    subprocess.run(command, cwd=elsewhere, env=env, check=True, capture_output=True, timeout=60)
    assert tree(elsewhere / "rendered") == tree(folder / "rendered")


@pytest.mark.thorough
@pytest.mark.parametrize("tags", [(), ("-t", "later")])
def test_they_are_the_very_files_that_run_pushes(tags: tuple[str, ...], folder: Path) -> None:
    with_playbook(
        "  - check: connection\n"
        "  - {name: later on, check: allreduce, tags: [later], nodes: second, with: {max_bytes: 1K, iterations: 1}}\n"
    )
    assert render("--out", "made") == 0
    command = [sys.executable, "-m", "runbook", "run", "playbook.yml", "-i", "inventory.yml", "--keep", *tags]
    env = {**os.environ, "PYTHONPATH": str(Path(node_room).parents[2])}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (folder / "work").iterdir()
    pushed = {name: data for name, data in tree(run).items() if name.endswith((".sh", ".env", "rank.py"))}
    made = tree(folder / "made")
    assert any(name.endswith(".sh") for name in pushed)
    assert {name: made[name] for name in pushed} == pushed


def test_a_job_runs_from_the_folder_with_its_environment(folder: Path) -> None:
    render()
    dump = "import json, os, sys; open(os.environ['RANK'], 'w').write(json.dumps([sys.argv[1:], dict(os.environ)]))"
    for node in ("node-b", "node-a"):
        (folder / "rendered" / node / "train.py").write_text(dump)
        subprocess.run(["sh", f"rendered/{node}/launch.sh"], check=True, timeout=60)
    for rank, node in enumerate(("node-a", "node-b", "node-b")):
        argv, env = json.loads((folder / "rendered" / node / str(rank)).read_text())
        assert argv == [node, "--epochs=3"]
        assert (env["TOKEN"], env["WORLD_SIZE"], env["RUNBOOK_BACKEND"]) == (SECRET, "3", "gloo")


def test_without_a_job_the_script_takes_any_command(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with_playbook("  - check: ping\n")
    assert render() == 0
    assert "launch.sh COMMAND, for example: python train.py" in capfd.readouterr().out
    assert names(folder / "rendered" / "node-b") == ["launch.env", "launch.sh"]
    command = ["sh", "rendered/node-b/launch.sh", "sh", "-c", 'echo "$RANK of $WORLD_SIZE: $1"', "x", "a  b"]
    done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    assert sorted(done.stdout.splitlines()) == ["1 of 3: a  b", "2 of 3: a  b"]


def test_a_secret_is_in_its_file_and_nowhere_else(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    render()
    render("-D", "-e", "epochs=4")
    os.environ["SECRET_OF_MINE"] = "t0tally-0ther"
    render("-D", "--out", "nowhere")
    render("-D")
    printed = capfd.readouterr()
    assert "*** (another value)" in printed.out
    for word in ("s3cr3t", "quoted", "0815", "t0tally"):
        assert word not in printed.out + printed.err
        assert all(word.encode() not in data for name, data in tree(folder).items() if ".env" not in name)


def test_a_diff_shows_and_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert render("-D") == 0
    assert not (folder / "rendered").exists()
    assert "--- /dev/null\n+++ rendered/node-a/launch.sh\n" in capsys.readouterr().out
    render()
    before = tree(folder)
    capsys.readouterr()
    assert render("-D") == 0
    assert capsys.readouterr().out == ""
    with_playbook("  - {name: train, launch: {command: [other.py]}}\n")
    assert render("-D") == 0
    out = capsys.readouterr().out
    assert "--- rendered/node-a/launch.sh\n+++ rendered/node-a/launch.sh\n" in out
    assert "--- rendered/node-b/again.sh\n+++ /dev/null\n" in out
    assert any(line.startswith("+") and "other.py" in line for line in out.splitlines())
    (folder / "playbook.yml").write_text(PLAYBOOK.replace("TRAIN", "train.py"))
    assert tree(folder) == before


def test_what_an_earlier_rendering_left_goes_and_nothing_else_does(folder: Path) -> None:
    render()
    mine = {
        "mine.sh": "#!/bin/sh\necho mine\n",
        "launch.bat": "rem mine\n",
        "notes.env": "A=1\n",
        "train.py": "print()\n",
    }
    here = folder / "rendered" / "node-b"
    for name, text in mine.items():
        (here / name).write_text(text)
    (here / "link.sh").symlink_to(here / "launch.sh")
    (folder / "rendered" / "node-x").mkdir()
    shutil.copy(here / "again.sh", folder / "rendered" / "node-x" / "again.sh")
    shutil.copy(folder / "rendered" / "node-a" / "connection.sh", here / "of-another-node.sh")
    with_playbook("  - {name: train, launch: {command: [other.py]}}\n")
    (folder / "inventory.yml").write_text(
        (folder / "inventory.yml").read_text().replace(", env: {TOKEN: {env: SECRET_OF_MINE}}", "")
    )
    assert render() == 0
    assert names(here) == sorted([*mine, "launch.sh", "link.sh", "of-another-node.sh"])
    assert names(folder / "rendered" / "node-a") == ["launch.sh"]
    assert names(folder / "rendered" / "node-x") == ["again.sh"]


def test_only_these_nodes(folder: Path) -> None:
    assert render("-l", "second", "--out", "some/where") == 0
    assert names(folder / "some" / "where") == ["node-b"]


def test_what_stays_is_not_written_again(folder: Path) -> None:
    render()
    path = folder / "rendered" / "node-a" / "launch.sh"
    before = path.stat().st_mtime_ns, path.stat().st_ino
    path.chmod(0o644)
    render("-e", "epochs=3")
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_many_nodes_are_told_in_few_lines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "many.yml").write_text('nodes: {"gn[001-300]": {address: "10.0.[0-2].[1-100]"}}\n')
    with_playbook("  - {launch: {command: [train.py]}}\n")
    assert render(inventory="many.yml") == 0
    out = capsys.readouterr().out
    assert "rendered/gn[001-300]: launch.sh" in out
    assert len(out.splitlines()) < 5
    assert len(names(folder / "rendered")) == 300


# Windows.


@pytest.mark.parametrize("shell", ["bat", "ps1"])
def test_another_shell_for_every_node(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "gpus.yml").write_text('nodes: {"pc[1-2]": {address: "10.0.0.[1-2]", gpus: 2}}\n')
    with_playbook("  - check: connection\n  - {launch: {command: [train.py]}}\n")
    assert render("--shell", shell, inventory="gpus.yml") == 0
    assert capsys.readouterr().err == ""
    files = tree(folder / "rendered")
    assert sorted(files) == sorted(
        f"pc{n}/{name}" for n in (1, 2) for name in (f"connection.{shell}", f"launch.{shell}", "rank.py")
    )
    for node in ("pc1", "pc2"):
        text = files[f"{node}/launch.{shell}"].decode("utf-8-sig")
        assert "gloo" in text  # the default backend follows the shell
        assert "nccl" not in text
        assert "10.0.0.1" in text  # the master's own address: localhost would leave each of them alone
        assert "localhost" not in text
        assert "python3" not in text
        assert text.count("\r\n") == text.count("\n")
    assert render(inventory="gpus.yml", playbook="playbook.yml") == 0
    assert "nccl" in (folder / "rendered" / "pc1" / "launch.sh").read_text()
    assert names(folder / "rendered" / "pc1") == ["connection.sh", "launch.sh", "rank.py"]


def test_two_shells_beside_each_other(folder: Path) -> None:
    with_playbook("  - {name: old, check: connection}\n  - {launch: {command: [train.py]}}\n")
    for shell in ("bat", "ps1"):
        assert render("--shell", shell) == 0
    with_playbook("  - {launch: {command: [train.py]}}\n")
    render("--shell", "ps1")
    found = names(folder / "rendered" / "node-a")
    assert {"launch.bat", "launch.ps1", "old.bat", "rank.py"} <= set(found)
    assert "old.ps1" not in found


def test_nccl_on_windows_is_warned_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "pc.yml").write_text("rendezvous: {backend: nccl}\n" + WINDOWS)
    with_playbook("  - {launch: {command: [train.py]}}\n")
    assert render(inventory="pc.yml") == 0
    printed = capsys.readouterr()
    assert "warning: pc.yml names the backend nccl" in printed.err
    assert "pc[1-2]" in printed.err


@pytest.mark.parametrize("launcher", ["torchrun", "torch.distributed.launch"])
def test_a_launcher_that_windows_cannot_run_is_refused(
    launcher: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pc.yml").write_text(WINDOWS)
    with_playbook(f"  - launch:\n      launcher: {launcher}\n      command: [python, train.py]\n")
    assert render(inventory="pc.yml") == 2
    error = capsys.readouterr().err
    assert f"error[playbook.launcher-on-windows]: {launcher} cannot start on Windows" in error
    assert "--> playbook.yml:3:17" in error
    assert "launcher: direct" in error
    assert not (folder / "rendered").exists()


@pytest.mark.parametrize("launcher", ["direct", "jax"])
def test_launchers_that_windows_can_run(launcher: str, folder: Path) -> None:
    (folder / "pc.yml").write_text(WINDOWS)
    with_playbook(f"  - launch: {{launcher: {launcher}, command: [python, train.py]}}\n")
    assert render(inventory="pc.yml") == 0


# What is refused.


def test_everything_that_a_shell_cannot_carry_is_told_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "pc.yml").write_text(
        "env:\n  GOOD: a b\n"
        "defaults:\n  shell: bat\n"
        "nodes:\n"
        '  "pc[1-2]":\n    address: "10.0.0.[1-2]"\n    env:\n      BAD: \'say "no"\'\n'
        "  pc3: {address: 10.0.0.3}\n"
    )
    with_playbook("""  - launch:
      command: [train.py, '{{ "a\\nb" }}', fine]
      env:
        LINES: '{{ "c\\nd" }}'
""")
    assert render(inventory="pc.yml") == 2
    error = capsys.readouterr().err
    assert error.count("error[script.cannot-carry]") == 3
    for place in ("playbook.yml:3:27", "playbook.yml:5:16", "pc.yml:9:12"):
        assert f"--> {place}" in error
    assert not (folder / "rendered").exists()


@pytest.mark.parametrize(
    ("launch", "place"),
    [
        ("{command: [train.py], env: {OTHER: 1, master_addr: x, LAST: 2}}", "2:64"),
        ("{command: [train.py], env: {OTHER: 1, Rank: x, LAST: 2}}", "2:57"),
        ("{command: [train.py, short, " + "x" * 9000 + "]}", "2:41"),
    ],
)
def test_what_no_single_value_is_to_blame_for_has_a_place_as_well(
    launch: str, place: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pc.yml").write_text("defaults: {shell: bat, python: C:/python.exe}\nnodes: {pc: {address: 10.0.0.1}}\n")
    with_playbook(f"  - launch: {launch}\n")
    assert render(inventory="pc.yml") == 2
    assert f"--> playbook.yml:{place}" in capsys.readouterr().err


def test_a_secret_that_cannot_be_carried_is_not_shown(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.environ["SECRET_OF_MINE"] = 'wh"isper'
    with_playbook("  - {launch: {command: [train.py]}}\n")
    assert render("--shell", "bat") == 2
    error = capfd.readouterr().err
    assert "error[script.cannot-carry]" in error
    assert "--> inventory.yml:4:" in error
    assert "isper" not in error


def test_a_program_that_the_launcher_cannot_start(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_playbook("  - launch: {launcher: torch.distributed.launch, command: [./a.out]}\n")
    assert render() == 2
    assert "error[playbook.launcher-program]" in capsys.readouterr().err


@pytest.mark.parametrize(
    "launch",
    [
        '{command: ["", x]}',
        "{command: ['{{ nothing }}']}",
        "{command: [-m, package.train]}",
        "{launcher: torchrun, command: [-m, package.train]}",
        "{launcher: torchrun, command: [/opt/venv/bin/torchrun, --nproc_per_node=2, train.py]}",
    ],
)
def test_a_command_without_a_program_of_its_own(launch: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_playbook(f"  - launch: {launch}\n")
    assert render("-e", "nothing=") == 2
    error = capsys.readouterr().err
    assert "error[playbook.launcher-program]" in error
    assert "--> playbook.yml:2:" in error
    assert not (folder / "rendered").exists()


def test_a_word_with_an_unknown_variable(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_playbook('  - launch: {command: [train.py, "--epochs={{ epoch }}"]}\n')
    assert render("-e", "epochs=2") == 2
    error = capsys.readouterr().err
    assert "playbook.yml:2:34" in error
    assert "did you mean `epochs`?" in error


@pytest.mark.parametrize("there", ["rendered", "rendered/node-a"])
def test_a_file_where_the_folder_should_be(there: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / there).parent.mkdir(exist_ok=True)
    (folder / there).write_text("mine")
    assert render() == 2
    assert "error[arguments.out]" in capsys.readouterr().err
    assert (folder / there).read_text() == "mine"


def test_no_folder_and_one_in_the_home_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder / "home"))
    assert render("--out", "") == 2
    assert render("--out=~/scripts") == 0
    assert names(folder / "home" / "scripts") == ["node-a", "node-b"]
    assert not (folder / "~").exists()


def test_a_diff_of_a_file_where_the_folder_should_be(folder: Path) -> None:
    assert render("-D", "--out", "playbook.yml") == 2


def test_how_to_start_can_be_pasted(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "train.py").touch()
    with_playbook(f"  - launch: {{command: [train.py], workdir: {folder}}}\n")
    for out in ("my scripts", "-x"):
        assert render("-l", "node-a", f"--out={out}") == 0
        command = capfd.readouterr().out.splitlines()[-1].removeprefix("start it on node-a: ")
        assert subprocess.run(["sh", "-c", command], timeout=60, check=False).returncode == 0, command
    assert render("--shell", "bat", "-l", "node-a", "--out=my scripts") == 0
    assert '"my scripts\\node-a\\launch.bat"' in capfd.readouterr().out


def test_a_part_of_the_nodes_is_a_job_of_its_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    render()
    assert capsys.readouterr().err == ""
    render("-l", "second")
    assert "2 ranks with node-b as rank 0" in capsys.readouterr().err


def test_a_node_that_is_no_more_is_told_and_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    render()
    (folder / "rendered" / "mine").mkdir()
    (folder / "rendered" / "mine" / "launch.sh").write_text("echo mine\n")
    with_playbook("  - launch: {command: [train.py]}\n")
    (folder / "other.yml").write_text("nodes: {x: {address: 10.0.0.1}}\n")
    render("-l", "node-a")
    render(inventory="other.yml")
    assert "warning" not in capsys.readouterr().err
    text = (folder / "inventory.yml").read_text()
    (folder / "inventory.yml").write_text(text.replace("node-b", "node-c"))
    for arguments in ((), ("-D",)):
        assert render(*arguments) == 0
        assert "warning: rendered/node-b was made from inventory.yml" in capsys.readouterr().err
    assert (folder / "rendered" / "node-b" / "launch.sh").exists()


# What is shipped.


@pytest.mark.parametrize("shell", ["sh", "bat", "ps1"])
def test_the_shipped_training_in_every_shell(shell: str, folder: Path) -> None:
    assert main(["render", "train_single_gpu", "--shell", shell]) == 0
    assert names(folder / "rendered" / "windows-pc") == [f"launch.{shell}"]


def test_the_shipped_training_starts(folder: Path) -> None:
    program = folder / "project" / "cn_clip" / "training" / "main.py"
    program.parent.mkdir(parents=True)
    program.write_text(
        "import json, os, sys\nprint(json.dumps([os.getcwd(), sys.argv, os.environ['RUNBOOK_BACKEND']]))\n"
    )
    project = f"project={folder}/project"
    assert main(["render", "train_single_gpu", "-i", "linux_single_gpu", "-e", project, "-e", "batch_size=7"]) == 0
    done = subprocess.run(["sh", "rendered/linux-pc/launch.sh"], check=True, capture_output=True, text=True, timeout=60)
    cwd, argv, backend = json.loads(done.stdout)
    assert (cwd, argv[0], backend) == (f"{folder}/project", "cn_clip/training/main.py", "nccl")
    assert "--batch-size=7" in argv
    assert len(argv) == 27
