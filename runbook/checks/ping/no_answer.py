"""Why a peer answers neither ICMP nor TCP: a wrong address, a filter, a missing way back, or no machine there."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from runbook.causes.catalogue import finding_for
from runbook.checks.network.dial import ANY_PORT
from runbook.checks.network.pairs import BlamedNodes, names_text
from runbook.checks.network.routing import ip_family_switch, prefix_length, quoted_route
from runbook.checks.ping.observations import Observations, Pair, pairs_with_findings
from runbook.checks.ping.routes import narrow_netmask_reason, wrong_address_finding
from runbook.files.address import is_ip
from runbook.model.command_quoting import shell_word
from runbook.model.remedy import Remedy
from runbook.model.units import count_text
from runbook.model.verdict import Finding, FindingsByNode
from runbook.parsers.ping import cause_of_reason

if TYPE_CHECKING:
    from runbook.firewall.collected_rules import Evidence
    from runbook.firewall.explain_connection import Blocked

ROUTER_MESSAGE = re.compile(r"^From (\S+?):? icmp_seq=\d+ (.+)$", re.MULTILINE)
"""A line in which ping reports a router's message: the router's address, and its reason."""
MIN_USUAL_TTL = 32
"""A packet that may cross fewer hops than this has a lowered limit: every system starts with more."""
SYSCTL_UNTIL_BOOT = "the fix lasts until the next boot: to keep it, write it into /etc/sysctl.d"
"""The line of evidence beside a remedy that sets a sysctl."""
NO_BUFFER = "No buffer space available"
"""What the kernel says when its neighbour table is full."""
REFUSING_ROUTE_ERRNOS = {"EINVAL": "blackhole", "EACCES": "prohibit"}
"""How a route that refuses is known by the errno of `connect`. For an `unreachable` route the errno is the one that
routers cause too."""


def silence_findings(seen: Observations, pairs: list[Pair]) -> FindingsByNode:
    """Findings for pairs without an answer, by guilty node."""
    found: FindingsByNode = defaultdict(list)
    if not pairs:
        return found
    evidence = seen.rules({name for pair in pairs for name in pair.ends})
    left: list[Pair] = []
    for pair in pairs:
        guilty, finding = (
            _full_neighbour_table_finding(seen, pair)
            or _foreign_address_finding(seen, pair)
            or _refusing_kernel_finding(seen, pair)
            or _misrouted_packets_finding(seen, pair)
            or _blocked_arp_finding(seen, pair, evidence)
            or _reverse_path_filter_finding(seen, pair, proven=True)
            or _blocking_rule_finding(seen, pair, evidence)
            or _ipsec_policy_finding(seen, pair, evidence)
            or _low_ttl_finding(seen, pair, evidence)
            or _router_refusal_finding(seen, pair)
            or _wrong_gateway_finding(seen, pair)
            or _reverse_path_filter_finding(seen, pair, proven=False)
            or (None, None)
        )
        if guilty is None or finding is None:
            left.append(pair)
        else:
            found[guilty].append(finding)
    # What explains the silence of one direction explains that of the other as well.
    explained = pairs_with_findings(found)
    left = [pair for pair in left if pair.ends not in explained]
    blame = seen.blame(pair.ends for pair in left)
    for name, peers in blame.nodes.items():
        if blame.between:
            found[name].append(_separated_groups_finding(seen, blame, left, tuple(peers)))
        else:
            found[name].append(
                _unexplained_silence_finding(seen, name, peers, [pair for pair in left if name in pair.ends])
            )
    return dict(found)


def _full_neighbour_table_finding(seen: Observations, pair: Pair) -> tuple[str, Finding] | None:
    """A full neighbour table at either end: its kernel sends nothing to further neighbours."""
    family = "ipv6" if ":" in pair.numeric else "ipv4"
    table, asking = {"ipv6": ("ndisc_cache", "neighbour discovery"), "ipv4": ("arp_cache", "ARP")}[family]
    for name, way in ((pair.source, pair), (pair.peer, seen.pair(pair.peer, pair.source))):
        refused = seen.answers[name].get("neighbours_refused") or 0
        no_buffer = way is not None and NO_BUFFER in str(way.small.get("raw", ""))
        if way is None or way.small.get("received") or not (refused or no_buffer):
            continue
        lines = [f"{name}: {refused} times meanwhile (table_fulls in /proc/net/stat/{table})"] if refused else []
        return name, finding_for(
            "neighbour-table-full",
            f"the kernel of {name} has no room for one more neighbour ({asking}), so that it sends nothing to those it "
            "does not know yet",
            (
                *lines,
                *way.echo_says(),
                (
                    f"on {name}: `sysctl net.{family}.neigh.default.gc_thresh3` is the most it keeps, of all networks "
                    "and containers"
                ),
                SYSCTL_UNTIL_BOOT,
            ),
            tuple({pair.source, pair.peer} - {name}),
            family=shell_word(family),
        )
    return None


def _foreign_address_finding(seen: Observations, pair: Pair) -> tuple[str, Finding] | None:
    """The finding when the peer's address is on none of its interfaces."""
    own = seen.own[pair.peer]
    if not is_ip(pair.address) or not own or pair.numeric in own:
        return None
    return pair.peer, wrong_address_finding(
        seen, pair.peer, "no machine answers there", tuple(pair.echo_says()), pair.source
    )


