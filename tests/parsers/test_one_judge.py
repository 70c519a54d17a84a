"""A port in one state has one cause, whoever tells of it: ibstat, rdma link, ibportstate, or the kernel to a live check."""

from __future__ import annotations

import pytest
from checks.made_up_cluster import node

from runbook.checks.ibstat import port_fault_finding
from runbook.parsers import infiniband
from runbook.parsers.infiniband import ports_from_sysfs

# The kernel's words for a state and a physical state, those of rdma, ibstat and ibportstate, and the cause.
STATES = [
    ("4: ACTIVE", "5: LinkUp", "ACTIVE", "LINK_UP", "Active", "LinkUp", "Active", None),
    ("2: INIT", "5: LinkUp", "INIT", "LINK_UP", "Initializing", "LinkUp", "Initialize", "ib-port-initializing"),
    ("3: ARMED", "5: LinkUp", "ARMED", "LINK_UP", "Armed", "LinkUp", "Armed", "ib-port-initializing"),
    ("1: DOWN", "2: Polling", "DOWN", "POLLING", "Down", "Polling", "Down", "ib-port-not-active"),
    ("1: DOWN", "3: Disabled", "DOWN", "DISABLED", "Down", "Disabled", "Down", "ib-port-not-active"),
]


@pytest.mark.parametrize("words", STATES, ids=lambda words: f"{words[4]}, {words[5]}")
def test_every_source_gives_the_same_cause(words: tuple[str, str, str, str, str, str, str, str | None]) -> None:
    state, physical, of_rdma, physical_of_rdma, of_ibstat, physical_of_ibstat, of_ibportstate, cause = words
    sysfs = {"mlx5_0": {"1": {"state": state, "phys_state": physical, "rate": "400 Gb/sec (4X NDR)"}}}
    found = port_fault_finding(node("node-a"), ports_from_sysfs(sysfs)[0], None)
    assert (found and found.cause) == cause

    listed = f"""CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tPort 1:
\t\tState: {of_ibstat}
\t\tPhysical state: {physical_of_ibstat}
\t\tRate: 400
\t\tPort GUID: 0x946dae0300f2f100
\t\tLink layer: InfiniBand
"""
    line = f"link mlx5_0/1 subnet_prefix fe80:0000:0000:0000 lid 1 sm_lid 1 lmc 0 state {of_rdma} "
    told = [
        infiniband.read(listed),
        infiniband.read_rdma_link(f"{line}physical_state {physical_of_rdma}\n"),
        infiniband.read_ibportstate(
            f"LinkState:.......................{of_ibportstate}\nPhysLinkState:...{physical_of_ibstat}\n"
        ),
    ]
    assert [[one.cause for one in reading.faults] for reading in told if reading] == [[cause] if cause else []] * 3
