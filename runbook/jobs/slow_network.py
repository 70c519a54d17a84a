"""A node that is slow by its network alone: in a collective all ranks wait alike, so neither steps nor stacks
distinguish it from the others. The kernels' counts of each connection do: for how long data was on its way, and how
much. A node is named where all that it sends, or gets, or both, goes several times more slowly than what the other
nodes exchange meanwhile, in two looks, and no other node explains that as well. When two do, such as the two ends of a
single slow path, the one is named whose own adapters say that they are slow, and otherwise none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from runbook.causes.catalogue import mend
from runbook.checks.bandwidth.adapters import SlowReason
from runbook.model.units import bytes_text

BUSY = 0.3
"""A path is slow only if data is on its way for at least this part of the time: otherwise pauses have other reasons."""

TIMES = 5.0
"""So many times slower than every other way; rates of busy machines scatter by three."""

ALIKE = 0.25
"""Ways that carry less than this part of the bytes are no measure: small messages go slowly everywhere."""

NEAR = 2.0
"""A limit of at most this many times the rate explains it."""

LEAST = 64 * 1024
"""The least number of bytes for a rate."""

VERBS = {"sends": "what {} sends", "gets": "what is sent to {}", "both": "what {} sends and gets"}


@dataclass(frozen=True, slots=True)
class Way:
    """What the ranks of one node sent to those of another. `busy`: for what part of the time some of it was on its way,
    on the connection that was busy longest."""

    source: str
    destination: str
    bytes: int
    busy: float
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes a second while something was on its way; infinite where that is too short to be counted."""
        spent_s = self.busy * self.seconds
        return self.bytes / spent_s if spent_s else float("inf")

    def __str__(self) -> str:
        return (
            f"{self.source} → {self.destination}: {bytes_text(self.bytes)} in {self.seconds:.0f} s, {self.busy:.0%} of "
            "the time on their way"
        )


@dataclass(frozen=True, slots=True)
class Suspect:
    """A node that explains all slow ways: by what it `sends`, `gets`, or `both`."""

    node: str
    how: str
    ways: tuple[Way, ...]

    def agrees(self, other: Suspect) -> bool:
        """Whether both may be the same fault: when a node sends slowly, what it gets waits for its acknowledgements."""
        return self.node == other.node and (self.how == other.how or "both" in (self.how, other.how))

    def explained_by(self, reason: SlowReason) -> bool:
        """A limit above what its ways carry holds nothing back."""
        return reason.gbytes is None or reason.gbytes * 1e9 <= NEAR * max(way.rate for way in self.ways)


@dataclass(frozen=True, slots=True)
class SlowNetwork:
    """`node` is None when no node stands out from the others."""

    node: str | None
    says: str
    remedy: str
    evidence: tuple[str, ...]


def suspects(ways: Iterable[Way]) -> list[Suspect]:
    """The nodes each of which alone would explain what is slow; none when nothing is slow."""
    ways = [way for way in ways if way.bytes >= LEAST]
    found: list[Suspect] = []
    for node in dict.fromkeys(end for way in ways for end in (way.source, way.destination)):
        sends = tuple(way for way in ways if way.source == node)
        gets = tuple(way for way in ways if way.destination == node)
        for how, its in (("sends", sends), ("gets", gets), ("both", (*sends, *gets))):
            # What a slow sender gets is late too, by its acknowledgements, though perhaps less: one way has to be busy.
            busy = _busy(sends) or _busy(gets) if how == "both" else _busy(its)
            if busy and _stands_out(its, _without(ways, its)):
                found.append(Suspect(node, how, its))
                break
    return found


def _busy(ways: Sequence[Way]) -> bool:
    return bool(ways) and all(way.busy >= BUSY for way in ways)


def _stands_out(its: Sequence[Way], others: Sequence[Way]) -> bool:
    most = max(way.bytes for way in its)
    measure = [way.rate for way in others if way.bytes >= ALIKE * most]
    return bool(measure) and max(way.rate for way in its) * TIMES <= min(measure)


def _without(ways: Iterable[Way], its: Iterable[Way]) -> list[Way]:
    ends = {(way.source, way.destination) for way in its}
    return [way for way in ways if (way.source, way.destination) not in ends]


def judge_network(looks: Sequence[Sequence[Way]], reasons: Mapping[str, Sequence[SlowReason]]) -> SlowNetwork | None:
    """The slow node, from independent looks, each of which it has to explain. `reasons`: why the adapters of a node are
    slow, by its own account, of every node that was asked."""
    seen = [suspects(ways) for ways in looks]
    alike = [one for one in (seen or [[]])[-1] if all(any(one.agrees(other) for other in each) for each in seen)]
    if not alike:
        return None
    because = {one.node: [why for why in reasons.get(one.node, ()) if one.explained_by(why)][:2] for one in alike}
    explained = [one for one in alike if because[one.node]]
    chosen = alike if len(alike) == 1 else explained if set(reasons) >= {one.node for one in alike} else []
    evidence = tuple(str(way) for one in alike[:1] for way in one.ways[:6])
    if len(chosen) != 1:
        between = " or ".join(VERBS[one.how].format(one.node) for one in alike)
        says = f"{between} is {_how_slow(alike[0], looks[-1])}, and it is not known which: their adapters look alike"
        nodes = " and ".join(one.node for one in alike)
        return SlowNetwork(None, says, mend("training-slowed", "network", nodes=nodes), evidence)
    (one,) = chosen
    why = because[one.node]
    says = f"{VERBS[one.how].format(one.node)} is {_how_slow(one, looks[-1])}"
    says += "".join(f"; {reason.says}" for reason in why)
    remedy = why[0].command if why else mend("training-slowed", "network", nodes=one.node)
    return SlowNetwork(one.node, says, remedy, (*evidence, *(reason.evidence for reason in why)))


def _how_slow(one: Suspect, ways: Sequence[Way]) -> str:
    busy = max(way.busy for way in one.ways)
    rate = max(way.rate for way in one.ways)
    others = min((way.rate for way in _without(ways, one.ways) if way.bytes >= LEAST), default=0.0)
    measure = f"; every other way carries at least {bytes_text(round(others))}/s" if 0 < others < float("inf") else ""
    return f"on its way for {busy:.0%} of the time, at {bytes_text(round(rate))}/s{measure}"
