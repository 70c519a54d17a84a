"""A listener for IPv6 alone, on a cluster that speaks IPv4: torch makes do with the IPv4 port, so no fault."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault

CODE = """
import socket, time
s = socket.socket(socket.AF_INET6)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
s.bind(("::1", 29500)); s.listen()
print("up", flush=True); time.sleep(300)
"""


def taken(lab: Lab) -> None:
    process = lab["node-a"].popen([lab.python_without_torch, "-c", CODE], "root")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"


FAULT = Fault(
    breaks=taken,
    cause=None,
    within_s=20,
)
