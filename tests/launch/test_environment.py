"""What every rank is told in its environment, value by value."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runbook.launch.ranks import (
    hca_expression,
    socket_interface,
    socket_interfaces,
)
from runbook.model.inventory import EnvValue, Infiniband, Network
from runbook.model.secrets import Secret

from .inventories import cluster, environments, node

THREE = cluster(*(node(f"node-{letter}", f"10.0.0.{i}") for i, letter in enumerate("abc", 1)))


def test_what_torchrun_would_set_and_the_backend() -> None:
    inventory = cluster(node("node-a", gpus=(0,)), node("node-b", "10.0.0.2", gpus=(6, 2)), port=1234)
    common = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234", "WORLD_SIZE": "3", "RUNBOOK_BACKEND": "gloo"}
    here = {"LOCAL_WORLD_SIZE": "1", "NODE_RANK": "0", "GROUP_RANK": "0", "CUDA_VISIBLE_DEVICES": "0"}
    there = {"LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1", "GROUP_RANK": "1", "CUDA_VISIBLE_DEVICES": "2,6"}
    there["OMP_NUM_THREADS"] = "1"
    assert environments(inventory) == [
        {**common, **here, "RANK": "0", "LOCAL_RANK": "0"},
        {**common, **there, "RANK": "1", "LOCAL_RANK": "0"},
        {**common, **there, "RANK": "2", "LOCAL_RANK": "1"},
    ]


def test_no_gpu_is_hidden_from_a_cpu_rank_and_one_rank_keeps_its_threads() -> None:
    for environment in environments(THREE):
        assert environment["MASTER_ADDR"] == "10.0.0.1"
        assert not {"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"} & environment.keys()


def test_the_nodes_env_wins_over_the_inventorys_and_that_over_what_is_derived() -> None:
    one = node("node-a", env={"NCCL_SOCKET_IFNAME": "ens5", "B": "node"})
    inventory = cluster(
        one,
        node("node-b", "10.0.0.2"),
        network=Network("eth0"),
        infiniband=Infiniband("mlx5", 200),
        env={"B": "inventory", "NCCL_IB_HCA": "=mlx5_0", "C": "inventory"},
    )
    here, there = environments(inventory)
    assert (here["NCCL_SOCKET_IFNAME"], here["GLOO_SOCKET_IFNAME"], here["B"], here["C"]) == (
        "ens5",
        "eth0",
        "node",
        "inventory",
    )
    assert (there["NCCL_SOCKET_IFNAME"], there["B"], there["NCCL_IB_HCA"]) == ("eth0", "inventory", "=mlx5_0")
    assert (socket_interface(inventory, one), hca_expression(inventory, one)) == ("eth0", "=mlx5_0")
    assert socket_interfaces(inventory, one) == {"NCCL_SOCKET_IFNAME": "ens5", "GLOO_SOCKET_IFNAME": "eth0"}
    nccl = replace(inventory, rendezvous=replace(inventory.rendezvous, backend="nccl"))
    assert socket_interface(nccl, one) == "ens5"
    assert environments(nccl)[1]["RUNBOOK_BACKEND"] == "nccl"


@pytest.mark.parametrize("value", [Secret("eth0", "the environment"), ""])
def test_an_expression_that_is_secret_or_empty_is_none(value: EnvValue) -> None:
    one = node("node-a", env={"GLOO_SOCKET_IFNAME": value, "NCCL_IB_HCA": value})
    assert socket_interface(cluster(one), one) is None
    assert hca_expression(cluster(one), one) is None


def test_an_expression_that_is_absent_is_none() -> None:
    assert socket_interface(THREE, THREE.nodes[0]) is None
    assert hca_expression(THREE, THREE.nodes[0]) is None
