"""ss, netstat and lsof: who listens on which port. A listener is no fault; it explains a port that is in use."""

from __future__ import annotations

import re
from dataclasses import dataclass

from runbook.parsers.reading import CUT, Reading, Support, Tool, numbered

SS = re.compile(
    r"\A(?:(?P<net>tcp|udp|u_str)\s+)?(?P<state>[A-Z-]+)\s+\d+\s+\d+\s+(?P<address>\S+?):(?P<port>\d+|\S+)\s+(?P<peer>\S+?):(?P<peer_port>\*|\w+)(?:\s+(?P<rest>\S.*))?\s*\Z"
)
SS_PROCESS = re.compile(r'\("(?P<program>[^"]*)",pid=(?P<pid>\d+)')
NETSTAT = re.compile(
    r"\A(?P<net>tcp6?|udp6?)\s+\d+\s+\d+\s+(?P<address>\S+):(?P<port>\d+|\w+)\s+\S+:\S+\s+(?P<state>LISTEN|[A-Z_0-9]+)(?:\s+(?P<who>-|\d+/.*\S))?\s*\Z"
)
NETSTAT_WINDOWS = re.compile(
    r"\A\s*(?P<net>TCP|UDP)\s+(?P<address>\S+):(?P<port>\d+)\s+\S+:\S+\s+(?P<state>LISTENING|[A-Z_]+)\s+(?P<pid>\d+)\s*\Z"
)
LSOF = re.compile(
    r"\A(?P<program>\S+)\s+(?P<pid>\d+)\s+(?:\d+\s+)?(?P<user>\S+)\s+\d+[a-z]*\s+IPv[46]\s+\S+\s+\S+\s+(?P<net>TCP|UDP)\s+(?P<address>\S+):(?P<port>\d+|[\w-]+)(?:->\S+)?(?: \((?P<state>\w+)\))?\s*\Z"
)
HEADS = re.compile(r"\A(?:State\s+Recv-Q|Netid\s+State|Active (?:Internet|UNIX)|Proto\s+Recv-Q|Proto\s+Local Address|COMMAND\s+PID|Active Connections|\s*$|\(Not all processes|\s*will not be shown|Active Connections)")  # fmt: skip


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


def read(text: str) -> Reading | None:
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
    supports = tuple(_support(one) for one in found)
    facts = {
        "listeners": [
            {"address": one.address, "port": one.port, "program": one.program, "pid": one.pid, "user": one.user}
            for one in found
        ]
    }
    return Reading("listening sockets", facts, (), supports, CUT if other else "")


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
        remedy = f"`ps -o user,lstart,cmd -p {one.pid}` shows what it is; a leftover ends with `kill {one.pid}`; else give the job another port"
    says = f"port {one.port} on {one.address} is held by {one.who}"
    return Support(("port-in-use", "stale-store"), says, (one.at,), remedy, about=one.port)


TOOL = Tool(
    "listening sockets", r"(?:ss|netstat|lsof)\b",
    r"(?:Netid\s+)?State\s+Recv-Q\s+Send-Q|LISTEN\s+\d+\s+\d+\s+\S+:\S+\s+\S+:|Active Internet connections|Proto\s+Recv-Q|Active Connections|\s+Proto\s+Local Address|COMMAND\s+PID\s+(?:TID\s+)?USER",
    r"(?:Netid|State|Proto|Active|COMMAND|\s+Proto|\s*$|\t|\()|(?:tcp|udp|\s+TCP|\s+UDP)|(?:LISTEN|ESTAB|TIME-WAIT|CLOSE-WAIT|SYN-|FIN-|LAST-|UNCONN)|\S+\s+\d+\s+.*\bIPv[46]\b",
    ("Recv-Q", "LISTEN", "Local Address", "COMMAND"), read,
)  # fmt: skip
