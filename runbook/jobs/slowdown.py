"""Which node makes a training slower, or keeps the others waiting, and why, as far as that can be seen?

In synchronous training all ranks make a step together, so the steps do not show which rank is late: the late rank is
the one that does not wait. After readings of the counters, main threads are sampled, by their state, and by their stack
where they can be asked. A rank that sleeps in a collective waits for another rank. A node is accused only if one of its
ranks hardly ever waits while all ranks of all other nodes clearly do. Ranks with GPUs accuse no node in this way: their
main threads wait for their own GPU as well.

If all ranks wait alike, the network of one node may be slow: in a collective all ranks wait alike, so neither steps nor
stacks distinguish that node. The kernel's counts for each connection do: how much data was sent, and for how long it
was on its way. A node is named if all that it sends, or gets, or both, goes several times more slowly than what the
other nodes exchange meanwhile, in two looks, and no other node explains the slowness as well. If two nodes do, such as
the two ends of a single slow path, the node whose own adapters report that they are slow is named, and otherwise none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from runbook.causes.catalogue import finding_for, remedy_from_page
from runbook.checks.bandwidth import adapters
from runbook.checks.bandwidth.adapters import SlowReason
from runbook.checks.context import Context
from runbook.checks.network.live_traffic import names_by_address
from runbook.jobs.counters import CounterWatch, counter_rise, gpu_clock_text, gpus_in_reading
from runbook.jobs.kept_processes import KeptProcesses
from runbook.jobs.progress import Slowdown, StepTimes
from runbook.model.inventory import Node
from runbook.model.units import bytes_text, seconds_text
from runbook.model.verdict import Finding, Outcome
from runbook.parsers.python_stacks import is_waiting_for_peers, main_thread_frames
from runbook.transport import node_answers

MAX_RISE_AGE_S = 900.0
"""How many seconds ago a counter may have risen to be a possible reason for a slowdown now."""
MIN_PATH_BUSY_SHARE = 0.3
"""The least part of the time for which data has to be on its way before a path counts as slow: otherwise pauses have
other reasons."""

MIN_SLOW_PATH_FACTOR = 5.0
"""A slow way is at least this many times slower than every other way. The rates of busy machines scatter by three."""

MIN_COMPARED_BYTES_SHARE = 0.25
"""A way that carries less than this part of the bytes is not compared: small messages go slowly everywhere."""

MAX_ADAPTER_LIMIT_FACTOR = 2.0
"""A limit of an adapter explains a rate if it is at most this many times the rate."""

MIN_RATE_BYTES = 64 * 1024
"""The least number of bytes from which a rate is computed."""

SLOW_TRAFFIC_TEXTS = {"sends": "what {} sends", "gets": "what is sent to {}", "both": "what {} sends and gets"}
"""In words, the slow traffic of a node, by the `how` of a Suspect."""


@dataclass(frozen=True, slots=True)
class Way:
    """The bytes that the ranks of one node sent to the ranks of another within `seconds`. `busy`: the part of the time
    for which data was on its way, on the connection that was busy longest."""

    source: str
    destination: str
    bytes: int
    busy: float
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes a second while data was on its way; infinite if that time is too short to be counted."""
        spent_s = self.busy * self.seconds
        return self.bytes / spent_s if spent_s else float("inf")

    def __str__(self) -> str:
        return (
            f"{self.source} → {self.destination}: {bytes_text(self.bytes)} in {self.seconds:.0f} s, {self.busy:.0%} of "
            "the time on their way"
        )


@dataclass(frozen=True, slots=True)
class Suspect:
    """A node that explains why `ways` are slow. `how`: they are what the node `sends`, what it `gets`, or `both`."""

    node: str
    how: str
    ways: tuple[Way, ...]

    def agrees(self, other: Suspect) -> bool:
        """Whether both may be the same fault: if a node sends slowly, data sent to it waits for acknowledgements."""
        return self.node == other.node and (self.how == other.how or "both" in (self.how, other.how))

    def explained_by(self, reason: SlowReason) -> bool:
        """Whether an adapter's reason explains the rate: a limit far above what the ways carry holds nothing back, nor
        does one far below."""
        fastest = max(way.rate for way in self.ways) / 1e9
        return reason.gbytes is None or (
            reason.gbytes <= MAX_ADAPTER_LIMIT_FACTOR * fastest
            and not reason.outrun(
                sent=fastest if self.how == "sends" else 0.0, received=fastest if self.how == "gets" else 0.0
            )
        )


