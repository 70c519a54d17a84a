"""reach: what the node says of itself to findings. Each recorded answer in, one cause out."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.checks.bandwidth.adapters import job_interfaces
from runbook.checks.context import Facts, no_answer_outcome, run_folder_finding
from runbook.checks.ranks.pool import RankPool
from runbook.checks.reach.interfaces import interface_findings
from runbook.checks.reach.reach import Clocks, majority_clock_offset
from runbook.checks.reach.torch import compare_debug_settings, compare_torch_versions, torch_findings
from runbook.checks.reach.workdir_and_limits import limit_findings, run_folder_findings
from runbook.model.errors import Unreachable
from runbook.model.inventory import Infiniband, Network
from runbook.model.nccl_devices import select_interfaces
from runbook.model.verdict import Outcome, Verdict
from runbook.parsers.clock import CLOCK_OFFSET_WARN_S
from runbook.transport.bootstrap import NoPython
from runbook.transport.remote_program import Answer, ProgramNotStarted

from .made_up_cluster import LO, A, B, cluster, context, interface, machine, node, pool_of

GPUS = node("node-a", gpus=(0, 1))


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
        finding = Clocks(offsets).finding(name, warnings)
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


@given(st.lists(st.floats(-30.0, 30.0).map(lambda second: round(second, 1)), max_size=12))
def test_the_right_clock_is_the_one_that_most_agree_with(seconds: list[float]) -> None:
    clocks = [0.0, *seconds]
    agree = [sum(abs(clock - other) < CLOCK_OFFSET_WARN_S - 1e-9 for other in clocks) for clock in clocks]
    right = majority_clock_offset({f"n{place}": second for place, second in enumerate(seconds)})
    near = sum(abs(right - other) < CLOCK_OFFSET_WARN_S + 1e-9 for other in clocks)
    assert right in clocks
    assert near >= max(agree)


def test_a_clock_that_could_not_be_read_is_not_judged() -> None:
    assert Clocks({"a": 0.0}).finding("b", []) is None


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


def test_a_vlan_whose_link_below_is_down_carries_nothing() -> None:
    flags = ["NO-CARRIER", "BROADCAST", "MULTICAST", "UP", "M-DOWN"]
    below = interface(A, state="LOWERLAYERDOWN", flags=flags)
    inventory = cluster(network=Network("bond0.100"))
    (finding,) = interface_findings(inventory, inventory.nodes[0], {"interfaces": {"lo": LO, "bond0.100": below}})
    assert finding.cause == "interface-missing"
    assert "bond0.100 of node-a has no carrier" in finding.says
    assert finding.evidence[0] == "bond0.100: NO-CARRIER, state LOWERLAYERDOWN"


def test_link_local_addresses_are_good_where_the_inventory_gives_them() -> None:
    """Two nodes with a cable between them, and addresses that they gave themselves."""
    mine, other = node("node-a", address="169.254.31.7"), node("node-b", address="169.254.80.2")
    inventory = cluster(mine, other, network=Network("enp1s0f0np0"))
    cabled = {"interfaces": {"lo": LO, "enp1s0f0np0": interface("169.254.31.7", "fe80::1")}}
    assert interface_findings(inventory, mine, cabled) == []
    (finding,) = interface_findings(inventory, other, cabled)
    assert "has no address that others can reach" in finding.says


@pytest.mark.parametrize("written", ["fd00::1", "FD00::1", "fd00:0:0::1", "fd00:0000:0000:0000:0000:0000:0000:0001"])
def test_an_ipv6_address_may_be_written_in_other_ways_than_the_kernel_writes_it(written: str) -> None:
    one = node("node-a", address=written)
    inventory = cluster(one, node("node-b"), network=Network("eth0,eth1"))
    facts = {"node-a": machine("10.0.0.1", eth1=interface("10.1.0.1", "fd00::1"))}
    at = context(inventory, facts)
    assert at.data_address(one) == written
    assert job_interfaces(context(cluster(one, node("node-b")), facts), one) == ["eth1"]


def test_without_iproute2_loopback_is_known_by_its_address() -> None:
    bare = {"interfaces": {"lo": interface("127.0.0.1", state="UNKNOWN"), "eth0": interface(A)}}
    assert interface_causes("lo", bare) == ["interface-wrong"]
    assert interface_causes("eth0", bare) == []


@pytest.mark.parametrize(("address", "causes"), [("fd00::1", []), ("gpu1.lab", []), (A, ["interface-missing"])])
def test_without_iproute2_addresses_of_ipv6_are_not_missing_but_unknown(address: str, causes: list[str]) -> None:
    inventory = cluster(node("node-a", address=address), node("node-b"), network=Network("eth0"))
    bare = {"interfaces": {"lo": interface("127.0.0.1", state="UNKNOWN"), "eth0": interface()}}
    assert [finding.cause for finding in interface_findings(inventory, inventory.nodes[0], bare)] == causes


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
    assert run_folder_findings(one, hello) == []
    assert [f.cause for f in run_folder_findings(one, {**hello, "free_bytes": 1 << 20})] == ["disk-full"]
    assert [f.cause for f in run_folder_findings(one, {**hello, "noexec": True})] == ["workdir-not-writable"]
    for name, cause in {"ENOSPC": "disk-full", "EDQUOT": "disk-full", "EACCES": "workdir-not-writable"}.items():
        error = {"type": "OSError", "errno": name, "text": "no", "path": "/home/u"}
        assert run_folder_finding("node-a", error).cause == cause


RDMA = cluster(infiniband=Infiniband("mlx5"))
RDMA_OF_NCCL = replace(RDMA, rendezvous=replace(RDMA.rendezvous, backend="nccl"))
MIB = 1 << 20


def limits(*, shm_mib: int = 65536, shm_free_mib: int | None = None, **changed: Any) -> Facts:
    shm = {"bytes": shm_mib * MIB, "free_bytes": (shm_mib if shm_free_mib is None else shm_free_mib) * MIB}
    return {"limits": {"memlock_bytes": None, "memlock_hard_bytes": None, "open_files": 65536, **changed}, "shm": shm}


@pytest.mark.parametrize(
    ("inventory", "one", "facts", "causes", "warned"),
    [
        (RDMA_OF_NCCL, GPUS, limits(), [], 0),
        (RDMA_OF_NCCL, GPUS, limits(memlock_bytes=65536, memlock_hard_bytes=65536), ["memlock-limit"], 0),
        (RDMA_OF_NCCL, GPUS, limits(memlock_bytes=65536), ["memlock-limit"], 0),
        (RDMA_OF_NCCL, replace(GPUS, activate="ulimit -l unlimited"), limits(memlock_bytes=65536), [], 1),
        (
            RDMA_OF_NCCL,
            replace(GPUS, activate="ulimit -l unlimited"),
            limits(memlock_bytes=65536, memlock_hard_bytes=65536),
            ["memlock-limit"],
            0,
        ),
        (RDMA_OF_NCCL, GPUS, limits(memlock_bytes=65536, memlock_hard_bytes=65536, may_lock=True), [], 0),
        (RDMA_OF_NCCL, GPUS, limits(memlock_bytes=512 * MIB, memlock_hard_bytes=512 * MIB), [], 1),
        (RDMA, GPUS, limits(memlock_bytes=65536, memlock_hard_bytes=65536), [], 1),
        (cluster(), GPUS, limits(memlock_bytes=65536, memlock_hard_bytes=65536), [], 0),
        (cluster(), GPUS, limits(open_files=20), ["open-files-limit"], 0),
        (cluster(), GPUS, limits(open_files=512), [], 1),
        (cluster(), GPUS, limits(open_files=None), [], 0),
        (cluster(), GPUS, limits(address_space_bytes=700 << 20, cpu_seconds=3600), [], 2),
        (cluster(), GPUS, limits(address_space_bytes=None, cpu_seconds=None), [], 0),
        (cluster(), GPUS, limits(shm_mib=64), [], 1),
        (cluster(), GPUS, limits(shm_mib=16), ["shm-too-small"], 0),
        (cluster(), GPUS, limits(shm_mib=65536, shm_free_mib=5), ["shm-too-small"], 0),
        (cluster(), node("node-a", gpus=(0,)), limits(shm_mib=16), [], 0),
        (cluster(), node("node-a", gpus=tuple(range(8))), limits(shm_mib=64), ["shm-too-small"], 0),
        (cluster(), GPUS, {"limits": {}, "shm": None}, [], 1),
    ],
)
def test_limits(inventory: Any, one: Any, facts: Facts, causes: list[str], warned: int) -> None:
    warnings: list[str] = []
    assert [finding.cause for finding in limit_findings(inventory, one, facts, warnings)] == causes
    assert len(warnings) == warned


def test_a_full_dev_shm_is_not_made_larger_but_emptied() -> None:
    (finding,) = limit_findings(cluster(), GPUS, limits(shm_mib=65536, shm_free_mib=5), [])
    assert "rm /dev/shm/nccl-" in finding.remedy
    (finding,) = limit_findings(cluster(), GPUS, limits(shm_mib=8), [])
    assert finding.remedy == "on node-a: `sudo mount -o remount,size=8G /dev/shm`"


PLACE = {
    "workdir": "/home/ana/.runbook",
    "home": "/home/ana",
    "user": "ana",
    "owner": "root",
    "mode": "0755",
    "link": None,
    "there": "/home/ana",
    "folder": True,
    "mount": "/home",
    "full_of_files": False,
}


@pytest.mark.parametrize(
    ("code", "place", "cause", "words"),
    [
        ("EDQUOT", {}, "disk-full", "quota -s"),
        ("ENOSPC", {}, "disk-full", "du -xh"),
        ("ENOSPC", {"full_of_files": True}, "disk-full", "df -i /home"),
        ("EROFS", {}, "workdir-not-writable", "remount,rw /home"),
        ("ENOENT", {"link": "/gone"}, "workdir-not-writable", "-m 700 /gone`"),
        ("ENOTDIR", {"folder": False, "there": "/home/ana/.runbook"}, "workdir-not-writable", "`mv /home/ana/.runbook"),
        ("EACCES", {}, "workdir-not-writable", "-o ana -m 700 /home/ana/.runbook`"),
        ("EACCES", {"there": "/home"}, "workdir-not-writable", "-o ana -m 700 /home/ana`"),
        ("EACCES", {"there": "/data", "workdir": "/data"}, "workdir-not-writable", "`workdir: /data/ana`"),
        ("EIO", {}, "workdir-not-writable", "install -d"),
    ],
)
def test_why_the_folder_cannot_be_made(code: str, place: Facts, cause: str, words: str) -> None:
    error = {"errno": code, "text": "as the kernel says", "path": "/home/ana/.runbook/run"}
    (finding,) = run_folder_findings(node("node-a"), {"folder_error": error, "place": {**PLACE, **place}})
    assert finding.cause == cause
    assert words in finding.remedy
    assert any(code in line for line in finding.evidence)


def test_inodes_run_out_before_bytes_do() -> None:
    hello = {"folder": "/scratch/run/node-a", "free_bytes": 1 << 40, "place": {**PLACE, "mount": "/scratch"}}
    (finding,) = run_folder_findings(node("node-a"), {**hello, "free_files": 3})
    assert (finding.cause, "inodes" in finding.says) == ("disk-full", True)
    assert run_folder_findings(node("node-a"), {**hello, "free_files": None}) == []


def test_a_controller_whose_clock_is_wrong_blames_nobody() -> None:
    offsets = {"node-a": 40.0, "node-b": 40.2, "node-c": 39.9}
    warnings: list[str] = []
    assert [Clocks(offsets).finding(name, warnings) for name in offsets] == [None, None, None]
    assert warnings == []
    assert "this machine's is 40 s behind" in str(Clocks(offsets).proof("node-a"))
    assert Clocks({"node-a": 0.1, "node-b": -0.1}).proof("node-a") == "clock in step"
    assert Clocks({"node-a": 3.0, "node-b": 0.1}).proof("node-a") is None
    assert Clocks({"node-a": 3.0, "node-b": 0.1}).proof("node-c") is None


def answer(**options: Any) -> Answer:
    fields = {"code": 0, "message": None, "stdout": "", "stderr": "", "timed_out": False, "seconds": 0.1}
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
    outcome = no_answer_outcome("node-a", "reach", got)
    assert (outcome.verdict, [f.cause for f in outcome.findings]) == (verdict, [cause])


def test_what_cannot_be_judged_of_one_node_is_told_of_that_node_and_where_it_happened() -> None:
    try:
        1 // 0  # noqa: B018
    except ZeroDivisionError as error:
        outcome = no_answer_outcome("node-a", "reach", error)
    assert outcome.verdict is Verdict.UNKNOWN
    (finding,) = outcome.findings
    assert (finding.cause, "ZeroDivisionError" in finding.says) == ("tool-output-unknown", True)
    assert finding.evidence[0].startswith("test_reach.py:")


def imported(pool: RankPool, **versions: str) -> None:
    for member in pool.members:
        if name := versions.get(member.rank.node.replace("-", "_")):
            member.steps["imported"] = {"torch": name, "nccl": None, "gpus": 0, "gpu": None, "python": "3.11"}


def test_the_minority_of_torch_versions_is_named() -> None:
    pool = pool_of(cluster(node("node-a"), node("node-b"), node("node-c")))
    outcomes = [Outcome.passed(n.name, "ok") for n in pool.inventory.nodes]
    imported(pool, node_a="2.4.0", node_b="2.4.0", node_c="2.4.0")
    assert compare_torch_versions(outcomes, pool) == outcomes
    imported(pool, node_b="2.1.0")
    changed = compare_torch_versions(outcomes, pool)
    assert [o.verdict for o in changed] == [Verdict.PASS, Verdict.FAIL, Verdict.PASS]
    assert "torch==2.4.0" in changed[1].findings[0].remedy


@pytest.mark.parametrize(
    ("detailed", "odd"),
    [("", ""), ("abc", ""), ("b", "b"), ("ab", "c"), ("bc", "a")],
    ids=["none", "all", "1", "2", "3"],
)
def test_the_minority_that_debugs_torch_or_does_not_is_named(detailed: str, odd: str) -> None:
    pool = pool_of(cluster(node("node-a"), node("node-b"), node("node-c")))
    outcomes = [Outcome.passed(n.name, "ok") for n in pool.inventory.nodes]
    imported(pool, node_a="2.4.0", node_b="2.4.0", node_c="2.4.0")
    for member in pool.members:
        member.steps["imported"]["detail"] = member.rank.node[-1] in detailed
    failed = [o for o in compare_debug_settings(outcomes, pool) if o.verdict is Verdict.FAIL]
    assert [(o.node, o.findings[0].cause) for o in failed] == [(f"node-{x}", "mismatched-collectives") for x in odd]


def test_torch_that_never_came_is_unknown_and_torch_that_is_missing_a_failure() -> None:
    pool = pool_of(cluster(replace(node("node-a"), python="/opt/py/bin/python"), node("node-b")))
    first = pool.inventory.nodes[0]
    failures, unknown = torch_findings(pool, first, imported=set())
    assert (failures, [f.cause for f in unknown]) == ([], ["tool-output-unknown"])
    pool.members[0].failure = {"event": "failed", "cause": "torch-missing", "text": "no torch"}
    failures, unknown = torch_findings(pool, first, imported=set())
    assert ([f.cause for f in failures], unknown) == (["torch-missing"], [])
    assert "/opt/py/bin/python -m pip install torch" in failures[0].remedy
    assert torch_findings(pool, pool.inventory.nodes[1], imported={"node-b"}) == ([], [])
    assert torch_findings(None, first, imported=set()) == ([], [])


def test_torch_that_has_no_cpu_to_be_imported_is_told_as_that() -> None:
    pool = pool_of(cluster())
    first = pool.inventory.nodes[0]
    pool.looked = time.monotonic()
    member = pool.on(first.name)[0]
    del member.steps["imported"]
    other = {"pid": 7, "user": "ann", "command": "make -j 64", "cpu": 1.97}
    for state, cpu, busy, cause in (
        ("R", 0.2, [other], "node-too-busy"),
        ("R", 0.98, [other], "tool-output-unknown"),
        ("S", 0.0, [other], "tool-output-unknown"),
        ("R", 0.2, [], "tool-output-unknown"),
    ):
        member.processes = [{"pid": 5, "state": state, "comm": "python3.11", "wchan": "", "rank": 0, "cpu": cpu}]
        pool.seen[first.name] = {"busy": busy}
        failures, (finding,) = torch_findings(pool, first, imported=set())
        assert (failures, finding.cause) == ([], cause)
        assert ("pid 7 of ann uses 197% of a CPU: make -j 64" in finding.evidence) == (cause == "node-too-busy")


def test_an_activate_line_that_goes_round_and_round_is_named_on_a_busy_node_as_well() -> None:
    pool = pool_of(cluster(replace(node("node-a"), activate="while :; do :; done"), node("node-b")))
    first = pool.inventory.nodes[0]
    pool.looked = time.monotonic()
    (member,) = pool.on(first.name)
    member.steps = {}
    member.processes = [{"pid": 5, "state": "R", "comm": "sh", "wchan": "", "rank": None, "cpu": 0.3}]
    pool.seen[first.name] = {"busy": [{"pid": 7, "user": "ann", "command": "make -j 64", "cpu": 1.97}]}
    (finding,), unknown = torch_findings(pool, first, imported=set())
    assert (finding.cause, unknown) == ("activation-failed", [])


def test_a_node_that_is_lost_while_torch_is_imported_is_told_as_lost() -> None:
    pool = pool_of(cluster())
    first = pool.inventory.nodes[0]
    pool.on(first.name)[0].lost = Unreachable("tool-output-unknown", "it said what no program of ours says", "look")
    failures, (finding,) = torch_findings(pool, first, imported=set())
    assert (failures, finding.says) == ([], "it said what no program of ours says")


def test_loopback_of_the_made_up_world() -> None:
    """The tests above lean on it: an interface that is up has no state DOWN, and lo has its flag."""
    assert LO["state"] == "UNKNOWN"
    assert "LOOPBACK" in LO["flags"]
