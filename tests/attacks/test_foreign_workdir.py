"""A node that others use too: only what is ours counts there, and nothing is put where somebody else could change it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from profiles import one_in

from runbook.checks.context import NOT_SAFE_ERROR, run_folder_finding
from runbook.checks.reach.workdir_and_limits import run_folder_findings
from runbook.model.inventory import Node
from runbook.transport.remote_program import ProgramNotStarted
from runbook.transport.session import Session
from runbook.transport.stream import LocalStream

from .users import ATTACKER, VICTIM, as_user, common, folder_of, kept, needs_users, python_of

__all__ = ["common"]
pytestmark = [needs_users, pytest.mark.xdist_group("users")]
"""One after the other: they are the same two users."""

CHECKOUT = Path(__file__).parents[2]
JOB = "20260101-000000-abcdef"
FROM_THE_BEGINNING = {f"rank-00000.here.l0.{end}": 0 for end in ("out", "err")}


@contextlib.contextmanager
def node_of(uid: int, home: Path, workdir: Path, run_id: str = "look-1") -> Iterator[Session]:
    """The node as this user's login sees it; our end is root's."""
    python = str(python_of(uid, home))
    config = {"run_id": run_id, "node": "here", "workdir": str(workdir), "silence_s": 300.0}
    session = Session("here", LocalStream(python), config, python, 20.0)
    try:
        yield session
    finally:
        session.goodbye()


def order(session: Session, do: str, **more: Any) -> dict[str, Any]:
    return session.call("job_control", {"do": do, **more}, timeout_s=20.0)


@contextlib.contextmanager
def sleeper(uid: int, **tags: str) -> Iterator[subprocess.Popen[bytes]]:
    """Something of this user's that lives; with the marks in its environment by which a kept process is found."""
    process = subprocess.Popen(
        as_user(uid, ["sleep", "300"]),
        start_new_session=True,
        env={**os.environ, **{f"RUNBOOK_{name}": value for name, value in tags.items()}},
    )
    try:
        while b"sleep" not in Path(f"/proc/{process.pid}/comm").read_bytes():  # until setpriv has become it
            pass
        yield process
    finally:
        process.kill()
        process.wait()


