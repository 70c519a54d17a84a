"""What rises between two readings of a node's counters, what is normal, and what nobody could read."""

from __future__ import annotations

from typing import cast

import pytest

from runbook.jobs.counters import IB_PORT_LIMITS, INTERFACE_LIMITS, not_read, rising_counter_findings
from runbook.transport.node_answers import Counters, Ran

QUERY = ["index", "uuid", "name", "clocks.sm", "clocks.max.sm", "temperature.gpu", "clocks_event_reasons.active"]
ECC = "ecc.errors.uncorrected.volatile.total"


def reading(
    clock: float = 0.0,
    *,
    net: dict[str, int | None] | None = None,
    tcp: tuple[int, int] | None = (0, 0),
    port: dict[str, int | None] | None = None,
    gpu: tuple[str, str] | None = None,
    xids: list[str] | None = None,
    bus: str = "",
) -> Counters:
    """`tcp`: segments sent, and sent again; `gpu`: its throttle reasons and uncorrectable errors."""
    interface = {"rx_packets": 0, "tx_packets": 0, **{limit.counter: 0 for limit in INTERFACE_LIMITS}, **(net or {})}
    row = f"0, GPU-1, H100, 1200, 1980, 88, {gpu[0]}, {gpu[1]}, {bus}\n" if gpu else ""
    told = {
        "clock": clock,
        "interfaces": {"eth0": interface},
        "tcp": tcp and {"OutSegs": tcp[0], "RetransSegs": tcp[1]},
        "ports": {"mlx5_0:1": {**{limit.counter: 0 for limit in IB_PORT_LIMITS}, **port}} if port is not None else {},
        "machine": {},
        "gpus": {"code": 0, "out": row, "fields": [*QUERY, ECC, "pci.bus_id"]} if gpu else None,
        "xids": xids,
    }
    return cast(Counters, told)


def told(then: Counters, now: Counters) -> list[str]:
    return [finding.says for _, finding in rising_counter_findings("node-b", then, now)]


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (reading(), reading(30.0)),
        (reading(), reading(30.0, tcp=(100_000, 2_900))),  # TCP that looks for its rate
        (reading(), reading(30.0, tcp=(60, 49))),  # a handful says nothing
        (reading(), reading(30.0, net={"rx_packets": 10_000_000, "rx_crc_errors": 90})),
        (reading(), reading(30.0, net={"rx_packets": 50_000, "rx_dropped": 450})),  # LLDP, VLANs of others
        (reading(), reading(200.0, net={"rx_packets": 4_000, "rx_dropped": 110})),  # beside a job over RDMA
        (reading(port={"symbol_error": 5}), reading(3600.0, port={"symbol_error": 124})),
        (reading(port={"port_rcv_errors": 0}), reading(30.0, port={"port_rcv_errors": 300})),
        (reading(gpu=("0x0000000000000004", "0")), reading(30.0, gpu=("0x0000000000000005", "0"))),  # idle, power cap
        (reading(gpu=("0x0000000000000040", "0")), reading(2.0, gpu=("0x0000000000000040", "0"))),  # for a moment
        (reading(gpu=("0x0000000000000000", "3")), reading(30.0, gpu=("0x0000000000000040", "3"))),
        (reading(xids=["[ 1.0] NVRM: Xid (PCI:0000:1b:00): 31, x"]), reading(30.0, xids=[])),
        # the GPU of somebody else's job
        (
            reading(gpu=("0x0", "0"), bus="00000000:0A:00.0", xids=[]),
            reading(30.0, gpu=("0x0", "0"), bus="00000000:0A:00.0", xids=["[ 9.0] NVRM: Xid (PCI:0000:1b:00): 31, x"]),
        ),
        # hot twice, hours apart
        (reading(gpu=("0x40", "0")), reading(20_000.0, gpu=("0x40", "0"))),
    ],
)
def test_what_healthy_nodes_count_is_not_told(then: Counters, now: Counters) -> None:
    assert told(then, now) == []


