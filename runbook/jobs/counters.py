"""Which counters of an attempt's nodes rise more than on a healthy node? They are read before the attempt, every half a
minute, and after it.

The limits and their sources:
- TCP segments sent again: the limit of the check `allreduce`.
- Errors of an interface: 1 in 100,000 packets. IEEE 802.3 allows one wrong bit in 10^12, less than one frame in 10^7;
  Prometheus' node-mixin warns at 1 %, but cannot tell errors from drops. Drops: the same 1 %, since an interface also
  drops packets that nobody asked for.
- InfiniBand: symbol errors: IBTA's 120 an hour. Other counters of ports: the limits of NVIDIA's NVSentinel
  (link_downed, buffer overruns, link integrity, RNR retries: any; recoveries: 5 a minute; receive errors: 10 a second;
  discards: 100 a second; missing acknowledgements: 1 a second).
- GPUs: no healthy GPU is slowed down by heat or power (NVML's HW and thermal slowdown, power brake) for half a minute,
  has an uncorrectable memory error, or logs an Xid.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from runbook.causes.catalogue import finding_for
from runbook.checks.allreduce import MIN_LOSSY_RETRANSMISSIONS
from runbook.checks.bandwidth.adapters import job_interfaces
from runbook.checks.context import no_answer_outcome
from runbook.jobs.kept_processes import KeptProcesses
from runbook.model.command_quoting import shell_word
from runbook.model.inventory import Node
from runbook.model.units import seconds_text
from runbook.model.verdict import Finding
from runbook.parsers.nvidia_logs import xid_events
from runbook.parsers.nvidia_smi_facts import Gpu, bus_key, parse_gpus
from runbook.transport import node_answers

Counts = Mapping[str, int | None]
"""Values of counters by name; None if a value was not read."""


@dataclass(frozen=True, slots=True)
class Limit:
    """How far a counter may rise on a healthy node: by less than `least`, by up to `share` of what the counter `of`
    counted meanwhile, or by up to `per_s` a second. `what`: in words, what the counter counts."""

    counter: str
    what: str
    least: int = 1
    share: float = 0.0
    of: str = ""
    per_s: float = 0.0
    highest: int | None = None  # the value at which the counter stops counting; None if it does not


INTERFACE_LIMITS = (
    Limit("rx_crc_errors", "frames arrived broken", 10, 1e-5, "rx_packets"),
    Limit("rx_errors", "packets arrived with errors", 10, 1e-5, "rx_packets"),
    Limit("tx_errors", "packets could not be sent", 10, 1e-5, "tx_packets"),
    # also what no protocol takes: beside a job over RDMA, whose packets the interface does not count, that is a share
    Limit("rx_dropped", "packets were dropped as they arrived", 100, 0.01, "rx_packets", per_s=10.0),
    Limit("tx_dropped", "packets were dropped before they left", 100, 0.01, "tx_packets"),
    Limit("carrier_down_count", "times the link was down"),
)
"""The limits for the counters of a network interface."""
TCP_LIMIT = Limit("RetransSegs", "TCP segments were sent again", *MIN_LOSSY_RETRANSMISSIONS, "OutSegs")
"""The limit for a node's TCP segments that were sent again."""
IB_PORT_LIMITS = (
    Limit("link_downed", "times the link was down", highest=0xFF),
    Limit("symbol_error", "symbol errors", 10, per_s=120 / 3600, highest=0xFFFF),
    Limit("link_error_recovery", "times the link recovered from errors", 2, per_s=5 / 60, highest=0xFF),
    Limit("port_rcv_errors", "packets arrived broken", 10, per_s=10.0, highest=0xFFFF),
    Limit("port_xmit_discards", "packets were discarded before they left", 100, per_s=100.0, highest=0xFFFF),
    Limit("local_link_integrity_errors", "times too many bits in a row were wrong", highest=0xF),
    Limit("excessive_buffer_overrun_errors", "times its buffers ran over", highest=0xF),
    Limit("local_ack_timeout_err", "acknowledgements were missing", 10, per_s=1.0),
    Limit("rnr_nak_retry_err", "times a peer was never ready to receive"),
)
"""The limits for the counters of an InfiniBand port."""

