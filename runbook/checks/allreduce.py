"""allreduce: the ranks add tensors up, every element is verified, and the bandwidth of the largest size is gated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from runbook.causes.catalogue import finding_for, remedy_from_page
from runbook.checks.base import Check, argument
from runbook.checks.connection import RANKS_STALL_TIMEOUT_S, join_ranks
from runbook.checks.context import Context
from runbook.checks.ranks.evidence import busy_program_lines, gather_evidence
from runbook.checks.ranks.pool import MIN_SLOW_DATA_FACTOR, RankMember, RankPool, dismiss_pool, start_pool
from runbook.model.units import bytes_text, count_text, seconds_text, significant_digits_text
from runbook.model.verdict import Finding, Outcome, outcomes_from_findings

if TYPE_CHECKING:
    from runbook.checks.bandwidth.allreduce_blame import Blame
    from runbook.checks.bandwidth.normal_busbw import BandwidthComparison, Norm

AUTO = "auto"
"""The value of a gate that stands for the bandwidth that is normal for the hardware."""

MAX_CONNECTING_S = {"gloo": 0.0, "nccl": 10.0}
"""Seconds by backend in which no data moves: NCCL connects the ranks for an algorithm when a size first uses it."""

ASSUMED_FIRST_ITERATION_S = 0.5
"""Seconds assumed for an iteration of the first size, for which no estimate exists."""

BURST_FACTOR = 8.0
"""How much lower the promised rate is than smaller sizes suggest, when there is no gate. Smaller sizes are a weak
estimate: clouds allow short bursts, and buffers hide the wire."""


MIN_ITERATION_S = 1e-9
"""Seconds. An iteration that claims to take less was not measured properly, so no rate is derived from it."""

MIN_ITERATION_PAUSE_S = 0.5
"""Seconds. Shorter pauses of one iteration are not reported: a busy machine or one retransmitted packet causes them."""

MIN_ITERATION_PAUSE_FACTOR = 10.0
"""A pause is reported only when it is also longer than this many times the median of its size."""

MIN_LOSSY_RETRANSMISSIONS = (50, 0.03)
"""A count of TCP segments and a share of those sent. Where at least both are sent again, packets are lost: IBM's Tivoli
monitoring warns at 3 % (OceanBase's at 10 %, PCP's at 20 %). Fewer are normal: TCP finds its rate by losing single
segments."""


@dataclass(frozen=True)
class AllReduce(Check):
    id: ClassVar[str] = "allreduce"
    timeout_s: ClassVar[float] = 300.0
    needs_ranks: ClassVar[bool] = True
    judges_together: ClassVar[bool] = True

    min_bytes: int = argument(1 << 10, "bytes", "the smallest size, for example 1K")
    max_bytes: int = argument(1 << 20, "bytes", "the largest size, for example 1G")
    factor: int = argument(2, "count", "each size is this many times the one before")
    iterations: int = argument(20, "count", "timed iterations a size (fewer when the budget is short)")
    warmup: int = argument(1, "count", "verified iterations before the timing, at least 1")
    budget: float = argument(20.0, "seconds", "time for the whole sweep; it says where it stopped, for example 30s")
    min_busbw_gbytes: float | str | None = argument(
        None,
        "number or auto",
        "fail below this bus bandwidth at the largest size, in GB/s (10^9 bytes), or below what is normal: auto",
    )
    stall: float = argument(
        RANKS_STALL_TIMEOUT_S, "seconds", "how long without any progress counts as a stall, at least"
    )

    def __post_init__(self) -> None:
        if not 4 <= self.min_bytes <= self.max_bytes:
            raise ValueError("4 bytes <= min_bytes <= max_bytes must hold")
        if self.factor < 2 or self.iterations < 1 or self.warmup < 1:
            raise ValueError("factor >= 2, iterations >= 1 and warmup >= 1 must hold")

    @property
    def sizes(self) -> list[int]:
        """The sizes of the sweep in bytes, from min_bytes up to max_bytes, which is always the last."""
        sizes, size = [], self.min_bytes
        while size < self.max_bytes:
            sizes.append(size // 4 * 4)
            size *= self.factor
        # rounding down to whole floats can give the same size twice
        return list(dict.fromkeys([*sizes, self.max_bytes // 4 * 4]))

    def run(self, at: Context) -> list[Outcome]:
        pool = start_pool(at.run, at.inventory, at.script)
        if problem := join_ranks(pool, at):
            return problem
        rows: list[dict[str, Any]] = []

        def on_message(member: RankMember, message: Mapping[str, Any]) -> None:
            if message.get("event") == "row":
                rows.append(message["row"])
                text = f"{bytes_text(rows[-1]['size'])}: {rows[-1]['busbw']:.3g} GB/s"
                at.say(text, member.rank.node, member.rank.rank, {"row": message["row"]})

        pool.order(
            {
                "do": "allreduce",
                "sizes": self.sizes,
                "iterations": self.iterations,
                "warmup": self.warmup,
                "budget_s": self.budget,
            }
        )

        while halt := pool.until(
            "done",
            timeout_s=at.left_s,
            stall_s=lambda: max(
                self.stall,
                MAX_CONNECTING_S[at.inventory.rendezvous.backend],
                MIN_SLOW_DATA_FACTOR
                * (expected_iteration_seconds(pool, rows, self.min_busbw_gbytes) or ASSUMED_FIRST_ITERATION_S),
            ),
            on_message=on_message,
            suspicions=True,
        ):
            from runbook.checks.ranks.halts import outcomes_of_halt  # needed only when ranks stop or stall

            if wrong := wrong_data_outcomes(pool, at):
                return wrong
            halt = replace(halt, promised=promised_rate(pool, rows, self.min_busbw_gbytes))
            if proven := outcomes_of_halt(pool, halt, f"during {at.stage}"):
                return proven
            pool.go_on(halt)
        if wrong := wrong_data_outcomes(pool, at):
            return wrong
        if held_up := straggler_outcomes(pool, f"during {at.stage}"):
            return held_up
        stop = pool.members[0].steps["done"].get("stopped_before")  # before `_compare` gives orders for new steps
        if not rows:
            return self._nothing(pool, at, stop)
        return self._judge(pool, at, rows, stop, *self._compare(pool, at, rows))

    def _compare(self, pool: RankPool, at: Context, rows: list[dict[str, Any]]) -> tuple[Norm | None, Blame | None]:
        """The normal bandwidth, when the gate asks for it or is missed, and where a slow job loses its time; each else
        None."""
        gate, busbw, size = self.min_busbw_gbytes, float(rows[-1]["busbw"]), int(rows[-1]["size"])
        if gate is None or len(pool.members) < 2 or (gate != AUTO and busbw >= float(gate)):
            return None, None
        from runbook.checks.bandwidth.adapters import (  # needed only for a gate that has to be judged
            NodeAdapters,
            ask_adapters,
        )
        from runbook.checks.bandwidth.normal_busbw import Norm, bandwidth_setting, expected_busbw

        asked = ask_adapters(at)
        silent = {name: said for name, said in asked.items() if isinstance(said, Outcome)}
        wires = {name: said for name, said in asked.items() if isinstance(said, NodeAdapters)}
        norm = Norm(silent, None if silent else expected_busbw(bandwidth_setting(pool, at, wires)))
        if gate == AUTO:
            comparison = norm.compare(busbw, size)
            if comparison is None or not comparison.slow:
                return norm, None
            gate = comparison.expected.gate(size)
        from runbook.checks.bandwidth.allreduce_blame import assign_blame  # isolating takes time: only for a slow job
        from runbook.checks.bandwidth.allreduce_bottleneck import isolate_bottleneck

        found = isolate_bottleneck(pool, at, float(gate))
        if found.stopped:
            dismiss_pool(at.run)  # a rank may wait for ever; the next stage starts new ones
        return norm, assign_blame(pool.members, found, wires, float(gate))

    def _nothing(self, pool: RankPool, at: Context, stop: Mapping[str, Any] | None) -> list[Outcome]:
        """The outcomes when not even one size was finished. `stop`: the size before which the ranks stopped, and
        why."""
        why = "there was no memory for it" if stop and stop["why"] == "memory" else "not even the smallest size fitted"
        finding = finding_for(
            "allreduce-slow", f"no size was finished within {self.budget:g} s: {why}", way="unfinished"
        )
        metrics: dict[str, object] = {"rows": [], "world_size": len(pool.members)}
        return [Outcome.failed(node.name, finding, metrics=metrics) for node in at.nodes]

    def _judge(
        self,
        pool: RankPool,
        at: Context,
        rows: list[dict[str, Any]],
        stop: Mapping[str, Any] | None,
        norm: Norm | None = None,
        blame: Blame | None = None,
    ) -> list[Outcome]:
        """One outcome a node. Pure. `stop`: the size before which the ranks stopped, and why; `blame`: where a slow job
        loses its time."""
        last = rows[-1]
        metrics: dict[str, object] = {"rows": rows, "world_size": len(pool.members)}
        metrics |= {key: last[key] for key in ("size", "algbw", "busbw", "time_us", "p50_us", "p99_us")}
        metrics["busbw_gbytes"] = last["busbw"]
        stopped = ""
        if stop:
            why = f"the budget of {self.budget:g} s" if stop["why"] == "time" else "the memory that is free"
            stopped = f"; stopped before {bytes_text(stop['size'])}: {why}"
            metrics["stopped_before"] = stop["size"]
        reached = f"busbw {last['busbw']:.3g} GB/s at {bytes_text(last['size'])}"
        gate = self.min_busbw_gbytes
        if isinstance(gate, float) and len(pool.members) > 1:
            metrics["gate_busbw_gbytes"] = gate
        compared = norm.compare(last["busbw"], last["size"]) if norm else None
        if norm:
            metrics |= norm.metrics
        missed = isinstance(gate, float) and len(pool.members) > 1 and last["busbw"] < gate
        if missed or (gate == AUTO and compared and compared.slow):
            from runbook.checks.bandwidth.allreduce_blame import Blame

            limit = f"the gate of {gate:g} GB/s" if isinstance(gate, float) else "what is normal"
            return slow_job_outcomes(
                at, blame or Blame(), f"{reached}, below {limit}{stopped}", compared, rows, metrics
            )
        warnings = pause_warnings(rows) if len(pool.members) > 1 else []
        gated = ""
        if gate is not None and len(pool.members) == 1:
            warnings.append("one rank sends nothing over a wire: the bandwidth gate was not applied")
        elif isinstance(gate, float):
            gated = f", gate {gate:g} GB/s"
        elif compared and not compared.early:
            gated = f", {compared.says}: {compared.normal}"
        elif norm:
            warnings.append(norm.warning(compared, reached))
        if len(pool.members) == 1:
            reached = f"one rank adds up {bytes_text(last['size'])}, and nothing crosses a wire"
        proof = (
            f"{reached}{gated}; {count_text(len(rows), 'size')} verified, every element, "
            f"{count_text(len(pool.members), 'rank')}{stopped}"
        )
        silent = norm.silent if norm else {}
        return [
            silent.get(node.name)
            or Outcome.passed(
                node.name, proof, metrics=metrics, warnings=[*warnings, *retransmission_warnings(pool, node.name)]
            )
            for node in at.nodes
        ]


def slow_job_outcomes(
    at: Context,
    blame: Blame,
    reached: str,
    compared: BandwidthComparison | None,
    rows: list[dict[str, Any]],
    metrics: Mapping[str, object],
) -> list[Outcome]:
    """One outcome a node for a slow job. Charged nodes fail; the others pass with the sentence that clears them. Where
    no node is charged, all nodes fail with one finding."""
    normal = (f"{compared.says}: {compared.normal}",) if compared else ()
    sizes = tuple(
        f"{bytes_text(row['size'])}: {row['busbw']:.3g} GB/s, p50 {row['p50_us']:.0f} us, p99 {row['p99_us']:.0f} us"
        for row in rows[-2:]
    )
    if not blame.charges:
        finding = Finding(
            "allreduce-slow",
            "; ".join(filter(None, (reached, blame.common))),
            blame.remedy or remedy_from_page("allreduce-slow", "transport"),
            (*blame.measured, *normal, *sizes),
        )
        return [Outcome.failed(node.name, finding, metrics=metrics) for node in at.nodes]
    outcomes = []
    for node in at.nodes:
        charge = blame.charges.get(node.name)
        if charge is None:
            outcomes.append(Outcome.passed(node.name, f"{reached}; {blame.cleared[node.name]}", metrics=metrics))
            continue
        finding = replace(charge, says=f"{charge.says}; {reached}").with_evidence(*blame.measured, *normal, *sizes)
        outcomes.append(Outcome.failed(node.name, finding, metrics=metrics))
    return outcomes


def pause_warnings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A warning when single iterations took far longer than is usual for their size, which the average hardly shows."""
    longest = {int(row["size"]): float(row.get("max_us", row["p99_us"])) * 1e-6 for row in rows}
    usual = {int(row["size"]): float(row["p50_us"]) * 1e-6 for row in rows}
    paused = [
        size for size in longest if longest[size] > max(MIN_ITERATION_PAUSE_S, MIN_ITERATION_PAUSE_FACTOR * usual[size])
    ]
    if not paused:
        return []
    worst = max(paused, key=lambda size: longest[size])
    others = f", and such a pause at {count_text(len(paused) - 1, 'more size')}" if len(paused) > 1 else ""
    slowest = f"one iteration at {bytes_text(worst)} paused for {seconds_text(longest[worst])}"
    why = "a link that flaps or loses packets (`ip -s link`, `sudo dmesg -T`), or a rank that did not run"
    return [f"{slowest} (p50 {significant_digits_text(usual[worst] * 1e3)} ms){others}: {why}"]


