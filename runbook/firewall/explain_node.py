"""Judges one node by its rules: whether its packet filter blocks a flow, by which rule, and which command opens it; and
which rule stops its ARP.

Facts (nf_tables, netfilter.org's packet flow): arriving packets go through ingress, prerouting and input; packets that
the node sends go through output, postrouting and egress. NAT chains see only the first packet of a connection. A NAT
rule that changes the destination sends the packet elsewhere, and nothing is claimed about the rest of its way; a NAT
rule that changes the source makes the other end see another sender.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace

from runbook.firewall.collected_rules import Evidence
from runbook.firewall.evaluate import (
    CT_NEW,
    CT_UNTRACKED,
    MAX_COMPARISONS,
    Action,
    Base,
    BlockingChain,
    FilterRule,
    Flow,
    Leg,
    NumberRange,
    NumberSpans,
    Packet,
    PacketEnd,
    Truth,
    Walk,
    merge_spans,
    packet_on_leg,
    walk_chain,
)
from runbook.firewall.front_ends import blocking_ufw_rule, firewalld_owns
from runbook.firewall.remedies import FirewallOpening, firewall_remedy, ufw_decides, zones_on_path
from runbook.model.command_quoting import NFT_LIST_COMMAND, nft_words, shell_word
from runbook.model.remedy import Remedy

ARRIVING_HOOKS = ("ingress", "prerouting", "input")
LEAVING_HOOKS = ("output", "postrouting", "egress")


@dataclass(frozen=True, slots=True)
class Journey:
    """The way of a packet through the base chains of one node."""

    interface: str | None
    stops: tuple[BlockingChain, ...]
    last: Walk | None  # of the last base chain with rules that lets the packet pass: its rule is shown as accepting it
    elsewhere: BlockingChain | None = None  # a NAT rule gives the packet another destination
    tracked: Truth = True
    new_source: str = ""  # a NAT rule gives the packet this source address
    translator: BlockingChain | None = None  # the base chain with that NAT rule
    steps: int = 0  # rules and elements of sets that the packet was compared with


def trace_journey(evidence: Evidence, flow: Flow, leg: Leg, *, tracked: Truth = True) -> Journey:
    """The way of the flow's packet through every base chain that it meets on this node, also behind a blocking chain.

    `tracked`: for a reply, whether the connection of its request is tracked.
    """
    arriving = leg in ("request-in", "reply-in")
    peer = flow.peer(leg)
    given = flow.in_interface if leg in ("request-in", "reply-out") else flow.out_interface
    routed = evidence.interface_to(peer)  # an answer may leave by another interface than the request came in by
    interface = (routed or given) if leg == "reply-out" else (given or routed)
    devices = evidence.devices(interface)
    back = evidence.has_route_to(peer, interface)
    now = packet_on_leg(flow, leg, interface, back, tracked=tracked, owner=evidence.owner)
    stops: list[BlockingChain] = []
    last: Walk | None = None
    new_source, translator, steps = "", None, 0
    for base in _chains_on_the_way(
        evidence.bases(flow.version), ARRIVING_HOOKS if arriving else LEAVING_HOOKS, now.state == CT_NEW
    ):
        if base.for_device and base.devices and devices and not set(devices) & set(base.devices):
            continue
        on_bridge = base.family == "bridge"
        if on_bridge and not evidence.is_bridge(interface):
            continue
        # In a bridge's chains the interface is a port of the bridge, and connections are mostly not tracked.
        met = replace(now, in_interface=None, out_interface=None, state=None) if on_bridge else now
        result = evidence.tangled.get(id(base)) or walk_chain(base, met)
        if result.steps > MAX_COMPARISONS:
            evidence.tangled[id(base)] = result
        else:
            now, steps = now if on_bridge else result.after, steps + result.steps
        if result.blocks is not False:
            sure = result.blocks is True and not (base.for_device and interface not in base.devices)
            stops.append(BlockingChain(base, result.culprits, sure, any(rule.by_chance for rule in result.doubtful)))
        elif base.chains.get(base.chain):
            last = result
        rewritten = tuple(end for end in result.ends if end.rewritten)
        if rewritten and base.hook in ("prerouting", "output"):
            elsewhere = BlockingChain(base, rewritten, len(rewritten) == len(result.ends))
            return Journey(interface, tuple(stops), last, elsewhere, _is_tracked(now.state), steps=steps)
        if rewritten and len(result.ends) == 1:
            new_source, translator = rewritten[0].new_source, BlockingChain(base, rewritten, certain=True)
    return Journey(
        interface,
        tuple(stops),
        last,
        tracked=_is_tracked(now.state),
        new_source=new_source,
        translator=translator,
        steps=steps,
    )


def _is_tracked(state: int | None) -> Truth:
    """Whether a packet in this state of `ct state` belongs to a tracked connection; None if unknown."""
    return None if state is None else state != CT_UNTRACKED


def _chains_on_the_way(bases: list[Base], hooks: tuple[str, ...], new: bool) -> list[Base]:
    """The base chains at these hooks, in the order in which a packet meets them; NAT only for a `new` connection."""
    mine = [base for base in bases if base.hook in hooks and (new or base.kind != "nat")]
    return sorted(mine, key=lambda base: hooks.index(base.hook))  # stable: priorities stay in order


NO_PORT = NumberRange(0, 0)


@dataclass(frozen=True, slots=True)
class ArpStop:
    """A rule that stops ARP. `says`: the rule and its place; `certain`: whether it certainly matches."""

    says: str
    remedy: Remedy
    certain: bool


def find_arp_stop(evidence: Evidence, interface: str, address: str, peer: str) -> ArpStop | None:
    """The rule that stops ARP between this node's `address` and `peer`, both IPv4: a rule that certainly does, else one
    that may, else None."""
    found: list[ArpStop] = []
    for base in evidence.arp_bases:
        arriving = base.hook == "input"
        near, far = (int(ipaddress.ip_address(text)) for text in (address, peer))
        passing = Packet(
            version=4,
            source=far if arriving else near,
            destination=near if arriving else far,
            protocol="arp",
            source_port=NO_PORT,
            destination_port=NO_PORT,
            flags=None,
            length=NumberRange.exactly(28),
            state=None,
            reply=False,
            in_interface=interface if arriving else "",
            out_interface="" if arriving else interface,
            arriving=arriving,
        )
        result = walk_chain(base, passing)
        if result.blocks is False or not result.culprits:
            continue
        rule = result.culprits[0].rule
        chain = rule.chain if rule else base.chain
        place = f"arp {base.table} {chain}"
        match = f"arp {'saddr' if arriving else 'daddr'} ip {peer} accept"
        if rule is None:
            says = f"nft chain {place} `policy {base.policy}`"
            where = nft_words("add", "rule", "arp", base.table, chain)
        else:
            says = f"nft rule {place} handle {rule.handle} `{rule.text}`"
            where = nft_words("insert", "rule", "arp", base.table, chain, "position", rule.handle)
        remedy = Remedy.run(f"sudo nft {where} {match}" if where else NFT_LIST_COMMAND)
        found.append(ArpStop(says, remedy, result.blocks is True))
    return max(found, key=lambda stop: stop.certain, default=None)


MAX_SAMPLED_FLOWS = 1500  # journeys to find the place for one command; beyond them, each peer is tried at one port only
MAX_SAMPLED_RULES = 2_000_000  # rules looked at on these journeys; beyond them, no other peer is tried


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a node's rules do with one leg of a flow. `blocks`: True, False, or None if the rules do not decide; then
    `candidates` lists the rules that may block, or `could_not_look` says why rules could not be read, and how to read
    them. `where` and `rule` are the first rule that blocks (if nothing blocks, the rule that accepts), in an
    administrator's words. `allow` is one shell line that opens the flow, or "" if nothing has to be opened.
    """

    blocks: bool | None
    action: Action
    where: str
    rule: str
    allow: str
    could_not_look: str | None = None
    candidates: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    leg: Leg = "request-in"
    tracked: Truth = True
    elsewhere: Truth = False  # `rule` is a NAT rule that certainly (True) or perhaps (None) changes the destination
    new_source: str = ""  # a NAT rule gives the packets this source address on their way out
    by_chance: bool = False  # no rule certainly blocks all packets, and a rule blocks some by chance


