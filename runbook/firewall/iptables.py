"""`iptables-save` (or `iptables -S`) text as base chains to walk. Contract: iptables(8), iptables-extensions(8).

Priorities of the built-in tables are the kernel's (linux/netfilter_ipv4.h): raw, mangle, nat, filter, security.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from runbook.firewall import ipset, iptables_match
from runbook.firewall.machine import NOTRACK, Action, Base, Engine, FilterRule, Match, RuleVerdict, StateChange, Step

HOOKS = {
    "PREROUTING": "prerouting",
    "INPUT": "input",
    "FORWARD": "forward",
    "OUTPUT": "output",
    "POSTROUTING": "postrouting",
}
PRIORITIES = {"raw": -300, "mangle": -150, "nat": -100, "filter": 0, "security": 50}
LATE_NAT = 100  # nat in INPUT and POSTROUTING
PASSED_OVER = frozenset(
    {
        "LOG", "NFLOG", "ULOG", "CONNMARK", "CONNSECMARK", "SECMARK", "TCPMSS", "TTL", "HL", "DSCP", "TOS", "ECN",
        "CLASSIFY", "CHECKSUM", "TRACE", "AUDIT", "SET", "TEE", "RATEEST", "IDLETIMER", "LED", "HMARK", "TCPOPTSTRIP",
    }
)  # fmt: skip
REWRITES = frozenset({"DNAT", "SNAT", "MASQUERADE", "REDIRECT", "NETMAP"})


@dataclass
class _Table:
    name: str
    policies: dict[str, str] = field(default_factory=dict)  # "-" for a user's chain
    rules: dict[str, list[FilterRule]] = field(default_factory=dict)


def parse(text: str, engine: Engine, sets: Mapping[str, ipset.Set] = iptables_match.NO_SETS) -> list[Base]:
    """Every built-in chain of every table."""
    family = "ip6" if engine.startswith("ip6") else "ip"
    bases = []
    for table in _tables(text, sets):
        chains = {name: tuple(rules) for name, rules in table.rules.items()}
        for name, policy in table.policies.items():
            if name not in HOOKS or policy == "-":
                continue
            hook = HOOKS[name]
            priority = PRIORITIES.get(table.name, 0)
            if table.name == "nat" and hook in ("input", "postrouting"):
                priority = LATE_NAT
            action: Action = "drop" if policy == "DROP" else "accept"
            kind = "nat" if table.name == "nat" else "filter"
            bases.append(Base(engine, family, table.name, name, hook, priority, action, chains, kind))
    return bases


def tables(text: str) -> dict[str, dict[str, str]]:
    """table -> chain -> policy (`-` for a user's chain)."""
    return {table.name: table.policies for table in _tables(text, iptables_match.NO_SETS)}


def _tables(text: str, sets: Mapping[str, ipset.Set]) -> list[_Table]:
    """All chains of a table are known before its rules are read, so that a jump can be told from a target."""
    found: list[tuple[_Table, list[str]]] = []
    if not re.search(r"^\*", text, re.MULTILINE) and re.search(r"^-[PNA] ", text, re.MULTILINE):
        found.append((_Table("filter"), []))  # `iptables -S` names no table
    for line in text.splitlines():
        if line.startswith("*"):
            found.append((_Table(line[1:].strip()), []))
        elif not found:
            continue
        elif line.startswith((":", "-P ", "-N ")):
            name, policy = [*line.removeprefix(":").removeprefix("-P ").removeprefix("-N ").split(), "-"][:2]
            found[-1][0].policies[name] = policy
            found[-1][0].rules.setdefault(name, [])
        elif line.startswith(("-A ", "[")) and "-A " in line:
            found[-1][1].append(line[line.index("-A ") :])
    for table, lines in found:
        for line in lines:
            _add(table, line, sets)
    return [table for table, _ in found]


def _add(table: _Table, line: str, sets: Mapping[str, ipset.Set]) -> None:
    words = shlex.split(line)
    chain = table.rules.setdefault(words[1], [])
    by_chance = ("-m", "statistic") in itertools.pairwise(words)
    chain.append(FilterRule(words[1], len(chain), line.strip(), _steps(words[2:], table, sets), by_chance=by_chance))


def _steps(words: list[str], table: _Table, sets: Mapping[str, ipset.Set]) -> tuple[Step, ...]:
    options: list[tuple[str, bool, list[str]]] = []
    modules: list[str] = []
    target: tuple[str, str] | None = None
    inverted, at = False, 0
    while at < len(words) and target is None:
        word = words[at]
        if word == "!":
            inverted, at = True, at + 1
            continue
        after = at + 1 + iptables_match.OPTIONS.get(word, (0, None))[0]
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
    test = Match(iptables_match.match_test(options, modules, sets))
    return (test, *_target(target, words[at:], table)) if target else (test,)


def _starts_option(word: str) -> bool:
    return word == "!" or (word.startswith("-") and len(word) > 1 and not word[1].isdecimal())


def _target(target: tuple[str, str], options: list[str], table: _Table) -> tuple[Step, ...]:
    how, name = target
    if name in table.rules:
        return (RuleVerdict("goto" if how in ("-g", "--goto") else "jump", name),)
    if name in ("ACCEPT", "DROP", "RETURN"):
        return (RuleVerdict("accept" if name == "ACCEPT" else "drop" if name == "DROP" else "return"),)
    if name == "REJECT":
        return (RuleVerdict("reject-rst" if "tcp-reset" in options else "reject-icmp"),)
    if name in REWRITES:
        return (RuleVerdict("rewrite", _new_source(options) if name == "SNAT" else ""),)
    if name == "NOTRACK" or (name == "CT" and "--notrack" in options):
        return (NOTRACK,)
    if name == "MARK":
        return (StateChange("mark", _mark(options)),)
    if name == "CONNMARK":
        restores = "--restore-mark" in options
        return (StateChange("mark" if restores else "ct_mark", None),)
    if name in PASSED_OVER or name == "CT":
        return ()
    return (RuleVerdict("unknown"),)


def _new_source(options: list[str]) -> str:
    """The address of `--to-source ADDRESS[-ADDRESS][:PORTS]`, where it is one."""
    text = next((value for option, value in itertools.pairwise(options) if option == "--to-source"), "")
    found = re.fullmatch(r"\[?([0-9a-fA-F:]{0,40}:[0-9a-fA-F:]{1,40}|[0-9.]+)\]?(?::[\d-]+)?", text)
    return found[1] if found else ""


def _mark(options: list[str]) -> int | None:
    """The new mark, where the old one does not matter."""
    for option, value in itertools.pairwise(options):
        if option in ("--set-xmark", "--set-mark"):
            number, _, mask = value.partition("/")
            whole = not mask or int(mask, 0) == 0xFFFFFFFF
            return int(number, 0) if whole else None
    return None
