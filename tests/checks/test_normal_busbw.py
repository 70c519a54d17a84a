"""Which bandwidth is normal: every number of the table is judged normal, half of it slow, and the page says the same."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

import pytest

from runbook.checks.bandwidth.normal_busbw import (
    BandwidthComparison,
    BandwidthSetting,
    Expectation,
    NotKnown,
    expected_busbw,
    normal_busbw_table,
    rate_range_text,
)
from runbook.model.units import bytes_text, significant_digits_text

LARGE = 16 << 30
GPUS = {
    "V100 SXM": "Tesla V100-SXM2-32GB",
    "A100 SXM": "NVIDIA A100-SXM4-80GB",
    "H100 SXM": "NVIDIA H100 80GB HBM3",
    "H200 SXM": "NVIDIA H200",
    "H800 SXM": "NVIDIA H800",
    "B200": "NVIDIA B200",
    "MI300X": "AMD Instinct MI300X",
    "H100 NVL": "NVIDIA H100 NVL",
}
INSIDE = normal_busbw_table()["inside"]
MEASURED = normal_busbw_table()["adapters"]["measured"]


def known(setting: BandwidthSetting) -> Expectation:
    expected = expected_busbw(setting)
    assert isinstance(expected, Expectation), expected
    return expected


def numbers(row: Mapping[str, Any]) -> list[float]:
    return [number for number in row["busbw"] if number is not None]


@pytest.mark.parametrize("row", INSIDE, ids=lambda row: f"{row['gpus']} {row['name']} {row['algorithm']}")
@pytest.mark.parametrize("named", [True, False])
def test_numbers_inside_a_node(row: Mapping[str, Any], named: bool) -> None:
    """With NCCL_ALGO set and without: then any algorithm's number is a normal one."""
    expected = known(
        BandwidthSetting(
            "nccl", (row["gpus"],), (GPUS[row["name"]],) * row["gpus"], algorithm=row["algorithm"] if named else None
        )
    )
    for number in numbers(row):
        assert not BandwidthComparison(expected, number, LARGE).slow
    if named or row["algorithm"] != "nvls":
        assert BandwidthComparison(expected, max(numbers(row)) / 2, LARGE).slow
    assert row["source"].split(",")[0] in expected.source


def between(row: Mapping[str, Any]) -> BandwidthSetting:
    nodes, gpus = row["nodes"], row["gpus"]
    adapters = ((float(row["gbps"]),) * row["adapters"],) * nodes
    return BandwidthSetting("nccl", (gpus,) * nodes, (row["gpu"],) * gpus * nodes, adapters, algorithm=row["algorithm"])


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: row["what"])
def test_numbers_between_nodes(row: Mapping[str, Any]) -> None:
    expected = known(between(row))
    for number in numbers(row):
        assert not BandwidthComparison(expected, number, LARGE).slow
        assert BandwidthComparison(expected, number / 2, LARGE).slow


CURVES = {
    "8 x H200, ml-engineering": (
        BandwidthSetting("nccl", (8,), ("NVIDIA H200",) * 8),
        {1: 74.57, 4: 145.14, 16: 255.9, 64: 368.86, 256: 441.87, 1024: 465.91, 16384: 482.25},
    ),
    "4 nodes of 8 x B200, ml-engineering": (
        BandwidthSetting("nccl", (8,) * 4, ("NVIDIA B200",) * 32, ((400.0,) * 8,) * 4),
        {1: 12.47, 4: 31.63, 16: 71.8, 64: 197.77, 256: 283.23, 1024: 365.99, 16384: 376.71},
    ),
}


@pytest.mark.parametrize("name", CURVES)
def test_a_healthy_sweep_is_never_slow_however_small_its_messages(name: str) -> None:
    setting, curve = CURVES[name]
    expected = known(setting)
    for mib, busbw in curve.items():
        assert not BandwidthComparison(expected, busbw, mib << 20).slow, mib
    assert BandwidthComparison(expected, curve[16] / 10, 16 << 20).slow


