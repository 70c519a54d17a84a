"""`run --report` on real hosts: the page of a run that failed, and of one that was killed in the middle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from lab import Lab, runbook_cli
from lab.cli import runbook_start
from lab.processes import wait_until

from .e2e_types import Ran
from .test_broken import block

pytestmark = [pytest.mark.lab, pytest.mark.torch]


def test_the_text_names_the_page_and_the_page_has_the_command(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    block(two_hosts["node-a"], "tcp dport 29500 drop")
    ran = run_in(two_hosts, "--report")
    assert ran.code == 1, ran.text()
    page = ran.folder / "report.html"
    assert ran.done.stdout.endswith(f"report  {page}\n")
    text = page.read_text()
    assert "FAIL" in text
    assert "sudo nft" in text
    assert two_hosts["node-b"].address in text
    assert "MASTER_ADDR" in text


@pytest.mark.thorough
def test_a_run_killed_in_the_middle_has_a_page_too(two_hosts: Lab) -> None:
    playbook = two_hosts.tmp / "long.yml"
    playbook.write_text("name: long\nstages:\n  - check: ping\n  - {name: sleep, shell: sleep 60}\n")
    folder = two_hosts.tmp / "run"
    started = runbook_start(two_hosts, "run", playbook, "-i", two_hosts.inventory(), "--run-dir", folder)
    events = folder / "events.jsonl"
    wait_until("the stage begins", lambda: '"stage": "sleep"' in (events.read_text() if events.exists() else ""))
    started.kill()
    started.communicate(timeout=20)
    done = runbook_cli(two_hosts, "report", folder)
    assert done.returncode == 0, done
    assert "UNFINISHED" in Path(done.stdout.strip()).read_text()
