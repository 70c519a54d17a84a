"""reach: what the node says of itself to findings. Each recorded answer in, one cause out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runbook.checks.context import Facts, folder_finding, no_answer, select_interfaces
from runbook.checks.gang import Gang
from runbook.checks.readiness.clock import clock_finding
from runbook.checks.readiness.gpus import judge_gpus
from runbook.checks.readiness.interfaces import interface_findings
from runbook.checks.readiness.limits import limit_warnings
from runbook.checks.readiness.torch import compare_versions, torch_findings
from runbook.checks.readiness.workdir import folder_findings
from runbook.model.errors import Unreachable
from runbook.model.inventory import Infiniband, Network
from runbook.model.verdict import Outcome, Verdict
from runbook.transport import Answer, NoPython, ProgramNotStarted

from .world import LO, A, B, cluster, gang_of, interface, machine, node

GPUS = node("node-a", gpus=(0, 1))
TWO = """\
0, GPU-8e6a9b1c-0000-0000-0000-000000000000, NVIDIA H100 80GB HBM3, 81559, 4
1, GPU-8e6a9b1c-0000-0000-0000-000000000001, NVIDIA H100 80GB HBM3, 81559, 4
"""


def smi(out: str = "", code: int | None = 0, err: str = "") -> Facts:
    return {"out": out, "err": err, "code": code}


def test_the_gpus_of_the_inventory_are_there() -> None:
    assert judge_gpus(GPUS, smi(TWO)) is None
    assert judge_gpus(node("node-a", gpus=(1,)), smi(TWO)) is None
    assert judge_gpus(GPUS, smi(TWO + TWO.replace("0, GPU", "2, GPU").replace("1, GPU", "3, GPU"))) is None


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ({"missing": True}, "tool-missing"),
        ({"timed_out": True, "code": None, "out": "", "err": ""}, "gpu-tool-hung"),
        (smi(""), "tool-output-unknown"),
        (smi("\n\n"), "tool-output-unknown"),
        (smi("Sat Nov 21 03:00:00 2026\n+-----+\n| NVIDIA-SMI |\n"), "tool-output-unknown"),
        (smi("a, b, c\n"), "tool-output-unknown"),
        (smi(TWO, code=139), "tool-output-unknown"),
        (smi("", code=None, err="[Errno 8] Exec format error"), "tool-output-unknown"),
        (smi(TWO.splitlines()[0]), "gpu-count-mismatch"),
        (smi(TWO.replace("1, GPU", "2, GPU")), "gpu-count-mismatch"),
        (smi("No devices were found\n", code=6), "gpu-count-mismatch"),
        (
            smi("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.54\n", code=18),
            "driver-library-mismatch",
        ),
        (
            smi(
                "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the "
                "latest NVIDIA driver is installed and running.\n",
                code=9,
            ),
            "no-gpu-visible",
        ),
        (
            smi(
                "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system to "
                "recover this GPU\n",
                code=15,
            ),
            "gpu-fell-off-bus",
        ),
        (smi("Failed to initialize NVML: Unknown Error\n", code=255), "tool-output-unknown"),
    ],
)
def test_what_else_nvidia_smi_says_is_never_healthy(answer: Facts, cause: str) -> None:
    finding = judge_gpus(GPUS, answer)
    assert finding is not None
    assert finding.cause == cause
    assert finding.evidence
    assert "node-a" in finding.says


def test_no_devices_is_no_devices_whatever_the_exit_code() -> None:
    """Some drivers end with 0 here."""
    finding = judge_gpus(GPUS, smi("No devices were found\n"))
    assert finding is not None
    assert finding.cause == "gpu-count-mismatch"


def test_the_missing_index_is_named() -> None:
    finding = judge_gpus(node("node-a", gpus=(0, 1, 2)), smi(TWO))
    assert finding is not None
    assert "missing: 2" in finding.says


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("eth0", "eth0"),
        ("eth", "eth0 eth01 eth1"),
        ("eth0,ib", "eth0"),  # one of them is there as written: that one is meant
        ("ib,docker", "docker0 ib0 ib1"),
        ("=eth0", "eth0"),
        ("=eth", ""),
        ("^docker,lo", "eth0 eth01 eth1 ib0 ib1"),
        ("^=eth0", "docker0 eth01 eth1 ib0 ib1 lo"),
        ("^", "docker0 eth0 eth01 eth1 ib0 ib1 lo"),
        ("wlan", ""),
        ("", ""),
    ],
)
def test_interfaces_that_a_socket_ifname_selects(expression: str, names: str) -> None:
    every = ["docker0", "eth0", "eth01", "eth1", "ib0", "ib1", "lo"]
    assert select_interfaces(expression, every) == names.split()


def skewed(**offsets: float) -> dict[str, list[str]]:
    """Who fails and who is warned, from the nodes' offsets to this machine."""
    found: dict[str, list[str]] = {"fail": [], "warn": []}
    for name in offsets:
        warnings: list[str] = []
        finding = clock_finding(name, offsets, warnings)
        if finding is not None:
            assert finding.cause == "clock-skew"
            assert name in finding.says
            found["fail"].append(name)
        elif warnings:
            found["warn"].append(name)
    return found


