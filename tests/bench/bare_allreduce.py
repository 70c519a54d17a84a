"""What people write to try AllReduce by hand, started by torchrun: sizes, a warm-up, iterations, the bandwidth.

Argument, JSON: [[sizes in bytes, iterations], ...]. Rank 0 prints one JSON line a sweep: sizes, iterations and
microseconds of each. Nothing is verified. It runs on the hosts, so it imports nothing but torch.
"""

import json
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    dist.barrier()
    for sizes, iterations in json.loads(sys.argv[1]):
        microseconds = []
        for size in sizes:
            data = torch.ones(size // 4, dtype=torch.float32)
            dist.all_reduce(data)
            data.zero_()
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(iterations):
                dist.all_reduce(data)
            microseconds.append(round((time.perf_counter() - begun) / iterations * 1e6))
        dist.barrier()
        if dist.get_rank() == 0:
            told = {"sizes": sizes, "iterations": iterations, "microseconds": microseconds}
            print("sweep " + json.dumps(told), flush=True)
    dist.destroy_process_group()


main()
