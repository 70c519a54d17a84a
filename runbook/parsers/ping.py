"""Reads ping of Linux, busybox, macOS and the BSDs, and of Windows in English. Losses are judged by ping's summary, not
by the lines before it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from runbook.causes.catalogue import Confidence
from runbook.model.command_quoting import powershell_word, shell_word
from runbook.parsers.tool_reading import CUT_OR_UNKNOWN, Fault, Reading

PING_HEADER = re.compile(
    r"^PING (?P<target>\S*?) ?\((?P<ip>[^)]*)\)(?: from \S+ (?:[^\s:]+)?:?)?(?:.*? "
    r"(?P<size>\d+)(?:\(\d+\))? (?:data )?bytes(?: of data)?)?",
    re.MULTILINE,
)
PING_SUMMARY = re.compile(
    r"^(?P<sent>\d+) packets transmitted, (?P<received>\d+) (?:packets )?received(?:, \+\d+ duplicates)?"
    r"(?:, \+\d+ errors)?(?:, \+?\d+ duplicates)?, (?P<loss>[\d.]+)% packet loss",
    re.MULTILINE,
)
UNREACHABLE_REASON = re.compile(
    r"(?:^From \S+?:? .*?|: )(?P<reason>Destination (?:Host|Net|Port) Unreachable|Time to live exceeded"
    r"|Packet filtered|Destination Host Prohibited|Destination Net Prohibited|Communication prohibited by filter"
    r"|Frag(?:mentation)? needed.*)",
    re.MULTILINE | re.IGNORECASE,
)
PING_ERROR = re.compile(
    r"^(?:ping6?: )?(?:connect: |sendto: |sendmsg: |local error: )?(?P<why>Network is unreachable|No route to host"
    r"|Operation not permitted|[Mm]essage too long.*|Message too long.*)|^ping6?: (?:cannot resolve )?(?P<name>\S+): "
    r"(?P<no_name>Name or service not known|Temporary failure in name resolution|No address associated with hostname"
    r"|Unknown host|bad address.*)|^ping6?: bad address '(?P<bad>.*)'|^ping6?: unknown host (?P<unknown>\S+)",
    re.MULTILINE,
)
PING_REPLY = re.compile(r"^\d+ bytes from ", re.MULTILINE)
STATISTICS_HEADER = re.compile(r"^--- (\S+) ping statistics ---", re.MULTILINE)
UNNAMED_PEER = "the peer"
NO_ROUTE_REASONS = ("Net Unreachable", "No route", "Network is unreachable", "Address unreachable")
LARGE_PING_BYTES = 1000  # bytes; a ping of at least so many tests the packet size of the way
MIN_LOSS_PERCENT = 1.0  # percent; a smaller loss is no fault


def read(text: str) -> Reading | None:
    """Reads one ping, or several one after another: the faults of all, or the packet size from which on a target does
    not answer."""
    starts = [match.start() for match in PING_HEADER.finditer(text)]
    summaries = [match.end() for match in PING_SUMMARY.finditer(text)]
    if len(summaries) > len(starts):  # some pings are here without their beginning, as `| tail -2` leaves them
        starts = [0, *summaries[:-1]]
    if len(starts) < 2:
        return _read_one_ping(text)
    readings = [_read_ping_section(text, at, end) for at, end in pairwise([*starts, len(text)])]
    nameless = [one for one in readings if one.faults and not one.answered and not one.target]
    if nameless and any(one.answered for one in readings):  # it may be the same target, and another size
        readings = [one for one in readings if one not in nameless]
        found = Reading("some pings are here without the line that names their target, and one of them has no answer")
    else:
        found = Reading(next((one.unknown for one in readings if one.unknown), ""))
    if (large := _unanswered_large_ping(readings)) is not None:
        says = f"{large.target} answers smaller packets, and none of {large.size} bytes"
        lines = large.faults[0].lines
        found.proves("mtu-blackhole", says, lines, "medium", way="path", target=shell_word(large.target))
    else:
        found.faults = [fault for one in readings for fault in one.faults]
    return found


@dataclass(frozen=True, slots=True)
class _Ping:
    """One of several pings in a text: its target, its packets' bytes, whether any answer came, and its faults, with
    lines counted in the whole text."""

    target: str
    size: int
    answered: bool
    faults: list[Fault]
    unknown: str


def _read_ping_section(text: str, start: int, end: int) -> _Ping:
    above, own = _line_number(text, start) - 1, text[start:end]
    head, summary, reading = PING_HEADER.search(own), PING_SUMMARY.search(own), _read_one_ping(own) or Reading()
    return _Ping(
        head["target"] if head else "",
        int(head["size"] or 0) if head else 0,
        int(summary["received"]) > 0 if summary else PING_REPLY.search(own) is not None,
        [replace(fault, lines=tuple(at + above for at in fault.lines)) for fault in reading.faults],
        reading.unknown,
    )


def _unanswered_large_ping(pings: Sequence[_Ping]) -> _Ping | None:
    """The first unanswered ping of LARGE_PING_BYTES to a target that answers smaller ones; None if there is
    none."""
    answered = [(one.target, one.size) for one in pings if one.answered]
    silent = (one for one in pings if one.faults and not one.answered and one.size >= LARGE_PING_BYTES)
    return next((one for one in silent for target, size in answered if target == one.target and size < one.size), None)


def _read_one_ping(text: str) -> Reading | None:
    """Reads one ping, of Linux and its like or of Windows."""
    head, summary, refused = PING_HEADER.search(text), PING_SUMMARY.search(text), PING_ERROR.search(text)
    if not head and not summary and not refused:
        return read_windows_ping(text)
    told_last = STATISTICS_HEADER.search(text)
    target = (head["target"] or head["ip"]) if head else told_last[1] if told_last else UNNAMED_PEER
    found = Reading()
    if refused and not (summary and int(summary["received"])):
        _add_send_fault(text, refused, target, found)
        return found
    if not summary:
        return Reading(f"it has no summary: {CUT_OR_UNKNOWN}")
    sent, received, loss = int(summary["sent"]), int(summary["received"]), float(summary["loss"])
    why = UNREACHABLE_REASON.search(text)
    consistent = abs(loss - (100 * (1 - received / sent) if sent else 100)) < 1.5
    if not (sent > 0 and received <= sent and consistent):
        found.unknown = CUT_OR_UNKNOWN
    lines = [_line_number(text, summary.start()), *([_line_number(text, why.start("reason"))] if why else ())]
    lines += [_line_number(text, refused.start())] if refused else []
    if received == 0:
        _add_silence_fault(target, sent, why["reason"] if why else "", lines, found)
    elif loss >= MIN_LOSS_PERCENT and received < sent:
        says = f"{target} answers {received} of {sent} echoes: {loss:g} % are lost"
        sure: Confidence = "high" if sent >= 10 and loss >= 5 else "medium"
        found.proves("packet-loss", says, lines, sure, way="here", target=shell_word(_shown_target(target)))
    return found


def cause_of_reason(reason: str) -> Literal["firewall-reject", "no-route"] | None:
    """The cause that a router's answer instead of the peer's proves, for live checks as well; None: neither cause."""
    if "prohibited" in reason.lower() or "filtered" in reason.lower():
        return "firewall-reject"
    return "no-route" if any(words in reason for words in NO_ROUTE_REASONS) else None


def _add_silence_fault(target: str, sent: int, reason: str, lines: Sequence[int], found: Reading) -> None:
    """Adds the fault of a target that answered none of `sent` echoes; `reason` is a router's answer, or empty."""
    cause = cause_of_reason(reason)
    if cause == "firewall-reject":
        says = f"{target} refuses ICMP: {reason}"
        found.proves(
            "firewall-reject", says, lines, "medium", way="which-rule", target=shell_word(_shown_target(target))
        )
        return
    says = f"{target} answered none of {sent} echoes: {reason or 'no echo came back'}"
    sure: Confidence = "high" if reason else "medium"
    if cause == "no-route":
        found.proves("no-route", says, lines, sure, way="to-target", target=shell_word(_shown_target(target)))
    else:
        found.proves("host-unreachable", says, lines, sure, way="to-target", target=shell_word(_shown_target(target)))


