"""A program of this machine that is asked something: what it prints, bounded in time and in bytes."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

MOST = 32 << 20
"""Bytes of output: `kubectl get pods -o json` takes 10 KiB a pod, `scontrol show node` 1 KiB a node."""
MOST_COMPLAINED = 1 << 20  # bytes of stderr
_LEFT_OPEN_S = 1.0  # how long what it left running may hold its output open
_LOOK_S = 0.2  # between two looks whether it has ended


def printed(
    argv: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """How a program ended, and what it printed. One that prints more than is kept is killed: its output is then empty,
    as a part would pass as all, and the last line of its stderr says so. What it started is killed with it.

    Raises OSError where it does not start, and TimeoutExpired.
    """
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = bytearray(), bytearray()
    try:
        with selectors.PollSelector() as streams:  # takes no descriptor of its own
            streams.register(process.stdout, selectors.EVENT_READ, (out, MOST))
            streams.register(process.stderr, selectors.EVENT_READ, (err, MOST_COMPLAINED))
            until = time.monotonic() + timeout_s
            ended = False
            while streams.get_map() and (left := until - time.monotonic()) > 0:
                for key, _ in streams.select(min(left, _LOOK_S)):
                    data = os.read(key.fd, 1 << 16)
                    kept, most = key.data
                    if not data:
                        streams.unregister(key.fileobj)
                    elif len(kept) + len(data) > most:
                        says = f"it printed more than {most >> 20} MiB, and was stopped"
                        return subprocess.CompletedProcess(argv, -signal.SIGKILL, "", f"{_text(err[:4096])}\n{says}")
                    else:
                        kept += data
                if not ended and process.poll() is not None:
                    ended, until = True, min(until, time.monotonic() + _LEFT_OPEN_S)
        try:
            code = process.wait(0 if ended else max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise subprocess.TimeoutExpired(argv, timeout_s) from None
        return subprocess.CompletedProcess(argv, code, _text(out), _text(err))
    finally:
        _end(process)


def _text(data: bytes | bytearray) -> str:
    """With line breaks as Python's text files have them."""
    return data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # not even KILL ends what waits for a dead disk
            process.wait(1.0)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
