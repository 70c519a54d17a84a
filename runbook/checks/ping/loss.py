"""Do packets get lost? Echoes show how many, TCP shows which way and whether a job feels it, and rules show whether
they drop by chance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import permutations
from typing import TYPE_CHECKING

from runbook.causes.catalogue import finding_for, remedy_from_page
from runbook.checks.context import Facts
from runbook.checks.network.dial import ANY_PORT, Dial
from runbook.checks.network.pairs import ends_text
from runbook.checks.ping.observations import Observations, Pair, ip_version
from runbook.model.command_quoting import shell_word
from runbook.model.remedy import Remedy
from runbook.model.units import count_text
from runbook.model.verdict import Finding

if TYPE_CHECKING:
    from runbook.firewall.explain_node import Explanation

MAX_LOSS_SHARE = 0.025
"""The share of lost echoes that is tolerated: 7 of 300. With a loss of 5 %, 7 or fewer are lost once in fifty times;
with a loss of 1 %, more than 7 once in eighty."""

MIN_ECHOES = 50
"""Of this many echoes, a loss of 10 % takes two or more in 97 of 100 rounds. Some ping programs send three at most."""

MIN_RETRANSMITTED_DIAL_S = 0.15
"""Seconds. A segment that is sent again after a timeout waits for at least the kernel's 200 ms. Where the kernel does
not count what it sent again, a faster transfer lost nothing."""

MAX_LATE_TRIPS = 2
"""Round trips over TCP in one direction whose packets may be sent again on a path that loses nothing: a busy peer
answers late. Of 200, a path that loses 5 % has so few once in five hundred times."""

MAX_CHI_SQUARE = 6.63
"""The square of the difference of two counts, over their sum: between equal losses it exceeds this once in a hundred
times."""


@dataclass(frozen=True)
class Loss:
    """The lost echoes of one pair: `lost` of `sent`. `harmless`: the loss does not fail the run."""

    pair: Pair
    sent: int
    lost: int
    harmless: bool
    flows: bool  # TCP lost nothing
    once: bool  # only in the first round

    @property
    def share(self) -> float:
        return self.lost / self.sent


def echo_losses(seen: Observations, pairs: Iterable[Pair]) -> list[Loss]:
    """The loss of each pair of which some echoes came back and others did not, in both rounds together. A single
    missing echo says nothing: a busy host answers late. Where none came back, TCP says whether ICMP is merely blocked
    on the way."""
    found = []
    for pair in pairs:
        if not pair.echoes_lost and not (pair.echoes_vanished and loses_round_trips(seen, pair)):
            continue
        sent, lost = _sent_and_lost_echoes(pair)
        if lost < 2 and len(_echo_rounds(pair)) > 1:
            continue
        flows, once = _is_tcp_lossless(seen, pair), _is_loss_momentary(pair)
        found.append(Loss(pair, sent, lost, lost <= sent * MAX_LOSS_SHARE or flows or once, flows, once))
    return found


def has_excess_loss(pair: Pair) -> bool:
    """Whether more echoes are lost than chance explains."""
    sent, lost = _sent_and_lost_echoes(pair)
    return pair.echoes_lost and lost > sent * MAX_LOSS_SHARE


def loss_findings(seen: Observations, found: Iterable[Loss]) -> dict[str, list[Finding]]:
    """Findings by node: for the node that all losing pairs have in common, or for both ends where there is none."""
    bad = [loss for loss in found if not loss.harmless]
    blame = seen.blame(loss.pair.ends for loss in bad)
    return {
        name: [blame.told(_loss_finding(seen, name, peers, [loss for loss in bad if name in loss.pair.ends]))]
        for name, peers in blame.nodes.items()
    }


def loss_warning(loss: Loss) -> str:
    """The note about a loss that does not fail the run. When TCP loses nothing, it begins with `harmless`."""
    pair = loss.pair
    share = f"{loss.lost} of {loss.sent} pings ({100 * loss.share:.1f} %)"
    if loss.flows:
        return (
            f"harmless: {pair.peer} or its network answers only so many pings a second, {share} were left out; round "
            "trips over TCP, which the job uses, lost nothing"
        )
    why = "all in one moment, and of those sent after it not two" if loss.once else "too few to fail the run"
    return f"{share} between {pair.source} and {pair.peer} are lost: {why}"


def _loss_finding(seen: Observations, name: str, peers: list[str], found: list[Loss]) -> Finding:
    """The finding for packets that are lost between a node and these peers."""
    sent, lost = sum(loss.sent for loss in found), sum(loss.lost for loss in found)
    interface = seen.data_interface(name) or "IFACE"
    ends = ends_text(name, peers)
    says = f"{lost} of {sent} echoes between {ends} are lost ({100 * lost / sent:.0f} %)"
    if lost == sent:
        says = f"packets between {ends} get lost: no echo comes back, and round trips over TCP are sent again"
    says += _lossy_direction_text(seen, name, peers)
    summaries = [
        f"{loss.pair.source} → {loss.pair.peer}: {line}" for loss in found for line in _ping_summary_lines(loss)
    ]
    tcp = [dial for peer in peers for dial in _tcp_dials_between(seen, name, peer)]
    felt = sorted(tcp, key=lambda dial: -(dial.retransmitted or 0))
    return finding_for(
        "packet-loss",
        says,
        (*summaries[:4], *(_tcp_loss_text(dial) for dial in felt[:4])),
        tuple(peers),
        way="interface",
        name=name,
        interface=shell_word(interface),
    )


def _echo_rounds(pair: Pair) -> list[Facts]:
    """The rounds with counts: the first round of echoes, and the longer one that follows when some were lost."""
    return [one for one in (pair.small, pair.target.get("again")) if one and one.get("sent")]


def _sent_and_lost_echoes(pair: Pair) -> tuple[int, int]:
    """How many echoes were sent, and how many of them were lost."""
    rounds = _echo_rounds(pair)
    sent = sum(one["sent"] for one in rounds)
    return sent, max(0, sent - sum(one["received"] for one in rounds))


def _is_loss_momentary(pair: Pair) -> bool:
    """Whether there was a second round, and it lost at most one echo: a lasting loss would show there."""
    again = pair.target.get("again") or {}
    return int(again.get("sent", 0)) >= MIN_ECHOES and again["sent"] - again.get("received", 0) <= 1


def _ping_summary_lines(loss: Loss) -> list[str]:
    return [
        line
        for one in _echo_rounds(loss.pair)
        for line in str(one.get("raw", "")).splitlines()
        if "transmitted" in line
    ]


def _tcp_loss_text(dial: Dial) -> str:
    """The loss that one TCP connection met, as a line of evidence."""
    again = f", {count_text(dial.retransmitted, 'packet')} sent again" if dial.retransmitted else ""
    return f"{dial.source} → {dial.destination}: TCP {dial.says} after {dial.seconds:.2f} s{again}"


def _lossy_direction_text(seen: Observations, name: str, peers: list[str]) -> str:
    """The direction that loses packets, as the end of a sentence, when only one does: the sender counts what it sent
    again. "" where a count is not known, or where the counts differ no more than equal losses would by chance."""
    counts = [
        (_retransmitted_packets(seen.pair(name, peer)), _retransmitted_packets(seen.pair(peer, name))) for peer in peers
    ]
    if any(None in both for both in counts):
        return ""
    sends, arrives = (sum(count or 0 for count in way) for way in zip(*counts, strict=True))
    if min(sends, arrives) * 4 > max(sends, arrives) or (sends - arrives) ** 2 <= MAX_CHI_SQUARE * (sends + arrives):
        return ""
    return (
        f"; what {name} sends gets lost, not what arrives there"
        if sends > arrives
        else f"; what arrives at {name} gets lost"
    )


def loses_round_trips(seen: Observations, pair: Pair) -> bool:
    """Whether round trips over TCP between the two nodes lost more packets than a path does on which a busy peer
    answers late."""
    trips = [one.round_trips for one in (pair, seen.pair(pair.peer, pair.source)) if one and one.round_trips]
    return any(one.outcome == "lost" or (one.retransmitted or 0) > MAX_LATE_TRIPS for one in trips)


def _retransmitted_packets(pair: Pair | None) -> int | None:
    """How many packets the source sent again in its round trips to the peer; None when that is not known."""
    return pair.round_trips.retransmitted if pair and pair.round_trips else None


def _tcp_dials_between(seen: Observations, one: str, other: str) -> list[Dial]:
    """Full-size transfers and round trips between two nodes, both ways."""
    found: list[Dial] = []
    for pair in (seen.pair(one, other), seen.pair(other, one)):
        if pair:
            found += [*pair.full_dials, *([pair.round_trips] if pair.round_trips else [])]
    return found


def _is_tcp_lossless(seen: Observations, pair: Pair) -> bool:
    """Whether TCP got small packets, as echoes are, through both ways without losing any. Whether it gets large ones
    through is another question, which the sizes answer."""
    dials = _tcp_dials_between(seen, pair.source, pair.peer)
    counted = [_retransmitted_packets(seen.pair(*way)) for way in ((pair.source, pair.peer), (pair.peer, pair.source))]
    if None in counted:
        return bool(dials) and all(dial.outcome == "open" and dial.seconds < MIN_RETRANSMITTED_DIAL_S for dial in dials)
    through = all(dial.outcome == "open" or (dial.outcome == "lost" and dial.mode != "trips") for dial in dials)
    return through and all(count <= MAX_LATE_TRIPS for count in counted if count is not None)


def random_drop_findings(seen: Observations, losing: Iterable[Pair]) -> dict[str, list[Finding]]:
    """By node, a finding for its rule that drops some packets of these pairs, TCP among them; empty when no rule
    does."""
    from runbook.firewall.evaluate import Flow
    from runbook.firewall.explain_connection import Ends, explain_blocked

    losing = list(losing)
    evidence = seen.rules({name for pair in losing for name in pair.ends})
    address = {name: seen.numeric(name) for name in evidence}
    drawing = {name for name, one in evidence.items() if one and one.draws_lots}
    losing = [pair for pair in losing if pair.ends & drawing]
    struck: dict[tuple[str, str], list[tuple[str, str, Explanation]]] = defaultdict(list)
    for source, destination in sorted({way for pair in losing for way in permutations(pair.ends)}):
        for protocol in ("tcp", "ipv6-icmp" if ip_version(address[destination]) == 6 else "icmp"):
            blocked = explain_blocked(
                "lost",
                Flow(
                    address[source],
                    address[destination],
                    seen.at.inventory.rendezvous.port,
                    protocol=protocol,
                    state="established",
                ),
                replace(Ends.of(evidence, source, destination), ports=ANY_PORT),
            )
            for name, one in blocked.explanations if blocked else ():
                if one.by_chance:
                    other = destination if name == source else source
                    struck[name, " or ".join(one.candidates)].append((protocol, other, one))
    found: dict[str, list[Finding]] = defaultdict(list)
    for (name, rule), those in sorted(struck.items()):
        if all(protocol != "tcp" for protocol, _, _ in those):
            continue
        others = sorted({other for _, other, _ in those})
        lost = [pair for pair in losing if name in pair.ends and pair.ends & set(others)]
        echoes = [f"{pair.source} → {pair.peer}: {pair.echoes}" for pair in lost]
        fix = Remedy.run(*dict.fromkeys(one.allow for _, _, one in those if one.allow))
        finding = Finding(
            "firewall-drop",
            f"{name} drops some of the packets between {ends_text('itself', others)}, by count or by chance: {rule}",
            fix or remedy_from_page("firewall-drop", "by-chance", name=name),
            tuple(
                dict.fromkeys([*echoes[:4], f"{name}: {rule}", *(line for _, _, one in those for line in one.caveats)])
            )[:10],
            tuple(others),
        )
        found[name].append(finding)
    return dict(found)
