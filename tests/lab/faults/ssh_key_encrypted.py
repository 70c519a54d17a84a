"""The private key has a passphrase, and no agent holds it."""

from __future__ import annotations

import subprocess

from lab import Lab
from lab.fault import Fault


def change(lab: Lab) -> None:
    copy = lab.tmp / "other_key"
    copy.touch(mode=0o600)
    copy.write_text(lab.key.read_text())
    subprocess.run(["ssh-keygen", "-q", "-p", "-f", copy, "-N", "secret words", "-P", ""], check=True)


FAULT = Fault(
    breaks=change,
    inventory=lambda lab: {"nodes": {"node-b": {"ssh": {"key": str(lab.tmp / "other_key")}}}},
    stage="reach",
    cause="ssh-auth-failed",
    nodes="node-b",
    says=(
        r"passphrase",
        r"ssh-add",
    ),
    unreachable=True,
    within_s=6,
)
