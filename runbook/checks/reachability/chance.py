"""Packets that get lost because a rule of one end draws lots for them: no cable is to blame, and nobody has to dial to know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from runbook.causes.netfilter import Flow, explain_blocked
from runbook.checks.dialling.rules import rules_of
from runbook.checks.reachability.common import listed
from runbook.checks.reachability.seen import Pair, Seen, version
from runbook.model.verdict import Finding

ANY_PORT = [(1, 65535)]


def chance_findings(seen: Seen, losing: Iterable[Pair]) -> dict[str, list[Finding]]:
    """By node: its rule that stops some of the packets of these pairs, TCP's among them; nothing where none does."""
    losing = list(losing)
    names = sorted({name for pair in losing for name in pair.ends})
    address = {name: seen.numeric(name) for name in names}
    evidence = rules_of(seen.at, names, {name: [address[n] for n in names if n != name] for name in names})
    commands: dict[tuple[str, str], list[str]] = defaultdict(list)
    told: dict[tuple[str, str], list[str]] = defaultdict(list)
    peers: dict[tuple[str, str], set[str]] = defaultdict(set)
    strikes_tcp: set[tuple[str, str]] = set()
    for source, destination in sorted(
        {way for pair in losing for way in ((pair.source, pair.peer), (pair.peer, pair.source))}
    ):
        for protocol in ("tcp", "ipv6-icmp" if version(address[destination]) == 6 else "icmp"):
            blocked = explain_blocked(
                "lost",
                Flow(
                    address[source],
                    address[destination],
                    seen.at.inventory.rendezvous.port,
                    protocol=protocol,
                    state="established",
                ),
                evidence.get(source),
                evidence.get(destination),
                source,
                destination,
                ports=ANY_PORT,
            )
            for name, one in blocked.explanations if blocked else ():
                if one.by_chance:
                    place = name, " or ".join(one.candidates)
                    commands[place].append(one.allow)
                    told[place] += one.caveats
                    peers[place] |= {source, destination} - {name}
                    strikes_tcp |= {place} if protocol == "tcp" else set()
    found: dict[str, list[Finding]] = defaultdict(list)
    for place in sorted(strikes_tcp):
        name, rule = place
        others = sorted(peers[place])
        lost = [pair for pair in losing if name in pair.ends and pair.ends & set(others)]
        lines = [f"{pair.source} → {pair.peer}: {pair.echoes}" for pair in lost]
        found[name].append(
            Finding(
                "firewall-drop",
                f"{name} drops every so many packets between itself and {listed(others)}: {rule}",
                " && ".join(dict.fromkeys(filter(None, commands[place]))),
                tuple(dict.fromkeys([*lines[:4], f"{name}: {rule}", *told[place]]))[:10],
                tuple(others),
            )
        )
    return dict(found)
