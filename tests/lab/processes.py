"""Running programs with a deadline, and finding processes by the namespaces they live in."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from .needs import SEARCH_PATH

T = TypeVar("T")


class LabError(RuntimeError):
    """The lab itself failed; what it was meant to test is not to blame."""


def call(argv: Sequence[str], *, stdin: str = "", timeout: float = 60.0, check: bool = True) -> str:
    """Run a program of this machine and give its stdout."""
    done = subprocess.run(
        argv,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={"PATH": SEARCH_PATH, "LC_ALL": "C.UTF-8"},
    )
    if check and done.returncode != 0:
        raise LabError(f"{' '.join(argv)} ended {done.returncode}: {(done.stderr or done.stdout).strip()}\n{stdin}")
    return done.stdout


def wait_until(what: str, ready: Callable[[], T | None], *, timeout: float = 60.0, pause: float = 0.005) -> T:
    """Poll `ready` until it holds, and give what it gave; a wait without an end is how a broken lab would look like a
    broken product."""
    deadline = time.monotonic() + timeout
    while not (found := ready()):
        if time.monotonic() > deadline:
            raise LabError(f"{what}: not within {timeout:g} s")
        time.sleep(pause)
    return found


def namespace(pid: int | str, kind: str) -> int | None:
    """The inode of a process's namespace; None when the process is gone or a zombie."""
    try:
        return os.stat(f"/proc/{pid}/ns/{kind}").st_ino  # noqa: PTH116 - hundreds of calls a scan
    except OSError:
        return None


def pids() -> Iterator[int]:
    for entry in os.listdir("/proc"):  # noqa: PTH208 - hundreds of entries a scan
        if entry.isdigit():
            yield int(entry)


@dataclass(frozen=True, slots=True)
class Process:
    """A live process as this machine sees it: `pid` is good for `os.kill`."""

    pid: int
    inner_pid: int  # the pid by which it knows itself, inside the host
    uid: int
    exe: str
    cmdline: str


def describe(pid: int) -> Process | None:
    """What is known of a process; None when it is gone or a zombie."""
    try:
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        if status["State"].split()[0] in "ZX":
            return None
        cmdline = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
        exe = os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115
    except (OSError, KeyError):
        return None
    return Process(pid, int(status["NSpid"].split()[-1]), int(status["Uid"].split()[1]), exe, cmdline)


def processes_in(kind: str, inode: int) -> list[Process]:
    found = (describe(pid) for pid in pids() if namespace(pid, kind) == inode)
    return [process for process in found if process is not None]


def kill_network(inodes: set[int], *, timeout: float = 60.0) -> None:
    """Kill whatever lives in these network namespaces, and see it gone. Only they are touched: killing is by inode."""

    def empty() -> bool:
        living = [pid for pid in pids() if pid != os.getpid() and namespace(pid, "net") in inodes]
        for pid in living:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return not living

    if inodes:
        wait_until("killing the lab's processes", empty, timeout=timeout)
