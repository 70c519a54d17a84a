"""Who is which rank, and what each is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from runbook.launch.environment import hca_expression, node_environment, rank_environment, socket_interface
from runbook.launch.ranks import dialled_address, narrow, rank_table
from runbook.load.inventory import load_inventory
from runbook.model.inventory import Infiniband, Inventory, Network
from runbook.model.secret import Secret

from .world import cluster, node


def table(inventory: Inventory) -> list[tuple[int, str, int, int, int | None]]:
    return [(r.rank, r.node, r.node_rank, r.local_rank, r.device) for r in rank_table(inventory)]


def test_nodes_may_differ_in_gpus() -> None:
    inventory = cluster(node("node-a", gpus=(0,)), node("node-b", gpus=(0, 1, 2)))
    assert table(inventory) == [
        (0, "node-a", 0, 0, 0),
        (1, "node-b", 1, 0, 0),
        (2, "node-b", 1, 1, 1),
        (3, "node-b", 1, 2, 2),
    ]
    assert {(r.node, r.local_world_size, r.world_size) for r in rank_table(inventory)} == {
        ("node-a", 1, 4),
        ("node-b", 3, 4),
    }


def test_devices_stand_in_numeric_order_however_they_are_listed() -> None:
    assert table(cluster(node("node-a", gpus=(10, 2, 0)))) == [
        (0, "node-a", 0, 0, 0),
        (1, "node-a", 0, 1, 2),
        (2, "node-a", 0, 2, 10),
    ]


def test_cpu_ranks() -> None:
    inventory = cluster(node("node-a", processes=2), node("node-b", gpus=(3,)))
    assert table(inventory) == [(0, "node-a", 0, 0, None), (1, "node-a", 0, 1, None), (2, "node-b", 1, 0, 3)]


def loaded(folder: Path, text: str) -> Inventory:
    file = folder / "inventory.yml"
    file.write_text(dedent(text))
    return load_inventory(file, environ={})


@pytest.mark.parametrize(
    ("order", "names"),
    [("inventory", "gn6-3 gn6-10 gn6-2"), ("name", "gn6-3 gn6-2 gn6-10")],
)
def test_the_master_is_first_and_numbers_are_numbers(tmp_path: Path, order: str, names: str) -> None:
    text = f"""
        order: {order}
        rendezvous: {{master: gn6-3}}
        nodes:
          gn6-10: {{address: 10.0.0.10}}
          gn6-2: {{address: 10.0.0.2}}
          gn6-3: {{address: 10.0.0.3}}
    """
    assert [r.node for r in rank_table(loaded(tmp_path, text))] == names.split()


def test_an_inventory_file_to_ranks(tmp_path: Path) -> None:
    text = """
        nodes:
          node-a: {address: 10.0.0.1, gpus: 1}
          node-b: {address: 10.0.0.2, gpus: [5, 1, 3]}
    """
    assert [(n, d) for _, n, _, _, d in table(loaded(tmp_path, text))] == [
        ("node-a", 0),
        ("node-b", 1),
        ("node-b", 3),
        ("node-b", 5),
    ]


THREE = cluster(*(node(f"node-{letter}", f"10.0.0.{i}") for i, letter in enumerate("abc", 1)))


def test_a_narrowed_cluster_keeps_its_master_or_makes_the_first_one_lead() -> None:
    with_master = narrow(THREE, [THREE.nodes[2], THREE.nodes[0]])
    assert [n.name for n in with_master.nodes] == ["node-a", "node-c"]
    assert with_master.rendezvous == THREE.rendezvous
    without = narrow(THREE, THREE.nodes[1:])
    assert (without.rendezvous.master, without.rendezvous.address) == ("node-b", "10.0.0.2")
    assert [r.node for r in rank_table(without)] == ["node-b", "node-c"]


def test_one_node_dials_itself_and_many_never_do() -> None:
    assert dialled_address(THREE.rendezvous, 1) == "127.0.0.1"
    assert dialled_address(THREE.rendezvous, 2) == "10.0.0.1"
    assert node_environment(narrow(THREE, THREE.nodes[:1]), THREE.nodes[0])["MASTER_ADDR"] == "127.0.0.1"
    assert {node_environment(THREE, n)["MASTER_ADDR"] for n in THREE.nodes} == {"10.0.0.1"}


def test_what_torchrun_would_set() -> None:
    inventory = cluster(node("node-a", gpus=(0,)), node("node-b", "10.0.0.2", gpus=(6, 2)), port=1234)
    assert node_environment(inventory, inventory.nodes[1]) == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "1234",
        "WORLD_SIZE": "3",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "GROUP_RANK": "1",
        "CUDA_VISIBLE_DEVICES": "2,6",
        "OMP_NUM_THREADS": "1",
    }
    assert [rank_environment(r) for r in rank_table(inventory)] == [
        {"RANK": "0", "LOCAL_RANK": "0"},
        {"RANK": "1", "LOCAL_RANK": "0"},
        {"RANK": "2", "LOCAL_RANK": "1"},
    ]


def test_no_gpu_is_hidden_from_a_cpu_rank_and_one_rank_keeps_its_threads() -> None:
    environment = node_environment(THREE, THREE.nodes[0])
    assert "CUDA_VISIBLE_DEVICES" not in environment
    assert "OMP_NUM_THREADS" not in environment


def test_the_nodes_env_wins_over_the_inventorys_and_that_over_what_is_derived() -> None:
    one = node("node-a", env={"NCCL_SOCKET_IFNAME": "ens5", "B": "node"})
    inventory = cluster(
        one,
        node("node-b", "10.0.0.2"),
        network=Network("eth0"),
        infiniband=Infiniband("mlx5", 200),
        env={"B": "inventory", "NCCL_IB_HCA": "=mlx5_0", "C": "inventory"},
    )
    here, there = (node_environment(inventory, n) for n in inventory.nodes)
    assert (here["NCCL_SOCKET_IFNAME"], here["GLOO_SOCKET_IFNAME"], here["B"], here["C"]) == (
        "ens5",
        "eth0",
        "node",
        "inventory",
    )
    assert (there["NCCL_SOCKET_IFNAME"], there["B"], there["NCCL_IB_HCA"]) == ("eth0", "inventory", "=mlx5_0")
    assert (socket_interface(inventory, one), hca_expression(inventory, one)) == ("eth0", "=mlx5_0")
    nccl = replace(inventory, rendezvous=replace(inventory.rendezvous, backend="nccl"))
    assert socket_interface(nccl, one) == "ens5"


def test_an_expression_that_is_secret_empty_or_absent_is_none() -> None:
    for value in (Secret("eth0", "the environment"), ""):
        one = node("node-a", env={"GLOO_SOCKET_IFNAME": value, "NCCL_IB_HCA": value})
        assert socket_interface(cluster(one), one) is None
        assert hca_expression(cluster(one), one) is None
    assert socket_interface(THREE, THREE.nodes[0]) is None
