"""allreduce: the ranks add tensors up, every element is verified, and the bandwidth of the largest size is gated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from runbook.checks.base import Check, argument
from runbook.checks.connection import join
from runbook.checks.context import Context
from runbook.checks.gang import Gang, Member, place_of, start_gang
from runbook.checks.halts import outcomes_of_halt
from runbook.model.units import bytes_text
from runbook.model.verdict import Finding, Outcome

STALL_S = 4.0
STALL_FACTOR = 6.0
"""An iteration may take this many times what the sizes before it promise before the sweep counts as stalled."""


@dataclass(frozen=True)
class AllReduce(Check):
    id: ClassVar[str] = "allreduce"
    timeout_s: ClassVar[float] = 300.0
    needs_ranks: ClassVar[bool] = True

    min_bytes: int = argument(1 << 10, "bytes", "the smallest size, for example 1K")
    max_bytes: int = argument(1 << 20, "bytes", "the largest size, for example 1G")
    factor: int = argument(2, "count", "each size is this many times the one before")
    iterations: int = argument(20, "count", "timed iterations a size (fewer when the budget is short)")
    warmup: int = argument(1, "count", "verified iterations before the timing, at least 1")
    budget: float = argument(20.0, "seconds", "time for the whole sweep; it says where it stopped, for example 30s")
    min_busbw_gbytes: float | None = argument(
        None, "number", "fail below this bus bandwidth at the largest size, in GB/s (10^9 bytes)"
    )
    stall: float = argument(STALL_S, "seconds", "how long without any progress counts as a stall, at least")

    def __post_init__(self) -> None:
        if not 4 <= self.min_bytes <= self.max_bytes:
            raise ValueError("wants 4 bytes <= min_bytes <= max_bytes")
        if self.factor < 2 or self.iterations < 1 or self.warmup < 1:
            raise ValueError("wants factor >= 2, iterations >= 1 and warmup >= 1")

    @property
    def sizes(self) -> list[int]:
        """Bytes, from min_bytes up to max_bytes, which is always the last."""
        sizes, size = [], self.min_bytes
        while size < self.max_bytes:
            sizes.append(size // 4 * 4)
            size *= self.factor
        return list(dict.fromkeys([*sizes, self.max_bytes // 4 * 4]))  # rounding to whole floats can make twins

    def run(self, at: Context) -> list[Outcome]:
        gang = start_gang(at.run, at.inventory, at.script)
        if problem := join(gang, at):
            return problem
        rows: list[dict[str, Any]] = []

        def on_message(member: Member, message: Mapping[str, Any]) -> None:
            if message.get("event") == "row":
                rows.append(message["row"])
                text = f"{bytes_text(rows[-1]['size'])}: {rows[-1]['busbw']:.3g} GB/s"
                at.say(text, member.rank.node, member.rank.rank, {"row": message["row"]})

        gang.order(
            {
                "do": "allreduce",
                "sizes": self.sizes,
                "iterations": self.iterations,
                "warmup": self.warmup,
                "budget_s": self.budget,
            }
        )
        halt = gang.until(
            "done",
            timeout_s=at.left_s,
            stall_s=lambda: max(self.stall, STALL_FACTOR * expected_seconds(gang, rows)),
            on_message=on_message,
        )
        if wrong := wrong_data(gang, at):
            return wrong
        if halt:
            return outcomes_of_halt(gang, halt, f"during {at.stage}")
        return self._judge(gang, at, rows)

    def _judge(self, gang: Gang, at: Context, rows: list[dict[str, Any]]) -> list[Outcome]:
        stop = gang.members[0].steps["done"].get("stopped_before")
        metrics: dict[str, object] = {"rows": rows, "world_size": len(gang.members)}
        if not rows:
            why = (
                "there was no memory for it"
                if stop and stop["why"] == "memory"
                else "not even the smallest size fitted"
            )
            finding = Finding(
                "allreduce-slow",
                f"no size was finished within {self.budget:g} s: {why}",
                "give the stage a larger `budget:` or a smaller `min_bytes:`, and look at the links",
            )
            return [Outcome.failed(node.name, finding, metrics=metrics) for node in at.nodes]
        last = rows[-1]
        metrics |= {key: last[key] for key in ("size", "algbw", "busbw", "time_us", "p50_us", "p99_us")}
        metrics["busbw_gbytes"] = last["busbw"]
        stopped = ""
        if stop:
            why = f"the budget of {self.budget:g} s" if stop["why"] == "time" else "the memory that is free"
            stopped = f"; stopped before {bytes_text(stop['size'])}: {why}"
            metrics["stopped_before"] = stop["size"]
        reached = f"busbw {last['busbw']:.3g} GB/s at {bytes_text(last['size'])}"
        checked = (
            f"{len(rows)} sizes verified, every element, {len(gang.members)} rank{'s' if len(gang.members) > 1 else ''}"
        )
        warnings = []
        gate = self.min_busbw_gbytes
        if gate is not None and len(gang.members) == 1:
            warnings.append("one rank sends nothing over a wire: the bandwidth gate was not applied")
        elif gate is not None and last["busbw"] < gate:
            finding = Finding(
                "allreduce-slow",
                f"{reached}, below the gate of {gate:g} GB/s{stopped}",
                "compare with the link's rate: `ethtool IFACE | grep Speed`, `ibstat | grep Rate`; look at the transport "
                "NCCL chose (NCCL_DEBUG=INFO), for a slow link on one node, and for other traffic",
                tuple(
                    f"{bytes_text(row['size'])}: {row['busbw']:.3g} GB/s, p50 {row['p50_us']:.0f} us, p99 {row['p99_us']:.0f} us"
                    for row in rows[-3:]
                ),
            )
            return [Outcome.failed(node.name, finding, metrics=metrics) for node in at.nodes]
        gated = f", gate {gate:g} GB/s" if gate is not None and not warnings else ""
        proof = f"{reached}{gated}; {checked}{stopped}"
        return [Outcome.passed(node.name, proof, metrics=metrics, warnings=warnings) for node in at.nodes]


def expected_seconds(gang: Gang, rows: list[dict[str, Any]]) -> float:
    """How long one iteration of the size at hand should take, by the bandwidth of the sizes before."""
    if not rows:
        return 0.5
    size = max(place_of(member.beat)[0] for member in gang.members)
    return float(rows[-1]["time_us"]) * 1e-6 * max(1.0, size / float(rows[-1]["size"]))


def wrong_data(gang: Gang, at: Context) -> list[Outcome] | None:
    """Ranks that received wrong sums, and whose contribution is wrong where that could be located."""
    wrong = [member for member in gang.members if "wrong" in member.steps]
    if not wrong:
        return None
    located = gang.extra.get("located", {}).get("ranks") or []
    seen = [member for member in wrong if member.steps["wrong"]["first"]]
    details = tuple(
        f"{m.label}: {m.steps['wrong']['count']} wrong elements at {bytes_text(m.steps['wrong']['size'])}; element "
        f"{m.steps['wrong']['first']['element']} is {m.steps['wrong']['first']['got']:g}, "
        f"should be {m.steps['wrong']['first']['expected']:g}"
        for m in seen[:8]
    )
    if len(located) == 1:
        blamed = [gang.members[located[0]]]
        why = f"rank {located[0]} contributes wrong data"
    elif len(seen) < len(gang.members):
        blamed = seen
        why = f"{', '.join(m.label for m in seen)} received wrong sums, the others the right ones"
    else:
        blamed = list(seen) or list(wrong)
        why = "every rank received wrong sums, and no single rank's contribution explains it"
    nodes = {member.rank.node for member in blamed}
    finding = Finding(
        "allreduce-wrong-data",
        f"AllReduce gave wrong results: {why}",
        "do not train on this: check memory (`nvidia-smi -q -d ECC`, `dmesg`), then the links and NCCL's version on "
        f"{', '.join(sorted(nodes))}",
        details,
    )
    return [
        Outcome.failed(node.name, finding)
        if node.name in nodes
        else Outcome.unknown(
            node.name,
            Finding("peer-died", f"the sums are wrong because of {', '.join(sorted(nodes))}", "mend that node first"),
        )
        for node in at.nodes
    ]
