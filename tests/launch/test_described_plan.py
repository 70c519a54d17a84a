"""What a run tells of its plan at its start: ranks and environment, and no secret."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from runbook.files.inventory import load_inventory
from runbook.files.yaml_document import parse_document
from runbook.launch.ranks import describe_nodes, narrow_inventory

INVENTORY = """\
name: pair
env: {NCCL_DEBUG: INFO, WANDB_API_KEY: plaintextkey, HF_TOKEN: {env: SECRET_OF_TEST}}
nodes:
  node-a: {address: 10.0.0.1, gpus: 2}
  node-b: {address: 10.0.0.2, gpus: [0, 3], rack: r1, env: {NCCL_DEBUG: WARN}}
"""


def told(text: str = INVENTORY) -> Any:
    return describe_nodes(load_inventory(parse_document(text, "pair.yml"))[0])


def test_ranks_devices_and_environment_of_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_TEST", "very-secret-value")
    plan = told()
    assert (plan["master"], plan["world_size"], plan["backend"]) == ("node-a", 4, "nccl")
    one, other = plan["nodes"]
    assert (one["first_rank"], one["ranks"], one["devices"]) == (0, 2, [0, 1])
    assert (other["first_rank"], other["ranks"], other["devices"], other["rack"]) == (2, 2, [0, 3], "r1")
    assert one["env"] == {
        "NODE_RANK": "0",
        "GROUP_RANK": "0",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "NCCL_DEBUG": "INFO",
    }
    assert plan["env"]["MASTER_ADDR"] == "10.0.0.1"


def test_no_secret_is_in_it_neither_one_that_says_so_nor_one_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_TEST", "very-secret-value")
    text = json.dumps(told())
    assert "very-secret-value" not in text
    assert "plaintextkey" not in text
    assert text.count('"***"') == 2


def test_a_spare_is_there_and_has_no_ranks() -> None:
    inventory = load_inventory(parse_document(INVENTORY.replace(", HF_TOKEN: {env: SECRET_OF_TEST}", ""), "pair.yml"))[
        0
    ]
    plan = describe_nodes(narrow_inventory(inventory, inventory.nodes[:1]), spares=inventory.nodes[1:])
    assert plan["world_size"] == 2
    first, spare = cast("list[dict[str, object]]", plan["nodes"])
    assert (first["name"], first["ranks"]) == ("node-a", 2)
    assert (spare["name"], spare["ranks"], spare["env"], spare["rack"]) == ("node-b", 0, {}, "r1")
