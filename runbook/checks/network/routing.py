"""Why a node's own kernel does not send a packet, or sends it an unusual way: a lost address or route, a route or
policy rule (`ip rule`) that refuses it, or a policy rule that leads a few packets elsewhere."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from runbook.causes.catalogue import finding_for, remedy_from_page
from runbook.checks.context import Context
from runbook.checks.reach.interfaces import NO_CARRIER, unusable_interface_finding
from runbook.files.address import is_in_network, is_link_local
from runbook.firewall.evaluate import NumberRange, Truth, truth_and, truth_inverted
from runbook.model.command_quoting import shell_word
from runbook.model.verdict import Finding

if TYPE_CHECKING:
    from runbook.firewall.collected_rules import Evidence

REFUSING_ROUTE_TYPES = ("blackhole", "unreachable", "prohibit")
"""Types of routes and actions of policy rules that refuse a packet."""
NON_SELECTOR_KEYS = frozenset(
    (
        *("priority", "table", "action", "protocol", "goto", "suppress_prefixlen", "suppress_ifgroup", "unresolved"),
        *("not", "src", "srclen", "dst", "dstlen", "fwmask", "iif_detached", "oif_detached"),
    )
)
"""Keys of `ip -j rule` that are looked at elsewhere or do not select packets. Each other key is a selector."""


@dataclass(frozen=True, slots=True)
class Sent:
    """TCP packets that a node sends, as its policy rules see them. None: not known. `marks`: marks that the node's
    packet filter may set."""

    address: str
    source: str | None = None
    source_port: NumberRange | None = None
    port: NumberRange | None = None
    uid: int | None = None
    marks: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class RouteRefusal:
    """A route or policy rule that refuses packets (or, from `policy_rule_detour`, leads them elsewhere). `why` in
    words; `fix`: the remedy. `certain`: the kernel surely comes to it; otherwise a selector cannot be decided. `of`:
    the policy rule in words."""

    why: str
    fix: str
    certain: bool
    of: str = ""
    narrow: bool = False  # the rule is about some ports, users or marks only


def first_route_refusal(sent: Sent, way: Mapping[str, Any]) -> RouteRefusal | None:
    """The refusal that the kernel meets first, in the order of the rules. If none is certain, the first that it may
    meet; None when there is none.

    `way` has the `rules` and the `routes` that match the address.
    """
    perhaps: RouteRefusal | None = None
    for rule in sorted(way.get("rules") or [], key=_rule_priority):
        try:
            matches = _rule_selects(rule, sent)
            routes = way.get("routes") or []
            remove = _delete_rule_remedy(rule, sent.address, way)
            found = matches is not False and _follow_rule(rule, routes, sent.address, remove, certain=matches is True)
        except (ValueError, KeyError, TypeError, OverflowError):
            continue  # a rule in an unknown form: which packets it selects, and where it leads, is not known
        if matches is False:
            continue
        if matches is None:
            perhaps = perhaps or (found if isinstance(found, RouteRefusal) else None)
        elif isinstance(found, RouteRefusal):
            return found
        elif found:
            break
    return perhaps


def _rule_priority(rule: Mapping[str, Any]) -> int:
    priority = rule.get("priority")
    return priority if isinstance(priority, int) else 0


def _rule_selects(rule: Mapping[str, Any], sent: Sent) -> Truth:
    """Whether a policy rule selects these packets; None when that cannot be decided."""
    tests = [_rule_covers_address(rule, "dst", sent.address), _rule_covers_address(rule, "src", sent.source)]
    tests += [_selector_matches(key, rule, sent) for key in rule_selectors(rule)]
    return truth_inverted(reduce(truth_and, tests), "not" in rule)


def rule_selectors(rule: Mapping[str, Any]) -> list[str]:
    """The keys of a policy rule that select packets by more than source and destination address."""
    return [key for key in rule if key not in NON_SELECTOR_KEYS and not key.endswith(("_end",))]


def _selector_matches(key: str, rule: Mapping[str, Any], sent: Sent) -> Truth:
    """Whether one selector of a policy rule selects these packets; None when that cannot be decided."""
    name = key.removesuffix("_start")
    if key == "ipproto":
        return None if sent.port is None else str(rule[key]) in ("tcp", "6")
    if name in ("sport", "dport"):
        port = sent.source_port if name == "sport" else sent.port
        return (
            None if port is None else port.within(NumberRange(int(rule[key]), int(rule.get(f"{name}_end", rule[key]))))
        )
    if name == "uid":
        return None if sent.uid is None else int(rule[key]) <= sent.uid <= int(rule["uid_end"])
    if key == "iif":
        return str(rule[key]) == "lo"  # `lo` selects the packets that the node itself sends
    if key == "fwmark":
        wanted, mask = int(str(rule[key]), 0), int(str(rule.get("fwmask", "0xffffffff")), 0)
        if sent.marks is not None and all(mark & mask != wanted for mark in (0, *sent.marks)):
            return False
        return True if wanted == 0 and sent.marks == frozenset() else None
    return None


def _follow_rule(
    rule: Mapping[str, Any],
    routes: Iterable[Mapping[str, Any]],
    address: str,
    remove: str,
    *,
    certain: bool,
) -> RouteRefusal | bool:
    """The refusal in which a rule ends; `remove` is the remedy that deletes the rule. True: the rule leads somewhere;
    False: it does not, and the kernel asks the next rule."""
    text, narrow = rule_text(rule), _is_narrow(rule)
    target = ipaddress.ip_address(address)
    if rule.get("action") in REFUSING_ROUTE_TYPES:
        return RouteRefusal(f"policy rule `{text}` refuses it", remove, certain, text, narrow)
    table = str(rule.get("table", "main"))
    best = _best_route(rule, routes, address)
    if best is None:
        return False
    kind = best.get("type", "unicast")
    if kind not in REFUSING_ROUTE_TYPES:
        return bool(kind != "throw")
    words = f"{kind} {best['dst']}" + (f" table {table}" if table != "main" else "")
    via = f", to which policy rule `{text}` leads," if table not in ("main", "local", "default") else ""
    # A rule for few packets was made for just this, so the rule goes; another rule's table may serve other packets.
    fix = (
        remove
        if narrow
        else remedy_from_page("no-route", "delete", family=ip_family_switch(target), route=quoted_route(words))
    )
    return RouteRefusal(f"route `{words}`{via} refuses it", fix, certain, text, narrow)


def _is_narrow(rule: Mapping[str, Any]) -> bool:
    """Whether the rule is about some ports, users or marks only."""
    return bool(rule_selectors(rule)) or "not" in rule


def _delete_rule_remedy(rule: Mapping[str, Any], address: str, way: Mapping[str, Any]) -> str:
    """The remedy that deletes a policy rule. The kernel deletes the first rule that fits what is typed: where several
    have this priority, the whole rule is typed."""
    alike = [other for other in way.get("rules") or [] if other.get("priority") == rule.get("priority")]
    words = str(rule.get("priority")) + (f" {rule_text(rule).partition(': ')[2]}" if len(alike) > 1 else "")
    return remedy_from_page(
        "no-route", "rule", family=ip_family_switch(ipaddress.ip_address(address)), rule=quoted_route(words)
    )


def _best_route(rule: Mapping[str, Any], routes: Iterable[Mapping[str, Any]], address: str) -> Mapping[str, Any] | None:
    """The route to the address that the kernel takes in the rule's table; None when there is none."""
    table = str(rule.get("table", "main"))
    routes = [route for route in routes if str(route.get("table", "main")) == table]
    routes = [route for route in routes if is_in_network(address, str(route.get("dst")))]
    return max(routes, key=lambda route: (prefix_length(str(route["dst"])), -int(route.get("metric", 0))), default=None)


