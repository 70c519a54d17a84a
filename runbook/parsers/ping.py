"""ping of Linux, busybox, macOS and the BSDs, and Windows' in English. The summary counts, not the lines before it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from runbook.causes.catalogue import Confidence
from runbook.model.command_quoting import powershell_word, word
from runbook.parsers.tool_reading import CUT, Fault, Reading, Tool

HEAD = re.compile(
    r"^PING (?P<target>\S*?) ?\((?P<ip>[^)]*)\)(?: from \S+ (?:[^\s:]+)?:?)?(?:.*? "
    r"(?P<size>\d+)(?:\(\d+\))? (?:data )?bytes(?: of data)?)?",
    re.MULTILINE,
)
SUMMARY = re.compile(
    r"^(?P<sent>\d+) packets transmitted, (?P<received>\d+) (?:packets )?received(?:, \+\d+ duplicates)?"
    r"(?:, \+\d+ errors)?(?:, \+?\d+ duplicates)?, (?P<loss>[\d.]+)% packet loss",
    re.MULTILINE,
)
REASON = re.compile(
    r"(?:^From \S+?:? .*?|: )(?P<reason>Destination (?:Host|Net|Port) Unreachable|Time to live exceeded"
    r"|Packet filtered|Destination Host Prohibited|Destination Net Prohibited|Communication prohibited by filter"
    r"|Frag(?:mentation)? needed.*)",
    re.MULTILINE | re.IGNORECASE,
)
REFUSED = re.compile(
    r"^(?:ping6?: )?(?:connect: |sendto: |sendmsg: |local error: )?(?P<why>Network is unreachable|No route to host"
    r"|Operation not permitted|[Mm]essage too long.*|Message too long.*)|^ping6?: (?:cannot resolve )?(?P<name>\S+): "
    r"(?P<no_name>Name or service not known|Temporary failure in name resolution|No address associated with hostname"
    r"|Unknown host|bad address.*)|^ping6?: bad address '(?P<bad>.*)'",
    re.MULTILINE,
)
NO_WAY = ("Net Unreachable", "No route", "Network is unreachable", "Address unreachable")
LARGE = 1000  # bytes of a packet that tests the path's packet size
LOSS = 1.0  # percent: below it, of a few packets, none is lost


def read(text: str) -> Reading | None:
    """One ping, or several one after another: what any of them shows."""
    starts = [match.start() for match in HEAD.finditer(text)]
    if len(starts) < 2:
        return _read_one(text)
    told = [_one_of_several(text, at, end) for at, end in pairwise([*starts, len(text)])]
    faults = [fault for one in told for fault in one.faults]
    if (large := _only_large_vanish(told)) is not None:
        says = f"{large.target} answers small packets, and none of {large.size} bytes"
        remedy = (
            f"tracepath -n {word(large.target)}   # where the MTU shrinks; then one MTU on every interface of the way"
        )
        faults = [Fault("mtu-blackhole", says, remedy, large.faults[0].lines, "medium")]
    return Reading("ping", tuple(faults), (), next((one.unknown for one in told if one.unknown), ""))


@dataclass(frozen=True, slots=True)
class _Ping:
    """One of several: whom it asked, with how many bytes, whether anything came back, and what it shows."""

    target: str
    size: int
    answered: bool
    faults: tuple[Fault, ...]
    unknown: str


def _one_of_several(text: str, start: int, end: int) -> _Ping:
    above, own = _line(text, start) - 1, text[start:end]
    head, summary, reading = HEAD.search(own), SUMMARY.search(own), _read_one(own)
    return _Ping(
        head["target"] if head else "",
        int(head["size"] or 0) if head else 0,
        summary is not None and int(summary["received"]) > 0 and not REFUSED.search(own),
        tuple(replace(fault, lines=tuple(at + above for at in fault.lines)) for fault in reading.faults)
        if reading
        else (),
        reading.unknown if reading else "",
    )


def _only_large_vanish(pings: Sequence[_Ping]) -> _Ping | None:
    """The unanswered ping of full-size packets to a target that answers small ones."""
    answered = {one.target for one in pings if one.answered and one.size < LARGE}
    silent = (one for one in pings if one.faults and not one.answered and one.size >= LARGE)
    return next((one for one in silent if one.target in answered), None)


def _read_one(text: str) -> Reading | None:
    head, summary, refused = HEAD.search(text), SUMMARY.search(text), REFUSED.search(text)
    if not head and not summary and not refused:
        return windows(text)
    target = (head["target"] or head["ip"]) if head else "the peer"
    if refused:
        return Reading("ping", (_refusal(text, refused, target),))
    if not summary:
        return Reading("ping", unknown=f"it has no summary: {CUT}")
    sent, received, loss = int(summary["sent"]), int(summary["received"]), float(summary["loss"])
    why = REASON.search(text)
    told = abs(loss - (100 * (1 - received / sent) if sent else 100)) < 1.5
    whole = sent > 0 and received <= sent and told
    lines = (_line(text, summary.start()), *((_line(text, why.start("reason")),) if why else ()))
    faults = _verdict(target, sent, received, loss, why["reason"] if why else "", lines)
    return Reading("ping", faults, (), "" if whole else CUT)


def _verdict(
    target: str, sent: int, received: int, loss: float, reason: str, lines: tuple[int, ...]
) -> tuple[Fault, ...]:
    if received == 0:
        return (_silent(target, sent, reason, lines),)
    if loss >= LOSS and received < sent:
        says = f"{target} answers {received} of {sent} echoes: {loss:g} % are lost"
        remedy = f"ping -c 100 -i 0.2 {word(target)}   # and `ip -s link`: which interface counts errors or drops?"
        return (Fault("packet-loss", says, remedy, lines, "high" if sent >= 10 and loss >= 5 else "medium"),)
    return ()


def cause_of_reason(reason: str) -> Literal["firewall-reject", "no-route"] | None:
    """What a router's answer proves of the way to a peer, for live checks as well; None: it proves neither."""
    if "prohibited" in reason.lower() or "filtered" in reason.lower():
        return "firewall-reject"
    return "no-route" if any(words in reason for words in NO_WAY) else None


