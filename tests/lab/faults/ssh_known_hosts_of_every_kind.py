"""No fault: known_hosts has patterns, a certificate authority, an older key of a node, and lines that are none."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def rewrite(lab: Lab) -> None:
    first, second = lab.hosts
    lab.known_hosts.write_text(
        "not a line at all\nhost ssh-ed25519 no/base64!\n"
        f"@cert-authority * {first.key.public}\n"
        f"{second.address} {first.key.public}\n"
        f"10.*,!{second.address} {first.key.public}\n"
        f"*.*.*.{second.index + 1} {second.key.public}\n"
    )


FAULT = Fault(
    breaks=rewrite,
    cause=None,
    within_s=8,
)
