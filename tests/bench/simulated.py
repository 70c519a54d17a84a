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
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from runbook.cli.main import main
from runbook.engine import run as engine
from runbook.model.inventory import Node
from runbook.transport.site import Site


class FarmStream:
    """A `Stream` to one node of the farm."""

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


def simulated(farm: str, inventory: str, playbook: str, folder: str) -> dict[str, Any]:
    numbers: dict[str, int] = {}
    cpu: list[tuple[str, float]] = []
    threads = [0]

    def stream(_site: Site, node: Node) -> FarmStream:
        return FarmStream(farm, int(node.name.removeprefix("gn")))

    stage_before = engine._stage

    def stage(plan: Any, stage: Any, run: Any, emit: Any) -> Any:
        begun = time.process_time()
        try:
            return stage_before(plan, stage, run, emit)
        finally:
            cpu.append((stage.name, time.process_time() - begun))

    @contextlib.contextmanager
    def counted() -> Iterator[None]:
        over = threading.Event()

        def count() -> None:
            while not over.wait(0.05):
                threads[0] = max(threads[0], threading.active_count())

        watcher = threading.Thread(target=count)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()

    shown, begun = io.StringIO(), time.monotonic()
    with (
        mock.patch.object(Site, "_stream", stream),
        mock.patch.object(engine, "_stage", stage),
        contextlib.redirect_stdout(shown),
        counted(),
    ):
        code = main(["run", playbook, "-i", inventory, "--run-dir", str(Path(folder) / "run")])
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "code": code,
        "wall_s": time.monotonic() - begun,
        "cpu_s": used.ru_utime + used.ru_stime,
        "stages": dict(cpu),
        "peak_bytes": used.ru_maxrss * 1024,
        "threads": threads[0],
        "nodes": len(numbers),
        "shown": shown.getvalue()[-3000:],
    }


if __name__ == "__main__":
    print(json.dumps(simulated(*sys.argv[1:])))
