"""Real containers on the hosts of a lab: where stages run and programs look, what is told of a container that lets
nobody in, and that nothing is left in it, however a run ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import CliResult, Host, Lab, runbook_cli, runbook_finish, runbook_start
from lab.containers import ContainerLab
from lab.fault import filter_rule
from lab.processes import wait_until
from profiles import one_in

pytestmark = [pytest.mark.lab, pytest.mark.containers]

CHECKS = "name: checks\nstages:\n  - check: ping\n  - check: port\n  - check: firewall\n"
REACH = "name: reach\nstages:\n  - {name: nothing, shell: 'true'}\n"
WAIT = "name: wait\nstages:\n  - {name: wait, shell: 'sleep 1234 & sleep 1235', timeout: 60s}\n"
MARKED = "name: marked\nstages:\n  - {name: marked, shell: 'cat /marker', expect: {stdout: train}}\n"
TRAIN = """\
name: train
stages:
  - name: train
    launch: {launcher: direct, detach: true, command: [/bin/sh, -c, 'cat /marker; sleep 1235']}
"""
TOOLS = "ip ping ss nft iptables sudo"


@pytest.fixture
def lab() -> Iterator[ContainerLab]:
    with ContainerLab(2) as made:
        for host in made:
            made.podman(host, "exec", "train", "sh", "-c", "echo train >/marker")
        yield made


def run(lab: Lab, text: str, *arguments: str | Path, **inventory: Any) -> tuple[CliResult, dict[str, Any]]:
    file = lab.tmp / "playbook.yml"
    file.write_text(text)
    done = runbook_cli(lab, "run", file, "-i", lab.inventory(**inventory), *arguments, "-o", "json")
    return done, done.json()


def told(document: dict[str, Any]) -> dict[str, str]:
    """Node -> first cause of the last stage's outcomes that are not pass."""
    outcomes = document["stages"][-1]["outcomes"]
    return {one["node"]: one["findings"][0]["cause"] for one in outcomes if one["findings"]}


def nothing_left(lab: ContainerLab, *hosts: Host) -> None:
    """Neither in the containers of these hosts nor beside them."""
    for host in hosts or lab.hosts:
        wait_until(f"nothing is left in {host.name}", lambda host=host: not lab.within(host), timeout=90)  # type: ignore[misc]
        host.wait_empty(user=lab.user)
        assert lab.podman(host, "exec", "train", "find", "/root/.runbook", "-mindepth", "1") == ""
        assert list(host.path("/tmp").iterdir()) == []


# Where it runs


def test_stages_and_ranks_run_in_the_container_and_leave_nothing_there(lab: ContainerLab) -> None:
    done, document = run(lab, CHECKS + "  - check: connection\n" + MARKED.partition("stages:\n")[2])
    assert done.returncode == 0, document
    assert [stage["verdict"] for stage in document["stages"]] == ["pass"] * 6
    nothing_left(lab)


@pytest.mark.thorough
def test_an_image_without_tools_passes_without_a_warning(lab: ContainerLab) -> None:
    """What `ip`, `ping`, `nft` and `ss` tell is asked on the host, which has them."""
    host = lab["node-b"]
    lab.podman(host, "exec", "train", "sh", "-c", f"for tool in {TOOLS}; do rm $(command -v $tool); done")
    filter_rule(host, "tcp dport 65000 drop")  # so that there is something to read
    done, document = run(lab, CHECKS)
    assert done.returncode == 0, document
    assert [one["warnings"] for stage in document["stages"] for one in stage["outcomes"]] == [[]] * 8


@pytest.mark.parametrize("entry", one_in(3, ["nsenter --all --target {pid}", "crun exec {id}", "podman exec -i train"]))
def test_any_words_that_enter_a_container_will_do(lab: ContainerLab, entry: str) -> None:
    nodes = {}
    for host in lab:
        pid, id = lab.podman(host, "inspect", "--format", "{{.State.Pid}} {{.Id}}", "train").split()
        nodes[host.name] = {"inside": ["sudo", "-n", *entry.format(pid=pid, id=id).split()]}
    done, _ = run(lab, MARKED, defaults={"container": None}, nodes=nodes)
    assert done.returncode == 0, str(done)
    nothing_left(lab)


@pytest.mark.thorough
def test_a_detached_job_stays_in_the_container_until_it_is_stopped(lab: ContainerLab) -> None:
    done, _ = run(lab, TRAIN)
    assert done.returncode == 0, str(done)
    assert all(any("sleep 1235" in line for line in lab.within(host)) for host in lab)
    inventory = lab.inventory()
    assert runbook_cli(lab, "ps", "-i", inventory, "-o", "json").json()["jobs"][0]["state"] == "running"
    assert sorted(runbook_cli(lab, "logs", "-i", inventory).stdout.split("\n")) == [
        "",
        "[0 node-a] train",
        "[1 node-b] train",
    ]
    for command in ("stop", "clean"):
        assert runbook_cli(lab, command, "-i", inventory).returncode == 0
    nothing_left(lab)


# What is seen of the host


@pytest.mark.thorough
def test_a_firewall_of_the_host_is_named(lab: ContainerLab) -> None:
    filter_rule(lab["node-b"], f"ip saddr {lab['node-a'].address} tcp dport 29500-29510 drop")
    done, document = run(lab, CHECKS)
    assert (done.returncode, told(document)) == (1, {"node-b": "firewall-drop"}), str(done)
    assert "handle" in done.stdout


