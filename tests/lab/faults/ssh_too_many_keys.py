"""More keys are offered than the server has patience for, and the right one is the last."""

from __future__ import annotations

from lab import Lab, keys
from lab.fault import EVERY, Fault


def offer(lab: Lab) -> None:
    folder = lab.home / ".ssh"
    lines = ["Host *"]
    for number in range(8):
        file = folder / f"old{number}"
        file.touch(mode=0o600)
        file.write_text(keys.generate("old").private)
        lines.append(f"  IdentityFile {file}")
    lab.ssh_config.write_text("\n".join([*lines, f"  IdentityFile {lab.key}", ""]))


FAULT = Fault(
    breaks=offer,
    inventory=lambda _: {"defaults": {"ssh": {"key": None}}},
    stage="reach",
    cause="ssh-auth-failed",
    nodes=EVERY,
    says=(r"MaxAuthTries", r"name the one"),
    unreachable=True,
    within_s=5,
)