def test_a_sweep_that_ended_early_is_not_called_slow_and_not_called_normal() -> None:
    expected = known(between(MEASURED[4]))
    early = BandwidthComparison(expected, 60.0, 16 << 20)
    assert early.early
    assert not early.slow
    assert "too small to tell" in early.says
    assert not BandwidthComparison(expected, 366.0, LARGE).early
    # So slow that the budget ended it there: that is no excuse.
    assert BandwidthComparison(expected, 0.001, 512 << 10).slow
    assert BandwidthComparison(expected, 1.0, 16 << 20).slow


def test_two_nodes_flatter_and_it_is_said() -> None:
    both = between(MEASURED[3])
    assert "NCCL_ALGO: RING" in known(both).note
    ring = BandwidthSetting("nccl", both.ranks, both.gpus, both.adapters, algorithm="ring")
    assert known(ring).note == ""
    assert known(ring).range == "328 to 370 GB/s"  # NVLink carries no more than that with Ring
    four = between(MEASURED[4])
    assert known(four).note == ""


def test_the_node_with_the_fewest_adapters_decides() -> None:
    full, less = (400.0,) * 8, (400.0,) * 4
    setting = BandwidthSetting("nccl", (8, 8, 8), ("NVIDIA H100 80GB HBM3",) * 24, (full, less, full))
    assert known(setting).high == pytest.approx(0.97 * 200)


def test_a_gpu_sends_no_faster_than_its_slot() -> None:
    setting = BandwidthSetting("nccl", (1, 1), ("NVIDIA H100 80GB HBM3",) * 2, ((400.0,) * 4,) * 2)
    expected = known(setting)
    assert expected.high == pytest.approx(0.97 * 50)
    assert not BandwidthComparison(expected, 41.5, LARGE).slow  # nccl-tests#232, which its author took for a fault


def test_gloo_on_a_link_of_one_gigabit() -> None:
    expected = known(BandwidthSetting("gloo", (1, 1), link_gbps=1.0))
    assert expected.range == "110 to 120 MB/s"
    assert not BandwidthComparison(expected, 0.111, 64 << 20).slow
    assert BandwidthComparison(expected, 0.055, 64 << 20).slow
    limited = known(BandwidthSetting("gloo", (1, 1), link_gbps=0.2))
    assert not BandwidthComparison(limited, 0.0235, 16 << 20).slow


H100 = ("NVIDIA H100 80GB HBM3",) * 16
NICS = ((400.0,) * 8,) * 2


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        (BandwidthSetting("gloo", (1, 1), link_gbps=10.0), "CPUs"),
        (BandwidthSetting("gloo", (1, 1)), "virtual interface"),
        (BandwidthSetting("gloo", (2,), link_gbps=1.0), "inside one machine"),
        (BandwidthSetting("gloo", (1, 1), link_gbps=1.0, one_machine=True), "inside one machine"),
        (BandwidthSetting("nccl", (1,), ("NVIDIA H100 80GB HBM3",)), "one rank"),
        (BandwidthSetting("nccl", (4,), ("NVIDIA L40S",) * 4), "published"),
        (BandwidthSetting("nccl", (4,), ("NVIDIA H100 80GB HBM3",) * 4), "published"),
        (BandwidthSetting("nccl", (8,), ("NVIDIA H100 PCIe",) * 8), "published"),
        (BandwidthSetting("nccl", (2,), ("NVIDIA H200 NVL",) * 2), "published"),
        (BandwidthSetting("nccl", (8, 8), H100, ((), ())), "TCP"),
        (BandwidthSetting("nccl", (8, 8), H100, (NICS[0], ())), "TCP"),
        (BandwidthSetting("nccl", (8, 8), H100, ((400.0,) * 7 + (0.0,), NICS[0])), "no rate"),
        (BandwidthSetting("nccl", (8, 8), (*H100[:15], "NVIDIA A100-SXM4-80GB"), NICS), "differ"),
        (BandwidthSetting("nccl", (8, 8), (), NICS), "differ"),
        (BandwidthSetting("nccl", (4, 4), ("NVIDIA GB200",) * 8, NICS), "NVLink may join"),
        (BandwidthSetting("nccl", (8, 8), ("NVIDIA L40S",) * 16, NICS), "published"),
    ],
)
def test_no_number_is_made_up(setting: BandwidthSetting, why: str) -> None:
    answer = expected_busbw(setting)
    assert isinstance(answer, NotKnown), answer
    assert why in answer.why
    assert answer.what


