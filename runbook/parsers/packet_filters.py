"""Readers of packet filters' listings: iptables -L, iptables-save, nft, ufw, firewalld. A filter is not a fault; it
explains one. A reader says that ports are blocked only if the listing decides it: `iptables -L` leaves out the
interfaces, and nft's text has words that are not read here. Undecided never counts as open."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runbook.firewall import iptables, nft
from runbook.firewall.evaluate import DEFAULT_EPHEMERAL_PORTS, Base, Flow, packet_on_leg, walk_chain
from runbook.firewall.front_ends import FirewalldZone, is_firewalld_running, parse_firewalld_zones, parse_ufw_status
from runbook.model.command_quoting import nft_words, shell_word
from runbook.model.units import parse_whole_number
from runbook.parsers.tool_reading import CUT_OR_UNKNOWN, Reading, numbered_lines

ALSO_EXPLAINED_CAUSES = ("firewall-reject", "data-ports-blocked")
"""Causes besides `firewall-drop` that a blocking filter explains."""
UNNAMED_FLOW = Flow("198.51.100.23", "203.0.113.9", 45_678)
"""A peer's connection to one of the ports that ranks use, with addresses and a port that no rule names."""
BLOCKS_THE_REST = "blocks what no rule allows"
UNNAMED_INTERFACE = "an-interface"
"""An interface that no rule names, and that is not the loopback."""


def _is_high_port_open(bases: Sequence[Base]) -> bool | None:
    """Whether a new TCP connection to a high port gets in from outside; None if the rules do not decide it, or if the
    answer differs between interfaces."""
    inputs = [base for base in bases if base.hook == "input" and base.family != "ip6"]
    text = " ".join(rule.text for base in inputs for rules in base.chains.values() for rule in rules)
    named = set(re.findall(r'(?:-i |iifname"?\}\},"right":")([^\s"]+)', text)) - {"lo"}
    answers = {_is_let_in_over(inputs, interface) for interface in (UNNAMED_INTERFACE, *named)}
    return answers.pop() if len(answers) == 1 else None


def _is_let_in_over(inputs: Sequence[Base], interface: str) -> bool | None:
    """Whether the input chains let such a connection in over this interface; None if they do not decide it."""
    blocked_by = [walk_chain(base, packet_on_leg(UNNAMED_FLOW, "request-in", interface)).blocks for base in inputs]
    if any(blocked is True for blocked in blocked_by):
        return False
    return None if any(blocked is None for blocked in blocked_by) else True


IPTABLES_CHAIN = re.compile(r"Chain (?P<name>\S+) \((?:policy (?P<policy>\w+)|\d+ references)")
VERBOSE_RULE_ROW = re.compile(
    r"\s*(?:\d+\s+)?(?P<packets>\d+[KMG]?)\s+\d+[KMG]?\s+(?P<target>\S+)\s+(?P<protocol>\S+)\s+(?:(?:--|-f"
    r"|!f)\s+)?(?P<in>\S+)\s+(?P<out>\S+)\s+(?P<source>\S+)\s+(?P<to>\S+)\s*(?P<more>.*)\Z"
)
PLAIN_RULE_ROW = re.compile(
    r"\A(?:\d+\s+)?(?P<target>\S+)\s+(?P<protocol>\S+)\s+(?:--|-f|!f)\s+(?P<source>\S+)\s+(?P<to>\S+)\s*(?P<more>.*)\Z"
)
IPTABLES_LIST_HEADS = re.compile(r"\s*\Z|\s*(?:num\s+)?(?:pkts\s+bytes\s+)?target\s+prot|# Warning")
ANY_ADDRESS = ("anywhere", "0.0.0.0/0", "::/0")


