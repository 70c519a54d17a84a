"""Who is which rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from runbook.launch.ranks import dialled_address, narrow_inventory, rank_layout
from runbook.model.inventory import Inventory

from .inventories import cluster, loaded, node


def table(inventory: Inventory) -> list[tuple[int, str, int, int, int | None]]:
    return [(r.rank, r.node, r.node_rank, r.local_rank, r.device) for r in rank_layout(inventory).ranks]


def test_nodes_may_differ_in_gpus() -> None:
    inventory = cluster(node("node-a", gpus=(0,)), node("node-b", gpus=(0, 1, 2)))
    assert table(inventory) == [
        (0, "node-a", 0, 0, 0),
        (1, "node-b", 1, 0, 0),
        (2, "node-b", 1, 1, 1),
        (3, "node-b", 1, 2, 2),
    ]


def test_devices_stand_in_numeric_order_however_they_are_listed() -> None:
    assert table(cluster(node("node-a", gpus=(10, 2, 0)))) == [
        (0, "node-a", 0, 0, 0),
        (1, "node-a", 0, 1, 2),
        (2, "node-a", 0, 2, 10),
    ]


def test_cpu_ranks() -> None:
    inventory = cluster(node("node-a", processes=2), node("node-b", gpus=(3,)))
    assert table(inventory) == [(0, "node-a", 0, 0, None), (1, "node-a", 0, 1, None), (2, "node-b", 1, 0, 3)]


def test_a_layout_has_every_rank_once_with_its_node() -> None:
    inventory = cluster(node("node-a", processes=2), node("node-b", gpus=(3,)), node("node-c", processes=3))
    by_node = rank_layout(inventory).by_node
    assert tuple(rank for node_ranks in by_node.values() for rank in node_ranks.ranks) == rank_layout(inventory).ranks
    assert [
        (name, node_ranks.node.name, node_ranks.node_rank, len(node_ranks.ranks))
        for name, node_ranks in by_node.items()
    ] == [
        ("node-a", "node-a", 0, 2),
        ("node-b", "node-b", 1, 1),
        ("node-c", "node-c", 2, 3),
    ]
    assert rank_layout(inventory).world_size == 6


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
    assert [r.node for r in rank_layout(loaded(tmp_path, text)).ranks] == names.split()


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
    with_master = narrow_inventory(THREE, [THREE.nodes[2], THREE.nodes[0]])
    assert [n.name for n in with_master.nodes] == ["node-a", "node-c"]
    assert with_master.rendezvous == THREE.rendezvous
    without = narrow_inventory(THREE, THREE.nodes[1:])
    assert (without.rendezvous.master, without.rendezvous.address) == ("node-b", "10.0.0.2")
    assert [r.node for r in rank_layout(without).ranks] == ["node-b", "node-c"]


def test_one_node_dials_itself_and_many_never_do() -> None:
    assert dialled_address(THREE.rendezvous, 1) == "127.0.0.1"
    assert dialled_address(THREE.rendezvous, 2) == "10.0.0.1"
    assert rank_layout(narrow_inventory(THREE, THREE.nodes[:1])).address == "127.0.0.1"
    assert rank_layout(THREE).address == "10.0.0.1"


def test_whether_ranks_meet_over_a_network() -> None:
    assert rank_layout(THREE).meets_over_network
    assert not rank_layout(narrow_inventory(THREE, THREE.nodes[:1])).meets_over_network
    here = cluster(node("a", "127.0.0.1", connection="local"), node("b", "127.0.0.2", connection="local"))
    assert not rank_layout(here).meets_over_network
