"""One rank of the connection and AllReduce tests, on torch.distributed (2.0 or newer). Python 3.8.

It is started by a launch script like the one of a training, reports every step that it reaches, and takes orders as
JSON lines on stdin: {"do": "join"}, {"do": "allreduce", ...}. When stdin ends, the process ends.

Its messages: {"event": "step", "step": ...} for each step, {"event": "beat", ...} twice a second from a thread of its
own (so that silence means stopped, not busy), {"event": "row", ...} for a finished size, {"event": "failed", ...}.

Files beside it show why it hangs or died: stack-RANK.txt has its stack at SIGUSR1 and at a crash, flight-RANK.json its
last collectives by torch's Flight Recorder, written at {"do": "flight"} and at a failure.
"""

from __future__ import annotations

import datetime
import errno
import faulthandler
import gc
import json
import os
import queue
import signal
import socket
import struct
import sys
import threading
import time
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

MESSAGE_MARK = "\x1erunbook "
RANK_BEAT_INTERVAL_S = 0.5
COLLECTIVE_TIMEOUT_S = 900  # only for a rank that nobody watches: the controller notices a stall within seconds
PATTERN_PERIOD = 251  # a prime, so that no power-of-two chunking of a transport lines up with the pattern
CHUNK_ELEMENTS = PATTERN_PERIOD * 4096  # elements filled and compared at a time: 4 MiB of float32
LOOKUP_REPORT_INTERVAL_S, LOOKUP_REPORT_TIMEOUT_S = 1.5, 12.0
"""Seconds between reports of a slow name server, and seconds for which it is reported: resolvers ask twice for 5 s."""

FIRST_DIAL_TIMEOUT_S, LATER_DIAL_TIMEOUT_S = 1.0, 2.5
"""Seconds for which a dial waits. The first is short, so that silence is soon reported; later ones last until after the
kernel has repeated the SYN, since a repetition may pass where the first packet, which asks for ECN, is dropped."""
TICK_INTERVAL_S = 0.02  # seconds that `watch_pauses` sleeps at a time
TRANSPORT_THREAD_PREFIXES = ("gloo", "pt_gloo", "pt_nccl", "NCCL")
"""The beginnings of the names of the threads that move the data, beside the main thread."""

MAX_RECORDED_COLLECTIVES = 100  # how many collectives, the newest, are kept in flight-RANK.json

stdout_lock = threading.Lock()


def report_event(event: str, **fields: Any) -> None:
    fields["event"] = event
    with stdout_lock:
        sys.stdout.write(MESSAGE_MARK + json.dumps(fields) + "\n")
        sys.stdout.flush()


class RankFailure(Exception):
    """A failure whose cause the rank itself recognises."""

    def __init__(self, cause: str, text: str, **details: Any) -> None:
        Exception.__init__(self, text)
        self.cause = cause
        self.details = details


class RankPosition:
    """How far this rank has come; the beat thread reads it, the main thread writes it."""

    phase = "starting"
    size = 0
    turn = 0
    turns = 0
    work = 0  # pieces of memory filled and compared
    calls = 0  # how many collectives this program has asked torch for
    calling: dict[str, Any] | None = None  # the last of these collectives: operation, elements and type
    recorded: int | None = None  # how many more than `calls` Flight Recorder had counted when the group was new

    def snapshot(self) -> dict[str, Any]:
        return {"phase": self.phase, "size": self.size, "turn": self.turn, "turns": self.turns, "work": self.work}


class Lag:
    """Why the other ranks may have waited for this rank: seconds of each reason since the order began."""

    def __init__(self) -> None:
        self.timed = 0.0  # the timed AllReduces, from the first to the last
        self.own = 0.0  # of that time: before this rank had entered the collective
        self.paused = 0.0  # of that time: this process did not run at all, stopped or throttled
        self.queued = 0.0  # of that time: a thread of this process was ready to run and had no CPU

    def snapshot(self) -> dict[str, float]:
        return {name: round(seconds, 4) for name, seconds in vars(self).items()}


