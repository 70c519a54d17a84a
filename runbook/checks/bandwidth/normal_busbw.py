"""Which bus bandwidth is normal for the hardware of a job. Every number, with its source, stands in
`normal_busbw.json`.

Inside one node the numbers that were measured with that GPU hold. Between nodes a ring carries what a node's adapters
carry, less the protocol, and never more than the GPUs exchange inside a node. GB/s are 10^9 bytes; link rates are in
Gbit/s.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from runbook.checks.bandwidth.adapters import NodeAdapters
from runbook.checks.context import Context
from runbook.checks.ranks.pool import RankPool
from runbook.launch.ranks import network_environment
from runbook.model.units import bandwidth_text, bytes_text, quantity_range_text, significant_digits_text
from runbook.model.verdict import Outcome


@dataclass(frozen=True, slots=True)
class BandwidthSetting:
    """What decides how fast an AllReduce can be.

    `gpus`: the GPU of each rank as torch names it; empty on CPUs. `ranks`: how many ranks each node has. `adapters`:
    for each node, the rates in Gbit/s of the HCA ports that NCCL takes; empty where it has none. `link_gbps`: Gbit/s of
    the slowest interface that TCP would use; None where the kernel does not know one. `algorithm`: NCCL_ALGO.
    """

    backend: str
    ranks: tuple[int, ...]
    gpus: tuple[str, ...] = ()
    adapters: tuple[tuple[float, ...], ...] = ()
    link_gbps: float | None = None
    algorithm: str | None = None
    one_machine: bool = False

    @property
    def nodes(self) -> int:
        return len(self.ranks)


@dataclass(frozen=True, slots=True)
class Expectation:
    """The bus bandwidth that is normal with large messages, in GB/s. `high` None: only a lower bound is known.
    `half_bytes`: the message size at which half of it is reached."""

    what: str
    low: float
    high: float | None
    half_bytes: float
    source: str
    note: str = ""

    @property
    def range(self) -> str:
        """The normal range in words."""
        if self.high is None:
            return f"{bandwidth_text(self.low)} or more"
        return rate_range_text(self.low, self.high)

    @property
    def plateau_bytes(self) -> float:
        """The message size in bytes from which on the whole bandwidth shows."""
        return float(normal_busbw_table()["ramp"]["plateau_at_halves"] * self.half_bytes)

    def gate(self, size: float) -> float:
        """GB/s. A bandwidth below this, with messages of `size` bytes, is slow: a part of what is normal at that
        size."""
        small = normal_busbw_table()["ramp"]["small"]
        part = float(normal_busbw_table()["gate"]["of_low"]) * (
            small["of_gate"] if size < small["below_bytes"] else 1.0
        )
        return part * self.low * size / (size + self.half_bytes)


@dataclass(frozen=True, slots=True)
class NotKnown:
    """That no number is known for this hardware, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class BandwidthComparison:
    """A measured bus bandwidth in GB/s, with messages of `size` bytes, beside what is normal."""

    expected: Expectation
    measured: float
    size: int

    @property
    def slow(self) -> bool:
        """Whether the bandwidth is below the gate for this size."""
        return self.measured < self.expected.gate(self.size)

    @property
    def early(self) -> bool:
        """Whether the messages were too small to show the whole bandwidth."""
        return self.size < self.expected.plateau_bytes

    @property
    def ratio(self) -> float:
        """The ratio to the nearer end of the normal range; 1 inside the range."""
        high = self.expected.high or max(self.expected.low, self.measured)
        return self.measured / min(max(self.measured, self.expected.low), high)

    @property
    def normal(self) -> str:
        note = f"; {self.expected.note}" if self.expected.note else ""
        return f"{self.expected.range} is normal for {self.expected.what} ({self.expected.source}){note}"

    @property
    def says(self) -> str:
        """A few words for a verdict."""
        if self.slow and self.early:
            return (
                f"messages of {bytes_text(self.size)} should reach {bandwidth_text(self.expected.gate(self.size))} "
                "at least"
            )
        if self.early:
            plateau = bytes_text(2 ** math.ceil(math.log2(self.expected.plateau_bytes)))
            return f"{bytes_text(self.size)} is too small to tell, the whole bandwidth shows from {plateau} on"
        return "as it should be" if self.ratio >= 1 else f"{self.ratio:.0%} of what is normal"


@functools.cache
def normal_busbw_table() -> Mapping[str, Any]:
    """The content of `normal_busbw.json`."""
    data: Mapping[str, Any] = json.loads(resources.files(__package__).joinpath("normal_busbw.json").read_text("utf-8"))
    return data


