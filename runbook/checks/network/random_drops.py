"""Packets that get lost because a rule of one end draws lots for them: no cable is to blame, and nobody has to dial to know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import permutations

from runbook.checks.network.common import ends
from runbook.checks.network.observed import Observations, Pair, version
from runbook.checks.network.rules import rules_of
from runbook.firewall import Explanation, Flow, explain_blocked
from runbook.model.verdict import Finding

ANY_PORT = [(1, 65535)]


def chance_findings(seen: Observations, losing: Iterable[Pair]) -> dict[str, list[Finding]]:
    """By node: its rule that stops some of the packets of these pairs, TCP's among them; nothing where none does."""
    losing = list(losing)
    names = sorted({name for pair in losing for name in pair.ends})
    address = {name: seen.numeric(name) for name in names}
    evidence = rules_of(seen.at, names, {name: [address[n] for n in names if n != name] for name in names})
    drawing = {name for name, one in evidence.items() if one and one.draws_lots}
    losing = [pair for pair in losing if pair.ends & drawing]
    struck: dict[tuple[str, str], list[tuple[str, str, Explanation]]] = defaultdict(list)
    for source, destination in sorted({way for pair in losing for way in permutations(pair.ends)}):
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
                    other = destination if name == source else source
                    struck[name, " or ".join(one.candidates)].append((protocol, other, one))
    found: dict[str, list[Finding]] = defaultdict(list)
    for (name, rule), those in sorted(struck.items()):
        if all(protocol != "tcp" for protocol, _, _ in those):
            continue
        others = sorted({other for _, other, _ in those})
        lost = [pair for pair in losing if name in pair.ends and pair.ends & set(others)]
        told = [f"{pair.source} → {pair.peer}: {pair.echoes}" for pair in lost]
        fix = " && ".join(dict.fromkeys(one.allow for _, _, one in those if one.allow))
        finding = Finding(
            "firewall-drop",
            f"{name} drops some of the packets between {ends('itself', others)}, by count or by chance: {rule}",
            fix
            or f"take that rule out of the firewall of {name}: `sudo nft -a list ruleset; sudo iptables-save` shows it",
            tuple(
                dict.fromkeys([*told[:4], f"{name}: {rule}", *(line for _, _, one in those for line in one.caveats)])
            )[:10],
            tuple(others),
        )
        found[name].append(finding)
    return dict(found)
