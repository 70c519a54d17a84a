"""`runbook collect` as somebody types it, with this machine as the node: what it takes, what it writes, how it ends."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import stat
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from profiles import one_in

from runbook.cli.collect import Subject, absent_lines, keep_run_of_inventory, not_asked_lines
from runbook.cli.main import main
from runbook.collect.archive import Absent, ArchiveFile, decoded_file_text, read_archive_entry
from runbook.collect.ask_nodes import NodeAnswer
from runbook.collect.local_files import CollectedRun
from runbook.files.inventory import load_inventory
from runbook.model.decoded_text import decoded_views
from runbook.model.errors import Unreachable

INVENTORY = """\
name: mine
rendezvous: {master: node-a}
env: {NCCL_DEBUG: INFO, HF_TOKEN: {env: SECRET_OF_MINE}}
defaults: {python: PYTHON}
nodes: {node-a: {address: 127.0.0.1, connection: local, ssh: {user: mallory}}}
""".replace("PYTHON", f"{sys.base_prefix}/bin/python3")  # without torch, which takes seconds to import
SECRET = "s3cr3t/0815"
OTHERS = ("hunter2hunter2", "ghp_" + "aB3" * 12, "dXNlcjpwYXNzd29yZA==", "wJalrXUtnFEMI")
PLANTED_LOG = (
    "login as mallory, password: hunter2hunter2\nremote: {}\nAuthorization: Basic {}\n"
    "aws_secret_access_key={}K7MDENGbPxRfiCYEXAMPLEKEY\n/home/mallory/train.py s3cr3t%2F0815 s3cr3t/0815\n"
).format(*OTHERS[1:])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "inventory.yml").write_text(INVENTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # where others may have left runs
    monkeypatch.setenv("SECRET_OF_MINE", SECRET)
    return tmp_path


def make_run(folder: Path, run_id: str = "20260102-030405-abcdef", inventory: str = "inventory.yml") -> Path:
    """A run's folder as `run` leaves it, with secrets and names in every file."""
    run = folder / ".runbook" / "runs" / run_id
    (run / "logs").mkdir(parents=True)
    (folder / "playbook.yml").write_text("name: p # of mallory\nstages: [{check: ping}, {check: connection}]\n")
    said = {"run_id": run_id, "playbook": "playbook.yml", "inventory": inventory, "nodes": ["node-a"]}
    at = time.time() + 1000
    started = {"event": "run-started", "time": at, "version": "0.1.0", "stages": ["ping"], "run_dir": str(run), **said}
    ended = {"verdict": "fail", "exit_code": 1, "stopped_at": "ping", "seconds": 1.0, "causes": ["mtu-blackhole"]}
    planted = {"event": "progress", "text": PLANTED_LOG, "data": {"token": OTHERS[0], "mallory": f"x{SECRET}"}}
    lines = (
        json.dumps(started)
        + "\n"
        + json.dumps(planted).replace("s3cr3t", "s3c\\u00723t").replace("/", "\\/")
        + "\n"
        + json.dumps({"event": "run-finished", "time": at, "run_dir": str(run), **ended})
        + "\n"
    )
    (run / "events.jsonl").write_text(lines)
    result = {"version": 1, **said, **ended, "stages": []}
    (run / "result.json").write_text(json.dumps({**result, "says": PLANTED_LOG}))
    (run / "logs" / "rank-00000.node-a.log").write_text(PLANTED_LOG)
    return run


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    def files(self, path: Path | None = None) -> dict[str, bytes]:
        """The members of the archive, by name."""
        with tarfile.open(path or Path(self.out.split(" · ")[0])) as tar:
            return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


Say = Callable[..., Said]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    def run(*arguments: str) -> Said:
        code = main(["collect", *arguments])
        out, err = capsys.readouterr()
        return Said(code, out, err)

    return run


@pytest.mark.thorough
def test_without_a_run_the_node_is_asked(say: Say, folder: Path) -> None:
    said = say()
    assert said.code == 0, said
    assert "none: there is no run here yet" in said.out
    assert "asked      node-a  " in said.out
    assert "Look through it before you send it" in said.out
    (path,) = folder.glob("*.tar.gz")
    assert path.name.startswith("runbook-collect-mine-20")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    files = said.files()
    assert list(files)[:2] == ["README.txt", "manifest.json"]
    assert {"inventory.yml", "controller/versions.txt", "scripts/node-a/launch.sh", "nodes/node-a/python.txt"} <= set(
        files
    )
    assert {"nodes/node-a/system/uname.txt", "nodes/node-a/system/limits.txt", "nodes/node-a/processes.txt"} <= set(
        files
    )
    assert files["nodes/node-a/system/uname.txt"].decode().startswith("$ uname -a\nLinux ")
    assert b"HF_TOKEN=REDACTED" in files["scripts/node-a/launch.env"]


