"""Every fault of the fault lab gets its name: the right stage stops and names the right cause and node, and no other."""

from __future__ import annotations

import pytest
from lab import Lab
from lab.fault import Fault, all_faults, mend, missing, named, run_every_check

pytestmark = [pytest.mark.lab, pytest.mark.torch]
FAULTS = all_faults()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=name, marks=[] if fault.quick else [pytest.mark.thorough])
        for name, fault in FAULTS.items()
    ],
)
def test_a_fault_gets_its_name(fault: Fault) -> None:
    """With only those checks in the playbook that the fault needs."""
    if lacking := missing(fault):
        pytest.skip(lacking)
    with Lab(fault.hosts) as lab:
        told = named(fault.shortened(), lab)
        if fault.mends:
            mend(fault, lab, told)
            again = run_every_check(fault.shortened(mended=True), lab)
            assert again.done.returncode == 0, f"the remedy does not mend it\n{told.text}\n{again.text}"
        for host in lab:
            host.wait_empty(user=lab.user)


def test_there_are_enough_of_them() -> None:
    assert len(FAULTS) >= 45
    assert sum(fault.quick for fault in FAULTS.values()) >= 20