def test_what_is_said_names_the_hardware() -> None:
    assert (
        known(BandwidthSetting("nccl", (8, 8), H100, NICS)).what
        == "nccl, 2 nodes of 8 × H100 80GB HBM3 over 8 × 400 Gbit/s"
    )
    assert (
        known(BandwidthSetting("gloo", (1, 2), link_gbps=1.0)).what == "gloo, 2 nodes of 1-2 ranks over TCP on 1 Gbit/s"
    )
    said = BandwidthComparison(known(BandwidthSetting("nccl", (8,), H100[:8], algorithm="nvls")), 230.0, LARGE)
    assert said.says == "50% of what is normal"
    assert said.normal.startswith("460 to 480 GB/s is normal for nccl, 8 × H100 80GB HBM3 (nccl-tests#290")


def test_a_span_names_its_unit_once() -> None:
    assert rate_range_text(1.0, 2.0) == "1.00 to 2.00 GB/s"
    assert rate_range_text(0.5, 2.0) == "500 MB/s to 2.00 GB/s"
    assert rate_range_text(0.5, 0.5) == "500 MB/s"


def test_every_row_has_its_source_and_date() -> None:
    for row in (
        *INSIDE,
        *MEASURED,
        normal_busbw_table()["adapters"],
        normal_busbw_table()["gloo"],
        normal_busbw_table()["ramp"],
    ):
        assert row["source"]
        assert row["date"]


def lines() -> list[str]:
    """The table as lines of the page: one a number, with its conditions, source and date."""
    data = normal_busbw_table()
    listed = []
    for row in data["inside"]:
        low, high = row["busbw"]
        span = (
            f"{significant_digits_text(low)} GB/s or more"
            if high is None
            else f"{significant_digits_text(low)} to {significant_digits_text(high)} GB/s"
        )
        algorithm = f", {row['algorithm'].upper()}" if row["algorithm"] else ""
        listed.append(
            f"- {row['gpus']} × {row['name']} in one node{algorithm}: {span} at {row['at']} ({row['source']}, {row['date']})"
        )
    for name, rule in (("NCCL between nodes", data["adapters"]), ("gloo between nodes", data["gloo"])):
        low, high = rule["of_line_rate"]
        of = (
            "of the adapters' line rate"
            if rule is data["adapters"]
            else f"of a link's rate, up to {rule['up_to_gbps']} Gbit/s"
        )
        listed.append(f"- {name}: {low:.0%} to {high:.0%} {of} ({rule['source']}, {rule['date']})")
    for row in data["adapters"]["measured"]:
        low, high = (significant_digits_text(value) for value in row["busbw"])
        span = low if low == high else f"{low} to {high}"
        listed.append(f"- {row['what'].replace(' x ', ' × ')}: {span} GB/s ({row['source']}, {row['date']})")
    ramp = data["ramp"]
    listed.append(
        f"- half of it is reached at about {bytes_text(ramp['inside_half_bytes'])} inside a node, "
        f"{bytes_text(ramp['between_half_bytes'])} between two ({ramp['source']}, {ramp['date']})"
    )
    return listed


def test_the_page_shows_the_table_as_it_is() -> None:
    page = resources.files("runbook.checks").joinpath("allreduce.md").read_text(encoding="utf-8")
    table_text = "\n".join(lines())
    assert table_text in page, f"runbook/checks/allreduce.md should hold:\n{table_text}"