def test_the_manifest_tells_of_every_file_and_of_what_is_missing(say: Say) -> None:
    files = say().files()
    listed = json.loads(files["manifest.json"])["files"]
    there = {one["path"]: one for one in listed if one["path"]}
    assert set(there) == set(files) - {"manifest.json"}
    for name, one in there.items():
        assert one["size"] == len(files[name])
        assert one["sha256"] == hashlib.sha256(files[name]).hexdigest()
    uname = there["nodes/node-a/system/uname.txt"]
    assert (uname["node"], uname["command"], uname["exit_code"], uname["truncated"]) == ("node-a", "uname -a", 0, False)
    missing = [one for one in listed if one["path"] is None]
    assert all(one["missing"] and one["what"] for one in missing)
    assert any(one["what"] == "run" for one in missing)


def survivors(files: dict[str, bytes]) -> list[str]:
    """Planted secrets and names that can still be read, in any of the usual ways to write them."""
    found = []
    for name, data in files.items():
        for view in decoded_views(f"{name}\n{data.decode()}"):
            for planted in (SECRET, *OTHERS, "mallory"):
                if planted in view.text:
                    found.append(f"{planted} in {name}")
    return found


@pytest.mark.parametrize("options", [[], ["--hide-addresses"]])
def test_nothing_planted_survives(say: Say, folder: Path, options: list[str]) -> None:
    make_run(folder)
    said = say(*options)
    assert said.code == 0, said
    files = said.files()
    assert survivors(files) == []
    raw = gzip.decompress(next(folder.glob("*.tar.gz")).read_bytes())
    assert not any(planted.encode() in raw for planted in (SECRET, *OTHERS, "mallory"))
    assert json.loads(files["run/result.json"])["verdict"] == "fail"
    for line in files["run/events.jsonl"].decode().splitlines():
        json.loads(line)
    log = next(data for name, data in files.items() if name.startswith("run/logs/")).decode()
    assert "login as user" in log
    assert yaml.safe_load(files["inventory.yml"])["rendezvous"]["master"] == ("host1" if options else "node-a")
    assert "of user" in files["playbook.yml"].decode()


def test_the_latest_run_is_taken_and_another_can_be_named(say: Say, folder: Path) -> None:
    old = make_run(folder, "20260101-000000-aaaaaa")
    (old / "logs" / "only-in-the-old-one.log").write_text("x\n")
    make_run(folder, "20260102-000000-bbbbbb")
    said = say("--out", "a.tar.gz")
    assert "runs/20260102-000000-bbbbbb: fail at ping: mtu-blackhole (the latest" in said.out
    assert "run/logs/only-in-the-old-one.log" not in said.files(Path("a.tar.gz"))
    said = say("--out", "b.tar.gz", "--run-dir", str(old))
    assert "(the latest" not in said.out
    assert "run/logs/only-in-the-old-one.log" in said.files(Path("b.tar.gz"))


def test_a_run_of_other_machines_is_left_out_when_an_inventory_is_named(say: Say, folder: Path) -> None:
    make_run(folder, inventory="other.yml")
    (folder / "other.yml").write_text(INVENTORY)
    said = say("-i", "inventory.yml")
    assert "was of other.yml; --run-dir " in said.out
    assert not any(name.startswith("run/") for name in said.files())


@pytest.mark.parametrize("named", ["slurm", "slurm:77", "kubernetes:train:app=x"])
@pytest.mark.parametrize(
    ("of_run", "nodes", "kept"),
    [
        (None, ("node-a",), True),
        (None, ("node-a", "node-b"), True),
        (None, ("node-a", "old-a"), False),
        ("inventory.yml", ("node-a",), False),
        ("slurm:76", ("node-a",), False),
    ],
)
def test_a_run_of_another_job_is_left_out(
    folder: Path, named: str, of_run: str | None, nodes: tuple[str, ...], kept: bool
) -> None:
    (folder / "job.yml").write_text("nodes: {node-a: {}, node-b: {}}\n")
    inventory, origins = load_inventory(folder / "job.yml")
    run = CollectedRun(folder, "fail", None, (), nodes, None, None, None, of_run or named, "playbook.yml")
    arguments = argparse.Namespace(run_dir=None, inventory=named)
    found, about = keep_run_of_inventory(arguments, Subject(None, inventory, origins), run, "the latest")
    assert (found is run, about == "the latest") == (kept, kept)


