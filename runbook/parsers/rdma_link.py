"""rdma link: every RDMA port in one line."""

from __future__ import annotations

import re

from runbook.model.commands import word
from runbook.parsers.reading import CUT, Fault, Reading, Tool, numbered, some

LINK = re.compile(
    r"(?:link |\d+/\d+: )(?P<hca>[\w.-]+)/(?P<port>\d+):? (?P<rest>.*?)state (?P<state>\w+) physical_state (?P<physical>\w+)(?P<more>.*)"
)
STATES = {"ACTIVE", "DOWN", "INIT", "ARMED", "NOP", "ACTIVE_DEFER"}


def read(text: str) -> Reading | None:
    lines = [(at, line) for at, line in numbered(text) if line.strip()]
    links = [(at, found) for at, line in lines if (found := LINK.match(line.strip()))]
    if not links:
        return None
    waiting, down = [], []
    for at, link in links:
        ethernet = "netdev" in link["more"] and "lid" not in link["rest"] + link["more"]
        if link["state"] in ("INIT", "ARMED") and link["physical"] == "LINK_UP" and not ethernet:
            waiting.append((at, link))
        elif link["state"] in STATES and link["state"] not in ("ACTIVE", "NOP"):
            down.append((at, link))
    up = [link for _, link in links if link["state"] == "ACTIVE" and link["physical"] == "LINK_UP"]
    faults = []
    if down:
        names = [f"{link['hca']}/{link['port']} is {link['state']} ({link['physical']})" for _, link in down]
        remedy = f"sudo rdma link show {word(down[0][1]['hca'])}/{word(down[0][1]['port'])}   # then its cable, its switch port, and `sudo ip link set INTERFACE up`"
        faults.append(
            Fault("ib-port-not-active", some(names), remedy, tuple(at for at, _ in down), "medium" if up else "high")
        )
    if waiting:
        names = [f"{link['hca']}/{link['port']}" for _, link in waiting]
        remedy = "start a subnet manager: `sudo systemctl start opensm` on one node, or the one in the switch"
        says = f"{some(names)}: the link is up, and no subnet manager has set it up"
        faults.append(Fault("ib-port-initializing", says, remedy, tuple(at for at, _ in waiting)))
    facts = {
        "links": {f"{link['hca']}/{link['port']}": link["state"] for _, link in links},
        "active": len(up),
        "netdevs": {
            f"{link['hca']}/{link['port']}": name[1]
            for _, link in links
            if (name := re.search(r"netdev (\S+)", link["more"]))
        },
    }
    whole = len(links) == len(lines) and len(up) + len(down) + len(waiting) == len(links)
    return Reading("rdma link", facts, tuple(faults), (), "" if whole else CUT)


TOOL = Tool("rdma link", r"rdma (?:-\S+ )*link\b", r"(?:link |\d+/\d+: )\S+/\d+:? .*\bstate \w+ physical_state", r"(?:link |\d+/\d+: )\S+/\d+", ("physical_state",), read)  # fmt: skip
