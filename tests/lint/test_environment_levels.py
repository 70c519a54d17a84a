"""Levels and files: where a finding is shown, what a weaker level hides, what a launch brings in."""

from __future__ import annotations

from pathlib import Path

import pytest

from .environment_findings import TWO_GPU_NODES, findings, ids


def places(folder: Path, text: str, *, playbook: str | None = None) -> list[tuple[str, int, int]]:
    return [
        (finding.rule.id.removeprefix("env."), finding.span.line, finding.span.column)
        for finding in findings(folder, text, playbook=playbook)
    ]


def test_a_value_that_all_nodes_share_is_reported_once_where_it_stands(tmp_path: Path) -> None:
    text = """\
infiniband: {hca: mlx5}
defaults: {gpus: 8, env: {NCCL_IB_DISABLE: 1, NCCL_DEBUG: ERROR}}
nodes:
  "n[001-500]": {address: "10.0.[0-4].[1-100]"}
"""
    assert places(tmp_path, text) == [("infiniband-off", 2, 44), ("bad-choice", 2, 59)]


def test_an_aliased_block_is_reported_once(tmp_path: Path) -> None:
    text = """\
nodes:
  a: {address: 10.0.0.1, gpus: 8, env: &e {NCCL_DEBUG: ERROR}}
  b: {address: 10.0.0.2, gpus: 8, env: *e}
"""
    assert places(tmp_path, text) == [("bad-choice", 2, 56)]


def test_a_stronger_level_settles_a_contradiction(tmp_path: Path) -> None:
    text = """\
infiniband: {hca: mlx5}
env: {NCCL_IB_DISABLE: 1}
defaults: {gpus: 8, env: {NCCL_IB_DISABLE: 0}}
nodes: {a: {address: 10.0.0.1}, b: {address: 10.0.0.2}}
"""
    assert places(tmp_path, text) == []


def test_a_group_that_contradicts_names_its_nodes(tmp_path: Path) -> None:
    text = """\
env: {NCCL_MAX_CTAS: 8}
defaults: {gpus: 8}
groups: {fast: {nodes: "b:c", defaults: {env: {NCCL_MIN_CTAS: 16}}}}
nodes: {a: {address: 10.0.0.1}, b: {address: 10.0.0.2}, c: {address: 10.0.0.3}}
"""
    (finding,) = findings(tmp_path, text)
    assert (finding.span.line, finding.message[-19:]) == (
        3,
        "(on b and 1 more)"[-19:],
    ) or "b and 1 more" in finding.message


def test_a_secret_is_judged_by_its_name_alone(tmp_path: Path) -> None:
    text = "env: {NCCL_IB_TIMEOUT: {env: T}, NCCL_TIMEOUT: {env: U}, NCCL_IB_DISABLE: {env: V}}\n" + TWO_GPU_NODES
    assert places(tmp_path, text) == [("never-existed", 1, 34)]


@pytest.mark.parametrize("value", ["true", '"true"', "'TRUE'", "True"])
def test_a_typed_value_is_judged_by_its_text(value: str, tmp_path: Path) -> None:
    assert ids(findings(tmp_path, f"env: {{NCCL_IB_DISABLE: {value}}}\n{TWO_GPU_NODES}")) == ["not-a-switch"]


def test_values_that_are_wrong_already_are_not_judged_again(tmp_path: Path) -> None:
    text = 'env: {NCCL_DEBUG: [ERROR], NCCL_NET: null, NCCL_IB_TC: "a\\nb"}\n' + TWO_GPU_NODES
    assert ids(findings(tmp_path, text)) == []


def test_gpus_that_are_wrong_are_not_compared(tmp_path: Path) -> None:
    text = 'env: {CUDA_VISIBLE_DEVICES: "0,1"}\nnodes: {a: {address: 10.0.0.1, gpus: [0, x]}}\n'
    assert "visible-devices" not in ids(findings(tmp_path, text))


@pytest.mark.parametrize(
    ("gpus", "visible", "agree"),
    [
        ("2", "0,1", True),
        ("2", "1, 0", True),
        ("[4, 6]", "4,6", True),
        ("[4, 6]", "0,1", False),
        ("2", "GPU-8932f937,GPU-ab12", True),
        ("2", "MIG-1", False),
        ("1", "all", False),
        ("2", "0,-1,1", False),
        ("2", "-1", False),
        ("0", "-1", True),
        ("0", "", True),
        ("0", "0", False),
    ],
)
def test_visible_devices_against_gpus(gpus: str, visible: str, agree: bool, tmp_path: Path) -> None:
    text = f"env: {{CUDA_VISIBLE_DEVICES: '{visible}'}}\nnodes: {{a: {{address: 10.0.0.1, gpus: {gpus}}}}}\n"
    assert ids(findings(tmp_path, text)) == ([] if agree else ["visible-devices"])


