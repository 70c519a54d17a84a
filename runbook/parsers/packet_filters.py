"""Listings of packet filters: iptables -L, iptables-save, nft, ufw, firewalld. A filter is no fault; it explains one.

Whether a port is open is told only where the listing decides it. `iptables -L` leaves the interfaces out, nft's text
has more words than are read here: then it is undetermined, never open.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from runbook.firewall import iptables, nft
from runbook.firewall.evaluate import Base, Flow, packet, walk
from runbook.firewall.front_ends import FirewalldZone, firewalld_runs, parse_ufw, parse_zones
from runbook.model.commands import NFT_BY_HAND, nft_words, word
from runbook.parsers.tool_reading import CUT, Reading, Support, Tool, numbered

BLOCKED = ("firewall-drop", "firewall-reject", "data-ports-blocked")
FOREIGN = Flow("198.51.100.23", "203.0.113.9", 45_678)
"""A peer's connection to one of the ports that ranks take: an address and a port that no rule of anybody names."""
OTHER = "an-interface"
"""One that no rule names, and that is not the loopback."""


def _ephemeral(bases: Sequence[Base]) -> bool | None:
    """Does a new TCP connection to a high port get in from outside? None where the rules, or interfaces, do not
    agree."""
    inputs = [base for base in bases if base.hook == "input" and base.family != "ip6"]
    text = " ".join(rule.text for base in inputs for rules in base.chains.values() for rule in rules)
    named = set(re.findall(r'(?:-i |iifname"?\}\},"right":")([^\s"]+)', text)) - {"lo"}
    answers = {_let_in(inputs, interface) for interface in (OTHER, *named)}
    return answers.pop() if len(answers) == 1 else None


def _let_in(inputs: Sequence[Base], interface: str) -> bool | None:
    told = [walk(base, packet(FOREIGN, "request-in", interface)).blocks for base in inputs]
    if any(blocked is True for blocked in told):
        return False
    return None if any(blocked is None for blocked in told) else True


def _blocks(tool: str, why: str, lines: tuple[int, ...], remedy: str) -> tuple[Support, ...]:
    return (Support(BLOCKED, f"{tool} blocks what no rule allows: {why}", lines or (1,), remedy),)


ALLOW_IPTABLES = "sudo iptables -I INPUT -p tcp -s PEER --dport PORT -j ACCEPT   # both ways, and on every node"
ALLOW_NFT = "sudo nft insert rule {where} ip saddr PEER tcp dport PORT accept   # both ways, and on every node"

CHAIN = re.compile(r"Chain (?P<name>\S+) \((?:policy (?P<policy>\w+)|\d+ references)")
WITH_INTERFACES = re.compile(
    r"\s*(?:\d+\s+)?(?P<packets>\d+[KMG]?)\s+\d+[KMG]?\s+(?P<target>\S+)\s+(?P<protocol>\S+)\s+(?:(?:--|-f"
    r"|!f)\s+)?(?P<in>\S+)\s+(?P<out>\S+)\s+(?P<source>\S+)\s+(?P<to>\S+)\s*(?P<more>.*)\Z"
)
PLAIN = re.compile(
    r"\A(?:\d+\s+)?(?P<target>\S+)\s+(?P<protocol>\S+)\s+(?:--|-f|!f)\s+(?P<source>\S+)\s+(?P<to>\S+)\s*(?P<more>.*)\Z"
)
LIST_HEADS = re.compile(r"\s*\Z|\s*(?:num\s+)?(?:pkts\s+bytes\s+)?target\s+prot|# Warning")
ANYWHERE = ("anywhere", "0.0.0.0/0", "::/0")


