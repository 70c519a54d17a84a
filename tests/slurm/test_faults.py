"""Faults of the lab are named over Slurm as they are over SSH: what carries our bytes is no part of the verdict."""

from __future__ import annotations

import pytest
from lab.fault import all_faults, missing, named
from lab.slurm import SlurmLab

pytestmark = [pytest.mark.lab, pytest.mark.slurm, pytest.mark.torch]

FAULTS = all_faults()
QUICK = ("ib_port_disabled", "firewall_rendezvous_reset", "gpu_lost")
NAMES = (
    *QUICK,
    "address_of_two_names",
    "firewall_data_ports_one_way",
    "firewall_of_a_port_nobody_dials",
    "firewall_one_peer_of_three",
    "firewall_rendezvous_icmp",
    "gpu_busy",
    "gpu_ecc",
    "gpu_fewer",
    "ib_cable_pulled",
    "ib_no_subnet_manager",
    "ib_rate_low",
    "name_means_loopback_on_a_peer",
    "name_unresolvable",
    "node_no_torch",
    "node_shm_tiny",
    "node_workdir_full",
    "path_loses_30_percent",
    "path_mtu_differs",
    "port_bound_by_somebody",
    "port_taken_by_root",
    "rank_killed",
    "rank_never_calls",
    "rank_out_of_memory",
    "rank_stopped",
    "rank_wrong_data",
    "slow_link_one_node",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.thorough]) for name in NAMES]
)
def test_a_fault_gets_its_name_over_slurm(name: str) -> None:
    fault = FAULTS[name].shortened()
    if lacking := missing(fault):
        pytest.skip(lacking)
    with SlurmLab(fault.hosts) as lab:
        named(fault, lab)
        for host in lab:
            host.wait_empty(user=lab.user)


def test_there_are_enough_of_them() -> None:
    assert len(NAMES) >= 20