def policy_rule_detour(sent: Sent, way: Mapping[str, Any]) -> RouteRefusal | None:
    """The policy rule that surely leads these packets, but not other packets to the same address, to another gateway or
    interface; else None. This does not prove that the packets are lost there."""
    try:
        rules = sorted(way.get("rules") or [], key=_rule_priority)
        here = _rule_and_route_taken(sent, rules, way.get("routes") or [])
        rest = _rule_and_route_taken(sent, [rule for rule in rules if not _is_narrow(rule)], way.get("routes") or [])
    except (ValueError, KeyError, TypeError, OverflowError):
        return None  # a rule or route in an unknown form
    if here is None or rest is None or not _is_narrow(here[0]) or _next_hop_text(here[1]) == _next_hop_text(rest[1]):
        return None
    text, usual = rule_text(here[0]), _next_hop_text(rest[1])
    why = (
        f"policy rule `{text}` leads these packets {_next_hop_text(here[1])}, and all "
        f"else to {sent.address} goes {usual}"
    )
    return RouteRefusal(why, _delete_rule_remedy(here[0], sent.address, way), False, text, narrow=True)


def _rule_and_route_taken(
    sent: Sent, rules: Iterable[Mapping[str, Any]], routes: Sequence[Mapping[str, Any]]
) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """The policy rule, and the route in its table, by which the kernel sends these packets; None when it sends none, or
    when that cannot be decided."""
    for rule in rules:
        matches = _rule_selects(rule, sent)
        best = _best_route(rule, routes, sent.address) if matches is not False else None
        if best is None or best.get("type") == "throw":
            continue
        return (rule, best) if matches and best.get("type", "unicast") == "unicast" else None
    return None


