"""`runbook/node/firewall_rules.py` itself: what it says where it may not look, and that it waits for nobody."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from profiles import one_in

from firewall.pair import CLIENT, PROGRAM, Pair, collected
from runbook.firewall.evaluate import Flow
from runbook.firewall.explain_node import explain_leg
from runbook.node import firewall_rules
from runbook.transport.frames import MAX_FRAME_LINE_BYTES
from runbook.transport.node_answers import FIREWALL_RULES_MESSAGES, checked_message

FLOW = Flow("10.77.0.1", "10.77.0.2", 29500)


def run(path: str = os.environ["PATH"], before: tuple[str, ...] = (sys.executable,)) -> str:
    """The program is read from stdin, so that it need not be readable for whoever runs it."""
    words = [*before, "-", "{}"]
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(
        words, input=PROGRAM, capture_output=True, text=True, timeout=120, check=True, env=environment
    )
    return done.stdout


def test_one_marked_line() -> None:
    lines = run().split("\n")  # not splitlines(): the marker's first character ends a line for that
    assert lines[1:] == [""]
    assert lines[0].startswith("\x1erunbook {")
    answer = json.loads(lines[0].removeprefix("\x1erunbook "))
    assert answer["tools"]["addresses"]["status"] in ("ok", "missing")


def test_a_tool_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("not root: sudo would choose the tools")
    fake = tmp_path / "nft"
    fake.write_text(f"#!/bin/sh\nsleep 61 & echo $! >>{tmp_path}/pids; wait\n")
    fake.chmod(0o755)
    node = collected(run(path=f"{tmp_path}:{os.environ['PATH']}"))
    assert node.tool("nft-json").status == "timeout"
    told = explain_leg(node, FLOW)
    assert told.blocks is None
    assert "did not answer in 3 s" in str(told.could_not_look)
    for pid in (tmp_path / "pids").read_text().split():
        assert gone(int(pid))


@pytest.mark.parametrize(
    ("sizes", "kept"),
    one_in(
        2,
        [
            ({"json": 5, "text": 3, "saved": 2}, {"json", "saved"}),
            ({"json": 3, "text": 2, "saved": 2}, {"json", "text", "saved"}),
            ({"json": 20, "text": 20, "saved": 20}, set()),
            ({"json": 7, "text": 1, "saved": 6}, {"saved"}),
        ],
    ),
    ids=["many", "few", "most", "more"],
)
def test_more_rules_than_one_message_carries_are_not_looked_at(
    sizes: dict[str, int], kept: set[str], tmp_path: Path
) -> None:
    """Each list in MiB, and of quotes, which JSON writes as two characters each."""
    if os.geteuid() != 0:
        pytest.skip("not root: sudo would choose the tools")
    prints = {name: f"yes '\"' | tr -d '\\n' | head -c {size << 20}" for name, size in sizes.items()}
    nft = f'case "$1" in -j) {prints["json"]};; *) {prints["text"]};; esac'
    for name, script in {"nft": nft, "iptables-save": prints["saved"]}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    said = run(path=f"{tmp_path}:{os.environ['PATH']}").removeprefix("\x1erunbook ")
    assert len(said) < MAX_FRAME_LINE_BYTES
    answer = checked_message(FIREWALL_RULES_MESSAGES, said.encode())
    assert answer is not None
    tools = {"json": "nft-json", "text": "nft-text", "saved": "iptables-save"}
    assert {name for name, tool in tools.items() if "stdout" in answer["tools"][tool]} == kept
    for name in sizes.keys() - kept:
        record = answer["tools"][tools[name]]
        assert record["status"] == "failed"
        assert "more than this program carries" in record["stderr"]


@pytest.mark.parametrize("runs", [True, False])
def test_firewalld_lists_its_zones_only_where_it_runs(runs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[dict[str, Any]] = []
    states = {"firewalld-state": {"status": "ok", "rc": 0 if runs else 252, "stdout": "running" if runs else ""}}
    asked = {
        tuple(argv): name for name, argv in (firewall_rules.ROOT_COMMANDS | firewall_rules.FIREWALLD_COMMANDS).items()
    }
    monkeypatch.setattr(firewall_rules, "find_tool", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(
        firewall_rules, "run", lambda argv, *_: states.get(asked.get(tuple(argv), ""), {"status": "ok", "rc": 0})
    )
    monkeypatch.setattr(firewall_rules, "write_message", said.append)
    monkeypatch.setattr(sys, "argv", ["firewall_rules"])
    firewall_rules.main()
    assert said[0]["tools"]["firewalld-state"]["rc"] == (0 if runs else 252)
    assert (said[0]["tools"].keys() >= firewall_rules.FIREWALLD_COMMANDS.keys()) is runs


def test_what_was_read_in_time_is_told_of_a_node_whose_front_ends_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[dict[str, Any]] = []
    over = threading.Event()

    def run(argv: list[str], *_: object) -> dict[str, Any]:
        if argv[0] in ("firewall-cmd", "ufw"):
            over.wait(60)
        return {"status": "ok", "rc": 0, "stdout": "[]"}

    monkeypatch.setattr(firewall_rules, "find_tool", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(firewall_rules, "run", run)
    monkeypatch.setattr(firewall_rules, "write_message", said.append)
    monkeypatch.setattr(sys, "argv", ["firewall_rules", json.dumps({"seconds": 1})])
    firewall_rules.main()
    over.set()
    statuses = {name: record["status"] for name, record in said[0]["tools"].items()}
    assert {name for name, status in statuses.items() if status == "timeout"} == {"firewalld-state", "ufw"}
    assert statuses["nft-json"] == "ok"


@pytest.mark.parametrize("allowed", [0, 1, 5, 1000])
def test_a_thousand_peers_need_few_threads_and_do_with_fewer(allowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []
    said: list[dict[str, Any]] = []

    class Limited(threading.Thread):
        def start(self) -> None:
            if len(started) == allowed:
                raise RuntimeError("can't start new thread")
            started.append(self)
            super().start()

    monkeypatch.setattr(firewall_rules, "threading", SimpleNamespace(Thread=Limited))
    monkeypatch.setattr(firewall_rules, "run", lambda *_: {"status": "missing"})
    monkeypatch.setattr(firewall_rules, "write_message", said.append)
    peers = [f"10.0.{number // 250}.{number % 250}" for number in range(1000)]
    monkeypatch.setattr(sys, "argv", ["firewall_rules", json.dumps({"peers": peers})])
    firewall_rules.main()
    assert len(started) <= min(allowed, firewall_rules.MAX_WORKERS)
    assert {said[0]["tools"][f"route {peer}"]["status"] for peer in peers} == {"missing"}


def gone(pid: int) -> bool:
    """Killed; on a busy machine dying takes a moment."""
    status = Path(f"/proc/{pid}/status")
    for _ in range(100):
        try:
            if "State:\tZ" in status.read_text():
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


NO_SUDO = """
mount -t tmpfs tmpfs /mnt
echo 'root ALL=(ALL:ALL) ALL' >/mnt/sudoers; chmod 440 /mnt/sudoers
mount --bind /mnt/sudoers /etc/sudoers
"""
"""Whatever /etc/sudoers and /etc/sudoers.d of this machine allow to whom."""


@pytest.mark.lab
def test_an_ordinary_user_without_sudo_says_that_it_could_not_look(pair: Pair) -> None:
    if not Path("/usr/bin/python3").exists() or shutil.which("setpriv") is None:
        pytest.skip("no Python or setpriv for an ordinary user")
    if Path("/etc/sudoers").exists():
        pair.keep(pair.server, NO_SUDO)
    pair.load(pair.server, "table inet t { chain c { type filter hook input priority 0; policy drop; }; }")
    user = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
    node = collected(run(before=(*pair.enter(pair.server), *user, "/usr/bin/python3")))
    assert node.tool("nft-json").status == "denied"
    assert node.tool("iptables-save").status == "denied"
    told = explain_leg(node, pair.flow(29500))
    assert told.blocks is None
    assert told.could_not_look is not None
    assert "look with `sudo nft -a list ruleset`" in told.could_not_look


@pytest.mark.lab
def test_the_interface_comes_from_the_route(pair: Pair) -> None:
    node = pair.evidence(pair.server, CLIENT)
    assert node.interface_to(CLIENT) == "eth0"
    assert node.interface_to("10.77.0.2") == "lo"
    assert node.client_ports == (32768, 60999)