MIN_GPU_SLOWDOWN_S = 25.0
"""The least seconds for which a slowed GPU is reported: a GPU that is slowed down for a shorter time is only warm."""
MAX_GPU_SLOWDOWN_GAP_S = 120.0
"""The most seconds between two readings that show one slowdown: hours later it is another one."""


def rising_counter_findings(
    node: str, then: node_answers.Counters, now: node_answers.Counters
) -> Iterator[tuple[str, Finding]]:
    """The findings about counters that rose too much between two readings, each with a key of its own: the place and
    the counter."""
    seconds = max(0.001, now["clock"] - then["clock"])
    for name, counts in now["interfaces"].items():
        before = then["interfaces"].get(name, {})
        for counter, says, proof in _risen_counters(f"{name} of {node}", INTERFACE_LIMITS, before, counts, seconds):
            finding = finding_for("counters-rising", says, (proof,), way="interface", node=node, name=shell_word(name))
            yield f"{name} of {node} {counter}", finding
    if then["tcp"] and now["tcp"]:
        for counter, says, proof in _risen_counters(
            node, (TCP_LIMIT,), _segment_counts(then["tcp"]), _segment_counts(now["tcp"]), seconds
        ):
            yield f"{node} {counter}", finding_for("counters-rising", says, (proof,), way="tcp", node=node)
    for name, counts in now["ports"].items():
        hca, _, port = name.partition(":")
        for counter, says, proof in _risen_counters(
            f"{name} of {node}", IB_PORT_LIMITS, then["ports"].get(name, {}), counts, seconds
        ):
            finding = finding_for(
                "counters-rising", says, (proof,), way="port", node=node, hca=shell_word(hca), port=shell_word(port)
            )
            yield f"{name} of {node} {counter}", finding
    yield from _gpu_findings(node, then, now)


def _segment_counts(tcp: node_answers.Segments) -> Counts:
    return {"OutSegs": tcp["OutSegs"], "RetransSegs": tcp["RetransSegs"]}


def _risen_counters(
    place: str, limits: tuple[Limit, ...], then: Counts, now: Counts, seconds: float
) -> Iterator[tuple[str, str, str]]:
    """The counters that rose beyond their limit, each with a sentence and a line of evidence."""
    for limit in limits:
        count = counter_rise(then.get(limit.counter), now.get(limit.counter))
        if count is None or count < limit.least or count <= limit.per_s * seconds:
            continue
        whole = counter_rise(then.get(limit.of), now.get(limit.of)) if limit.of else None
        if limit.of and (whole is None or count <= limit.share * whole):
            continue
        if limit.counter == "rx_errors" and count == counter_rise(then.get("rx_crc_errors"), now.get("rx_crc_errors")):
            continue  # all of these are the CRC errors, which are reported by themselves
        share = f" ({count / whole:.1%} of {whole:,})" if whole else ""
        says = f"{place}: {count:,} {limit.what} in {seconds_text(seconds)}{share}"
        yield limit.counter, says, f"{limit.counter}: {then[limit.counter]:,} before, {now[limit.counter]:,} after"


def counter_rise(then: int | None, now: int | None) -> int | None:
    """By how much a counter rose; a counter that was reset meanwhile counts from zero. None if a value was not read."""
    if then is None or now is None:
        return None
    return now - then if now >= then else now


