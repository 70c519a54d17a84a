"""Reads the text of `iptables-save` (or `iptables -S`) and `ipset save` as base chains to walk.

Contract: iptables(8), iptables-extensions(8), ipset(8). An option or target that is not listed here is unknown. Only
plain sets of addresses or networks are read (`hash:ip`, `hash:net`). The answer is unknown for every other kind, for a
mask over a set's addresses, for entries with `nomatch`, and for a set that is not listed.
Priorities of the built-in tables are the kernel's (linux/netfilter_ipv4.h): raw, mangle, nat, filter, security.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

from runbook.firewall.evaluate import (
    ACK,
    CT_STATES,
    NOTRACK,
    PSH,
    TCP_FLAGS,
    Base,
    Engine,
    FilterRule,
    Match,
    NumberRange,
    NumberSpans,
    Packet,
    PacketTest,
    RuleStep,
    RuleVerdict,
    StateChange,
    Truth,
    is_in_spans,
    merge_spans,
    normal_address,
    truth_and,
    truth_any,
    truth_inverted,
)

# --- ipset ----------------------------------------------------------------------------------------------------------

PLAIN_SET_TYPES = frozenset({"hash:ip", "hash:net"})


@dataclass
class IpSet:
    """A set of `ipset save`. `plain`: all of its entries are in `spans`; otherwise its answer is unknown."""

    plain: bool
    spans: list[tuple[int, int]] = field(default_factory=list)

    @cached_property
    def _merged(self) -> NumberSpans:
        return merge_spans(self.spans)

    def holds(self, address: int) -> bool:
        """Whether the set holds an address, given as a number. Only for a set that is read to its end: later spans do
        not count."""
        return is_in_spans(address, self._merged)


def parse_ipset_save(text: str) -> dict[str, IpSet]:
    """The sets in the text of `ipset save`, by name."""
    sets: dict[str, IpSet] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 3 and words[0] == "create":
            sets[words[1]] = IpSet(words[2] in PLAIN_SET_TYPES and not {"netmask", "bitmask"} & set(words))
        elif len(words) >= 3 and words[0] == "add" and words[1] in sets:
            entry = NumberRange.of_network(words[2])
            if entry is None or "nomatch" in words:
                sets[words[1]].plain = False
            else:
                sets[words[1]].spans.append((entry.low, entry.high))
    return sets


def set_test(words: list[str], sets: Mapping[str, IpSet]) -> PacketTest:
    """The test of `--match-set NAME src|dst`."""
    name, side = [*words, "", ""][:2]
    found = sets.get(name)

    def test(packet: Packet) -> Truth:
        if found is None or not found.plain or side not in ("src", "dst"):
            return None
        return found.holds(packet.source if side == "src" else packet.destination)

    return test


# --- matches as tests on a packet -----------------------------------------------------------------------------------

NO_SETS: Mapping[str, IpSet] = {}
NAT_STATES = ("DNAT", "SNAT")  # a flow that NAT changes here is not followed this far
PROTOCOL_NAMES = {"6": "tcp", "17": "udp", "1": "icmp", "0": "all", "58": "ipv6-icmp", "icmpv6": "ipv6-icmp"}
TestMaker = Callable[[list[str]], PacketTest]
"""Makes a test of the words behind an option. Raises ValueError or IndexError for words of an unknown form."""


def undecided_test(_: Packet) -> Truth:
    return None


def address_test(end: str, words: list[str]) -> PacketTest:
    """The test of `-s` or `-d`; `end`: source or destination."""
    networks = [NumberRange.of_network(word) for word in words[0].split(",")]  # None: a mask with holes

    def test(packet: Packet) -> Truth:
        here = NumberRange.exactly(packet.source if end == "source" else packet.destination)
        return truth_any(None if network is None else here.within(network) for network in networks)

    return test


def address_range_test(end: str, words: list[str]) -> PacketTest:
    """The test of `--src-range` or `--dst-range`."""
    low, _, high = words[0].partition("-")
    wanted = NumberRange(int(ipaddress.ip_address(low)), int(ipaddress.ip_address(high or low)))
    return lambda packet: NumberRange.exactly(packet.source if end == "source" else packet.destination).within(wanted)


def protocol_test(words: list[str]) -> PacketTest:
    """The test of `-p` or `--ctproto`."""
    wanted = PROTOCOL_NAMES.get(words[0], words[0])
    return lambda packet: wanted in ("all", packet.protocol)


def interface_test(side: str, words: list[str]) -> PacketTest:
    """The test of `-i` or `-o`; a trailing `+` is iptables' wildcard."""
    pattern = words[0]

    def test(packet: Packet) -> Truth:
        name = packet.in_interface if side == "in" else packet.out_interface
        if name is None:
            return True if pattern == "+" else None
        return name.startswith(pattern[:-1]) if pattern.endswith("+") else name == pattern

    return test


