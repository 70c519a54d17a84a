"""Do full-size packets get through? If not: which rule, interface or hop stops them, and in which direction?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from runbook.causes.catalogue import remedy_from_page
from runbook.checks.network.dial import ANY_PORT
from runbook.checks.network.pairs import ends_text, names_text
from runbook.checks.ping.observations import Observations, Pair, ip_version, is_ping_unusable
from runbook.model.command_quoting import shell_word
from runbook.model.remedy import Remedy
from runbook.model.verdict import Finding

if TYPE_CHECKING:
    from runbook.firewall.collected_rules import Evidence

MIN_IPV6_MTU = 1280
"""The least MTU of IPv6: no network is configured for less."""


@dataclass(frozen=True)
class VanishingWay:
    """One direction in which full-size packets vanish. `lines`: the proofs. `by_tcp`: TCP in this direction alone shows
    it. `by_icmp`: echoes show it; an echo needs both directions, so it accuses either. `echoes_pass`: full-size echoes
    come back, so the MTU is not the reason."""

    source: str
    destination: str
    lines: tuple[str, ...]
    by_tcp: bool
    by_icmp: bool
    echoes_pass: bool = False

    @property
    def ends(self) -> frozenset[str]:
        return frozenset((self.source, self.destination))


@dataclass(frozen=True)
class SizeReason:
    """Why a direction carries no full-size packets: the node, the reason in words, the commands that mend it, and the
    proof. `any_size`: the rule does not look at sizes, and dropped large packets only because they have more bytes or
    came later."""

    node: str
    why: str
    commands: tuple[str, ...]
    shown: tuple[str, ...]
    any_size: bool = False


def cannot_send_full_size(pair: Pair) -> bool:
    """Whether the source's ping cannot send full-size probes."""
    return is_ping_unusable(pair.full)


def reported_path_mtu(pair: Pair) -> str | None:
    """The path MTU that a router reports, as text, or None: TCP adapts to it."""
    raw = str(pair.full.get("raw", "")).lower()
    if "too long" not in raw and "frag needed" not in raw and "too big" not in raw:
        return None
    return raw.partition("mtu")[2].strip(" =:)").split("\n")[0].split(")")[0].strip() or "less"


def is_only_icmp_limited(seen: Observations, pair: Pair) -> bool:
    """Whether full-size ICMP is lost although full-size TCP passes both ways and the MTUs are equal. With different
    MTUs, TCP agrees on the smaller one, and RDMA does not."""
    back = seen.pair(pair.peer, pair.source)
    both = [dial for way in (pair, back) if way for dial in way.full_dials]
    return bool(both) and all(dial.outcome == "open" for dial in both) and _interface_mtu(pair) == _interface_mtu(back)


def vanishing_directions(
    seen: Observations, icmp: list[Pair], explained: Collection[frozenset[str]]
) -> list[VanishingWay]:
    """Directions in which full-size packets vanish. `icmp`: pairs whose full-size echoes vanish. For `explained` pairs,
    such as those that lose small packets too, a transfer that broke off proves nothing."""
    transfers: dict[tuple[str, str], list[bool]] = defaultdict(list)
    # Where not even the first small packets come through, the size is not the reason.
    mute = {pair.ends for pair in seen.pairs if any(dial.outcome == "silent" for dial in pair.full_dials)}
    for pair in seen.pairs:
        for dial in pair.full_dials if pair.ends not in mute else ():
            if dial.outcome in ("open", "lost"):
                way = (pair.source, pair.peer) if dial.mode == "up" else (pair.peer, pair.source)
                transfers[way].append(dial.outcome == "lost")
    vanish = {way for way, lost in transfers.items() if all(lost) and frozenset(way) not in explained}
    echoed = {(pair.source, pair.peer): pair for pair in icmp if pair.ends not in explained}
    found = []
    for source, destination in sorted(vanish):
        both = [pair for ends, pair in echoed.items() if set(ends) == {source, destination}]
        line = f"TCP {source} → {destination}: full-size segments do not arrive"
        passes = any(pair.full.get("received") for pair in seen.pairs if pair.ends == {source, destination})
        lines = (
            line,
            *map(_lost_echoes_text, both),
            *(["full-size ICMP comes through"] if passes and not both else []),
        )
        found.append(VanishingWay(source, destination, lines, by_tcp=True, by_icmp=bool(both), echoes_pass=passes))
    proven = {way.ends for way in found}
    for (source, peer), pair in sorted(echoed.items()):
        if pair.ends not in proven:
            found.append(VanishingWay(source, peer, (_lost_echoes_text(pair),), by_tcp=False, by_icmp=True))
    return found


