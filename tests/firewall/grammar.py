"""Random rulesets from a small grammar, for nft and for iptables. Every match in it can be decided for one TCP flow."""

from __future__ import annotations

from random import Random

PORTS = (22, 29499, 29500, 29501, 40000)


def nft_ruleset(random: Random) -> str:
    """One to three tables on input and prerouting; jumps go only to later chains, so there is no loop."""
    return "\n".join(_table(random, number) for number in range(random.randint(1, 3)))


def _table(random: Random, number: int) -> str:
    family = random.choice(("inet", "inet", "ip"))
    lines = [f"table {family} t{number} {{"]
    lines.append(f"  set nets {{ type ipv4_addr; flags interval; elements = {{ {_networks(random)} }}; }}")
    lines.append(f"  set ports {{ type inet_service; flags interval; elements = {{ {_ports(random)} }}; }}")
    for sub in (2, 1):  # what is jumped to has to be there first
        rules = [_rule(random, sub, family) for _ in range(random.randint(0, 3))]
        lines.append(f"  chain sub{sub} {{\n    " + "\n    ".join(rules) + "\n  }")
    hook = random.choice(("input", "input", "input", "prerouting"))
    priority = random.choice(("-300", "-150", "0", "10")) if hook == "prerouting" else random.choice(("-5", "0", "5"))
    policy = random.choice(("accept", "accept", "drop"))
    rules = [_rule(random, 0, family) for _ in range(random.randint(0, 5))]
    lines.append(f"  chain base {{ type filter hook {hook} priority {priority}; policy {policy};")
    lines.append("    ct state established accept\n    " + "\n    ".join(rules) + "\n  }\n}")
    return "\n".join(lines)


def _rule(random: Random, depth: int, family: str) -> str:
    matches = [random.choice(_MATCHES)(random) for _ in range(random.randint(0, 2))]
    if family == "ip":
        matches = [match for match in matches if "ip6" not in match and "nfproto" not in match]
    verdicts = ["accept", "drop", "return", "continue", "counter", "meta mark set 7", "drop"]
    if not any("nfproto" in match for match in matches):  # nft 1.0.6 lists such rules without that condition
        verdicts += ["reject with tcp reset", "reject"]
    verdicts += [f"{how} sub{sub}" for sub in (1, 2) for how in ("jump", "goto") if sub > depth]
    if random.random() < 0.2:
        entries = {port: random.choice(verdicts[:4]) for port in random.sample(PORTS, 3)}
        words = [f"{port} : {verdict}" for port, verdict in entries.items()]
        return " ".join([*matches, "tcp dport vmap {", ", ".join(words), "}"])
    return " ".join([*matches, random.choice(verdicts)])


def _networks(random: Random) -> str:
    return ", ".join(random.sample(("10.77.0.1", "10.78.0.0/16", "10.79.0.1-10.79.0.9", "192.168.0.0/24"), 2))


def _ports(random: Random) -> str:
    return ", ".join(random.sample(("22", "29500", "1000-2000", "29505-29600"), 2))


def _not(random: Random) -> str:
    return random.choice(("", "", "!= "))


_MATCHES = (
    lambda r: f"tcp dport {_not(r)}{r.choice(PORTS)}",
    lambda r: f"tcp dport {_not(r)}{{ {', '.join(str(port) for port in r.sample(PORTS, 2))} }}",
    lambda r: f"tcp dport {r.choice(('<', '>', '<=', '>='))} {r.choice(PORTS)}",
    lambda r: f"tcp dport {_not(r)}@ports",
    lambda r: f"ip saddr {_not(r)}@nets",
    lambda r: f"ip saddr {_not(r)}{r.choice(('10.77.0.1', '10.77.0.0/24', '10.77.0.2-10.77.0.9', '10.0.0.0/8'))}",
    lambda r: f"ip daddr {_not(r)}{r.choice(('10.77.0.2', '10.77.0.3'))}",
    lambda r: f"ip saddr . tcp dport {_not(r)}{{ 10.77.0.1 . {r.choice(PORTS)}, 10.1.0.0/16 . 1-65535 }}",
    lambda r: f"iifname {_not(r)}{r.choice((chr(34) + 'eth0' + chr(34), chr(34) + 'et*' + chr(34), 'lo'))}",
    lambda r: f"iifname {{ lo, {r.choice(('eth0', 'eth1'))} }}",
    lambda r: f"ct state {_not(r)}{r.choice(('new', 'established', 'invalid'))}",
    lambda r: f"ct state {r.choice(('new,untracked', '{ new, invalid }', 'established,related'))}",
    lambda r: f"meta l4proto {_not(r)}{r.choice(('tcp', 'udp', '{ tcp, udp }'))}",
    lambda r: f"meta nfproto {r.choice(('ipv4', 'ipv6'))}",
    lambda r: f"meta length {r.choice(('> 1400', '< 100', '40-100'))}",
    lambda r: f"tcp flags {r.choice(('syn', 'ack', '!= syn', '& (syn|ack) == syn', '& (fin|syn) != 0'))}",
    lambda r: f"meta mark {_not(r)}7",
    lambda r: f"udp dport {_not(r)}29500",
    lambda r: f"ip6 saddr {_not(r)}fe80::/10",
    lambda r: f"ip protocol {_not(r)}{r.choice(('tcp', 'icmp'))}",
    lambda r: f"th dport {r.choice(PORTS)}",
    lambda r: f"fib daddr type {_not(r)}local",
    lambda r: f"meta pkttype {_not(r)}host",
    lambda r: f"tcp sport {r.choice(('1024-65535', '< 1024'))}",
)


