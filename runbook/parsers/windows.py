"""Windows in English: netsh advfirewall, Get-NetFirewallProfile and -Rule, Test-NetConnection. Others are unknown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from runbook.model.commands import netsh_name, powershell_word
from runbook.parsers.tool_reading import CUT, Fault, Reading, Support, Tool, numbered

BLOCKED = ("firewall-drop", "firewall-reject", "data-ports-blocked", "master-not-listening")
ALLOW = (
    'netsh advfirewall firewall add rule name="training" dir=in action=allow protocol=TCP localport=PORT remoteip=PEER'
)
Block = dict[str, tuple[str, int]]


def records(text: str) -> Iterator[Block]:
    """`Name : value` or `Name   value` records, parted by the first name coming again; a value may go on below it."""
    here: Block = {}
    last = first = ""
    for at, line in numbered(text):
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


PROFILE = re.compile(r"(?P<name>Domain|Private|Public|Current) Profile Settings:\s*\Z")


def netsh_profiles(text: str) -> Reading | None:
    profiles: dict[str, dict[str, str]] = {}
    where: dict[str, int] = {}
    here: dict[str, str] = {}
    for at, line in numbered(text):
        if found := PROFILE.match(line.strip()):
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
    supports: tuple[Support, ...] = ()
    if closed:
        says = f"Windows' firewall is on ({', '.join(closed)}) and blocks every incoming connection that no rule allows"
        supports = (Support(BLOCKED, says, tuple(where[name] for name in closed), ALLOW),)
    return Reading("netsh advfirewall", (), supports, "" if whole else CUT)


def netsh_rules(text: str) -> Reading | None:
    rules = [record for record in records(text) if "Rule Name" in record]
    if not rules:
        return None
    whole = all(
        _value(one, "Enabled") in ("Yes", "No") and _value(one, "Direction") in ("In", "Out") and _value(one, "Action")
        for one in rules
    )
    return Reading("netsh advfirewall", (), _blocking(rules, "Rule Name", "Yes", "In"), "" if whole else CUT)


def _value(rule: Mapping[str, tuple[str, int]], name: str) -> str:
    return rule.get(name, ("", 0))[0]


def _blocking(rules: Sequence[Block], name: str, on: str, inbound: str) -> tuple[Support, ...]:
    """The rules that block. `name` is the field with a rule's name, `on` and `inbound` are words of the tool's."""
    found = []
    for rule in rules:
        if name not in rule or _value(rule, "Action") != "Block" or _value(rule, "Enabled") != on:
            continue
        called, at = rule[name]
        what = _value(rule, "LocalPort") or "all ports"
        way = "incoming" if _value(rule, "Direction") == inbound else "outgoing"
        says = f"Windows' firewall rule `{called}` blocks {way} {_value(rule, 'Protocol') or 'any'} traffic to {what}"
        remedy = f"netsh advfirewall firewall set rule name={netsh_name(called)} new enable=no"
        found.append(Support(BLOCKED, says, (at,), f"{remedy}   # if nothing else needs it"))
    return tuple(found)


def firewall_profiles(text: str) -> Reading | None:
    profiles = [one for one in records(text) if "DefaultInboundAction" in one]
    if not profiles:
        return None
    # NotConfigured means Windows' own default, which is to block.
    closed = [
        one
        for one in profiles
        if _value(one, "Enabled") == "True" and _value(one, "DefaultInboundAction") in ("Block", "NotConfigured")
    ]
    supports: tuple[Support, ...] = ()
    if closed:
        names = ", ".join(_value(one, "Name") for one in closed)
        says = f"Windows' firewall is on ({names}) and blocks every incoming connection that no rule allows"
        supports = (Support(BLOCKED, says, tuple(one["DefaultInboundAction"][1] for one in closed), ALLOW),)
    whole = all(_value(one, "Enabled") in ("True", "False") and _value(one, "Name") for one in profiles)
    return Reading("Get-NetFirewallProfile", (), supports, "" if whole else CUT)


def firewall_rules(text: str) -> Reading | None:
    rules = [one for one in records(text) if "DisplayName" in one or "Direction" in one]
    if not rules:
        return None
    whole = all(
        _value(one, "Enabled") in ("True", "False")
        and _value(one, "Direction") in ("Inbound", "Outbound")
        and _value(one, "Action")
        for one in rules
    )
    supports = _blocking(rules, "DisplayName", "True", "Inbound")
    return Reading("Get-NetFirewallRule", (), supports, "" if whole else CUT)


def test_connection(text: str) -> Reading | None:
    found: dict[str, tuple[str, int]] = {}
    for record in records("\n".join(line for line in text.splitlines() if not line.startswith("PS "))):
        for name, told in record.items():
            found.setdefault(name, told)
    if "ComputerName" not in found:
        return None
    ping, tcp = _truth(_value(found, "PingSucceeded")), _truth(_value(found, "TcpTestSucceeded"))
    port = _value(found, "RemotePort")
    computer = _value(found, "ComputerName")
    lines = tuple(
        at for at, line in numbered(text) if re.match(r"(?:TcpTestSucceeded|PingSucceeded)\s*:|WARNING: ", line)
    )
    faults = _unconnected(computer, port, ping, tcp, lines)
    whole = (tcp is not None if port else ping is not None) and bool(_value(found, "RemoteAddress"))
    return Reading("Test-NetConnection", faults, (), "" if whole else CUT)


def _unconnected(
    computer: str, port: str, ping: bool | None, tcp: bool | None, lines: tuple[int, ...]
) -> tuple[Fault, ...]:
    if tcp is True or (tcp is None and ping is not False):
        return ()
    if tcp is False and ping is not False:
        says = (
            f"{computer} answers ping, and TCP port {port or '?'} does not open: nothing listens there, or a "
            "firewall blocks it"
        )
        remedy = (
            f"netstat -ano | findstr :{powershell_word(port)}   # on {powershell_word(computer)}: listens "
            "anything? If so, its firewall: netsh advfirewall show allprofiles"
        )
        return (Fault("master-not-listening", says, remedy, lines, "medium"),)
    what = f"neither ping nor TCP port {port}" if port else "no ping"
    says = f"{computer} answers {what}"
    return (
        Fault("host-unreachable", says, f"Test-NetConnection {powershell_word(computer)} -TraceRoute", lines, "medium"),
    )


def _truth(word: str) -> bool | None:
    return {"True": True, "False": False}.get(word)


TOOLS = (
    Tool(
        "netsh advfirewall",
        r"(?:.*>\s*)?netsh\s+advfirewall\s+show",
        r"(?:Domain|Private|Public) Profile Settings:",
        r"\w|-+|\s*$|Ok\.",
        ("Profile Settings",),
        netsh_profiles,
    ),
    Tool(
        "netsh advfirewall rules",
        r"(?:.*>\s*)?netsh\s+advfirewall\s+firewall\s+show",
        r"Rule Name:\s",
        r"\w[\w ]*:|-+|\s|Ok\.",
        ("Rule Name:",),
        netsh_rules,
    ),
    Tool(
        "Test-NetConnection",
        r"(?:.*>\s*)?(?:Test-NetConnection|tnc)\b",
        r"ComputerName\s+: |PingReplyDetails \(RTT\) : |WARNING: (?:TCP connect to|Ping to)",
        r"\w[\w ()]*\s*: |\s|WARNING: |PS ",
        ("ComputerName",),
        test_connection,
    ),
    Tool(
        "Get-NetFirewallProfile",
        r"(?:.*>\s*)?Get-NetFirewallProfile",
        r"Name\s+: (?:Domain|Private|Public)\s*\Z",
        r"\w+\s+: |\s",
        ("DefaultInboundAction",),
        firewall_profiles,
    ),
    Tool(
        "Get-NetFirewallRule",
        r"(?:.*>\s*)?Get-NetFirewallRule",
        r"(?:Name|DisplayName)\s+: .*",
        r"\w+\s+: |\s",
        ("DisplayName",),
        firewall_rules,
    ),
)