def explain_leg(
    evidence: Evidence,
    flow: Flow,
    leg: Leg = "request-in",
    *,
    ports: Iterable[tuple[int, int]] = (),
    peers: Iterable[str] = (),
    tracked: Truth = True,
) -> Explanation:
    """Judges one leg of `flow` by the evidence of the node it is judged on: the destination for `request-in` and
    `reply-out`, the source for `request-out` and `reply-in`.

    `ports` (inclusive ranges) and `peers` widen the remedy, so that one command opens all that an inventory needs; the
    flow's own port and peer are always in it.
    """
    journey = trace_journey(evidence, flow, leg, tracked=tracked)
    could_not_look = "; ".join(evidence.blind(flow.version)) or None
    wanted = _wanted_opening(flow, leg, tuple(ports), tuple(peers))
    if journey.elsewhere is not None and not any(stop.certain for stop in journey.stops):
        return _explain_redirection(evidence, journey, journey.elsewhere, wanted, could_not_look)
    if not journey.stops:
        allowed = _explain_passage(journey, could_not_look, evidence.asides, leg)
        if journey.translator is None:
            return allowed
        where, rule = _place_of_end(journey.translator.base, journey.translator.ends[0])
        fix = firewall_remedy(evidence, [journey.translator], wanted, journey.interface)
        return replace(allowed, where=where, rule=rule, allow=fix.text)

    return _explain_blocking(evidence, flow, journey, wanted, could_not_look)


