"""Readers of ip, ifconfig, getent, sysctl, ss, netstat and lsof: interfaces, routes, the addresses of a name, and which
process listens on which port.

A listener is not a fault; it explains a port that is in use.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

from runbook.files.address import is_ip, is_loopback
from runbook.model.command_quoting import shell_word
from runbook.model.units import parse_whole_number
from runbook.parsers.tool_reading import CUT_OR_UNKNOWN, Reading, Support, numbered_lines

INTERFACE_CAUSES = (
    "interface-wrong",
    "gloo-loopback-advertised",
    "master-address-not-local",
    "container-bridge-network",
)
IP_LINK = re.compile(
    r"\A\d+: (?P<name>[^\s@:]+)(?:@[^\s:]+)?: <(?P<flags>[^>]*)>.*?\bmtu (?P<mtu>\d+)(?:.*?\bstate (?P<state>\w+))?"
)
IP_BRIEF_ROW = re.compile(
    r"\A(?P<name>[^\s@]+)(?:@\S+)?\s+(?P<state>UP|DOWN|UNKNOWN|LOWERLAYERDOWN|DORMANT|NOTPRESENT"
    r"|TESTING)(?:\s+|\Z)(?P<addresses>(?:\S+/\d+(?:\s+|\Z))*|[0-9a-f:]{17} <.*>)\s*\Z"
)
IFCONFIG_HEAD = re.compile(
    r"\A(?P<name>[^\s:]+(?::\w+)?):? +(?:flags=\d+<(?P<flags>[^>]*)>.*?mtu (?P<mtu>\d+)|Link encap:)"
)


INET_ADDRESS = re.compile(
    r"\A\s+inet6? (?:addr: ?)?(?P<address>[0-9a-fA-F.:]+(?:/\d+)?)(?:.*?netmask "
    r"(?P<mask>[0-9]+\.[0-9.]+))?(?:.*?prefixlen (?P<prefix>\d+))?"
)


def read_interfaces(text: str) -> Reading | None:
    """Reads `ip addr`, `ip -br addr`, `ip link` and `ifconfig`."""
    addresses: dict[str, list[str]] = {}
    first: dict[str, int] = {}
    here = ""
    unread = 0
    for at, line in numbered_lines(text):
        if found := IP_LINK.match(line) or IFCONFIG_HEAD.match(line):
            here = found["name"]
            first.setdefault(here, at)
        elif brief := IP_BRIEF_ROW.match(line):
            here = brief["name"]
            first.setdefault(here, at)
            addresses[here] = [word for word in brief["addresses"].split() if "/" in word]
        elif address := INET_ADDRESS.match(line):
            addresses.setdefault(here, []).append(_address_with_prefix(address))
        elif line.strip() and not line.startswith((" ", "\t")):
            unread += 1
    if not first:
        return None
    listed = "; ".join(f"{name} {', '.join(addresses.get(name, []))}".strip() for name in list(first)[:8])
    reading = Reading.of(not unread)
    says = f"the node's interfaces are: {listed}"
    reading.explains("interface-missing", says, list(first.values())[:6], also=INTERFACE_CAUSES)
    return reading


def _address_with_prefix(address: re.Match[str]) -> str:
    """The address with the length of its prefix, `10.0.0.1/24`, also where the output has a netmask."""
    if "/" in address["address"]:
        return address["address"]
    if address["mask"]:
        try:
            return str(ipaddress.ip_interface(f"{address['address']}/{address['mask']}"))
        except ValueError:
            return address["address"]
    return f"{address['address']}/{address['prefix']}" if address["prefix"] else address["address"]


IP_ROUTE = re.compile(
    r"\A(?:(?P<kind>unicast|local|broadcast|multicast|unreachable|blackhole|prohibit|throw|anycast"
    r"|nat) )?(?P<to>default|[0-9a-fA-F.:]+(?:/\d+)?)"
    r"(?: from (?P<asked_from>\S+))?(?: via (?:inet6? )?(?P<via>\S+))?(?: dev (?P<dev>\S+))?(?P<rest>.*)\Z"
)


def read_routes(text: str) -> Reading | None:
    """Reads `ip route` and `ip route get`."""
    found, default, unread = 0, False, 0
    lines = [(at, line) for at, line in numbered_lines(text) if line.strip()]
    if refused := re.search(
        r"^RTNETLINK answers: (Network is unreachable|No route to host|Permission denied|Invalid argument)",
        text,
        re.MULTILINE,
    ):
        reading = Reading()
        at = text.count("\n", 0, refused.start()) + 1
        reading.proves("no-route", f"the kernel has no route: {refused[1]}", (at,), way="by-hand")
        return reading
    for _, line in lines:
        route = IP_ROUTE.match(line.rstrip())
        if route is None or not (route["dev"] or route["via"] or route["kind"] or "nexthop" in route["rest"]):
            unread += not (line.startswith((" ", "\t")))
            continue
        found += 1
        default = default or (route["to"] == "default" and route["kind"] in (None, "unicast"))
    if not found:
        return None
    reading = Reading.of(not unread)
    if not default and not lines[0][1].startswith(("local", "broadcast")) and found > 1:
        says = "the node has no default route, only those listed"
        reading.explains("no-route", says, [at for at, _ in lines[:4]], also=("no-route-or-reject",))
    return reading


GETENT_ANSWER = re.compile(
    r"\A(?P<address>(?=[0-9a-fA-F:]*[.:])[0-9a-fA-F.:%\w]+)\s+(?P<kind>STREAM|DGRAM|RAW)?\s*(?P<names>\S.*)?\Z"
)
NAME_CAUSES = ("gloo-loopback-advertised", "master-addr-loopback", "rdzv-host-not-matched", "name-wrong-address")


def read_getent(text: str) -> Reading | None:
    """Reads `getent hosts` and `getent ahosts`."""
    lines = [(at, line) for at, line in numbered_lines(text) if line.strip()]
    answers = [(at, found) for at, line in lines if (found := GETENT_ANSWER.match(line.strip()))]
    if not answers:
        return None
    names: dict[str, list[str]] = {}
    reading = Reading()
    name = ""
    for at, answer in answers:
        words, address = (answer["names"] or "").split(), answer["address"]
        name = words[0] if words else name
        addresses = names.setdefault(name, [])
        if address in addresses:
            continue
        addresses.append(address)
        ours = name.startswith(("localhost", "ip6-")) or any(map(is_ip, words[:1]))
        if name and not ours and is_loopback(address):
            says = f"{name} means {address} here, which no other machine can reach"
            reading.proves("name-resolves-to-loopback", says, (at,), "medium", way="hosts", name=name)
            reading.supports.append(Support(NAME_CAUSES, says, (at,), reading.faults[-1].remedy))
    read = len(answers) == len(lines) and "" not in names
    if not read or not all(is_ip(answer["address"]) for _, answer in answers):
        reading.unknown = CUT_OR_UNKNOWN
    return reading


SYSCTL_LINE = re.compile(r"\A(?P<key>[a-z][\w.-]*\.[\w-]+) ?= ?(?P<value>.*)\Z")


def read_sysctl(text: str) -> Reading | None:
    """Reads `sysctl`: the range of ports that the kernel uses for outgoing connections."""
    lines = [(at, line) for at, line in numbered_lines(text) if line.strip()]
    found = {
        match["key"]: (match["value"].strip(), at) for at, line in lines if (match := SYSCTL_LINE.match(line.strip()))
    }
    if not found:
        return None
    span, at = found.get("net.ipv4.ip_local_port_range", ("", 0))
    ends = [end for word in span.split() if (end := parse_whole_number(word)) is not None]
    reading = Reading.of(len(found) == len(lines) and (not span or len(ends) == 2))
    if len(ends) == 2:
        low, high = ends
        says = f"the port lies in {low}-{high}, where the kernel takes ports for outgoing connections: any may have it"
        reading.explains("port-in-use", says, (at,), ports=(low, high), way="handed-out")
    return reading


SS_ROW = re.compile(
    r"\A(?:(?P<net>tcp|udp|u_str)\s+)?(?P<state>[A-Z-]+)\s+\d+\s+\d+\s+(?P<address>\S+):(?P<port>[^\s:]+)\s+"
    r"(?P<peer>\S+):(?P<peer_port>\*|\w+)(?:\s+(?P<rest>\S.*))?\s*\Z"
)
SS_PROCESS = re.compile(r'\("(?P<program>[^"]*)",pid=(?P<pid>\d+)')
NETSTAT_ROW = re.compile(  # a row of UDP alone may have no state; -e adds a user and an inode
    r"\A(?P<net>udp6?|tcp6?(?=.* [A-Z]{2}))\s+\d+\s+\d+\s+(?P<address>\S+):(?P<port>\d+|\w+)\s+\S+:\S+"
    r"(?:\s+(?P<state>[A-Z][A-Z_0-9]*))?(?:\s+\S+\s+\d+)?(?:\s+(?P<who>-|\d+/.*\S))?\s*\Z"
)
WINDOWS_NETSTAT_ROW = re.compile(
    r"\A\s*(?P<net>TCP|UDP)\s+(?P<address>\S+):(?P<port>\d+)\s+\S+:\S+\s+(?P<state>LISTENING"
    r"|[A-Z_]+)\s+(?P<pid>\d+)\s*\Z"
)
LSOF_ROW = re.compile(
    r"\A(?P<program>\S+)\s+(?P<pid>\d+)\s+(?:\d+\s+)?(?P<user>\S+)\s+\d+[a-z]*\s+IPv[46]\s+\S+\s+\S+\s+"
    r"(?P<net>TCP|UDP)\s+(?P<address>\S+):(?P<port>\d+|[\w-]+)(?:->\S+)?(?: \((?P<state>\w+)\))?\s*\Z"
)
SOCKET_TABLE_HEADS = re.compile(
    r"\A(?:State\s+Recv-Q|Netid\s+State|Active (?:Internet|UNIX)|Proto\s+Recv-Q|Proto\s+Local Address"
    r"|COMMAND\s+PID|Active Connections|\s*$|\(Not all processes|\s*will not be shown|Active Connections)"
)


def read_sockets(text: str) -> Reading | None:
    """Reads ss, netstat (of Windows as well) and lsof: who holds which port."""
    reading = Reading()
    rows = other = 0
    for at, line in numbered_lines(text):
        if SOCKET_TABLE_HEADS.match(line):
            continue
        rows += 1
        row = SS_ROW.match(line) or NETSTAT_ROW.match(line) or WINDOWS_NETSTAT_ROW.match(line) or LSOF_ROW.match(line)
        if row is None:
            # `ss -i` and `-e` continue a row on an indented line.
            other += not line.startswith(("\t", " "))
        elif (row["state"] or "").startswith("LISTEN"):
            port, (who, pid) = row["port"], _listening_process(row.groupdict())
            says = f"port {port} on {row['address'].strip('[]')} is held by {who}"
            way = "held-windows" if row.re is WINDOWS_NETSTAT_ROW else "held" if pid else "shown-to-root"
            reading.explains(
                "port-in-use",
                says,
                (at,),
                also=("stale-store",),
                about=port,
                way=way,
                port=shell_word(port),
                pid=shell_word(pid),
            )
    head = re.search(
        r"^(?:Netid\s+)?State\s+Recv-Q|^Proto\s+(?:Recv-Q|Local)|^[ \t]+Proto\s+Local|^COMMAND\s+PID",
        text,
        re.MULTILINE,
    )
    if not head and (not rows or other):
        return None
    reading.unknown = CUT_OR_UNKNOWN if other else ""
    return reading


def _listening_process(row: Mapping[str, str | None]) -> tuple[str, str]:
    """The process that listens, in words, and its pid; the pid is empty if the output does not show it."""
    program, pid, user = row.get("program"), row.get("pid"), row.get("user")
    if process := SS_PROCESS.search(row.get("rest") or ""):
        program, pid = process["program"], process["pid"]
    elif (who := row.get("who")) and who != "-":
        pid, _, program = who.partition("/")
    if not pid:
        return "a process that was not shown (it takes root to see others')", ""
    return f"{(program or '').strip() or 'a process'} (pid {pid}{f' of {user}' if user else ''})", pid
