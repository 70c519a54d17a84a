"""However a run ends, no process of ours stays on any host."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
from lab import Lab, runbook_finish, runbook_start

pytestmark = [pytest.mark.lab, pytest.mark.torch]

PLAYBOOK = """\
name: long
stages:
  - {check: allreduce, with: {min_bytes: 1K, max_bytes: 256M, iterations: 100000, budget: 100s}}
"""


def start(lab: Lab) -> tuple[subprocess.Popen[str], Path]:
    """A run that is in the middle of its AllReduce."""
    playbook = lab.tmp / "long.yml"
    playbook.write_text(PLAYBOOK)
    folder = lab.tmp / "run"
    process = runbook_start(lab, "run", str(playbook), "-i", str(lab.inventory()), "--run-dir", str(folder))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        events = folder / "events.jsonl"
        if events.exists() and '"row"' in events.read_text():
            for host in lab.hosts:
                assert any("rank.py" in command for _, command in host.processes(lab.user))
            return process, folder
        time.sleep(0.05)
    raise AssertionError("the AllReduce did not begin")


def gone(lab: Lab) -> None:
    for host in lab.hosts:
        host.wait_empty(user=lab.user)
        assert host.run("ls -A ~/.runbook").stdout.strip() == ""


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(number, marks=pytest.mark.thorough) for number in (signal.SIGTERM, signal.SIGHUP))],
)
def test_an_interrupt_cleans_up_and_exits_130(two_hosts: Lab, number: signal.Signals) -> None:
    process, folder = start(two_hosts)
    process.send_signal(number)
    done = runbook_finish(process)
    assert done.returncode == 130, done.stdout + done.stderr
    assert "stopped and removed everything" in done.stdout
    assert '"exit_code": 130' in (folder / "result.json").read_text()
    gone(two_hosts)


def test_kill_9_of_the_controller(two_hosts: Lab) -> None:
    process, _ = start(two_hosts)
    process.kill()
    runbook_finish(process)
    gone(two_hosts)


def test_a_network_that_is_cut(two_hosts: Lab) -> None:
    process, folder = start(two_hosts)
    for host in two_hosts.hosts:
        host.cut()
    gone(two_hosts)
    done = runbook_finish(process)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "ssh-unreachable" in (folder / "result.json").read_text()


def test_a_supervisor_that_is_killed(two_hosts: Lab) -> None:
    process, _ = start(two_hosts)
    host = two_hosts["node-b"]
    for pid, command in host.processes(two_hosts.user):
        if "runbook-supervisor" in command:
            host.signal(pid, signal.SIGKILL)
    done = runbook_finish(process)
    assert done.returncode in (1, 3), done.stdout + done.stderr
    host.wait_empty(user=two_hosts.user)