def _refusing_kernel_finding(seen: Observations, pair: Pair) -> tuple[str, Finding] | None:
    """The finding when one end's own kernel refuses to send, with an errno that no packet causes: a route does that,
    even where there is no iproute2 to show it."""
    for way in filter(None, (pair, seen.pair(pair.peer, pair.source))):
        refused = next((d for d in way.dials if d.outcome == "rejected" and d.errno in REFUSING_ROUTE_ERRNOS), None)
        if refused is not None:
            kind = REFUSING_ROUTE_ERRNOS[str(refused.errno)]
            return way.source, finding_for(
                "no-route",
                f"the kernel of {way.source} itself refuses to send to {way.peer} ({way.numeric}), with "
                f"{refused.errno}: that is what a `{kind}` route or policy rule does",
                (str(refused), *way.echo_says()),
                (way.peer,),
                way="refusing",
                kind=shell_word(kind),
                source=way.source,
            )
    return None


def _misrouted_packets_finding(seen: Observations, pair: Pair) -> tuple[str, Finding] | None:
    """The finding when one end sends packets for the other elsewhere: to a gateway, because its netmask leaves the
    other out, or by another interface, whose network includes the other."""
    for way in (pair, seen.pair(pair.peer, pair.source)):
        used = way.route.get("dev") if way else None
        if way is None or used is None:
            continue
        shown = (_packet_path_text(way), *map(str, way.dials[:2]))
        if via := way.route.get("via"):
            if narrow := narrow_netmask_reason(seen, way):
                says = f"{way.source} sends what is for {way.peer} ({way.numeric}) to the gateway {via}: {narrow[0]}"
                return way.source, Finding("no-route", says, narrow[1], shown, (way.peer,))
            continue
        address = ipaddress.ip_address(way.numeric)
        own = seen.data_interface(way.source)
        prefixes = [prefix for _, prefix in seen.prefixes(way.source, used) if used != own]
        wide = next((prefix for prefix in prefixes if address in ipaddress.ip_interface(prefix).network), None)
        if wide and own:
            return way.source, finding_for(
                "no-route",
                f"{way.source} sends what is for {way.peer} ({way.numeric}) out of {used}, not of {own}: {used} has "
                f"{wide}, and that network takes {way.peer} in",
                shown,
                (way.peer,),
                way="overlap",
                used=shell_word(used),
                source=way.source,
                own=shell_word(own),
            )
    return None


