"""The traffic a question is about: one TCP (or UDP) flow between two nodes, and the packets of it that a node sees."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace
from typing import Literal

from runbook.firewall.truth import NumberRange, Truth

Leg = Literal["request-out", "request-in", "reply-out", "reply-in"]
"""Where a packet is looked at: the source's output, the destination's input, and the way back."""

EPHEMERAL = (32768, 60999)  # net.ipv4.ip_local_port_range as Linux ships it
NEW, ESTABLISHED, RELATED, INVALID, UNTRACKED = 8, 2, 4, 1, 64  # the kernel's bits of `ct state`
FIN, SYN, RST, PSH, ACK, URG, ECN, CWR = 1, 2, 4, 8, 16, 32, 64, 128


@dataclass(frozen=True, slots=True)
class Flow:
    """`source` opens a connection to `destination`:`port`; both are addresses, not names.

    `in_interface` is where the destination receives it, `out_interface` where the source sends it; None lets the
    routes in the evidence tell. `state` is `new` (the first packet, and the answer to it) or `established` (data, for
    which `packet_length` matters: the whole IP packet in bytes). `source_ports` is where the client's port lies. `ports`
    is what people are told instead of the one port, where it speaks for several: `29500-29510, 41927`.
    """

    source: str
    destination: str
    port: int
    protocol: str = "tcp"
    in_interface: str | None = None
    out_interface: str | None = None
    state: Literal["new", "established"] = "new"
    packet_length: int | None = None
    source_ports: tuple[int, int] = EPHEMERAL
    ports: str = ""

    @property
    def what(self) -> str:
        return f"{self.protocol.upper()} {self.ports or self.port}"

    @property
    def version(self) -> Literal[4, 6]:
        return ipaddress.ip_address(self.destination).version

    def between(self, source: str, destination: str, port: int) -> Flow:
        return replace(self, source=source, destination=destination, port=port)


@dataclass(frozen=True, slots=True)
class Packet:
    """One packet at one node, as the rules see it. None: not known. An interface `""`: there is none at this hook."""

    version: Literal[4, 6]
    source: int
    destination: int
    protocol: str
    source_port: NumberRange
    destination_port: NumberRange
    flags: int | None  # TCP flags; None for other protocols
    length: NumberRange
    state: int | None  # bit of `ct state`
    reply: bool
    in_interface: str | None
    out_interface: str | None
    arriving: bool  # at the node it is addressed to; False when the node sends it
    has_route_back: Truth = None  # is there a route to its source through the interface it came in by?
    mark: int | None = 0
    ct_mark: int | None = 0
    uid: int | None = None  # whose socket sends it; None where no socket is at hand
    gid: int | None = None

    @property
    def family(self) -> str:
        return "ip" if self.version == 4 else "ip6"

    @property
    def tracked(self) -> bool:
        """Is it known to belong to a connection that the kernel tracks?"""
        return self.state in (NEW, ESTABLISHED, RELATED)

    def before_tracking(self) -> Packet:
        """As a chain sees it that runs before connection tracking: `invalid`, unless a rule said notrack."""
        return self if self.state == UNTRACKED else replace(self, state=INVALID, ct_mark=None)


def packet(
    flow: Flow,
    leg: Leg,
    interface: str | None,
    has_route_back: Truth = None,
    *,
    tracked: Truth = True,
    owner: tuple[int | None, int | None] = (None, None),
) -> Packet:
    """The packet of `flow` that a node meets on `leg`, through `interface`.

    `tracked`: False when a rule took the flow out of connection tracking, None when that cannot be told.
    `owner`: user and group of the job's processes on this node.
    """
    reply = leg in ("reply-out", "reply-in")
    arriving = leg in ("request-in", "reply-in")
    source, destination = int(ipaddress.ip_address(flow.source)), int(ipaddress.ip_address(flow.destination))
    client, server = NumberRange(*flow.source_ports), NumberRange.exactly(flow.port)
    data = flow.state == "established"
    state = ESTABLISHED if data or reply else NEW
    sent = not arriving and (data or not reply)  # the kernel itself answers a SYN: no process owns that
    return Packet(
        version=flow.version,
        source=destination if reply else source,
        destination=source if reply else destination,
        protocol=flow.protocol,
        source_port=server if reply else client,
        destination_port=client if reply else server,
        flags=None if flow.protocol != "tcp" else ACK if data else SYN | ACK if reply else SYN,
        length=_length(flow, data),
        state=state if tracked else None,
        reply=reply,
        in_interface=interface if arriving else "",
        out_interface="" if arriving else interface,
        arriving=arriving,
        has_route_back=has_route_back,
        uid=owner[0] if sent else None,
        gid=owner[1] if sent else None,
    )


def _length(flow: Flow, data: bool) -> NumberRange:
    if flow.packet_length is not None:
        return NumberRange.exactly(flow.packet_length)
    headers = 40 if flow.version == 4 else 60
    return (
        NumberRange(headers, 65535) if data else NumberRange(headers, headers + 40)
    )  # a SYN carries at most 40 bytes of options
