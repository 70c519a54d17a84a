"""Faults of the lab are named over agents as they are over SSH: what carries our bytes is no part of the verdict."""

from __future__ import annotations

import pytest
from lab.agents import AgentLab
from lab.fault import all_faults, missing, named
from lab.processes import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.thorough]

FAULTS = all_faults()
NAMES = (
    "address_of_two_names",
    "firewall_data_ports_one_way",
    "firewall_of_a_port_nobody_dials",
    "firewall_one_peer_of_three",
    "firewall_rendezvous_icmp",
    "firewall_rendezvous_reset",
    "gpu_busy",
    "gpu_ecc",
    "gpu_fewer",
    "gpu_lost",
    "ib_cable_pulled",
    "ib_port_disabled",
    "ib_rate_low",
    "name_means_loopback_on_a_peer",
    "name_unresolvable",
    "node_no_torch",
    "node_workdir_full",
    "path_loses_30_percent",
    "path_mtu_differs",
    "port_bound_by_somebody",
    "port_taken_by_root",
    "rank_killed",
    "rank_never_calls",
    "rank_stopped",
    "rank_wrong_data",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_gets_its_name_over_agents(name: str) -> None:
    fault = FAULTS[name].shortened()
    if lacking := missing(fault):
        pytest.skip(lacking)
    with AgentLab(fault.hosts) as lab:
        named(fault, lab)
        for host in lab:
            wait_until("only the agent is left", lambda host=host: len(host.processes(lab.user)) <= 1)  # type: ignore[misc]


def test_there_are_enough_of_them() -> None:
    assert len(NAMES) >= 20
