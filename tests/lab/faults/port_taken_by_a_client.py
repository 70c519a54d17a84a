"""No listener: somebody's outgoing connection happens to have the rendezvous port at its near end."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault

CODE = """
import socket, sys, time
s = socket.socket()
s.bind(("", 29500)); s.connect((sys.argv[1], 22))
print("up", flush=True); time.sleep(300)
"""


def client(lab: Lab) -> None:
    process = lab["node-a"].popen([lab.python_without_torch, "-c", CODE, lab["node-b"].address], "root")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"


FAULT = Fault(
    breaks=client,
    stage="port",
    cause="port-in-use",
    nodes="node-a",
    says=(r"process \d+ of", r"near end of a connection to [\d.]+:22"),
    within_s=5,
)