def ports_test(sides: str, words: list[str]) -> PacketTest:
    """The test of a port option: `80`, `1:5`, or multiport's `80,1:5`. `sides`: source, destination, or both (either
    port may match)."""
    spans = [_parsed_range(part) for part in words[0].split(",")]

    def test(packet: Packet) -> Truth:
        here = [packet.source_port] * (sides != "destination") + [packet.destination_port] * (sides != "source")
        return truth_any(None if wanted is None else port.within(wanted) for port in here for wanted in spans)

    return test


def _parsed_range(text: str) -> NumberRange | None:
    low, colon, high = text.partition(":")
    try:
        return NumberRange(int(low or 0), int(high or 65535) if colon else int(low))
    except ValueError:
        return None  # a name: iptables-save prints numbers


def state_test(words: list[str]) -> PacketTest:
    """The test of `--ctstate` or `--state`."""
    mask = 0
    other = False
    for word in words[0].split(","):
        mask |= CT_STATES.get(word.lower(), 0)
        other = other or (word.lower() not in CT_STATES and word not in NAT_STATES)

    def test(packet: Packet) -> Truth:
        if packet.state is None:
            return None
        return True if packet.state & mask else (None if other else False)

    return test


def direction_test(words: list[str]) -> PacketTest:
    """The test of `--ctdir`."""
    return lambda packet: (words[0].upper() == "REPLY") is packet.reply if packet.tracked else None


def tcp_flags_test(words: list[str]) -> PacketTest:
    """The test of `--tcp-flags MASK WANTED`; undecided where only some segments of data match."""
    mask, wanted = (_flag_bits(word) for word in words[:2])

    def test(packet: Packet) -> Truth:
        if packet.flags is None or mask is None or wanted is None:
            return None
        holds = packet.flags & mask == wanted
        pushed = (packet.flags | PSH) & mask == wanted  # some segments of data have PSH
        return holds if packet.flags != ACK or holds == pushed else None

    return test


def _flag_bits(word: str) -> int | None:
    """The bits of `SYN,ACK`, `ALL` or `NONE`; None for an unknown flag."""
    if word == "NONE":
        return 0
    if word == "ALL":
        return 0x3F
    mask = 0
    for name in word.lower().split(","):
        if name not in TCP_FLAGS:
            return None
        mask |= TCP_FLAGS[name]
    return mask


def length_test(words: list[str]) -> PacketTest:
    """The test of `--length`."""
    wanted = _parsed_range(words[0])
    return lambda packet: None if wanted is None else packet.length.within(wanted)


def mark_test(which: str, words: list[str]) -> PacketTest:
    """The test of `--mark VALUE[/MASK]`; `which`: `mark` for a packet's mark, `ct_mark` for its connection's."""
    value, _, mask = words[0].partition("/")
    wanted, bits = int(value, 0), int(mask, 0) if mask else 0xFFFFFFFF

    def test(packet: Packet) -> Truth:
        here = packet.mark if which == "mark" else packet.ct_mark
        return None if here is None else here & bits == wanted

    return test


def owner_test(which: str, words: list[str]) -> PacketTest:
    """The test of a socket's owner, `1000` or `1000-1999`; only a packet that a process sends has one."""
    wanted = _parsed_range(words[0].replace("-", ":"))

    def test(packet: Packet) -> Truth:
        number = packet.uid if which == "user" else packet.gid
        return None if number is None or wanted is None else NumberRange.exactly(number).within(wanted)

    return test


