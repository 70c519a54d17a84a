"""Measures bandwidth and latency between pairs of ranks, and the memory bandwidth of single ranks. A part of `rank.py`,
pushed beside it: it imports none of our modules. Python 3.8.

Two measurements, each an order that every rank gets at the same time:
{"do": "measure", "pair": [one, other, seconds] or null, "trips": n, "both": bool}: both ranks of a pair get the same
order. First a few bytes go there and back n times, then many one way for about `seconds`, then the other way, and with
`both` both ways at once. Each rank reports what it received: {"event": "moved", "source", "destination", "gbytes",
"seconds", "waited", "losses", "both", "us"}: GB/s of one way alone, how long that took, how long one of the two ends
was kept from running meanwhile, the least share of TCP segments that was lost, GB/s while the other way was busy too,
and microseconds of one way for a few bytes. Values that cannot be known are null.
{"do": "measure", "alone": s}: every rank works in its own memory, and says {"event": "alone", "gbytes", "waited"}.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Waited = Callable[[], Callable[[], float]]

SUM_ELEMENTS = 1 << 22  # 16 MiB of float32: more than most caches hold
FIRST_TRANSFER_BYTES = 64 << 10  # how many the first transfer moves
MAX_MESSAGE_BYTES = 32 << 20  # the most in one message
GROWTH_LIMITS = (2.0, 16.0)  # the next transfer moves at least and at most this many times as many bytes
MIN_SEGMENTS = 200  # with fewer segments, a single lost one says nothing
MAX_BURST_SEGMENTS = 3  # how many segments of one burst of losses count
MAX_SEGMENT_BYTES = 64 << 10  # bytes
MIN_DURATION_SHARE = 0.4  # a transfer counts if it takes this part of the wanted seconds


def measure(worker: Any, order: dict[str, Any], say: Callable[..., None], waited: Waited) -> None:
    """Carries out one order. `waited()` gives a function that gives the seconds since then for which this process did
    not run."""
    worker.place.phase = "isolation"
    if "alone" in order:
        measure_memory_bandwidth(worker, order["alone"], say)
    else:
        measure_pair(worker, order, say, waited)
    worker.place.turn += 1
    worker.barrier()
    worker.step("done")
    worker.place.phase = "waiting for orders"


def measure_pair(worker: Any, order: dict[str, Any], say: Callable[..., None], waited: Waited) -> None:
    """Measures the pair of this rank, if the order has one."""
    worker.barrier()
    if not order["pair"]:
        return
    one, other, seconds = order["pair"]
    partner = other if worker.rank == one else one
    said = {"source": partner, "destination": worker.rank}
    one_way_latency_us(worker, one, partner, 2)  # opens the connection, which must not be part of a measurement
    if order.get("trips"):
        said["us"] = one_way_latency_us(worker, one, partner, order["trips"])
    totals = {}
    for source, destination in ((one, other), (other, one)):
        totals[source], moved = transfer_one_way(worker, source, destination, seconds, waited)
        said.update(moved)
    if order.get("both"):
        said["both"] = exchange_both_ways(worker, partner, min(totals.values()))
    say("moved", **said)


def one_way_latency_us(worker: Any, one: int, partner: int, trips: int) -> float:
    """The microseconds that a few bytes take one way: half of the median there and back."""
    word = worker.torch.zeros(1, dtype=worker.torch.float64, device=worker.device)
    times = []
    for _ in range(trips):
        worker.place.turn += 1
        begun = time.perf_counter()
        if worker.rank == one:
            worker.dist.send(word, partner)
            worker.dist.recv(word, partner)
        else:
            worker.dist.recv(word, partner)
            worker.dist.send(word, partner)
        worker.synchronize()
        times.append(time.perf_counter() - begun)
    return sorted(times)[len(times) // 2] / 2 * 1e6


def transfer_one_way(
    worker: Any, source: int, destination: int, seconds: float, waited: Waited
) -> tuple[int, dict[str, float | None]]:
    """Moves bytes one way, in transfers that grow until one lasts long enough. The receiver measures, and tells the
    sender how many bytes to send next; 0 ends it. Only the last transfer counts: by then TCP has found its pace. Gives
    that transfer's bytes and, on the receiver, its results."""
    following = worker.torch.zeros(2, dtype=worker.torch.float64, device=worker.device)
    total = FIRST_TRANSFER_BYTES
    while True:
        size = min(MAX_MESSAGE_BYTES, total)
        data = worker.torch.zeros(max(1, size // 4), dtype=worker.torch.float32, device=worker.device)
        turns = max(1, total // size)
        before = segments_and_recoveries() if worker.rank == source else None
        kept, begun = waited(), time.perf_counter()
        for _ in range(turns):
            worker.place.turn += 1
            if worker.rank == source:
                worker.dist.send(data, destination)
            else:
                worker.dist.recv(data, source)
        worker.synchronize()
        took, late = max(time.perf_counter() - begun, 1e-9), kept()
        moved = data.numel() * 4 * turns
        if worker.rank == source:
            worker.dist.recv(following, destination)
            total = int(following[0].item())
            if not total:
                following[0], following[1] = late, lost_segment_share(before, segments_and_recoveries(), moved)
                worker.dist.send(following, destination)
                return moved, {}
            continue
        growth = min(GROWTH_LIMITS[1], max(GROWTH_LIMITS[0], seconds / took))
        total = 0 if took >= MIN_DURATION_SHARE * seconds else int(moved * growth)
        following.fill_(float(total))
        worker.dist.send(following, source)
        if not total:
            worker.dist.recv(following, source)
            other, losses = following.tolist()
            said = {"gbytes": moved / took / 1e9, "seconds": took, "waited": max(late, other)}
            return moved, dict(said, losses=losses if losses >= 0 else None)


def segments_and_recoveries() -> tuple[int, int, int] | None:
    """How many TCP segments this node has sent, and sent again, and how often it began to send again (recoveries of
    RFC 6675); None if the kernel does not tell."""
    try:
        tcp, more = kernel_counters("/proc/net/snmp", "Tcp:"), kernel_counters("/proc/net/netstat", "TcpExt:")
        return tcp["OutSegs"], tcp["RetransSegs"], more["TCPSackRecovery"] + more["TCPRenoRecovery"]
    except (OSError, ValueError, KeyError):
        return None


def kernel_counters(path: str, head: str) -> dict[str, int]:
    """The kernel's counters in the two lines that begin with `head`: one of names, and one of numbers."""
    with open(path) as file:
        names, numbers = [line.split()[1:] for line in file if line.startswith(head)]
    return dict(zip(names, map(int, numbers)))


def lost_segment_share(before: tuple[int, ...] | None, after: tuple[int, ...] | None, moved: float) -> float:
    """The least share of lost segments among those sent meanwhile; -1 (a tensor has no null) if the kernel does not
    tell, or if so few segments cannot have carried `moved` bytes, because RDMA did.

    A full queue, which every shaper has, drops many segments at once while a transfer finds its pace; a bad link loses
    single ones again and again. So only the first few segments of each burst count.
    """
    if before is None or after is None:
        return -1.0
    sent, again, bursts = (later - earlier for earlier, later in zip(before, after))
    if sent < max(MIN_SEGMENTS, moved / MAX_SEGMENT_BYTES):
        return -1.0
    return min(1.0, max(0.0, min(again, MAX_BURST_SEGMENTS * bursts) / sent))


def exchange_both_ways(worker: Any, partner: int, total: int) -> float:
    """The GB/s that arrive while as many bytes leave."""
    dist = worker.dist
    size = min(MAX_MESSAGE_BYTES, total)
    out = worker.torch.zeros(max(1, size // 4), dtype=worker.torch.float32, device=worker.device)
    into = worker.torch.empty_like(out)
    turns = max(1, total // size)
    begun = time.perf_counter()
    for _ in range(turns):
        worker.place.turn += 1
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, out, partner), dist.P2POp(dist.irecv, into, partner)]
        ):
            work.wait()
    worker.synchronize()
    return float(out.numel()) * 4 * turns / max(time.perf_counter() - begun, 1e-9) / 1e9


def measure_memory_bandwidth(worker: Any, seconds: float, say: Callable[..., None]) -> None:
    """Reports the GB/s of adding one tensor to another (two reads and a write), and the share of the time for which
    this process's threads waited for a CPU."""
    torch = worker.torch
    one = torch.zeros(SUM_ELEMENTS, dtype=torch.float32, device=worker.device)
    other = torch.zeros_like(one)
    one.add_(other)
    worker.barrier()
    worker.synchronize()
    ran, waited = ran_and_waited_ns()
    begun = time.perf_counter()
    count = 0
    while time.perf_counter() - begun < seconds:
        worker.place.turn += 1
        for _ in range(4):
            one.add_(other)
        worker.synchronize()
        count += 4
    spent = time.perf_counter() - begun
    ran_later, waited_later = ran_and_waited_ns()
    busy = ran_later - ran + waited_later - waited
    say(
        "alone",
        rank=worker.rank,
        gbytes=3 * 4 * SUM_ELEMENTS * count / spent / 1e9,
        waited=(waited_later - waited) / busy if busy > 0 else 0.0,
    )


def ran_and_waited_ns() -> tuple[int, int]:
    """The nanoseconds for which the threads of this process ran, and for which they were ready and had no CPU."""
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
