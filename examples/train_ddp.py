"""A small real training: DDP over gloo or nccl, one process a rank, with checkpoints from which it goes on.

runbook run playbooks/train_two_node.yml     every rank of the inventory
python examples/train_ddp.py --steps 40      one process, no launcher

The same data, model and order on any number of ranks: with --batch a multiple of the world size the loss of every step
is that of one process, up to rounding."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 32


def main() -> None:
    options = parse()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if world > 1:
        if cuda:
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(options.seed)
    model: nn.Module = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    begin = restore(options.checkpoint, model, optimiser)
    ranks = DistributedDataParallel(model, [device] if cuda else None) if world > 1 else model
    if begin:
        say(rank, f"goes on from step {begin}")
    for step in range(begin, options.steps):
        inputs, targets = batch(step, options.batch, options.seed)
        mine = slice(rank * options.batch // world, (rank + 1) * options.batch // world)
        loss = nn.functional.mse_loss(ranks(inputs[mine].to(device)), targets[mine].to(device))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        total = loss.detach().clone()
        if world > 1:
            dist.all_reduce(total)
        say(rank, f"step {step} loss {total.item() / world:.6f}")
        if rank == 0 and options.checkpoint and (step + 1) % options.every == 0:
            save(options.checkpoint, step + 1, model, optimiser)
        time.sleep(options.pause)
    if world > 1:
        dist.destroy_process_group()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=48, help="of all ranks together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, help="a file that every node can read; it goes on from there")
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step, to look at a run")
    return parser.parse_args()


def batch(step: int, size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The inputs (size, WIDTH) and targets (size, 1) of a step, the same on every rank."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    inputs = torch.randn(size, WIDTH, generator=generator)
    return inputs, inputs[:, :4].sum(dim=1, keepdim=True).sin()


def restore(path: Path | None, model: nn.Module, optimiser: torch.optim.Optimizer) -> int:
    """The step to go on from: 0 without a checkpoint."""
    if path is None or not path.is_file():
        return 0
    kept = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(kept["model"])
    optimiser.load_state_dict(kept["optimiser"])
    return int(kept["step"])


def save(path: Path, step: int, model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    """Whole or not at all: a rank that is killed while writing leaves the last one."""
    partial = path.with_name(f"{path.name}.partial")
    torch.save({"step": step, "model": model.state_dict(), "optimiser": optimiser.state_dict()}, partial)
    partial.replace(path)


def say(rank: int, text: str) -> None:
    if rank == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
