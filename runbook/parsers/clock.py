"""chronyc, timedatectl and ntpq: does this clock follow another one, and how far is it off?"""

from __future__ import annotations

import re

from runbook.parsers.tool_reading import CUT, Fault, Reading, Support, Tool, fields, number, numbered, yes

WARN_S, FAIL_S = 2.0, 10.0
"""Of the live check as well: torch's elastic agent drops a peer whose stamped heartbeat is more than 15 s old
(pytorch#56538)."""

REMEDY = "sudo timedatectl set-ntp true   # or: sudo systemctl enable --now chrony && sudo chronyc makestep"


def _loose(why: str, lines: tuple[int, ...]) -> tuple[tuple[Fault, ...], tuple[Support, ...]]:
    """A clock that follows no other: it may be right all the same."""
    fault = Fault("clock-skew", f"this clock follows no other: {why}", REMEDY, lines, "low")
    return (fault,), (Support(("clock-skew",), f"a clock follows no other: {why}", lines, REMEDY),)


def _off(seconds: float, at: int) -> tuple[Fault, ...]:
    if abs(seconds) < WARN_S:
        return ()
    says = f"this clock is {abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'} its time servers"
    return (Fault("clock-skew", says, "sudo chronyc makestep", (at,), "high" if abs(seconds) >= FAIL_S else "medium"),)


def tracking(text: str) -> Reading | None:
    found = fields(text, ":")
    if "Leap status" not in found and "Reference ID" not in found:
        return None
    leap, leap_at = found.get("Leap status", ("", 0))
    time, time_at = found.get("System time", ("", 0))
    stratum = number(found.get("Stratum", ("", 0))[0])
    offset = re.match(r"([\d.]+) seconds (slow|fast) of NTP time\Z", time)
    seconds = None if not offset else float(offset[1]) * (-1 if offset[2] == "slow" else 1)
    known = leap in ("Normal", "Insert second", "Delete second")
    synchronized = True if known and stratum else False if leap == "Not synchronised" else None
    faults, supports = _loose("Leap status: Not synchronised", (leap_at,)) if synchronized is False else ((), ())
    if seconds is not None and synchronized:
        faults = _off(seconds, time_at)
    whole = synchronized is not None and seconds is not None
    return Reading("chronyc tracking", faults, supports, "" if whole else CUT)


SOURCE = re.compile(
    r"(?P<mode>[\^=#])(?P<state>[*+\-?x~ ])\s*(?P<name>\S+)\s+(?P<stratum>\d+)\s+(?P<poll>-?\d+)\s+(?P<reach>"
    r"[0-7]+)\s+(?P<last>\S+)\s+(?P<offset>\S.*)"
)


def sources(text: str) -> Reading | None:
    rows = [(at, line) for at, line in numbered(text) if re.match(r"[\^=#][*+\-?x~ ]", line)]
    parsed = [(at, found) for at, line in rows if (found := SOURCE.match(line))]
    if not parsed and not re.search(r"Name/IP address\s+Stratum", text):
        return None
    promised = re.search(r"Number of sources = (\d+)", text)
    whole = bool(rows) and len(parsed) == len(rows) and (not promised or int(promised[1]) == len(rows))
    if whole and all(found["state"] != "*" for _, found in parsed):
        faults, supports = _loose("chronyc has selected none of its sources", tuple(at for at, _ in rows[:4]))
        return Reading("chronyc sources", faults, supports)
    none = promised is not None and promised[1] == "0"
    return Reading("chronyc sources", unknown="" if whole else "chronyc has no source" if none else CUT)


SYNCHRONIZED = ("System clock synchronized", "NTP synchronized")
SERVICE = ("NTP service", "systemd-timesyncd.service active", "Network time on", "NTP enabled")


def timedatectl(text: str) -> Reading | None:
    """Three generations of names: `NTP synchronized`, `systemd-timesyncd.service active`, `NTP service`."""
    found = fields(text, ":")
    if "Universal time" not in found and not any(name in found for name in SYNCHRONIZED):
        return None
    told, at = next((found[name] for name in SYNCHRONIZED if name in found), ("", 0))
    synchronized = yes(told)
    service_at = next((found[name][1] for name in SERVICE if name in found), 0)
    faults: tuple[Fault, ...] = ()
    supports: tuple[Support, ...] = ()
    if synchronized is False:
        faults, supports = _loose(
            "the system clock is not synchronized", tuple(line for line in (at, service_at) if line)
        )
    whole = synchronized is not None and yes(found.get("RTC in local TZ", ("", 0))[0]) is not None
    return Reading("timedatectl", faults, supports, "" if whole else CUT)


