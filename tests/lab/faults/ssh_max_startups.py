"""Others hold every slot for logins that are under way."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def hold(lab: Lab) -> None:
    lab["node-b"].sshd_options(MaxStartups="2:100:2", LoginGraceTime="120")
    code = (
        f"import socket, time; held = [socket.create_connection(({lab['node-b'].address!r}, 22)) for _ in range(3)]; "
        "print(len([sock.recv(99) for sock in held]), flush=True); time.sleep(300)"
    )
    process = lab["node-a"].popen([lab.python_without_torch, "-c", code], "root")
    assert process.stdout is not None
    process.stdout.readline()


FAULT = Fault(
    breaks=hold,
    stage="reach",
    cause="ssh-handshake-failed",
    nodes="node-b",
    says=(r"MaxStartups",),
    unreachable=True,
    within_s=9,
)