def _reverse_path_filter_finding(seen: Observations, pair: Pair, *, proven: bool) -> tuple[str, Finding] | None:
    """The finding when the peer would send its answers by another interface than our packets arrive by, and therefore
    drops these. Only IPv4 has such a filter. It also covers ARP. With `proven`, a filter that dropped nothing of what
    surely arrived is not the reason."""
    arrives = seen.data_interface(pair.peer)
    back = seen.pair(pair.peer, pair.source)
    if arrives is None or back is None or ":" in pair.numeric:
        return None
    interface = seen.interface(pair.peer, arrives)
    strict = interface["rp_filter"] if interface else None
    leaves = back.route.get("dev")
    dropped = seen.answers[pair.peer].get("rp_filtered")
    arp = not pair.route.get("via") and not pair.neighbour.get("lladdr")
    if strict != 1 or leaves in (None, arrives) or (proven and dropped == 0 and not arp):
        return None
    setting = f"net.ipv4.conf.{arrives.replace('.', '/')}.rp_filter=2"  # as sysctl spells `eth0.100`
    proof: list[str] = []
    if dropped:
        proof = [f"{pair.peer}: its reverse-path filter dropped {dropped} packets meanwhile (IPReversePathFilter)"]
    elif arp:
        proof = [f"{pair.peer} does not even answer ARP for {pair.numeric}: the filter covers that as well"]
    return pair.peer, finding_for(
        "host-unreachable",
        f"{pair.peer} drops what {pair.source} sends to {pair.numeric}: it comes in by {arrives}, the route back to "
        f"{back.numeric} leaves by {leaves}, and {arrives} has rp_filter=1 (strict)",
        (
            *proof,
            f"{pair.peer}: ip route get {back.numeric}: dev {leaves}; a route by {arrives} mends it as well",
            SYSCTL_UNTIL_BOOT,
        ),
        (pair.source,),
        way="sysctl",
        setting=shell_word(setting),
    )


def duplicate_mac_findings(seen: Observations, pairs: Iterable[Pair]) -> FindingsByNode:
    """Findings for silent pairs whose ends have the same hardware address. What other nodes lose on their way to either
    end follows from that."""
    found: FindingsByNode = {}
    for guilty, finding in filter(None, (_duplicate_mac_finding(seen, pair) for pair in pairs)):
        found.setdefault(guilty, [finding])
    return found


def _duplicate_mac_finding(seen: Observations, pair: Pair) -> tuple[str, Finding] | None:
    """The finding when both ends have the same hardware address, as machines made from one image have. The node that is
    later by name gets a new address."""
    places = {name: seen.data_interface(name) or "" for name in pair.ends}
    interfaces = {name: seen.interface(name, place) for name, place in places.items()}
    macs = {name: one["mac"] if one else None for name, one in interfaces.items()}
    mac = macs[pair.peer]
    if pair.route.get("via") or not mac or len(set(macs.values())) > 1 or not mac.replace(":", "").strip("0"):
        return None
    first, guilty = sorted(pair.ends)
    digits = hashlib.sha256(guilty.encode()).hexdigest()
    fresh = ":".join(["02", *(digits[at : at + 2] for at in range(0, 10, 2))])  # 02: locally administered
    return guilty, finding_for(
        "duplicate-address",
        f"{first} and {guilty} have one hardware address, {mac}: a switch cannot tell them apart, so neither "
        "receives what is meant for it",
        (
            *(f"{name}: {place} link/ether {mac}" for name, place in sorted(places.items())),
            *(str(dial) for dial in pair.dials[:2]),
            "the address lasts until the next boot: set it where the network, or the virtual machine, is configured",
        ),
        (first,),
        way="hardware-address",
        places=shell_word(places[guilty]),
        fresh=fresh,
    )


