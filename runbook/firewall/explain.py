"""Does this node's own packet filter block this flow, by which rule, and what opens it?"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from runbook.firewall import ufw
from runbook.firewall.evidence import Evidence
from runbook.firewall.flow import Flow, Leg
from runbook.firewall.journey import BlockingChain, Journey, travel
from runbook.firewall.machine import Action, Base, FilterRule, PacketEnd
from runbook.firewall.remedy import Opening, Ports, firewalld_owns, remedy, ufw_decides
from runbook.firewall.truth import Truth
from runbook.model.commands import NFT_BY_HAND, nft_words, word

MOST_SAMPLES = 1500  # walks spent on finding where one command has to stand


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a node's rules do with a flow.

    `blocks`: True, False, or None when the rules do not tell; then `candidates` lists what it could be, or
    `could_not_look` says why nobody could read them, and how to. `where` and `rule` are the first rule that blocks
    (or, when nothing does, the one that accepts), in an administrator's words. `allow` is what opens the flow: one
    line for a shell, or "" when nothing has to be opened.
    """

    blocks: bool | None
    action: Action
    tool: str  # nft | iptables | ip6tables | ufw | firewalld; "" where no rule is concerned
    where: str
    rule: str
    allow: str
    hook: str
    could_not_look: str | None = None
    candidates: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    leg: Leg = "request-in"
    tracked: Truth = True
    elsewhere: Truth = False  # `rule` is a NAT rule that surely (True) or perhaps (None) gives it another destination
    new_source: str = ""  # a NAT rule gives it this source address on its way out
    by_chance: bool = False  # nothing surely blocks all of it, and a rule draws lots for some of the packets

    @property
    def decided(self) -> bool:
        return self.blocks is not None


def explain(
    evidence: Evidence,
    flow: Flow,
    leg: Leg = "request-in",
    *,
    ports: Iterable[tuple[int, int]] = (),
    peers: Iterable[str] = (),
    tracked: Truth = True,
) -> Explanation:
    """Judge one leg of `flow` by one node's evidence: the destination's for `request-in`, the source's for `-out`.

    `ports` (inclusive ranges) and `peers` widen the remedy, so that one command opens all that an inventory needs; the
    flow's own are always in it.
    """
    journey = travel(evidence, flow, leg, tracked=tracked)
    blind = evidence.blind(flow.version)
    could_not_look = "; ".join(blind) or None
    caveats = list(evidence.asides)
    wanted = _wanted(flow, leg, tuple(ports), tuple(peers))
    if journey.elsewhere is not None and not any(stop.certain for stop in journey.stops):
        return _sent_elsewhere(evidence, journey, journey.elsewhere, wanted, could_not_look, caveats)
    if not journey.stops:
        allowed = _nothing_blocks(journey, could_not_look, tuple(caveats), leg)
        if journey.translator is None:
            return allowed
        where, rule = _place_of(journey.translator.base, journey.translator.ends[0])
        fix = remedy(evidence, [journey.translator], wanted, journey.interface)
        return replace(allowed, where=where, rule=rule, allow=fix.text)

    fix = remedy(evidence, _all_stops(evidence, flow, wanted, journey), wanted, journey.interface)
    sure = [stop for stop in journey.stops if stop.certain]
    primary = sure[0] if sure else journey.stops[0]
    before = journey.stops[: journey.stops.index(primary) + 1] if sure else journey.stops
    suspects = [(stop.base, end) for stop in before for end in stop.ends]
    texts = tuple(dict.fromkeys(_in_words(evidence, flow, leg, base, end) for base, end in suspects))
    actions = {end.action for _, end in suspects}
    base, end = suspects[-1 if sure else 0]
    tool, where, rule = _name(evidence, flow, leg, base, end)
    also = [_in_words(evidence, flow, leg, stop.base, stop.ends[0]) for stop in sure[1:]]
    caveats += [f"it is blocked a second time by {text}" for text in dict.fromkeys(also) if text not in texts]
    by_chance = not sure and any(stop.by_chance for stop in journey.stops)
    if not sure and not by_chance:
        caveats.append("these rules match only sometimes, or on what cannot be told from here: it could be one of them")
    allow, beside = fix.text, fix.caveats
    if by_chance and all(end.rule and end.rule.by_chance for _, end in suspects):
        allow = " && ".join(dict.fromkeys(_removal(base, end.rule) for base, end in suspects if end.rule))
        beside = (COMES_BACK,)
    return Explanation(
        blocks=True if sure else None,
        action=actions.pop() if len(actions) == 1 else "unknown",
        tool=tool,
        where=where,
        rule=rule,
        allow=allow,
        hook=base.hook,
        could_not_look=could_not_look,
        candidates=texts if len(texts) > 1 or not sure else (),
        caveats=(*caveats, *beside),
        leg=leg,
        tracked=journey.tracked,
        by_chance=by_chance,
    )


COMES_BACK = "take the rule out of the file that it comes from as well, or the next reload or boot brings it back"


def _removal(base: Base, rule: FilterRule) -> str:
    """The command that removes a rule: of one that draws lots nobody needs the half that it lets pass, and an exception for
    the job would leave it to strike the logins and everything else."""
    if base.engine == "nft":
        words = nft_words("delete", "rule", base.family, base.table, rule.chain, "handle", rule.handle)
        return f"sudo nft {words}" if words else NFT_BY_HAND
    table = "" if base.table == "filter" else f" -t {word(base.table)}"
    return f"sudo {base.engine}{table} -D {word(rule.chain)} {rule.index + 1}"


