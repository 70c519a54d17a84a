"""nft's `arp` family: rules by which a node keeps from asking or telling who has an address."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from runbook.firewall.evidence import Evidence
from runbook.firewall.flow import Packet
from runbook.firewall.machine import walk
from runbook.firewall.truth import NumberRange
from runbook.model.commands import NFT_BY_HAND, nft_words

NO_PORT = NumberRange(0, 0)


@dataclass(frozen=True, slots=True)
class ArpStop:
    """`says`: the rule and where it is; `certain`: whether it surely matches."""

    says: str
    remedy: str
    certain: bool


def arp_stop(evidence: Evidence, interface: str, address: str, peer: str) -> ArpStop | None:
    """The rule that stops ARP between `address` of this node and `peer`, both IPv4: a certain one before one that may."""
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
        result = walk(base, passing)
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
        remedy = f"sudo nft {where} {match}" if where else NFT_BY_HAND
        found.append(ArpStop(says, remedy, result.blocks is True))
    return max(found, key=lambda stop: stop.certain, default=None)