def expected_busbw(setting: BandwidthSetting) -> Expectation | NotKnown:
    """The bus bandwidth that is normal for this setting, or why no number is known."""
    what = setting_text(setting)
    if sum(setting.ranks) < 2:
        return NotKnown(what, "one rank sends nothing")
    if setting.backend != "nccl":
        return _expected_with_gloo(setting, what)
    if len(set(setting.gpus)) != 1:
        return NotKnown(what, "the GPUs differ, or torch does not name them")
    rows = _inside_rows(setting)
    if setting.nodes == 1 or setting.one_machine:
        if not rows:
            return NotKnown(what, "no number has been published")
        low, high = _busbw_range(rows)
        return Expectation(
            what,
            low,
            high,
            _half_bandwidth_bytes(setting, "inside_half_bytes"),
            _sources_text(rows),
            _algorithm_ranges_text(rows),
        )
    return _expected_between_nodes(setting, what, rows)


def setting_text(setting: BandwidthSetting) -> str:
    """The setting in words: `2 nodes of 8 × H100 80GB HBM3 over 8 × 400 Gbit/s`."""
    counts = sorted(set(setting.ranks))
    many = "-".join(str(count) for count in (counts if len(counts) < 2 else (counts[0], counts[-1])))
    gpu = setting.gpus[0].removeprefix("NVIDIA ") if setting.gpus else "rank"
    each = f"{many} × {gpu}" if setting.gpus else f"{many} rank{'s' if many != '1' else ''}"
    text = each if setting.nodes == 1 else f"{setting.nodes} nodes of {each}"
    if setting.one_machine:
        return f"{setting.backend}, {text}, on one machine"
    if setting.nodes == 1:
        return f"{setting.backend}, {text}"
    slowest = min(setting.adapters, key=sum, default=())
    if setting.backend == "nccl" and slowest:
        over = f"{len(slowest)} × {min(slowest):g} Gbit/s"
    elif setting.link_gbps:
        over = f"TCP on {setting.link_gbps:g} Gbit/s"
    else:
        over = "TCP on a link whose rate the kernel does not know"
    return f"{setting.backend}, {text} over {over}"


def _inside_rows(setting: BandwidthSetting) -> list[Mapping[str, Any]]:
    """Rows of the table for this GPU and number of GPUs in a node; of the chosen algorithm where there is such a
    row."""
    rows = [
        row
        for row in normal_busbw_table()["inside"]
        if re.search(row["gpu"], setting.gpus[0]) and set(setting.ranks) == {row["gpus"]}
    ]
    named = [row for row in rows if row["algorithm"] and row["algorithm"] == setting.algorithm]
    return named or rows


def _expected_between_nodes(
    setting: BandwidthSetting, what: str, rows: list[Mapping[str, Any]]
) -> Expectation | NotKnown:
    """What is normal between nodes with NCCL, from the rates of their adapters and the numbers inside a node."""
    if not setting.adapters or not all(setting.adapters):
        return NotKnown(what, "without HCAs NCCL runs over TCP, where CPUs and sockets decide")
    if re.search(r"\bG[HB][23]00\b", setting.gpus[0]):
        return NotKnown(what, "NVLink may join these nodes, and then no adapter is the limit")
    if not all(rate for rates in setting.adapters for rate in rates):
        return NotKnown(what, "an adapter shows no rate")
    family = next((row for row in normal_busbw_table()["inside"] if re.search(row["gpu"], setting.gpus[0])), None)
    if family is None or (max(setting.ranks) > 1 and not rows):
        return NotKnown(what, "no number has been published for these GPUs inside a node, which is a limit as well")
    rule = normal_busbw_table()["adapters"]
    # A GPU sends no faster than its own PCIe slot, however many adapters the node has.
    pairs = zip(setting.adapters, setting.ranks, strict=True)
    line = min(min(sum(rates), ranks * family["adapter_gbps"]) for rates, ranks in pairs) / 8
    cap = _busbw_range(rows)[1] if rows else None
    low, high = (fraction * line for fraction in rule["of_line_rate"])
    if cap:
        low, high = min(low, _busbw_range(rows)[0]), min(high, cap)
    note, source = "", f"{rule['source']}, {rule['date']}"
    world = sum(setting.ranks)
    if setting.nodes == 2 and setting.algorithm != "ring" and world > 2:
        inflated = rule["of_line_rate"][1] * line * 2 * (world - 1) / world
        note = (
            f"two nodes inflate Tree and NVLS, to {bandwidth_text(min(inflated, cap or inflated))}: "
            "`env: {NCCL_ALGO: RING}` judges the adapters"
        )
    return Expectation(what, low, high, _half_bandwidth_bytes(setting, "between_half_bytes"), source, note)


def _expected_with_gloo(setting: BandwidthSetting, what: str) -> Expectation | NotKnown:
    """What is normal between nodes with gloo, from the rate of their interfaces."""
    rule = normal_busbw_table()["gloo"]
    if setting.one_machine or setting.nodes == 1:
        return NotKnown(what, "inside one machine memory and CPUs decide")
    if setting.link_gbps is None:
        return NotKnown(what, "a virtual interface has no rate of its own")
    if setting.link_gbps > rule["up_to_gbps"]:
        return NotKnown(what, rule["beyond"])
    low, high = (fraction * setting.link_gbps / 8 for fraction in rule["of_line_rate"])
    return Expectation(
        what, low, high, _half_bandwidth_bytes(setting, "gloo_half_bytes"), f"{rule['source']}, {rule['date']}"
    )


