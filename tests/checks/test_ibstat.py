"""ibstat: text and sysfs to ports, NCCL's selection rules, and the judgement. The text is infiniband-diags' own."""

from __future__ import annotations

from typing import Any

import pytest

from runbook.checks.ibstat import Port, as_rate, from_sysfs, judge, parse, select
from runbook.model.verdict import Outcome, Verdict

from .world import node

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
    assert from_sysfs({"mlx5_0": {"1": ports, "gid": {}}}) == [
        Port("mlx5_0", 1, "active", "linkup", 400.0, "InfiniBand")
    ]
    unread: dict[str, str | None] = dict.fromkeys(("state", "phys_state", "rate", "link_layer"))
    assert from_sysfs({"mlx5_0": {"1": unread}}) == [Port("mlx5_0", 1, "", "", None, "InfiniBand")]


@pytest.mark.parametrize(
    ("text", "rate"), [("200", 200.0), ("2.5 Gb/sec (1X SDR)", 2.5), ("", None), (None, None), ("unknown", None)]
)
def test_rates(text: str | None, rate: float | None) -> None:
    assert as_rate(text) == rate


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
    assert [p.name for p in select(expression, PORTS)] == names.split()


def test_without_an_expression_a_card_without_any_active_port_is_still_looked_at() -> None:
    idle = [port("mlx5_0", state="down")]
    assert select(None, idle) == idle


def test_healthy() -> None:
    outcome = judge(NODE, said(GOOD), "mlx5", 200)
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
        (GOOD.replace("State: Active", "State: Fancy"), "mlx5", None, ["ib-port-not-active"]),
        (GOOD, "mlx5", 400, ["ib-rate-low"]),
        (GOOD.replace("\t\tRate: 200\n", ""), "mlx5", 200, ["ib-rate-low"]),
        (GOOD, "mlx4", None, ["ib-hca-missing"]),
        (GOOD, "mlx5_0,mlx5_3", None, ["ib-hca-missing"]),
        (GOOD, "=mlx5", None, ["ib-hca-missing"]),
        (RECORDED.replace("200", "100"), "mlx5", 200, ["ib-rate-low", "ib-port-not-active"]),
    ],
)
def test_what_fails(text: str, expression: str | None, rate: float | None, causes: list[str]) -> None:
    assert cause_of(judge(NODE, said(text), expression, rate)) == (Verdict.FAIL, causes)


def test_an_idle_port_that_nccl_would_not_use_is_not_a_fault() -> None:
    for expression in (None, "=mlx5_0", "^mlx5_1", "mlx5_0"):
        assert judge(NODE, said(RECORDED), expression, 200).verdict is Verdict.PASS


def test_an_exact_name_is_not_present_because_a_longer_one_is() -> None:
    text = GOOD + GOOD.replace("mlx5_0", "mlx5_10")
    assert cause_of(judge(NODE, said(text), "=mlx5_0,mlx5_1", 200)) == (Verdict.FAIL, ["ib-hca-missing"])


def test_a_non_zero_exit_behind_good_ports_does_not_hide_them() -> None:
    """`ibpanic: stat of IB device 'mlx5_8' failed` comes after eight healthy ports."""
    answer = said(GOOD, tool={"code": 255, "err": "ibpanic: [1] main: stat of IB device 'mlx5_8' failed"})
    assert judge(NODE, answer, "mlx5", 200).verdict is Verdict.PASS


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
    outcome = judge(NODE, said(tool=tool, sysfs=SYSFS), "mlx5", 400)
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
    outcome = judge(NODE, answer, "mlx5", 200)
    assert cause_of(outcome) == expected
    assert all(finding.evidence for finding in outcome.findings)