def _blocked_arp_finding(
    seen: Observations, pair: Pair, evidence: dict[str, Evidence | None]
) -> tuple[str, Finding] | None:
    """The finding when one end does not answer ARP on this interface: ARP is off there, or a rule of nft's `arp` family
    drops it."""
    from runbook.firewall.explain_node import find_arp_stop

    if pair.route.get("via") or ":" in pair.numeric:
        return None
    perhaps: tuple[str, Finding] | None = None
    for name, other in ((pair.peer, pair.source), (pair.source, pair.peer)):
        place, known = seen.data_interface(name), evidence.get(name)
        if place is None or known is None:
            continue
        lines = pair.lines
        now = known.interfaces.get(place)
        if now and now.state == "UP" and {"NOARP", "BROADCAST"} <= set(now.flags):
            return name, finding_for(
                "host-unreachable",
                f"{place} of {name} has ARP switched off (NOARP): other nodes cannot find {seen.numeric(name)} "
                "there, and it cannot find them",
                (*lines, f"{name}: ip link show {place}: {','.join(now.flags)}"),
                (other,),
                way="no-arp",
                place=shell_word(place),
            )
        stop = find_arp_stop(known, place, seen.numeric(name), seen.numeric(other))
        if stop is None or (perhaps and not stop.certain):
            continue
        verb = "keeps" if stop.certain else "most likely keeps"
        says = f"{name} {verb} ARP from passing between itself and {other}, so one cannot find the other: {stop.says}"
        found = Finding("firewall-drop", says, stop.remedy, (*lines, f"{name}: {stop.says}"), (other,))
        if stop.certain:
            return name, found
        perhaps = name, found
    return perhaps


def _blocking_rule_finding(
    seen: Observations, pair: Pair, evidence: dict[str, Evidence | None]
) -> tuple[str, Finding] | None:
    """The finding when a rule at one end blocks everything between the two."""
    from runbook.firewall.evaluate import Flow
    from runbook.firewall.explain_connection import Ends, explain_blocked, is_certainly_blocked

    arrives = seen.data_interface(pair.peer)
    flow = Flow(seen.numeric(pair.source), pair.numeric, seen.at.inventory.rendezvous.port, in_interface=arrives)
    ends = Ends.of(evidence, pair.source, pair.peer)
    # Not even ICMP comes through, so everything between the two is blocked.
    blocked = explain_blocked("dropped", flow, replace(ends, ports=ANY_PORT))
    blocked = blocked if is_certainly_blocked(blocked) else None
    discovery: Blocked | None = None
    if flow.version == 6 and not pair.route.get("via"):  # without ICMPv6, machines on a segment cannot find each other
        discovery = explain_blocked("dropped", replace(flow, protocol="ipv6-icmp"), ends)
        discovery = discovery if is_certainly_blocked(discovery) else None
    first = blocked or discovery
    if first is None:
        return None
    remedy, says = first.remedy, first.says
    if blocked is None:
        says = f"{first.node} drops ICMPv6, by which neighbours find each other: {first.rule}"
    elif discovery and discovery.node == blocked.node:
        remedy = Remedy.together((remedy, discovery.remedy))
        says = f"{says}; ICMPv6, by which neighbours find each other, as well"
    others = tuple(name for name in (pair.source, pair.peer) if name != first.node)
    return first.node, Finding(first.cause, says, remedy, (*pair.lines, *first.evidence)[:10], others)


def _ipsec_policy_finding(
    seen: Observations, pair: Pair, evidence: dict[str, Evidence | None]
) -> tuple[str, Finding] | None:
    """The finding for an IPsec policy at either end that blocks all packets between the two, or demands that they are
    protected."""
    perhaps: tuple[str, Finding] | None = None
    for name, other in ((pair.source, pair.peer), (pair.peer, pair.source)):
        for arriving in (False, True):
            known = evidence.get(name)
            policy = known.ipsec(seen.numeric(other), arriving=arriving) if known else None
            if policy is None or policy.narrow or (perhaps and not policy.blocks):
                continue
            what = f"what comes from {other}" if arriving else f"what it sends to {other}"
            verb = "drops" if policy.blocks else "most likely drops"
            why = "by an IPsec policy" if policy.blocks else "which is not protected as an IPsec policy demands"
            found = finding_for(
                "firewall-drop",
                f"{name} {verb} {what}, {why}: {policy}",
                (
                    *pair.lines,
                    f"{name}: ip xfrm policy: {policy}",
                    "no packet filter shows it; remove it also where it is configured (strongSwan, Libreswan)",
                ),
                (other,),
                way="ipsec",
                policy=policy.typed,
            )
            if policy.blocks:
                return name, found
            perhaps = name, found
    return perhaps


