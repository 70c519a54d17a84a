"""A pair of hosts with one thing wrong: the right stage stops, and names the right cause and node."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lab import Host, Lab

from .e2e_types import Ran

pytestmark = [pytest.mark.lab, pytest.mark.torch]


def block(host: Host, rule: str, hook: str = "input") -> None:
    host.firewall(
        f"table inet lab {{\n chain {hook} {{\n type filter hook {hook} priority 0; policy accept;\n {rule}\n }}\n}}\n"
    )


def stops(ran: Ran, stage: str, *expected: tuple[str, str], code: int = 1) -> None:
    """The run stopped at `stage`, with these (node, cause) and no others; unreachable nodes give exit 3."""
    assert ran.code == code, ran.text()
    assert ran.document["stopped_at"] == stage, ran.text()
    verdict = "fail" if code == 1 else "unknown"
    assert {(node, cause) for _, node, cause in ran.findings(verdict)} >= set(expected), ran.text()
    assert ran.document["causes"][0] == expected[0][1], ran.text()
    if code == 1:
        assert {(node, cause) for _, node, cause in ran.findings("fail")} == set(expected), ran.text()
    assert "fix " in ran.done.stdout


RULES = {
    "dropped": ("tcp dport 29500 drop", "input", "firewall-drop"),
    "rejected with RST": ("tcp dport 29500 reject with tcp reset", "input", "firewall-reject"),
    "rejected with ICMP": ("tcp dport 29500 reject", "input", "firewall-reject"),
    "ephemeral ports dropped": ("tcp dport 32768-60999 ct state new drop", "input", "data-ports-blocked"),
    "replies dropped": ("tcp sport 29500 drop", "output", "firewall-drop"),
}


@pytest.mark.parametrize("name", RULES)
def test_a_firewall_rule_on_the_master(two_hosts: Lab, run_in: Callable[..., Ran], name: str) -> None:
    rule, hook, cause = RULES[name]
    block(two_hosts["node-a"], rule, hook)
    ran = run_in(two_hosts)
    stops(ran, "firewall", ("node-a", cause))
    (finding,) = [
        f for s in ran.document["stages"] for o in s["outcomes"] if o["verdict"] == "fail" for f in o["findings"]
    ]
    # The remedy is not advice but the command: running it makes the same run pass.
    two_hosts["node-a"].run(finding["remedy"].split(": ", 1)[-1].removeprefix("on node-a: "), user="root")
    again = run_in(two_hosts)
    assert again.code == 0, finding["remedy"] + "\n" + again.text()


@pytest.mark.parametrize("rule", ["meta length > 1400 drop", "ip protocol tcp meta length > 1400 drop"])
def test_large_packets_vanish(two_hosts: Lab, run_in: Callable[..., Ran], rule: str) -> None:
    block(two_hosts["node-b"], rule)
    stops(run_in(two_hosts), "ping", ("node-b", "mtu-blackhole"))


def test_the_rendezvous_port_is_taken(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    listener = "import socket, time; s = socket.socket(); s.bind(('', 29500)); s.listen(); print('up', flush=True); time.sleep(60)"
    process = two_hosts["node-a"].popen([two_hosts.python_without_torch, "-c", listener], user="root")
    assert process.stdout is not None
    process.stdout.readline()
    ran = run_in(two_hosts)
    stops(ran, "port", ("node-a", "port-in-use"))
    assert "of root" in ran.done.stdout
    assert "time.sleep(60)" in ran.done.stdout


def test_sshd_is_stopped(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    two_hosts["node-b"].stop_sshd()
    stops(run_in(two_hosts), "reach", ("node-b", "ssh-refused"), code=3)


def test_an_unknown_host_key(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    two_hosts.forget(two_hosts["node-b"])
    stops(run_in(two_hosts), "reach", ("node-b", "ssh-host-key-unknown"), code=3)


def test_a_changed_host_key(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    two_hosts["node-b"].rekey()
    stops(run_in(two_hosts), "reach", ("node-b", "ssh-host-key-changed"), code=3)


def test_a_host_that_answers_nothing(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    two_hosts["node-b"].cut()
    ran = run_in(two_hosts, defaults={"ssh": {"connect_timeout": "2s"}})
    stops(ran, "reach", ("node-b", "ssh-unreachable"), code=3)


def test_no_torch(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    ran = run_in(two_hosts, nodes={"node-b": {"python": two_hosts.python_without_torch}})
    stops(ran, "reach", ("node-b", "torch-missing"))


def test_no_such_python(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    ran = run_in(two_hosts, nodes={"node-b": {"python": "/opt/nowhere/bin/python"}})
    stops(ran, "reach", ("node-b", "python-missing"))


def test_an_activate_line_that_fails(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    ran = run_in(two_hosts, nodes={"node-b": {"activate": "source /opt/nowhere/bin/activate"}})
    stops(ran, "reach", ("node-b", "activation-failed"))


def test_a_wrong_interface_name_on_one_node(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    ran = run_in(two_hosts, nodes={"node-b": {"env": {"GLOO_SOCKET_IFNAME": "ens9"}}})
    stops(ran, "reach", ("node-b", "interface-missing"))
    assert "eth0" in ran.done.stdout


def test_a_clock_that_is_40_s_ahead(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    two_hosts["node-b"].clock_offset(40)
    stops(run_in(two_hosts), "reach", ("node-b", "clock-skew"))


def test_a_workdir_that_cannot_be_written(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    ran = run_in(two_hosts, nodes={"node-b": {"workdir": "/etc/runbook"}})
    stops(ran, "reach", ("node-b", "workdir-not-writable"))


def test_a_name_that_means_loopback_on_its_own_host(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    a, b = two_hosts["node-a"], two_hosts["node-b"]
    a.set_hosts(f"127.0.0.1 localhost\n127.0.1.1 node-a\n{b.address} node-b\n")
    ran = run_in(two_hosts, rendezvous={"address": "node-a"})
    stops(ran, "ping", ("node-a", "name-resolves-to-loopback"))


def test_a_name_that_does_not_resolve_on_one_host(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    b = two_hosts["node-b"]
    b.set_hosts(f"127.0.0.1 localhost\n{b.address} node-b\n")
    ran = run_in(two_hosts, rendezvous={"address": "node-a"})
    stops(ran, "ping", ("node-b", "name-unresolvable"))


def test_a_rendezvous_address_that_is_nobodys(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    ran = run_in(two_hosts, rendezvous={"address": two_hosts["node-b"].address})
    stops(ran, "port", ("node-a", "master-address-not-local"))


def test_an_hca_without_a_subnet_manager(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    two_hosts.fabric(subnet_manager=False)
    ran = run_in(two_hosts, infiniband={"hca": "mlx5", "min_rate_gbps": 200})
    stops(ran, "ibstat", ("node-a", "ib-port-initializing"), ("node-b", "ib-port-initializing"))


def test_a_healthy_fabric_and_one_that_is_slower_than_promised(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    two_hosts.fabric(rate=200)
    assert run_in(two_hosts, "-t", "ibstat", infiniband={"hca": "mlx5", "min_rate_gbps": 200}).code == 0
    ran = run_in(two_hosts, "-t", "ibstat", infiniband={"hca": "=mlx5_0", "min_rate_gbps": 400})
    stops(ran, "ibstat", ("node-a", "ib-rate-low"), ("node-b", "ib-rate-low"))


def strike(lab: Lab, number: signal.Signals) -> threading.Thread:
    """Send a signal to node-b's rank once the full AllReduce is under way."""

    def work() -> None:
        events: Path = lab.tmp / "run" / "events.jsonl"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            text = events.read_text() if events.exists() else ""
            if '"stage": "full"' in text and '"row"' in text.rpartition('"stage-started"')[2]:
                host = lab["node-b"]
                for pid, command in host.processes():
                    if "rank.py" in command:
                        host.signal(pid, number)
                return
            time.sleep(0.02)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


