"""A process has bound the rendezvous port and does not listen: no list of listeners shows it."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault

CODE = "import socket, time; s = socket.socket(); s.bind(('', 29500)); print('up', flush=True); time.sleep(300)"


def bound(lab: Lab) -> None:
    process = lab["node-a"].popen([lab.python_without_torch, "-c", CODE], "root")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"


FAULT = Fault(
    breaks=bound,
    stage="port",
    cause="port-in-use",
    nodes="node-a",
    says=(r"bound", r"29500"),
    within_s=5,
)