@dataclass(frozen=True, slots=True)
class SlowNetwork:
    """What is known about a slow network. `node`: the node at fault, or None if no node stands out."""

    node: str | None
    says: str
    remedy: str
    evidence: tuple[str, ...]


def network_suspects(ways: Iterable[Way]) -> list[Suspect]:
    """The nodes each of which alone would explain what is slow; empty if nothing is slow."""
    ways = [way for way in ways if way.bytes >= MIN_RATE_BYTES]
    found: list[Suspect] = []
    for node in dict.fromkeys(end for way in ways for end in (way.source, way.destination)):
        sends = tuple(way for way in ways if way.source == node)
        gets = tuple(way for way in ways if way.destination == node)
        for how, its in (("sends", sends), ("gets", gets), ("both", (*sends, *gets))):
            # Data sent to a slow sender waits for its acknowledgements, perhaps less: one direction has to be busy.
            busy = _are_ways_busy(sends) or _are_ways_busy(gets) if how == "both" else _are_ways_busy(its)
            if busy and _are_ways_slower(its, _other_ways(ways, its)):
                found.append(Suspect(node, how, its))
                break
    return found


def _are_ways_busy(ways: Sequence[Way]) -> bool:
    """Whether data was on its way long enough on all of these ways."""
    return bool(ways) and all(way.busy >= MIN_PATH_BUSY_SHARE for way in ways)


def _are_ways_slower(its: Sequence[Way], others: Sequence[Way]) -> bool:
    """Whether these ways are at least MIN_SLOW_PATH_FACTOR slower than all others that can be compared."""
    most = max(way.bytes for way in its)
    measure = [way.rate for way in others if way.bytes >= MIN_COMPARED_BYTES_SHARE * most]
    return bool(measure) and max(way.rate for way in its) * MIN_SLOW_PATH_FACTOR <= min(measure)


def _other_ways(ways: Iterable[Way], its: Iterable[Way]) -> list[Way]:
    """The ways that are not among `its`."""
    ends = {(way.source, way.destination) for way in its}
    return [way for way in ways if (way.source, way.destination) not in ends]


def judge_network(looks: Sequence[Sequence[Way]], reasons: Mapping[str, Sequence[SlowReason]]) -> SlowNetwork | None:
    """What independent looks show about a slow network; None if no node explains all of them. `reasons`: by node that
    was asked, why its adapters are slow by its own account."""
    seen = [network_suspects(ways) for ways in looks]
    alike = [one for one in (seen or [[]])[-1] if all(any(one.agrees(other) for other in each) for each in seen)]
    if not alike:
        return None
    because = {one.node: [why for why in reasons.get(one.node, ()) if one.explained_by(why)][:2] for one in alike}
    explained = [one for one in alike if because[one.node]]
    chosen = alike if len(alike) == 1 else explained if set(reasons) >= {one.node for one in alike} else []
    evidence = tuple(str(way) for one in alike[:1] for way in one.ways[:6])
    if len(chosen) != 1:
        between = " or ".join(SLOW_TRAFFIC_TEXTS[one.how].format(one.node) for one in alike)
        says = (
            f"{between} is {_slow_ways_text(alike[0], looks[-1])}, and it is not known which: their adapters look alike"
        )
        nodes = " and ".join(one.node for one in alike)
        return SlowNetwork(None, says, remedy_from_page("training-slowed", "network", nodes=nodes), evidence)
    (one,) = chosen
    why = because[one.node]
    says = f"{SLOW_TRAFFIC_TEXTS[one.how].format(one.node)} is {_slow_ways_text(one, looks[-1])}"
    says += "".join(f"; {reason.says}" for reason in why)
    remedy = why[0].command if why else remedy_from_page("training-slowed", "network", nodes=one.node)
    return SlowNetwork(one.node, says, remedy, (*evidence, *(reason.evidence for reason in why)))


def _slow_ways_text(one: Suspect, ways: Sequence[Way]) -> str:
    """In words, how slow the ways of a suspect are, and how fast all others."""
    busy = max(way.busy for way in one.ways)
    rate = max(way.rate for way in one.ways)
    others = min((way.rate for way in _other_ways(ways, one.ways) if way.bytes >= MIN_RATE_BYTES), default=0.0)
    measure = f"; every other way carries at least {bytes_text(round(others))}/s" if 0 < others < float("inf") else ""
    return f"on its way for {busy:.0%} of the time, at {bytes_text(round(rate))}/s{measure}"


