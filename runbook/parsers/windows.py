"""Readers of Windows' tools in English: netsh advfirewall, Get-NetFirewallProfile and -Rule, Test-NetConnection. Their
outputs in other languages are unknown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from runbook.model.command_quoting import netsh_name, powershell_word
from runbook.parsers.tool_reading import Reading, numbered_lines

ALSO_EXPLAINED_CAUSES = ("firewall-reject", "data-ports-blocked", "master-not-listening")
"""Causes besides `firewall-drop` that a blocking firewall explains."""
WindowsRecord = dict[str, tuple[str, int]]
"""A record: by a field's name, its value and the number of its line."""


def parse_records(text: str) -> Iterator[WindowsRecord]:
    """The records of `Name : value` lines. A record ends where the text's first name comes again; an indented line
    without a name goes on with the value above it."""
    here: WindowsRecord = {}
    last = first = ""
    for at, line in numbered_lines(text):
        found = re.match(r"(?P<name>[A-Za-z][\w ()]*?)\s*: ?(?P<value>.*)\Z", line)
        if found is None:
            if line.strip() and line.startswith((" ", "\t")) and last in here:
                value, where = here[last]
                here[last] = (f"{value} {line.strip()}".strip(), where)
            continue
        name = found["name"].strip()
        first = first or name
        if name == first and here and name in here:
            yield here
            here = {}
        last = name
        here.setdefault(name, (found["value"].strip(), at))
    if here:
        yield here


PROFILE_HEADING = re.compile(r"(?P<name>Domain|Private|Public|Current) Profile Settings:\s*\Z")


def read_netsh_profiles(text: str) -> Reading | None:
    """Reads `netsh advfirewall show allprofiles`."""
    profiles: dict[str, dict[str, str]] = {}
    where: dict[str, int] = {}
    here: dict[str, str] = {}
    for at, line in numbered_lines(text):
        if found := PROFILE_HEADING.match(line.strip()):
            here = profiles.setdefault(found["name"].lower(), {})
            where[found["name"].lower()] = at
        elif state := re.match(r"State\s+(ON|OFF)\s*\Z", line):
            here["state"] = state[1]
        elif policy := re.match(r"Firewall Policy\s+(\w+),\w+\s*\Z", line):
            here["inbound"] = policy[1]
    if not profiles:
        return None
    whole = all(profile.get("state") and profile.get("inbound") for profile in profiles.values())
    closed = [
        name
        for name, one in profiles.items()
        if one.get("state") == "ON" and one.get("inbound", "").startswith("Block")
    ]
    return _blocking_profiles_reading({name: where[name] for name in closed}, whole)


def _blocking_profiles_reading(profiles: Mapping[str, int], whole: bool) -> Reading:
    """The reading for firewall profiles that block incoming connections, each with the number of the line that shows
    it. `whole`: the output was understood."""
    reading = Reading.of(whole)
    if profiles:
        says = (
            f"Windows' firewall is on ({', '.join(profiles)}) and blocks every incoming connection that no rule allows"
        )
        reading.explains("firewall-drop", says, profiles.values(), also=ALSO_EXPLAINED_CAUSES, way="windows")
    return reading


def read_netsh_rules(text: str) -> Reading | None:
    """Reads `netsh advfirewall firewall show rule`."""
    rules = [record for record in parse_records(text) if "Rule Name" in record]
    if not rules:
        return None
    whole = all(
        _field_value(one, "Enabled") in ("Yes", "No")
        and _field_value(one, "Direction") in ("In", "Out")
        and _field_value(one, "Action")
        for one in rules
    )
    return _blocking_rules_reading(rules, "Rule Name", "Yes", "In", whole)


def _field_value(rule: Mapping[str, tuple[str, int]], name: str) -> str:
    return rule.get(name, ("", 0))[0]


def _blocking_rules_reading(rules: Sequence[WindowsRecord], name: str, on: str, inbound: str, whole: bool) -> Reading:
    """The reading with the rules that block. `name` is the field with a rule's name; `on` and `inbound` are the tool's
    words for a rule that is enabled, and for incoming."""
    reading = Reading.of(whole)
    for rule in rules:
        if name not in rule or _field_value(rule, "Action") != "Block" or _field_value(rule, "Enabled") != on:
            continue
        called, at = rule[name]
        what = _field_value(rule, "LocalPort") or "all ports"
        way = "incoming" if _field_value(rule, "Direction") == inbound else "outgoing"
        says = (
            f"Windows' firewall rule `{called}` blocks {way} "
            f"{_field_value(rule, 'Protocol') or 'any'} traffic to {what}"
        )
        reading.explains(
            "firewall-drop", says, (at,), also=ALSO_EXPLAINED_CAUSES, way="windows-rule", name=netsh_name(called)
        )
    return reading


def read_firewall_profiles(text: str) -> Reading | None:
    """Reads Get-NetFirewallProfile."""
    profiles = [one for one in parse_records(text) if "DefaultInboundAction" in one]
    if not profiles:
        return None
    # NotConfigured means Windows' default, which is to block.
    closed = [
        one
        for one in profiles
        if _field_value(one, "Enabled") == "True"
        and _field_value(one, "DefaultInboundAction") in ("Block", "NotConfigured")
    ]
    whole = all(_field_value(one, "Enabled") in ("True", "False") and _field_value(one, "Name") for one in profiles)
    return _blocking_profiles_reading(
        {_field_value(one, "Name"): one["DefaultInboundAction"][1] for one in closed}, whole
    )


def read_firewall_rules(text: str) -> Reading | None:
    """Reads Get-NetFirewallRule."""
    rules = [one for one in parse_records(text) if "DisplayName" in one or "Direction" in one]
    if not rules:
        return None
    whole = all(
        _field_value(one, "Enabled") in ("True", "False")
        and _field_value(one, "Direction") in ("Inbound", "Outbound")
        and _field_value(one, "Action")
        for one in rules
    )
    return _blocking_rules_reading(rules, "DisplayName", "True", "Inbound", whole)


def read_test_net_connection(text: str) -> Reading | None:
    """Reads Test-NetConnection."""
    found: dict[str, tuple[str, int]] = {}
    for record in parse_records("\n".join(line for line in text.splitlines() if not line.startswith("PS "))):
        for name, value in record.items():
            found.setdefault(name, value)
    if "ComputerName" not in found:
        return None
    ping, tcp = (
        _parse_truth(_field_value(found, "PingSucceeded")),
        _parse_truth(_field_value(found, "TcpTestSucceeded")),
    )
    port, computer = _field_value(found, "RemotePort"), _field_value(found, "ComputerName")
    lines = [
        at for at, line in numbered_lines(text) if re.match(r"(?:TcpTestSucceeded|PingSucceeded)\s*:|WARNING: ", line)
    ]
    reading = Reading.of((tcp is not None if port else ping is not None) and bool(_field_value(found, "RemoteAddress")))
    typed = powershell_word(computer)
    if tcp is False and ping is not False:
        says = (
            f"{computer} answers ping, and TCP port {port or '?'} does not open: nothing listens there, or a "
            "firewall blocks it"
        )
        listens = powershell_word(port)
        reading.proves("master-not-listening", says, lines, "medium", way="windows", port=listens, computer=typed)
    elif tcp is False or (tcp is None and ping is False):
        says = f"{computer} answers {f'neither ping nor TCP port {port}' if port else 'no ping'}"
        reading.proves("host-unreachable", says, lines, "medium", way="windows", computer=typed)
    return reading


def _parse_truth(word: str) -> bool | None:
    return {"True": True, "False": False}.get(word)
