"""What an agent looks at for its heartbeat."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from runbook.agent import heartbeat
from runbook.agent.protocol import GpuLoad, Heartbeat, JobProcess, message_json, parse_agent_message
from runbook.node.job_control import folders_of_jobs


def test_a_machine_without_another_process_still_reports_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_fork(*_: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(heartbeat, "run_if_installed", no_fork)
    assert heartbeat.make_heartbeat("node-a", []).gpus == []


def test_what_is_no_path_hides_no_other_workdir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Workdirs are those that a server named."""
    tmp_path.chmod(0o700)
    asked = list[str]()

    def folders(workdir: str, _name: str) -> list[str]:
        asked.append(workdir)
        return []

    monkeypatch.setattr(heartbeat, "folders_of_jobs", folders)
    assert heartbeat.kept_job_processes("node-a", ["~/\0", "~nobody-knows/x", str(tmp_path), f"{tmp_path}/."]) == []
    assert asked.count(str(tmp_path)) == 1


def test_a_job_that_no_server_would_take_hides_neither_its_node_nor_other_jobs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "1970.step").write_text("150")
    os.utime(tmp_path / "1970.step", (0, 0))  # the clock was wrong then
    journal = {
        "job": "job-1",
        "attempt": 1,
        "name": "1970",
        "ranks": [0],
        "pid": None,
        "state": "ended",
        "keeper": None,
    }
    kept: list[dict[str, Any]] = [journal, {**journal, "name": "huge", "pid": 1 << 40}, {**journal, "name": "other"}]
    monkeypatch.setattr(heartbeat, "attempts_of", lambda folder: ["."])
    monkeypatch.setattr(heartbeat, "serial_of", len)
    monkeypatch.setattr(heartbeat, "attempt_journals", lambda folder: (kept, []))
    found = heartbeat._latest_attempt_processes(str(tmp_path))
    assert [(job.name, job.step, job.step_age_s) for job in found] == [("1970", "150", None), ("other", None, None)]
    assert parse_agent_message(message_json(Heartbeat(1, jobs=found))) == Heartbeat(1, jobs=found)


def test_of_a_home_that_nodes_share_only_the_own_folders_are_read(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    for node in ("node-a", "node-b"):
        folder = tmp_path / "job-1" / node
        folder.mkdir(parents=True)
        (folder / "job.json").write_text("{}")
    assert folders_of_jobs(str(tmp_path), "node-a") == [f"{tmp_path}/job-1/node-a"]
    assert folders_of_jobs(str(tmp_path), "node-c") == []


def test_a_look_that_hangs_is_not_told_as_the_present() -> None:
    process = JobProcess("job", 1, "rank-00000.a.l0", [0], step="7", step_age_s=2.0)
    beat = Heartbeat(1, load=[0.5], gpus=[GpuLoad(0)], jobs=[process])
    soon, late = (heartbeat.aged_heartbeat(beat, age_s) for age_s in (5.0, 300.0))
    assert (soon.jobs[0].step_age_s, soon.gpus, soon.load) == (7.0, beat.gpus, [0.5])
    assert (late.jobs[0].step_age_s, late.gpus, late.load) == (302.0, [], [])
