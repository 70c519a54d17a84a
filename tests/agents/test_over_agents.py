"""Hosts without any sshd, reached by real agents: the same checks, launches and words as over SSH, and nothing dies for want of a
server."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import Host, runbook_cli, runbook_finish, runbook_start
from lab.agents import SITE, AgentLab
from lab.processes import wait_until

pytestmark = [pytest.mark.lab]

CHECKS = (
    "name: checks\nstages:\n  - check: ping\n  - check: port\n  - {name: hello, shell: 'cat /etc/hostname; id -un'}\n"
)
WAIT = "name: wait\nstages:\n  - {name: wait, shell: 'sleep 1234 & sleep 1235', timeout: 300s}\n"
TRAIN = """\
name: train
stages:
  - name: train
    launch:
      launcher: direct
      detach: true
      watch: {stall: 10m}
      command: [/bin/sh, -c, 'n=0; while :; do n=$((n+1)); echo "rank $RANK line $n"; echo $n >$RUNBOOK_PROGRESS; sleep 0.1; done']
"""
LOOK = """\
import json, sys, msgspec
from runbook.agent.heartbeat import kept_job_processes
print(json.dumps([msgspec.to_builtins(one) for one in kept_job_processes(sys.argv[1], ["~/.runbook", "~/nowhere"])]))
"""


@pytest.fixture
def lab() -> Iterator[AgentLab]:
    with AgentLab(2) as made:
        yield made


def playbook(lab: AgentLab, text: str, name: str = "playbook.yml") -> Path:
    file = lab.tmp / name
    file.write_text(text)
    return file


def test_checks_run_on_hosts_that_have_no_sshd(lab: AgentLab) -> None:
    for host in lab:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host.address, 22), 5).close()
    done = runbook_cli(lab, "run", playbook(lab, CHECKS), "-i", lab.inventory())
    assert done.returncode == 0, f"{done}\n{lab.log.read_text()}"
    for host in lab:
        assert "connected as" in lab.agent(host, "status")
        wait_until("the supervisors ended", lambda host=host: len(host.processes(lab.user)) == 1)  # type: ignore[misc]
        lab.agent(host, "drain")
    wait_until("both are drained", lambda: "DRAINING" in lab.states("node-a") and "DRAINING" in lab.states("node-b"))
    refused = runbook_cli(lab, "run", playbook(lab, CHECKS), "-i", lab.inventory())
    assert refused.returncode == 3, refused
    assert refused.stdout.count("agent-lost"), refused
    assert "drained" in refused.stdout
    assert runbook_cli(lab, "ps", "-i", lab.inventory()).returncode == 0


@pytest.mark.torch
@pytest.mark.thorough
def test_two_nodes_reduce_over_agents(lab: AgentLab) -> None:
    done = runbook_cli(lab, "run", "two_node_allreduce", "-i", lab.inventory(), timeout=300)
    assert done.returncode == 0, f"{done}\n{lab.log.read_text()}"
    for host in lab:
        wait_until("the ranks ended", lambda host=host: len(host.processes(lab.user)) == 1)  # type: ignore[misc]


@pytest.mark.thorough
def test_a_run_ends_with_the_server_and_leaves_nothing(lab: AgentLab) -> None:
    process = runbook_start(lab, "run", playbook(lab, WAIT), "-i", lab.inventory(), "-o", "json")
    running(lab, "sleep 1235")
    lab.kill_server()
    done = runbook_finish(process)
    assert done.returncode == 3, done
    causes = {one["findings"][0]["cause"] for one in done.json()["stages"][-1]["outcomes"]}
    assert causes == {"server-gone"}, done
    for host in lab:
        wait_until("nothing is left", lambda host=host: len(host.processes(lab.user)) == 1)  # type: ignore[misc]
    lab.server = lab.serve()
    lab.await_online(*lab.names)
    assert runbook_cli(lab, "run", playbook(lab, CHECKS), "-i", lab.inventory()).returncode == 0


@pytest.mark.thorough
def test_a_killed_controller_leaves_nothing(lab: AgentLab) -> None:
    process = runbook_start(lab, "run", playbook(lab, WAIT), "-i", lab.inventory())
    running(lab, "sleep 1235")
    process.kill()
    process.communicate(timeout=30)
    for host in lab:
        wait_until("nothing is left", lambda host=host: len(host.processes(lab.user)) == 1)  # type: ignore[misc]
    lab.await_online(*lab.names)


@pytest.mark.thorough
def test_ranks_live_on_without_agent_and_server_and_no_line_is_lost(lab: AgentLab) -> None:
    launched = runbook_cli(lab, "run", playbook(lab, TRAIN), "-i", lab.inventory())
    assert launched.returncode == 0, launched
    ranks = {host.name: pids(lab, host) for host in lab}
    assert all(ranks.values()), launched
    for rank, host in enumerate(lab):
        told = json.loads(host.run([lab.python, "-c", LOOK, host.name], env={"PYTHONPATH": SITE}).stdout)
        assert [(one["ranks"], one["state"]) for one in told] == [([rank], "running")]
        assert int(told[0]["step"]) > 0
        assert told[0]["step_age_s"] < 60
        assert host.run(["ps", "-o", "args=", "-p", str(told[0]["pid"])]).stdout
    lab.kill_server()
    lab.signal_agent(lab["node-b"], signal.SIGKILL)
    lab.agents["node-b"].wait(30)
    time.sleep(2)
    assert {host.name: pids(lab, host) for host in lab} == ranks
    refused = runbook_cli(lab, "ps", "-i", lab.inventory())
    assert refused.returncode == 3, refused
    assert refused.stdout.count("agents.sock") == 2, refused
    lab.server = lab.serve()
    lab.start_agent(lab["node-b"])
    lab.await_online(*lab.names)
    shown = runbook_cli(lab, "ps", "-i", lab.inventory())
    assert shown.returncode == 0, shown
    assert "running" in shown.stdout, shown
    assert {host.name: pids(lab, host) for host in lab} == ranks
    stopped = runbook_cli(lab, "stop", "-i", lab.inventory())
    assert stopped.returncode == 0, stopped
    logs = runbook_cli(lab, "logs", "-i", lab.inventory()).stdout
    for rank in range(2):
        lines = [int(number) for number in re.findall(rf"rank {rank} line ([0-9]+)", logs)]
        assert lines == list(range(1, len(lines) + 1)), f"rank {rank}: {lines[:3]} … {lines[-3:]}"
        assert len(lines) > 40


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "told to end"])
def test_an_agent_that_ends_is_named_and_its_node_is_cleaned_up(lab: AgentLab, number: int) -> None:
    short = WAIT.replace("300s", "15s")
    process = runbook_start(lab, "run", playbook(lab, short), "-i", lab.inventory(), "-o", "json")
    running(lab, "sleep 1235")
    lab.signal_agent(lab["node-b"], number)
    done = runbook_finish(process)
    assert done.returncode == 3, done
    outcomes = {one["node"]: one for one in done.json()["stages"][-1]["outcomes"]}
    assert outcomes["node-b"]["findings"][0]["cause"] == "agent-lost", done
    assert [one["cause"] for one in outcomes["node-a"]["findings"]] != ["agent-lost"], done
    wait_until("nothing is left", lambda: lab["node-b"].processes(lab.user) == [])


@pytest.mark.thorough
def test_a_node_that_is_cut_off_for_90_s_is_lost_and_comes_back_and_nothing_dies(lab: AgentLab) -> None:
    launched = runbook_cli(lab, "run", playbook(lab, TRAIN), "-i", lab.inventory())
    assert launched.returncode == 0, launched
    away = lab["node-b"]
    ranks = pids(lab, away)
    away.cut()
    time.sleep(90)
    assert "LOST" in lab.told("node-b")
    assert pids(lab, away) == ranks
    away.restore()
    lab.await_online("node-b", timeout=60)
    back = ["ONLINE", "SUSPECT", "LOST", "ONLINE"]
    wait_until("it is written down", lambda: lab.states("node-b")[-4:] == back)
    assert set(lab.states("node-a")) == {"ONLINE"}
    assert pids(lab, away) == ranks
    shown = runbook_cli(lab, "ps", "-i", lab.inventory())
    assert "running" in shown.stdout, shown


def running(lab: AgentLab, words: str) -> None:
    """Wait until a program runs on every host."""
    wait_until(
        f"{words} runs",
        lambda: all(any(words in command for _, command in host.processes(lab.user)) for host in lab),
        timeout=60,
    )


def pids(lab: AgentLab, host: Host) -> list[int]:
    """Of the shells that are ranks; what a shell starts has its words, too, until it has become another program."""
    named = {pid for pid, command in host.processes(lab.user) if "echo" in command and "line $n" in command}
    return sorted(pid for pid in named if parent(pid) not in named)


def parent(pid: int) -> int:
    """0 where it has just ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