UNITS = {
    "us": 1e-3,
    "ms": 1.0,
    "s": 1e3,
    "min": 6e4,
    "h": 36e5,
    "d": 864e5,
    "w": 6048e5,
    "month": 2629800e3,
    "y": 31557600e3,
}


def timesync(text: str) -> Reading | None:
    found = fields(text, ":")
    if "Server" not in found or "Poll interval" not in found:
        return None
    offset, at = found.get("Offset", ("", 0))
    milliseconds = _milliseconds(offset)
    leap = found.get("Leap", ("", 0))[0]
    packets = number(found.get("Packet count", ("", 0))[0])
    synchronized = True if leap == "normal" and milliseconds is not None else False if packets == 0 else None
    faults: tuple[Fault, ...] = ()
    supports: tuple[Support, ...] = ()
    if synchronized is False:
        faults, supports = _loose("no time server has answered yet", (found["Packet count"][1],))
    elif milliseconds is not None and synchronized:
        faults = _off(-milliseconds / 1000, at)
    return Reading("timedatectl timesync-status", faults, supports, "" if synchronized is not None else CUT)


def _milliseconds(text: str) -> float | None:
    """`-5.224ms`, `+1min 2.5s`."""
    parts = re.findall(r"(?<![\d.])([\d.]+)(us|ms|s|min|h|d|w|month|y)(?![a-z])", text)
    if not parts or not re.fullmatch(r"[-+]?(?:[\d.]+[a-z]+ ?)+", text):
        return None
    try:
        total = sum(float(value) * UNITS[unit] for value, unit in parts)
    except ValueError:
        return None
    return -total if text.startswith("-") else total


PEER = re.compile(
    r"\A(?P<tally>[ x.\-+#*o])(?P<remote>\S+)\s+(?P<refid>\S+)\s+(?P<stratum>\d+)\s+(?P<type>\S)\s+"
    r"(?P<when>\S+)\s+(?P<poll>\d+[mhd]?)\s+"
    r"(?P<reach>[0-7]{1,3})\s+(?P<delay>[\d.-]+)\s+(?P<offset>[+\d.-]+)\s+(?P<jitter>[\d.]+)\s*\Z"
)


def ntpq(text: str) -> Reading | None:
    head = re.search(r"^[ \t]+remote\s+refid\s+st t when poll reach.*$", text, re.MULTILINE)
    if not head:
        return None
    first = text[: head.end()].count("\n") + 2
    rows = [(at, line) for at, line in numbered(text) if at >= first and line.strip() and not line.startswith("==")]
    peers = [(at, found) for at, line in rows if (found := PEER.match(line))]
    chosen = next((found for _, found in peers if found["tally"] in "*o"), None)
    whole = bool(rows) and len(peers) == len(rows)
    if whole and chosen is None:
        silent = all(found["reach"] == "0" for _, found in peers)
        why = "no time server answers on UDP port 123" if silent else "ntpd has chosen none of its servers yet"
        faults, supports = _loose(why, tuple(at for at, _ in peers[:4]))
        return Reading("ntpq", faults, supports)
    at = next((at for at, found in peers if found is chosen), 0)
    offset = number(chosen["offset"]) if chosen else None
    return Reading("ntpq", _off(-offset / 1000, at) if offset is not None else (), (), "" if whole else CUT)


TOOLS = (
    Tool(
        "chronyc tracking",
        r"chronyc (?:-\S+ )*tracking\b",
        r"Reference ID\s+: ",
        r"[A-Z][\w ()]+: ",
        ("Reference ID",),
        tracking,
    ),
    Tool(
        "chronyc sources",
        r"chronyc (?:-\S+ )*sources\b",
        r"210 Number of sources|MS Name/IP address",
        r"210 |MS |=+$|[\^=#][*+\-?x~ ]|\s*$",
        ("Name/IP address",),
        sources,
    ),
    Tool(
        "timedatectl timesync-status",
        r"timedatectl timesync-status",
        r"\s*Server: ",
        r"\s*[A-Z][\w ]+: ",
        ("Poll interval: ",),
        timesync,
    ),
    Tool(
        "timedatectl",
        r"timedatectl(?: status)?\s*$",
        r"\s*Local time: ",
        r"\s*[\w. -]+: |\s{10,}|Warning:|\s*$",
        ("Local time: ",),
        timedatectl,
    ),
    Tool(
        "ntpq",
        r"ntpq\b",
        r"\s+remote\s+refid\s+st t when",
        r"[ x.\-+#*o]\S+\s+\S+\s+\d+ |=+$|\s+remote",
        ("refid",),
        ntpq,
    ),
)
