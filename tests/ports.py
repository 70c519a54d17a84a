"""Ports on loopback for tests that run beside each other."""

from __future__ import annotations

import itertools
import os
import socket

FIRST, COUNT = 20000, 500
"""Below the ports that the kernel gives to whoever dials; so many for each worker of pytest-xdist."""

_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 20
_next = itertools.cycle(range(FIRST + _worker * COUNT, FIRST + (_worker + 1) * COUNT))


def free_port() -> int:
    """A port that nobody holds, and that no other test is given for a long time: a job binds it seconds later."""
    for port in itertools.islice(_next, COUNT):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError(f"no port of {COUNT} is free")