MAIN_THREAD_SAMPLES = 24
"""How many samples of a main thread are taken."""
SAMPLE_INTERVAL_S = 0.4
"""Seconds between two samples."""

MAX_LATE_WAIT_SHARE = 0.1
MIN_OTHERS_WAIT_SHARE = 0.35
"""A rank that waits in at most MAX_LATE_WAIT_SHARE of the samples is late if all others wait in at least
MIN_OTHERS_WAIT_SHARE. Of two ranks that both wait for a quarter of the time, 24 samples show one below and one above
these limits in one case of a hundred."""

MIN_NAMED_CPU_SHARE = 0.5
"""The least share of a CPU of another process that is named."""

MIN_THROTTLED_SHARE = 0.1
MIN_CPU_WAIT_SHARE = 0.3
MIN_MEMORY_WAIT_SHARE = 0.05
"""The least parts of the time that count as a reason: a control group had used up its quota, processes waited for a
CPU, and processes waited for memory."""

MIN_SWAPPED_PAGES_PER_S = 1000
"""The least pages a second, swapped in or out, that count as a reason: 4 MB."""


NODE_REASON_PREFIXES = ("quota", "memory", "process ", "gpu ")
"""Kinds of reasons, by their beginning, that keep ranks from computing."""

ReasonsByKind = Mapping[str, str]
"""Reasons in words, by their kind."""


@dataclass(frozen=True, slots=True)
class Waits:
    """How much a rank waits. `share`: the part of the samples in which it waited for other ranks; None if too few
    samples gave an answer. `for_cpu`: the part of the time for which it waited for a CPU."""

    node: str
    label: str
    share: float | None
    for_cpu: float = 0.0

    def __str__(self) -> str:
        share = "for an unknown part of the time" if self.share is None else f"{self.share:.0%} of the time"
        return f"{self.label} waits for others {share}" + (
            f", and for a CPU {self.for_cpu:.0%}" if self.for_cpu >= MIN_CPU_WAIT_SHARE else ""
        )


@dataclass(frozen=True, slots=True)
class LateNode:
    """The node that the others wait for. `remedy` is empty if the node's counters suggest one."""

    node: str
    says: str
    remedy: str = ""
    evidence: tuple[str, ...] = ()


def waits_by_samples(
    node: str, label: str, states: str, stacks: Sequence[str], *, by_stack: bool, for_cpu: float | None = None
) -> Waits:
    """How much a rank waits, by the samples of its main thread: by the states alone, or with `by_stack` by the stacks.
    `states` has one letter, `stacks` one dump for each sample."""
    waited: list[bool] = []
    for state, text in zip(states, stacks, strict=False):
        frames = main_thread_frames(text) if by_stack else ()
        if state in "RD":
            waited.append(False)
        elif state == "S" and (frames or not by_stack):
            waited.append(not by_stack or is_waiting_for_peers(frames))
    return Waits(
        node, label, sum(waited) / len(waited) if len(waited) >= MAIN_THREAD_SAMPLES / 2 else None, for_cpu or 0.0
    )


def find_late_node(seen: Sequence[Waits]) -> LateNode | None:
    """The node that all others wait for; None if no node stands out, or a rank gave too few samples."""
    shares = [(one, one.share) for one in seen if one.share is not None]
    if len(shares) < len(seen):
        return None
    guilty = {one.node for one, share in shares if share <= MAX_LATE_WAIT_SHARE}
    waiting = [share for one, share in shares if one.node not in guilty]
    if len(guilty) != 1 or not waiting or min(waiting) < MIN_OTHERS_WAIT_SHARE:
        return None
    one, _ = min(shares, key=lambda pair: pair[1])
    return LateNode(
        one.node,
        f"the others wait for {one.node}: {one}, and every rank of the other nodes at least {min(waiting):.0%}",
    )


def why_late_by_chance(node: str, seen: Sequence[Waits], why: Mapping[str, ReasonsByKind]) -> str:
    """In words, why it is chance that the others wait for this node: ranks of other nodes hardly get a CPU as well.
    Empty if the node itself may be the reason."""
    starved = [one for one in seen if one.for_cpu >= MIN_CPU_WAIT_SHARE]
    elsewhere = [one for one in starved if one.node != node]
    explained = any(kind.startswith(NODE_REASON_PREFIXES) for kind in own_reasons(why, node))
    if len(elsewhere) == len(starved) or not elsewhere or explained:
        return ""
    names = ", ".join(dict.fromkeys(one.node for one in starved))
    return f"ranks of {names} wait for a CPU, so it is chance which one is late"


