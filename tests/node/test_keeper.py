"""A keeper that writes down how its process ended, whatever the disk has room for; and a barrier for many nodes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lab.memory import memory_group

from runbook.node import job_control, keeper, proc
from runbook.node.journal import STOPPED_BY_USER
from runbook.node.proc import process_start_ticks

if TYPE_CHECKING:
    from collections.abc import Iterator


def new_job() -> str:
    """No other's: a keeper ends whatever on this machine bears its tags, also what another test keeps."""
    return f"job-{uuid.uuid4().hex}"


def order(folder: Path, **facts: Any) -> dict[str, Any]:
    told = {"name": "rank-00000.a.l0", "job": new_job(), "attempt": 1, "node": "a", "ranks": [0], "barrier": None}
    return {"folder": str(folder), **told, **facts}


def test_the_end_of_a_rank_that_filled_the_disk_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a later reader would find that its keeper had been killed."""
    journal = keeper.Journal(order(tmp_path))
    journal.write("running", pid=7, why="a word that is longer than what is said in the end")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(keeper, "write_atomically", full)
    journal.write("ended", code=1, why=None)
    told = json.loads((tmp_path / "rank-00000.a.l0.json").read_text())
    assert (told["state"], told["code"], told["pid"]) == ("ended", 1, 7)
    assert told["no_room"] == "No space left on device"
    monkeypatch.undo()
    journal.write("ended", code=1)
    assert "no_room" not in json.loads((tmp_path / "rank-00000.a.l0.json").read_text())


def test_a_folder_that_cannot_be_listed_for_a_moment_does_not_end_the_watch_over_siblings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file server that starts anew."""
    (tmp_path / "rank-00001.a.l1.json").write_text(json.dumps({"state": "ended", "code": 1}))
    (tmp_path / "rank-00001.a.l1.json").chmod(0o600)
    here = keeper.Keeper(order(tmp_path, detached=True, grace_s=1.0))
    truly, looks = os.listdir, iter([False])

    def listdir(path: str) -> list[str]:
        if next(looks, True):
            return truly(path)
        raise OSError(errno.ESTALE, "Stale file handle")

    class Running:
        def poll(self) -> None:
            return None

    monkeypatch.setattr(os, "listdir", listdir)
    monkeypatch.setattr(keeper, "sleep_seconds", lambda _: None)
    monkeypatch.setattr(here, "process", Running())
    here.watch_siblings()
    assert here.news.get_nowait()[::2] == ("stop", "rank-00001.a.l1 failed")