class Worker:
    """This rank: it carries out orders in the main thread, and listens and beats in threads beside it."""

    def __init__(self) -> None:
        self.rank = int(os.environ["RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.backend = os.environ.get("RUNBOOK_BACKEND", "gloo")
        self.place = RankPosition()
        self.lag = Lag()
        self.timing = threading.Event()
        self.orders: queue.Queue[dict[str, Any]] = queue.Queue()
        self.joined = False
        self.store: Any = None
        self.agreements = 0
        self.device: Any = None
        self.torch: Any = None
        self.dist: Any = None

    # Threads beside the work.

    def listen(self) -> None:
        """Takes orders, one JSON object a line. The end of stdin ends this process, whatever it is doing."""
        for line in sys.stdin:
            order = json.loads(line) if line.strip() else {}
            if order.get("do") == "flight":
                threading.Thread(target=self.leave_flight, daemon=True).start()
            elif order:
                self.orders.put(order)
        os._exit(0)

    def beat(self) -> None:
        while True:
            threading.Event().wait(RANK_BEAT_INTERVAL_S)  # not time.sleep(), which fails under libfaketime
            report_event("beat", **self.place.snapshot())

    def watch_pauses(self) -> None:
        """Measures, while something is timed, how much too late a sleeping thread wakes up, less the time for which it
        was ready and had no CPU: the process was stopped or throttled."""
        task = threading.get_native_id()
        while True:
            self.timing.wait()
            begun, queued = time.monotonic(), thread_queue_seconds(task) or 0.0
            threading.Event().wait(TICK_INTERVAL_S)
            late = time.monotonic() - begun - TICK_INTERVAL_S - ((thread_queue_seconds(task) or 0.0) - queued)
            if late > TICK_INTERVAL_S:
                self.lag.paused += late

    def waited(self) -> Callable[[], float]:
        """A function that gives the seconds since now for which this process did not run: it was ready and had no CPU,
        or it was stopped."""
        self.timing.set()
        queued, paused = cpu_queue_seconds(), self.lag.paused

        def seconds() -> float:
            self.timing.clear()
            return max(longest_growth(queued, cpu_queue_seconds()), self.lag.paused - paused)

        return seconds

    def leave_flight(self) -> None:
        """Writes flight-RANK.json: the last collectives, and the last that this program asked for. Never raises."""
        try:
            flight = flight_record(self.backend) if self.torch else None
            place = self.place
            told = {"rank": self.rank, "calls": place.calls, "calling": place.calling, "recorded": place.recorded}
            name = "flight-%d.json" % self.rank
            partial = "%s.%d" % (name, threading.get_ident())  # two orders may come at once
            with open(partial, "w") as file:
                json.dump(dict(told, flight=flight), file)
            os.replace(partial, name)
        except Exception as error:
            # In another form than Python's errors, so that it does not look like an error of the job.
            sys.stderr.write("runbook: this rank left no flight record (%s)\n" % type(error).__name__)

    # Steps.

    def load(self) -> None:
        if sys.version_info < (3, 8):
            raise RankFailure(
                "python-too-old", "%s is Python %s, older than 3.8" % (sys.executable, sys.version.split()[0])
            )
        self.place.phase = "importing torch"
        enable_flight_recorder()
        if self.backend == "nccl":
            os.environ.setdefault("NCCL_DEBUG", "INFO")  # NCCL's log says which network it chose, and why
        begun = time.monotonic()
        gc.disable()  # nothing of torch is garbage, and looking for it takes a seventh of the import's CPU time
        try:
            import torch
            import torch.distributed as dist
        except ModuleNotFoundError as error:
            if error.name == "torch":
                raise RankFailure("torch-missing", "%s has no torch" % sys.executable)
            # Adds where the module came from, in the form of Python's message about a name that is not in a module.
            file = getattr(sys.modules.get("torch"), "__file__", None)
            where = " from 'torch' (%s)" % file if file else ""
            raise RankFailure("program-error", "importing torch failed: %s%s" % (error, where))
        except (ImportError, OSError) as error:
            raise RankFailure("program-error", "importing torch failed: %s" % error)
        if not dist.is_available():
            raise RankFailure(
                "torch-distributed-not-built", "torch %s was built without distributed" % torch.__version__
            )
        gc.freeze()
        gc.enable()
        self.torch, self.dist = torch, dist
        has_nccl = dist.is_nccl_available()
        if self.backend == "nccl" and not has_nccl:
            raise RankFailure("nccl-not-built-in", "torch %s here has no NCCL" % torch.__version__)
        gpus = torch.cuda.device_count() if torch.version.cuda or getattr(torch.version, "hip", None) else 0
        nccl = None
        if has_nccl and gpus:
            try:
                nccl = ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
            except Exception:
                nccl = "unknown"
        if self.backend == "nccl":
            if gpus == 0:
                raise RankFailure("no-gpu-visible", "torch %s sees no GPU" % torch.__version__)
            if self.local_rank >= gpus:
                raise RankFailure(
                    "device-ordinal-invalid",
                    "local rank %d wants GPU %d, but torch sees %d" % (self.local_rank, self.local_rank, gpus),
                )
            torch.cuda.set_device(self.local_rank)
            self.device = torch.device("cuda", self.local_rank)
        else:
            self.device = torch.device("cpu")
        report_event(
            "step",
            step="imported",
            torch=torch.__version__,
            nccl=nccl,
            gpus=gpus,
            gpu=torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else None,
            python=sys.version.split()[0],
            seconds=round(time.monotonic() - begun, 3),
            detail=os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL",
        )
        self.place.phase = "waiting for orders"

    def join(self, _order: dict[str, Any]) -> None:
        """Joins the world: rank 0 opens the store, the others dial it; then come the process group and a barrier."""
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        threading.Thread(target=self.look_up, args=(host, port), daemon=True).start()
        patience = datetime.timedelta(seconds=COLLECTIVE_TIMEOUT_S)
        if self.rank == 0:
            self.step("opening the store")
            try:
                store = self.dist.TCPStore(
                    host, port, self.world_size, is_master=True, timeout=patience, wait_for_workers=False
                )
            except RuntimeError as error:
                text = str(error)
                if "EADDRINUSE" in text or "already in use" in text:
                    raise RankFailure("port-in-use", "TCP port %d is taken on the master" % port)
                raise
            self.step("listening", address=host, port=port)
        else:
            self.dial(host, port)
            store = self.dist.TCPStore(
                host, port, self.world_size, is_master=False, timeout=patience, wait_for_workers=False
            )
        store.set("runbook/host/%d" % self.rank, json.dumps({"host": socket.gethostname(), "machine": this_machine()}))
        self.step("connected")
        self.store = store
        options: dict[str, Any] = {}
        if self.device.type == "cuda":
            import inspect

            # Since torch 2.3, this binds the rank to its GPU at once, so that a barrier need not guess the GPU.
            if "device_id" in inspect.signature(self.dist.init_process_group).parameters:
                options["device_id"] = self.device
        self.dist.init_process_group(
            self.backend,
            store=self.dist.PrefixStore("runbook/group", store),
            rank=self.rank,
            world_size=self.world_size,
            timeout=patience,
            **options,
        )
        self.step("joined")
        self.barrier()
        self.joined = True
        self.place.recorded = last_recorded_collective(self.backend) - self.place.calls
        if self.rank == 0:
            hosts = [json.loads(store.get("runbook/host/%d" % rank).decode()) for rank in range(self.world_size)]
            report_event("world", hosts=hosts)
        self.step("done")
        self.place.phase = "waiting for orders"

    def step(self, name: str, **fields: Any) -> None:
        self.place.phase = name
        report_event("step", step=name, **fields)

    def look_up(self, host: str, port: int) -> None:
        """Reports how long a name server delays the rank: torch asks for names even if every address is a number, and
        makes no step meanwhile."""
        answered = threading.Event()

        def ask() -> None:
            try:
                socket.getnameinfo(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4], 0)
            except (OSError, UnicodeError):
                pass  # an error is an answer as well
            answered.set()

        threading.Thread(target=ask, daemon=True).start()
        begun = time.monotonic()
        while not answered.wait(LOOKUP_REPORT_INTERVAL_S) and time.monotonic() - begun < LOOKUP_REPORT_TIMEOUT_S:
            report_event("looking-up", address=host, seconds=round(time.monotonic() - begun, 1))
        if answered.is_set():
            report_event("looked-up", address=host)

    def dial(self, host: str, port: int) -> None:
        """Dials until the master's port opens, and reports the reason why it does not, whenever that changes."""
        reason, patience_s = None, FIRST_DIAL_TIMEOUT_S
        while True:
            try:
                probe_tcp_port(host, port, patience_s)
                return
            except socket.gaierror as error:
                seen = "unresolvable: %s" % (error.strerror or error)
            except ConnectionRefusedError:
                seen = "refused"
            except (socket.timeout, TimeoutError):
                seen, patience_s = "no answer", LATER_DIAL_TIMEOUT_S
            except OSError as error:
                seen = "unreachable: %s" % (error.strerror or error)
                if error.errno == errno.EADDRNOTAVAIL:
                    seen = "no local port: %s" % error.strerror
            if seen != reason:
                reason = seen
                self.step("dialling", reason=seen, address=host, port=port)
            threading.Event().wait(0.05)

    def barrier(self) -> None:
        self.calls("barrier")
        if self.device.type == "cuda":
            self.dist.barrier(device_ids=[self.device.index])
        else:
            self.dist.barrier()

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)

    # AllReduce.

    def allreduce(self, order: dict[str, Any]) -> None:
        """Times AllReduce for a series of sizes within a time budget. All ranks decide alike, from shared numbers."""
        torch = self.torch
        sizes = order["sizes"]
        self.lag = Lag()
        before = tcp_segments()
        ends = time.monotonic() + order["budget_s"]
        pattern = torch.arange(CHUNK_ELEMENTS, dtype=torch.float32, device=self.device).remainder_(PATTERN_PERIOD)
        stopped_before = None
        per_byte = 0.0  # seconds a byte for preparing, warming up and verifying the size before
        for index, size in enumerate(sizes):
            full, needed, left = self.agree(0 if self.room_for(size) else 1, per_byte * size, time.monotonic() - ends)
            if full or needed > -left:
                stopped_before = {"size": size, "why": "memory" if full else "time"}
                break
            begun = time.monotonic()
            count = max(1, size // 4)
            self.place.size, self.place.turn, self.place.turns = size, 0, 1
            self.place.phase = "warm-up and verification"
            data = torch.empty(count, dtype=torch.float32, device=self.device)
            # The first AllReduces of a size are the warm-up, and every element of their results is compared.
            wrong: dict[str, Any] = {"count": 0}
            for _ in range(order["warmup"]):
                self.fill(data, pattern)
                self.barrier()
                started = time.perf_counter()
                self.reduce(data)
                self.synchronize()
                seconds = time.perf_counter() - started
                if not wrong["count"]:  # no `break` at the first wrong result: the other ranks wait in the next one
                    wrong = self.compare(data, pattern)
            wrong_anywhere, slowest, left = self.agree(wrong["count"], seconds, time.monotonic() - ends)
            if wrong_anywhere:
                report_event("wrong", size=size, **wrong)
                self.locate(count)
                self.step("done")
                return
            turns = affordable_iterations(slowest, sizes[index:], -left, order["iterations"])
            per_byte = (time.monotonic() - begun + 2 * slowest) / size
            self.place.phase, self.place.turns = "timing", turns
            data.zero_()  # sums of zeros stay zeros: no overflow however many iterations
            times = self.time(data, turns)
            mean = self.agree(mean_of(times), combine=mean_of)[0]
            if self.rank == 0:
                report_event("row", row=result_row(size, count, mean, times, self.world_size))
            else:
                report_event("finished", size=size)
            del data
        self.place.phase, self.place.turn = "finishing", self.place.turns + 1
        self.barrier()
        tcp = {name: after - before[name] for name, after in tcp_segments().items() if name in before}
        self.step("done", stopped_before=stopped_before, lag=self.lag.snapshot(), tcp=tcp or None)
        self.place.phase = "waiting for orders"

    def time(self, data: Any, turns: int) -> list[float]:
        """The seconds of each of `turns` AllReduces, by device events on a GPU, by the clock on a CPU."""
        self.barrier()
        queued, begun = cpu_queue_seconds(), time.perf_counter()
        self.timing.set()
        try:
            return self.timed(data, turns)
        finally:
            self.timing.clear()
            self.lag.timed += time.perf_counter() - begun
            self.lag.queued += longest_growth(queued, cpu_queue_seconds())

    def timed(self, data: Any, turns: int) -> list[float]:
        if self.device.type == "cuda":
            marks = [self.torch.cuda.Event(enable_timing=True) for _ in range(turns + 1)]
            self.synchronize()
            marks[0].record()
            for turn in range(turns):
                self.place.turn = turn + 1
                self.calls("all_reduce", data)
                self.dist.all_reduce(data)
                marks[turn + 1].record()
            self.synchronize()
            return [marks[turn].elapsed_time(marks[turn + 1]) / 1e3 for turn in range(turns)]
        times = []
        for turn in range(turns):
            self.place.turn = turn + 1
            self.calls("all_reduce", data)
            begun = time.perf_counter()
            work = self.dist.all_reduce(data, async_op=True)
            entered = time.perf_counter()
            if work is not None:
                work.wait()
            ended = time.perf_counter()
            self.lag.own += entered - begun
            times.append(ended - begun)
        return times

    def room_for(self, size: int) -> bool:
        """Whether this rank has memory for this size: three times as much and 256 MiB, for the backend's buffers."""
        if self.device.type == "cuda":
            free = self.torch.cuda.mem_get_info(self.device)[0]
        else:
            free = available_memory()
        return free is None or free > 3 * size + (256 << 20)

    def agree(self, *numbers: float, combine: Callable[[Any], float] = max) -> list[Any]:
        """The largest of each number over all ranks (or what `combine` makes of them), so that all ranks decide alike.

        The numbers go through the store: the collectives under test may be wrong, and ranks would decide differently.
        """
        self.agreements += 1
        name = "runbook/agree/%d" % self.agreements
        self.store.set("%s/%d" % (name, self.rank), json.dumps(numbers))
        if self.rank == 0:
            every = [json.loads(self.store.get("%s/%d" % (name, rank)).decode()) for rank in range(self.world_size)]
            self.store.set(name, json.dumps([combine(column) for column in zip(*every)]))
        agreed: list[Any] = json.loads(self.store.get(name).decode())
        return agreed

    def calls(self, operation: str, data: Any = None) -> None:
        """Notes a collective that this program asks torch for, to be compared with what torch recorded."""
        self.place.calls += 1
        about = {} if data is None else {"count": data.numel(), "dtype": str(data.dtype).rpartition(".")[2]}
        self.place.calling = {"operation": operation, **about}

    def reduce(self, data: Any, **options: Any) -> None:
        self.calls("all_reduce", data)
        self.dist.all_reduce(data, **options)

    def fill(self, data: Any, pattern: Any) -> None:
        """Fills the tensor: element i of rank r is (i mod 251) + r + 1. It depends on place and rank; sums are
        exact."""
        mine = pattern[: data.numel()] + float(self.rank + 1)
        for start in range(0, data.numel(), CHUNK_ELEMENTS):
            piece = data[start : start + CHUNK_ELEMENTS]
            piece.copy_(mine[: piece.numel()])
            self.place.work += 1

    def compare(self, data: Any, pattern: Any) -> dict[str, Any]:
        """How many elements differ from the sum over all ranks (`count`), and the first element that does (`first`)."""
        n = self.world_size
        expected = pattern[: data.numel()] * float(n) + float(n * (n + 1) // 2)
        wrong = 0
        first = None
        for start in range(0, data.numel(), CHUNK_ELEMENTS):
            piece = data[start : start + CHUNK_ELEMENTS]
            right = expected[: piece.numel()]
            self.place.work += 1
            if self.torch.equal(piece, right):
                continue
            places = (piece != right).nonzero().flatten()
            wrong += int(places.numel())
            if first is None:
                at = int(places[0])
                first = {"element": start + at, "got": json_number(float(piece[at])), "expected": float(right[at])}
        return {"count": wrong, "first": first}

    def locate(self, count: int) -> None:
        """Finds the ranks whose contribution is wrong: each in turn contributes alone, and all compare the result."""
        if self.world_size > 64:
            return
        torch = self.torch
        count = min(count, CHUNK_ELEMENTS)
        pattern = torch.arange(count, dtype=torch.float32, device=self.device).remainder_(PATTERN_PERIOD)
        blamed = []
        for rank in range(self.world_size):
            data = pattern + float(rank + 1) if rank == self.rank else torch.zeros_like(pattern)
            self.reduce(data)
            bad = 0.0 if torch.equal(data, pattern + float(rank + 1)) else 1.0
            if self.agree(bad)[0]:
                blamed.append(rank)
        if len(blamed) in (0, self.world_size):
            # A rank that changes all data passing through it spoils every round, so each rank works by itself now.
            groups = [self.dist.new_group([rank]) for rank in range(self.world_size)]
            data = pattern + float(self.rank + 1)
            self.reduce(data, group=groups[self.rank])
            bad = 0.0 if torch.equal(data, pattern + float(self.rank + 1)) else 1.0
            seen = self.agree(*(bad if rank == self.rank else 0.0 for rank in range(self.world_size)))
            blamed = [rank for rank, wrong in enumerate(seen) if wrong]
        report_event("located", ranks=blamed)


def probe_tcp_port(host: str, port: int, seconds: float) -> None:
    """Opens a connection and resets it. Closed in good order it would keep its local port for another minute
    (TIME_WAIT), while torch has to dial next."""
    with socket.create_connection((host, port), seconds) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def enable_flight_recorder() -> None:
    """Switches torch's Flight Recorder on, before torch is imported: releases before 2.9 have it switched off."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(2 * MAX_RECORDED_COLLECTIVES))
    try:
        from importlib.metadata import version

        old = tuple(int(part) for part in version("torch").split(".")[:2]) < (2, 9)
    except Exception:
        old = False
    if old:  # newer releases warn in the log that this name is deprecated
        os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", os.environ["TORCH_FR_BUFFER_SIZE"])


def flight_record(backend: str) -> dict[str, Any] | None:
    """Flight Recorder's data with its newest entries, or None. It is read through private API, which may be absent."""
    import torch._C._distributed_c10d as c10d

    names = ["_dump_nccl_trace_json", "_dump_fr_trace_json"]
    for name in names if backend == "nccl" else names[::-1]:
        dump = getattr(c10d, name, None)
        found = json.loads(dump()) if dump else {}
        if found.get("pg_status") or found.get("entries"):
            found["entries"] = found.get("entries", [])[-MAX_RECORDED_COLLECTIVES:]
            return found
    return None


def last_recorded_collective(backend: str) -> int:
    """The number of the last collective that Flight Recorder counted in any group; 0 if there is none."""
    try:
        found = flight_record(backend) or {}
        return max([int(one["last_enqueued_collective"]) for one in found.get("pg_status", {}).values()] or [0])
    except Exception:
        return 0


def cpu_queue_seconds() -> dict[str, float]:
    """By thread, the seconds for which it has been ready to run and had no CPU (Linux). Only of threads that a
    collective needs: other threads may spin, which makes them always ready, and delay no rank."""
    found = {}
    for task in os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else ():
        try:
            with open("/proc/self/task/%s/comm" % task) as file:
                needed = int(task) == os.getpid() or file.read().startswith(TRANSPORT_THREAD_PREFIXES)
        except OSError:
            continue  # the thread has ended
        waited = thread_queue_seconds(int(task)) if needed else None
        if waited is not None:
            found[task] = waited
    return found


def thread_queue_seconds(task: int) -> float | None:
    """The seconds for which a thread of this process has been ready to run and had no CPU; None if the thread has
    ended, or the kernel does not count them."""
    try:
        with open("/proc/self/task/%d/schedstat" % task) as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def longest_growth(before: dict[str, float], after: dict[str, float]) -> float:
    """The largest difference of a thread that was there all the time."""
    return max([after[task] - before[task] for task in before if task in after] or [0.0])


def kernel_kills() -> int | None:
    """How many processes the kernel has killed for lack of memory since boot; None if it does not say."""
    return numbers_in("/proc/vmstat").get("oom_kill")


def json_number(number: float) -> float | str:
    """The number as JSON can carry it: infinity and NaN, which wrong sums may be, become words."""
    return number if abs(number) < float("inf") else str(number)


def mean_of(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def affordable_iterations(seconds: float, sizes: list[int], left: float, wanted: int) -> int:
    """How many iterations of sizes[0] to time, from 2 to `wanted`, if one took `seconds` and `left` of the budget
    remains.
    Each size gets a share of the rest in proportion to its bytes. A small size, which costs next to nothing, gets at
    least a fiftieth, so that its numbers do not depend on chance.
    """
    share = left * max(sizes[0] / float(sum(sizes)), 0.02)
    return int(max(2, min(wanted, share / max(seconds, 1e-7))))


def result_row(size: int, count: int, mean: float, times: list[float], world_size: int) -> dict[str, Any]:
    """One row of the table as nccl-tests prints it; algbw and busbw are in GB/s (10^9 bytes)."""
    algbw = size / mean / 1e9
    ordered = sorted(times)
    return {
        "size": size,
        "count": count,
        "type": "float",
        "redop": "sum",
        "time_us": mean * 1e6,
        "algbw": algbw,
        "busbw": algbw * 2 * (world_size - 1) / world_size,
        "wrong": 0,
        "iterations": len(times),
        "p50_us": (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2 * 1e6,
        "p99_us": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1e6,
        "max_us": ordered[-1] * 1e6,
    }


def available_memory() -> int | None:
    """Bytes that the kernel would give without swapping, within the limits of our control groups; None if not
    known."""
    of_machine = numbers_in("/proc/meminfo").get("MemAvailable:")
    known = [] if of_machine is None else [of_machine * 1024]
    return min(known + left_in_groups(), default=None)


CONTROL_GROUPS = "/sys/fs/cgroup"


def left_in_groups() -> list[int]:
    """Bytes that each of our control groups with a limit may still get, in cgroup v1 or v2. The limit of a Slurm job or
    a service is that of a group above our own. Cached files count as used there, but are dropped when memory is
    wanted, so they are added."""
    found = []
    for line in read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        limit, used, files = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            if controllers
            else ("memory.max", "memory.current", "inactive_file")
        )
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts), -1, -1):
            folder = "/".join([CONTROL_GROUPS, *(["memory"] if controllers else []), *parts[:depth]])
            most, taken = read(folder + "/" + limit), read(folder + "/" + used)
            if most.isdecimal() and taken.isdecimal():  # not `max`
                found.append(int(most) - int(taken) + numbers_in(folder + "/memory.stat").get(files, 0))
    return found


def numbers_in(path: str) -> dict[str, int]:
    """By the first word of each line of a file, the number after it."""
    rows = [line.split() for line in read(path).splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}


def read(path: str) -> str:
    """The text of a small file without the white space around it; empty if it cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def tcp_segments() -> dict[str, int]:
    """How many TCP segments this node has sent, and sent again; empty if its kernel does not tell."""
    lines = [line.split() for line in read("/proc/net/snmp").splitlines() if line.startswith("Tcp:")]
    counts = dict(zip(*lines)) if len(lines) == 2 else {}
    if not {"OutSegs", "RetransSegs"} <= counts.keys():
        return {}
    return {"sent": int(counts["OutSegs"]), "again": int(counts["RetransSegs"])}


def this_machine() -> str:
    """The same id as `this_machine` in `node/proc.py`, which cannot be imported here: the controller compares both."""
    parts = list(filter(None, map(read, ("/proc/sys/kernel/random/boot_id", "/etc/machine-id"))))[:1]
    try:
        parts.append(os.readlink("/proc/self/ns/net"))
    except OSError:
        pass
    return " ".join(parts) or socket.gethostname()


def main() -> None:
    if "RUNBOOK_RUN_ID" not in os.environ:
        # Started by hand, the program would wait for orders, and end well without having done anything.
        sys.exit("rank.py gets its orders from `runbook run`, which starts it; launch.sh starts programs of yours")
    # Python would turn SIGINT into an exception, which waits until a call of torch returns.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    worker = Worker()
    stacks = open("stack-%d.txt" % worker.rank, "w")
    # Only the signalled thread's stack: walking the frames of running threads crashes about once in a hundred times.
    faulthandler.enable(file=stacks, all_threads=False)
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=False, chain=False)
    seat = {"rank": worker.rank, "world_size": worker.world_size}
    report_event("step", step="started", pid=os.getpid(), seat=seat, kernel_kills=kernel_kills())
    for service in (worker.listen, worker.beat, worker.watch_pauses):
        threading.Thread(target=service, daemon=True).start()
    try:
        worker.load()
        while True:
            order = worker.orders.get()
            if order["do"] in ("join", "allreduce"):
                getattr(worker, order["do"])(order)
            elif order["do"] == "measure":
                import rank_bandwidth  # the controller pushes it when single links are to be measured

                rank_bandwidth.measure(worker, order, report_event, worker.waited)
            else:
                raise RankFailure("program-error", "unknown order %r" % order["do"])
            worker.place.size = worker.place.turn = 0  # they belong to the order that has ended
    except RankFailure as failure:
        report_event("failed", cause=failure.cause, text=str(failure), **failure.details)
    except BaseException as error:
        worker.leave_flight()
        report_event(
            "failed",
            cause=None,
            text=": ".join(filter(None, (type(error).__name__, str(error).split("\n")[0][:500]))),
            traceback=traceback.format_exc().splitlines()[-12:],
            at=worker.place.snapshot(),
        )
    # An orderly teardown of a process group that has failed can hang, and the controller knows all it needs.
    sys.stdout.flush()
    os._exit(1)


main()