def test_a_run_whose_inventory_is_gone_is_still_worth_sending(say: Say, folder: Path) -> None:
    run = make_run(folder, inventory="gone.yml")
    said = say("--run-dir", str(run))
    assert said.code == 3, said
    assert "the run's inventory, gone.yml, does not exist" in said.out
    assert "run/result.json" in said.files()
    (folder / "gone.yml").write_text("nodes: {}\n")
    assert say("--run-dir", str(run), "--out", "b.tar.gz").code == 3


def test_an_unreachable_and_a_windows_node_are_named_and_the_rest_is_there(say: Say, folder: Path) -> None:
    (folder / "inventory.yml").write_text(
        "name: mine\nrendezvous: {master: node-a, address: 10.9.9.9, backend: gloo}\n"
        f"defaults: {{ssh: {{connect_timeout: 2s}}, python: {sys.base_prefix}/bin/python3}}\n"
        "nodes:\n  node-a: {address: 127.0.0.1, connection: local}\n  node-b: {address: 127.0.0.2, ssh: {port: 1}}\n"
        "  pc: {address: 10.9.9.8, shell: bat}\n"
    )
    said = say("-o", "json")
    assert said.code == 3, said
    document = json.loads(said.out)
    assert document["exit_code"] == 3
    nodes = {one["node"]: one for one in document["nodes"]}
    assert [nodes[name]["asked"] for name in ("node-a", "node-b", "pc")] == [True, False, False]
    assert nodes["node-b"]["cause"] == "ssh-refused"
    assert nodes["node-b"]["remedy"]
    files = said.files(Path(document["archive"]))
    assert b"node-b: not asked: ssh-refused" in files["README.txt"]
    assert b"pc is a Windows node" in files["README.txt"]
    assert "scripts/pc/launch.bat" in files
    said = say("-l", "node-a", "--out", "one.tar.gz")
    assert said.code == 0, said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-i", "nowhere"], "there is no inventory `nowhere`"),
        (["--run-dir", "nowhere"], "--run-dir nowhere is no folder"),
        (["--run-dir", "."], "--run-dir . holds no run"),
        (["--out", "there.tar.gz"], "the file exists\n = help: name another\n"),
        (["--out", "."], "--out . is a folder\n = help: name a file: --out ./collected.tar.gz"),
        (["--out", "no/such/folder.tar.gz"], "there is no folder"),
        (["-l", "node-z"], "node-z"),
    ],
)
def test_wrong_arguments_write_nothing(say: Say, folder: Path, arguments: list[str], says: str) -> None:
    (folder / "there.tar.gz").write_text("mine")
    said = say(*arguments)
    assert (said.code, said.out) == (2, ""), said
    assert says in said.err
    assert [path.name for path in folder.glob("*.tar.gz")] == ["there.tar.gz"]
    assert (folder / "there.tar.gz").read_text() == "mine"
    assert list(folder.glob(".runbook-collect-*")) == []


def test_a_variable_that_is_not_set_here_is_told(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SECRET_OF_MINE")
    said = say()
    assert said.code == 0, said
    assert (
        "warning    the environment variable SECRET_OF_MINE is not set here: its value cannot be looked for" in said.out
    )


def test_interrupted_nothing_is_left(say: Say, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    assert say().code == 130
    assert sorted(path.name for path in folder.iterdir()) == ["inventory.yml"]


# What is read from files.


def test_a_long_log_keeps_its_head_and_tail_in_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runbook.collect.archive.MAX_MEMBER_BYTES", 1000)
    path = tmp_path / "x.log"
    lines = [f"line {number:04} of the log" for number in range(200)]
    path.write_text("\n".join(lines) + "\n")
    entry = read_archive_entry(path, "run/logs/x.log")
    assert isinstance(entry, ArchiveFile)
    kept = entry.text.splitlines()
    (note,) = [line for line in kept if "left out" in line]
    assert note == f"[... {entry.left_out} bytes left out here ...]"
    assert set(kept) - {note} <= set(lines)
    assert (kept[0], kept[-1]) == (lines[0], lines[-1])
    path.write_text("a secret without any line break " * 100)
    entry = read_archive_entry(path, "run/logs/x.log")
    assert isinstance(entry, ArchiveFile)
    assert "secret" not in entry.text


@pytest.mark.parametrize(
    "data",
    one_in(3, [b"caf\xe9 \xff\xfe token=PLANTED99", "token=PLANTED99 é".encode("utf-16"), b"t\0oken=PLANTED99\0"]),
)
def test_bytes_that_are_no_utf8_are_read_all_the_same(say: Say, folder: Path, data: bytes) -> None:
    run = make_run(folder)
    (run / "logs" / "odd.log").write_bytes(data)
    assert "token=" in decoded_file_text(data)
    log = say().files()["run/logs/odd.log"].decode()
    assert "token=REDACTED" in log
    assert "PLANTED" not in log


@pytest.mark.thorough
def test_what_cannot_be_looked_through_is_left_out(say: Say, folder: Path) -> None:
    run = make_run(folder)
    (run / "logs" / "old.log.gz").write_bytes(gzip.compress(PLANTED_LOG.encode()))
    (run / "logs" / "link.log").symlink_to("/etc/hostname")
    files = say().files()
    assert "run/logs/old.log.gz" not in files
    assert "run/logs/link.log" not in files
    listed = json.loads(files["manifest.json"])["files"]
    missing = {one["what"]: one["missing"] for one in listed if one["path"] is None}
    assert "packed or binary" in missing["run/logs/old.log.gz"]


# Read again by diagnose.


def archive(path: Path, *members: tuple[str, bytes], kind: bytes = tarfile.REGTYPE) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.type = len(data), kind
            tar.addfile(info, io.BytesIO(data))
    return path


def diagnosed(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, object]]]:
    capsys.readouterr()
    code = main(["diagnose", "-o", "json", str(path)])
    out = capsys.readouterr().out
    return code, json.loads(out)["causes"] if out else []


