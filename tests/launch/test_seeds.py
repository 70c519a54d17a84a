"""What people were told to do by hand, and what a file and one command make of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from runbook.files.inventory import load_inventory
from runbook.files.playbook import load_playbook
from runbook.files.shipped_files import shipped_path
from runbook.launch.job import make_job
from runbook.launch.launchers import launch_spec
from runbook.launch.ranks import rank_layout
from runbook.model.inventory import Inventory

from .inventories import environments, loaded


def numbers(inventory: Inventory) -> list[tuple[str, int, int, int]]:
    """Worker, RANK, LOCAL_RANK, NODE_RANK: the columns of seed 003's tables."""
    return [(f"{r.node}-{r.local_rank}", r.rank, r.local_rank, r.node_rank) for r in rank_layout(inventory).ranks]


FOUR_NODES = """
    order: ORDER
    rendezvous: {master: gn6, port: 29500}
    nodes:
      gn39: {address: 10.0.0.39, gpus: 1}
      gn40: {address: 10.0.0.40, gpus: 1}
      gn6: {address: 10.0.0.6, gpus: 1}
      gn7: {address: 10.0.0.7, gpus: 1}
"""


def test_seed_003_four_workers_on_four_nodes(tmp_path: Path) -> None:
    """Its table, which lists the nodes by their letters: here that is the order of the file."""
    inventory = loaded(tmp_path, FOUR_NODES.replace("ORDER", "inventory"))
    assert numbers(inventory) == [("gn6-0", 0, 0, 0), ("gn39-0", 1, 0, 1), ("gn40-0", 2, 0, 2), ("gn7-0", 3, 0, 3)]
    for rank, environment in enumerate(environments(inventory)):
        assert environment == {
            "MASTER_ADDR": "10.0.0.6",
            "MASTER_PORT": "29500",
            "WORLD_SIZE": "4",
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "NODE_RANK": str(rank),
            "GROUP_RANK": str(rank),
            "CUDA_VISIBLE_DEVICES": "0",
            "RUNBOOK_BACKEND": "nccl",
        }


def test_seed_003_with_the_nodes_by_name_reads_numbers_as_numbers(tmp_path: Path) -> None:
    inventory = loaded(tmp_path, FOUR_NODES.replace("ORDER", "name"))
    assert [worker for worker, *_ in numbers(inventory)] == ["gn6-0", "gn7-0", "gn39-0", "gn40-0"]


@pytest.mark.parametrize("order", ["inventory", "name"])
def test_seed_003_two_workers_on_each_of_two_nodes(order: str, tmp_path: Path) -> None:
    text = f"""
        order: {order}
        nodes:
          gn6: {{address: 10.0.0.6, gpus: 2}}
          gn7: {{address: 10.0.0.7, gpus: 2}}
    """
    assert numbers(loaded(tmp_path, text)) == [
        ("gn6-0", 0, 0, 0),
        ("gn6-1", 1, 1, 0),
        ("gn7-0", 2, 0, 1),
        ("gn7-1", 3, 1, 1),
    ]


@pytest.mark.parametrize(
    ("gpus", "local_ranks"),
    [(("[0, 1]", "[0, 1]"), (0, 1, 0, 1)), (("[0]", "[0, 1, 2]"), (0, 0, 1, 2))],
    ids=["two and two", "one and three"],
)
def test_seed_001_four_processes_on_two_nodes(
    gpus: tuple[str, str], local_ranks: tuple[int, ...], tmp_path: Path
) -> None:
    """`launch_multi_node….sh 10.10.1.16 29500 0 0,1 4 0` and `… 1 0,1 4 2`: nobody counts a first rank any more."""
    text = f"""
        rendezvous: {{port: 29500}}
        nodes:
          node-0: {{address: 10.10.1.16, gpus: {gpus[0]}}}
          node-1: {{address: 10.10.1.17, gpus: {gpus[1]}}}
    """
    found = environments(loaded(tmp_path, text))
    on_first = local_ranks.index(0, 1)
    assert [environment["RANK"] for environment in found] == ["0", "1", "2", "3"]
    assert [environment["LOCAL_RANK"] for environment in found] == [str(number) for number in local_ranks]
    assert {(e["MASTER_ADDR"], e["MASTER_PORT"], e["WORLD_SIZE"]) for e in found} == {("10.10.1.16", "29500", "4")}
    assert [environment["NODE_RANK"] for environment in found] == ["0"] * on_first + ["1"] * (4 - on_first)
    devices = [given.strip("[]").replace(" ", "") for given in gpus]
    assert [e["CUDA_VISIBLE_DEVICES"] for e in found] == [devices[0]] * on_first + [devices[1]] * (4 - on_first)


