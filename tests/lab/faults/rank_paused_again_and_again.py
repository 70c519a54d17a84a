"""Something stops a rank for nine tenths of the time and lets it go on for one."""

from __future__ import annotations

import os
import signal
import threading
import time

from lab import Lab
from lab.fault import Fault, Strike


def pause_and_continue(lab: Lab) -> None:
    pids = [pid for pid, command in lab["node-b"].processes() if "rank.py" in command]
    threading.Thread(target=stutter, args=(pids,), daemon=True).start()


def stutter(pids: list[int]) -> None:
    try:
        while True:
            for number, seconds in ((signal.SIGSTOP, 0.09), (signal.SIGCONT, 0.01)):
                for pid in pids:
                    os.kill(pid, number)
                time.sleep(seconds)
    except OSError:
        return


FAULT = Fault(
    strike=Strike(pause_and_continue, moving=False),
    arguments=("-e", "max_bytes=4M", "-e", "budget=8s", "-e", "iterations=300"),
    stage="full",
    cause="rank-behind",
    nodes="node-b",
    says=(r"waits for rank 1 on node-b",),
    within_s=14,
)
