"""What a node looks at of its jobs is its own, also in a home that all nodes share, and is looked at once."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from lab.processes import wait_until

from runbook.node import job_control, own_files, proc
from runbook.node.journal import attempt_folder

NODES = 50


def journal(node: str, serial: int, **facts: Any) -> dict[str, Any]:
    name = f"rank-00000.{node}.l0"
    told = {"name": name, "job": "job", "attempt": serial, "node": node, "ranks": [0], "keeper": 2, "state": "ended"}
    return {**told, **facts}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[str]]:
    """A workdir with a job of many nodes, each with some attempts of one rank with a GPU; and the files that are opened
    there."""
    tmp_path.chmod(0o700)
    for node in (f"node-{number}" for number in range(NODES)):
        for serial in (1, 2, 3):
            attempt = tmp_path / "job" / node / attempt_folder(serial)
            attempt.mkdir(parents=True)
            told = journal(node, serial, gpus=[0])
            (attempt / f"{told['name']}.json").write_text(json.dumps(told))
            (attempt / f"{told['name']}.step").write_text(str(10 * serial))
        (tmp_path / "job" / node / "job.json").write_text(json.dumps({"job": "job", "node": node}))
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    opened: list[str] = []

    def noted(path: str, strict: bool = True) -> Any:
        opened.append(path)
        return own_files.open_own_file(path, strict)

    def document(path: str) -> Any:
        opened.append(path)
        return json.loads(Path(path).read_text())

    monkeypatch.setattr(job_control, "open_own_file", noted)
    monkeypatch.setattr(job_control, "read_json_object", document)
    monkeypatch.setattr(job_control, "living_processes", dict)
    return tmp_path, opened


def test_a_node_lists_its_own_jobs_of_a_home_that_many_share(home: tuple[Path, list[str]]) -> None:
    workdir, opened = home
    (told,) = job_control.look({"do": "list", "workdir": str(workdir), "node": "node-7", "job": None})["jobs"]
    assert told["about"] == {"job": "job", "node": "node-7"}
    assert {Path(path).relative_to(workdir).parts[1] for path in opened} == {"node-7"}
    assert job_control.look({"do": "list", "workdir": str(workdir), "node": "node-7", "job": "other"})["jobs"] == []


def test_of_attempts_that_are_over_only_the_latest_is_asked_how_far_it_came(home: tuple[Path, list[str]]) -> None:
    workdir, opened = home
    (told,) = job_control.look({"do": "list", "workdir": str(workdir), "node": "node-7", "job": "job"})["jobs"]
    assert {name: facts[0].get("use", {}).get("step") for name, facts in told["attempts"].items()} == {
        "attempt-01": None,
        "attempt-02": None,
        "attempt-03": 30,
    }
    assert [Path(path).parent.name for path in opened if path.endswith(".step")] == ["attempt-03"]


def test_nvidia_smi_runs_once_however_many_attempts_had_gpus(
    home: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not at all where none of them lives: it may take a second."""
    workdir, _ = home
    ran: list[None] = []

    def gpu_memory() -> dict[int, int]:
        ran.append(None)
        return {}

    monkeypatch.setattr(job_control, "gpu_memory", gpu_memory)
    order = {"do": "list", "workdir": str(workdir), "node": "node-7", "job": None}
    monkeypatch.setattr(job_control, "living_processes", lambda: {("another", "1", "rank-00000.node-7.l0"): [4]})
    job_control.look(order)
    assert ran == []
    mine = {("job", str(serial), "rank-00000.node-7.l0"): [1 << 30] for serial in (1, 2, 3)}
    monkeypatch.setattr(job_control, "living_processes", lambda: mine)
    job_control.look(order)
    assert len(ran) == 1