def retransmission_warnings(pool: RankPool, node: str) -> list[str]:
    """A warning when a node had to send many TCP segments again. The sums are right all the same, but late."""
    counts = [tcp for m in pool.members if m.rank.node == node and (tcp := m.steps.get("done", {}).get("tcp"))]
    worst = max(counts, key=lambda tcp: int(tcp["again"]), default={"sent": 0, "again": 0})
    sent, again = int(worst["sent"]), int(worst["again"])
    least, share = MIN_LOSSY_RETRANSMISSIONS
    if again < max(least, share * sent):
        return []
    says = (
        f"{again:,} of {sent:,} TCP segments that {node} sent had to be sent again: packets are lost on the way, in a "
        "queue, on a bad link or by a rule that limits a rate (on either end: `sudo nft list ruleset | grep limit`, "
        "`sudo iptables-save | grep limit`, `tc -s qdisc`, `ip -s link`); the stage `links` tells which way"
    )
    return [says]


def expected_iteration_seconds(pool: RankPool, rows: list[dict[str, Any]], gate: float | str | None) -> float | None:
    """Seconds that one iteration of the current size should take, by earlier sizes or else by the gate; None when
    unknown."""
    size = max(member.place[0] for member in pool.members)
    if rows:
        return float(rows[-1]["time_us"]) * 1e-6 * max(1.0, size / float(rows[-1]["size"]))
    if isinstance(gate, float) and gate > 0:
        return _bytes_sent_per_rank(pool, size) / (gate * 1e9)
    return None