def read_iptables_list(text: str) -> Reading | None:
    """Reads `iptables -L`; a rule counts only with `-v`, which shows its interfaces."""
    policies: dict[str, str] = {}
    chain = ""
    verbose = bool(re.search(r"^[ \t]*(?:num\s+)?pkts\s+bytes\s+target", text, re.MULTILINE))
    refuses = unread = 0
    where: dict[str, int] = {}
    for at, line in numbered_lines(text):
        if found := IPTABLES_CHAIN.match(line):
            chain = found["name"]
            if found["policy"]:
                policies[chain] = found["policy"]
                where[chain] = at
            continue
        if IPTABLES_LIST_HEADS.match(line):
            continue
        rule = (VERBOSE_RULE_ROW if verbose else PLAIN_RULE_ROW).match(line)
        if rule is None:
            unread += 1
            continue
        if (
            verbose  # only -v shows the interface
            and chain == "INPUT"
            and rule["target"] in ("REJECT", "DROP")
            and rule["protocol"] in ("all", "0")
            and rule["source"] in ANY_ADDRESS
            and rule["to"] in ANY_ADDRESS
            and rule["in"] in ("*", "any")
            and (not rule["more"] or rule["more"].startswith("reject-with "))
        ):
            refuses = refuses or at
    if not policies:
        return None
    reading = Reading.of(not unread and "INPUT" in policies)
    if policies.get("INPUT") == "DROP" or refuses:
        at = refuses or where["INPUT"]
        says = f"iptables {BLOCKS_THE_REST}: {text.splitlines()[at - 1].strip()}"
        reading.explains("firewall-drop", says, (at,), also=ALSO_EXPLAINED_CAUSES, way="iptables")
    return reading


def read_iptables_save(text: str) -> Reading | None:
    """Reads `iptables-save` and `iptables -S`."""
    try:
        bases = iptables.parse(text, "iptables-legacy")
    except (ValueError, IndexError):
        return Reading(CUT_OR_UNKNOWN)
    base = next((base for base in bases if base.hook == "input" and base.table == "filter"), None)
    if base is None:
        if not bases and not re.search(r"^\*\w+|^-P ", text, re.MULTILINE):
            return None
        return Reading.of("COMMIT" in text)
    rules = [rule.text for rule in base.chains[base.chain]]
    last = re.fullmatch(r"-A INPUT -j (?:REJECT|DROP)(?: --reject-with \S+)?", rules[-1] if rules else "")
    policy = re.search(r"^(?::|-P )INPUT (\w+)", text, re.MULTILINE)
    reading = Reading.of(text.count("COMMIT") == len(re.findall(r"^\*", text, re.MULTILINE)))
    if _is_high_port_open(bases) is False:
        why = rules[-1] if last else f"policy {policy[1] if policy else 'DROP'}"
        lines = [
            at
            for at, line in numbered_lines(text)
            if line.strip() == why or (not last and line.startswith((":INPUT", "-P INPUT")))
        ]
        says = f"iptables {BLOCKS_THE_REST}: {why}"
        reading.explains("firewall-drop", says, lines[:2] or [1], also=ALSO_EXPLAINED_CAUSES, way="iptables")
    return reading


def read_nft_json(text: str) -> Reading | None:
    """Reads `nft -j list ruleset`."""
    if '"nftables"' not in text:
        return None
    try:
        bases = nft.parse(text)
    except nft.UnreadableRulesetError:
        return Reading(CUT_OR_UNKNOWN)
    first = next((base for base in bases if base.hook == "input"), None)
    reading = Reading()
    if first is not None and _is_high_port_open(bases) is False:
        place = (first.family, first.table, first.chain)
        says, words = f"nft {BLOCKS_THE_REST}: chain {' '.join(place)}", nft_words(*place)
        way = "nft" if words else "nft-by-hand"
        reading.explains("firewall-drop", says, (1,), also=ALSO_EXPLAINED_CAUSES, way=way, family_table_chain=words)
    return reading


NFT_BASE_CHAIN = re.compile(r"\s*type (?P<kind>\w+) hook (?P<hook>\w+) .*?policy (?P<policy>\w+);")


def read_nft_text(text: str) -> Reading | None:
    """Reads `nft list ruleset`: the policy and the plain rules of input chains. Chains that a rule jumps to are not
    followed. JSON goes to `nft_json`."""
    if '"nftables"' in text:
        return read_nft_json(text)
    if text.strip() and not re.search(r"^[ \t]*table \w+ \S+ \{", text, re.MULTILINE):
        return None
    policy, hook, rules = "", "", []
    at_policy, table, chain = 0, "", ""
    where: str | None = None
    for at, line in numbered_lines(text):
        if opened := re.match(r"\s*table (\w+ \S+) \{", line):
            table = opened[1]
        elif opened := re.match(r"\s*chain (\S+) \{", line):
            chain, hook = opened[1], ""
        elif base := NFT_BASE_CHAIN.match(line):
            hook = base["hook"] if base["kind"] == "filter" else ""
            if hook == "input" and policy != "drop":
                policy, at_policy = base["policy"], at
                where = nft_words(*table.split(), chain) if table and chain else None  # a paste may begin within it
        elif hook == "input" and line.strip() not in ("", "}"):
            rules.append((at, re.sub(r'(?:(?<!\s)\s+)?comment ".{0,300}"', "", line.strip())))
    wide = [
        rule
        for _, rule in rules
        if re.search(r"\b(?:accept|jump|goto|vmap|queue)\b", rule)
        and not re.match(r"tcp dport \d+ |udp |ip6? protocol icmp|icmp|iif\w* \"?lo\"?|ct state \{? ?established", rule)
    ]
    rejecting = [(at, rule) for at, rule in rules if re.match(r"(?:counter [\w ]*?)?(?:drop|reject\b.*)$", rule)]
    reading = Reading.of(text.count("{") == text.count("}"))
    if (policy == "drop" or rejecting) and not wide:
        at, why = rejecting[0] if rejecting else (at_policy, "policy drop")
        way = "nft" if where else "nft-by-hand"
        reading.explains(
            "firewall-drop",
            f"nft {BLOCKS_THE_REST}: {why}",
            (at,),
            also=ALSO_EXPLAINED_CAUSES,
            way=way,
            family_table_chain=where,
        )
    return reading


