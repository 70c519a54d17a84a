"""Every port that the kernel of one node may hand out is taken: nothing can be dialled from there."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault

CODE = """
import socket, time
held = [socket.socket() for _ in range(50000, 50011)]
for number, sock in enumerate(held, 50000):
    sock.bind(("", number))
print("up", flush=True); time.sleep(300)
"""


def exhaust(lab: Lab) -> None:
    lab["node-b"].run("echo 50000 50010 >/proc/sys/net/ipv4/ip_local_port_range", "root")
    process = lab["node-b"].popen([lab.python_without_torch, "-c", CODE], "root")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"


FAULT = Fault(
    breaks=exhaust,
    stage="firewall",
    cause="ephemeral-ports-exhausted",
    nodes="node-b",
    says=(r"50000-50010", r"11 of 11 are not available", r"process \d+ of root holds 11 sockets: .*python"),
    mends=True,
    within_s=7,
)