LONG = ("-e", "max_bytes=256M", "-e", "budget=40s", "-e", "iterations=2000")


def test_a_rank_is_killed_during_allreduce(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    thread = strike(two_hosts, signal.SIGKILL)
    ran = run_in(two_hosts, *LONG)
    thread.join(5)
    stops(ran, "full", ("node-b", "rank-killed"))
    assert ran.document["causes"] == ["rank-killed"]


def test_a_rank_is_stopped_during_allreduce(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    thread = strike(two_hosts, signal.SIGSTOP)
    ran = run_in(two_hosts, *LONG)
    thread.join(5)
    stops(ran, "full", ("node-b", "rank-stopped"))
    for host in two_hosts.hosts:
        host.wait_empty(user=two_hosts.user, timeout=10)


def test_an_activate_line_that_never_returns(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    ran = run_in(two_hosts, nodes={"node-b": {"activate": "sleep 1000"}})
    stops(ran, "reach", ("node-b", "activation-failed"))


def test_an_activate_line_that_reads_does_not_eat_our_orders(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    assert run_in(two_hosts, "-t", "small", nodes={"node-b": {"activate": "cat >/dev/null"}}).code == 0


def test_a_secret_that_a_program_prints_is_starred(
    two_hosts: Lab, run_in: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "s3cr3t-0815")
    environment = two_hosts.environment()
    monkeypatch.setattr(two_hosts, "environment", lambda: {**environment, "SECRET_OF_MINE": "s3cr3t-0815"})
    node = {"env": {"TOKEN": {"env": "SECRET_OF_MINE"}}, "activate": "echo token=$TOKEN; echo $TOKEN >&2; false"}
    ran = run_in(two_hosts, "-v", nodes={"node-b": node})
    stops(ran, "reach", ("node-b", "activation-failed"))
    kept = "".join(path.read_text() for path in ran.folder.rglob("*") if path.is_file())
    assert "token=***" in kept
    assert "s3cr3t-0815" not in kept + ran.text()
