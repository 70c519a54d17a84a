"""`runbook/node/firewall_rules.py` itself: what it says where it may not look, and that it waits for nobody."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from firewall.pair import CLIENT, PROGRAM, Pair, collected
from runbook.firewall.evaluate import Flow
from runbook.firewall.explain_node import explain

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
    told = explain(node, FLOW)
    assert told.blocks is None
    assert "did not answer in 3 s" in str(told.could_not_look)
    for pid in (tmp_path / "pids").read_text().split():
        assert gone(int(pid))


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
    told = explain(node, pair.flow(29500))
    assert told.blocks is None
    assert told.could_not_look is not None
    assert "look with `sudo nft -a list ruleset`" in told.could_not_look


@pytest.mark.lab
def test_the_interface_comes_from_the_route(pair: Pair) -> None:
    node = pair.evidence(pair.server, CLIENT)
    assert node.interface_to(CLIENT) == "eth0"
    assert node.interface_to("10.77.0.2") == "lo"
    assert node.client_ports == (32768, 60999)
