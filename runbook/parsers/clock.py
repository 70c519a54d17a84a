"""Readers of chronyc, timedatectl and ntpq: does this clock follow another one, and how far is it off?"""

from __future__ import annotations

import re
from collections.abc import Sequence

from runbook.parsers.tool_reading import (
    CUT_OR_UNKNOWN,
    Reading,
    fields_by_name,
    leading_number,
    numbered_lines,
    parse_yes_no,
)

CLOCK_OFFSET_WARN_S, CLOCK_OFFSET_FAIL_S = 2.0, 10.0
"""From so many seconds on a clock is a finding of medium, and of high confidence; the live check warns and fails by
them. torch's elastic agent drops a peer whose stamped heartbeat is more than 15 s old (pytorch#56538)."""


def _unsynchronized_reading(why: str, lines: Sequence[int]) -> Reading:
    """The reading for a clock that follows no other, for the reason `why`; it may show the right time all the same."""
    found = Reading()
    found.proves("clock-skew", f"this clock follows no other: {why}", lines, "low", way="follows-none")
    found.explains("clock-skew", f"a clock follows no other: {why}", lines, way="follows-none")
    return found


def _clock_offset_reading(seconds: float | None, at: int) -> Reading:
    """The reading for a clock that follows another one and is `seconds` ahead of it; None: the output does not show how
    far it is off."""
    found = Reading()
    if seconds is not None and abs(seconds) >= CLOCK_OFFSET_WARN_S:
        says = f"this clock is {abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'} its time servers"
        found.proves("clock-skew", says, (at,), "high" if abs(seconds) >= CLOCK_OFFSET_FAIL_S else "medium", way="off")
    return found


def read_chronyc_tracking(text: str) -> Reading | None:
    """Reads `chronyc tracking`."""
    found = fields_by_name(text, ":")
    if "Leap status" not in found and "Reference ID" not in found:
        return None
    leap, leap_at = found.get("Leap status", ("", 0))
    time, time_at = found.get("System time", ("", 0))
    stratum = leading_number(found.get("Stratum", ("", 0))[0])
    offset = re.match(r"([\d.]+) seconds (slow|fast) of NTP time\Z", time)
    seconds = None if not offset else float(offset[1]) * (-1 if offset[2] == "slow" else 1)
    known = leap in ("Normal", "Insert second", "Delete second") and bool(stratum)
    loose = leap == "Not synchronised"
    reading = (
        _unsynchronized_reading("Leap status: Not synchronised", (leap_at,))
        if loose
        else _clock_offset_reading(seconds if known else None, time_at)
    )
    reading.unknown = "" if seconds is not None and (known or loose) else CUT_OR_UNKNOWN
    return reading


CHRONY_SOURCE = re.compile(
    r"(?P<mode>[\^=#])(?P<state>[*+\-?x~ ])\s*(?P<name>\S+)\s+(?P<stratum>\d+)\s+(?P<poll>-?\d+)\s+(?P<reach>"
    r"[0-7]+)\s+(?P<last>\S+)\s+(?P<offset>\S.*)"
)


def read_chronyc_sources(text: str) -> Reading | None:
    """Reads `chronyc sources`."""
    rows = [(at, line) for at, line in numbered_lines(text) if re.match(r"[\^=#][*+\-?x~ ]", line)]
    parsed = [(at, found) for at, line in rows if (found := CHRONY_SOURCE.match(line))]
    if not parsed and not re.search(r"Name/IP address\s+Stratum", text):
        return None
    promised = re.search(r"Number of sources = (\d+)", text)
    whole = bool(rows) and len(parsed) == len(rows) and (not promised or int(promised[1]) == len(rows))
    if whole and all(found["state"] != "*" for _, found in parsed):
        return _unsynchronized_reading("chronyc has selected none of its sources", [at for at, _ in rows[:4]])
    return Reading("chronyc has no source") if promised and promised[1] == "0" and not whole else Reading.of(whole)


SYNCHRONIZED_FIELDS = ("System clock synchronized", "NTP synchronized")
NTP_SERVICE_FIELDS = ("NTP service", "systemd-timesyncd.service active", "Network time on", "NTP enabled")