def address_type_test(end: str, words: list[str]) -> PacketTest:
    """The test of the type of an address. Known is that an arriving packet is addressed to this node, that a leaving
    packet comes from it, and that both are unicast."""
    types = words[0].split(",")

    def test(packet: Packet) -> Truth:
        if packet.arriving == (end == "destination"):
            return "LOCAL" in types
        return None if "UNICAST" in types or "LOCAL" in types else False

    return test


def reverse_path_test(packet: Packet) -> Truth:
    """The test of `rpfilter`: a route leads to the packet's source through the interface by which it came in."""
    return packet.has_route_back


def any_path_back_test(packet: Packet) -> Truth:
    """The test of `rpfilter --loose`: a route leads to the packet's source through any interface."""
    return packet.has_route_back or None


MATCH_OPTIONS: Mapping[str, tuple[int, TestMaker]] = {
    "-s": (1, partial(address_test, "source")),
    "-d": (1, partial(address_test, "destination")),
    "--src-range": (1, partial(address_range_test, "source")),
    "--dst-range": (1, partial(address_range_test, "destination")),
    "-p": (1, protocol_test),
    "-i": (1, partial(interface_test, "in")),
    "-o": (1, partial(interface_test, "out")),
    "-f": (0, lambda _: lambda _: False),
    "--dport": (1, partial(ports_test, "destination")),
    "--sport": (1, partial(ports_test, "source")),
    "--dports": (1, partial(ports_test, "destination")),
    "--sports": (1, partial(ports_test, "source")),
    "--ports": (1, partial(ports_test, "both")),
    "--tcp-flags": (2, tcp_flags_test),
    "--syn": (0, lambda _: tcp_flags_test(["FIN,SYN,RST,ACK", "SYN"])),
    "--ctstate": (1, state_test),
    "--state": (1, state_test),
    "--ctdir": (1, direction_test),
    "--ctproto": (1, protocol_test),
    "--length": (1, length_test),
    "--mark": (1, partial(mark_test, "mark")),
    "--src-type": (1, partial(address_type_test, "source")),
    "--dst-type": (1, partial(address_type_test, "destination")),
    "--pkt-type": (1, lambda words: lambda packet: words[0] in ("unicast", "host") if packet.arriving else None),
    "--uid-owner": (1, partial(owner_test, "user")),
    "--gid-owner": (1, partial(owner_test, "group")),
    "--comment": (1, lambda _: lambda _: True),
    "--validmark": (0, lambda _: lambda _: True),
    "--loose": (0, lambda _: lambda _: True),
}
"""By an option, how many words it takes, and the function that makes a test of them."""


def match_test(
    options: list[tuple[str, bool, list[str]]], modules: list[str], sets: Mapping[str, IpSet] = NO_SETS
) -> PacketTest:
    """All the options of one rule, each (name, inverted, words), as one test."""
    tests: list[tuple[PacketTest, bool]] = []
    for name, inverted, words in options:
        if name == "--mark" and "connmark" in modules:
            tests.append((mark_test("ct_mark", words) if "mark" not in modules else undecided_test, inverted))
        elif name in MATCH_OPTIONS and len(words) == MATCH_OPTIONS[name][0]:
            tests.append((MATCH_OPTIONS[name][1](words), inverted))
        elif name == "--match-set" and len(words) == 2:
            tests.append((set_test(words, sets), inverted))
        elif name == "--invert" and "rpfilter" in modules:
            loose = any(option == "--loose" for option, _, _ in options)
            tests.append((any_path_back_test if loose else reverse_path_test, True))
        else:
            tests.append((undecided_test, False))
    if "rpfilter" in modules and not any(name == "--invert" for name, _, _ in options):
        tests.append((reverse_path_test, False))
    if any(module in UNDECIDABLE_MODULES for module in modules):
        tests.append((undecided_test, False))

    def test(packet: Packet) -> Truth:
        answer: Truth = True
        for one, inverted in tests:
            answer = truth_and(answer, truth_inverted(one(packet), inverted))
            if answer is False:
                return False
        return answer

    return test