def iptables_list(text: str) -> Reading | None:
    policies: dict[str, str] = {}
    chain = ""
    verbose = bool(re.search(r"^[ \t]*(?:num\s+)?pkts\s+bytes\s+target", text, re.MULTILINE))
    accepts, rejects, refuses, ipset, unread = 0, "", 0, False, 0
    jumps = False
    where: dict[str, int] = {}
    for at, line in numbered(text):
        if found := CHAIN.match(line):
            chain = found["name"]
            if found["policy"]:
                policies[chain] = found["policy"]
                where[chain] = at
            continue
        if LIST_HEADS.match(line):
            continue
        rule = (WITH_INTERFACES if verbose else PLAIN).match(line)
        if rule is None:
            unread += 1
            continue
        ipset = ipset or "match-set" in rule["more"]
        if chain != "INPUT":
            continue
        anyone = rule["protocol"] in ("all", "0") and rule["source"] in ANYWHERE and rule["to"] in ANYWHERE
        if rule["target"] == "ACCEPT" and rule["source"] not in ANYWHERE and not rule["more"]:
            accepts += 1
        elif rule["target"] in ("REJECT", "DROP"):
            free = anyone and (not verbose or rule["in"] in ("*", "any"))
            if free and verbose and (not rule["more"] or rule["more"].startswith("reject-with ")):
                rejects = rejects or rule["more"].removeprefix("reject-with ").strip() or rule["target"].lower()
                refuses = refuses or at
        elif rule["target"] not in ("ACCEPT", "LOG", "RETURN"):
            jumps = True
    if not policies:
        return None
    closed = policies.get("INPUT") == "DROP" or bool(refuses)
    open_ = verbose and not closed and not jumps and "DROP" not in text and "REJECT" not in text
    filtered = policies.get("INPUT") == "DROP" or (closed and verbose)
    facts: dict[str, object] = {
        "input_policy": policies.get("INPUT"),
        "forward_policy": policies.get("FORWARD"),
        "docker_present": "DOCKER" in text,
        "input_has_unconditional_reject": bool(refuses),
        "reject_with": rejects or None,
        "accepts_from": accepts,
        "uses_ipset": ipset,
        "conclusion": "filtered" if filtered else "open" if open_ else "undetermined",
    }
    supports: tuple[Support, ...] = ()
    if closed:
        at = refuses or where["INPUT"]
        supports = _blocks("iptables", text.splitlines()[at - 1].strip(), (at,), ALLOW_IPTABLES)
    return Reading("iptables -L", facts, (), supports, CUT if unread or "INPUT" not in policies else "")


def iptables_save(text: str) -> Reading | None:
    try:
        bases = iptables.parse(text, "iptables-legacy")
    except (ValueError, IndexError):
        return Reading("iptables-save", {}, (), (), CUT)
    base = next((base for base in bases if base.hook == "input" and base.table == "filter"), None)
    if base is None:
        if not bases and not re.search(r"^\*\w+|^-P ", text, re.MULTILINE):
            return None
        return Reading("iptables-save", {"input_policy": None}, (), (), "" if "COMMIT" in text else CUT)
    rules = [rule.text for rule in base.chains[base.chain]]
    last = re.fullmatch(
        r"-A INPUT -j (?P<target>REJECT|DROP)(?: --reject-with (?P<how>\S+))?", rules[-1] if rules else ""
    )
    ports = [int(found[1]) for rule in rules if (found := re.search(r"--dport (\d+) .{0,300}-j ACCEPT", rule))]
    sources = [found[1] for rule in rules if (found := re.fullmatch(r"-A INPUT -s (\S+) -j ACCEPT", rule))]
    policy = re.search(r"^(?::|-P )INPUT (\w+)", text, re.MULTILINE)
    ephemeral = _ephemeral(bases)
    facts: dict[str, object] = {
        "input_policy": policy[1] if policy else None,
        "terminal_rule": f"{last['target']} {last['how'] or ''}".strip() if last else None,
        "open_tcp_ports": ports,
        "trusted_sources": sources,
        "ephemeral_tcp_allowed": ephemeral,
    }
    supports: tuple[Support, ...] = ()
    if ephemeral is False:
        why = rules[-1] if last else f"policy {policy[1] if policy else 'DROP'}"
        lines = tuple(
            at
            for at, line in numbered(text)
            if line.strip() == why or (not last and line.startswith((":INPUT", "-P INPUT")))
        )
        supports = _blocks("iptables", why, lines[:2], ALLOW_IPTABLES)
    whole = text.count("COMMIT") == len(re.findall(r"^\*", text, re.MULTILINE))
    return Reading("iptables-save", facts, (), supports, "" if whole else CUT)