def size_findings(seen: Observations, found: list[VanishingWay]) -> dict[str, list[Finding]]:
    """Findings by node: one for each rule, MTU or unknown hop."""
    if not found:
        return {}
    evidence = seen.rules({name for way in found for name in way.ends})
    grouped: dict[tuple[str, str], list[tuple[VanishingWay, SizeReason]]] = defaultdict(list)
    left: list[VanishingWay] = []
    for way in found:
        reason = _length_rule_reason(seen, way, found, evidence) or _unequal_mtu_reason(seen, way)
        if reason is None:
            left.append(way)
        else:
            grouped[reason.node, reason.why].append((way, reason))
    findings: dict[str, list[Finding]] = defaultdict(list)
    for (node, _), those in grouped.items():
        findings[node].append(_same_reason_finding(node, [way for way, _ in those], [reason for _, reason in those]))
    explained = {way.ends for those in grouped.values() for way, _ in those}
    left = [way for way in left if way.ends not in explained or way.by_tcp]
    blame = seen.blame(way.ends for way in left)
    for node in blame.nodes:
        findings[node].append(blame.told(_unknown_hop_finding(seen, node, [way for way in left if node in way.ends])))
    return findings


def _same_reason_finding(node: str, ways: list[VanishingWay], reasons: list[SizeReason]) -> Finding:
    """The finding for directions that have the same reason."""
    fix = Remedy.together(command for reason in reasons for command in reason.commands)
    lines = [line for reason in reasons for line in reason.shown]
    if not any(reason.any_size for reason in reasons):
        return _blackhole_finding(node, ways, reasons[0].why, fix, lines)
    peers = dict.fromkeys(name for way in ways for name in (way.source, way.destination) if name != node)
    seen = [line for way in ways for line in way.lines if line.startswith("TCP")]
    says = (
        f"transfers {_directions_text(node, ways)} begin and break off: "
        f"{reasons[0].why}; it stops small packets as well"
    )
    return Finding("firewall-drop", says, fix, tuple(dict.fromkeys([*seen[:4], *lines]))[:10], tuple(peers))


def _blackhole_finding(node: str, those: list[VanishingWay], why: str, fix: str, lines: list[str]) -> Finding:
    """The finding that full-size packets vanish in these directions."""
    seen = [line for way in those for line in way.lines]
    peers = dict.fromkeys(name for way in those for name in (way.source, way.destination) if name != node)
    says = f"full-size packets {_directions_text(node, those)} vanish while small ones pass: {why}"
    return Finding("mtu-blackhole", says, fix, tuple(dict.fromkeys([*seen[:4], *lines]))[:10], tuple(peers))


def _directions_text(node: str, those: list[VanishingWay]) -> str:
    """These directions in words, as seen from the node."""
    leaves = sorted({way.destination for way in those if way.source == node})
    arrives = sorted({way.source for way in those if way.destination == node})
    if not any(way.by_tcp for way in those):
        return f"between {ends_text(node, sorted({*leaves, *arrives}))}"
    if leaves and arrives:
        return f"between {ends_text(node, sorted({*leaves, *arrives}))}"
    return f"from {node} to {names_text(leaves)}" if leaves else f"from {names_text(arrives)} to {node}"


