"""Sends ICMP echoes over sockets of its own, in one process for all peers. Python 3.8, standard library.

Only root, processes with CAP_NET_RAW, and users with a group in net.ipv4.ping_group_range may open such sockets.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import time

from runbook.node.event_loop import READ, wait_in_loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from runbook.node.event_loop import Conversation, EventLoop
    from runbook.transport.node_answers import Pinged

ROUND_INTERVAL_S = 0.005  # seconds between two rounds of echoes
SMALL_ECHO = b"runbook!" * 7  # as much as `ping` sends
FULL_SIZE_ECHOES = 5  # how many full-size echoes each peer gets
FIRST_REPLY_DEADLINE_S = 0.35
"""Seconds after which a peer that has answered none of the first echoes gets no more."""
LAST_REPLY_DEADLINE_S = 0.3
"""Seconds for which the last echoes are waited for."""
SENDER_NUMBERS = itertools.count(os.getpid())
"""Ids of senders in this process: sockets of two see each other's replies."""
ICMP_ECHO_TYPES = {socket.AF_INET: (8, 0, socket.IPPROTO_ICMP), socket.AF_INET6: (128, 129, socket.IPPROTO_ICMPV6)}
DONT_FRAGMENT = {socket.AF_INET: (socket.IPPROTO_IP, 10, 2), socket.AF_INET6: (socket.IPPROTO_IPV6, 23, 2)}
"""IP_MTU_DISCOVER, IPV6_MTU_DISCOVER and their value IP_PMTUDISC_DO, for which `socket` has no names (linux/in.h,
in6.h)."""


class Peer:
    """One address, the echoes that were sent to it, and those that came back. It gets small echoes only if `full_bytes`
    is 0."""

    def __init__(self, address: str, full_bytes: int) -> None:
        self.address, self.full_bytes = address, full_bytes
        self.sent: dict[str, dict[int, float]] = {"small": {}, "full": {}}  # times by sequence number
        self.trips: dict[str, list[float]] = {"small": [], "full": []}  # seconds there and back

    def results(self) -> dict[str, Pinged]:
        """By size, what became of the echoes, in `ping`'s form."""
        found: dict[str, Pinged] = {}
        for size, sent in self.sent.items():
            trips = self.trips[size]
            if not sent:
                continue
            found[size] = {
                "code": 0 if trips else 1,
                "raw": "%d packets transmitted, %d received" % (len(sent), len(trips)),
                "sent": len(sent),
                "received": len(trips),
            }
            if trips:
                found[size]["ms"] = round(1000 * sorted(trips)[len(trips) // 2], 3)
        return found


class Echoes:
    """Sends echoes to peers of one address family, and assigns the replies to them."""

    def __init__(self, family: socket.AddressFamily, loop: EventLoop) -> None:
        self.request, self.reply, self.protocol = ICMP_ECHO_TYPES[family]
        self.loop = loop
        self.family = family
        self.own = next(SENDER_NUMBERS) & 0xFFFF
        self.number = 0
        self.waiting: dict[int, tuple[Peer, str]] = {}  # by sequence number: (peer, size)
        self.sockets = {size: self._open(size == "full") for size in ("small", "full")}

    def _open(self, whole: bool) -> socket.socket:
        try:
            sock = socket.socket(self.family, socket.SOCK_RAW, self.protocol)
            self.raw = True
        except OSError:
            sock = socket.socket(self.family, socket.SOCK_DGRAM, self.protocol)
            self.raw = False
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        if whole:
            sock.setsockopt(*DONT_FRAGMENT[self.family])
        return sock

    def run(self, peers: list[Peer], count: int, patience_s: float) -> Conversation:
        """Sends `count` small echoes to each peer, and FULL_SIZE_ECHOES of full size. `patience_s`: how long the last
        replies are waited for."""
        listening = [self.loop.start(self._listen(sock)) for sock in self.sockets.values()]
        begun = self.loop.clock
        for turn in range(count):
            for peer in peers:
                if self.loop.clock - begun < max(FIRST_REPLY_DEADLINE_S, patience_s) or peer.trips["small"]:
                    self._send(peer, "small")
                    if peer.full_bytes and turn < FULL_SIZE_ECHOES:
                        self._send(peer, "full")
            yield from wait_in_loop(ROUND_INTERVAL_S)
        ended = self.loop.clock
        while self.waiting and self.loop.clock - ended < patience_s:
            yield from wait_in_loop(0.01)
        for task, sock in zip(listening, self.sockets.values()):
            self.loop.cancel(task)
            sock.close()

    def _send(self, peer: Peer, size: str) -> None:
        self.number = self.number + 1 & 0xFFFF
        body = SMALL_ECHO if size == "small" else b"r" * peer.full_bytes
        packet = struct.pack("!BBHHH", self.request, 0, 0, self.own, self.number) + body
        if self.family == socket.AF_INET:  # for IPv6 the kernel fills the checksum in
            packet = packet[:2] + struct.pack("!H", internet_checksum(packet)) + packet[4:]
        peer.sent[size][self.number] = time.monotonic()
        try:
            self.sockets[size].sendto(packet, (peer.address, 0))
            self.waiting[self.number] = peer, size
        except OSError:
            pass  # the echo counts as lost, and `ping` says why

    def _listen(self, sock: socket.socket) -> Conversation:
        while True:
            yield (sock,), READ, None
            try:
                packet, where = sock.recvfrom(65536)
            except OSError:
                continue
            if self.raw and self.family == socket.AF_INET:
                packet = packet[(packet[0] & 15) * 4 :]
            if len(packet) < 8:
                continue
            kind, _, _, own, number = struct.unpack_from("!BBHHH", packet)
            if number not in self.waiting or kind != self.reply or (self.raw and own != self.own):
                continue
            peer, size = self.waiting[number]
            if where[0] != peer.address:
                continue
            del self.waiting[number]
            peer.trips[size].append(time.monotonic() - peer.sent[size][number])


def internet_checksum(packet: bytes) -> int:
    """The internet checksum of RFC 1071."""
    if len(packet) % 2:
        packet += b"\0"
    total = int(sum(struct.unpack("!%dH" % (len(packet) // 2), packet)))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def send_echoes(
    loop: EventLoop, addresses: dict[str, int], count: int, patience_s: float = LAST_REPLY_DEADLINE_S
) -> dict[str, dict[str, Pinged]]:
    """By address, what became of `count` small echoes and some of full size. Empty where this process may open no such
    sockets. `addresses`: by address, the bytes of data in a full-size echo, or 0 for none. `patience_s`: how long the
    last replies are waited for."""
    peers = [Peer(address, size) for address, size in addresses.items()]
    over: list[Any] = []
    started: list[Peer] = []
    for family in ICMP_ECHO_TYPES:
        those = [peer for peer in peers if (":" in peer.address) == (family == socket.AF_INET6)]
        if not those:
            continue
        try:
            loop.start(Echoes(family, loop).run(those, count, patience_s), over.append)
        except OSError:
            over.append(None)  # not permitted
        else:
            started += those
    while len(over) < len({":" in peer.address for peer in peers}):
        loop.turn()
    return {peer.address: peer.results() for peer in started}