def born(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def plant(workdir: Path, uid: int, *, job: str = JOB, **facts: Any) -> Path:
    """A job's folder with one journal, as keepers write them; `facts` go into the journal. Gives the attempt's folder."""
    name = facts.pop("name", "rank-00000.here.l0")
    about = {"job": job, "node": "here", "stage": "train", "grace_s": 0.0, "nodes": {"here": [0]}, "began": 1.0}
    journal = {
        "name": name,
        "job": job,
        "attempt": 1,
        "node": "here",
        "ranks": [0],
        "keeper": 2,
        "keeper_born": 1,
        "state": "running",
        "started": 2.0,
        "detached": True,
        **facts,
    }
    attempt = workdir / job / "here" / "attempt-01"
    attempt.mkdir(parents=True)
    (attempt.parent / "job.json").write_text(json.dumps(about))
    (attempt.parent / "KEPT").touch()
    (attempt / f"{name}.json").write_text(json.dumps(journal))
    for path in (workdir / job, *(workdir / job).rglob("*")):
        os.chown(path, uid, uid)
        path.chmod(0o700 if path.is_dir() else 0o600)
    return attempt


# What others could change is refused.

LAYOUTS: dict[str, tuple[list[tuple[str, int, int]], str | None]] = {
    # folders from the common one on, which is root's: (name, owner, mode); and what is said, None where it is safe
    "its user's own": ([("home", VICTIM, 0o755), ("work", VICTIM, 0o700)], None),
    "not yet there": ([("home", VICTIM, 0o755)], None),
    "its user's own in root's": ([("srv", 0, 0o755), ("work", VICTIM, 0o755)], None),
    "its user's own in a sticky one": ([("scratch", 0, 0o1777), ("work", VICTIM, 0o700)], None),
    "a sticky one itself": ([("scratch", 0, 0o1777)], None),
    "root's group may write": ([("scratch", 0, 0o775), ("work", VICTIM, 0o700)], None),
    "another's": ([("home", ATTACKER, 0o777)], "it belongs to user"),
    "another's, and sticky": ([("home", ATTACKER, 0o1777)], "it belongs to user"),
    "in another's": ([("home", ATTACKER, 0o755), ("work", VICTIM, 0o700)], "it belongs to user"),
    "two above is another's": ([("a", ATTACKER, 0o755), ("b", 0, 0o755), ("c", VICTIM, 0o700)], "it belongs to user"),
    "everybody may write": ([("scratch", 0, 0o777)], "every user may write"),
    "everybody may write above": ([("scratch", 0, 0o777), ("work", VICTIM, 0o700)], "every user may write"),
    "its user's own for everybody": ([("work", VICTIM, 0o777)], "every user may write"),
    "a group may write": ([("work", VICTIM, 0o770)], "the group"),
    "a group may write above": ([("team", VICTIM, 0o775), ("work", VICTIM, 0o700)], "the group"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_only_a_workdir_that_nobody_else_can_change_is_used(common: Path, name: str) -> None:
    folders, says = LAYOUTS[name]
    workdir = common
    for inner, uid, mode in folders:
        workdir = folder_of(uid, workdir / inner, mode)
    workdir = workdir / "new" if name == "not yet there" else workdir
    with node_of(VICTIM, common, workdir) as session:
        if says is None:
            assert "folder_error" not in session.hello, session.hello
            for path in (Path(session.folder), Path(session.folder).parent):
                assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (VICTIM, 0o700)
            session.push("a/b", b"x")
            assert order(session, "list", node="here", workdir=str(workdir))["jobs"] == []
            return
        error = session.hello["folder_error"]
        assert (error["type"], says in error["text"]) == (NOT_SAFE_ERROR, True)
        (finding,) = run_folder_findings(Node("here", "127.0.0.1", workdir=str(workdir)), session.hello)
        assert (finding.cause, str(error["path"]) in finding.says) == ("workdir-not-safe", True)
        with pytest.raises(ProgramNotStarted):
            session.push("a", b"x")
        with pytest.raises(ProgramNotStarted) as caught:
            order(session, "list", node="here", workdir=str(workdir))
        assert run_folder_finding("here", caught.value.error).cause == "workdir-not-safe"
    assert list(workdir.rglob("*")) == []


@pytest.mark.parametrize("owner", [ATTACKER, VICTIM])
def test_a_link_of_another_user_in_a_sticky_folder_is_not_followed_and_ones_own_is(common: Path, owner: int) -> None:
    scratch = folder_of(0, common / "scratch", 0o1777)
    folder_of(VICTIM, common / "real")
    (scratch / "work").symlink_to(common / "real")
    os.chown(scratch / "work", owner, owner, follow_symlinks=False)
    with node_of(VICTIM, common, scratch / "work") as session:
        assert ("folder_error" in session.hello) == (owner == ATTACKER)


def test_a_run_folder_that_somebody_else_has_made_is_not_used(common: Path) -> None:
    """In a folder like /tmp, by somebody who guessed the id."""
    scratch = folder_of(0, common / "scratch", 0o1777)
    theirs = folder_of(ATTACKER, scratch / "look-1", 0o777)
    with node_of(VICTIM, common, scratch) as session:
        assert session.hello["folder_error"]["type"] == NOT_SAFE_ERROR
    assert list(theirs.iterdir()) == []


@pytest.mark.thorough
def test_a_launch_in_anothers_workdir_starts_nothing_and_says_why(common: Path, tmp_path: Path) -> None:
    home, theirs = folder_of(VICTIM, common / "home", 0o755), folder_of(ATTACKER, common / "theirs", 0o777)
    node = f"{{connection: local, address: 127.0.0.1, python: {python_of(VICTIM, home)}, workdir: {theirs}}}"
    (tmp_path / "inventory.yml").write_text(f"network: {{interface: lo}}\nnodes:\n  here: {node}\n")
    (tmp_path / "playbook.yml").write_text(
        f"stages:\n  - {{name: train, launch: {{command: [touch, {home}/started]}}}}\n"
    )
    done = runbook(tmp_path, "run", "playbook.yml", "-i", "inventory.yml", "-o", "json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["stopped_at"], document["causes"]) == (1, "reach", ["workdir-not-safe"])
    (finding,) = document["stages"][0]["outcomes"][0]["findings"]
    assert str(theirs) in finding["says"]
    assert "belongs to" in finding["says"]
    assert not (home / "started").exists()
    assert list(theirs.iterdir()) == []
    said = runbook(tmp_path, "ps", "-i", "inventory.yml", "-o", "json")
    assert said.returncode == 3
    assert "belongs to" in json.loads(said.stdout)["unreached"]["here"]
    for command in ("logs", "attach", "stop", "clean"):
        done = runbook(tmp_path, command, JOB, "-i", "inventory.yml")
        assert (done.returncode, "workdir-not-safe" in done.stderr) == (3, True), done


def runbook(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "runbook", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# Jobs of others are none of ours.


def test_a_planted_job_is_not_seen_and_neither_killed_nor_removed(common: Path) -> None:
    """Its journal names a process of the victim's by its number and the time of its start, and a folder of his."""
    scratch, home = folder_of(0, common / "scratch", 0o1777), folder_of(VICTIM, common / "home")
    precious = folder_of(VICTIM, home / f"{JOB}.attempt-01.feed")
    (precious / "go").write_text("precious")
    with sleeper(VICTIM) as process:
        facts: dict[str, Any] = {
            "pid": process.pid,
            "born": born(process.pid),
            "keeper": process.pid,
            "keeper_born": born(process.pid),
        }
        attempt = plant(scratch, ATTACKER, barrier=str(precious), **facts)
        for path in (scratch / JOB, attempt.parent, attempt):
            path.chmod(0o777)  # so that he could read and write all of it
        for path in [*attempt.parent.glob("*"), *attempt.glob("*")]:
            path.chmod(0o777 if path.is_dir() else 0o666)
        before = kept(common)
        with node_of(VICTIM, common, scratch) as session:
            assert order(session, "list", node="here", workdir=str(scratch))["jobs"] == []
            for do, folder in (("stop", attempt), ("kill", attempt), ("watch", attempt), ("clean", attempt.parent)):
                with pytest.raises(ProgramNotStarted) as caught:
                    order(session, do, folder=str(folder), whole=True)
                assert caught.value.error["type"] == NOT_SAFE_ERROR
        assert process.poll() is None
        assert {path: facts for path, facts in kept(common).items() if not path.endswith("/python")} == before


FOLDERS, PARTS = ("attempt", "node"), ("job.json", "journal", "log")
HOWS = [(part, how) for part in (*PARTS, *FOLDERS) for how in ("link", "another's", "everybody's")]


@pytest.mark.parametrize(("part", "how"), one_in(4, [*HOWS, *((part, "pipe") for part in PARTS)]))
def test_one_part_of_ours_that_is_not_ours_does_not_count(common: Path, part: str, how: str) -> None:
    """A folder that was opened for others once, and mended since: what they left in it is still there."""
    work, elsewhere = folder_of(VICTIM, common / "work"), folder_of(VICTIM, common / "elsewhere")
    with sleeper(VICTIM) as process:
        attempt = plant(work, VICTIM, pid=process.pid, born=born(process.pid))
        journal, log = attempt / "rank-00000.here.l0.json", attempt / "rank-00000.here.l0.out"
        log.write_text("said\n")
        os.chown(log, VICTIM, VICTIM)
        path = {"job.json": attempt.parent / "job.json", "journal": journal, "log": log, "attempt": attempt}.get(
            part, attempt.parent
        )
        if how == "link":
            path.rename(elsewhere / path.name)
            path.symlink_to(elsewhere / path.name)
        elif how == "another's":
            os.chown(path, ATTACKER, ATTACKER)
            path.chmod(0o777 if path.is_dir() else 0o666)
        elif how == "everybody's":
            path.chmod(0o777 if path.is_dir() else 0o666)
        else:
            path.unlink()
            os.mkfifo(path, 0o600)
            os.chown(path, VICTIM, VICTIM)
        with node_of(VICTIM, common, work) as session:
            jobs = order(session, "list", node="here", workdir=str(work))["jobs"]
            believed = [one["pid"] for job in jobs for journals in job["attempts"].values() for one in journals]
            damaged = [one["name"] for job in jobs for one in job["damaged"]]
            assert (part in ("journal", "attempt", "node")) == (process.pid not in believed)
            assert damaged == {"journal": ["attempt-01/" + journal.name], "job.json": ["job.json"]}.get(part, [])
            if part in ("job.json", "journal", "log"):
                read = order(session, "watch", folder=str(attempt), at=FROM_THE_BEGINNING, wait_s=0.0, most=1 << 18)[
                    "read"
                ]
                # A log that others may write to is ours all the same: nobody else can reach it there.
                assert bool(read) == (part != "log" or how == "everybody's")
            if part == "journal":
                order(session, "stop", folder=str(attempt))
                assert process.poll() is None


# Only processes that are ours, and only files of the job.


def test_a_number_that_somebody_else_has_now_is_not_signalled(common: Path) -> None:
    work = folder_of(0, common / "work")
    with sleeper(VICTIM) as another, sleeper(0) as mine, sleeper(0) as later:
        one = plant(work, 0, job="job-1", pid=another.pid, born=born(another.pid), keeper=another.pid)
        two = plant(work, 0, job="job-2", pid=mine.pid, born=born(mine.pid))
        three = plant(work, 0, job="job-3", pid=later.pid, born=born(later.pid) - 1)
        with node_of(0, common, work) as session:
            for attempt, lives in ((one, False), (two, True), (three, False)):
                (journal,) = order(session, "stop", folder=str(attempt))["kept"]
                assert journal["lives"] is lives
            assert mine.wait(10) == -signal.SIGTERM
        assert another.poll() is None
        assert later.poll() is None


def test_a_job_whose_journal_is_damaged_is_found_by_its_marks_stopped_and_not_cleaned_before(common: Path) -> None:
    work = folder_of(VICTIM, common / "work")
    attempt = plant(work, VICTIM)
    journal = attempt / "rank-00000.here.l0.json"
    journal.write_text('{"name": "rank-00000.here.l0", "jo')
    with (
        sleeper(VICTIM, JOB=JOB, ATTEMPT="1", KEPT="rank-00000.here.l0") as process,
        sleeper(ATTACKER, JOB=JOB, ATTEMPT="1", KEPT="rank-00000.here.l0") as another,
        node_of(VICTIM, common, work) as session,
    ):
        (job,) = order(session, "list", node="here", workdir=str(work))["jobs"]
        (one,) = job["damaged"]
        assert (one["name"], one["pids"]) == (f"attempt-01/{journal.name}", [process.pid])
        assert "not JSON" in one["why"]
        said = order(session, "clean", folder=job["folder"], whole=True)
        assert said == {"removed": False, "alive": [f"attempt-01/{journal.name}"]}
        assert journal.exists()
        order(session, "stop", folder=str(attempt))
        assert process.wait(10) == -signal.SIGTERM
        assert another.poll() is None
        assert order(session, "clean", folder=job["folder"], whole=True) == {"removed": True, "alive": []}
        assert not (work / JOB).exists()


@pytest.mark.parametrize("named", ["precious", f"{JOB}.attempt-01.x/inner", f"{JOB}.attempt-01.feed", "scratch"])
def test_clean_removes_of_a_meeting_place_only_what_meetings_leave(common: Path, named: str) -> None:
    work, home = folder_of(VICTIM, common / "work"), folder_of(VICTIM, common / "home")
    place = home / named
    place.mkdir(parents=True)
    for name in ("go", "here.ready", "thesis.tex"):
        (place / name).write_text("precious")
    for path in (home, *home.rglob("*")):
        os.chown(path, VICTIM, VICTIM)
    attempt = plant(work, VICTIM, state="ended", code=0, ended=3.0, barrier=str(place))
    with node_of(VICTIM, common, work) as session:
        assert order(session, "clean", folder=str(attempt.parent), whole=True)["removed"] is True
    left = {path.name for path in place.iterdir()}
    assert left == ({"thesis.tex"} if named.endswith(".feed") else {"go", "here.ready", "thesis.tex"})


def test_what_ranks_left_may_be_a_link_out_of_the_folder_and_is_not_read(common: Path) -> None:
    work, home = folder_of(VICTIM, common / "work"), folder_of(VICTIM, common / "home")
    (home / "secret").write_text("secret")
    attempt = plant(work, VICTIM)
    (attempt / "by-launcher").mkdir()
    (attempt / "by-launcher" / "stdout.log").write_text("of torchrun\n")
    (attempt / "rank-00000.here.l0.out").symlink_to(home / "secret")
    (attempt / "rank-00000.here.l0.err").symlink_to(attempt / "by-launcher" / "stdout.log")
    for path in (home / "secret", attempt / "by-launcher", attempt / "by-launcher" / "stdout.log"):
        os.chown(path, VICTIM, VICTIM)
    with node_of(VICTIM, common, work) as session:
        said = order(session, "watch", folder=str(attempt), at=FROM_THE_BEGINNING, wait_s=0.0, most=1 << 18)
    assert list(said["read"]) == list(said["size"]) == ["rank-00000.here.l0.err"]


@pytest.mark.thorough
def test_a_real_job_of_another_user_lives_and_dies_as_it_should(common: Path, tmp_path: Path) -> None:
    """None of these rules is in the way of an honest one, in a scratch folder that all share."""
    home, scratch = folder_of(VICTIM, common / "home", 0o755), folder_of(0, common / "scratch", 0o1777)
    plant(scratch, ATTACKER, job="20250101-000000-bad")
    node = f"{{connection: local, address: 127.0.0.1, python: {shlex.quote(str(python_of(VICTIM, home)))}, workdir: {scratch}}}"
    (tmp_path / "inventory.yml").write_text(f"network: {{interface: lo}}\nnodes:\n  here: {node}\n")
    job = "{command: [sh, -c, 'echo begun; exec sleep 300'], detach: true, grace: 2s}"
    (tmp_path / "playbook.yml").write_text(f"stages:\n  - {{name: train, launch: {job}}}\n")
    done = runbook(tmp_path, "run", "playbook.yml", "-i", "inventory.yml", "-o", "json")
    assert done.returncode == 0, done
    try:
        (told,) = json.loads(runbook(tmp_path, "ps", "-i", "inventory.yml", "-o", "json").stdout)["jobs"]
        assert (told["state"], told["damaged"]) == ("running", {})
        for _ in range(4):
            said = runbook(tmp_path, "logs", "-i", "inventory.yml")
            assert (said.returncode, said.stdout) == (0, "[0 here] begun\n"), said
    finally:
        done = runbook(tmp_path, "stop", "-i", "inventory.yml")
    assert (done.returncode, done.stdout) == (0, f"{told['job']}: 1 of 1 processes that lived were ended\n")
    done = runbook(tmp_path, "clean", "--all", "-i", "inventory.yml")
    assert (done.returncode, done.stdout) == (0, f"{told['job']}: removed from here\n")
    assert [path.name for path in scratch.iterdir()] == ["20250101-000000-bad"]