def _explain_blocking(
    evidence: Evidence, flow: Flow, journey: Journey, wanted: FirewallOpening, could_not_look: str | None
) -> Explanation:
    """The explanation of a journey with stops: the first certain stop, or without a certain one all as candidates."""
    leg = wanted.leg
    sure = [stop for stop in journey.stops if stop.certain]
    before = journey.stops[: journey.stops.index(sure[0]) + 1] if sure else journey.stops
    suspects = [(stop.base, end) for stop in before for end in stop.ends]
    texts = tuple(dict.fromkeys(_end_in_words(evidence, flow, leg, base, end) for base, end in suspects))
    actions = {end.action for _, end in suspects}
    base, end = suspects[-1 if sure else 0]
    where, rule = _place_by_front_end(evidence, flow, leg, base, end)
    also = [_end_in_words(evidence, flow, leg, stop.base, stop.ends[0]) for stop in sure[1:]]
    caveats = [*evidence.asides]
    caveats += [f"it is blocked a second time by {text}" for text in dict.fromkeys(also) if text not in texts]
    by_chance = not sure and any(stop.by_chance for stop in journey.stops)
    if not sure and not by_chance:
        caveats.append(
            "these rules match only sometimes, or on what cannot be decided from here: it could be one of them"
        )
    if by_chance and all(end.rule and end.rule.by_chance for _, end in suspects):
        removals = {
            (base.engine, base.table, end.rule.chain, end.rule.index): _removal_command(base, end.rule)
            for base, end in suspects
            if end.rule
        }
        allow = " && ".join(removals.values())
        caveats.append(RELOAD_CAVEAT)
    else:
        fix = firewall_remedy(
            evidence, _stops_of_wanted_flows(evidence, flow, wanted, journey), wanted, journey.interface
        )
        allow = fix.text
        caveats += fix.caveats
    return Explanation(
        blocks=True if sure else None,
        action=actions.pop() if len(actions) == 1 else "unknown",
        where=where,
        rule=rule,
        allow=allow,
        could_not_look=could_not_look,
        candidates=texts if len(texts) > 1 or not sure else (),
        caveats=tuple(caveats),
        leg=leg,
        tracked=journey.tracked,
        by_chance=by_chance,
    )


RELOAD_CAVEAT = "remove the rule from its file as well, or the next reload or boot restores it"


def _removal_command(base: Base, rule: FilterRule) -> str:
    """The command that removes a rule which drops by chance: an exception for the job alone would let it go on dropping
    packets of logins and everything else. For iptables the command spells out the rule, since its number would mean
    another rule as soon as an earlier rule of the chain is gone."""
    if base.engine == "nft":
        words = nft_words("delete", "rule", base.family, base.table, rule.chain, "handle", rule.handle)
        return f"sudo nft {words}" if words else NFT_LIST_COMMAND
    table = "" if base.table == "filter" else f" -t {shell_word(base.table)}"
    words = " ".join(map(shell_word, shlex.split(rule.text)[1:]))
    return f"sudo {base.engine}{table} -D {words}"


def _explain_redirection(
    evidence: Evidence, journey: Journey, by: BlockingChain, wanted: FirewallOpening, could_not_look: str | None
) -> Explanation:
    """The explanation of a journey on which a NAT rule of `by` changes the destination."""
    where, rule = _place_of_end(by.base, by.ends[0])
    fix = firewall_remedy(evidence, [by], wanted, journey.interface)
    return Explanation(
        blocks=None,
        action="unknown",
        where=where,
        rule=rule,
        allow=fix.text,
        could_not_look=could_not_look,
        caveats=(*evidence.asides, *fix.caveats),
        leg=wanted.leg,
        tracked=journey.tracked,
        elsewhere=True if by.certain else None,
    )


def _explain_passage(journey: Journey, could_not_look: str | None, caveats: tuple[str, ...], leg: Leg) -> Explanation:
    """The explanation of a journey without stops; undecided if some rules could not be read."""
    blocks = None if could_not_look else False
    where, rule = "no rule blocks it", ""
    if journey.last is not None:
        where, rule = _place_of_end(journey.last.base, journey.last.ends[0])
    action: Action = "accept" if blocks is False else "unknown"
    return Explanation(
        blocks=blocks,
        action=action,
        where=where,
        rule=rule,
        allow="",
        could_not_look=could_not_look,
        caveats=caveats,
        leg=leg,
        tracked=journey.tracked,
        new_source=journey.new_source,
    )


