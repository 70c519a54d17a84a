"""Where a run keeps its files: unique, its user's own, no other run's; and nothing that lies there is followed or mixed in."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from lab.processes import wait_until
from profiles import one_in

from runbook.engine import run_folder as run_folder_module
from runbook.engine.run_folder import RUN_FOLDER_FILES, run_folder
from runbook.model.errors import FilesWrong
from runbook.model.safe_files import (
    BadName,
    checked_file_name,
    make_folders_below,
    open_append_below,
    rename_if_free,
    write_file_below,
)

from .users import ATTACKER, PYTHON, VICTIM, common, folder_of, needs_users, run_as

__all__ = ["common"]

CHECKOUT = Path(__file__).parents[2]
INVENTORY = "network: {interface: lo}\nnodes:\n  here: {connection: local, address: 127.0.0.1, workdir: WORK}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inventory.yml").write_text(INVENTORY.replace("WORK", str(tmp_path / "work")))
    (tmp_path / "playbook.yml").write_text("stages:\n  - {name: first, shell: 'echo one'}\n")
    return tmp_path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "runbook", *arguments]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(CHECKOUT), **more}


def run(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    argv = command("run", "playbook.yml", "-i", "inventory.yml", "-o", "json", *arguments)
    return subprocess.run(
        argv, cwd=folder, env=environment(**more), capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("links", [True, False])
def test_a_file_is_renamed_only_where_nothing_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if not links:  # as on exFAT
        monkeypatch.setattr(os, "link", refuse)
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("1")
    other.symlink_to("nowhere")
    with pytest.raises(FileExistsError):
        rename_if_free(one, other)
    assert one.read_text() == "1"
    other.unlink()
    rename_if_free(one, other)
    assert (other.read_text(), one.exists()) == ("1", False)


# A folder that is named.


def test_an_empty_folder_that_is_there_is_used_as_it_is(folder: Path) -> None:
    (folder / "out").mkdir()
    done = run(folder, "--run-dir", "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "out" / "result.json").read_text() == done.stdout


def test_one_that_was_used_is_begun_afresh_and_the_earlier_run_is_kept_beside_it(folder: Path) -> None:
    ids = []
    for number in range(3):
        done = run(folder, "--run-dir", "out")
        assert done.returncode == 0, done
        ids.append(json.loads(done.stdout)["run_id"])
        assert ("note: out held the files of an earlier run" in done.stderr) == (number > 0)
        events = (folder / "out" / "events.jsonl").read_text().splitlines()
        assert [json.loads(line)["event"] for line in events].count("run-started") == 1
        (folder / "out" / "logs").mkdir(exist_ok=True)  # what must not be taken for the next run's
        (folder / "out" / "logs" / "rank-00000.here.log").write_text(f"of run {number}\n")
    for number, place in ((2, "out"), (0, "out.1"), (1, "out.2")):
        assert json.loads((folder / place / "result.json").read_text())["run_id"] == ids[number]
        assert (folder / place / "logs" / "rank-00000.here.log").read_text() == f"of run {number}\n"


@pytest.mark.parametrize("name", RUN_FOLDER_FILES)
@pytest.mark.parametrize("kind", ["link to a file", "link to a folder", "dangling link", "another's words"])
def test_what_no_run_of_ours_left_is_refused_and_stays_as_it_is(folder: Path, name: str, kind: str) -> None:
    (folder / "out").mkdir()
    (folder / "precious").mkdir()
    (folder / "precious" / "bashrc").write_text("mine\n")
    target = {"link to a file": "precious/bashrc", "link to a folder": "precious", "dangling link": "precious/new"}
    if kind in target:
        (folder / "out" / name).symlink_to(folder / target[kind])
    else:
        (folder / "out" / name).write_text("mine\n")
    with pytest.raises(FilesWrong, match=f"out holds {name}"), run_folder(str(folder / "out"), "x"):
        pass
    assert [path.name for path in (folder / "precious").iterdir()] == ["bashrc"]
    assert (folder / "precious" / "bashrc").read_text() == "mine\n"
    assert [path.name for path in (folder / "out").iterdir()] == [name]


def test_that_is_2_and_nothing_is_run(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "logs").symlink_to(folder)
    done = run(folder, "--run-dir", "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert "error[arguments.run-dir]: out holds logs, which no run of this user wrote" in done.stderr
    assert not (folder / "work").exists()


def test_other_files_in_it_are_left_alone(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "console.txt").write_text("of the shell's >\n")
    assert run(folder, "--run-dir", "out").returncode == 0
    assert (folder / "out" / "console.txt").read_text() == "of the shell's >\n"


def test_two_runs_at_once_do_not_share_one(folder: Path) -> None:
    slow = f"stages:\n  - {{name: slow, shell: 'while test ! -e {folder}/go; do sleep 0.1; done'}}\n"
    (folder / "slow.yml").write_text(slow)
    first = subprocess.Popen(
        command("run", "slow.yml", "-i", "inventory.yml", "--run-dir", "out", "-o", "json"),
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until("the first run has events", lambda: (folder / "out" / "events.jsonl").exists())
        before = (folder / "out" / "events.jsonl").stat().st_ino
        second = run(folder, "--run-dir", "out")
        assert (second.returncode, second.stdout) == (2, "")
        assert "another run uses it now" in second.stderr
        (folder / "go").touch()
        said, _ = first.communicate(timeout=60)
    finally:
        first.kill()
        first.wait()
    assert (first.returncode, json.loads(said)["verdict"]) == (0, "pass")
    assert (folder / "out" / "events.jsonl").stat().st_ino == before
    assert run(folder, "--run-dir", "out").returncode == 0, "who has ended holds it no more"


@needs_users
@pytest.mark.parametrize("mode", [0o755, 0o777, 0o1777])
def test_a_folder_of_another_user_is_refused(folder: Path, common: Path, mode: int) -> None:
    theirs = folder_of(ATTACKER, common / "out", mode)
    done = run(folder, "--run-dir", str(theirs))
    assert (done.returncode, done.stdout) == (2, "")
    assert "it belongs to another user" in done.stderr
    assert list(theirs.iterdir()) == []


# A folder that runs find by themselves.


def test_a_run_without_one_makes_its_own_private_folder_here(folder: Path) -> None:
    told = [json.loads(run(folder).stdout)["run_dir"] for _ in range(2)]
    assert len(set(told)) == 2
    for name in told:
        path = folder / name
        assert path.parent == folder / ".runbook" / "runs"
        assert {stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent, path.parent.parent)} == {0o700}
        assert {stat.S_IMODE(one.stat().st_mode) & 0o077 for one in path.iterdir()} == {0}


SCRIPT = """
import os, sys
sys.path.insert(0, os.environ["CHECKOUT"])
from runbook.engine.run_folder import run_folder
os.chdir(os.environ["HERE"])
with run_folder(None, "20260101-000000-abc") as path:
    print(os.path.realpath(path), os.lstat(path).st_uid, oct(os.lstat(path).st_mode & 0o7777))
