"""The controller of a run over nodes of a farm: it runs a playbook and prints what that cost this process, as JSON."""

from __future__ import annotations

import contextlib
import io
import json
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from runbook.cli.main import main
from runbook.engine import run as engine
from runbook.model.inventory import Node
from runbook.transport.node_sessions import Site

KIB = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there


class FarmStream:
    """A `Stream` to one node of the farm."""

    shared = False

    def __init__(self, path: str, number: int) -> None:
        self._link = socket.socket(socket.AF_UNIX)
        self._link.connect(path)
        self._link.sendall(b"node #%d\n" % number)

    def write(self, data: bytes) -> None:
        self._link.sendall(data)

    def read(self) -> bytes:
        return self._link.recv(1 << 16)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()

    kill = close

    def complaint(self) -> str:
        return ""


class Calls:
    """Calls of functions in all threads that are started from now on: work, whatever else the machine does."""

    def __init__(self) -> None:
        self._counts: list[list[int]] = []

    def __enter__(self) -> Calls:
        threading.setprofile(self._of_a_thread)
        sys.setprofile(self._counter())
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _of_a_thread(self, *_: object) -> None:
        sys.setprofile(self._counter())

    def _counter(self) -> Callable[[object, str, object], None]:
        count = [0]
        self._counts.append(count)

        def called(_frame: object, event: str, _of: object) -> None:
            if event in ("call", "c_call"):
                count[0] += 1

        return called

    @property
    def total(self) -> int:
        return sum(count[0] for count in self._counts)


def simulated(farm: str, inventory: str, playbook: str, folder: str, count_calls: bool = False) -> dict[str, Any]:
    """Run it. `calls` are those of the stages, or 0 where nobody is to count: that costs more than the work does."""
    spent: list[tuple[str, float]] = []
    calls: list[int] = []
    most_threads = [0]

    def stream(_site: Site, node: Node) -> FarmStream:
        return FarmStream(farm, int(node.name.removeprefix("gn")))

    stage_before = engine._run_stage

    def stage(plan: Any, stage: Any, run: Any, emit: Any) -> Any:
        begun = time.process_time()
        with Calls() if count_calls else contextlib.nullcontext() as counted:
            outcomes = stage_before(plan, stage, run, emit)
        spent.append((stage.name, time.process_time() - begun))
        calls.append(counted.total if counted else 0)
        return outcomes

    shown, begun = io.StringIO(), time.monotonic()
    with (
        mock.patch.object(Site, "_stream", stream),
        mock.patch.object(engine, "_run_stage", stage),
        contextlib.redirect_stdout(shown),
        _watched(most_threads),
    ):
        code = main(["run", playbook, "-i", inventory, "--run-dir", str(Path(folder) / "run")])
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "code": code,
        "wall_s": time.monotonic() - begun,
        "cpu_s": used.ru_utime + used.ru_stime,
        "stages": dict(spent),
        "calls": dict(zip((name for name, _ in spent), calls, strict=True)),
        "peak_bytes": used.ru_maxrss * KIB,
        "threads": most_threads[0],
        "shown": shown.getvalue()[-3000:],
    }


@contextlib.contextmanager
def _watched(most_threads: list[int]) -> Iterator[None]:
    over = threading.Event()

    def count() -> None:
        while not over.wait(0.1):
            most_threads[0] = max(most_threads[0], threading.active_count())

    watcher = threading.Thread(target=count)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


if __name__ == "__main__":
    socket_path, inventory_file, playbook_file, scratch, *options = sys.argv[1:]
    print(json.dumps(simulated(socket_path, inventory_file, playbook_file, scratch, "--calls" in options)))