def _add_send_fault(text: str, refused: re.Match[str], target: str, found: Reading) -> None:
    """Adds the fault of a ping that could not send: an unknown name, no route, a firewall, or too large a packet."""
    at = (_line_number(text, refused.start()),)
    if name := refused["name"] or refused["bad"] or refused["unknown"]:
        found.proves("name-unresolvable", f"{name} does not resolve here", at, way="here", name=shell_word(name))
        return
    why = refused["why"]
    if "too long" in why.lower():
        says = f"packets of this size do not fit the way to {target}: {why}"
        found.proves("mtu-blackhole", says, at, "medium", way="here")
    elif why == "Operation not permitted":
        says = f"a rule of this node keeps it from sending to {target}"
        found.proves("firewall-drop", says, at, "medium", way="output")
    else:
        says = f"the kernel has no route to {target}: {why}"
        found.proves("no-route", says, at, way="to-target", target=shell_word(_shown_target(target)))


def _shown_target(target: str) -> str:
    return "PEER" if target == UNNAMED_PEER else target


def _line_number(text: str, at: int) -> int:
    """The number, from 1, of the line with the character at index `at`."""
    return text.count("\n", 0, at) + 1


WINDOWS_PING_SUMMARY = re.compile(
    r"Packets: Sent = (?P<sent>\d+), Received = (?P<received>\d+), Lost = \d+ ?\(\d+% ?loss\)"
)
WINDOWS_PING_REPLY = re.compile(r"Reply from \S+: bytes=\d+ ")
WINDOWS_PING_FAILURE = re.compile(
    r"Destination (?:host|net) unreachable|Request timed out|General failure|PING: transmit failed"
    r"|TTL expired in transit|Packet needs to be fragmented but DF set"
)


