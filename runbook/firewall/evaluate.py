"""Walks a packet through a ruleset as the kernel does, for nftables and iptables alike: three-valued logic, flows and
their packets, and the walk itself.

Facts: nf_tables and x_tables give each base chain its own verdict. `accept` ends only its own base chain, and the
packet goes on to the next base chain by priority; `drop` and `reject` end everything. A jump comes back behind the rule
that jumped, a goto does not: from a base chain it ends in the policy, as `return` there does.

A match that cannot be decided splits the walk: both ways are followed, and `Walk.ends` holds every place where the
packet may have ended. Anything is known only if all these ends agree. The rule everywhere in this package: anything not
understood is None, and None is never turned into a claim.
"""

from __future__ import annotations

import ipaddress
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

# --- True, False, and None for undecided; numbers that are only known as a span ---------------------------------------

Truth = bool | None


def truth_and(a: Truth, b: Truth) -> Truth:
    """Whether a and b hold."""
    if a is False or b is False:
        return False
    return None if a is None or b is None else True


def truth_or(a: Truth, b: Truth) -> Truth:
    """Whether a or b holds."""
    if a is True or b is True:
        return True
    return None if a is None or b is None else False


def truth_any(truths: Iterable[Truth]) -> Truth:
    """Whether any of them holds; reads no more of them than needed."""
    found: Truth = False
    for truth in truths:
        if truth:
            return True
        found = truth_or(found, truth)
    return found


def truth_inverted(a: Truth, inverted: bool = True) -> Truth:
    """The opposite of a if `inverted`, else a."""
    return a if a is None or not inverted else not a


@dataclass(frozen=True, slots=True)
class NumberRange:
    """A number that is known exactly (`low == high`), or only to lie in a closed interval, such as a client's port."""

    low: int
    high: int

    @classmethod
    def exactly(cls, number: int) -> NumberRange:
        return cls(number, number)

    @classmethod
    def of_network(cls, text: str) -> NumberRange | None:
        """The addresses of a network such as `10.0.0.0/8`, or one address, as numbers; None for any other text."""
        try:
            network = ipaddress.ip_network(text, strict=False)
        except ValueError:
            return None
        return cls(int(network.network_address), int(network.broadcast_address))

    @property
    def exact(self) -> int | None:
        return self.low if self.low == self.high else None

    def within(self, other: NumberRange) -> Truth:
        """Whether this number is in `other`; None if undecided, or for a reversed interval, which nft prints for merged
        rules."""
        if other.low > other.high:
            return None
        if other.low <= self.low and self.high <= other.high:
            return True
        if self.high < other.low or other.high < self.low:
            return False
        return None

    def below(self, number: int) -> Truth:
        """Whether this number is less than `number`; None if undecided."""
        if self.high < number:
            return True
        return False if self.low >= number else None


NumberSpans = tuple[tuple[int, int], ...]
"""Ranges of numbers, both ends included."""


def merge_spans(spans: Iterable[tuple[int, int]]) -> NumberSpans:
    """The spans sorted, with overlapping and adjacent ones merged."""
    found: list[tuple[int, int]] = []
    for low, high in sorted((min(span), max(span)) for span in spans):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return tuple(found)


def is_in_spans(number: int, spans: NumberSpans) -> bool:
    """Whether a number lies in one of the spans, which must be `merged`. Binary search: blocklists have 100,000
    spans."""
    at = bisect_right(spans, (number, 1 << 129)) - 1
    return at >= 0 and spans[at][1] >= number


# --- a flow that is asked about, and its packets as a node sees them ------------------------------------------------

Leg = Literal["request-out", "request-in", "reply-out", "reply-in"]
"""Where a packet of a connection is judged: leaving its source, arriving at its destination, and the same for the
answer: leaving the destination, arriving at the source."""