def nft_json(text: str) -> Reading | None:
    if '"nftables"' not in text:
        return None
    try:
        bases = nft.parse(text)
    except nft.UnreadableRulesetError:
        return Reading("nft", {"format": "json"}, (), (), CUT)
    inputs = [base for base in bases if base.hook == "input"]
    rules = [rule.text for base in inputs for rule in base.chains[base.chain]]
    last = [base.chains[base.chain][-1].text for base in inputs if base.chains[base.chain]]
    ports = re.findall(r'"field":"dport"\}\},"right":(\d+)\}\},\{"accept"', " ".join(rules))
    ephemeral = _ephemeral(bases)
    drops = any(base.policy == "drop" for base in inputs)
    tables = re.findall(r'"table":\s*\{"family":\s*"\w+",\s*"name":\s*"([^"]+)"', text)
    facts: dict[str, object] = {
        "format": "json",
        "tables": list(dict.fromkeys(tables)),
        "input_policy": ("drop" if drops else "accept") if inputs else None,
        "open_tcp_ports": [int(port) for port in ports],
        "terminal_rule": "reject" if any(re.fullmatch(r'\[\{"reject":.*\}\]', rule) for rule in last) else None,
        "ephemeral_tcp_allowed": ephemeral,
        "blocks": None if ephemeral is None else not ephemeral,
    }
    where = " ".join((inputs[0].family, inputs[0].table, inputs[0].chain)) if inputs else ""
    words = nft_words(inputs[0].family, inputs[0].table, inputs[0].chain) if inputs else ""
    remedy = NFT_BY_HAND if words is None else ALLOW_NFT.format(where=words)
    supports = _blocks("nft", f"chain {where}", (1,), remedy) if ephemeral is False else ()
    return Reading("nft", facts, (), supports)


BASE = re.compile(r"\s*type (?P<kind>\w+) hook (?P<hook>\w+) .*?policy (?P<policy>\w+);")


def nft_text(text: str) -> Reading | None:
    """The policy and the plain rules of input chains; what else a rule may say is not followed."""
    if '"nftables"' in text:
        return nft_json(text)
    if text.strip() and not re.search(r"^[ \t]*table \w+ \S+ \{", text, re.MULTILINE):
        return None
    policy, hook, rules = "", "", []
    at_policy, table, chain, where = 0, "", "", ""
    for at, line in numbered(text):
        if opened := re.match(r"\s*table (\w+ \S+) \{", line):
            table = opened[1]
        elif opened := re.match(r"\s*chain (\S+) \{", line):
            chain, hook = opened[1], ""
        elif base := BASE.match(line):
            hook = base["hook"] if base["kind"] == "filter" else ""
            if hook == "input" and policy != "drop":
                policy, at_policy, where = base["policy"], at, f"{table} {chain}"
        elif hook == "input" and line.strip() not in ("", "}"):
            rules.append((at, re.sub(r'(?:(?<!\s)\s+)?comment ".{0,300}"', "", line.strip())))
    ports = [
        int(found[1])
        for _, rule in rules
        if (found := re.fullmatch(r"(?:\w+ saddr \S+ )?tcp dport (\d+)(?: .*)? accept", rule))
    ]

    wide = [
        rule
        for _, rule in rules
        if re.search(r"\b(?:accept|jump|goto|vmap|queue)\b", rule)
        and not re.match(r"tcp dport \d+ |udp |ip6? protocol icmp|icmp|iif\w* \"?lo\"?|ct state \{? ?established", rule)
    ]
    rejecting = [(at, rule) for at, rule in rules if re.match(r"(?:counter [\w ]*?)?(?:drop|reject\b.*)$", rule)]
    ephemeral: bool | None = None
    if (policy == "drop" or rejecting) and not wide:
        ephemeral = False
    elif not rules and policy in ("", "accept"):
        ephemeral = True
    facts: dict[str, object] = {
        "input_policy": policy or None,
        "open_tcp_ports": ports,
        "established_accept": any(
            re.match(r"ct state \{? ?(?:established|related)", rule) and "accept" in rule for _, rule in rules
        ),
        "rate_limited_reject": any("limit rate" in rule and ("reject" in rule or "drop" in rule) for _, rule in rules),
        "ephemeral_tcp_allowed": ephemeral,
    }
    supports: tuple[Support, ...] = ()
    if ephemeral is False:
        at, why = rejecting[0] if rejecting else (at_policy, "policy drop")
        supports = _blocks("nft", why, (at,), ALLOW_NFT.format(where=where))
    whole = text.count("{") == text.count("}")
    return Reading("nft", facts, (), supports, "" if whole else CUT)


