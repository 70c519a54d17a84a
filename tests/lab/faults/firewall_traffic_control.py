"""A BPF filter of tc at the device drops the rendezvous port, before any packet filter sees it."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault

# IPv4, TCP, destination port 29500: shot; everything else passes.
PROGRAM = "8,40 0 0 12,21 0 5 2048,48 0 0 23,21 0 3 6,40 0 0 36,21 0 1 29500,6 0 0 2,6 0 0 0"


def tc(lab: Lab) -> None:
    filters = f"tc filter add dev eth0 ingress prio 7 bpf da bytecode '{PROGRAM}'"
    lab["node-a"].run(f"tc qdisc add dev eth0 clsact && {filters}", "root")


FAULT = Fault(
    breaks=tc,
    stage="firewall",
    cause="firewall-drop",
    nodes="node-a",
    says=(r"tc filter on eth0", r"sudo tc filter del dev eth0 ingress pref 7"),
    within_s=7,
)