def test_diagnose_reads_what_collect_wrote(say: Say, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(folder)
    (run / "logs" / "rank-00003.node-a.log").write_text("Fatal Python error: Segmentation fault\n")
    assert say("--out", "a.tar.gz").code == 0
    code, causes = diagnosed(Path("a.tar.gz"), capsys)
    assert code == 0
    assert (causes[0]["cause"], causes[0]["rank"], causes[0]["node"]) == ("rank-crashed", 3, "node-a")
    assert causes[0]["evidence"][0]["file"] == "a.tar.gz!run/logs/rank-00003.node-a.log"  # type: ignore[index]


def test_a_healthy_node_gives_no_cause(say: Say, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever this machine's own kernel has been through before the run."""
    run = make_run(folder)
    (run / "logs" / "rank-00000.node-a.log").write_text("epoch 1 loss 2.3\n")
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "verdict": "pass", "stopped_at": None, "causes": []}))
    assert say("--out", "a.tar.gz").code == 0
    assert diagnosed(Path("a.tar.gz"), capsys) == (0, [])


def test_archives_of_others_are_read_where_they_lie(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    crash = b"Fatal Python error: Segmentation fault\n"
    path = archive(folder / "x.tgz", ("../../evil.log", crash), ("code.py", b"raise KeyError"))
    code, causes = diagnosed(path, capsys)
    assert (code, causes[0]["cause"]) == (0, "rank-crashed")
    assert causes[0]["evidence"][0]["file"] == f"{path}!../../evil.log"  # type: ignore[index]
    assert sorted(one.name for one in folder.iterdir()) == ["inventory.yml", "x.tgz"]
    assert diagnosed(archive(folder / "links.tgz", ("a.log", b""), kind=tarfile.SYMTYPE), capsys)[0] == 2
    cut = folder / "cut.tgz"
    cut.write_bytes(path.read_bytes()[:-20])
    assert diagnosed(cut, capsys)[1][0]["cause"] == "rank-crashed"


def test_nodes_that_are_silent_alike_share_an_entry() -> None:
    def refused(number: int, cause: str = "ssh-refused") -> NodeAnswer:
        says = f"node-{number:02}: 10.0.0.{number} refuses port 22"
        failure = Unreachable(cause, says, f"start sshd on node-{number:02}")
        return NodeAnswer(f"node-{number:02}", failure=failure)

    lines = list(
        not_asked_lines([refused(1), NodeAnswer("node-00"), *map(refused, range(2, 30)), refused(40, "other")])
    )
    assert lines == [
        " not asked  node-[01-29]  10.0.0.[1-29] refuses port 22",
        "   fix      start sshd on node-[01-29]",
        "   more     runbook explain ssh-refused",
        " not asked  node-40  10.0.0.40 refuses port 22",
        "   fix      start sshd on node-40",
        "   more     runbook explain other",
    ]


def test_what_busy_nodes_could_not_give_takes_no_line_a_node() -> None:
    def busy(number: int) -> NodeAnswer:
        name = f"node-{number:02}"
        absent = [Absent(f"nodes/{name}/gpu.txt", "there is none", "missing", name, "sudo -n nvidia-smi -q")]
        absent += [Absent(f"nodes/{name}/ufw.txt", f"it did not end within {number} s", "timeout", name)]
        absent += [Absent(f"nodes/{name}/ip.txt", "it did not end within 9 s", "timeout", name)] * (number == 7)
        return NodeAnswer(name, absent=absent)

    assert list(absent_lines([busy(number) for number in range(1, 31)])) == [
        "   not there   nvidia-smi",
        "   timeout     ufw: it did not end within 1…30 s",
        "   timeout     ip (on node-07): it did not end within 9 s",
    ]