def ufw_status(text: str) -> Reading | None:
    status = parse_ufw(text)
    if status is None:
        return None
    routed = re.search(r"\b(\w+) \(routed\)", text)
    v4 = [rule for rule in status.rules if "(v6)" not in rule.to + rule.origin]
    incoming = [rule for rule in v4 if rule.direction == "IN"]
    open_ = [
        rule.to
        for rule in incoming
        if rule.action == "ALLOW" and rule.origin == "Anywhere" and not re.match(r"\d+\.\d+", rule.to)
    ]
    networks = [
        f"{rule.origin} -> {rule.to}"
        for rule in incoming
        if rule.action == "ALLOW" and re.fullmatch(r"[\d.]+/\d+", rule.origin) and not re.search(r" on |/udp", rule.to)
    ]
    wide = [
        to for to in open_ if to == "Anywhere" or any(_wide(part) for part in re.findall(r"[\d:]+", to.split("/")[0]))
    ]
    allowed = not status.active or status.incoming == "allow" or bool(wide)
    facts: dict[str, object] = {
        "active": status.active,
        "blocks": not allowed,
        "default_incoming": status.incoming,
        "default_outgoing": status.outgoing,
        "default_routed": routed[1] if routed else None,
        "rules": len(status.rules),
        "open": open_,
        "has_limit_rule": any(rule.action == "LIMIT" for rule in status.rules),
        "has_reject_rule": any(rule.action == "REJECT" for rule in status.rules),
        "allow_from_subnet": networks,
        "ephemeral_tcp_allowed": allowed,
    }
    supports: tuple[Support, ...] = ()
    if not allowed:
        lines = tuple(at for at, line in numbered(text) if line.startswith(("Status:", "Default:")))
        remedy = "sudo ufw allow from PEER to any port 1024:65535 proto tcp   # on every node, for each of the others"
        supports = _blocks("ufw", f"{status.incoming or 'deny'} (incoming)", lines, remedy)
    rows = [line for line in text.splitlines() if re.search(r"\b(?:ALLOW|DENY|REJECT|LIMIT)\b", line)]
    whole = len(rows) == len(status.rules) and (not status.active or status.incoming is not None or bool(rows))
    return Reading("ufw", facts, (), supports, "" if whole else CUT)


def _wide(ports: str) -> bool:
    low, _, high = ports.partition(":")
    return low.isdecimal() and high.isdecimal() and int(low) <= 32768 and int(high) >= 60999


