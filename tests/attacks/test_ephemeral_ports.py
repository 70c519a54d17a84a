"""A node whose kernel has few ports to hand out, or none: whatever took them, it is told as that and crashes nothing; and what
we try there ourselves does not take the last of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from checks import made_up_cluster
from hypothesis import given
from hypothesis import strategies as st
from lab import Lab
from lab.fault import Fault, run_fault

from runbook.checks.network.ephemeral_ports import few_ports_warning, has_too_few_ports, port_exhaustion_findings
from runbook.model.verdict import Finding

CHECKS = "name: checks\nstages: [{check: ping}, {check: port}, {check: firewall}]\n"

HOLD = """
import socket, sys, time
low, high = int(sys.argv[1]), int(sys.argv[2])
held = []
for port in range(low, high + 1):
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("", port))
    sock.listen()
    held.append(sock)
print("up", flush=True)
time.sleep(300)
"""


def ports(lab: Lab, low: int, high: int, *names: str) -> None:
    for name in names:
        lab[name].run(f"echo {low} {high} >/proc/sys/net/ipv4/ip_local_port_range", "root")


def hold(lab: Lab, low: int, high: int, user: str | None) -> None:
    """What has them was there before the range was what it is."""
    process = lab["node-b"].popen([lab.python_without_torch, "-c", HOLD, str(low), str(high)], user)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    ports(lab, low, high, "node-b")


def reserve(lab: Lab) -> None:
    lab["node-b"].run("echo 32768-60998 >/proc/sys/net/ipv4/ip_local_reserved_ports", "root")


Break = Callable[[Lab], object]
NODE_B, BOTH = {"node-b"}, {"node-a", "node-b"}
CASES: dict[str, tuple[Break, set[str], str]] = {
    "one port": (lambda lab: ports(lab, 50000, 50000, "node-b"), NODE_B, "1 for all that dials"),
    "two on every node": (lambda lab: ports(lab, 50000, 50001, "node-a", "node-b"), BOTH, "2 for all that dials"),
    "three": (lambda lab: ports(lab, 50000, 50002, "node-b"), NODE_B, "3 for all that dials"),
    "listened on by the user": (lambda lab: hold(lab, 50000, 50019, None), NODE_B, "holds 20 sockets"),
    "listened on by root": (lambda lab: hold(lab, 50000, 50019, "root"), NODE_B, "of root holds 20 sockets"),
    "reserved but one": (reserve, NODE_B, "28231 of that range are reserved"),
    "eight, none taken": (lambda lab: ports(lab, 50000, 50007, "node-a", "node-b"), set(), "has only 8 ports"),
}


@pytest.mark.lab
@pytest.mark.parametrize(
    "case",
    [pytest.param(name, marks=[] if name == "three" else [pytest.mark.thorough]) for name in CASES],
)
def test_a_node_without_ports_is_told_as_that(case: str, lab_of: Callable[..., Lab]) -> None:
    breaks, guilty, says = CASES[case]
    told = run_fault(Fault(cause=None, within_s=30, breaks=breaks, playbook=CHECKS), lab_of(2))
    assert {(node, f["cause"]) for node, f in told.findings("fail")} == {
        (node, "ephemeral-ports-exhausted") for node in guilty
    }, told.text
    assert told.findings("unknown") == [], told.text
    assert told.done.returncode == (1 if guilty else 0)
    assert says in told.text, told.text


@pytest.mark.lab
def test_dialling_leaves_no_port_taken(lab_of: Callable[..., Lab]) -> None:
    """Thrice over eight ports, each time thirteen dials and more: closed in good order they would be in TIME_WAIT."""
    lab = lab_of(2)
    ports(lab, 50000, 50007, "node-a", "node-b")
    for _ in range(3):
        told = run_fault(Fault(cause=None, within_s=30, playbook=CHECKS), lab)
        assert told.done.returncode == 0, told.text
    for host in lab:
        rows = [row.split() for row in host.run("cat /proc/net/tcp").stdout.splitlines()[1:]]
        waiting = [row for row in rows if row[3] == "06" and 50000 <= int(row[1].partition(":")[2], 16) <= 50007]
        ours = [row for row in waiting if int(row[2].partition(":")[2], 16) != 22]
        assert ours == [], json.dumps(ours)


HERE = """
import resource, socket, subprocess, sys
from runbook.model.errors import Unreachable
from runbook.model.inventory import Node, Ssh
from runbook.transport.ssh import Logins

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
server = socket.create_server(("127.0.0.1", 2222))
first = socket.socket().fileno()
more, hard = [None], resource.getrlimit(resource.RLIMIT_NOFILE)[1]
if sys.argv[1] == "ports":
    open("/proc/sys/net/ipv4/ip_local_port_range", "w").write("50000 50000")
    held = socket.create_server(("127.0.0.1", 50000))
else:
    more = range(5)
for number in more:
    if number is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (first + number, hard))
    try:
        Logins().connect(Node("node-a", "127.0.0.1", ssh=Ssh(port=2222, user="ana", connect_timeout_s=0.2)))
    except Unreachable as error:
        print(error.cause, error.remedy)