def test_at_the_barrier_only_the_owner_reads_what_every_node_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand nodes that read a thousand files each would hold up their file server for minutes."""
    tmp_path.chmod(0o700)
    nodes = [f"node-{number}" for number in range(50)]
    told = {"folder": str(tmp_path), "token": "t", "nodes": nodes, "first": False, "timeout_s": 0.0, "owner": False}
    everyone = {name: keeper.Barrier({**told, "node": name}) for name in nodes}
    for name, barrier in everyone.items():
        barrier.put(name + ".ready")
    read: list[str] = []
    truly = keeper.Barrier.read

    def noted(self: keeper.Barrier, name: str) -> dict[str, Any]:
        read.append(name)
        return truly(self, name)

    monkeypatch.setattr(keeper.Barrier, "read", noted)
    assert keeper.Barrier({**told, "node": "node-0", "owner": True}).pass_through() is None
    assert len(read) == len(nodes)
    read.clear()
    met: list[list[str]] = []
    assert everyone["node-1"].pass_through(met.append) is None
    assert read == ["go"]
    assert met == [nodes]


@pytest.mark.parametrize("text", ["[]", '"go"', "7", "null", "{", "", "[" * 100000])
def test_a_file_at_the_barrier_that_is_none_of_ours_is_no_answer(tmp_path: Path, text: str) -> None:
    tmp_path.chmod(0o700)
    told = {"folder": str(tmp_path), "token": "t", "nodes": ["a", "b"], "first": False, "timeout_s": 0.0, "owner": True}
    for name in ("a.ready", "b.ready", "abort"):
        (tmp_path / name).write_text(text)
    assert keeper.Barrier({**told, "node": "a"}).pass_through() is not None


def test_what_leaves_the_session_and_clears_its_environment_is_ended_too(tmp_path: Path) -> None:
    leaves = "env -i setsid sh -c 'sleep 1000 & echo $!' >pid; env -i setsid true & exit 3"
    argv = ["/bin/sh", "-c", f"cd {tmp_path}; {leaves}"]
    told = order(tmp_path, argv=argv, detached=False, grace_s=0.2, each=[], logs=None, stacks=None)
    command = [sys.executable, "-m", "runbook.node.keeper", json.dumps(told)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as running:
        assert running.stdin is not None
        running.stdin.write(b"go 0\n")
        running.stdin.flush()  # and open: its end would end the process
        assert running.wait(timeout=60) == 0
    journal = json.loads((tmp_path / "rank-00000.a.l0.json").read_text())
    left = int((tmp_path / "pid").read_text())
    assert (journal["state"], journal["code"], journal["swept"]) == ("ended", 3, 0), "TERM is enough for it"
    assert process_start_ticks(left) is None, "it lives"


@contextlib.contextmanager
def keeps(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A keeper whose process sleeps, in a folder of an attempt as a node has it; it has ended when the block does."""
    job = new_job()
    folder = tmp_path / job / "a" / "attempt-01"
    folder.mkdir(parents=True)
    for one in (tmp_path, folder, *folder.parents[:2]):
        one.chmod(0o700)
    argv = ["/bin/sh", "-c", "echo $$; exec sleep 1000"]
    told = order(folder, job=job, argv=argv, detached=True, grace_s=5.0, each=[], logs=None, stacks=None)
    command = [sys.executable, "-m", "runbook.node.keeper", json.dumps(told)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write(b"go 0\n")
        running.stdin.flush()
        assert any(b'"running"' in line for line in running.stdout)
        yield running, str(folder)
        running.wait(timeout=60)


@pytest.mark.parametrize("left", [STOPPED_BY_USER, "", None])
def test_why_it_was_stopped_is_what_whoever_did_it_has_left(tmp_path: Path, left: str | None) -> None:
    """A signal alone may be a reboot."""
    with keeps(tmp_path) as (running, folder):
        if left is None:
            running.terminate()
        else:
            job_control.look({"do": "stop", "folder": folder, "why": left})
    (journal,) = job_control.attempt_journals(folder)[0]
    assert (running.returncode, journal["state"], journal["code"]) == (0, "ended", -15)
    assert journal["why"] == (left or "signal 15")


@pytest.mark.parametrize("before", [False, True])
def test_why_a_keeper_was_killed_is_what_whoever_did_it_has_left(tmp_path: Path, before: bool) -> None:
    """It writes nothing down itself. What had lost its keeper before that was stopped by nobody."""
    with keeps(tmp_path) as (running, folder):
        if before:
            running.kill()
            running.wait(timeout=60)
        (told,) = job_control.kill({"folder": folder, "why": STOPPED_BY_USER})["kept"]
        job_control.kill({"folder": folder, "why": "rank 1 failed"})
    (journal,) = job_control.attempt_journals(folder)[0]
    assert (journal["state"], journal["why"]) == ("running", None if before else STOPPED_BY_USER)
    assert not told["lives"]


def kept_to_its_end(folder: Path, argv: list[str], join: str = "") -> dict[str, Any]:
    """The journal of a real keeper, started in the control group whose list of processes is `join`."""
    told = order(folder, argv=argv, detached=False, grace_s=0.2, each=[], logs=None, stacks=None)
    command = [sys.executable, "-m", "runbook.node.keeper", json.dumps(told)]
    script = f"echo $$ >{join}; " * bool(join) + 'exec "$@"'
    with subprocess.Popen(
        ["/bin/sh", "-c", script, "sh", *command], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as running:
        assert running.stdin is not None
        running.stdin.write(b"go 0\n")
        running.stdin.flush()
        assert running.wait(timeout=60) == 0
    found: dict[str, Any] = json.loads((folder / "rank-00000.a.l0.json").read_text())
    return found


@pytest.mark.lab
def test_a_process_that_the_kernel_kills_for_lack_of_memory_is_told_from_one_that_was_killed(tmp_path: Path) -> None:
    killed = kept_to_its_end(tmp_path, ["/bin/sh", "-c", "kill -9 $$"])
    assert (killed["code"], killed["group_kills"] or 0, killed["boot"]) == (-9, 0, proc.boot_id())
    with memory_group(64 << 20) as processes:
        greedy = kept_to_its_end(tmp_path, [sys.executable, "-S", "-c", "bytearray(b'x' * (1 << 28))"], str(processes))
    assert (greedy["code"], greedy["group_kills"]) == (-9, 1)


def test_what_the_kernel_killed_long_before_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"group": 3, "node": 70}
    monkeypatch.setattr(keeper, "group_kills", lambda: counts["group"])
    monkeypatch.setattr(keeper, "kernel_kills", lambda: counts["node"])
    kills = keeper.Kills()
    counts.update(group=4, node=72)
    assert kills.lately() == {"group_kills": 1, "node_kills": 2}
    kills.look()
    assert kills.lately() == {"group_kills": 1, "node_kills": 2}, "it may take a minute to end"
    kills.look()
    assert kills.lately() == {"group_kills": 0, "node_kills": 0}
    counts["group"] = None  # type: ignore[assignment]
    assert kills.lately() == {"group_kills": None, "node_kills": 0}


@pytest.mark.parametrize(
    ("files", "count"),
    [
        (
            {"/proc/self/cgroup": "0::/a/b", "/sys/fs/cgroup/a/b/memory.events": "oom 9\noom_kill 2\noom_group_kill 7"},
            2,
        ),
        ({"/proc/self/cgroup": "0::/a/b", "/sys/fs/cgroup/memory.events": "oom_kill 2\n"}, 2),
        (
            {
                "/proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/a\n0::/",
                "/sys/fs/cgroup/memory/a/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
                "/sys/fs/cgroup/memory/memory.oom_control": "oom_kill 50\n",
            },
            2,
        ),
        ({"/proc/self/cgroup": "0::/a"}, None),
        ({}, None),
    ],
)
def test_the_kernel_counts_what_it_killed_in_a_control_group(
    files: dict[str, str], count: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proc, "read", files.get)
    assert proc.group_kills() == count