def slow_node_reasons(
    node: str,
    then: node_answers.Counters | None,
    now: node_answers.Counters | None,
    busy: Sequence[node_answers.BusyProcess],
) -> ReasonsByKind:
    """The reasons that slow a node down, as far as its own counters show, between the readings `then` and `now`.
    `busy`: the processes of others that use its CPUs."""
    found = dict(_machine_reasons(node, then, now)) if then is not None and now is not None else {}
    for gpu in gpus_in_reading(now) if now is not None else ():
        if held := gpu.slowed_by:
            found[f"gpu {gpu.index}"] = (
                f"GPU {gpu.index} of {node} is slowed down: {', '.join(held)}{gpu_clock_text(gpu)}"
            )
    for one in busy:
        if one["cpu"] >= MIN_NAMED_CPU_SHARE:
            found[f"process {one['pid']}"] = (
                f"another process on {node} uses {one['cpu']:.0%} of a CPU: pid {one['pid']} of {one['user']}, "
                f"{one['command']}"
            )
    return found


def _machine_reasons(node: str, then: node_answers.Counters, now: node_answers.Counters) -> Iterator[tuple[str, str]]:
    """The reasons in the machine's own counters, each with its kind."""
    seconds: float = max(0.001, now["clock"] - then["clock"])

    def risen(name: str) -> float:
        return float(counter_rise(then["machine"].get(name), now["machine"].get(name)) or 0) / seconds

    if (share := risen("quota_us") / 1e6) >= MIN_THROTTLED_SHARE:
        yield (
            "quota",
            f"the ranks of {node} are held back by the CPU quota of their control group, {share:.1f} s in each second",
        )
    if (share := risen("memory_waited_us") / 1e6) >= MIN_MEMORY_WAIT_SHARE:
        yield "memory", f"processes on {node} wait for memory {share:.0%} of the time"
    if (pages := risen("pswpin") + risen("pswpout")) >= MIN_SWAPPED_PAGES_PER_S:
        yield "memory", f"{node} swaps {pages:,.0f} pages a second"
    if (share := risen("cpu_waited_us") / 1e6) >= MIN_CPU_WAIT_SHARE:
        yield "cpu", f"processes on {node} wait for a CPU {share:.0%} of the time"


def own_reasons(why: Mapping[str, ReasonsByKind], node: str) -> ReasonsByKind:
    """The reasons of this node whose kind does not hold for all nodes."""
    return {
        kind: says
        for kind, says in why.get(node, {}).items()
        if len(why) < 2 or not all(kind in each for each in why.values())
    }


def judge_slowdown(
    slower: Slowdown | None,
    found: LateNode | None,
    why: Mapping[str, ReasonsByKind],
    seen: Sequence[str] = (),
    network: SlowNetwork | None = None,
) -> tuple[tuple[str, ...], Finding] | None:
    """The finding, with the one node that it is about, or with all nodes if none stands out; None without proof. `why`:
    the reasons for every node of the job. `slower`: None if only late nodes were looked for. `found`: the late node.
    `seen`: in words, what the ranks were seen to do. `network`: what is known about a slow network."""
    how_slow = slowdown_text(slower) if slower else ""
    if found is None and network is not None and network.node is not None:
        found = LateNode(network.node, network.says, network.remedy, network.evidence)
    if found is not None:
        known = own_reasons(why, found.node)
        says = "; ".join([*([how_slow] if how_slow else []), found.says, *list(known.values())[:2]])
        evidence = (*found.evidence, *known.values(), *seen)
        judged = _slow_node_finding(found.node, says, evidence, known)
        return (found.node,), replace(judged, remedy=found.remedy or judged.remedy)
    if slower is None:
        return None
    if network is not None:
        says = f"{how_slow}; {network.says}"
        return tuple(why), Finding("training-slowed", says, network.remedy, network.evidence)
    suspects = [node for node in why if own_reasons(why, node)]
    if len(suspects) == 1:
        node, known = suspects[0], own_reasons(why, suspects[0])
        evidence = (*known.values(), *seen)
        says = f"{how_slow}; no node is measurably late; only {node} shows a possible reason: {evidence[0]}"
        return (node,), _slow_node_finding(node, says, evidence, known)
    lines = [line for each in why.values() for line in each.values()]
    if not lines and not slower.at_once:
        return None  # the steps themselves may have become longer
    says = f"{how_slow}; no node stands out from the others" + (f": {'; '.join(lines[:2])}" if lines else "")
    return tuple(why), finding_for("training-slowed", says, (*lines, *seen), way="alike")


