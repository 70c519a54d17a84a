"""Many hosts on a busy machine: nobody who is healthy is accused, and who is broken is named."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from lab import Lab, runbook_cli

from .conftest import Ran

pytestmark = pytest.mark.lab

NUMBERS = itertools.count()

REACH_TO_FIREWALL = "name: who reaches whom\nstages:\n  - {check: ping, timeout: 3m}\n  - check: port\n  - {check: firewall, timeout: 3m}\n"
"""On so busy a machine 32 hosts may take longer than a stage usually gets."""


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """So many programs that take all the CPU they get."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


LISTENS = """
import os, socket, time

listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
for _ in range(250):  # the run before may still be about to leave this host
    try:
        listener.bind(("", 29500))
        break
    except OSError:
        time.sleep(0.1)
listener.listen()
with open("/tmp/taken", "w") as file:
    file.write(str(os.getpid()))
time.sleep(900)
"""
"""Somebody else's program at the port of the rendezvous."""

UNTIL_IT_LISTENS = "for i in $(seq 300); do [ -s /tmp/taken ] && exit 0; sleep 0.1; done; exit 1"


def looked(lab: Lab, **changes: Any) -> Ran:
    """With these changes of the inventory."""
    playbook, folder = lab.tmp / "reach.yml", lab.tmp / f"run-{next(NUMBERS)}"
    playbook.write_text(REACH_TO_FIREWALL)
    arguments = ("run", str(playbook), "-i", str(lab.inventory(**changes)), "--run-dir", str(folder))
    return Ran(runbook_cli(lab, *arguments, timeout=400), folder)


HEALTHY = [
    pytest.param(12, 4),
    *(pytest.param(*case, marks=pytest.mark.thorough) for case in ((17, 8), (32, 0), (64, 4))),
    *(pytest.param(2 + 62 * place // 199, place % 9, marks=pytest.mark.scale, id=f"{place}") for place in range(200)),
]
"""Hosts, and programs beside them that take all the CPU they get."""


@pytest.mark.parametrize(("hosts", "loops"), HEALTHY)
def test_nobody_is_accused_of_a_busy_machine(lab_of: Callable[..., Lab], hosts: int, loops: int) -> None:
    lab = lab_of(hosts=hosts)
    with busy(loops):
        ran = looked(lab)
    assert ran.code == 0, ran.text()
    if hosts > 16:
        assert "`pairs: all` tries every one" in ran.done.stdout


def rule(text: str, hook: str = "input") -> tuple[str, str]:
    """Shell lines that add this rule, and take it away."""
    add = f"nft 'add table inet odd; add chain inet odd c {{ type filter hook {hook} priority 0; }}; add rule inet odd c {text}'"
    return add, "nft delete table inet odd"


FAULTS = {
    "promised ports": ("node-006", "firewall", ("firewall-drop",), rule("tcp dport 29501-29510 drop")),
    "ports of the kernel's choice": (
        "node-008",
        "firewall",
        ("firewall-reject", "data-ports-blocked"),
        rule("tcp dport 32768-60999 reject"),
    ),
    "ports of the kernel's choice, on the way out": (
        "node-025",
        "firewall",
        ("firewall-drop", "data-ports-blocked"),
        rule("tcp dport 32768-60999 ct state new drop", "output"),
    ),
    "the rendezvous": ("node-001", "firewall", ("firewall-drop",), rule("tcp dport 29500 drop")),
    "one peer alone": (
        "node-015",
        "ping",
        ("firewall-drop",),
        rule("ip saddr {node-016} drop"),
    ),
    "everything but SSH": (
        "node-010",
        "ping",
        ("firewall-drop",),
        rule("tcp dport 1024-65535 drop; add rule inet odd c meta l4proto icmp drop"),
    ),
    "full size": ("node-012", "ping", ("mtu-blackhole",), rule("meta length > 1400 drop")),
    "every third packet": (
        "node-020",
        "ping",
        ("firewall-drop",),
        rule(
            "tcp dport 1024-65535 numgen inc mod 3 0 drop; add rule inet odd c meta l4proto icmp numgen inc mod 3 0 drop"
        ),
    ),
    "a way that is refused": (
        "node-007",
        "ping",
        ("no-route",),
        ("ip route add unreachable {node-008}/32", "ip route del unreachable {node-008}/32"),
    ),
    "a port that is taken": (
        "node-001",
        "port",
        ("port-in-use",),
        (
            f"rm -f /tmp/taken; {shlex.join(('nohup', 'python3', '-c', LISTENS))} >/dev/null 2>&1 & {UNTIL_IT_LISTENS}",
            "kill $(cat /tmp/taken); rm /tmp/taken",
        ),
    ),
}


@pytest.fixture(scope="module")
def thirty_two() -> Iterator[Lab]:
    with Lab(32) as lab:
        yield lab


@pytest.mark.thorough
@pytest.mark.xdist_group("one at a time")
@pytest.mark.parametrize("fault", FAULTS)
def test_one_of_many_is_named_on_a_busy_machine(thirty_two: Lab, fault: str) -> None:
    name, stage, causes, commands = FAULTS[fault]
    addresses = {host.name: host.address for host in thirty_two}
    breaks, mends = (re.sub(r"\{(node-\d+)\}", lambda found: addresses[found[1]], line) for line in commands)
    thirty_two[name].run(breaks, user="root")
    try:
        with busy(4):
            ran = looked(thirty_two)
    finally:
        thirty_two[name].run(mends, user="root")
    assert ran.code == 1, ran.text()
    accused = ran.findings()
    assert {(where, node) for where, node, _ in accused} == {(stage, name)}, ran.text()
    assert accused[0][2] in causes, ran.text()


BETWEEN = {
    "what one node dials": ("node-c",),
    "what one node is dialled at": ("node-f",),
    "the way between two racks": tuple(f"node-{letter}" for letter in "abcdefgh"),
}
"""What a switch or a router drops, unseen by any node: whose doing it is."""


@pytest.mark.thorough
@pytest.mark.xdist_group("one at a time")
@pytest.mark.parametrize("what", BETWEEN)
def test_what_lies_between_accuses_nobody_at_the_other_end(what: str) -> None:
    with Lab(8) as lab:
        if what == "the way between two racks":
            far = ", ".join(host.port for host in lab.hosts[5:])
            for host in lab.hosts[:5]:
                host.switch_rule(f"oifname {{ {far} }} drop")
        else:
            way = "from" if "dials" in what else "to"
            lab[BETWEEN[what][0]].switch_rule("tcp dport 1024-65535 tcp flags & (syn | ack) == syn drop", way)
        ran = looked(lab, nodes={host.name: {"rack": "AB"[host.index >= 5]} for host in lab})
    assert ran.code == 1, ran.text()
    assert {node for _, node, _ in ran.findings()} == set(BETWEEN[what]), ran.text()
    says = "between rack A and rack B" if len(BETWEEN[what]) > 1 else f"has {BETWEEN[what][0]} in common"
    assert says in " ".join(ran.done.stdout.split()), ran.text()