DEFAULT_EPHEMERAL_PORTS = (32768, 60999)  # net.ipv4.ip_local_port_range as Linux ships it
CT_STATES = {"invalid": 1, "established": 2, "related": 4, "new": 8, "untracked": 64}  # the kernel's bits of `ct state`
CT_NEW, CT_ESTABLISHED, CT_UNTRACKED = CT_STATES["new"], CT_STATES["established"], CT_STATES["untracked"]
TCP_FLAGS = {"fin": 1, "syn": 2, "rst": 4, "psh": 8, "ack": 16, "urg": 32, "ecn": 64, "cwr": 128}
SYN, PSH, ACK = TCP_FLAGS["syn"], TCP_FLAGS["psh"], TCP_FLAGS["ack"]


@dataclass(frozen=True, slots=True)
class Flow:
    """A connection that `source` opens to `destination`:`port`; both are addresses, not names.

    The destination receives it through `in_interface`, the source sends it through `out_interface`; None: by the routes
    in the evidence. `state` is `new` (the first packet, and the answer to it) or `established` (data, for which
    `packet_length` matters: the whole IP packet in bytes). The client's port lies in the range `source_ports`. If the
    flow stands for several ports, messages show `ports` instead of `port`: `29500-29510, 41927`.
    """

    source: str
    destination: str
    port: int
    protocol: str = "tcp"
    in_interface: str | None = None
    out_interface: str | None = None
    state: Literal["new", "established"] = "new"
    packet_length: int | None = None
    source_ports: tuple[int, int] = DEFAULT_EPHEMERAL_PORTS
    ports: str = ""

    @property
    def what(self) -> str:
        return f"{self.protocol.upper()} {self.ports or self.port}"

    @property
    def version(self) -> Literal[4, 6]:
        return 6 if ":" in self.destination else 4

    def peer(self, leg: Leg) -> str:
        """The address of the other end, as seen from the node on which the leg is judged."""
        return self.source if leg in ("request-in", "reply-out") else self.destination


@dataclass(frozen=True, slots=True)
class Packet:
    """One packet at one node, as rules see it. None: not known. An interface "": this hook has none."""

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
    arriving: bool  # True at the node it is addressed to; False at the node that sends it
    has_route_back: Truth = None  # whether a route leads to its source through the interface by which it came in
    mark: int | None = 0
    ct_mark: int | None = 0
    uid: int | None = None  # the user of the socket that sends it; None if no socket does, or it is not known
    gid: int | None = None  # the same for the group

    @property
    def family(self) -> str:
        return "ip" if self.version == 4 else "ip6"

    @property
    def tracked(self) -> bool:
        """Whether the packet is known to belong to a connection that the kernel tracks."""
        return self.state in (CT_NEW, CT_ESTABLISHED, CT_STATES["related"])

    def before_tracking(self) -> Packet:
        """The packet as a chain sees it that runs before connection tracking: its state is `invalid`, or `untracked` if
        a rule said notrack."""
        return self if self.state == CT_UNTRACKED else replace(self, state=CT_STATES["invalid"], ct_mark=None)


def packet_on_leg(
    flow: Flow,
    leg: Leg,
    interface: str | None,
    has_route_back: Truth = None,
    *,
    tracked: Truth = True,
    owner: tuple[int | None, int | None] = (None, None),
) -> Packet:
    """The packet of `flow` that a node sees on `leg`, through `interface`.

    `tracked`: False if a rule took the flow out of connection tracking, None if that is unknown. `owner`: user and
    group of the job's processes on this node.
    """
    reply = leg in ("reply-out", "reply-in")
    arriving = leg in ("request-in", "reply-in")
    source, destination = int(ipaddress.ip_address(flow.source)), int(ipaddress.ip_address(flow.destination))
    client, server = NumberRange(*flow.source_ports), NumberRange.exactly(flow.port)
    data = flow.state == "established"
    state = CT_ESTABLISHED if data or reply else CT_NEW
    sent = not arriving and (data or not reply)  # the kernel itself answers a SYN: no process owns that packet
    return Packet(
        version=flow.version,
        source=destination if reply else source,
        destination=source if reply else destination,
        protocol=flow.protocol,
        source_port=server if reply else client,
        destination_port=client if reply else server,
        flags=None if flow.protocol != "tcp" else ACK if data else SYN | ACK if reply else SYN,
        length=_packet_length(flow, data),
        state=state if tracked else None,
        reply=reply,
        in_interface=interface if arriving else "",
        out_interface="" if arriving else interface,
        arriving=arriving,
        has_route_back=has_route_back,
        uid=owner[0] if sent else None,
        gid=owner[1] if sent else None,
    )