def firewall_cmd(text: str) -> Reading | None:
    if re.search(r"firewall-cmd: (?:command )?not found", text):
        return Reading(
            "firewalld", {"running": None, "installed": False, "blocks": None}, (), (), "firewall-cmd is not installed"
        )
    if re.search(r"^(?:FirewallD is not running|not running)\s*$", text.strip()):
        return Reading("firewalld", {"running": False, "installed": True, "blocks": False})
    if firewalld_runs(text):
        return Reading("firewalld", {"running": True, "installed": True, "blocks": None})
    zones = parse_zones(text).zones
    if not zones:
        return None
    active = [zone for zone in zones if zone.active]
    facts: dict[str, object] = {
        "running": True,
        "installed": True,
        "active_zones": [zone.name for zone in active],
        "zones": {
            zone.name: {
                "interfaces": list(zone.interfaces),
                "services": _services(text, zone.name),
                "ports": list(zone.ports),
                "target": zone.target,
            }
            for zone in zones
        },
        "ephemeral_tcp_allowed": {name: _lets_in(zone) for zone in active for name in zone.interfaces},
    }
    closed = [zone for zone in active if zone.interfaces and not _lets_in(zone)]
    supports: tuple[Support, ...] = ()
    if closed:
        zone = closed[0]
        at = next((at for at, line in numbered(text) if line.startswith(zone.name)), 1)
        remedy = (
            f'sudo firewall-cmd --permanent --zone={word(zone.name)} --add-rich-rule=\'rule family="ipv4" source '
            'address="PEER" accept\' && sudo firewall-cmd --reload'
        )
        supports = _blocks(
            "firewalld", f"zone {zone.name} of {', '.join(zone.interfaces)}, target {zone.target}", (at,), remedy
        )
    whole = bool(active) and all(
        "rich rules" in block for block in re.split(r"\n(?=\S)", text.strip("\n")) if "target:" in block
    )
    return Reading("firewalld", facts, (), supports, "" if whole else CUT)


def _services(text: str, zone: str) -> list[str]:
    block = re.search(rf"^{re.escape(zone)}(?: \([^)]*\))?\s*\n(?P<body>(?:[ \t]+.*\n?|\s*\n)*)", text, re.MULTILINE)
    line = re.search(r"^[ \t]+services:[ \t]*(.*)$", block["body"], re.MULTILINE) if block else None
    return line[1].split() if line else []


def _lets_in(zone: FirewalldZone) -> bool:
    spans = [port.partition("/") for port in zone.ports]
    return zone.target == "ACCEPT" or any(kind == "tcp" and _wide(span.replace("-", ":")) for span, _, kind in spans)


TOOLS = (
    Tool(
        "iptables -L",
        r"(?:sudo )?ip6?tables(?:-legacy|-nft)? .*(?:-\w*L|--list)\b",
        r"Chain \S+ \((?:policy \w+|\d+ references)",
        r"Chain |\s*(?:num|pkts|target)\s|\s*$|\s*(?:\d+\s+)*\S+\s+(?:all|tcp|udp|icmp|\d+)\s|\s*\d+[KMG]?\s",
        ("prot opt",),
        iptables_list,
    ),
    Tool(
        "iptables-save",
        r"(?:sudo )?ip6?tables(?:-legacy|-nft)?(?:-save| .*-\w*S)\b",
        r"# Generated by ip6?tables|-P (?:INPUT|FORWARD|OUTPUT) |\*(?:filter|nat|mangle|raw|security)\s*\Z",
        r"#|\*|:|-[APN] |COMMIT|\[\d+:\d+\] |\s*$",
        ("Generated by ip", "-P INPUT", "*filter", "-P OUTPUT"),
        iptables_save,
    ),
    Tool(
        "nft",
        r"(?:sudo )?nft (?:-\S+ )*list (?:ruleset|table)",
        r"table (?:ip|ip6|inet|arp|bridge|netdev) \S+ \{|\{\"nftables\":",
        r"table |\t|\}|\s*$|\{\"nftables|# Warning|    ",
        ("table inet", "table ip", "table arp", "table bridge", "table netdev", '"nftables"'),
        nft_text,
    ),
    Tool(
        "ufw",
        r"(?:sudo )?ufw status",
        r"Status: (?:active|inactive)\s*\Z",
        r"Status:|Logging:|Default:|New profiles:|To  |--|\[ ?\d+\]|\s|.*\b(?:ALLOW|DENY|REJECT|LIMIT)\b",
        ("Status: ",),
        ufw_status,
    ),
    Tool(
        "firewalld",
        r"(?:sudo )?firewall-cmd\b",
        r"FirewallD is not running\s*\Z|-?(?:bash|sh|zsh): (?:line \d+: )?firewall-cmd: (?:command )?not found"
        r"|[\w-]+(?: \((?:active|default)[^)]*\))?\s*\n\s+target: ",
        r"\s|[\w-]+(?: \([^)]*\))?\s*$|FirewallD",
        ("target: ", "irewallD", "firewall-cmd"),
        firewall_cmd,
    ),
)