def _length_rule_reason(
    seen: Observations, way: VanishingWay, found: list[VanishingWay], evidence: Mapping[str, Evidence | None]
) -> SizeReason | None:
    """The rule at one of the ends that drops by length, with commands that let through all that it was seen to drop;
    None when there is none. Where echoes of that size pass, a rule that perhaps drops TCP is more likely than a hop
    that lets only ICMP through."""
    from runbook.firewall.evaluate import Flow
    from runbook.firewall.explain_connection import Ends, explain_blocked, stops_small_packets

    kinds = [(way.source, way.destination, "tcp")] if way.by_tcp else []
    if way.by_icmp:
        icmp = "ipv6-icmp" if ip_version(seen.numeric(way.source)) == 6 else "icmp"
        kinds += [(way.source, way.destination, icmp), (way.destination, way.source, icmp)]
    node, why = "", ""
    any_size = False
    commands: list[str] = []
    lines: list[str] = []
    for source, destination, protocol in kinds:
        if protocol != "tcp" and any(protocol in command for command in commands):
            continue  # an echo's answers are let in with it
        flow = Flow(
            seen.numeric(source),
            seen.numeric(destination),
            seen.at.inventory.rendezvous.port,
            protocol=protocol,
            state="established",
            packet_length=_interface_mtu(seen.pair(way.source, way.destination)) or 1500,
        )
        ends = Ends.of(evidence, source, destination)
        blocked = explain_blocked(
            "dropped",
            flow,
            replace(
                ends,
                ports=ANY_PORT,  # data flows on any ports that the kernel picks
                sources=sorted({seen.numeric(one.source) for one in found if one.destination == destination}),
                destinations=sorted({seen.numeric(one.destination) for one in found if one.source == source}),
            ),
        )
        if not blocked or not blocked.remedies or blocked.between or (node and blocked.node != node):
            continue
        if not blocked.decided and not way.echoes_pass:
            continue
        reasons = (e for name, e in blocked.explanations if name == blocked.node and (e.blocks or e.candidates))
        culprit = next(reasons, None)
        if culprit is None:
            continue  # a NAT rule explains this
        likely = "" if blocked.decided else "most likely "
        node, why = node or blocked.node, why or f"{likely}{culprit.where} of {blocked.node}: `{culprit.rule}`"
        any_size = any_size or (protocol == "tcp" and stops_small_packets(blocked, flow, ends))
        lines += blocked.evidence
        commands.append(blocked.remedy)
    return SizeReason(node, why, tuple(commands), tuple(lines), any_size) if node else None


def _unequal_mtu_reason(seen: Observations, way: VanishingWay) -> SizeReason | None:
    """The reason when the MTUs of the ends differ: the node with the unusual value is named. When two values are
    equally common, the wrong one is the one below MIN_IPV6_MTU, or else the larger: the smaller one passes
    everywhere."""
    values = {node.name: seen.mtus[node.name] for node in seen.nodes if node.name in seen.mtus}
    mine, its = values.get(way.source), values.get(way.destination)
    if not mine or not its or mine == its:
        return None
    ranked = Counter(values.values()).most_common()
    decided = len(ranked) == 1 or ranked[0][1] > ranked[1][1]
    sound = [mtu for mtu in (mine, its) if mtu >= MIN_IPV6_MTU] or [mine, its]
    usual = ranked[0][0] if decided else min(sound)
    odd = way.source if its == usual or (mine != usual and mine > its) else way.destination
    others = [name for name, mtu in values.items() if mtu == usual]
    says = f"the interfaces' MTUs differ: {values[odd]} on {odd}, {usual} on {names_text(others)}"
    shown = [f"interface MTU of {name}: {mtu}" for name, mtu in values.items()][:8]
    if not decided and len(sound) > 1:
        shown.append(
            f"all must be equal: {usual} works wherever {max(sound)} does, {max(sound)} only if the switch carries it"
        )
    elif not decided:
        shown.append(f"all have to be equal: {values[odd]} is less than any network is made for")
    fix = remedy_from_page(
        "mtu-blackhole", "interface", name=shell_word(seen.data_interface(odd) or "IFACE"), mtu=shell_word(usual)
    )
    return SizeReason(odd, says, (fix,), tuple(shown))


def _unknown_hop_finding(seen: Observations, node: str, those: list[VanishingWay]) -> Finding:
    """The finding when no rule and no interface explains it: something between the nodes carries only smaller
    packets."""
    way = next((one for one in those if node == one.source), those[0])
    mtu = _interface_mtu(seen.pair(way.source, way.destination)) or 1500
    shown = [f"interface MTU of {name}: {seen.mtus.get(name)}" for name in sorted({n for w in those for n in w.ends})]
    return _blackhole_finding(
        node,
        those,
        "something between them carries only smaller packets and does not say so",
        remedy_from_page(
            "mtu-blackhole",
            "hop",
            destination=shell_word(seen.numeric(way.destination)),
            source=way.source,
            mtu=mtu,
            interface=shell_word(seen.data_interface(node) or "IFACE"),
            lower=1500 if mtu > 8000 else 1400,
        ),
        [*shown, "no rule of either end drops by length"],
    )


def _lost_echoes_text(pair: Pair) -> str:
    """The lost full-size echoes of a pair, as a line of evidence."""
    mtu = pair.route.get("mtu") or 1500
    payload = mtu - (48 if ip_version(pair.numeric) == 6 else 28)
    sent = pair.full.get("sent", "?")
    return f"ping -M do -s {payload} from {pair.source} to {pair.peer}: none of {sent} came back, small ones did"


def _interface_mtu(pair: Pair | None) -> int | None:
    """The MTU of the interface by which a node sends to its peer; None when it is not known."""
    return pair.route.get("mtu") if pair else None