def _busbw_range(rows: list[Mapping[str, Any]]) -> tuple[float, float | None]:
    """The lowest and the highest bus bandwidth of these rows, in GB/s. The highest is None where a row gives none."""
    highs = [row["busbw"][1] for row in rows]
    return min(row["busbw"][0] for row in rows), None if None in highs else max(highs)


def _sources_text(rows: list[Mapping[str, Any]]) -> str:
    return "; ".join(f"{row['source']}, {row['date']}" for row in rows)


def _algorithm_ranges_text(rows: list[Mapping[str, Any]]) -> str:
    """The range of each row's algorithm in words, when there are several rows."""
    if len(rows) < 2:
        return ""
    return "; ".join(
        f"{str(row['algorithm']).upper()} "
        f"{significant_digits_text(row['busbw'][0])}-{significant_digits_text(row['busbw'][1])}"
        for row in rows
    )


def _half_bandwidth_bytes(setting: BandwidthSetting, key: str) -> float:
    """The message size in bytes at which half of the bandwidth is reached; more nodes need larger messages."""
    return float(normal_busbw_table()["ramp"][key]) * max(1.0, math.log2(max(2, setting.nodes)))


def link_gbps_floor(setting: BandwidthSetting, promised_gbps: float | None = None) -> float | None:
    """Gbit/s that each node should move at least in one direction, all its ranks together with ranks of one other node;
    None when unknown. `promised_gbps`: what the inventory promises of each adapter."""
    part = float(normal_busbw_table()["gate"]["of_low"])
    if setting.one_machine or setting.nodes < 2:
        return None
    if setting.backend != "nccl":
        rule, rate = normal_busbw_table()["gloo"], setting.link_gbps
        return part * float(rule["of_line_rate"][0]) * rate if rate and rate <= rule["up_to_gbps"] else None
    if not setting.adapters or not all(setting.adapters):
        return None
    lines = []
    for rates, ranks in zip(setting.adapters, setting.ranks, strict=True):
        used = sorted((promised_gbps or rate for rate in rates), reverse=True)[:ranks]  # one adapter a pair of ranks
        lines.append(sum(used))
    return part * float(normal_busbw_table()["adapters"]["of_line_rate"][0]) * min(lines) or None


def rate_range_text(low: float, high: float) -> str:
    """A range of rates in GB/s in words: `328 to 388 GB/s`."""
    return quantity_range_text(bandwidth_text(low), bandwidth_text(high))


def bandwidth_setting(pool: RankPool, at: Context, wires: Mapping[str, NodeAdapters]) -> BandwidthSetting:
    """The setting of a job. `wires` must have every node."""
    nodes = at.nodes
    said = [member.steps.get("imported", {}).get("gpu") for member in pool.members]
    rates = [wires[node.name].gbps for node in nodes]
    algorithm = network_environment(at.inventory, nodes[0]).get("NCCL_ALGO")
    one_name = isinstance(algorithm, str) and re.fullmatch(r"[A-Za-z_]+", algorithm)
    return BandwidthSetting(
        backend=at.inventory.rendezvous.backend,
        ranks=tuple(len(pool.on(node.name)) for node in nodes),
        gpus=tuple(str(name) for name in said) if all(said) else (),
        adapters=tuple(tuple(port.rate_gbps or 0.0 for port in wires[node.name].ports) for node in nodes),
        link_gbps=min((rate for rate in rates if rate), default=None) if all(rates) else None,
        algorithm=str(algorithm).lower() if one_name else None,
        one_machine=len({at.machine(node.name) for node in nodes}) == 1,
    )


@dataclass(frozen=True)
class Norm:
    """The normal bandwidth of this hardware, or why there is no number for it. `known` is None when `silent` nodes gave
    no answer."""

    silent: Mapping[str, Outcome]
    known: Expectation | NotKnown | None

    def compare(self, busbw: float, size: int) -> BandwidthComparison | None:
        """The measured bandwidth beside the normal one; None when no normal one is known."""
        return BandwidthComparison(self.known, busbw, size) if isinstance(self.known, Expectation) else None

    @property
    def metrics(self) -> dict[str, object]:
        if isinstance(self.known, Expectation):
            high = self.known.high
            return {"expected_busbw_gbytes": [self.known.low, high], "expected_source": self.known.source}
        return {"expected_busbw_gbytes": None, "expected_source": None}

    def warning(self, compared: BandwidthComparison | None, reached: str) -> str:
        """A warning that `auto` could not judge, and what would help."""
        if compared:
            return (
                f"auto: {reached} was not judged: {compared.says}; raise `max_bytes:` or `budget:` ({compared.normal})"
            )
        if isinstance(self.known, NotKnown):
            return (
                f"auto: {reached} was not judged, no number is known for {self.known.what}: {self.known.why}; "
                "give `min_busbw_gbytes:` yourself, from a healthy run"
            )
        return f"auto: {reached} was not judged: {', '.join(self.silent)} did not say what their links are"