def read_windows_ping(text: str) -> Reading | None:
    """Reads ping of Windows. Windows counts `Reply from …: Destination host unreachable` as received; here only replies
    with bytes count as replies."""
    head = re.search(
        r"Pinging (?P<target>\S{1,300})(?: \[(?P<ip>[^\]]{1,100})\])? (?:from \S+ )?with (?P<size>\d+) bytes of data",
        text,
    )
    missing = re.search(r"Ping request could not find host (?P<name>\S+?)\. ", text)
    found = Reading()
    if missing:
        says, name = f"{missing['name']} does not resolve on this Windows machine", powershell_word(missing["name"])
        found.proves("name-unresolvable", says, (_line_number(text, missing.start()),), way="windows", name=name)
        return found
    if not head:
        return None
    target, typed = head["target"], powershell_word(head["target"])
    replies, failed = len(WINDOWS_PING_REPLY.findall(text)), list(WINDOWS_PING_FAILURE.finditer(text))
    total = WINDOWS_PING_SUMMARY.search(text)
    lines = list(dict.fromkeys(_line_number(text, match.start()) for match in failed[:4]))
    reason = failed[0][0] if failed else ""
    if "fragmented" in reason:
        says = f"packets of {head['size']} bytes do not fit the way to {target}"
        found.proves("mtu-blackhole", says, lines, "medium", way="windows")
    elif failed and not replies:
        cause = "no-route" if "net unreachable" in reason or "General failure" in reason else "host-unreachable"
        sure: Confidence = "medium" if "timed out" in reason else "high"
        found.proves(cause, f"{target} answers no echo: {reason}", lines, sure, way="windows", computer=typed)
    elif failed:
        sent = int(total["sent"]) if total else replies + len(failed)
        says = f"{target} answers {replies} of {sent} echoes"
        found.proves("packet-loss", says, lines, "medium", way="windows", target=typed)
    elif total is None or not replies == int(total["sent"]) == int(total["received"]) > 0:
        found.unknown = CUT_OR_UNKNOWN
    return found