def slowdown_text(slower: Slowdown) -> str:
    """In words, the slowdown."""
    how = "at once" if slower.at_once else "gradually"
    was, now = seconds_text(slower.before_s), seconds_text(slower.now_s)
    return f"the training is {slower.lost:.0%} slower than in its first minutes, {how}: {now} a step, {was} before"


def _slow_node_finding(node: str, says: str, evidence: Iterable[str], known: ReasonsByKind) -> Finding:
    """The finding about a slow node. The first of the `known` reasons chooses the remedy."""
    first = next(iter(known), "")
    way = "gpu" if first.startswith("gpu ") else {"quota": "quota", "memory": "memory"}.get(first, "node")
    return finding_for("training-slowed", says, tuple(evidence), way=way, node=node)


EARLY_LOOK_SHARE = 0.2
"""After this part of the baseline's time all nodes are looked at once, even if the training is not slower: a node may
have been late from the first step."""

MAX_LATE_NODE_CHANGES = 2
"""If more readings of a slower training than this each show another late node than the reading before, none stands
out."""

SAMPLES_TIMEOUT_S = 45.0
"""Seconds that a node may take to answer with its samples."""
MAX_SHOWN_RANKS = 16
"""The most ranks whose waiting is shown as evidence."""


class SlowdownSearch:
    """Searches for the node that slows a training down; `look` is called after each reading of the counters, and
    reports each finding once. `tell` gets the nodes that a finding is about, and the finding; `say` gets a sentence
    that accuses no node."""

    def __init__(
        self,
        kept: KeptProcesses,
        step_times: StepTimes,
        counters: CounterWatch,
        tell: Callable[[Sequence[str], Finding], None],
        say: Callable[[str], None],
    ) -> None:
        self._kept = kept
        self._step_times = step_times
        self._counters = counters
        self._tell = tell
        self._say = say
        self._early = False
        self._doubted: str | None = None  # the node that was late at the reading before
        self._unclear = False  # whether, at the reading before, the training was slower and no node was late
        self._named = 0  # how many readings of the slower training showed another late node than the one before
        self._reported = False
        self._busy: dict[str, list[node_answers.BusyProcess]] = {}
        self._seen: list[Waits] = []
        self._ways: list[Way] = []

    def look(self) -> None:
        """Looks for a slowdown and its reason after a reading of the counters, and reports what is new."""
        now = time.monotonic()
        slower = None if self._reported else self._step_times.slower(now)
        if slower is None:
            self._unclear, self._named = False, 0
        if self._reported or (slower is None and self._doubted is None and not self._due(now)):
            return
        by_state = self._late(by_stack=False)
        found, looks = by_state, [self._ways]
        if by_state is not None or slower is not None or network_suspects(self._ways):
            found = self._late(by_stack=True)
            looks.append(self._ways)
        if any(member.over for member in self._kept.members):
            return  # ranks wait for a process that has ended, or no longer for each other
        if found is not None and by_state is not None and found.node != by_state.node:
            found = None
        doubted, self._doubted = self._doubted, found.node if found is not None else None
        if found is not None and found.node != doubted:
            self._named += slower is not None
            if self._named <= MAX_LATE_NODE_CHANGES:
                return  # the node is reported if the next reading shows it too
            found, self._unclear = None, True  # each reading shows another node
        network = self._network(looks) if found is None else None
        if slower is not None and found is None and network is None and not self._unclear:
            self._unclear = True
            return  # a busy machine may have hidden the late node from one reading
        self._doubted = None
        self._say_what(slower, found, network)

    def _due(self, now: float) -> bool:
        """Whether the one look is due that comes even without a slowdown."""
        due = not self._early and self._step_times.age_s(now) >= EARLY_LOOK_SHARE * self._step_times.baseline_s
        self._early = self._early or due
        return due

    def _say_what(self, slower: Slowdown | None, found: LateNode | None, network: SlowNetwork | None) -> None:
        """Reports the late node, the slow network, or that steps grew."""
        why = {name: self._why(name) for name in self._kept.nodes}
        if found is not None and (unclear := why_late_by_chance(found.node, self._seen, why)):
            self._say(f"{found.says}; but {unclear}")
            found = None
        judged = judge_slowdown(slower, found, why, [str(one) for one in self._seen[:MAX_SHOWN_RANKS]], network)
        self._reported = judged is not None or slower is not None
        if judged is not None:
            self._tell(*judged)
        elif slower is not None:
            self._say(f"{slowdown_text(slower)}, on all nodes alike: the steps themselves may have grown")
        elif network is not None:
            self._say(network.says)

    def _why(self, name: str) -> ReasonsByKind:
        """The reasons that slow a node down, by its latest readings."""
        then, now = self._counters.before.get(name), self._counters.last.get(name)
        since = time.monotonic() - MAX_RISE_AGE_S
        rose = {says: says for at, says in self._counters.rose.get(name, ()) if at > since}
        return {**slow_node_reasons(name, then, now, self._busy.get(name, ())), **rose}

    def _late(self, *, by_stack: bool) -> LateNode | None:
        """Samples all ranks; the node that the others wait for. None also if a rank has a GPU: waiting for a GPU looks
        like waiting for another rank."""
        kept = self._kept
        gpus = any(member.place.gpus for member in kept.members)
        nodes = [kept.at.inventory.node(name) for name in kept.live_nodes()]

        def ask(node: Node) -> node_answers.StackSamples:
            leaders = {str(m.place.ranks[0]): m.journal.get("pid") for m in kept.on(node.name) if not m.over}
            order = {
                "leaders": leaders,
                "looks": MAIN_THREAD_SAMPLES,
                "every_s": SAMPLE_INTERVAL_S,
                "stacks": kept.stacks.get(node.name) if by_stack and not gpus else None,
            }
            return kept.at.session(node).call(node_answers.STACK_SAMPLES_PROGRAM, order, timeout_s=SAMPLES_TIMEOUT_S)

        # All nodes at once: samples of different times show different steps, and asking in turns would take too long.
        said = kept.at.run.site.each(nodes, ask, timeout_s=SAMPLES_TIMEOUT_S, at_once=len(nodes))
        answers = {name: answer for name, answer in said.items() if not isinstance(answer, BaseException)}
        self._busy = {name: answer["busy"] for name, answer in answers.items()}
        self._seen = [
            _rank_waits(name, rank, ranks.get(str(rank)), by_stack=by_stack)
            for name, ranks in ((name, answers[name]["ranks"] if name in answers else {}) for name in said)
            for rank in (rank for member in kept.on(name) for rank in member.place.ranks)
        ]
        whole = len(answers) == len(kept.nodes)  # otherwise the late rank may be on a node without an answer
        self._ways = ways_between_nodes(kept.at, answers) if whole else []
        return find_late_node(self._seen) if whole and not gpus else None

    def _network(self, looks: Sequence[Sequence[Way]]) -> SlowNetwork | None:
        """What is known about a slow network, from two looks; None if they do not show any."""
        if len(looks) < 2 or not all(map(network_suspects, looks)):
            return None
        answers = adapters.ask_adapters(replace(self._kept.at, deadline=time.monotonic() + SAMPLES_TIMEOUT_S))
        wires = {name: one for name, one in answers.items() if not isinstance(one, Outcome)}
        why = {
            name: adapters.slow_adapter_reasons(one, [w for w in wires.values() if w is not one])
            for name, one in wires.items()
        }
        return judge_network(looks, why)


def _rank_waits(node: str, rank: int, samples: node_answers.RankSamples | None, *, by_stack: bool) -> Waits:
    label = f"rank {rank} on {node}"
    if samples is None:
        return Waits(node, label, None)
    return waits_by_samples(
        node, label, samples["states"], samples["stacks"], by_stack=by_stack, for_cpu=samples["waited"]
    )


def ways_between_nodes(at: Context, answers: Mapping[str, node_answers.StackSamples]) -> list[Way]:
    """The ways from each node to each other node, with what their ranks sent while they were sampled."""
    names = names_by_address(at)
    found: dict[tuple[str, str], Way] = {}
    for source, answer in answers.items():
        seconds = max(0.001, answer["seconds"])
        for address, sent in (answer["sent"] or {}).items():
            destination = names.get(address, source)
            if destination == source:
                continue
            other = found.get((source, destination))
            found[source, destination] = Way(
                source,
                destination,
                sent["bytes"] + (other.bytes if other else 0),
                max(min(1.0, sent["busy_s"] / seconds), other.busy if other else 0.0),
                seconds,
            )
    return list(found.values())
