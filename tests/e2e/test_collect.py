"""`runbook collect` on real hosts: what it brings home, what it leaves there, and what is in the archive of what is planted."""

from __future__ import annotations

import json
import os
import signal
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lab import Lab, runbook_cli, runbook_finish, runbook_start

from runbook.model.decoded_text import decoded_views

from .e2e_types import Ran

pytestmark = pytest.mark.lab

SECRET = "s3cr3t/0815"
FILES = "find ~ /tmp /dev/shm -mindepth 1 2>/dev/null | sort"


def files_of(path: Path) -> dict[str, str]:
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read().decode() for member in tar}  # type: ignore[union-attr]


def everything(files: dict[str, str]) -> str:
    """All names and texts of an archive, as they can be read in any way."""
    return "\n".join(view.text for name, text in files.items() for view in decoded_views(f"{name}\n{text}"))


@pytest.mark.torch
def test_a_failed_run_and_both_nodes(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    node_b = two_hosts["node-b"]
    node_b.firewall(
        "table inet lab {\n chain input {\n type filter hook input priority 0; policy accept;\n tcp dport 29500 drop\n }\n}\n"
    )
    ran = run_in(two_hosts, rendezvous={"master": "node-b"})
    assert ran.code == 1, ran.text()
    node_b.write("~/.nccl.conf", f"NCCL_DEBUG=INFO\n# token={SECRET}\n", user=two_hosts.user)
    xid = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus."
    old = "[Sat Nov  1 09:16:32 2025] Out of memory: Killed process 7 (python)"
    node_b.tool("dmesg", f"echo '{old}'; LC_ALL=C date '+[%a %b %e %H:%M:%S %Y] {xid}'")
    before = [host.run(FILES).stdout for host in two_hosts]
    done = runbook_cli(two_hosts, "collect", "--run-dir", str(ran.folder), "--out", "a.tar.gz", timeout=120)
    assert done.returncode == 0, done
    assert [host.run(FILES).stdout for host in two_hosts] == before
    for host in two_hosts:
        host.wait_empty(user=two_hosts.user)
    files = files_of(two_hosts.tmp / "a.tar.gz")
    assert json.loads(files["run/result.json"])["causes"][0] == "firewall-drop"
    assert "tcp dport 29500 drop" in files["nodes/node-b/firewall/nft.txt"]
    assert "tcp dport" not in files["nodes/node-a/firewall/nft.txt"]
    assert f"inet {two_hosts['node-a'].address}/24" in files["nodes/node-a/network/ip-address.txt"]
    assert "backends ['gloo']" in files["nodes/node-a/python.txt"]
    assert "token=REDACTED" in files["nodes/node-b/nccl/user-nccl.conf"]
    text = everything(files)
    assert SECRET not in text
    assert two_hosts.user not in text
    assert old in files["nodes/node-b/system/kernel-log.txt"]
    assert "Killed process" not in files["nodes/node-b/system/kernel-log-of-the-run.txt"]
    diagnosed = runbook_cli(two_hosts, "diagnose", "-o", "json", "a.tar.gz").json()["causes"]
    assert [(cause["cause"], cause["node"]) for cause in diagnosed] == [
        ("firewall-drop", "node-b"),
        ("gpu-fell-off-bus", "node-b"),
    ]


@pytest.mark.thorough
def test_addresses_and_names_are_hidden_alike_everywhere(two_hosts: Lab) -> None:
    done = runbook_cli(
        two_hosts, "collect", "-i", str(two_hosts.inventory()), "--hide-addresses", "--out", "a.tar.gz", timeout=120
    )
    assert done.returncode == 0, done
    files = files_of(two_hosts.tmp / "a.tar.gz")
    text = everything(files)
    for host in two_hosts:
        assert host.address not in text
        assert host.name not in text
        assert host.read("/sys/class/net/eth0/address").strip() not in text
    for number, peer in ((1, 2), (2, 1)):
        assert f"inet 10.0.0.{number}/24" in files[f"nodes/host{number}/network/ip-address.txt"]
        assert f"10.0.0.{peer} host{peer}" in files[f"nodes/host{number}/network/hosts.txt"]


def test_what_a_node_cannot_or_may_not_tell_is_told(two_hosts: Lab) -> None:
    a, b = two_hosts
    b.sudo("password")
    b.tool("nvidia-smi", "sleep 1000")
    a.tool("nvidia-smi", "seq 1 200000; echo 'NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.'")
    a.tool("ibstat", "printf '\\377\\376 ibpanic: can not open\\000'; exit 1")
    inventory = two_hosts.inventory(defaults={"python": two_hosts.python_without_torch})
    done = runbook_cli(two_hosts, "collect", "-i", str(inventory), "--out", "a.tar.gz", timeout=120)
    assert done.returncode == 0, done
    assert "   denied      system/kernel-log, system/sudo, firewall/nft, " in done.stdout
    assert "   timeout     gpu/nvidia-smi, " in done.stdout
    assert "sudo: a password is required" in done.stdout
    files = files_of(two_hosts.tmp / "a.tar.gz")
    listed = json.loads(files["manifest.json"])["files"]
    missing = {one["what"]: one for one in listed if one["path"] is None}
    assert missing["nodes/node-b/firewall/nft.txt"]["kind"] == "denied"
    assert missing["nodes/node-b/gpu/nvidia-smi.txt"]["kind"] == "timeout"
    cut = next(one for one in listed if one["path"] == "nodes/node-a/gpu/nvidia-smi.txt")
    assert cut["truncated"]
    text = files["nodes/node-a/gpu/nvidia-smi.txt"]
    assert text.startswith("$ nvidia-smi\n1\n2\n")
    assert f"[... {cut['bytes_left_out']} bytes left out here ...]" in text
    assert "fallen off the bus" in text
    assert files["nodes/node-a/infiniband/ibstat.txt"].endswith("ibpanic: can not open\n[exit code 1]\n")
    for host in two_hosts:
        host.wait_empty()


def test_a_node_that_cannot_be_reached(two_hosts: Lab) -> None:
    two_hosts["node-b"].stop_sshd(sessions=True)
    inventory = two_hosts.inventory(defaults={"python": two_hosts.python_without_torch})
    done = runbook_cli(two_hosts, "collect", "-i", str(inventory), "-o", "json", timeout=120)
    assert done.returncode == 3, done
    document = done.json()
    first, second = document["nodes"]
    assert (first["asked"], second["asked"], second["cause"]) == (True, False, "ssh-refused")
    files = files_of(two_hosts.tmp / document["archive"])
    assert any(name.startswith("nodes/node-a/") for name in files)
    assert not any(name.startswith("nodes/node-b/") for name in files)
    assert "node-b: not asked: ssh-refused" in files["README.txt"]


@pytest.mark.thorough
def test_the_interpreter_behind_the_activate_line(two_hosts: Lab) -> None:
    inventory = two_hosts.inventory(
        defaults={"python": two_hosts.python_without_torch},
        nodes={"node-a": {"activate": "export NCCL_DEBUG=TRACE; cat"}, "node-b": {"activate": "source /nowhere"}},
    )
    assert runbook_cli(two_hosts, "collect", "-i", str(inventory), "--out", "a.tar.gz", timeout=120).returncode == 0
    files = files_of(two_hosts.tmp / "a.tar.gz")
    assert "\nNCCL_DEBUG=TRACE\n" in files["nodes/node-a/python.txt"]
    assert "/nowhere" in files["nodes/node-b/python.txt"].partition("\n")[2]


def test_interrupted_nothing_is_left(two_hosts: Lab) -> None:
    for host in two_hosts:
        host.tool("nvidia-smi", "sleep 1000")
    inventory = two_hosts.inventory(defaults={"python": two_hosts.python_without_torch})
    before = sorted(path.name for path in two_hosts.tmp.iterdir())
    process = runbook_start(two_hosts, "collect", "-i", str(inventory))
    deadline = time.monotonic() + 30
    while not all(any("sleep 1000" in command for _, command in host.processes()) for host in two_hosts):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    done = runbook_finish(process)
    assert (done.returncode, done.stdout) == (130, ""), done
    assert sorted(path.name for path in two_hosts.tmp.iterdir()) == before
    for host in two_hosts:
        host.wait_empty(user=two_hosts.user)