def _packet_length(flow: Flow, data: bool) -> NumberRange:
    """The bytes of the flow's IP packet; `data`: it is no SYN."""
    if flow.packet_length is not None:
        return NumberRange.exactly(flow.packet_length)
    headers = 40 if flow.version == 4 else 60
    return (
        NumberRange(headers, 65535) if data else NumberRange(headers, headers + 40)
    )  # a SYN carries at most 40 bytes of options


# --- rules, chains and the walk -------------------------------------------------------------------------------------

Engine = Literal["nft", "iptables", "ip6tables", "iptables-legacy", "ip6tables-legacy"]
Action = Literal["accept", "drop", "reject-rst", "reject-icmp", "unknown"]
VerdictKind = Literal[
    "accept", "drop", "reject-rst", "reject-icmp", "unknown", "rewrite", "jump", "goto", "return", "continue"
]
PacketTest = Callable[[Packet], Truth]

BLOCKING_ACTIONS: frozenset[str] = frozenset({"drop", "reject-rst", "reject-icmp"})
CONNTRACK_PRIORITY = -200
"""The priority at which connection tracking itself runs."""
MAX_JUMP_DEPTH = 64  # nested jumps; the kernel refuses more, and a ruleset that jumps in circles must not run for ever
MAX_COMPARISONS = 200_000
"""The most rules and elements of sets that one packet is compared with in one base chain; beyond them the result is
unknown. Chains that each jump to the next one twice make 2^64 ways."""


@dataclass(frozen=True, slots=True)
class Match:
    """A condition of a rule; `cost`: with how many elements of a set it compares a packet."""

    test: PacketTest
    cost: int = 0


@dataclass(frozen=True, slots=True)
class RuleVerdict:
    """A decision of a rule. `unknown`: something else decides, such as a queue, a proxy or an unknown target. `target`
    is the chain of a jump or goto, or the new source address of a `rewrite` if the rule gives one."""

    kind: VerdictKind
    target: str = ""


@dataclass(frozen=True, slots=True)
class VerdictMap:
    """A verdict map. `options(packet)` lists the verdicts that the packet may get, each with whether it applies; a
    certain one (True) is the last."""

    options: Callable[[Packet], list[tuple[Truth, RuleVerdict]]]
    cost: int = 0


@dataclass(frozen=True, slots=True)
class StateChange:
    """A step that changes a packet for later rules: its `mark`, `ct_mark` or `state` (notrack). A `value` of None: to
    something unknown."""

    what: Literal["mark", "ct_mark", "state"]
    value: int | None


RuleStep = Match | RuleVerdict | VerdictMap | StateChange


@dataclass(frozen=True, slots=True)
class FilterRule:
    """A rule of a chain. `index` counts from 0 within the chain; `handle` is nft's; `text` is the rule as an
    administrator sees it. `by_chance`: it matches only every n-th packet, or each with some probability."""

    chain: str
    index: int
    text: str
    steps: tuple[RuleStep, ...]
    handle: int | None = None
    by_chance: bool = False