def _next_hop_text(route: Mapping[str, Any]) -> str:
    """Where a route sends packets, in words."""
    via = f"to the gateway {route['gateway']} " if "gateway" in route else ""
    return f"{via}over {route.get('dev', '?')}"


def quoted_route(route: str) -> str:
    """A route, or a policy rule, in the words of `ip`, each quoted as one word of a command."""
    return " ".join(map(shell_word, route.split()))


def _rule_covers_address(rule: Mapping[str, Any], key: str, address: str | None) -> Truth:
    """Whether a rule's `from` or `to` includes this address; None when the address is not known."""
    wanted = rule.get(key, "all")
    if wanted == "all":
        return True
    if address is None:
        return None
    length = rule.get(f"{key}len")
    return is_in_network(address, f"{wanted}/{length}" if length is not None else str(wanted))


def rule_text(rule: Mapping[str, Any]) -> str:
    """A policy rule in the words of `ip rule`."""

    def end(key: str) -> str:
        length = f"/{rule[key + 'len']}" if f"{key}len" in rule else ""
        return f"{rule[key]}{length}"

    def selector(key: str) -> str:
        name, last = key.removesuffix("_start"), rule.get(key.replace("_start", "_end"))
        mask = f"/{rule['fwmask']}" if key == "fwmark" and "fwmask" in rule else ""
        return f" {'uidrange' if name == 'uid' else name} {rule[key]}" + (
            f"-{last}" if key.endswith("_start") else mask
        )

    return (
        f"{rule.get('priority')}: {'not ' if 'not' in rule else ''}from {end('src') if 'src' in rule else 'all'}"
        + (f" to {end('dst')}" if rule.get("dst", "all") != "all" else "")
        + "".join(selector(key) for key in rule_selectors(rule))
        + (f" {rule['action']}" if rule.get("action") in REFUSING_ROUTE_TYPES else f" lookup {rule.get('table')}")
    )


def prefix_length(network: str) -> int:
    """The length of a network's prefix; 0 for `default`. Raises ValueError for a text that is no network."""
    return 0 if network == "default" else ipaddress.ip_network(network, strict=False).prefixlen


def ip_family_switch(
    thing: ipaddress.IPv4Address | ipaddress.IPv6Address | ipaddress.IPv4Network | ipaddress.IPv6Network,
) -> str:
    """The switch of `ip` for this IP version, with a space after it; "" for IPv4."""
    return "-6 " if thing.version == 6 else ""


def unusable_path_finding(at: Context, node: str, address: str, peer: str, evidence: Evidence | None) -> Finding | None:
    """Why no packet can use a node's own `address`, or get from the node to the address `peer`, whatever the firewall
    rules say; None when nothing is missing."""
    if evidence is None:
        return None
    return _lost_address_finding(at, node, address, evidence) or _no_route_finding(node, peer, evidence)


