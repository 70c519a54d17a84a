"""What a node has no more that it had when the run began: its address, the interface that carries it, the way to a peer."""

from __future__ import annotations

from dataclasses import replace

from runbook.causes.findings import finding_for
from runbook.checks.context import Context
from runbook.checks.network.routing_policy import RouteRefusal, Sent, refusal
from runbook.checks.reach.interfaces import unusable
from runbook.firewall import Evidence
from runbook.model.commands import word
from runbook.model.verdict import Finding


def gone(at: Context, node: str, address: str, peer: str, evidence: Evidence | None) -> Finding | None:
    """Why nothing can leave or arrive at `address` of a node, or get from it to the address `peer`, whatever the rules say."""
    if evidence is None:
        return None
    return _address(at, node, address, evidence) or _route(node, peer, evidence)


def _address(at: Context, node: str, address: str, evidence: Evidence) -> Finding | None:
    before = at.facts(node).get("interfaces", {})
    name = next((name for name, entry in before.items() if address in entry["addresses"]), None)
    if name is None or not evidence.interfaces:
        return None
    now = evidence.interfaces.get(name)
    if now is None:
        return finding_for(
            "interface-missing",
            f"interface {name} of {node}, which carried {address}, is there no more",
            (f"interfaces of {node} now: {', '.join(evidence.interfaces)}",),
            way="lost",
            node=node,
        )
    if now.state == "DOWN":
        entry = {"state": now.state, "flags": list(now.flags), "addresses": list(now.addresses)}
        return unusable(at.inventory.node(node), name, entry, name, (f"when the run began, it carried {address}",))
    if any(address in entry.addresses for entry in evidence.interfaces.values()):
        return None
    length = now.prefixes[0].partition("/")[2] if now.prefixes else "24"
    return finding_for(
        "interface-missing",
        f"{node} has lost its address {address}: {name} now has {', '.join(now.prefixes) or 'none'}",
        (f"when the run began, {name} of {node} had {address}",),
        way="lost-address",
        address=word(address),
        length=length,
        name=word(name),
    )


def smaller(at: Context, node: str, evidence: Evidence | None) -> Finding | None:
    """The MTU of an interface that has shrunk: connections that were open before still send what does not fit any more."""
    for name, entry in at.facts(node).get("interfaces", {}).items():
        now = evidence.interfaces.get(name) if evidence is not None else None
        if now is not None and now.mtu and entry.get("mtu") and now.mtu < entry["mtu"]:
            return finding_for(
                "mtu-blackhole",
                f"the MTU of {name} on {node} is {now.mtu} now; when the run began, it was {entry['mtu']}",
                (f"{node}: {name} mtu {now.mtu}",),
                way="lost-mtu",
                name=word(name),
                mtu=word(entry["mtu"]),
            )
    return None


def _route(node: str, peer: str, evidence: Evidence) -> Finding | None:
    refused = evidence.no_route_to(peer)
    if refused is None:
        return None
    found = refusal(Sent(peer), refused) or RouteRefusal(
        "", f"on {node}: `ip route show table all`; add a route to {peer}, or correct its address", certain=False
    )
    return Finding(
        "no-route",
        f"{node} has no route to {peer}" + (f": {found.why}" if found.why else ""),
        found.fix,
        (f"{node}: ip route get {peer}: {refused['error']}",),
    )


def turned_away(node: str, sent: Sent, what: str, evidence: Evidence | None) -> tuple[Finding, bool] | None:
    """A policy rule by which the node refuses just this to a peer that it has a route to, and whether it surely does."""
    if evidence is None:
        return None
    found = refusal(replace(sent, uid=evidence.facts.get("uid"), marks=evidence.marks), evidence.ways_to(sent.address))
    if found is None or not found.narrow:
        return None
    most_likely = "" if found.certain else "most likely "
    return Finding(
        "no-route",
        f"{node} has no route for {what}: {most_likely}{found.why}",
        found.fix,
        (f"{node}: ip rule: {found.of}", "a rule typed in lasts until the next boot: keep it out of what sets it up"),
    ), found.certain