def promised_rate(pool: RankPool, rows: list[dict[str, Any]], gate: float | str | None) -> float | None:
    """Bytes a second that all ranks together should send in the current iteration: what the gate asks for, even if
    earlier sizes reached more, else by earlier sizes; None when unknown."""
    if isinstance(gate, float) and gate > 0:
        return len(pool.members) * gate * 1e9
    expected = expected_iteration_seconds(pool, rows, gate)
    if not expected or expected < MIN_ITERATION_S:
        return None
    size = max(member.place[0] for member in pool.members)
    return len(pool.members) * _bytes_sent_per_rank(pool, size) / expected / BURST_FACTOR


def _bytes_sent_per_rank(pool: RankPool, size: int) -> float:
    """Bytes that each rank sends in an AllReduce of this size, which is also what bus bandwidth counts."""
    ranks = len(pool.members)
    return 2 * (ranks - 1) / ranks * size


def wrong_data_outcomes(pool: RankPool, at: Context) -> list[Outcome] | None:
    """Outcomes that name the ranks that contributed wrong data, or, where that could not be located, the ranks that
    received wrong sums; None when all sums are right."""
    wrong = [member for member in pool.members if "wrong" in member.steps]
    if not wrong:
        return None
    located = pool.extra.get("located", {}).get("ranks") or []
    seen = [member for member in wrong if member.steps["wrong"]["first"]]
    seen = seen or [member for member in pool.members if "wrong" not in member.steps]  # ended before they told
    details = tuple(
        f"{m.label}: {count_text(m.steps['wrong']['count'], 'wrong element')} at "
        f"{bytes_text(m.steps['wrong']['size'])}; element {m.steps['wrong']['first']['element']} is "
        f"{float(m.steps['wrong']['first']['got']):g}, should be {m.steps['wrong']['first']['expected']:g}"
        for m in seen[:8]
        if "wrong" in m.steps
    )
    if located:
        blamed = [pool.members[rank] for rank in located]
        several = len(located) > 1
        why = (
            f"rank{'s' if several else ''} {', '.join(map(str, located))} contribute{'' if several else 's'} wrong data"
        )
    elif len(seen) < len(pool.members):
        blamed = seen
        why = f"{', '.join(m.label for m in seen)} received wrong sums, the others the right ones"
    else:
        blamed = seen
        why = "every rank received wrong sums, and no rank's contribution explains it"
    nodes = {member.rank.node for member in blamed}
    culprits = ", ".join(sorted(nodes))
    finding = finding_for("allreduce-wrong-data", f"AllReduce gave wrong results: {why}", details, culprits=culprits)
    says = f"not judged: the sums are wrong because of {culprits}"
    waited = finding_for("peer-died", says, peers=tuple(sorted(nodes)), node=culprits)
    return outcomes_from_findings(at.names, {name: [finding] for name in nodes}, waited)


