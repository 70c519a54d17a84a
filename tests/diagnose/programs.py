"""Real programs that really fail, on loopback only: their logs are what `diagnose` has to understand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

DEADLINE_S = 90

TRAIN = """\
import datetime, os, signal, sys, time
import torch
import torch.distributed as dist

rank = int(os.environ.get("RANK", 0))
{before}
dist.init_process_group({backend!r}, timeout=datetime.timedelta(seconds={timeout}))
{after}
data = torch.ones(4)
dist.all_reduce(data)
print(f"[rank {{rank}}] all_reduce ok {{data[0].item()}}", flush=True)
dist.destroy_process_group()
"""


def script(folder: Path, *, before: str = "", after: str = "", backend: str = "gloo", timeout: float = 5) -> Path:
    """A training program with a fault before or after its rendezvous."""
    file = folder / "train.py"
    file.write_text(TRAIN.format(before=before, after=after, backend=backend, timeout=timeout))
    return file


def environment(**given: str) -> dict[str, str]:
    clean = {name: text for name, text in os.environ.items() if name in ("PATH", "HOME", "LANG", "TMPDIR")}
    return {**clean, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **given}


class Job:
    """Processes of one job, each with its own log; all are gone when the block ends."""

    def __init__(self, folder: Path) -> None:
        self.logs = folder / "out"
        self.logs.mkdir()
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *command: str | Path, **given: str) -> subprocess.Popen[bytes]:
        with (self.logs / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(part) for part in command],
                stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment(**given), start_new_session=True,
            )  # fmt: skip
        self._running.append(process)
        return process

    def rank(self, program: Path, rank: int, world: int, port: int, **given: str) -> subprocess.Popen[bytes]:
        told = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            **given,
        }
        return self.start(f"rank{rank}", sys.executable, program, **told)

    def torchrun(self, *arguments: str | Path, **given: str) -> subprocess.Popen[bytes]:
        return self.start("torchrun", sys.executable, "-m", "torch.distributed.run", *arguments, **given)

    def wait_for(self, name: str, text: bytes) -> None:
        """Until the log holds the text; the deadline fails the test."""
        end = time.monotonic() + DEADLINE_S
        while text not in (self.logs / f"{name}.log").read_bytes():
            assert time.monotonic() < end, f"{name} never printed {text!r}"
            time.sleep(0.05)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            try:
                process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise
