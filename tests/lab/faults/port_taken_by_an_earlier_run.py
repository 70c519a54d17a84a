"""A rank that an earlier run left behind holds the rendezvous port."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault

CODE = "import socket, time; s = socket.create_server(('', 29500)); print('up', flush=True); time.sleep(300)"


def leftover(lab: Lab) -> None:
    command = [lab.python_without_torch, "-c", CODE]
    process = lab["node-a"].popen(command, env={"RUNBOOK_RUN_ID": "20260101-000000-abcdef"})
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"


FAULT = Fault(
    breaks=leftover,
    stage="port",
    cause="port-in-use",
    nodes="node-a",
    says=(r"left behind by runbook's run 20260101-000000-abcdef", r"kill \d+"),
    mends=True,
    within_s=5,
)
