"""How fast can this node's network interfaces be, by their negotiated rates and limits set by `tc`?

Argument, JSON: {"interfaces": names}. Says one message and ends. Python 3.8, standard library.
"""

from __future__ import annotations

import os

from runbook.node.proc import read
from runbook.node.tools import find_tool, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from runbook.transport.node_answers import AdapterFacts, Adapters

SYS_CLASS_NET = "/sys/class/net/"  # the kernel's folder of network interfaces
ERROR_COUNTERS = ("rx_errors", "rx_dropped", "rx_crc_errors", "tx_errors", "tx_dropped", "collisions")
TC_TIMEOUT_S = 4


def physical_devices(name: str, depth: int = 0) -> list[str]:
    """The physical devices below this interface: itself, or those of a bond, VLAN or bridge."""
    base = SYS_CLASS_NET + name
    if os.path.exists(base + "/device"):
        return [name]
    try:
        below = [entry[len("lower_") :] for entry in sorted(os.listdir(base)) if entry.startswith("lower_")]
    except OSError:
        return []
    return [device for lower in below for device in physical_devices(lower, depth + 1)] if depth < 4 else []


def read_integer(path: str) -> int | None:
    text = read(path)
    try:
        return int(text) if text else None
    except ValueError:
        return None


def tc_outputs(name: str) -> dict[str, str] | None:
    """The output of `tc` about an interface: its queues for outgoing packets, and its filters for incoming ones; None
    without `tc`."""
    tc = find_tool("tc")
    if tc is None:
        return None
    questions = {"qdisc": ["qdisc"], "class": ["class"], "ingress": ["filter", "ingress"]}
    said = {}
    for key, words in questions.items():
        argv = [tc, words[0], "show", "dev", name] + words[1:]
        answer = run(argv, TC_TIMEOUT_S)
        said[key] = answer["out"] if answer["code"] == 0 else ""
    return said


def look(arguments: dict[str, Any]) -> Adapters:
    found: dict[str, AdapterFacts] = {}
    for name in arguments["interfaces"]:
        if not os.path.exists(SYS_CLASS_NET + name):
            continue
        devices = physical_devices(name)
        speeds = [read_integer(SYS_CLASS_NET + device + "/speed") for device in devices]
        known = [speed for speed in speeds if speed and speed > 0]
        found[name] = {
            "hardware": devices,
            "mbit": min(known) if known and len(known) == len(speeds) else None,
            "duplex": [read(SYS_CLASS_NET + device + "/duplex") for device in devices],
            "counters": {key: read_integer(SYS_CLASS_NET + name + "/statistics/" + key) for key in ERROR_COUNTERS},
            "tc": tc_outputs(name),
        }
    return {"interfaces": found}