def test_a_program_of_the_host_that_holds_a_port_is_named(lab: ContainerLab) -> None:
    listen = "import socket, time; s = socket.socket(); s.bind(('', 29505)); s.listen(); print(1, flush=True); time.sleep(600)"
    holder = lab["node-b"].popen(["python3", "-c", listen])
    assert holder.stdout is not None
    assert holder.stdout.readline()
    done, document = run(lab, CHECKS)
    assert (done.returncode, told(document)) == (1, {"node-b": "port-in-use"}), str(done)
    assert "import socket" in done.stdout


@pytest.mark.thorough
def test_a_network_of_its_own_is_named_as_that(lab: ContainerLab) -> None:
    lab.run_container(lab["node-b"], network="none")
    done, document = run(lab, CHECKS)
    assert (done.returncode, told(document)) == (1, {"node-b": "container-bridge-network"}), str(done)
    assert "--network host" in done.stdout


# Who is not let in


@pytest.mark.thorough
def test_what_keeps_us_out_is_told_by_its_name(lab: ContainerLab) -> None:
    node = lab["node-b"]

    def cause(**inventory: Any) -> tuple[int, dict[str, str]]:
        done, document = run(lab, REACH, **inventory)
        return done.returncode, told(document)

    assert cause(nodes={"node-b": {"container": {"runtime": "podman", "name": "tran"}}}) == (
        3,
        {"node-b": "container-unknown"},
    )
    lab.podman(node, "stop", "--time", "0", "train")
    assert cause() == (3, {"node-b": "container-not-running"})
    node.sudo("none")
    assert cause() == (3, {"node-b": "container-runtime-denied"})
    assert cause(nodes={"node-b": {"container": {"runtime": "apptainer", "name": "train"}}}) == (
        3,
        {"node-b": "container-runtime-missing"},
    )
    both = {"container": None, "inside": ["/bin/false"]}
    assert cause(defaults=both) == (3, dict.fromkeys(lab.names, "container-unreachable"))


@pytest.mark.thorough
def test_a_container_without_python(lab: ContainerLab) -> None:
    node = lab["node-b"]
    lab.run_container(node, python=False)
    done, document = run(lab, REACH, nodes={"node-b": {"python": "python3"}})
    assert (done.returncode, told(document)) == (1, {"node-b": "python-missing"}), str(done)
    assert "the container train on node-b" in done.stdout


# What ends it


def interrupted(lab: ContainerLab, strike: Callable[[int], object]) -> CliResult:
    """Run what waits, and strike while it runs in both containers; `strike` is given the controller's pid."""
    file = lab.tmp / "playbook.yml"
    file.write_text(WAIT)
    process = runbook_start(lab, "run", file, "-i", lab.inventory(), "-o", "json")
    wait_until("it runs", lambda: all("sleep 1235" in " ".join(lab.within(host)) for host in lab), timeout=90)
    strike(process.pid)
    return runbook_finish(process)


@pytest.mark.thorough
def test_an_interrupted_run_leaves_nothing(lab: ContainerLab) -> None:
    done = interrupted(lab, lambda pid: os.kill(pid, signal.SIGINT))
    assert done.returncode == 130, str(done)
    nothing_left(lab)


def test_a_killed_controller_leaves_nothing(lab: ContainerLab) -> None:
    interrupted(lab, lambda pid: os.kill(pid, signal.SIGKILL))
    nothing_left(lab)


@pytest.mark.thorough
def test_a_pulled_cable_leaves_nothing(lab: ContainerLab) -> None:
    node = lab["node-b"]

    def strike(pid: int) -> None:
        node.cut()
        wait_until("nothing is left", lambda: not lab.within(node), timeout=90)
        os.kill(pid, signal.SIGINT)

    interrupted(lab, strike)
    node.restore()
    nothing_left(lab)


@pytest.mark.thorough
def test_a_container_that_ends_in_the_middle_is_told_as_that(lab: ContainerLab) -> None:
    node = lab["node-b"]
    text = WAIT.replace("60s", "6s")
    file = lab.tmp / "playbook.yml"
    file.write_text(text)
    process = runbook_start(lab, "run", file, "-i", lab.inventory(), "-o", "json")
    wait_until("it runs", lambda: all("sleep 1235" in " ".join(lab.within(host)) for host in lab), timeout=90)
    lab.podman(node, "kill", "train")
    done = runbook_finish(process)
    document = done.json()
    assert (done.returncode, told(document)["node-b"]) == (3, "container-not-running"), str(done)
    assert "exit code 137" in done.stdout
    node.wait_empty(user=lab.user)
    nothing_left(lab, lab["node-a"])


@pytest.mark.thorough
def test_when_the_way_in_is_killed_the_supervisor_inside_cleans_up(lab: ContainerLab) -> None:
    """podman's client dies; what it had started does not, unless it notices."""
    node = lab["node-b"]

    def strike(pid: int) -> None:
        client = next(pid for pid, line in node.processes("root") if line.startswith("/usr/bin/podman exec"))
        os.kill(client, signal.SIGKILL)
        wait_until("nothing is left", lambda: not lab.within(node), timeout=90)
        os.kill(pid, signal.SIGINT)

    interrupted(lab, strike)
    nothing_left(lab)
