"""ip, ifconfig, getent, sysctl, ss, netstat and lsof: interfaces, routes, what a name means, and who listens on which
port.

A listener is not a fault; it explains a port that is in use.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from runbook.parsers.tool_reading import CUT, Fault, Reading, Support, Tool, numbered

ON_INTERFACE = (
    "interface-missing",
    "interface-wrong",
    "gloo-loopback-advertised",
    "master-address-not-local",
    "container-bridge-network",
)
LINK = re.compile(
    r"\A\d+: (?P<name>[^\s@:]+)(?:@[^\s:]+)?: <(?P<flags>[^>]*)>.*?\bmtu (?P<mtu>\d+)(?:.*?\bstate (?P<state>\w+))?"
)
BRIEF = re.compile(
    r"\A(?P<name>[^\s@]+)(?:@\S+)?\s+(?P<state>UP|DOWN|UNKNOWN|LOWERLAYERDOWN|DORMANT|NOTPRESENT"
    r"|TESTING)(?:\s+|\Z)(?P<addresses>(?:\S+/\d+(?:\s+|\Z))*|[0-9a-f:]{17} <.*>)\s*\Z"
)
CONFIG = re.compile(r"\A(?P<name>[^\s:]+(?::\w+)?):? +(?:flags=\d+<(?P<flags>[^>]*)>.*?mtu (?P<mtu>\d+)|Link encap:)")


ADDRESS = re.compile(
    r"\A\s+inet6? (?:addr: ?)?(?P<address>[0-9a-fA-F.:]+(?:/\d+)?)(?:.*?netmask "
    r"(?P<mask>[0-9.]+))?(?:.*?prefixlen (?P<prefix>\d+))?"
)


def interfaces(text: str) -> Reading | None:
    addresses: dict[str, list[str]] = {}
    first: dict[str, int] = {}
    here = ""
    unread = 0
    for at, line in numbered(text):
        if found := LINK.match(line) or CONFIG.match(line):
            here = found["name"]
            first.setdefault(here, at)
        elif brief := BRIEF.match(line):
            here = brief["name"]
            first.setdefault(here, at)
            addresses[here] = [word for word in brief["addresses"].split() if "/" in word]
        elif address := ADDRESS.match(line):
            addresses.setdefault(here, []).append(_with_prefix(address))
        elif line.strip() and not line.startswith((" ", "\t")):
            unread += 1
    if not first:
        return None
    listed = "; ".join(f"{name} {', '.join(addresses.get(name, []))}".strip() for name in list(first)[:8])
    support = Support(ON_INTERFACE, f"the node's interfaces are: {listed}", tuple(first.values())[:6])
    return Reading("interfaces", (), (support,), CUT if unread else "")


def _with_prefix(address: re.Match[str]) -> str:
    if "/" in address["address"]:
        return address["address"]
    if address["mask"]:
        try:
            return str(ipaddress.ip_interface(f"{address['address']}/{address['mask']}"))
        except ValueError:
            return address["address"]
    return f"{address['address']}/{address['prefix']}" if address["prefix"] else address["address"]


ROUTE = re.compile(
    r"\A(?:(?P<kind>unicast|local|broadcast|multicast|unreachable|blackhole|prohibit|throw|anycast"
    r"|nat) )?(?P<to>default|[0-9a-fA-F.:]+(?:/\d+)?)"
    r"(?: from (?P<asked_from>\S+))?(?: via (?:inet6? )?(?P<via>\S+))?(?: dev (?P<dev>\S+))?(?P<rest>.*)\Z"
)


def routes(text: str) -> Reading | None:
    found, default, unread = 0, False, 0
    lines = [(at, line) for at, line in numbered(text) if line.strip()]
    if refused := re.search(
        r"^RTNETLINK answers: (Network is unreachable|No route to host|Permission denied|Invalid argument)",
        text,
        re.MULTILINE,
    ):
        at = text.count("\n", 0, refused.start()) + 1
        fault = Fault(
            "no-route",
            f"the kernel has no route: {refused[1]}",
            "ip route; ip rule   # add one: sudo ip route add NETWORK via GATEWAY dev INTERFACE",
            (at,),
        )
        return Reading("ip route", (fault,))
    for _, line in lines:
        route = ROUTE.match(line.rstrip())
        if route is None or not (route["dev"] or route["via"] or route["kind"] or "nexthop" in route["rest"]):
            unread += not (line.startswith((" ", "\t")))
            continue
        found += 1
        default = default or (route["to"] == "default" and route["kind"] in (None, "unicast"))
    if not found:
        return None
    supports: tuple[Support, ...] = ()
    if not default and not lines[0][1].startswith(("local", "broadcast")) and found > 1:
        supports = (
            Support(
                ("no-route", "no-route-or-reject"),
                "the node has no default route, only those listed",
                tuple(at for at, _ in lines[:4]),
            ),
        )
    return Reading("ip route", (), supports, CUT if unread else "")


ANSWER = re.compile(
    r"\A(?P<address>(?=[0-9a-fA-F:]*[.:])[0-9a-fA-F.:%\w]+)\s+(?P<kind>STREAM|DGRAM|RAW)?\s*(?P<names>\S.*)?\Z"
)
ON_NAMES = (
    "gloo-loopback-advertised",
    "name-resolves-to-loopback",
    "master-addr-loopback",
    "rdzv-host-not-matched",
    "name-wrong-address",
)


def lookup(text: str) -> Reading | None:
    lines = [(at, line) for at, line in numbered(text) if line.strip()]
    answers = [(at, found) for at, line in lines if (found := ANSWER.match(line.strip()))]
    if not answers:
        return None
    names: dict[str, list[str]] = {}
    faults, supports = [], []
    name = ""
    for at, answer in answers:
        words = (answer["names"] or "").split()
        name = words[0] if words else name
        told = names.setdefault(name, [])
        if answer["address"] in told:
            continue
        told.append(answer["address"])
        if (
            name
            and not name.startswith(("localhost", "ip6-"))
            and _loopback(answer["address"])
            and not any(map(_is_address, words[:1]))
        ):
            says = f"{name} means {answer['address']} here, which no other machine can reach"
            remedy = f"in /etc/hosts give {name} its real address instead (Debian writes 127.0.1.1 there)"
            faults.append(Fault("name-resolves-to-loopback", says, remedy, (at,), "medium"))
            supports.append(Support(ON_NAMES, says, (at,), remedy))
    whole = (
        len(answers) == len(lines) and "" not in names and all(_is_address(answer["address"]) for _, answer in answers)
    )
    return Reading("getent", tuple(faults), tuple(supports), "" if whole else CUT)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def _loopback(text: str) -> bool:
    return _is_address(text) and ipaddress.ip_address(text.partition("%")[0]).is_loopback


SYSCTL = re.compile(r"\A(?P<key>[a-z][\w.-]*\.[\w-]+) ?= ?(?P<value>.*)\Z")


def sysctl(text: str) -> Reading | None:
    lines = [(at, line) for at, line in numbered(text) if line.strip()]
    found = {match["key"]: (match["value"].strip(), at) for at, line in lines if (match := SYSCTL.match(line.strip()))}
    if not found:
        return None
    supports: tuple[Support, ...] = ()
    span, at = found.get("net.ipv4.ip_local_port_range", ("", 0))
    ends = [int(word) for word in span.split() if word.isdecimal()]
    bad = span != "" and len(ends) != 2
    if len(ends) == 2:
        says = (
            f"the port lies in {ends[0]}-{ends[1]}, where the kernel takes ports for outgoing connections: any of "
            "them may have it"
        )
        remedy = (
            "take a rendezvous port below that range, or keep it free: sudo sysctl -w "
            "net.ipv4.ip_local_reserved_ports=PORT"
        )
        supports = (Support(("port-in-use",), says, (at,), remedy, ports=(ends[0], ends[1])),)
    return Reading("sysctl", (), supports, "" if len(found) == len(lines) and not bad else CUT)


_ADDRESSES = (
    Tool(
        "interfaces",
        r"(?:ip (?:-\S+ )*(?:a|addr|address|l|link)\b|ifconfig)",
        r"\d+: [^\s:]+: <[A-Z]|\S+\s+(?:UP|UNKNOWN)\s+(?:\d+\.\d+\.\d+\.\d+|[0-9a-f:]*::[0-9a-f:]*)/\d+"
        r"|\S+: flags=\d+<|\S+\s+Link encap:",
        r"\d+: |\s+|\S+\s+(?:UP|DOWN|UNKNOWN)\b|\S+: flags=",
        (" qdisc ", "UNKNOWN  ", " UP  ", "Link encap", ": flags="),
        interfaces,
    ),
    Tool(
        "ip route",
        r"ip (?:-\S+ )*(?:r|ro|route)\b",
        r"default via \S+ dev \S+|[\d.]+/\d+ dev \S+ proto",
        r"(?:default|[\da-f.:]+(?:/\d+)?|local|broadcast|unreachable|blackhole|prohibit|multicast|anycast) |\s+",
        ("default via", " proto kernel", " scope link"),
        routes,
    ),
    Tool(
        "getent",
        r"getent (?:-\S+ )*(?:a?hosts|ahostsv[46])\b",
        r"[0-9a-f.:]+\s+STREAM\b",
        r"[0-9a-f.:]+\s+",
        ("STREAM",),
        lookup,
    ),
    Tool(
        "sysctl",
        r"sysctl\b",
        r"(?:net|vm|kernel)\.[\w.-]+ = ",
        r"[a-z]\w*\.[\w.-]+ ?= ?",
        ("net.ipv4.", "net.core.", "vm.overcommit", "kernel.numa", "net.ipv6."),
        sysctl,
    ),
)


SS = re.compile(
    r"\A(?:(?P<net>tcp|udp|u_str)\s+)?(?P<state>[A-Z-]+)\s+\d+\s+\d+\s+(?P<address>\S+?):(?P<port>\d+"
    r"|\S+)\s+(?P<peer>\S+?):(?P<peer_port>\*|\w+)(?:\s+(?P<rest>\S.*))?\s*\Z"
)
SS_PROCESS = re.compile(r'\("(?P<program>[^"]*)",pid=(?P<pid>\d+)')
NETSTAT = re.compile(
    r"\A(?P<net>tcp6?|udp6?)\s+\d+\s+\d+\s+(?P<address>\S+):(?P<port>\d+|\w+)\s+\S+:\S+\s+(?P<state>LISTEN"
    r"|[A-Z_0-9]+)(?:\s+(?P<who>-|\d+/.*\S))?\s*\Z"
)
NETSTAT_WINDOWS = re.compile(
    r"\A\s*(?P<net>TCP|UDP)\s+(?P<address>\S+):(?P<port>\d+)\s+\S+:\S+\s+(?P<state>LISTENING"
    r"|[A-Z_]+)\s+(?P<pid>\d+)\s*\Z"
)
LSOF = re.compile(
    r"\A(?P<program>\S+)\s+(?P<pid>\d+)\s+(?:\d+\s+)?(?P<user>\S+)\s+\d+[a-z]*\s+IPv[46]\s+\S+\s+\S+\s+"
    r"(?P<net>TCP|UDP)\s+(?P<address>\S+):(?P<port>\d+|[\w-]+)(?:->\S+)?(?: \((?P<state>\w+)\))?\s*\Z"
)
HEADS = re.compile(
    r"\A(?:State\s+Recv-Q|Netid\s+State|Active (?:Internet|UNIX)|Proto\s+Recv-Q|Proto\s+Local Address"
    r"|COMMAND\s+PID|Active Connections|\s*$|\(Not all processes|\s*will not be shown|Active Connections)"
)


@dataclass(frozen=True, slots=True)
class Listener:
    address: str
    port: str
    at: int
    program: str | None = None
    pid: int | None = None
    user: str | None = None

    @property
    def who(self) -> str:
        if self.pid is None:
            return "a process that was not shown (it takes root to see others')"
        return f"{self.program or 'a process'} (pid {self.pid}{f' of {self.user}' if self.user else ''})"


def sockets(text: str) -> Reading | None:
    found: list[Listener] = []
    rows = other = 0
    for at, line in numbered(text):
        if HEADS.match(line):
            continue
        rows += 1
        row = SS.match(line) or NETSTAT.match(line) or NETSTAT_WINDOWS.match(line) or LSOF.match(line)
        if row is None:
            # `ss -i` and `-e` continue a row on an indented line.
            other += not line.startswith(("\t", " "))
        elif (row["state"] or "").startswith("LISTEN"):
            found.append(_listener(row, at))
    head = re.search(
        r"^(?:Netid\s+)?State\s+Recv-Q|^Proto\s+(?:Recv-Q|Local)|^[ \t]+Proto\s+Local|^COMMAND\s+PID",
        text,
        re.MULTILINE,
    )
    if not head and (not rows or other):
        return None
    return Reading("listening sockets", (), tuple(map(_support, found)), CUT if other else "")


def _listener(row: re.Match[str], at: int) -> Listener:
    told = row.groupdict()
    address = told["address"].strip("[]")
    if process := SS_PROCESS.search(told.get("rest") or ""):
        return Listener(address, told["port"], at, process["program"], int(process["pid"]))
    if (who := told.get("who")) and who != "-":
        pid, _, program = who.partition("/")
        return Listener(address, told["port"], at, program.strip(), int(pid))
    pid = told.get("pid")
    return Listener(address, told["port"], at, told.get("program"), int(pid) if pid else None, told.get("user"))


def _support(one: Listener) -> Support:
    if one.pid is None:
        remedy = f"sudo ss -ltnp 'sport = :{one.port}'   # as root it names the process; or give the job another port"
    else:
        remedy = (
            f"`ps -o user,lstart,cmd -p {one.pid}` shows what it is; a leftover ends with `kill {one.pid}`; "
            "otherwise give the job another port"
        )
    says = f"port {one.port} on {one.address} is held by {one.who}"
    return Support(("port-in-use", "stale-store"), says, (one.at,), remedy, about=one.port)


_SOCKETS = Tool(
    "listening sockets",
    r"(?:ss|netstat|lsof)\b",
    r"(?:Netid\s+)?State\s+Recv-Q\s+Send-Q|LISTEN\s+\d+\s+\d+\s+\S+:\S+\s+\S+:|Active Internet connections"
    r"|Proto\s+Recv-Q|Active Connections|\s+Proto\s+Local Address|COMMAND\s+PID\s+(?:TID\s+)?USER",
    r"(?:Netid|State|Proto|Active|COMMAND|\s+Proto|\s*$|\t|\()|(?:tcp|udp|\s+TCP|\s+UDP)"
    r"|(?:LISTEN|ESTAB|TIME-WAIT|CLOSE-WAIT|SYN-|FIN-|LAST-|UNCONN)|\S+\s+\d+\s+.*\bIPv[46]\b",
    ("Recv-Q", "LISTEN", "Local Address", "COMMAND"),
    sockets,
)

TOOLS = (_SOCKETS, *_ADDRESSES)
