"""Do the ranks of a job meet? Each says how far it comes, and rank 0 who is missing. For machines on which stages do
not run, such as Windows ones, and for whoever wants to see it.

sh launch.sh python try_connection.py    on every node, in the folder that `runbook render` made for it (or launch.bat)
python examples/try_connection.py        one process: is torch there, and does it add up

It ends with 0 when every rank has the right sums, otherwise with 1 and a sentence; no wait takes longer than
--patience and ten seconds."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

GRACE = timedelta(seconds=10)
"""How much longer than rank 0 the others wait for its word, which a busy machine delays."""


def main() -> None:
    options = parse()
    host, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    backend = os.environ.get("RUNBOOK_BACKEND", "nccl" if torch.cuda.is_available() else "gloo")
    say(f"one of {WORLD}, local rank {local_rank} on {socket.gethostname()}, torch {torch.__version__}, {backend}")
    say(f"the master is {host}:{port}")
    patience = timedelta(seconds=options.patience)
    ends = time.monotonic() + options.patience
    if RANK > 0:
        dial(host, port, ends)
    try:
        store = dist.TCPStore(host, port, WORLD, RANK == 0, patience, wait_for_workers=False, **without_libuv())
        everybody_comes(store, patience, ends)
        device = torch.device("cuda", local_rank) if backend == "nccl" else torch.device("cpu")
        if backend == "nccl":
            torch.cuda.set_device(device)
        dist.init_process_group(backend, store=store, rank=RANK, world_size=WORLD, timeout=patience)
        for size in (1 << 10, 1 << 20, options.mib << 20):
            add_up(size, device)
        dist.destroy_process_group()
    except RuntimeError as error:  # torch's own errors are of this kind
        fail(str(error).split("\n")[0])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patience", type=int, default=60, help="seconds to wait for the others, and for each sum")
    parser.add_argument("--mib", type=int, default=16, help="the largest sum")
    return parser.parse_args()


def dial(host: str, port: int, ends: float) -> None:
    """Until the master's port opens; says what prevents it whenever that changes."""
    said = ""
    while True:
        try:
            socket.create_connection((host, port), 2).close()
        except socket.gaierror:
            reason = "the name does not resolve here"
        except ConnectionRefusedError:
            reason = "refused: nobody listens there yet"
        except socket.timeout:  # noqa: UP041 - which is no TimeoutError before Python 3.10
            reason = "no answer: a firewall drops it, or nobody has that address"
        except OSError as error:
            reason = str(error)
        else:
            return
        if reason != said:
            say(f"dials {host}:{port}: {reason}")
            said = reason
        if time.monotonic() > ends:
            fail(f"could not reach {host}:{port} in time: {reason}")
        time.sleep(0.2)


def without_libuv() -> dict[str, bool]:
    """PyTorch's official wheels for Windows come without libuv, which the store would take by default."""
    known = "use_libuv" in (dist.TCPStore.__init__.__doc__ or "")
    return {"use_libuv": False} if os.name == "nt" and known else {}


def everybody_comes(store: dist.TCPStore, patience: timedelta, ends: float) -> None:
    """Rank 0 waits for all and tells them when they are complete; the others wait for its word."""
    store.set(f"here/{RANK}", socket.gethostname())
    if RANK > 0:
        store.wait(["complete"], patience + GRACE)
        if store.get("complete") != b"yes":
            fail("rank 0 says that not all came")
        return
    said: list[int] = []
    while missing := [rank for rank in range(WORLD) if not store.check([f"here/{rank}"])]:
        if missing != said:
            say(f"waits for {numbers(missing)}")
            said = missing
        if time.monotonic() > ends:
            store.set("complete", "no")
            time.sleep(1)  # those who came have to hear it before this store is gone
            fail(f"{numbers(missing)} never came")
        time.sleep(0.2)
    store.set("complete", "yes")
    hosts = ", ".join(f"{rank} on {store.get(f'here/{rank}').decode()}" for rank in range(WORLD))
    say(f"all {WORLD} have come: {hosts}")


def add_up(size: int, device: torch.device) -> None:
    """An AllReduce of `size` bytes, every element of which is compared."""
    data = torch.full((max(1, size // 4),), RANK + 1.0, device=device)
    begun = time.perf_counter()
    dist.all_reduce(data)
    wrong = int((data != WORLD * (WORLD + 1) / 2).sum())  # which also waits for a GPU
    took = time.perf_counter() - begun
    if wrong:
        fail(f"{wrong} of {data.numel()} elements of a sum are wrong")
    say(f"the sum of {size >> 10} KiB is right, {took * 1000:.1f} ms")


def numbers(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def say(text: str) -> None:
    print(f"rank {RANK}: {text}", flush=True)


def fail(text: str) -> NoReturn:
    say(f"FAILED: {text}")
    sys.stdout.flush()
    os._exit(1)  # without the orderly end of a group that has failed, which can wait


if __name__ == "__main__":
    main()