MIN_HOLD_UP_SHARE = 0.5
"""A rank is blamed only if it holds the others up for this share of the time of the timed AllReduces; less is noise."""

MIN_HOLD_UP_FACTOR = 4.0
"""A rank is blamed only if it holds the others up for this many times as long as any rank of another node."""

MIN_HOLD_UP_S = {"own": 0.3, "paused": 2.0, "queued": 2.0}
"""Seconds by kind. Time in a rank's own code is measured exactly; pauses and queues happen on every busy machine now
and then."""

HOLD_UP_TEXTS = {
    "own": "spends it before it enters the collective, in its own code",
    "paused": "did not run at all meanwhile: something stops it again and again (SIGSTOP, a frozen virtual machine)",
    "queued": "was ready to run and got no CPU: other processes are on them, or a CPU quota is used up",
}
"""The ways in which a rank holds the others up, and what a finding says about each."""


def hold_up_seconds(member: RankMember, kind: str) -> float:
    """Seconds for which this rank held the others up in the timed AllReduces in one way; `kind` is a key of
    HOLD_UP_TEXTS."""
    seconds = member.steps.get("done", {}).get("lag") or {}
    # The times of threads that wait side by side add up to more than the clock shows.
    return min(float(seconds.get("timed", 0.0)), float(seconds.get(kind, 0.0)))


