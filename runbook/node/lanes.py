"""What single ranks and pairs of ranks can do, when all of them together are too slow. Part of `rank.py`. Python 3.8.

Two measurements, each an order that every rank gets at the same time:
{"do": "measure", "lanes": [[from, to], ...], "seconds": s}: on every lane bytes go one way for about that long, all lanes
at once; no rank is on two. The receiver says {"event": "moved", "source", "destination", "gbytes"}, in GB/s.
{"do": "measure", "alone": s}: every rank works in its own memory, and says {"event": "alone", "gbytes", "waited"}.
"""

import os
import time

SUM_ELEMENTS = 1 << 22  # 16 MiB of float32: more than most caches hold
FIRST_BYTES = 64 << 10
MESSAGE_BYTES = 32 << 20
STEPS = (2.0, 16.0)  # the next attempt moves at least and at most this many times as much
LONG_ENOUGH = 0.4  # of the seconds wanted: then the attempt counts


def measure(worker, order, say):
    worker.place.phase = "isolation"
    if "alone" in order:
        alone(worker, order["alone"], say)
    else:
        move(worker, order, say)
    worker.place.turn += 1
    worker.barrier()
    worker.step("done")
    worker.place.phase = "waiting for orders"


def move(worker, order, say):
    """The lane of this rank, if it has one: attempts that grow until one lasts long enough. The receiver has the clock,
    and tells the sender how much to send next; 0 is the end. What it reached in the last attempt counts: by then the
    connection is open and TCP has found its pace."""
    mine = [lane for lane in order["lanes"] if worker.rank in lane]
    worker.barrier()
    if not mine:
        return
    source, destination = mine[0]
    total = FIRST_BYTES
    while total:
        size = min(MESSAGE_BYTES, total)
        data = worker.torch.zeros(max(1, size // 4), dtype=worker.torch.float32, device=worker.device)
        turns = max(1, total // size)
        following = worker.torch.zeros(1, dtype=worker.torch.float64, device=worker.device)
        if worker.rank == source:
            for _ in range(turns):
                worker.place.turn += 1
                worker.dist.send(data, destination)
            worker.dist.recv(following, destination)
            total = int(following.item())
            continue
        begun = time.perf_counter()
        for _ in range(turns):
            worker.place.turn += 1
            worker.dist.recv(data, source)
        worker.synchronize()
        seconds = max(time.perf_counter() - begun, 1e-9)
        moved = data.numel() * 4 * turns
        growth = min(STEPS[1], max(STEPS[0], order["seconds"] / seconds))
        total = 0 if seconds >= LONG_ENOUGH * order["seconds"] else int(moved * growth)
        following.fill_(float(total))
        worker.dist.send(following, source)
        if not total:
            say("moved", source=source, destination=destination, gbytes=moved / seconds / 1e9)


def alone(worker, seconds, say):
    """GB/s of adding one tensor to another, two reads and a write, and the share of time that its threads spent waiting
    for a CPU."""
    torch = worker.torch
    one = torch.zeros(SUM_ELEMENTS, dtype=torch.float32, device=worker.device)
    other = torch.zeros_like(one)
    one.add_(other)
    worker.barrier()
    worker.synchronize()
    ran, waited = scheduled()
    begun = time.perf_counter()
    count = 0
    while time.perf_counter() - begun < seconds:
        worker.place.turn += 1
        for _ in range(4):
            one.add_(other)
        worker.synchronize()
        count += 4
    spent = time.perf_counter() - begun
    ran_later, waited_later = scheduled()
    busy = ran_later - ran + waited_later - waited
    say(
        "alone",
        rank=worker.rank,
        gbytes=3 * 4 * SUM_ELEMENTS * count / spent / 1e9,
        waited=(waited_later - waited) / busy if busy > 0 else 0.0,
    )


def scheduled():
    """Nanoseconds that the threads of this process ran, and that they were ready to and had no CPU."""
    ran = waited = 0
    try:
        for thread in os.listdir("/proc/self/task"):
            with open("/proc/self/task/%s/schedstat" % thread) as file:
                words = file.read().split()
            ran += int(words[0])
            waited += int(words[1])
    except (OSError, ValueError, IndexError):
        pass
    return ran, waited