def _sent_elsewhere(
    evidence: Evidence,
    journey: Journey,
    by: BlockingChain,
    wanted: Opening,
    could_not_look: str | None,
    caveats: list[str],
) -> Explanation:
    where, rule = _place_of(by.base, by.ends[0])
    fix = remedy(evidence, [by], wanted, journey.interface)
    return Explanation(
        blocks=None,
        action="unknown",
        tool=by.base.engine.removesuffix("-legacy"),
        where=where,
        rule=rule,
        allow=fix.text,
        hook=by.base.hook,
        could_not_look=could_not_look,
        caveats=(*caveats, *fix.caveats),
        leg=wanted.leg,
        tracked=journey.tracked,
        elsewhere=True if by.certain else None,
    )


def _nothing_blocks(journey: Journey, could_not_look: str | None, caveats: tuple[str, ...], leg: Leg) -> Explanation:
    blocks = None if could_not_look else False
    where, rule, hook, tool = "no rule blocks it", "", "", ""
    if journey.last is not None:
        base, end = journey.last.base, journey.last.ends[0]
        tool, hook = base.engine.removesuffix("-legacy"), base.hook
        where, rule = _place_of(base, end)
    action: Action = "accept" if blocks is False else "unknown"
    return Explanation(
        blocks,
        action,
        tool,
        where,
        rule,
        "",
        hook,
        could_not_look,
        (),
        caveats,
        leg,
        journey.tracked,
        new_source=journey.new_source,
    )


# --- words ----------------------------------------------------------------------------------------------------------


def _in_words(evidence: Evidence, flow: Flow, leg: Leg, base: Base, end: PacketEnd) -> str:
    _, where, rule = _name(evidence, flow, leg, base, end)
    return f"{where} `{rule}`" if rule else where


def _name(evidence: Evidence, flow: Flow, leg: Leg, base: Base, end: PacketEnd) -> tuple[str, str, str]:
    """-> tool, where, rule: in the words of the front end that owns the rule."""
    where, rule = _place_of(base, end)
    status = evidence.ufw
    if status is not None and ufw_decides(end):
        outgoing = leg in ("request-out", "reply-out")
        peer = flow.destination if leg in ("request-out", "reply-in") else flow.source
        if end.rule is not None and "user" in end.rule.chain:
            line = ufw.blocking_line(status, peer, flow.port, outgoing=outgoing)
            return "ufw", f"ufw rule in {where}", str(line) if line else rule
        default = status.outgoing if outgoing else status.incoming
        direction = "outgoing" if outgoing else "incoming"
        return "ufw", f"ufw default policy ({where})", f"Default: {default or 'deny'} ({direction})"
    if evidence.firewalld is not None and firewalld_owns(base):
        peer = flow.source if leg in ("request-in", "reply-out") else flow.destination
        interface = flow.in_interface or evidence.interface_to(peer)
        zone = evidence.firewalld.zone_for(peer, interface)
        return "firewalld", f"firewalld zone {zone} ({where})", rule
    return base.engine.removesuffix("-legacy"), where, rule


def _place_of(base: Base, end: PacketEnd) -> tuple[str, str]:
    if base.engine == "nft":
        place = f"{base.family} {base.table}"
        if end.rule is not None:
            return f"nft rule {place} {end.rule.chain} handle {end.rule.handle}", end.rule.text
        return f"nft chain {place} {base.chain}", f"policy {base.policy}"
    table = "" if base.table == "filter" else f" of table {base.table}"
    if end.rule is not None:
        return f"{base.engine} chain {end.rule.chain}{table} rule {end.rule.index + 1}", end.rule.text
    return f"{base.engine} chain {base.chain}{table}", f"-P {base.chain} {base.policy.upper()}"


# --- what the remedy has to open ------------------------------------------------------------------------------------


def _wanted(flow: Flow, leg: Leg, ports: Ports, peers: tuple[str, ...]) -> Opening:
    peer = flow.source if leg in ("request-in", "reply-out") else flow.destination
    version = flow.version
    others = [other for other in peers if ipaddress.ip_address(other).version == version]
    return Opening(leg, tuple(dict.fromkeys([peer, *others])), merge(((flow.port, flow.port), *ports)), flow.protocol)


def merge(ports: Iterable[tuple[int, int]]) -> Ports:
    """Sorted, and overlapping or touching ranges made one."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted((min(span), max(span)) for span in ports):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _all_stops(evidence: Evidence, flow: Flow, wanted: Opening, journey: Journey) -> list[BlockingChain]:
    """Where all the wanted flows are stopped: every peer, and every port at which the rules may change their mind."""
    stops = list(journey.stops)
    if len(wanted.peers) == 1 and wanted.ports == ((flow.port, flow.port),):
        return stops
    samples = _interesting(evidence, flow, wanted.ports)
    spent = 0
    for peer in wanted.peers:
        for port in samples:
            other = (
                replace(flow, source=peer, port=port)
                if wanted.leg in ("request-in", "reply-out")
                else replace(flow, destination=peer, port=port)
            )
            stops += travel(evidence, other, wanted.leg).stops
            spent += 1
            if spent > MOST_SAMPLES and port == samples[0]:
                break
    return stops


def _interesting(evidence: Evidence, flow: Flow, ports: Ports) -> list[int]:
    """The flow's port, each range's ends, and every number in the rules (and its neighbours) that lies in a range."""
    numbers: set[int] = set()
    for base in evidence.bases(flow.version):
        for rules in base.chains.values():
            for rule in rules:
                numbers.update(int(word) for word in re.findall(r"(?<![\d.])\d{1,5}(?![\d.])", rule.text))
    near = {number + step for number in numbers for step in (-1, 0, 1)}
    inside = {number for number in near if any(low <= number <= high for low, high in ports)}
    ends = {end for span in ports for end in span}
    return [flow.port, *sorted((ends | set(sorted(inside)[:100])) - {flow.port})]