@pytest.mark.parametrize(
    ("interface", "variable", "expected"),
    [
        ("eth0", "eth0", []),
        ("eth0", "eth", []),
        ("eth0", "=eth0", []),
        ("eth0", "^docker,lo", []),
        ("eth0", "ens5", ["interface-conflict"]),
        ("eth0", "=eth", ["interface-conflict"]),
        ("eth0", "^eth", ["interface-conflict"]),
        ("eth0", "", []),
    ],
)
def test_an_interface_for_all_against_the_networks(
    interface: str, variable: str, expected: list[str], tmp_path: Path
) -> None:
    text = f"network: {{interface: {interface}}}\nenv: {{NCCL_SOCKET_IFNAME: '{variable}'}}\n{TWO_GPU_NODES}"
    assert ids(findings(tmp_path, text)) == expected


def test_adapters_for_all_against_those_of_the_block(tmp_path: Path) -> None:
    text = "infiniband: {hca: mlx5}\nenv: {NCCL_IB_HCA: =mlx5_0}\n" + TWO_GPU_NODES
    assert places(tmp_path, text) == [("interface-conflict", 2, 20)]
    assert places(tmp_path, text.replace("=mlx5_0", "mlx5")) == []


def test_a_template_is_not_judged_before_it_is_filled_in(tmp_path: Path) -> None:
    assert ids(findings(tmp_path, 'env: {NCCL_DEBUG: "{{ level }}"}\n' + TWO_GPU_NODES)) == []


def test_one_machine_may_use_its_loopback(tmp_path: Path) -> None:
    text = "network: {interface: lo}\nnodes: {a: {address: 127.0.0.1, connection: local, gpus: 8}}\n"
    assert ids(findings(tmp_path, text)) == []


def test_an_nccl_selection_is_fine_where_gloo_has_its_own(tmp_path: Path) -> None:
    text = "network: {interface: ^docker0}\nenv: {GLOO_SOCKET_IFNAME: eth0}\n" + TWO_GPU_NODES
    assert "gloo-selector" not in ids(findings(tmp_path, text))


LAUNCH = """\
inventory: inventory.yml
stages:
  - {{name: train, launch: {{command: [python3, t.py], env: {{{env}}}}}}}
"""


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ("NCCL_DEBUG: ERROR", [("bad-choice", 3, 72)]),
        ('NCCL_DEBUG: "{{ level }}"', []),
        ('NCCL_TIMEOUT: "{{ level }}"', [("never-existed", 3, 60)]),
        ("NCCL_IB_DISABLE: 1", [("infiniband-off", 3, 77)]),
        ('NCCL_IB_DISABLE: "{{ off }}"', []),
        ("CUDA_VISIBLE_DEVICES: 0", [("visible-devices", 3, 82)]),
        ("NCCL_SOCKET_IFNAME: ens9", [("interface-conflict", 3, 80)]),
        ("GLOO_SOCKET_IFNAME: lo", [("virtual-interface", 3, 80)]),
        ("RANK: 0", [("set-by-runbook", 3, 60)]),
        ("NCCL_MIN_CTAS: 4", []),
    ],
)
def test_what_a_launch_brings_in(env: str, expected: list[tuple[str, int, int]], tmp_path: Path) -> None:
    inventory = "network: {interface: eth0}\ninfiniband: {hca: mlx5}\nenv: {NCCL_MAX_CTAS: 8}\n" + TWO_GPU_NODES
    assert places(tmp_path, inventory, playbook=LAUNCH.format(env=env)) == expected


def test_a_launch_is_not_blamed_for_the_inventory(tmp_path: Path) -> None:
    inventory = "infiniband: {hca: mlx5}\nenv: {NCCL_IB_DISABLE: 1}\n" + TWO_GPU_NODES
    playbook = LAUNCH.format(env="NCCL_DEBUG: WARN")
    assert places(tmp_path, inventory, playbook=playbook) == []


def test_a_launch_that_settles_what_the_inventory_contradicts(tmp_path: Path) -> None:
    inventory = "infiniband: {hca: mlx5}\nenv: {NCCL_IB_DISABLE: 1}\n" + TWO_GPU_NODES
    playbook = LAUNCH.format(env="NCCL_IB_DISABLE: 0")
    assert places(tmp_path, inventory, playbook=playbook) == []