@pytest.mark.parametrize(
    ("then", "now", "words"),
    [
        (
            reading(tcp=(10, 0)),
            reading(30.0, tcp=(2_010, 80)),
            "80 TCP segments were sent again in 30.0 s (4.0% of 2,000)",
        ),
        (
            reading(net={"rx_packets": 7}),
            reading(30.0, net={"rx_packets": 100_007, "rx_crc_errors": 12, "rx_errors": 12}),
            "eth0 of node-b: 12 frames arrived broken",
        ),
        (reading(), reading(30.0, net={"tx_packets": 10_000, "tx_dropped": 200}), "200 packets were dropped"),
        (reading(), reading(30.0, net={"carrier_down_count": 1}), "eth0 of node-b: 1 times the link was down"),
        (reading(port={}), reading(30.0, port={"link_downed": 1}), "mlx5_0:1 of node-b: 1 times the link was down"),
        (reading(port={}), reading(3600.0, port={"symbol_error": 121}), "121 symbol errors"),
        (reading(port={"port_rcv_errors": 9}), reading(30.0, port={"port_rcv_errors": 400}), "391 packets arrived"),
        (
            reading(gpu=("0x48", "0")),
            reading(30.0, gpu=("0x40", "0")),
            "HW thermal slowdown, at 1200 of 1980 MHz, 88 °C",
        ),
        (reading(gpu=("0x0", "1")), reading(1.0, gpu=("0x0", "3")), "GPU 0 of node-b: 2 memory errors"),
        (
            reading(xids=["[ 1.0] NVRM: Xid (PCI:0000:1b:00): 31, x"]),
            reading(1.0, xids=["[ 1.0] NVRM: Xid (PCI:0000:1b:00): 31, x", "[ 9.0] NVRM: Xid (PCI:0000:1b:00): 79, y"]),
            "Xid 79 of the GPU at 0000:1b:00",
        ),
    ],
)
def test_what_rises_is_told_once_with_its_numbers(then: Counters, now: Counters, words: str) -> None:
    (says,) = told(then, now)
    assert words in says


def test_a_counter_that_somebody_set_back_counts_from_zero() -> None:
    then = reading(net={"rx_packets": 900_000, "rx_crc_errors": 5000})
    assert told(then, reading(30.0, net={"rx_packets": 1000, "rx_crc_errors": 3})) == []
    assert "40 frames" in told(then, reading(30.0, net={"rx_packets": 1000, "rx_crc_errors": 40}))[0]


def test_what_could_not_be_read_is_neither_healthy_nor_rising() -> None:
    blind = reading(net={"rx_crc_errors": None}, tcp=None, port={"link_downed": None, "symbol_error": 0xFFFF})
    assert told(blind, reading(30.0, net={"rx_crc_errors": 99}, port={"link_downed": 9, "symbol_error": 0xFFFF})) == []
    missing = not_read(blind, gpus=True)
    assert [line.partition(":")[0] for line in missing] == [
        "eth0",
        "TCP segments sent again",
        "mlx5_0",
        "mlx5_0",
        "GPUs",
        "Xid",
    ]
    assert "symbol_error (they stand at their highest value)" in missing[3]
    assert not_read(reading(), gpus=False) == []


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"timed_out": True, "code": None, "out": "", "err": ""}, "does not return"),
        ({"code": 9, "out": "", "err": "NVIDIA-SMI has failed"}, "says nothing"),
        ({"code": 0, "out": "No devices were found\n", "fields": QUERY}, "says nothing"),
    ],
)
def test_a_driver_that_does_not_answer_is_told_as_not_read(said: Ran, words: str) -> None:
    facts = reading(xids=[])
    facts["gpus"] = said
    (line,) = not_read(facts, gpus=True)
    assert words in line
    assert told(facts, facts) == []