def read_ufw_status(text: str) -> Reading | None:
    """Reads `ufw status`, plain or verbose."""
    status = parse_ufw_status(text)
    if status is None:
        return None
    v4 = [rule for rule in status.rules if "(v6)" not in rule.to + rule.origin]
    open_ = [
        rule.to
        for rule in v4
        if (rule.direction, rule.action, rule.origin) == ("IN", "ALLOW", "Anywhere")
        and not re.match(r"\d+\.\d+", rule.to)
    ]
    wide = [
        to
        for to in open_
        if to == "Anywhere" or any(_holds_ephemeral_ports(part) for part in re.findall(r"[\d:]+", to.split("/")[0]))
    ]
    allowed = not status.active or status.incoming == "allow" or bool(wide)
    rows = [line for line in text.splitlines() if re.search(r"\b(?:ALLOW|DENY|REJECT|LIMIT)\b", line)]
    understood = not status.active or status.incoming is not None or bool(rows)
    reading = Reading.of(len(rows) == len(status.rules) and understood)
    if not allowed:
        lines = [at for at, line in numbered_lines(text) if line.startswith(("Status:", "Default:"))] or [1]
        says = f"ufw {BLOCKS_THE_REST}: {status.incoming or 'deny'} (incoming)"
        reading.explains("firewall-drop", says, lines, also=ALSO_EXPLAINED_CAUSES, way="ufw")
    return reading


def _holds_ephemeral_ports(ports: str) -> bool:
    """Whether a range `low:high` holds all ports that Linux hands out by default: ranks listen on them."""
    lowest, highest = DEFAULT_EPHEMERAL_PORTS
    low, _, high = ports.partition(":")
    first, last = parse_whole_number(low), parse_whole_number(high)
    return first is not None and last is not None and first <= lowest and last >= highest


def read_firewall_cmd(text: str) -> Reading | None:
    """Reads `firewall-cmd --list-all`, `--list-all-zones` and `--state`."""
    if re.search(r"firewall-cmd: (?:command )?not found", text):
        return Reading("firewall-cmd is not installed")
    if re.search(r"^(?:FirewallD is not running|not running)\s*$", text.strip()) or is_firewalld_running(text):
        return Reading()
    zones = parse_firewalld_zones(text).zones
    if not zones:
        return None
    active = [zone for zone in zones if zone.active]
    closed = [zone for zone in active if zone.interfaces and not _zone_lets_in(zone)]
    blocks = [block for block in re.split(r"\n(?=\S)", text.strip("\n")) if "target:" in block]
    reading = Reading.of(bool(active) and all("rich rules" in block for block in blocks))
    if closed:
        zone = closed[0]
        at = next((at for at, line in numbered_lines(text) if line.startswith(zone.name)), 1)
        says = f"firewalld {BLOCKS_THE_REST}: zone {zone.name} of {', '.join(zone.interfaces)}, target {zone.target}"
        reading.explains(
            "firewall-drop", says, (at,), also=ALSO_EXPLAINED_CAUSES, way="firewalld", zone=shell_word(zone.name)
        )
    return reading


def _zone_lets_in(zone: FirewalldZone) -> bool:
    """Whether a zone lets in connections to all ports that Linux hands out by default."""
    spans = [port.partition("/") for port in zone.ports]
    return zone.target == "ACCEPT" or any(
        kind == "tcp" and _holds_ephemeral_ports(span.replace("-", ":")) for span, _, kind in spans
    )
