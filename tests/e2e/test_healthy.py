"""Two real hosts over SSH with nothing wrong: everything passes, and the numbers are those of the link."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lab import Lab

from .e2e_types import Ran

pytestmark = [pytest.mark.lab, pytest.mark.torch]


def test_every_stage_passes_and_nothing_is_left(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    ran = run_in(two_hosts)
    assert ran.code == 0, ran.text()
    document = ran.document
    assert document["version"] == 1
    assert document["verdict"] == "pass"
    assert document["exit_code"] == 0
    assert document["stopped_at"] is None
    assert document["causes"] == []
    verdicts = {stage["name"]: stage["verdict"] for stage in document["stages"]}
    assert verdicts == {
        "reach": "pass",
        "ping": "pass",
        "port": "pass",
        "firewall": "pass",
        "ibstat": "skip",
        "connection": "pass",
        "small": "pass",
        "full": "pass",
    }
    for stage in document["stages"]:
        assert [outcome["node"] for outcome in stage["outcomes"]] == ["node-a", "node-b"]
        assert all(outcome["proof"] for outcome in stage["outcomes"])
    for host in two_hosts.hosts:
        host.wait_empty(user=two_hosts.user)
        assert host.run("ls -A ~/.runbook").stdout.strip() == ""
    assert sorted(path.name for path in (ran.folder / "logs").iterdir()) == [
        "rank-00000.node-a.log",
        "rank-00001.node-b.log",
    ]


@pytest.mark.thorough
def test_a_slow_link_gives_its_own_bandwidth_and_fails_a_gate_above_it(
    two_hosts: Lab, run_in: Callable[..., Ran]
) -> None:
    two_hosts.limit(200)
    sizes = ("-e", "min_bytes=1M", "-e", "max_bytes=16M", "-e", "budget=25s", "-e", "iterations=8")
    ran = run_in(two_hosts, *sizes, "-e", "gate=0.03")
    assert ran.code == 1, ran.text()
    assert ran.findings() == [("full", "node-a", "allreduce-slow"), ("full", "node-b", "allreduce-slow")]
    (stage,) = [stage for stage in ran.document["stages"] if stage["name"] == "full"]
    metrics = stage["outcomes"][0]["metrics"]
    assert metrics["size"] == 16 << 20
    assert 0.5 * 23.5 < metrics["busbw_gbytes"] * 1000 < 1.05 * 23.5  # a busy machine only takes from it


@pytest.mark.thorough
@pytest.mark.parametrize("shell", ["/usr/bin/fish", "/usr/bin/zsh", "/bin/dash"])
def test_any_login_shell_will_do(two_hosts: Lab, run_in: Callable[..., Ran], shell: str) -> None:
    two_hosts["node-b"].login_shell(shell)
    ran = run_in(two_hosts, "-t", "small")
    assert ran.code == 0, ran.text()


@pytest.mark.thorough
def test_a_talkative_profile_does_not_confuse_us(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    two_hosts["node-b"].write("~/.bashrc", "echo 'Welcome to node-b!'; echo '{\"event\": 1}'; seq 1 2000\n")
    ran = run_in(two_hosts, "-t", "small")
    assert ran.code == 0, ran.text()


@pytest.mark.thorough
def test_three_ranks_on_two_hosts(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    ran = run_in(two_hosts, nodes={"node-b": {"processes": 2}})
    assert ran.code == 0, ran.text()
    (stage,) = [stage for stage in ran.document["stages"] if stage["name"] == "full"]
    assert stage["outcomes"][0]["metrics"]["world_size"] == 3