def _gpu_findings(node: str, then: node_answers.Counters, now: node_answers.Counters) -> Iterator[tuple[str, Finding]]:
    """The findings about GPUs (slowed down in both readings, new memory errors, new Xids), each with its own key."""
    before = {gpu.index: gpu for gpu in gpus_in_reading(then)}
    lasts = MIN_GPU_SLOWDOWN_S <= now["clock"] - then["clock"] <= MAX_GPU_SLOWDOWN_GAP_S
    for gpu in gpus_in_reading(now):
        earlier, place = before.get(gpu.index), f"GPU {gpu.index} of {node}"
        if earlier is None:
            continue
        lasting = [reason for reason in gpu.slowed_by if reason in earlier.slowed_by] if lasts else []
        if lasting:
            says = f"{place} is slowed down: {', '.join(lasting)}{gpu_clock_text(gpu)}"
            proof = f"in two readings: {', '.join(lasting)}"
            yield f"{place} slowed", finding_for("counters-rising", says, (proof,), way="gpu", node=node)
        field = "ecc.errors.uncorrected.volatile.total"
        was, has = earlier.number(field), gpu.number(field)
        if was is not None and has is not None and has > was:
            says = f"{place}: {has - was:.0f} memory errors that could not be corrected"
            proof = f"{field}: {was:.0f} before, {has:.0f} after"
            yield f"{place} ecc", finding_for("counters-rising", says, (proof,), way="gpu", node=node)
    known = set(then["xids"] or ())
    fresh = [line for line in now["xids"] or () if line not in known] if then["xids"] is not None else []
    buses = {bus for gpu in gpus_in_reading(now) if (bus := bus_key(gpu.fields.get("pci.bus_id", "")))}
    for event in xid_events([fresh], 0.0):
        if buses and event.bus not in buses and not event.of_nvswitch:
            continue  # a GPU of somebody else's job
        says = f"the kernel of {node} logged Xid {event.number} of the GPU at {event.bus}"
        finding = finding_for("counters-rising", says, (event.text,), way="xid", node=node)
        yield f"{node} {event.bus} xid {event.number}", finding


def gpus_in_reading(facts: node_answers.Counters) -> tuple[Gpu, ...]:
    """The GPUs in a reading; empty if nvidia-smi did not answer."""
    said = facts["gpus"] or {}
    return parse_gpus(said.get("out", ""), said.get("fields", ())).gpus if said.get("code") == 0 else ()


def gpu_clock_text(gpu: Gpu) -> str:
    """In words, a GPU's clock and temperature, as far as they are known."""
    now, most, heat = (gpu.number(name) for name in ("clocks.sm", "clocks.max.sm", "temperature.gpu"))
    speed = f", at {now:.0f} of {most:.0f} MHz" if now is not None and most else ""
    return speed + (f", {heat:.0f} °C" if heat is not None else "")


def not_read(facts: node_answers.Counters, *, gpus: bool) -> list[str]:
    """In words, what a reading does not tell about its node, and why. `gpus`: whether the reading included GPUs."""
    found = [
        f"{name}: {', '.join(missing)}"
        for name, counts in facts["interfaces"].items()
        if (missing := [limit.counter for limit in INTERFACE_LIMITS if counts.get(limit.counter) is None])
    ]
    found += [] if facts["tcp"] else ["TCP segments sent again: /proc/net/snmp"]
    for name, counts in facts["ports"].items():
        missing = [limit.counter for limit in IB_PORT_LIMITS if limit.highest and counts.get(limit.counter) is None]
        full = [one.counter for one in IB_PORT_LIMITS if one.highest and (counts.get(one.counter) or 0) == one.highest]
        found += [f"{name}: {', '.join(missing)}"] if missing else []
        found += [f"{name}: {', '.join(full)} (they stand at their highest value)"] if full else []
    if gpus:
        said = facts["gpus"]
        if said is None:
            found.append("GPUs: there is no nvidia-smi")
        elif said.get("timed_out"):
            found.append("GPUs: nvidia-smi does not return")
        elif not gpus_in_reading(facts):
            found.append("GPUs: nvidia-smi says nothing about them")
        found += ["Xid: the kernel's log may not be read by this login"] if facts["xids"] is None else []
    return found


COUNTERS_INTERVAL_S = 30.0
"""Seconds between two readings."""
COUNTERS_TIMEOUT_S = 12.0
"""Seconds that a node may take to answer."""
COUNTERS_SMI_TIMEOUT_S = 5.0
"""Seconds that nvidia-smi may take. It is not run again on a node where it took longer: each hanging process may
stay."""

COUNTER_THREAD_TIMEOUT_S = 1.0
"""Seconds for which the end of a `CounterWatch` block waits for its thread."""