"""


def told_here(lack: str, home: Path) -> list[str]:
    words = ["unshare", "--net", sys.executable, "-c", HERE, lack]
    environment = {**os.environ, "HOME": str(home)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.lab
def test_so_it_is_where_runbook_itself_runs(tmp_path: Path) -> None:
    (line,) = told_here("ports", tmp_path)
    assert line.startswith("ephemeral-ports-exhausted")
    assert "ip_local_port_range='32768 60999'" in line


@pytest.mark.lab
def test_without_open_files_no_node_is_blamed(tmp_path: Path) -> None:
    """With none to open, and with one more each time, until the login comes as far as a server that says nothing."""
    lines = told_here("files", tmp_path)
    causes = [line.split()[0] for line in lines]
    assert len(causes) == 5
    assert set(causes) == {"open-files-limit", "ssh-timeout"}, lines
    assert causes == sorted(causes)
    assert all("ulimit -n" in line for line in lines if line.startswith("open-files-limit"))


# What is said of them.


def counted(**changed: Any) -> dict[str, Any]:
    told = {"low": 32768, "high": 60999, "reserved": 0, "taken": 28232, "ours": 0}
    return {**told, "listening": 0, "connected": 28232, "waiting": 0, "holders": [], **changed}


class Counting:
    def __init__(self, answer: Mapping[str, Any]) -> None:
        self.answer = dict(answer)

    def call(self, program: str, _arguments: object, *, timeout_s: float) -> dict[str, Any]:
        assert (program, timeout_s > 0) == ("ephemeral_ports", True)
        return self.answer


def told_of(answer: Mapping[str, Any] | None) -> Finding:
    at = made_up_cluster.context(made_up_cluster.cluster())
    sessions: dict[str, Any] = dict(at.run.site.sessions)
    if answer is not None:
        sessions["node-b"] = Counting(answer)
    at.run.site.sessions = sessions
    return port_exhaustion_findings(at, {"node-b": ["node-b → node-a: no port is left"]}, {"node-b": ["node-a"]})[
        "node-b"
    ]


def test_reserved_ports_are_not_said_to_be_taken() -> None:
    says = told_of(counted(reserved=28232, taken=0, connected=0)).says
    assert "0 for all that dials or listens; 28232 of that range are reserved" in says


PROCESS = {"pid": 4711, "command": "python crawl.py", "user": "ana", "sockets": 28000}


@pytest.mark.parametrize(
    ("answer", "remedy", "evidence"),
    [
        (counted(low=50000, high=50001, taken=2), "ip_local_port_range='32768 60999'", "50000 50001"),
        (counted(reserved=28230, taken=2), "ip_local_reserved_ports=''", "28230"),
        (counted(waiting=20000, connected=8232), "tcp_tw_reuse=1", "20000 in TIME_WAIT"),
        (counted(holders=[PROCESS]), "kill 4711", "process 4711 of ana holds 28,000 sockets: python crawl.py"),
        (counted(holders=[{**PROCESS, "pid": None, "command": None}]), "ss -Htanp", "user ana holds 28,000 sockets"),
        (counted(), "ss -Htanp", "28232 of 28232"),
        (None, "ss -Htanp", "who holds them"),
        ({"low": None, "high": None}, "ss -Htanp", "who holds them"),
    ],
)
def test_the_remedy_is_for_what_took_them(answer: dict[str, Any] | None, remedy: str, evidence: str) -> None:
    finding = told_of(answer)
    assert finding.cause == "ephemeral-ports-exhausted"
    assert remedy in finding.remedy
    assert any(evidence in line for line in finding.evidence), finding.evidence
    assert finding.peers == ("node-a",)


@given(
    low=st.integers(1, 65535),
    width=st.integers(0, 40000),
    share=st.floats(0, 1),
    waiting=st.integers(0, 70000),
    holders=st.lists(st.just(PROCESS), max_size=8),
)
def test_whatever_was_counted_there_is_a_sentence(
    low: int, width: int, share: float, waiting: int, holders: list[dict[str, Any]]
) -> None:
    high = min(65535, low + width)
    taken = int((high - low + 1) * share)
    finding = told_of(counted(low=low, high=high, taken=taken, waiting=waiting, holders=holders))
    assert f"{low}-{high}" in finding.says
    assert ("is taken" in finding.says) is (taken == high - low + 1)
    assert finding.remedy


@pytest.mark.parametrize(
    ("text", "few", "warns"),
    [("50000 50001", True, True), ("50000 50003", False, True), ("32768\t60999", False, False), (None, False, False)],
)
def test_how_many_are_few(text: str | None, few: bool, warns: bool) -> None:
    inventory = made_up_cluster.cluster()
    facts = made_up_cluster.facts_of(inventory)
    facts["node-b"]["port_range"] = text
    assert has_too_few_ports(made_up_cluster.context(inventory, facts), inventory.node("node-b")) is few
    assert bool(few_ports_warning(facts["node-b"])) is warns