def prepared(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a node says before a job starts on GPU 0, while another job's rank lives there."""
    monkeypatch.setattr(job_control, "living_processes", lambda: {("job", "2", "rank-00000.node-9.l0"): [1 << 30]})
    mine = workdir / "next" / "node-7"
    mine.mkdir(parents=True, mode=0o700)
    mine.parent.chmod(0o700)
    about = {"job": "next", "node": "node-7", "gpus": [0]}
    return job_control.look({"do": "prepare", "folder": str(mine), "attempt": "attempt-01", "about": about})


def test_before_a_start_a_node_reads_its_own_folders_and_those_of_what_lives_on_this_machine(
    home: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes of an inventory may be one machine, and share its GPUs."""
    workdir, opened = home
    told = prepared(workdir, monkeypatch)
    assert [one["name"] for one in told["gpus"]] == ["rank-00000.node-9.l0"]
    assert {Path(path).relative_to(workdir).parts[1] for path in opened} == {"node-7", "node-9"}


@pytest.mark.parametrize(
    ("ours", "theirs", "in_the_way"), [("77", "78", False), ("77", "77", True), (None, "78", True), ("77", None, True)]
)
def test_jobs_of_two_allocations_of_slurm_number_their_gpus_each_for_itself(
    ours: str | None,
    theirs: str | None,
    in_the_way: bool,
    home: tuple[Path, list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workdir, _ = home
    env = {"PATH": os.environ["PATH"], **({"SLURM_JOB_ID": theirs} if theirs else {})}
    with subprocess.Popen(["sleep", "60"], env=env) as keeper:
        try:
            file = workdir / "job" / "node-9" / "attempt-02" / "rank-00000.node-9.l0.json"
            file.write_text(json.dumps({**json.loads(file.read_text()), "keeper": keeper.pid}))
            monkeypatch.delenv("SLURM_JOB_ID", raising=False)
            if ours:
                monkeypatch.setenv("SLURM_JOB_ID", ours)
            told = prepared(workdir, monkeypatch)
        finally:
            keeper.kill()
    assert bool(told["gpus"]) is in_the_way


def test_a_journal_from_before_the_machine_was_started_again_says_when_that_was(
    home: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the number of the boot alone: the folder may be another machine's, in a home that several share."""
    workdir, _ = home
    folder = workdir / "job" / "node-7" / "attempt-03"

    def told(**facts: Any) -> Any:
        (folder / "rank-00000.node-7.l0.json").write_text(json.dumps(journal("node-7", 3, state="running", **facts)))
        (found,) = job_control.attempt_journals(str(folder), {})[0]
        return found["restarted"]

    now = proc.boot_time()
    assert now is not None
    assert 0.0 < now < time.time()
    assert told(boot="before", started=now - 60.0) == now
    assert told(boot="before", started=None) == now, "its process never began"
    assert told(boot="another machine's", started=now + 60.0) is None
    assert told(boot=proc.boot_id(), started=now - 60.0) is None, "the clock was set"
    assert told(started=now - 60.0) is None, "an older keeper did not say"
    monkeypatch.setattr(job_control, "boot_time", lambda: None)
    assert told(boot="before", started=now - 60.0) is None


def test_the_modules_that_a_program_imports_from_beside_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch, os\nimport model\nfrom data.loader import make\n\ndef late():\n    from tools import x\n# import comment\n"
    )
    for name in (
        "model.py",
        "comment.py",
        "other.py",
        "data/__init__.py",
        "data/loader.py",
        "data/unused.py",
        "tools.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    found = job_control.imported_modules_beside(str(tmp_path / "train.py"))
    assert sorted(found) == [
        str(tmp_path / name) for name in ("data/__init__.py", "data/loader.py", "model.py", "tools.py")
    ]
    assert job_control.imported_modules_beside(str(tmp_path / "gone.py")) == set()


def test_what_lives_of_a_job_whose_files_were_removed_is_listed_and_not_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    name, folder = "rank-00000.node-1.l0", tmp_path / "job-9" / "node-1"
    steps = {7: f"{folder}/attempt-02/{name}.step", 8: f"/elsewhere/job-8/node-1/attempt-01/{name}.step"}
    alive = {("job-9", "2", name): [7], ("job-8", "1", name): [8]}
    monkeypatch.setattr(job_control, "living_processes", lambda: alive)
    monkeypatch.setattr(job_control, "process_uid", lambda pid: os.getuid())
    monkeypatch.setattr(job_control, "process_variable", lambda pid, variable: steps[pid])
    (job,) = job_control.list_jobs({"workdir": str(tmp_path), "node": "node-1"})["jobs"]
    assert (job["folder"], job["about"], job["attempts"]) == (
        str(folder),
        {"job": "job-9", "node": "node-1"},
        {"attempt-02": []},
    )
    assert [(one["name"], one["pids"]) for one in job["damaged"]] == [("job.json", []), (f"attempt-02/{name}", [7])]
    assert job_control.list_jobs({"workdir": str(tmp_path), "node": "node-2"})["jobs"] == []
    assert not job_control.clean({"folder": str(folder)})["removed"]


def test_only_the_logins_own_processes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root sees the environment of everybody's, in which anything may stand."""
    tags = {"RUNBOOK_JOB": "job", "RUNBOOK_ATTEMPT": "²", "RUNBOOK_KEPT": "rank-00000.node-7.l0"}
    with subprocess.Popen(["sleep", "60"], env=tags | {"PATH": os.environ["PATH"]}) as program:
        try:
            key = ("job", "²", "rank-00000.node-7.l0")
            # for a moment after its start a process shows no environment
            wait_until("it is found", lambda: job_control.living_processes().get(key) == [program.pid])
            assert job_control.living_attempts("/w/job/node-7", {key: [program.pid]}) == []
            monkeypatch.setattr(job_control, "process_uid", lambda _: os.getuid() + 1)
            assert key not in job_control.living_processes()
        finally:
            program.kill()