class CounterWatch:
    """Reads the counters of all nodes at the beginning of the `with` block, every COUNTERS_INTERVAL_S in a thread, and
    at the end. A rise is reported when it is seen, once for each counter. `tell` gets the node and the finding."""

    def __init__(
        self, kept: KeptProcesses, tell: Callable[[Sequence[str], Finding], None], unread: Callable[[str, str], None]
    ) -> None:
        """`unread` is called with a node and, in words, what was not read there; once for each."""
        self.after_reading: Callable[[], None] = lambda: None
        """Called after each reading except the first and the last."""
        self._kept = kept
        self._tell = tell
        self._unread = unread
        self._lock = threading.Lock()
        # Readings, and the sentences about rises, by node:
        self.first: dict[str, node_answers.Counters] = {}
        self.before: dict[str, node_answers.Counters] = {}  # the last reading but one
        self.last: dict[str, node_answers.Counters] = {}
        self.rose: dict[str, list[tuple[float, str]]] = {}  # when on the monotonic clock, and in sentences
        self._said: set[str] = set()
        self._without_gpus: set[str] = set()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._read_on, name="counters", daemon=True)

    def __enter__(self) -> CounterWatch:
        self.read()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(COUNTER_THREAD_TIMEOUT_S)
        if not self._kept.at.hurry.is_set():
            self.read()

    def _read_on(self) -> None:
        """Reads the counters every COUNTERS_INTERVAL_S, until the `with` block ends."""
        while not self._ending.wait(COUNTERS_INTERVAL_S):
            try:
                self.read()
                self.after_reading()
            except Exception as error:  # noqa: BLE001  a watch that ended without a word would look healthy
                with self._lock:
                    for name in self._kept.nodes:
                        self._say_unread(name, f"a reading of counters failed: {type(error).__name__}: {error}")

    def read(self) -> None:
        """Reads the counters of every node that is reached, and reports what rose."""
        nodes = [self._kept.at.inventory.node(name) for name in self._kept.live_nodes()]
        for name, answer in self._kept.at.run.site.each(nodes, self._ask, timeout_s=COUNTERS_TIMEOUT_S).items():
            with self._lock:
                if isinstance(answer, BaseException):
                    self._say_unread(name, no_answer_outcome(name, "counters", answer).findings[0].says)
                else:
                    self._take(name, answer)

    def _gpus(self, name: str) -> list[int]:
        """The indices of the job's GPUs on a node; empty if nvidia-smi did not return there."""
        mine = sorted({gpu for member in self._kept.on(name) for gpu in member.place.gpus})
        return [] if name in self._without_gpus else mine

    def _pid(self, name: str) -> int | None:
        """The pid of a process of the job on a node; None if none lives there."""
        pids = [member.journal.get("pid") for member in self._kept.on(name) if not member.over]
        return next((pid for pid in pids if pid), None)

    def _ask(self, node: Node) -> node_answers.Counters:
        at = self._kept.at
        order = {
            "interfaces": job_interfaces(at, node),
            "gpus": self._gpus(node.name),
            "deadline_s": COUNTERS_SMI_TIMEOUT_S,
            "pid": self._pid(node.name),
        }
        return at.session(node).call(node_answers.COUNTERS_PROGRAM, order, timeout_s=COUNTERS_TIMEOUT_S)

    def _take(self, name: str, now: node_answers.Counters) -> None:
        """Compares a reading with the last and the first of its node, and reports new rises."""
        for missing in not_read(now, gpus=bool(self._gpus(name))):
            self._say_unread(name, missing)
        if (now["gpus"] or {}).get("timed_out"):
            self._without_gpus.add(name)
        for then in [facts for facts in (self.last.get(name), self.first.get(name)) if facts is not None]:
            for key, finding in rising_counter_findings(name, then, now):
                if key not in self._said:
                    self._said.add(key)
                    self.rose.setdefault(name, []).append((time.monotonic(), finding.says))
                    self._tell([name], finding)
        self.first.setdefault(name, now)
        self.before[name] = self.last.get(name, now)
        self.last[name] = now

    def _say_unread(self, name: str, what: str) -> None:
        """Reports, once, what was not read on a node."""
        if f"{name} {what}" not in self._said:
            self._said.add(f"{name} {what}")
            self._unread(name, what)
