"""ibstat: text and sysfs to ports, NCCL's selection rules, and the judgement. The text is infiniband-diags' own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.checks.connection import tcp_fallback_finding
from runbook.checks.ibstat import ibstat_outcome, odd_fabric_findings, select_ports, spare_ports, uneven_port_warnings
from runbook.model.verdict import Outcome, Verdict
from runbook.parsers.infiniband import Port, link_rate_gbps, parse, ports_from_sysfs

from .made_up_cluster import node

# Recorded from infiniband-diags 44 on the lab's simulated fabric: a port with a cable, and one without.
RECORDED = """\
CA 'mlx5_0'
\tCA type: MT4123
\tNumber of ports: 1
\tFirmware version: 1
\tHardware version: a1
\tNode GUID: 0x0000000000100000
\tSystem image GUID: 0x0000000000100000
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 200
\t\tBase lid: 2
\t\tLMC: 0
\t\tSM lid: 1
\t\tCapability mask: 0x0050c048
\t\tPort GUID: 0x0000000000100001
\t\tLink layer: InfiniBand
CA 'mlx5_1'
\tCA type: MT4123
\tNumber of ports: 1
\tFirmware version: 1
\tHardware version: a1
\tNode GUID: 0x0000000000100002
\tSystem image GUID: 0x0000000000100002
\tPort 1:
\t\tState: Down
\t\tPhysical state: Polling
\t\tRate: 200
\t\tBase lid: 0
\t\tLMC: 0
\t\tSM lid: 0
\t\tCapability mask: 0x0010c048
\t\tPort GUID: 0x0000000000100003
\t\tLink layer: InfiniBand
"""
GOOD = RECORDED.partition("CA 'mlx5_1'")[0]
INITIALIZING = GOOD.replace("Active", "Initializing").replace("SM lid: 1", "SM lid: 0")
NODE = node("node-a")


def said(text: str = "", **options: Any) -> dict[str, Any]:
    """What the node program says when ibstat printed this."""
    return {"ibstat": {"code": 0, "out": text, "err": "", **options.pop("tool", {})}, "sysfs": options.get("sysfs")}


def cause_of(outcome: Outcome) -> tuple[Verdict, list[str]]:
    return outcome.verdict, [finding.cause for finding in outcome.findings]


def port(hca: str, number: int = 1, state: str = "active") -> Port:
    return Port(hca, number, state, "linkup", 400.0, "InfiniBand")


def test_the_recorded_text_is_read_whole() -> None:
    assert parse(RECORDED) == [
        Port("mlx5_0", 1, "active", "linkup", 200.0, "InfiniBand"),
        Port("mlx5_1", 1, "down", "polling", 200.0, "InfiniBand"),
    ]


def test_two_ports_of_one_card_and_spaces_for_tabs() -> None:
    text = (GOOD + GOOD.partition("System image")[2].partition("\n")[2].replace("Port 1:", "Port 2:")).expandtabs(8)
    assert [(p.name, p.state) for p in parse(text)] == [("mlx5_0:1", "active"), ("mlx5_0:2", "active")]


@pytest.mark.parametrize("text", ["", "\n", "Port\nState\n", "CA 'mlx5_0'\n\tCA type: MT4123\n", "ibpanic: main: stat"])
def test_text_without_a_port_gives_no_port(text: str) -> None:
    assert parse(text) == []


def test_sysfs() -> None:
    ports = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}
    assert ports_from_sysfs({"mlx5_0": {"1": ports, "gid": {}}}) == [
        Port("mlx5_0", 1, "active", "linkup", 400.0, "InfiniBand")
    ]
    unread: dict[str, str | None] = dict.fromkeys(("state", "phys_state", "rate", "link_layer"))
    assert ports_from_sysfs({"mlx5_0": {"1": unread}}) == [Port("mlx5_0", 1, "", "", None, "InfiniBand")]


@pytest.mark.parametrize(
    ("text", "rate"), [("200", 200.0), ("2.5 Gb/sec (1X SDR)", 2.5), ("", None), (None, None), ("unknown", None)]
)
def test_rates(text: str | None, rate: float | None) -> None:
    assert link_rate_gbps(text) == rate


PORTS = [port("mlx5_0"), port("mlx5_1"), port("mlx5_1", 2), port("mlx5_10"), port("rocep1", state="down")]


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        # NCCL user guide, NCCL_IB_HCA: prefixes; `=` exact; `^` all but; `:N` one port.
        ("mlx5", "mlx5_0:1 mlx5_1:1 mlx5_1:2 mlx5_10:1"),
        ("mlx5_1", "mlx5_1:1 mlx5_1:2 mlx5_10:1"),
        ("=mlx5_1", "mlx5_1:1 mlx5_1:2"),
        ("=mlx5_1:2", "mlx5_1:2"),
        ("mlx5_1:1", "mlx5_1:1 mlx5_10:1"),
        ("mlx5_0,rocep1", "mlx5_0:1 rocep1:1"),
        ("^mlx5_1", "mlx5_0:1 rocep1:1"),
        ("^=mlx5_1", "mlx5_0:1 mlx5_10:1 rocep1:1"),
        ("^=mlx5_1:2,mlx5_0", "mlx5_1:1 mlx5_10:1 rocep1:1"),
        ("=mlx5", ""),
        ("efa", ""),
        ("^mlx5,rocep", ""),
        (None, "mlx5_0:1 mlx5_1:1 mlx5_1:2 mlx5_10:1"),
        ("", "mlx5_0:1 mlx5_1:1 mlx5_1:2 mlx5_10:1"),
    ],
)
def test_selection_as_nccl_does_it(expression: str | None, names: str) -> None:
    assert [p.name for p in select_ports(expression, PORTS)] == names.split()


def test_without_an_expression_a_card_without_any_active_port_is_still_looked_at() -> None:
    idle = [port("mlx5_0", state="down")]
    assert select_ports(None, idle) == idle


def test_healthy() -> None:
    outcome = ibstat_outcome(NODE, said(GOOD), "mlx5", 200)
    assert outcome.verdict is Verdict.PASS
    assert outcome.proof == "mlx5_0:1 Active, LinkUp at 200 Gbit/s (promised 200), by ibstat"


@pytest.mark.parametrize(
    ("text", "expression", "rate", "causes"),
    [
        (RECORDED, "mlx5", None, ["ib-port-not-active"]),
        (INITIALIZING, "mlx5", None, ["ib-port-initializing"]),
        (INITIALIZING, None, None, ["ib-port-initializing"]),
        (GOOD.replace("Active", "Armed"), "mlx5", None, ["ib-port-initializing"]),
        (GOOD.replace("Active", "Down").replace("LinkUp", "Disabled"), "mlx5", None, ["ib-port-not-active"]),
        (GOOD.replace("LinkUp", "LinkErrorRecovery"), "mlx5", None, ["ib-port-not-active"]),
        (GOOD, "mlx5", 400, ["ib-rate-low"]),
        (GOOD, "mlx4", None, ["ib-hca-missing"]),
        (GOOD, "mlx5_0,mlx5_3", None, ["ib-hca-missing"]),
        (GOOD, "=mlx5", None, ["ib-hca-missing"]),
        (RECORDED.replace("200", "100"), "mlx5", 200, ["ib-rate-low", "ib-port-not-active"]),
    ],
)
def test_what_fails(text: str, expression: str | None, rate: float | None, causes: list[str]) -> None:
    assert cause_of(ibstat_outcome(NODE, said(text), expression, rate)) == (Verdict.FAIL, causes)


def test_an_idle_port_that_nccl_would_not_use_is_not_a_fault() -> None:
    for expression in (None, "=mlx5_0", "^mlx5_1", "mlx5_0"):
        assert ibstat_outcome(NODE, said(RECORDED), expression, 200).verdict is Verdict.PASS


def test_an_exact_name_is_not_present_because_a_longer_one_is() -> None:
    text = GOOD + GOOD.replace("mlx5_0", "mlx5_10")
    assert cause_of(ibstat_outcome(NODE, said(text), "=mlx5_0,mlx5_1", 200)) == (Verdict.FAIL, ["ib-hca-missing"])


def test_a_non_zero_exit_behind_good_ports_does_not_hide_them() -> None:
    """`ibpanic: stat of IB device 'mlx5_8' failed` comes after eight healthy ports: then the kernel tells of all."""
    panic = {"code": 255, "err": "ibpanic: [1] main: stat of IB device 'mlx5_8' failed"}
    assert ibstat_outcome(NODE, said(GOOD, tool=panic, sysfs=SYSFS), "mlx5", 200).verdict is Verdict.PASS
    assert cause_of(ibstat_outcome(NODE, said(GOOD, tool=panic), "mlx5", 200)) == (
        Verdict.UNKNOWN,
        ["tool-output-unknown"],
    )


@pytest.mark.parametrize(
    "text",
    [
        GOOD + GOOD.replace("mlx5_0", "mlx5_1").partition("Physical state")[0],
        GOOD + "CA 'mlx5_1'\n\tCA type: MT4123\n\tNumber of ports: 1\n",
        GOOD.replace("Number of ports: 1", "Number of ports: 2"),
        GOOD.replace("\t\tRate: 200\n", ""),
        GOOD.replace("State: Active", "State: Activ"),
        GOOD.replace("State: Active", "State: Fancy"),
    ],
)
@pytest.mark.parametrize("rate", [None, 200])
def test_ports_that_are_not_told_of_are_not_known(text: str, rate: float | None) -> None:
    assert text != GOOD
    assert cause_of(ibstat_outcome(NODE, said(text), "mlx5", rate)) == (Verdict.UNKNOWN, ["tool-output-unknown"])


SYSFS = {
    "mlx5_0": {
        "1": {
            "state": "4: ACTIVE",
            "phys_state": "5: LinkUp",
            "rate": "400 Gb/sec (4X NDR)",
            "link_layer": "InfiniBand",
        }
    }
}


@pytest.mark.parametrize("tool", [{"missing": True}, {"timed_out": True}, {"out": "", "code": 1}, {"out": "garbage"}])
def test_the_kernel_is_read_where_ibstat_shows_nothing(tool: dict[str, Any]) -> None:
    outcome = ibstat_outcome(NODE, said(tool=tool, sysfs=SYSFS), "mlx5", 400)
    assert outcome.verdict is Verdict.PASS
    assert "/sys/class/infiniband" in (outcome.proof or "")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (said(tool={"missing": True}), (Verdict.UNKNOWN, ["tool-missing"])),
        (said(tool={"timed_out": True, "code": None}), (Verdict.UNKNOWN, ["tool-output-unknown"])),
        (said("command line option unknown\n", tool={"code": 2}), (Verdict.UNKNOWN, ["tool-output-unknown"])),
        (said("Segmentation fault", tool={"code": -11}), (Verdict.UNKNOWN, ["tool-output-unknown"])),
        (said(""), (Verdict.FAIL, ["ib-no-device"])),
        (said(tool={"missing": True}, sysfs={}), (Verdict.FAIL, ["ib-no-device"])),
        (
            said(tool={"err": "can't open /dev/infiniband/umad0: No such file or directory"}),
            (Verdict.FAIL, ["ib-no-device"]),
        ),
    ],
)
def test_seeing_nothing_is_never_healthy(answer: dict[str, Any], expected: tuple[Verdict, list[str]]) -> None:
    outcome = ibstat_outcome(NODE, answer, "mlx5", 200)
    assert cause_of(outcome) == expected
    assert all(finding.evidence for finding in outcome.findings)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("mlx5_0,mlxl5_1", "did you mean `mlx5_0`?"),
        ("=mlx5", "write `mlx5` without `=`"),
        ("=mlx5_0:2", "has a port 2"),
        ("^mlx5", "leaves node-a no HCA"),
    ],
)
def test_a_name_that_selects_nothing_is_told_with_what_would(expression: str, words: str) -> None:
    outcome = ibstat_outcome(NODE, said(GOOD), expression, 200)
    assert cause_of(outcome) == (Verdict.FAIL, ["ib-hca-missing"])
    assert words in outcome.findings[0].says + outcome.findings[0].remedy


def test_a_name_that_takes_more_than_it_seems_to_is_warned_of() -> None:
    text = GOOD.replace("mlx5_0", "mlx5_1") + GOOD.replace("mlx5_0", "mlx5_10")
    assert "mlx5_10" in ibstat_outcome(NODE, said(text), "mlx5_1", 200).warnings[0]
    assert ibstat_outcome(NODE, said(text), "=mlx5_1", 200).warnings == ()
    assert ibstat_outcome(NODE, said(text), "mlx5", 200).warnings == ()


def test_ethernet_beside_infiniband_is_not_what_is_meant() -> None:
    text = GOOD + GOOD.replace("mlx5_0", "mlx5_8").replace("InfiniBand", "Ethernet").replace("200", "40")
    outcome = ibstat_outcome(NODE, said(text), None, 200)
    assert outcome.verdict is Verdict.PASS
    assert "mlx5_8:1 is Ethernet" in outcome.warnings[0]
    assert cause_of(ibstat_outcome(NODE, said(text), "mlx5", 200)) == (Verdict.FAIL, ["ib-rate-low"])


ROCE = GOOD.replace("InfiniBand", "Ethernet").replace("SM lid: 1", "SM lid: 0")
V2 = {"gid": "0000:0000:0000:0000:0000:ffff:0a00:0001", "type": "RoCE v2", "ndev": "ens1"}
V1 = {**V2, "type": "IB/RoCE v1"}
LOCAL = {**V2, "gid": "fe80:0000:0000:0000:0ac0:ebff:fe00:0001"}


@pytest.mark.parametrize(
    ("table", "index", "causes"),
    [
        ({"0": LOCAL, "3": V2}, None, []),
        ({"0": LOCAL, "3": V2}, "3", []),
        ({"0": LOCAL, "3": V2}, "-1", []),
        ({"0": LOCAL, "2": V1, "3": V2}, "2", ["roce-wrong-gid-index"]),
        ({"0": LOCAL, "3": V2}, "0", ["roce-wrong-gid-index"]),
        ({"0": LOCAL, "3": V2}, "5", ["roce-wrong-gid-index"]),
        ({"0": LOCAL, "3": V2}, "40", []),  # behind what is read of the table
        ({"0": LOCAL}, None, ["roce-wrong-gid-index"]),
        ({"0": LOCAL}, "-1", ["roce-wrong-gid-index"]),  # NCCL's own value: it looks for one
        ({}, None, ["roce-wrong-gid-index"]),
    ],
)
def test_the_gid_that_roce_will_use(table: dict[str, Any], index: str | None, causes: list[str]) -> None:
    answer = {**said(ROCE), "gids": {"mlx5_0:1": table}}
    outcome = ibstat_outcome(NODE, answer, "mlx5", 200, index)
    assert [finding.cause for finding in outcome.findings] == causes
    # Neither a table that could not be read nor InfiniBand has a wrong one.
    assert ibstat_outcome(NODE, said(ROCE), "mlx5", 200, index).verdict is Verdict.PASS
    assert ibstat_outcome(NODE, {**answer, **said(GOOD)}, "mlx5", 200, index).verdict is Verdict.PASS


def test_an_ethernet_port_waits_for_no_subnet_manager() -> None:
    outcome = ibstat_outcome(NODE, said(ROCE.replace("Active", "Initializing")), "mlx5", 200)
    assert cause_of(outcome) == (Verdict.FAIL, ["ib-port-not-active"])
    assert "rdma link show mlx5_0/1" in outcome.findings[0].remedy


def test_a_disabled_port_is_enabled_by_a_command() -> None:
    text = GOOD.replace("Active", "Down").replace("LinkUp", "Disabled")
    (finding,) = ibstat_outcome(NODE, said(text), "mlx5", None).findings
    assert "`sudo ibportstate -C mlx5_0 -P 1 -D 0 1 enable`" in finding.remedy


def test_one_lane_of_four_is_told_where_the_kernel_tells_it() -> None:
    seen = {"mlx5_0": {"1": {**SYSFS["mlx5_0"]["1"], "rate": "50 Gb/sec (1X HDR)"}}}
    text = GOOD.replace("Rate: 200", "Rate: 50")
    assert "one lane instead of four" in ibstat_outcome(NODE, said(text, sysfs=seen), "mlx5", 200).findings[0].says


LOADER = "ibstat: error while loading shared libraries: libibumad.so.3: cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    "error", [LOADER, "sh: 1: ibstat: not found", "can't open /dev/infiniband/umad0: Permission denied"]
)
def test_an_ibstat_that_does_not_run_says_nothing_about_devices(error: str) -> None:
    answer = said(tool={"code": 127, "err": error})
    assert cause_of(ibstat_outcome(NODE, answer, "mlx5", 200)) == (Verdict.UNKNOWN, ["tool-output-unknown"])


def test_a_card_without_its_driver() -> None:
    outcome = ibstat_outcome(NODE, {**said(""), "cards": 2}, "mlx5", 200)
    assert outcome.findings[0].remedy == "sudo modprobe mlx5_ib"
    assert "no driver has taken it" in outcome.findings[0].says


@given(text=st.text() | st.text(alphabet="CAPortSe:'mlx5_01 \n\tActiveLinkUp"), code=st.sampled_from([0, 1, 255]))
def test_no_text_without_a_sound_port_is_healthy(text: str, code: int) -> None:
    outcome = ibstat_outcome(NODE, said(text, tool={"code": code}), "mlx5", 200)
    sound = [p for p in parse(text) if p.sound]
    assert outcome.verdict is not Verdict.PASS or sound


# Side by side.


TWO = GOOD + GOOD.replace("mlx5_0", "mlx5_1").replace("Active", "Down").replace("LinkUp", "Polling")


@pytest.mark.parametrize("expression", ["mlx5", "mlx", "^mlx5_9"])
def test_a_port_that_is_down_on_every_node_is_a_spare(expression: str) -> None:
    outcome = ibstat_outcome(NODE, said(TWO), expression, 200, spare={"mlx5_1:1"})
    assert outcome.verdict is Verdict.PASS
    assert "mlx5_1:1 is down on every node" in outcome.warnings[0]
    assert cause_of(ibstat_outcome(NODE, said(TWO), expression, 200)) == (Verdict.FAIL, ["ib-port-not-active"])


@pytest.mark.parametrize("expression", ["mlx5_0,mlx5_1", "=mlx5_0,mlx5_1", "mlx5_1:1"])
def test_a_port_that_the_inventory_names_must_be_up_everywhere(expression: str) -> None:
    outcome = ibstat_outcome(NODE, said(TWO), expression, 200, spare={"mlx5_1:1"})
    assert cause_of(outcome) == (Verdict.FAIL, ["ib-port-not-active"])


def test_where_every_port_is_down_none_is_a_spare() -> None:
    down = GOOD.replace("Active", "Down").replace("LinkUp", "Polling")
    assert cause_of(ibstat_outcome(NODE, said(down), "mlx5", 200, spare={"mlx5_0:1"})) == (
        Verdict.FAIL,
        ["ib-port-not-active"],
    )


def test_what_is_down_on_every_node() -> None:
    up, down, waits = port("mlx5_0"), port("mlx5_1", state="down"), port("mlx5_1", state="initializing")
    assert spare_ports({"a": [up, down], "b": [up, down]}) == {"mlx5_1:1"}
    assert spare_ports({"a": [up, down], "b": [up, port("mlx5_1")]}) == set()
    assert spare_ports({"a": [up, waits], "b": [up, waits]}) == set(), "nobody has set it up: no spare"
    assert spare_ports({"a": [up, down]}) == set(), "one node has nobody to be like"
    odd = {"c": [], "d": [up]}
    assert spare_ports({"a": [up, down], "b": [up, down], **odd}) == {"mlx5_1:1"}, "who has no such port says nothing"


def test_nodes_that_differ_are_warned_of() -> None:
    two, one = [port("mlx5_0"), port("mlx5_1")], [port("mlx5_0")]
    assert uneven_port_warnings({"a": two, "b": two}, promised=False) == {}
    assert "rails do not match" in uneven_port_warnings({"a": two, "b": one, "c": two}, promised=True)["b"][0]
    slow = [replace(port("mlx5_0"), rate_gbps=100.0)]
    assert "100 Gbit/s, others at 400" in uneven_port_warnings({"a": one, "b": slow}, promised=False)["b"][0]
    assert uneven_port_warnings({"a": one, "b": slow}, promised=True) == {}


def test_ports_of_another_kind_cannot_meet() -> None:
    ib, ether = [port("mlx5_0")], [replace(port("mlx5_0"), link_layer="Ethernet")]
    assert odd_fabric_findings({"a": ib, "b": ib, "c": []}) == {}
    assert odd_fabric_findings({"a": ether, "b": ether}) == {}
    assert odd_fabric_findings({"a": ib, "b": [*ib, *ether]}) == {}, "what one has of both kinds reaches the other"
    even = odd_fabric_findings({"a": ether, "b": ib})
    assert list(even) == ["a"], "the inventory says infiniband"
    assert "LINK_TYPE_P1=1" in even["a"].remedy
    odd = odd_fabric_findings({"a": ether, "b": ib, "c": ether})
    assert (list(odd), odd["b"].cause, odd["b"].peers) == (["b"], "rdma-peer-unreachable", ("a", "c"))
    assert "LINK_TYPE_P1=2" in odd["b"].remedy


# Did NCCL use it? Lines as NCCL 2.18 to 2.27 print them.

HEAD = "node-a:4242:4250 [0] NCCL INFO "
TCP = [HEAD + "NET/Socket : Using [0]eth0:10.0.0.1<0>", HEAD + "Using network Socket"]
CHANNEL = HEAD + "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([HEAD + "NET/IB : No device found.", *TCP], "no device that it may use"),
        ([HEAD + "NCCL_IB_DISABLE set by environment to 1.", *TCP], "NCCL_IB_DISABLE=1 forbids it"),
        (
            [HEAD + "NET/IB : No device found.", HEAD + "NCCL_IB_DISABLE set by environment to 1.", *TCP],
            "NCCL_IB_DISABLE=1",
        ),
        ([HEAD + "Failed to open libibverbs.so[.1]", *TCP], "libibverbs is not installed"),
        ([CHANNEL], "does not say why"),
    ],
)
def test_nccl_fell_back_to_tcp(lines: list[str], words: str) -> None:
    finding = tcp_fallback_finding("node-a", lines)
    assert finding is not None
    assert finding.cause == "ib-not-used-socket-fallback"
    assert words in finding.says
    assert set(finding.evidence) <= set(lines)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["Using network Socket"],  # not NCCL's
        [HEAD + "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>", HEAD + "Using network IB"],
        [*TCP, HEAD + "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA"],
        [HEAD + "Using network AWS Libfabric", CHANNEL],
        [HEAD + "NET/Socket : Using [0]eth0:10.0.0.1<0>"],  # the bootstrap's: it says nothing about the data
        [HEAD + "NET/IB : No device found."],
    ],
)
def test_nccl_uses_rdma_or_does_not_say(lines: list[str]) -> None:
    assert tcp_fallback_finding("node-a", lines) is None