WINDOWS = "defaults: {shell: SHELL}\nnodes:\n  chensong: {address: 10.0.0.7}\n"


@pytest.mark.parametrize("shell", ["sh", "bat", "ps1"])
def test_seed_000_one_node_dials_itself_whatever_its_name(shell: str, tmp_path: Path) -> None:
    for text in (WINDOWS, WINDOWS.replace("10.0.0.7", "chensong"), WINDOWS.replace("{address: 10.0.0.7}", "{}")):
        inventory = loaded(tmp_path, text.replace("SHELL", shell))
        (environment,) = environments(inventory)
        assert environment["MASTER_ADDR"] == "127.0.0.1"


@pytest.mark.parametrize("shell", ["sh", "bat", "ps1"])
def test_seed_000_many_nodes_never_dial_localhost(shell: str, tmp_path: Path) -> None:
    """Its program rewrote MASTER_ADDR to localhost on every Windows machine: then each waits for itself."""
    inventory = loaded(tmp_path, WINDOWS.replace("SHELL", shell) + "  second: {address: 10.0.0.8}\n")
    assert [environment["MASTER_ADDR"] for environment in environments(inventory)] == ["10.0.0.7", "10.0.0.7"]
    by_node = rank_layout(inventory)
    for node_ranks in by_node.by_node.values():
        spec = launch_spec(by_node, node_ranks, None, name="launch", made_from=())
        assert spec.guards is not None
        assert (spec.guards.address, spec.guards.several_nodes) == ("10.0.0.7", True)
        assert spec.guards.port == (29500 if node_ranks.node_rank == 0 else None)


CHINESE_CLIP = """
    cn_clip/training/main.py
    --train-data=datapath/datasets/MUGE/lmdb/train
    --val-data=datapath/datasets/MUGE/lmdb/valid
    --num-workers=4
    --valid-num-workers=4
    --resume=datapath/pretrained_weights/clip_cn_vit-b-16.pt
    --reset-data-offset
    --reset-optimizer
    --logs=datapath/experiments/
    --name=muge_finetune_vit-b-16_roberta-base_bs48_1gpu
    --save-step-frequency=999999
    --save-epoch-frequency=1
    --log-interval=10
    --report-training-batch-acc
    --context-length=52
    --warmup=100
    --batch-size=48
    --valid-batch-size=48
    --valid-step-interval=1000
    --valid-epoch-interval=1
    --lr=3e-06
    --wd=0.001
    --max-epochs=1
    --vision-model=ViT-B-16
    --use-augment
    --grad-checkpointing
    --text-model=RoBERTa-wwm-ext-base-chinese
"""


@pytest.mark.parametrize(
    ("name", "shell", "backend"), [("windows_single_gpu", "bat", "gloo"), ("linux_single_gpu", "sh", "nccl")]
)
def test_seed_002_a_complete_training_on_one_gpu(name: str, shell: str, backend: str) -> None:
    inventory, _ = load_inventory(shipped_path("inventories", f"{name}.yml"), environ={})
    playbook = load_playbook(shipped_path("playbooks", "train_single_gpu.yml"), environ={})
    (stage,) = playbook.stages
    by_node = rank_layout(inventory)
    job = make_job(stage, by_node, {}, playbook.vars)
    (node_ranks,) = by_node.by_node.values()
    spec = launch_spec(by_node, node_ranks, job, name="launch", made_from=())
    assert (node_ranks.node.shell, job.launch.launcher) == (shell, "direct")
    assert (spec.command or ())[1:] == tuple(CHINESE_CLIP.split())
    (process,) = spec.processes
    expected = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "8514",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "NODE_RANK": "0",
        "GROUP_RANK": "0",
        "CUDA_VISIBLE_DEVICES": "0",
        "RUNBOOK_BACKEND": backend,
        "PYTHONPATH": ".",
    }
    if shell == "bat":
        expected["USE_LIBUV"] = "0"
        assert spec.activate == "conda activate stable-diffusion-webui"
    assert {**spec.environment, **process.environment} == expected