@dataclass(frozen=True, slots=True)
class Base:
    """A base chain: the kernel itself calls it at a hook. `chains` are all chains of its table, itself included."""

    engine: Engine
    family: str
    table: str
    chain: str
    hook: str
    priority: int
    policy: Action
    chains: Mapping[str, tuple[FilterRule, ...]] = field(repr=False)
    kind: str = "filter"  # filter | nat | route
    devices: tuple[str, ...] = ()  # of an ingress or egress chain; empty if the listing does not say
    order: int = 0  # among base chains of equal priority the lower one comes first

    @property
    def for_device(self) -> bool:
        return self.hook in ("ingress", "egress")


@dataclass(frozen=True, slots=True)
class PacketEnd:
    """A place where a packet may end. `rule`: the rule that decides; None: the policy does, and `left_by` is the base
    chain's rule, if any, that led to the policy.

    `before`: the chains that the packet entered on the way, in order. `rewritten`: a NAT rule decides.
    """

    action: Action
    rule: FilterRule | None
    left_by: FilterRule | None = None
    before: tuple[str, ...] = ()
    rewritten: bool = False
    new_source: str = ""


@dataclass(frozen=True, slots=True)
class BlockingChain:
    """A base chain that blocks a packet (`certain`), or may block it, at the places `ends`. `by_chance`: it blocks some
    packets and lets others pass."""

    base: Base
    ends: tuple[PacketEnd, ...]
    certain: bool
    by_chance: bool = False


@dataclass(frozen=True, slots=True)
class Walk:
    """The result of a packet's walk through one base chain."""

    base: Base
    ends: tuple[PacketEnd, ...]
    after: Packet  # the packet as the next base chain sees it
    doubtful: tuple[FilterRule, ...]  # rules whose match could not be decided
    steps: int  # rules and elements of sets that the packet was compared with

    @property
    def blocks(self) -> Truth:
        """True: the base chain blocks the packet, whatever the undecided matches are. None: it may block it."""
        blocked = [end.action in BLOCKING_ACTIONS for end in self.ends]
        if all(blocked):
            return True
        if any(blocked) or any(end.action == "unknown" for end in self.ends):
            return None
        return False

    @property
    def culprits(self) -> tuple[PacketEnd, ...]:
        """The ends at which the packet is blocked or its fate is unknown."""
        return tuple(end for end in self.ends if end.action in BLOCKING_ACTIONS or end.action == "unknown")


def walk_chain(base: Base, packet: Packet) -> Walk:
    """The walk of `packet` through one base chain.

    Connection tracking itself runs at priority -200 of prerouting and output: chains before it see no state.
    """
    early = base.for_device or (base.hook in ("prerouting", "output") and base.priority <= CONNTRACK_PRIORITY)
    seen = packet.before_tracking() if early else packet
    result = _Walker(base, seen).result()
    after = replace(packet, mark=result.after.mark)
    if not early:
        after = replace(after, ct_mark=result.after.ct_mark)
    if result.after.state != seen.state:
        after = replace(after, state=result.after.state)
    return replace(result, after=after)