def iptables_ruleset(random: Random, program: str) -> str:
    """Commands that make two chains and fill INPUT, and PREROUTING of raw or mangle."""
    table = random.choice(("raw", "mangle"))
    lines = [f"{program} -N SUB1", f"{program} -N SUB2", f"{program} -A INPUT -m state --state ESTABLISHED -j ACCEPT"]
    for _ in range(random.randint(0, 3)):
        lines.append(f"{program} -A SUB2 {_iptables_rule(random, ())}")
    for _ in range(random.randint(0, 3)):
        lines.append(f"{program} -A SUB1 {_iptables_rule(random, ('SUB2',))}")
    for _ in range(random.randint(1, 5)):
        lines.append(f"{program} -A INPUT {_iptables_rule(random, ('SUB1', 'SUB2'))}")
    if random.random() < 0.3:
        lines.append(f"{program} -t {table} -A PREROUTING {_iptables_rule(random, (), reject=False)}")
    if random.random() < 0.4:
        lines.append(f"{program} -P INPUT DROP")
    return "\n".join(lines)


def _iptables_rule(random: Random, chains: tuple[str, ...], *, reject: bool = True) -> str:
    matches = [random.choice(_IPTABLES)(random) for _ in range(random.randint(0, 2))]
    tcp = any("port" in match or "tcp" in match for match in matches)
    words = ["-p tcp"] if tcp else []
    options = dict.fromkeys(matches)
    seen: set[str] = set()
    for option in options:
        key = "port" if "port" in option else option.removeprefix("! ").split()[0]
        if key not in seen:
            words.append(option)
        seen.add(key)
    targets = ["-j ACCEPT", "-j DROP", "-j RETURN", "-j DROP", "-j LOG"] if reject else ["-j ACCEPT", "-j DROP"]
    targets += ["-j REJECT", "-j REJECT --reject-with icmp-admin-prohibited"] if reject else []
    targets += ["-p tcp -j REJECT --reject-with tcp-reset"] if reject and not tcp else []
    targets += [f"{how} {chain}" for chain in chains for how in ("-j", "-g")]
    return " ".join([*words, random.choice(targets)])


def _bang(random: Random) -> str:
    return random.choice(("", "", "! "))


_IPTABLES = (
    lambda r: f"{_bang(r)}--dport {r.choice(PORTS)}",
    lambda r: f"{_bang(r)}--dport {r.choice(('1:1024', '29000:29999', '30000:'))}",
    lambda r: f"-m multiport {_bang(r)}--dports {r.choice(('22,29500', '1:5,29000:30000', '80'))}",
    lambda r: f"{_bang(r)}-s {r.choice(('10.77.0.1', '10.77.0.0/24', '10.0.0.0/8', '192.168.0.1'))}",
    lambda r: f"{_bang(r)}-d {r.choice(('10.77.0.2', '10.77.0.3'))}",
    lambda r: f"{_bang(r)}-i {r.choice(('eth0', 'eth+', 'lo'))}",
    lambda r: f"-m conntrack {_bang(r)}--ctstate {r.choice(('NEW', 'ESTABLISHED', 'INVALID', 'NEW,RELATED'))}",
    lambda r: f"-m addrtype {_bang(r)}--dst-type {r.choice(('LOCAL', 'BROADCAST'))}",
    lambda r: f"-m length {_bang(r)}--length {r.choice(('0:100', '1400:'))}",
    lambda r: f"-m tcp {_bang(r)}--tcp-flags {r.choice(('SYN,ACK SYN', 'ALL SYN', 'FIN,RST NONE'))}",
    lambda r: f"-m iprange {_bang(r)}--src-range {r.choice(('10.77.0.1-10.77.0.9', '10.1.0.1-10.1.0.2'))}",
)