@pytest.mark.parametrize(
    ("offsets", "fail", "warn"),
    [
        ({"a": 0.0, "b": 0.3}, "", ""),
        ({"a": 0.0, "b": 1.99, "c": -1.99}, "", ""),
        ({"a": 0.0, "b": 3.0, "c": 0.1}, "", "b"),
        ({"a": 0.0, "b": 60.0, "c": 0.1}, "b", ""),
        ({"a": 0.0, "b": -60.0, "c": 0.1}, "b", ""),
        ({"a": 3600.0, "b": 3600.0, "c": 3600.0}, "", ""),  # it is this machine's clock that is wrong
        ({"a": 3600.0, "b": 3600.1, "c": 3500.0, "d": 3600.2}, "c", ""),
    ],
)
def test_the_odd_clock_is_the_one_named(offsets: dict[str, float], fail: str, warn: str) -> None:
    assert skewed(**offsets) == {"fail": fail.split(), "warn": warn.split()}


def test_clocks_that_differ_by_more_than_ten_seconds_fail_somebody() -> None:
    assert skewed(a=12.0, b=12.0, c=0.0)["fail"]


def test_a_clock_that_could_not_be_read_is_not_judged() -> None:
    assert clock_finding("b", {"a": 0.0}, []) is None


def interface_causes(expression: str | None, facts: Facts, **options: Any) -> list[str]:
    inventory = cluster(network=Network(expression), **options)
    return [finding.cause for finding in interface_findings(inventory, inventory.nodes[0], facts)]


def test_interfaces() -> None:
    here = machine(A, docker0=interface("172.17.0.1"), ib0=interface(), ib1=interface("10.1.0.1", state="DOWN"))
    assert interface_causes(None, here) == []
    assert interface_causes("eth0", here) == []
    assert interface_causes("eth", here) == ["interface-missing"]  # a prefix: NCCL would take it, gloo does not
    assert interface_causes("eth9", here) == ["interface-missing"]
    assert interface_causes("ib0", here) == ["interface-missing"]
    assert interface_causes("ib1", here) == ["interface-missing"]
    assert interface_causes("lo", here) == ["interface-wrong"]
    assert interface_causes("^eth,docker,ib,lo", here) == ["interface-missing"]


def test_loopback_is_right_where_all_is_one_machine() -> None:
    nodes = [node(name, connection="local", address="127.0.0.1") for name in ("node-a", "node-b")]
    inventory = cluster(*nodes, network=Network("lo"))
    assert interface_findings(inventory, inventory.nodes[0], machine(A)) == []


def test_the_interface_that_carries_the_address_is_suggested_and_a_node_may_have_its_own() -> None:
    inventory = cluster(node("node-a", env={"GLOO_SOCKET_IFNAME": "ens5"}), node("node-b"), network=Network("eth0"))
    (finding,) = interface_findings(inventory, inventory.nodes[0], machine(A))
    assert "node-a has no interface ens5; eth0 carries 10.0.0.1" in finding.says
    assert "interface: eth0" in finding.remedy
    assert interface_findings(inventory, inventory.nodes[1], machine(B)) == []


def test_an_interface_that_is_wrong_for_either_backend_is_told() -> None:
    one = node("node-a", gpus=(0,), env={"NCCL_SOCKET_IFNAME": "nope", "GLOO_SOCKET_IFNAME": "eth0"})
    for backend in ("gloo", "nccl"):
        inventory = cluster(one, node("node-b"), backend=backend)
        assert [f.cause for f in interface_findings(inventory, one, machine(A))] == ["interface-missing"]


def test_the_folder() -> None:
    hello = {"folder": "/home/u/.runbook/1/node-a", "free_bytes": 1 << 34, "noexec": False}
    one = node("node-a")
    assert folder_findings(one, hello) == []
    assert [f.cause for f in folder_findings(one, {**hello, "free_bytes": 1 << 20})] == ["disk-full"]
    assert [f.cause for f in folder_findings(one, {**hello, "noexec": True})] == ["workdir-not-writable"]
    for name, cause in {"ENOSPC": "disk-full", "EDQUOT": "disk-full", "EACCES": "workdir-not-writable"}.items():
        error = {"type": "OSError", "errno": name, "text": "no", "path": "/home/u"}
        assert folder_finding("node-a", error).cause == cause