UNDECIDABLE_MODULES = frozenset(
    {"socket", "string", "u32", "bpf", "cluster", "quota", "time", "recent", "limit", "hashlimit", "statistic"}
)
"""Modules whose match cannot be decided: a rule may name them without an option, or their options match only
sometimes."""


# --- tables, chains and rules ---------------------------------------------------------------------------------------

HOOK_BY_CHAIN = {
    "PREROUTING": "prerouting",
    "INPUT": "input",
    "FORWARD": "forward",
    "OUTPUT": "output",
    "POSTROUTING": "postrouting",
}
PRIORITIES = {"raw": -300, "mangle": -150, "nat": -100, "filter": 0, "security": 50}
LATE_NAT_PRIORITY = 100  # the priority of table nat in INPUT and POSTROUTING
MAX_RULE_CHARACTERS = 1 << 14
"""Characters of a rule that are read. iptables prints far fewer: its longest parts are a comment of 256 characters and
lists of ports."""

CONTINUING_TARGETS = frozenset(
    {
        "LOG", "NFLOG", "ULOG", "CONNMARK", "CONNSECMARK", "SECMARK", "TCPMSS", "TTL", "HL", "DSCP", "TOS", "ECN",
        "CLASSIFY", "CHECKSUM", "TRACE", "AUDIT", "SET", "TEE", "RATEEST", "IDLETIMER", "LED", "HMARK", "TCPOPTSTRIP",
    }
)  # fmt: skip
VERDICTS = {"ACCEPT": RuleVerdict("accept"), "DROP": RuleVerdict("drop"), "RETURN": RuleVerdict("return")}
REWRITES = frozenset({"DNAT", "SNAT", "MASQUERADE", "REDIRECT", "NETMAP"})


@dataclass
class _Table:
    """A table while its text is read: policies and rules by chain."""

    name: str
    policies: dict[str, str] = field(default_factory=dict)  # "-" for a user's chain
    rules: dict[str, list[FilterRule]] = field(default_factory=dict)


def parse(text: str, engine: Engine, sets: Mapping[str, IpSet] = NO_SETS) -> list[Base]:
    """The base chains in the text of `iptables-save`: every built-in chain of every table."""
    family = "ip6" if engine.startswith("ip6") else "ip"
    bases = []
    for table in _read_tables(text, sets):
        chains = {name: tuple(rules) for name, rules in table.rules.items()}
        for name, policy in table.policies.items():
            if name not in HOOK_BY_CHAIN or policy == "-":
                continue
            hook = HOOK_BY_CHAIN[name]
            priority = PRIORITIES.get(table.name, 0)
            if table.name == "nat" and hook in ("input", "postrouting"):
                priority = LATE_NAT_PRIORITY
            bases.append(
                Base(
                    engine=engine,
                    family=family,
                    table=table.name,
                    chain=name,
                    hook=hook,
                    priority=priority,
                    policy="drop" if policy == "DROP" else "accept",
                    chains=chains,
                    kind="nat" if table.name == "nat" else "filter",
                )
            )
    return bases


def table_policies(text: str) -> dict[str, dict[str, str]]:
    """The policies in the text of `iptables-save`: table -> chain -> policy (`-` for a user's chain)."""
    return {table.name: table.policies for table in _read_tables(text, NO_SETS)}


def _read_tables(text: str, sets: Mapping[str, IpSet]) -> list[_Table]:
    """The tables in the text. All chains of a table are read before its rules, so that a jump to a chain can be told
    from a target."""
    found: list[tuple[_Table, list[str]]] = []
    if not re.search(r"^\*", text, re.MULTILINE) and re.search(r"^-[PNA] ", text, re.MULTILINE):
        found.append((_Table("filter"), []))  # `iptables -S` names no table
    for line in text.splitlines():
        if line.startswith("*"):
            found.append((_Table(line[1:].strip()), []))
        elif not found:
            continue
        elif line.startswith((":", "-P ", "-N ")):
            words = line.removeprefix(":").removeprefix("-P ").removeprefix("-N ").split()
            name, policy = [*(words or [""]), "-"][:2]
            found[-1][0].policies[name] = policy
            found[-1][0].rules.setdefault(name, [])
        elif line.startswith(("-A ", "[")) and "-A " in line:
            found[-1][1].append(line[line.index("-A ") :])
    for table, lines in found:
        for line in lines:
            _add_rule(table, line, sets)
    return [table for table, _ in found]