def _silent(target: str, sent: int, reason: str, lines: tuple[int, ...]) -> Fault:
    cause = cause_of_reason(reason)
    if cause == "firewall-reject":
        return Fault(
            "firewall-reject",
            f"{target} refuses ICMP: {reason}",
            f"sudo nft list ruleset   # on {word(target)}: which rule rejects?",
            lines,
            "medium",
        )
    why = f": {reason}" if reason else ": no echo came back"
    says = f"{target} answered none of {sent} echoes{why}"
    remedy = (
        f"ip route get {word(target)}; ip neigh show {word(target)}   # then its power, cable and address; a "
        f"firewall may drop ICMP alone: nc -vz {word(target)} 22"
    )
    return Fault(
        cause or "host-unreachable",
        says,
        remedy,
        lines,
        "high" if reason else "medium",
    )


def _refusal(text: str, refused: re.Match[str], target: str) -> Fault:
    at = (_line(text, refused.start()),)
    name = refused["name"] or refused["bad"]
    if name:
        return Fault(
            "name-unresolvable",
            f"{name} does not resolve here",
            f"getent hosts {word(name)}   # then /etc/hosts or the name server",
            at,
        )
    why = refused["why"]
    if "too long" in why.lower():
        return Fault(
            "mtu-blackhole",
            f"packets of this size do not fit the way to {target}: {why}",
            "ip link show   # the MTU of the interface; tracepath -n shows where it shrinks",
            at,
            "medium",
        )
    if why == "Operation not permitted":
        return Fault(
            "firewall-drop",
            f"a rule of this node keeps it from sending to {target}",
            "sudo nft list ruleset   # the output hook",
            at,
            "medium",
        )
    return Fault(
        "no-route", f"the kernel has no route to {target}: {why}", f"ip route get {word(target)}; ip route", at
    )


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


PACKETS = re.compile(r"Packets: Sent = (?P<sent>\d+), Received = (?P<received>\d+), Lost = \d+ ?\(\d+% ?loss\)")
REPLY = re.compile(r"Reply from \S+: bytes=\d+ ")
FAILED = re.compile(
    r"Destination (?:host|net) unreachable|Request timed out|General failure|PING: transmit failed"
    r"|TTL expired in transit|Packet needs to be fragmented but DF set"
)


def windows(text: str) -> Reading | None:
    """Windows counts `Reply from …: Destination host unreachable` as received: only replies with bytes are replies."""
    head = re.search(
        r"Pinging (?P<target>\S+)(?: \[(?P<ip>[^\]]+)\])? (?:from \S+ )?with (?P<size>\d+) bytes of data", text
    )
    missing = re.search(r"Ping request could not find host (?P<name>\S+?)\. ", text)
    if missing:
        at = (_line(text, missing.start()),)
        says = f"{missing['name']} does not resolve on this Windows machine"
        return Reading("ping", (Fault("name-unresolvable", says, f"Resolve-DnsName {missing['name']}", at),))
    if not head:
        return None
    target = head["target"]
    replies, failed = len(REPLY.findall(text)), list(FAILED.finditer(text))
    total = PACKETS.search(text)
    lines = tuple(dict.fromkeys(_line(text, match.start()) for match in failed[:4]))
    if failed and "fragmented" in failed[0][0]:
        remedy = "netsh interface ipv4 show subinterfaces   # the MTU of the interface"
        fault = Fault(
            "mtu-blackhole", f"packets of {head['size']} bytes do not fit the way to {target}", remedy, lines, "medium"
        )
        return Reading("ping", (fault,))
    if failed and not replies:
        reason = failed[0][0]
        cause = "no-route" if "net unreachable" in reason or "General failure" in reason else "host-unreachable"
        remedy = (
            f"Test-NetConnection {powershell_word(target)} -TraceRoute   # and `arp -a`: is "
            f"{powershell_word(target)} on, and in this network?"
        )
        sure: Confidence = "medium" if "timed out" in reason else "high"
        return Reading("ping", (Fault(cause, f"{target} answers no echo: {reason}", remedy, lines, sure),))
    if failed:
        sent = int(total["sent"]) if total else replies + len(failed)
        says = f"{target} answers {replies} of {sent} echoes"
        return Reading("ping", (Fault("packet-loss", says, f"ping -n 100 {word(target)}", lines, "medium"),))
    whole = total is not None and replies == int(total["sent"]) == int(total["received"]) > 0
    return Reading("ping", unknown="" if whole else CUT)


TOOLS = (
    Tool(
        "ping",
        r"ping6?(?:\.exe)?\b",
        r"PING \S* ?\(|WARNING: pinging broadcast|Pinging \S+ .*with \d+ bytes of data"
        r"|Ping request could not find host",
        r"PING |\d+ bytes from |From |Request timeout|Vr HL|\s*4  5 |---|\d+ packets transmitted|rtt "
        r"|round-trip |pipe |Pinging |Reply from |Request timed out|Destination |General failure|PING: "
        r"|Ping statistics for|Approximate round|\s+Packets: |\s+Minimum = |\s*$|WARNING: |ping: ",
        ("PING ", "Pinging ", "Ping request"),
        read,
    ),
)
