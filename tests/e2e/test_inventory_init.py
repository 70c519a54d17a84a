"""`inventory init` asks real hosts over SSH; what it writes lints clean, loads, and runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab import CliResult, Host, Lab, runbook_cli

from runbook.files.inventory import load_inventory
from runbook.model.inventory import Inventory

pytestmark = pytest.mark.lab

SMI = """\
#!/bin/sh
# as nvidia-smi 550 prints it for --format=csv,noheader,nounits
case "$*" in *--query-gpu*) ;; *) exit 2 ;; esac
echo "0, GPU-5f6b1c9e-8a51-5d0e-9f1a-0c3f6f1e2a01, NVIDIA H100 80GB HBM3, 81559, 4"
echo "1, GPU-5f6b1c9e-8a51-5d0e-9f1a-0c3f6f1e2a02, NVIDIA H100 80GB HBM3, 81559, 4"
"""
SMI_BROKEN = """\
#!/bin/sh
echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running."
exit 9
"""


def init(lab: Lab, *arguments: str) -> tuple[CliResult, str]:
    """Run it into a file; how it ended, and what is in the file."""
    done = runbook_cli(lab, "inventory", "init", *arguments, "--out", "made.yml", "--force", timeout=90)
    made = lab.tmp / "made.yml"
    return done, made.read_text() if made.exists() else ""


def loaded(lab: Lab) -> Inventory:
    return load_inventory(lab.tmp / "made.yml", environ={})[0]


def clean(lab: Lab) -> None:
    done = runbook_cli(lab, "lint", "made.yml")
    assert done.returncode == 0, str(done) + (lab.tmp / "made.yml").read_text()


def files_of(host: Host, folder: str) -> str:
    return host.run(f"find {folder} -mindepth 1 2>/dev/null | sort").stdout


@pytest.mark.torch
def test_what_it_writes_lints_clean_and_runs(two_hosts: Lab) -> None:
    before = [files_of(host, "~ /tmp /dev/shm") for host in two_hosts]
    done, text = init(two_hosts, "node-a", "node-b")
    assert done.returncode == 0, done
    assert done.stdout == ""
    assert [files_of(host, "~ /tmp /dev/shm") for host in two_hosts] == before
    for host in two_hosts:
        host.wait_empty(user=two_hosts.user)
    inventory = loaded(two_hosts)
    assert [(n.name, n.address, n.ssh.host) for n in inventory.nodes] == [
        (h.name, h.address, h.name) for h in two_hosts
    ]
    assert {n.python for n in inventory.nodes} == {two_hosts.python}
    assert inventory.network.interface == "eth0"
    assert inventory.rendezvous.backend == "gloo"
    assert "# gpus: nvidia-smi is not on node-a, node-b" in text
    clean(two_hosts)
    ran = runbook_cli(two_hosts, "run", "two_node_allreduce", "-i", "made.yml", "-e", "budget=2s", timeout=120)
    assert ran.returncode == 0, str(ran) + text


def test_to_stdout_goes_the_inventory_and_nothing_else(two_hosts: Lab) -> None:
    done = runbook_cli(two_hosts, "inventory", "init", "node-a", "node-b", "--name", "pair")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nname: pair\n" in done.stdout
    assert sorted(path.name for path in two_hosts.tmp.iterdir() if path.suffix == ".yml") == []


@pytest.mark.thorough
def test_addresses_users_and_keys_from_the_command_line(two_hosts: Lab) -> None:
    """Nodes given by address are called what they call themselves; what was typed is what is written."""
    two_hosts.ssh_config.unlink()
    one, two = two_hosts.hosts
    done, _ = init(
        two_hosts,
        f"{two_hosts.user}@{one.address}:22",
        two.address,
        "--user",
        two_hosts.user,
        "--key",
        str(two_hosts.key),
    )
    assert done.returncode == 0, done
    inventory = loaded(two_hosts)
    assert [(n.name, n.address, n.ssh.host, n.ssh.user, n.ssh.port) for n in inventory.nodes] == [
        ("node-a", one.address, None, two_hosts.user, 22),
        ("node-b", two.address, None, two_hosts.user, None),
    ]
    assert inventory.nodes[0].ssh.key == str(two_hosts.key)
    clean(two_hosts)


def test_a_range_of_addresses_comes_out_as_a_range(two_hosts: Lab) -> None:
    base = two_hosts.hosts[0].address.rpartition(".")[0]
    last = [host.address.rpartition(".")[2] for host in two_hosts]
    done, text = init(two_hosts, f"{base}.[{last[0]}-{last[1]}]")
    assert done.returncode == 0, done
    assert [node.address for node in loaded(two_hosts).nodes] == [host.address for host in two_hosts], text


def test_gpus_are_counted_and_named(two_hosts: Lab) -> None:
    for host in two_hosts:
        host.tool("nvidia-smi", SMI)
    done, text = init(two_hosts, "node-a", "node-b")
    assert done.returncode == 0, done
    inventory = loaded(two_hosts)
    assert [node.gpus for node in inventory.nodes] == [(0, 1), (0, 1)]
    assert inventory.rendezvous.backend == "nccl"
    assert "2 x NVIDIA H100 80GB HBM3" in text
    clean(two_hosts)


@pytest.mark.thorough
def test_gpus_that_cannot_be_counted_are_a_comment(two_hosts: Lab) -> None:
    two_hosts["node-a"].tool("nvidia-smi", SMI)
    two_hosts["node-b"].tool("nvidia-smi", SMI_BROKEN)
    done, text = init(two_hosts, "node-a", "node-b")
    assert done.returncode == 0, done
    assert "# gpus: nvidia-smi fails on node-b: NVIDIA-SMI has failed because it couldn't communicate" in text
    inventory = loaded(two_hosts)
    assert [len(node.gpus) for node in inventory.nodes] == [2, 0]
    assert inventory.rendezvous.backend == "gloo"


@pytest.mark.thorough
@pytest.mark.parametrize("gpus", [False, True])
def test_interfaces_with_different_names_are_named_node_by_node(two_hosts: Lab, gpus: bool) -> None:
    rename = "ip link set eth0 down; ip link set eth0 name ens5; ip link set ens5 up"
    two_hosts["node-b"].run(rename, "root")
    two_hosts.await_links(two_hosts["node-a"])
    for host in two_hosts if gpus else ():
        host.tool("nvidia-smi", SMI)
    done, text = init(two_hosts, "node-a", "node-b")
    assert done.returncode == 0, done
    inventory = loaded(two_hosts)
    assert inventory.network.interface == "eth0"
    wanted = {"GLOO_SOCKET_IFNAME": "ens5"} | ({"NCCL_SOCKET_IFNAME": "ens5"} if gpus else {})
    assert inventory.node("node-b").env == wanted, text
    clean(two_hosts)


def test_the_interface_is_the_one_between_the_nodes_and_the_others_are_mentioned(two_hosts: Lab) -> None:
    for number, host in enumerate(two_hosts, 1):
        host.run(
            "ip link add ib0 type veth peer name ib1; ip link set ib0 mtu 2044 up; ip link set ib1 up; "
            f"ip addr add 172.31.9.{number}/24 dev ib0; ip link add docker0 type bridge; "
            "ip addr add 172.17.0.1/16 dev docker0; ip link set docker0 up",
            "root",
        )
    done, text = init(two_hosts, "node-a", "node-b")
    assert done.returncode == 0, done
    inventory = loaded(two_hosts)
    assert inventory.network.interface == "eth0"
    assert [node.address for node in inventory.nodes] == [host.address for host in two_hosts]
    assert "# ib0 is up on every node as well (172.31.9.1, MTU 2044 on node-a)" in text
    assert "docker0" not in text


@pytest.mark.thorough
def test_a_host_that_knows_itself_only_as_127_0_1_1(two_hosts: Lab) -> None:
    for host in two_hosts:
        host.set_hosts(f"127.0.1.1 {host.name}")
    done, _ = init(two_hosts, "node-a", "node-b")
    assert done.returncode == 0, done
    assert [node.address for node in loaded(two_hosts).nodes] == [host.address for host in two_hosts]


@pytest.mark.thorough
def test_no_python_with_torch(two_hosts: Lab) -> None:
    two_hosts["node-b"].run("rm /opt/runbook-lab/venv/bin/python /opt/runbook-lab/venv/bin/python3", "root")
    done, text = init(two_hosts, "node-a", "node-b")
    assert done.returncode == 0, done
    assert "python: none with torch was found on node-b (asked " in text
    inventory = loaded(two_hosts)
    assert [node.python for node in inventory.nodes] == [two_hosts.python, "python3"]


@pytest.mark.thorough
def test_a_python_elsewhere_is_found_and_named_for_its_node(two_hosts: Lab) -> None:
    two_hosts["node-b"].run("mkdir -p /srv && mv /opt/runbook-lab/venv /home/rblab/miniconda3", "root")
    done, text = init(two_hosts, "node-a", "node-b")
    assert done.returncode == 0, done
    inventory = loaded(two_hosts)
    assert [node.python for node in inventory.nodes] == [two_hosts.python, "/home/rblab/miniconda3/bin/python"], text


def test_infiniband_ports_and_their_rate(two_hosts: Lab) -> None:
    two_hosts.fabric(["mlx5_0", "mlx5_1"], rate=200)
    for host in two_hosts:
        host.tool("nvidia-smi", SMI)
    done, text = init(two_hosts, "node-a", "node-b")
    assert done.returncode == 0, done
    infiniband = loaded(two_hosts).infiniband
    assert infiniband is not None, text
    assert (infiniband.hca, infiniband.min_rate_gbps) == ("=mlx5_0,mlx5_1", 200)
    clean(two_hosts)


@pytest.mark.thorough
def test_infiniband_that_the_job_would_not_use_is_a_comment(two_hosts: Lab) -> None:
    two_hosts.fabric({"node-a": ["mlx5_0"], "node-b": []}, rate=200)
    done, text = init(two_hosts, "node-a", "node-b")
    assert done.returncode == 0, done
    assert loaded(two_hosts).infiniband is None
    assert "#   node-a: mlx5_0:1 at 200 Gbit/s, InfiniBand; left out, as gloo does not use it" in text
    clean(two_hosts)


def test_an_unreachable_host_is_named_and_the_others_are_written(two_hosts: Lab) -> None:
    two_hosts["node-b"].stop_sshd(sessions=True)
    done, text = init(two_hosts, "node-a", "node-b")
    assert done.returncode == 3, done
    assert "node-b was not reached: ssh-refused" in done.stderr
    assert "fix       on node-b's console: `sudo systemctl enable --now ssh`" in done.stderr
    assert [node.name for node in loaded(two_hosts).nodes] == ["node-a"]
    assert "# node-b: {address: node-b}" in text
    clean(two_hosts)
    again = runbook_cli(two_hosts, "inventory", "init", "node-a", "node-b")
    assert (again.returncode, again.stdout) == (3, "")


def test_nobody_is_reached(two_hosts: Lab) -> None:
    for host in two_hosts:
        host.stop_sshd(sessions=True)
    done, text = init(two_hosts, "node-a", "node-b")
    assert (done.returncode, text) == (3, "")
    assert done.stderr.count("was not reached: ssh-refused") == 2


@pytest.mark.thorough
def test_host_keys_are_verified_unless_told_to_trust(two_hosts: Lab) -> None:
    two_hosts.forget(two_hosts["node-b"])
    done, _ = init(two_hosts, "node-a", "node-b")
    assert done.returncode == 3
    assert "node-b was not reached: ssh-host-key-unknown" in done.stderr
    done, _ = init(two_hosts, "node-a", "node-b", "--accept-new")
    assert done.returncode == 0, done
    assert two_hosts["node-b"].address in two_hosts.known_hosts.read_text()


@pytest.mark.thorough
def test_through_a_jump_host(two_hosts: Lab) -> None:
    node_b = two_hosts["node-b"]
    done, _ = init(two_hosts, node_b.address, "--jump", "node-a", "--user", two_hosts.user, "--key", str(two_hosts.key))
    assert done.returncode == 0, done
    (node,) = loaded(two_hosts).nodes
    assert (node.address, node.ssh.jump) == (node_b.address, "node-a")


def test_one_machine_by_two_names_is_one_node(two_hosts: Lab) -> None:
    done, text = init(two_hosts, "node-a", two_hosts["node-a"].address, "node-b")
    assert done.returncode == 0, done
    assert "is the same machine as node-a" in done.stderr
    assert [node.name for node in loaded(two_hosts).nodes] == ["node-a", "node-b"], text


@pytest.mark.thorough
def test_this_machine_is_a_node_too(two_hosts: Lab) -> None:
    done, text = init(two_hosts, "localhost", "node-a")
    assert done.returncode == 0, done
    first = loaded(two_hosts).nodes[0]
    assert (first.connection, first.address) == ("local", two_hosts.bridge_address), text


@pytest.mark.parametrize(
    "hosts", [["node-a", "node-a"], ["gn[4-1]"], ["http://node-a"], ["@node-a"], ["node-a:99999"], ["a b"], ["gn[1-2"]]
)
def test_what_is_no_host_is_told_before_anybody_is_asked(
    tmp_path: Path, hosts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    from runbook.cli.main import main

    assert main(["inventory", "init", *hosts, "--out", str(tmp_path / "x.yml")]) == 2
    assert "error[arguments.host]" in capsys.readouterr().err
    assert not (tmp_path / "x.yml").exists()


def test_a_file_that_is_there_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from runbook.cli.main import main

    there = tmp_path / "x.yml"
    there.write_text("mine")
    assert main(["inventory", "init", "localhost", "--out", str(there)]) == 2
    assert "--force" in capsys.readouterr().err
    assert there.read_text() == "mine"