class _Walker:
    """One walk through one base chain. The methods answer under a condition: if the packet comes here, does it stay in
    the chain? `sure`: whether it certainly comes here."""

    def __init__(self, base: Base, packet: Packet) -> None:
        self._base = base
        self._packet = packet
        self._ends: list[PacketEnd] = []
        self._doubtful: list[FilterRule] = []
        self._entered: list[str] = []
        self._steps = 0
        self._leaving: list[FilterRule | None] = []  # rules that led from the base chain to its policy; None: its end

    def result(self) -> Walk:
        if self._chain(self._base.chain, sure=True, depth=0) is not False:
            for rule in self._leaving:
                self._end(self._base.policy, None, rule)
        return Walk(self._base, tuple(self._ends), self._packet, tuple(self._doubtful), self._steps)

    def _end(
        self,
        action: Action,
        rule: FilterRule | None,
        left_by: FilterRule | None = None,
        *,
        rewritten: bool = False,
        new_source: str = "",
    ) -> None:
        self._steps += len(self._entered) // 16  # each end remembers all entered chains, which costs time as well
        self._ends.append(PacketEnd(action, rule, left_by, tuple(self._entered), rewritten, new_source))

    def _chain(self, name: str, sure: bool, depth: int) -> Truth:
        """Whether a packet that enters this chain comes back from it, at its end or by `return`."""
        self._entered.append(name)
        rules = self._base.chains.get(name)
        if rules is None or depth > MAX_JUMP_DEPTH:
            self._end("unknown", None)
            return False
        ended = len(self._ends)
        here: Truth = True
        returned: Truth = False
        for rule in rules:
            self._steps += 1
            if self._steps > MAX_COMPARISONS:
                self._end("unknown", None)
                return False
            stays, leaves = self._rule(rule, sure and here is True, depth)
            if leaves is not False and depth == 0:
                self._leaving.append(rule)
            returned = truth_or(returned, truth_and(here, leaves))
            here = truth_and(here, stays)
            if here is False:
                break
        if here is not False and depth == 0:
            self._leaving.append(None)
        return True if len(self._ends) == ended else truth_or(returned, here)

    def _rule(self, rule: FilterRule, sure: bool, depth: int) -> tuple[Truth, Truth]:
        """Two answers: whether the packet stays in this chain, and whether it goes back to the calling chain, by
        `return` or after a `goto`."""
        matched: Truth = True
        for step in rule.steps:
            if isinstance(step, Match):
                self._steps += step.cost
                matched = truth_and(matched, step.test(self._packet))
                if matched is False:
                    return True, False
            elif isinstance(step, StateChange):
                self._change(step, sure and matched is True)
            else:
                self._steps += step.cost if isinstance(step, VerdictMap) else 0
                options = step.options(self._packet) if isinstance(step, VerdictMap) else [(True, step)]
                return self._decide(rule, [(truth_and(matched, truth), v) for truth, v in options], sure, depth)
        return True, False

    def _decide(
        self, rule: FilterRule, options: list[tuple[Truth, RuleVerdict]], sure: bool, depth: int
    ) -> tuple[Truth, Truth]:
        certain = any(truth for truth, _ in options)
        if options and not (certain and len(options) == 1):
            self._doubtful.append(rule)
        ways = [self._verdict(rule, verdict, sure and certain and len(options) == 1, depth) for _, verdict in options]
        if not certain:
            ways.append((True, False))  # perhaps no option applies, and the packet goes on to the next rule
        return _unanimous_answer([stays for stays, _ in ways]), _unanimous_answer([leaves for _, leaves in ways])

    def _verdict(self, rule: FilterRule, verdict: RuleVerdict, sure: bool, depth: int) -> tuple[Truth, Truth]:
        kind = verdict.kind
        if kind == "continue":
            return True, False
        if kind == "return":
            return False, True
        if kind == "jump":
            return self._chain(verdict.target, sure, depth + 1), False
        if kind == "goto":
            return False, self._chain(verdict.target, sure, depth + 1)
        action: Action = "accept" if kind == "rewrite" else kind
        new_source = verdict.target if kind == "rewrite" else ""
        self._end(action, rule, rewritten=kind == "rewrite", new_source=new_source)
        return False, False

    def _change(self, change: StateChange, sure: bool) -> None:
        old = getattr(self._packet, change.what)
        value = change.value if sure or old == change.value else None
        if change.what == "mark":
            self._packet = replace(self._packet, mark=value)
        elif change.what == "ct_mark":
            self._packet = replace(self._packet, ct_mark=value)
        else:
            self._packet = replace(self._packet, state=value)


def _unanimous_answer(answers: list[Truth]) -> Truth:
    """The answer on which all ways agree; None if they differ."""
    return answers[0] if all(answer == answers[0] for answer in answers) else None


NOTRACK = StateChange("state", CT_UNTRACKED)


def normal_address(text: object) -> str:
    """The IP address that the text is, in its usual spelling; empty if it is none."""
    try:
        return str(ipaddress.ip_address(text)) if isinstance(text, str) else ""
    except ValueError:
        return ""