def read_timedatectl(text: str) -> Reading | None:
    """Reads `timedatectl`, in the words of each of its generations: `NTP synchronized`,
    `systemd-timesyncd.service active`, `NTP service`."""
    found = fields_by_name(text, ":")
    if "Universal time" not in found and not any(name in found for name in SYNCHRONIZED_FIELDS):
        return None
    synchronized, at = next((found[name] for name in SYNCHRONIZED_FIELDS if name in found), ("", 0))
    service_at = next((found[name][1] for name in NTP_SERVICE_FIELDS if name in found), 0)
    reading = Reading()
    if parse_yes_no(synchronized) is False:
        reading = _unsynchronized_reading(
            "the system clock is not synchronized", [line for line in (at, service_at) if line]
        )
    if parse_yes_no(synchronized) is None or parse_yes_no(found.get("RTC in local TZ", ("", 0))[0]) is None:
        reading.unknown = CUT_OR_UNKNOWN
    return reading


MILLISECONDS_BY_UNIT = {
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
"""Milliseconds of the units in which systemd writes a span of time."""


def read_timesync_status(text: str) -> Reading | None:
    """Reads `timedatectl timesync-status`."""
    found = fields_by_name(text, ":")
    if "Server" not in found or "Poll interval" not in found:
        return None
    offset, at = found.get("Offset", ("", 0))
    milliseconds = _span_milliseconds(offset)
    if found.get("Leap", ("", 0))[0] == "normal" and milliseconds is not None:
        return _clock_offset_reading(-milliseconds / 1000, at)
    if leading_number(found.get("Packet count", ("", 0))[0]) == 0:
        return _unsynchronized_reading("no time server has answered yet", (found["Packet count"][1],))
    return Reading(CUT_OR_UNKNOWN)


def _span_milliseconds(text: str) -> float | None:
    """The milliseconds of a span such as `-5.224ms` or `+1min 2.5s`; None if the text is no span."""
    parts = re.findall(r"(?<![\d.])([\d.]+)(us|ms|s|min|h|d|w|month|y)(?![a-z])", text)
    if not parts or not re.fullmatch(r"[-+]?(?:[\d.]+[a-z]+ ?)+", text):
        return None
    try:
        total = sum(float(value) * MILLISECONDS_BY_UNIT[unit] for value, unit in parts)
    except ValueError:
        return None
    return -total if text.startswith("-") else total


NTPQ_PEER = re.compile(
    r"\A(?P<tally>[ x.\-+#*o])(?P<remote>\S+)\s+(?P<refid>\S+)\s+(?P<stratum>\d+)\s+(?P<type>\S)\s+"
    r"(?P<when>\S+)\s+(?P<poll>\d+[mhd]?)\s+"
    r"(?P<reach>[0-7]{1,3})\s+(?P<delay>[\d.-]+)\s+(?P<offset>[+\d.-]+)\s+(?P<jitter>[\d.]+)\s*\Z"
)


def read_ntpq(text: str) -> Reading | None:
    """Reads the table of peers of `ntpq -p`."""
    head = re.search(r"^[ \t]+remote\s+refid\s+st t when poll reach.*$", text, re.MULTILINE)
    if not head:
        return None
    first = text[: head.end()].count("\n") + 2
    rows = [
        (at, line) for at, line in numbered_lines(text) if at >= first and line.strip() and not line.startswith("==")
    ]
    peers = [(at, found) for at, line in rows if (found := NTPQ_PEER.match(line))]
    at, chosen = next(((at, found) for at, found in peers if found["tally"] in "*o"), (0, None))
    whole = bool(rows) and len(peers) == len(rows)
    if whole and chosen is None:
        silent = all(found["reach"] == "0" for _, found in peers)
        why = "no time server answers on UDP port 123" if silent else "ntpd has chosen none of its servers yet"
        return _unsynchronized_reading(why, [at for at, _ in peers[:4]])
    offset = leading_number(chosen["offset"]) if chosen else None
    reading = _clock_offset_reading(None if offset is None else -offset / 1000, at)
    reading.unknown = "" if whole else CUT_OR_UNKNOWN
    return reading