def _add_rule(table: _Table, line: str, sets: Mapping[str, IpSet]) -> None:
    """Adds the rule `-A CHAIN …` to its table; a rule that cannot be read becomes one with an unknown match."""
    text = line[:MAX_RULE_CHARACTERS].strip()
    name = [*text.split(maxsplit=2), "", ""][1]
    steps: tuple[RuleStep, ...] = (Match(undecided_test), RuleVerdict("unknown"))
    words: list[str] = []
    with contextlib.suppress(ValueError, IndexError):  # raised for a rule in a form that iptables does not print
        if len(line) <= MAX_RULE_CHARACTERS:
            words = shlex.split(line)
            name, steps = words[1], _rule_steps(words[2:], table, sets)
    chain = table.rules.setdefault(name, [])
    by_chance = ("-m", "statistic") in itertools.pairwise(words)
    chain.append(FilterRule(name, len(chain), text, steps, by_chance=by_chance))


def _rule_steps(words: list[str], table: _Table, sets: Mapping[str, IpSet]) -> tuple[RuleStep, ...]:
    options: list[tuple[str, bool, list[str]]] = []
    modules: list[str] = []
    target: tuple[str, str] | None = None
    inverted, at = False, 0
    while at < len(words) and target is None:
        word = words[at]
        if word == "!":
            inverted, at = True, at + 1
            continue
        after = at + 1 + MATCH_OPTIONS.get(word, (0, None))[0]
        while after < len(words) and not _starts_option(words[after]):
            after += 1
        arguments = words[at + 1 : after]
        if word in ("-j", "-g", "--jump", "--goto"):
            target = (word, arguments[0] if arguments else "")
        elif word == "-m":
            modules += arguments[:1]
        else:
            options.append((word, inverted, arguments))
        inverted, at = False, after
    test = Match(match_test(options, modules, sets))
    return (test, *_target_steps(target, words[at:], table)) if target else (test,)


def _starts_option(word: str) -> bool:
    return word == "!" or (word.startswith("-") and len(word) > 1 and not word[1].isdecimal())


def _target_steps(target: tuple[str, str], options: list[str], table: _Table) -> tuple[RuleStep, ...]:
    """The steps of a rule's target, given as (`-j` or `-g`, name), with the options behind it."""
    how, name = target
    if name in table.rules:
        return (RuleVerdict("goto" if how in ("-g", "--goto") else "jump", name),)
    if name in VERDICTS:
        return (VERDICTS[name],)
    if name == "REJECT":
        return (RuleVerdict("reject-rst" if "tcp-reset" in options else "reject-icmp"),)
    if name in REWRITES:
        return (RuleVerdict("rewrite", _snat_address(options) if name == "SNAT" else ""),)
    if name == "NOTRACK" or (name == "CT" and "--notrack" in options):
        return (NOTRACK,)
    if name == "MARK":
        return (StateChange("mark", _mark_value(options)),)
    if name == "CONNMARK":
        restores = "--restore-mark" in options
        return (StateChange("mark" if restores else "ct_mark", None),)
    if name in CONTINUING_TARGETS or name == "CT":
        return ()
    return (RuleVerdict("unknown"),)


def _snat_address(options: list[str]) -> str:
    """The address of `--to-source ADDRESS[:PORTS]`; empty for a range of addresses, or without the option."""
    text = next((value for option, value in itertools.pairwise(options) if option == "--to-source"), "")
    found = re.fullmatch(r"\[?([0-9a-fA-F:]{0,40}:[0-9a-fA-F:]{1,40}|[0-9.]+)\]?(?::[\d-]+)?", text)
    return normal_address(found[1]) if found else ""


def _mark_value(options: list[str]) -> int | None:
    """The value that a MARK target sets; None if the new mark depends on the old one."""
    for option, value in itertools.pairwise(options):
        if option in ("--set-xmark", "--set-mark"):
            number, _, mask = value.partition("/")
            whole = not mask or int(mask, 0) == 0xFFFFFFFF
            return int(number, 0) if whole else None
    return None