"""


@needs_users
@pytest.mark.parametrize(
    "planted",
    one_in(
        2,
        ["link to a file", "nothing", "folder of the attacker", "link to one of the victim's", "0777 .runbook/runs"],
    ),
)
def test_what_others_prepared_where_it_would_lie_is_not_used(common: Path, planted: str) -> None:
    """The victim works in a folder of the attacker, or in one where everybody may write."""
    checkout = common / "checkout"
    checkout.mkdir()
    subprocess.run(["cp", "-r", str(CHECKOUT / "runbook"), str(checkout)], check=True)
    home, here = folder_of(VICTIM, common / "home"), folder_of(ATTACKER, common / "here", 0o777)
    temp = folder_of(ATTACKER, common / "tmp", 0o1777)
    for name in (f"runbook-{VICTIM}", "runbook"):  # what an older version looked for
        (temp / name).symlink_to(home)
    if planted == "link to a file":
        (here / ".runbook").symlink_to(home / ".bashrc")
    elif planted == "folder of the attacker":
        folder_of(ATTACKER, here / ".runbook", 0o777)
    elif planted == "link to one of the victim's":
        (here / ".runbook").symlink_to(home)
        os.chown(here / ".runbook", ATTACKER, ATTACKER, follow_symlinks=False)
    elif planted == "0777 .runbook/runs":
        folder_of(VICTIM, here / ".runbook", 0o777)
        folder_of(ATTACKER, here / ".runbook" / "runs", 0o777)
    said = run_as(
        VICTIM,
        ["/usr/bin/env", "-u", "XDG_STATE_HOME", str(PYTHON), "-c", SCRIPT],
        HOME=str(home),
        HERE=str(here),
        CHECKOUT=str(checkout),
        TMPDIR=str(temp),
        PYTHONDONTWRITEBYTECODE="1",
    )
    assert said.returncode == 0, said.stderr
    path, owner, mode = said.stdout.split()
    assert (int(owner), mode) == (VICTIM, "0o700")
    wanted = here / ".runbook/runs" if planted == "nothing" else home / ".local/state/runbook/runs"
    assert Path(path).parent == wanted
    assert not (home / ".bashrc").exists()


def test_without_a_home_and_a_writable_folder_it_is_a_new_one_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder_module, "default_parents", lambda: [tmp_path / "file" / "runbook" / "runs"])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    found = set()
    for _ in range(3):
        with run_folder(None, "20260101-000000-abc") as path:
            found.add(path)
            assert path.parent == tmp_path
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert len(found) == 3


def test_the_same_id_twice_is_never_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the third and the fourth go
    found = []
    for _ in range(4):
        with run_folder(None, "twice") as path:
            found.append(path.resolve())
    assert len(set(found)) == 4


# Files in it.

NAMES = [
    "../x",
    "/etc/x",
    "..",
    ".",
    "",
    "a/b",
    "a\\b",
    "a\nb",
    "a\0b",
    "\x1b[2J",
    "-rf",
    ".bashrc",
    "x" * 300,
    "ä",
    "a b",
]


@pytest.mark.parametrize("name", NAMES)
def test_no_such_name_becomes_a_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadName):
        checked_file_name(name)
    for attempt in (
        lambda: open_append_below(tmp_path, name),
        lambda: open_append_below(tmp_path, name, "x"),
        lambda: make_folders_below(tmp_path, "a", name),
        lambda: write_file_below(tmp_path, name, data="x"),
        lambda: write_file_below(tmp_path, name, "x", data="x"),
    ):
        with pytest.raises(BadName):
            attempt()
    assert list(tmp_path.iterdir()) == []


def test_no_link_is_followed_on_the_way_to_a_file(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    (theirs / "file").write_text("theirs")
    (ours / "logs").symlink_to(theirs)
    (ours / "file").symlink_to(theirs / "file")
    os.link(theirs / "file", ours / "hard")
    os.mkfifo(ours / "pipe")
    for names in (("logs", "file"), ("logs", "new"), ("file",), ("hard",), ("pipe",)):
        with pytest.raises(OSError):
            open_append_below(ours, *names).close()
    with pytest.raises(OSError):
        make_folders_below(ours, "logs", "inner")
    with pytest.raises(OSError):
        write_file_below(ours, "logs", "file", data="ours")
    write_file_below(ours, "file", data="ours")
    write_file_below(ours, "hard", data="ours")
    assert (ours / "file").read_text() == (ours / "hard").read_text() == "ours"
    assert not (ours / "file").is_symlink()
    assert {path.name: path.read_text() for path in theirs.iterdir()} == {"file": "theirs"}


def test_what_is_wrong_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FilesWrong, match="--run-dir"), run_folder(str(tmp_path / "file"), "x"):
        pass