def test_limits_are_warnings_and_only_where_they_matter() -> None:
    low = {"limits": {"memlock_bytes": 65536}, "shm": {"bytes": 64 << 20}}
    warnings: list[str] = []
    limit_warnings(cluster(), node("node-a"), low, warnings)
    assert warnings == []
    limit_warnings(cluster(infiniband=Infiniband("mlx5")), GPUS, low, warnings)
    assert len(warnings) == 2
    warnings.clear()
    high = {"limits": {"memlock_bytes": None}, "shm": {"bytes": 64 << 30}}
    limit_warnings(cluster(infiniband=Infiniband("mlx5")), GPUS, high, warnings)
    assert warnings == []


def answer(**options: Any) -> Answer:
    fields = {"code": 0, "messages": (), "stdout": "", "stderr": "", "timed_out": False, "seconds": 0.1}
    return Answer(**{**fields, **options})


@pytest.mark.parametrize(
    ("got", "verdict", "cause"),
    [
        (Unreachable("ssh-refused", "no", "start sshd"), Verdict.UNKNOWN, "ssh-refused"),
        (NoPython("python-too-old", "old", "newer"), Verdict.FAIL, "python-too-old"),
        (ProgramNotStarted({"errno": "ENOSPC", "text": "full", "path": "/x"}), Verdict.FAIL, "disk-full"),
        (TimeoutError(), Verdict.UNKNOWN, "tool-output-unknown"),
        (answer(timed_out=True), Verdict.UNKNOWN, "tool-output-unknown"),
        (answer(), Verdict.UNKNOWN, "tool-output-unknown"),
        (answer(code=1, stderr="Traceback\nKeyError: 'dev'\n"), Verdict.UNKNOWN, "tool-output-unknown"),
        (answer(code=-9), Verdict.UNKNOWN, "tool-output-unknown"),
    ],
)
def test_a_program_that_said_nothing_is_never_a_pass(got: object, verdict: Verdict, cause: str) -> None:
    outcome = no_answer("node-a", "reach", got)
    assert (outcome.verdict, [f.cause for f in outcome.findings]) == (verdict, [cause])


def test_a_bug_of_ours_is_not_dressed_up() -> None:
    with pytest.raises(ZeroDivisionError):
        no_answer("node-a", "reach", ZeroDivisionError())


def imported(gang: Gang, **versions: str) -> None:
    for member in gang.members:
        if name := versions.get(member.rank.node.replace("-", "_")):
            member.steps["imported"] = {"torch": name, "nccl": None, "gpus": 0, "gpu": None, "python": "3.11"}


def test_the_minority_of_torch_versions_is_named() -> None:
    gang = gang_of(cluster(node("node-a"), node("node-b"), node("node-c")))
    outcomes = [Outcome.passed(n.name, "ok") for n in gang.inventory.nodes]
    imported(gang, node_a="2.4.0", node_b="2.4.0", node_c="2.4.0")
    assert compare_versions(outcomes, gang) == outcomes
    imported(gang, node_b="2.1.0")
    changed = compare_versions(outcomes, gang)
    assert [o.verdict for o in changed] == [Verdict.PASS, Verdict.FAIL, Verdict.PASS]
    assert "torch==2.4.0" in changed[1].findings[0].remedy


def test_torch_that_never_came_is_unknown_and_torch_that_is_missing_a_failure() -> None:
    gang = gang_of(cluster(replace(node("node-a"), python="/opt/py/bin/python"), node("node-b")))
    first = gang.inventory.nodes[0]
    failures, unknown = torch_findings(gang, first, imported=set())
    assert (failures, [f.cause for f in unknown]) == ([], ["tool-output-unknown"])
    gang.members[0].failure = {"event": "failed", "cause": "torch-missing", "text": "no torch"}
    failures, unknown = torch_findings(gang, first, imported=set())
    assert ([f.cause for f in failures], unknown) == (["torch-missing"], [])
    assert "/opt/py/bin/python -m pip install torch" in failures[0].remedy
    assert torch_findings(gang, gang.inventory.nodes[1], imported={"node-b"}) == ([], [])
    assert torch_findings(None, first, imported=set()) == ([], [])


def test_loopback_of_the_made_up_world() -> None:
    """The tests above lean on it: an interface that is up has no state DOWN, and lo has its flag."""
    assert LO["state"] == "UNKNOWN"
    assert "LOOPBACK" in LO["flags"]
