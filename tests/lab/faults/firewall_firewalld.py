"""firewalld is on, and the interface is in its public zone, which lets ssh in."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault

START = """
mkdir -p /run/dbus
dbus-daemon --system --fork --nopidfile
firewalld --nopid
for i in $(seq 100); do firewall-cmd --state >/dev/null 2>&1 && break; sleep 0.1; done
firewall-cmd --zone=public --change-interface=eth0
"""


def firewalld(lab: Lab) -> None:
    lab["node-a"].run(START, "root")


FAULT = Fault(
    breaks=firewalld,
    stage="firewall",
    cause="firewall-reject",
    nodes="node-a",
    says=(r"firewalld zone public", r"firewall-cmd"),
    mends=True,
    needs=("firewalld", "firewall-cmd", "dbus-daemon"),
    within_s=9,
)
