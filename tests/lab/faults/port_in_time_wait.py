"""Connections of a job that has just ended linger on the rendezvous port in TIME_WAIT: no fault."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault

CODE = """
import socket
server = socket.create_server(("", 29500))
for _ in range(4):
    far = socket.create_connection(("127.0.0.1", 29500))
    near, _ = server.accept()
    near.close(); far.recv(1); far.close()
"""


def linger(lab: Lab) -> None:
    lab["node-a"].run([lab.python_without_torch, "-c", CODE])
    assert "TIME-WAIT" in lab["node-a"].run(["ss", "-Htan", "sport = :29500"]).stdout


FAULT = Fault(
    breaks=linger,
    cause=None,
    within_s=20,
)