def _low_ttl_finding(
    seen: Observations, pair: Pair, evidence: dict[str, Evidence | None]
) -> tuple[str, Finding] | None:
    """The finding when packets of one end may cross so few hops that a router on the way drops them."""
    for way in (pair, seen.pair(pair.peer, pair.source)):
        known = evidence.get(way.source) if way else None
        if way is None or known is None or known.ttl is None or known.ttl >= MIN_USUAL_TTL or not way.route.get("via"):
            continue
        return way.source, finding_for(
            "host-unreachable",
            f"what {way.source} sends to {way.peer} most likely dies on the way: its packets live for "
            f"{count_text(known.ttl, 'hop')} (net.ipv4.ip_default_ttl), and {way.peer} is behind {way.route['via']}",
            (
                *pair.echo_says(),
                f"{way.source} → {way.numeric}: by {way.route.get('dev')} via {way.route['via']}",
                SYSCTL_UNTIL_BOOT,
            ),
            (way.peer,),
            way="sysctl",
            setting=shell_word("net.ipv4.ip_default_ttl=64"),
        )
    return None


def _router_refusal_finding(seen: Observations, pair: Pair) -> tuple[str, Finding] | None:
    """The finding when a router on the way says why it does not pass the packets on. A message from the sender's own
    address only means that no machine answers ARP. Without iproute2 the route does not tell which address that is."""
    own = {pair.route.get("src"), *seen.own[pair.source], *(dial.local for dial in pair.dials)}
    for router, says in ROUTER_MESSAGE.findall(str(pair.small.get("raw", ""))):
        if router in own or router == pair.numeric:
            continue
        lines = (
            f"ping {shell_word(pair.numeric)} on {pair.source}: From {router} {says}",
            f"route: via {pair.route.get('via')}",
        )
        cause = cause_of_reason(says)
        if cause == "firewall-reject":
            return pair.source, finding_for(
                "firewall-reject",
                f"{router}, on the way from {pair.source} to {pair.peer}, rejects it ({says}); it is not a "
                "node of the inventory",
                lines,
                (pair.peer,),
                way="router",
                router=router,
                src=pair.route.get("src"),
                numeric=pair.numeric,
            )
        if cause == "no-route":
            return pair.source, finding_for(
                "no-route",
                f"{router}, on the way from {pair.source} to {pair.peer}, has no route to {pair.numeric} ({says})",
                lines,
                (pair.peer,),
                way="router",
                numeric=pair.numeric,
                router=router,
                numeric_typed=shell_word(pair.numeric),
                source=pair.source,
            )
    return None


def _wrong_gateway_finding(seen: Observations, pair: Pair) -> tuple[str, Finding] | None:
    """The finding when the route to the peer, or the peer's route back, leads through a gateway that is dead, or that
    is not needed since the other is in a network of its own."""
    return _gateway_finding(seen, pair) or (
        _gateway_finding(seen, back) if (back := seen.pair(pair.peer, pair.source)) else None
    )


