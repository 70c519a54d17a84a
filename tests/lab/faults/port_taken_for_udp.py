"""The rendezvous port is taken for UDP, which is another port: no fault."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault

CODE = """
import socket, time
s = socket.socket(type=socket.SOCK_DGRAM)
s.bind(("", 29500))
print("up", flush=True); time.sleep(300)
"""


def taken(lab: Lab) -> None:
    process = lab["node-a"].popen([lab.python_without_torch, "-c", CODE], user="root")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"


FAULT = Fault(
    breaks=taken,
    cause=None,
    within_s=20,
)