def _lost_address_finding(at: Context, node: str, address: str, evidence: Evidence) -> Finding | None:
    """The finding for an address that the node has lost since the run began, or None."""
    before = at.facts(node).get("interfaces", {})
    name = next((name for name, entry in before.items() if address in entry["addresses"]), None)
    if name is None or not evidence.interfaces:
        return None
    now = evidence.interfaces.get(name)
    if now is None:
        says = f"interface {name} of {node}, which carried {address}, no longer exists"
        seen = (f"interfaces of {node} now: {', '.join(evidence.interfaces)}",)
        return finding_for("interface-missing", says, seen, way="lost", node=node)
    if now.state in NO_CARRIER:
        entry = {"state": now.state, "flags": list(now.flags), "addresses": list(now.addresses)}
        return unusable_interface_finding(
            at.inventory.node(node), name, entry, name, (f"when the run began, it carried {address}",)
        )
    if any(address in entry.addresses for entry in evidence.interfaces.values()):
        return None
    version = ipaddress.ip_address(address).version
    alike = [one for one in now.prefixes if ipaddress.ip_interface(one).version == version and not is_link_local(one)]
    length = ipaddress.ip_interface(alike[0]).network.prefixlen if alike else {4: 24, 6: 64}[version]
    return finding_for(
        "interface-missing",
        f"{node} has lost its address {address}: {name} now has {', '.join(now.prefixes) or 'none'}",
        (f"when the run began, {name} of {node} had {address}",),
        way="lost-address",
        address=shell_word(address),
        length=shell_word(str(length)),
        name=shell_word(name),
    )


def shrunk_mtu_finding(at: Context, node: str, evidence: Evidence | None) -> Finding | None:
    """The finding for an interface whose MTU shrank, or None: connections that were open before still send packets that
    no longer fit."""
    for name, entry in at.facts(node).get("interfaces", {}).items():
        now = evidence.interfaces.get(name) if evidence is not None else None
        if now is not None and now.mtu and entry.get("mtu") and now.mtu < entry["mtu"]:
            says = f"the MTU of {name} on {node} is {now.mtu} now; when the run began, it was {entry['mtu']}"
            seen = (f"{node}: {name} mtu {now.mtu}",)
            return finding_for(
                "mtu-blackhole", says, seen, way="interface", name=shell_word(name), mtu=shell_word(entry["mtu"])
            )
    return None


def _no_route_finding(node: str, peer: str, evidence: Evidence) -> Finding | None:
    """The finding when the node has no route to the address `peer`, or None."""
    refused = evidence.no_route_to(peer)
    if refused is None:
        return None
    found = first_route_refusal(Sent(peer), refused) or RouteRefusal(
        "", remedy_from_page("no-route", "missing", node=node, peer=peer), certain=False
    )
    says = f"{node} has no route to {peer}" + (f": {found.why}" if found.why else "")
    return Finding("no-route", says, found.fix, (f"{node}: ip route get {peer}: {refused['error']}",))


def refusing_policy_finding(node: str, sent: Sent, what: str, evidence: Evidence | None) -> tuple[Finding, bool] | None:
    """The finding for a policy rule that refuses just these packets to a reachable peer, or leads them elsewhere, and
    whether the rule is surely the reason; None when there is none."""
    if evidence is None:
        return None
    sent, ways = replace(sent, uid=evidence.facts.get("uid"), marks=evidence.marks), evidence.ways_to(sent.address)
    found, does = first_route_refusal(sent, ways), "has no route for"
    if found is None or not found.narrow:
        found, does = policy_rule_detour(sent, ways), "loses"
    if found is None:
        return None
    most_likely = "" if found.certain else "most likely "
    return Finding(
        "no-route",
        f"{node} {does} {what}: {most_likely}{found.why}",
        found.fix,
        (
            f"{node}: ip rule: {found.of}",
            "the fix lasts until the next boot: remove the rule also where it is configured",
        ),
    ), found.certain