def _gateway_finding(seen: Observations, way: Pair) -> tuple[str, Finding] | None:
    """The finding when one end's route to the other leads through a dead or unneeded gateway. The gateway was looked at
    only where the other did not answer."""
    via, gateway = way.route.get("via"), way.target.get("gateway")
    if not via:
        return None
    address = ipaddress.ip_address(way.numeric)
    interface, mine = next(
        (own for own in seen.prefixes(way.source) if address in ipaddress.ip_interface(own[1]).network), ("", "")
    )
    state = (gateway["neighbour"] or {}).get("state") or [] if gateway else []
    dead = "FAILED" in state or "INCOMPLETE" in state
    if not dead and not mine:
        return None
    owner = next((f" ({name})" for name in seen.owners.get(via, ()) if name in seen.answers), "")
    says = f"{way.source} sends packets for {way.peer} ({way.numeric}) to the gateway {via}{owner}"
    says += ", which does not answer" if dead else ""
    says += f", though {way.peer} is in its own network {ipaddress.ip_interface(mine).network}" if mine else ""
    if not gateway:
        line = f"{way.source}: ip route get {way.numeric} from {way.route.get('src')}: via {via}"
        return way.source, finding_for(
            "no-route", says, (line,), (way.peer,), way="astray", source=way.source, via_typed=shell_word(via)
        )
    routes = [route for route in gateway["routes"] if route.get("gateway") == via]
    # The kernel takes the narrowest route. The default route may be among those that match, and is never to be deleted.
    routes.sort(key=lambda route: (-prefix_length(str(route.get("dst"))), int(route.get("metric") or 0)))
    table = f" table {routes[0]['table']}" if routes and routes[0].get("table", "main") != "main" else ""
    route = f"{routes[0]['dst']} via {via}{table}" if routes else f"{way.numeric} via {via}"
    lines = (f"{way.source}: route {route}", f"{way.source}: ip neigh show to {via}: {' '.join(state) or 'nothing'}")
    family = ip_family_switch(address)
    if mine and (not routes or routes[0]["dst"] == "default"):
        return way.source, finding_for(
            "no-route",
            says,
            lines,
            (way.peer,),
            way="own-network",
            family=family,
            network=ipaddress.ip_interface(mine).network,
            interface=shell_word(interface),
            source=shell_word(mine.partition("/")[0]),
        )
    return way.source, finding_for(
        "no-route",
        says,
        lines,
        (way.peer,),
        way="delete" if mine else "dead-gateway",
        family=family,
        route=quoted_route(route),
        via=via,
        via_typed=shell_word(via),
        source=way.source,
        destination=shell_word(routes[0]["dst"] if routes else way.numeric),
    )


def _unexplained_silence_finding(seen: Observations, name: str, peers: list[str], pairs: list[Pair]) -> Finding:
    """The finding when nothing explains the silence. `name` is the node that these pairs have in common, or one end of
    the only pair."""
    toward = [pair for pair in pairs if pair.peer == name]
    first = (toward or pairs)[0]
    address, callers = (seen.numeric(name), peers) if len(peers) > 1 else (first.numeric, [first.source])
    target = name if len(peers) > 1 else first.peer
    neighbour = first.neighbour.get("state") or []
    unheard = "FAILED" in neighbour or "INCOMPLETE" in neighbour or "Destination Host Unreachable" in str(first.small)
    says = (
        f"{names_text(callers)} get{'s' if len(callers) == 1 else ''} no answer from {target} ({address}), neither to "
        "ICMP nor to TCP"
    )
    if unheard:
        says += "; no machine on that segment answers ARP for it"
    ways = [_packet_path_text(pair) for pair in pairs[:4]]
    held = [
        f"{node}: {', '.join(p for _, p in seen.prefixes(node, seen.data_interface(node)))}"
        for node in (name, *peers[:3])
    ]
    dials = [str(dial) for pair in pairs[:2] for dial in pair.dials[:2]]
    return finding_for(
        "host-unreachable",
        says,
        (*first.echo_says(), *dials, *ways, *held)[:10],
        tuple(peers),
        way="silent",
        address=address,
        target=target,
        interface=shell_word(seen.data_interface(target) or "IFACE"),
        typed=shell_word(address),
        caller=callers[0],
    )


def _separated_groups_finding(
    seen: Observations, blame: BlamedNodes, pairs: list[Pair], peers: tuple[str, ...]
) -> Finding:
    """The finding for groups of nodes that do not hear each other: the same for all of them, with one pair as the
    example."""
    first = pairs[0]
    return finding_for(
        "host-unreachable",
        f"no answer, neither to ICMP nor to TCP: {blame.apart}",
        (*first.echo_says(), *map(str, first.dials[:2]), *map(_packet_path_text, pairs[:3])),
        peers,
        way="between",
        between=blame.between,
        typed=shell_word(first.numeric),
        caller=first.source,
        interface=shell_word(seen.data_interface(first.peer) or "IFACE"),
        target=first.peer,
    )


def _packet_path_text(pair: Pair) -> str:
    """The way that a pair's packets take, as a line of evidence."""
    via = f" via {pair.route['via']}" if pair.route.get("via") else ""
    return f"{pair.source} → {pair.numeric}: by {pair.route.get('dev')}{via}"