# --- words ----------------------------------------------------------------------------------------------------------


def _end_in_words(evidence: Evidence, flow: Flow, leg: Leg, base: Base, end: PacketEnd) -> str:
    where, rule = _place_by_front_end(evidence, flow, leg, base, end)
    return f"{where} `{rule}`" if rule else where


def _place_by_front_end(evidence: Evidence, flow: Flow, leg: Leg, base: Base, end: PacketEnd) -> tuple[str, str]:
    """(where, rule) of the place where a packet ends, in the words of the front end that owns the rule."""
    where, rule = _place_of_end(base, end)
    status = evidence.ufw
    if status is not None and ufw_decides(end):
        outgoing = leg in ("request-out", "reply-out")
        if end.rule is not None and "user" in end.rule.chain:
            line = blocking_ufw_rule(status, flow.peer(leg), flow.port, outgoing=outgoing)
            return f"ufw rule in {where}", str(line) if line else rule
        default = status.outgoing if outgoing else status.incoming
        direction = "outgoing" if outgoing else "incoming"
        return f"ufw default policy ({where})", f"Default: {default or 'deny'} ({direction})"
    if evidence.firewalld is not None and firewalld_owns(base):
        peer = flow.peer(leg)
        interface = flow.in_interface or evidence.interface_to(peer)
        zone = zones_on_path(evidence.firewalld, [end]).zone_for(peer, interface)
        return f"firewalld zone {zone} ({where})", rule
    return where, rule


def _place_of_end(base: Base, end: PacketEnd) -> tuple[str, str]:
    """(where, rule) of the place where a packet ends, in the words of nft or iptables."""
    if base.engine == "nft":
        place = f"{base.family} {base.table}"
        if end.rule is not None:
            return f"nft rule {place} {end.rule.chain} handle {end.rule.handle}", end.rule.text
        return f"nft chain {place} {base.chain}", f"policy {base.policy}"
    table = "" if base.table == "filter" else f" of table {base.table}"
    if end.rule is not None:
        return f"{base.engine} chain {end.rule.chain}{table} rule {end.rule.index + 1}", end.rule.text
    return f"{base.engine} chain {base.chain}{table}", f"-P {base.chain} {base.policy.upper()}"


# --- the flows that a remedy has to open ----------------------------------------------------------------------------


def _wanted_opening(flow: Flow, leg: Leg, ports: NumberSpans, peers: tuple[str, ...]) -> FirewallOpening:
    alike = {flow.peer(leg), *(peer for peer in peers if (6 if ":" in peer else 4) == flow.version)}
    return FirewallOpening(leg, tuple(sorted(alike)), merge_spans(((flow.port, flow.port), *ports)), flow.protocol)


def _stops_of_wanted_flows(
    evidence: Evidence, flow: Flow, wanted: FirewallOpening, journey: Journey
) -> list[BlockingChain]:
    """The stops of all wanted flows: for every peer, and for every port at which the rules may decide differently."""
    stops = list(journey.stops)
    if len(wanted.peers) == 1 and wanted.ports == ((flow.port, flow.port),):
        return stops
    samples = _ports_to_sample(evidence, flow, wanted.ports)
    spent = steps = 0
    for peer in wanted.peers:
        for port in samples:
            other = (
                replace(flow, source=peer, port=port)
                if wanted.leg in ("request-in", "reply-out")
                else replace(flow, destination=peer, port=port)
            )
            journey = trace_journey(evidence, other, wanted.leg)
            stops += journey.stops
            spent, steps = spent + 1, steps + journey.steps
            if steps > MAX_SAMPLED_RULES:
                return stops
            if spent > MAX_SAMPLED_FLOWS and port == samples[0]:
                break
    return stops


def _ports_to_sample(evidence: Evidence, flow: Flow, ports: NumberSpans) -> list[int]:
    """The ports at which rules may decide differently: the flow's port, each range's ends, and up to 100 numbers of the
    rules (and their neighbours) that lie in a range."""
    numbers: set[int] = set()
    for base in evidence.bases(flow.version):
        for rules in base.chains.values():
            for rule in rules:
                numbers.update(int(word) for word in re.findall(r"(?<![\d.])\d{1,5}(?![\d.])", rule.text))
    near = {number + step for number in numbers for step in (-1, 0, 1)}
    inside = {number for number in near if any(low <= number <= high for low, high in ports)}
    ends = {end for span in ports for end in span}
    return [flow.port, *sorted((ends | set(sorted(inside)[:100])) - {flow.port})]