def longest_hold_up(member: RankMember) -> tuple[float, str]:
    """The longest time for which this rank held the others up in one way, in seconds, and the kind of it."""
    return max((hold_up_seconds(member, kind), kind) for kind in HOLD_UP_TEXTS)


def own_code_hold_up(member: RankMember) -> tuple[float, str]:
    """Seconds for which this rank held the others up in its own code, without the time it waited there for a CPU, and
    "own". Ranks that are short of a CPU elsewhere do not explain that time."""
    return max(0.0, hold_up_seconds(member, "own") - hold_up_seconds(member, "queued")), "own"


def straggler_outcomes(pool: RankPool, doing: str) -> list[Outcome] | None:
    """Outcomes that name the node whose rank holds the others up, when that is beyond doubt; else None."""
    if len(pool.members) < 2:
        return None
    timed = max(float((m.steps.get("done", {}).get("lag") or {}).get("timed", 0.0)) for m in pool.members)
    for of, of_others in (
        (own_code_hold_up, lambda member: hold_up_seconds(member, "own")),
        (longest_hold_up, lambda member: longest_hold_up(member)[0]),
    ):
        worst = max(pool.members, key=of)
        seconds, kind = of(worst)
        elsewhere = [m for m in pool.members if m.rank.node != worst.rank.node]
        others = elsewhere or [m for m in pool.members if m is not worst]
        if seconds >= max(
            MIN_HOLD_UP_S[kind], MIN_HOLD_UP_SHARE * timed, MIN_HOLD_UP_FACTOR * max(map(of_others, others))
        ):
            break
    else:
        return None
    gather_evidence(pool)
    node = worst.rank.node
    says = (
        f"every AllReduce waits for {worst.label} {doing}: it {HOLD_UP_TEXTS[kind]}, for {seconds:.1f} of {timed:.1f} s"
    )
    seen = (
        *(f"{m.label}: {longest_hold_up(m)[0]:.2f} s" for m in (worst, *others)[:8]),
        *busy_program_lines(pool.seen.get(node)),
    )
    finding = finding_for("rank-behind", says, seen, worst.peers_among(others), way="slow-node", node=node)
    waited = finding_for("peer-died", f"not judged: waited for {worst.label}", (), (node,), node=node)
    return outcomes_from_findings((each.name for each in pool.inventory.nodes), {node: [finding]}, waited)
