"""A packet's way through one node: which base chains it meets, in order, and where it may end.

Facts (nf_tables, netfilter.org's packet flow): what arrives meets ingress, prerouting and input; what the node sends
meets output, postrouting and egress. NAT chains see only the first packet of a connection. A NAT rule that changes the
destination sends the packet elsewhere, and nothing is claimed about what follows; one that changes the source makes the
other end see another sender.
"""

from __future__ import annotations

from dataclasses import dataclass

from runbook.firewall.evidence import Evidence
from runbook.firewall.flow import NEW, UNTRACKED, Flow, Leg, packet
from runbook.firewall.machine import Base, PacketEnd, Walk, walk
from runbook.firewall.truth import Truth

ARRIVING = ("ingress", "prerouting", "input")
LEAVING = ("output", "postrouting", "egress")


@dataclass(frozen=True, slots=True)
class BlockingChain:
    """A base chain that blocks, or may block. `ends` are the places where it does. `by_chance`: some packets, and not others."""

    base: Base
    ends: tuple[PacketEnd, ...]
    certain: bool
    by_chance: bool = False


@dataclass(frozen=True, slots=True)
class Journey:
    interface: str | None
    stops: tuple[BlockingChain, ...]
    last: Walk | None  # the last base chain with rules that was passed, for "this rule accepts it"
    elsewhere: BlockingChain | None = None  # a NAT rule gives the packet another destination
    tracked: Truth = True
    new_source: str = ""  # a NAT rule gives the packet this source address
    translator: BlockingChain | None = None  # that rule

    @property
    def blocked(self) -> Truth:
        if any(stop.certain for stop in self.stops):
            return True
        return None if self.stops or self.elsewhere else False


def travel(evidence: Evidence, flow: Flow, leg: Leg, *, tracked: Truth = True) -> Journey:
    """Walk every base chain that the flow's packet meets on this node, also those behind a blocking one.

    `tracked`: what is known about connection tracking of the request, when this is the way back.
    """
    arriving = leg in ("request-in", "reply-in")
    peer = flow.source if leg in ("request-in", "reply-out") else flow.destination
    given = flow.in_interface if leg in ("request-in", "reply-out") else flow.out_interface
    interface = given or evidence.interface_to(peer)
    now = packet(flow, leg, interface, evidence.has_route_to(peer), tracked=tracked, owner=evidence.owner)
    stops: list[BlockingChain] = []
    last: Walk | None = None
    new_source, translator = "", None
    for base in _on_the_way(evidence.bases(flow.version), ARRIVING if arriving else LEAVING, now.state == NEW):
        if base.for_device and base.devices and interface is not None and interface not in base.devices:
            continue
        result = walk(base, now)
        now = result.after
        if result.blocks is not False:
            sure = result.blocks is True and not (base.for_device and interface not in base.devices)
            stops.append(BlockingChain(base, result.culprits, sure, any(rule.by_chance for rule in result.doubtful)))
        elif base.chains.get(base.chain):
            last = result
        rewritten = tuple(end for end in result.ends if end.rewritten)
        if rewritten and base.hook in ("prerouting", "output"):
            elsewhere = BlockingChain(base, rewritten, len(rewritten) == len(result.ends))
            return Journey(interface, tuple(stops), last, elsewhere, _tracked(now.state))
        if rewritten and len(result.ends) == 1:
            new_source, translator = rewritten[0].new_source, BlockingChain(base, rewritten, True)
    return Journey(interface, tuple(stops), last, None, _tracked(now.state), new_source, translator)


def _tracked(state: int | None) -> Truth:
    return None if state is None else state != UNTRACKED


def _on_the_way(bases: list[Base], hooks: tuple[str, ...], new: bool) -> list[Base]:
    mine = [base for base in bases if base.hook in hooks and (new or base.kind != "nat")]
    return sorted(mine, key=lambda base: hooks.index(base.hook))  # stable: priorities stay in order
