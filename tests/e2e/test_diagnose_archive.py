"""`runbook diagnose` of what `runbook collect` brings home: the tools' outputs of every node are read as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lab import Lab, runbook_cli

from .e2e_types import Ran

pytestmark = pytest.mark.lab

IBSTAT = """\
cat <<'END'
CA 'mlx5_0'
	CA type: MT4129
	Number of ports: 1
	Firmware version: 28.39.1002
	Hardware version: 0
	Node GUID: 0x0123456789abcdef
	System image GUID: 0x0123456789abcdef
	Port 1:
		State: {state}
		Physical state: {physical}
		Rate: 400
		Base lid: 12
		LMC: 0
		SM lid: 1
		Capability mask: 0xa751e848
		Port GUID: 0x0123456789abcdef
		Link layer: InfiniBand
END"""


def diagnosed(lab: Lab, archive: str) -> tuple[int, list[dict[str, Any]]]:
    done = runbook_cli(lab, "diagnose", "-o", "json", archive)
    return done.returncode, done.json()["causes"]


@pytest.mark.thorough
@pytest.mark.torch
def test_a_run_that_went_well_and_then_a_port_that_goes_down(two_hosts: Lab, run_in: Callable[..., Ran]) -> None:
    ran = run_in(two_hosts)
    assert ran.code == 0, ran.text()
    for host in two_hosts:
        host.tool("ibstat", IBSTAT.format(state="Active", physical="LinkUp"))
    collect = ("collect", "--run-dir", str(ran.folder), "--out")
    assert runbook_cli(two_hosts, *collect, "well.tar.gz", timeout=120).returncode == 0
    assert diagnosed(two_hosts, "well.tar.gz") == (0, [])

    two_hosts["node-b"].tool("ibstat", IBSTAT.format(state="Down", physical="Polling"))
    assert runbook_cli(two_hosts, *collect, "broken.tar.gz", timeout=120).returncode == 0
    code, causes = diagnosed(two_hosts, "broken.tar.gz")
    assert (code, causes[0]["cause"], causes[0]["node"]) == (0, "ib-port-not-active", "node-b")
    assert [line["text"] for line in causes[0]["evidence"]] == ["State: Down", "Physical state: Polling"]
    assert causes[0]["evidence"][0]["file"].endswith("!nodes/node-b/infiniband/ibstat.txt")
