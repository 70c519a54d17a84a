"""ping of Linux, busybox, macOS and the BSDs, and Windows' in English. The summary counts, not the lines before it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from runbook.causes.catalogue import Confidence
from runbook.model.commands import powershell_word, word
from runbook.parsers.tool_reading import CUT, Fault, Reading, Tool

HEAD = re.compile(
    r"^PING (?P<target>\S*?) ?\((?P<ip>[^)]*)\)(?: from (?P<source>\S+) (?P<interface>[^\s:]+)?:?)?(?:.*? "
    r"(?P<size>\d+)(?:\(\d+\))? (?:data )?bytes(?: of data)?)?",
    re.MULTILINE,
)
SUMMARY = re.compile(
    r"^(?P<sent>\d+) packets transmitted, (?P<received>\d+) (?:packets )?received(?:, \+(?P<dup>\d+) duplicates)?"
    r"(?:, \+(?P<errors>\d+) errors)?(?:, (?P<duplicates>\+?\d+) duplicates)?, (?P<loss>[\d.]+)% packet loss",
    re.MULTILINE,
)
ROUND_TRIP = re.compile(r"^(?:rtt|round-trip) min/avg/max(?:/\w+)? = [\d.]+/(?P<avg>[\d.]+)/", re.MULTILINE)
REASON = re.compile(
    r"(?:^From (?P<by>\S+?):? .*?|: )(?P<reason>Destination (?:Host|Net|Port) Unreachable|Time to live exceeded"
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
    ends = [*starts[1:], len(text)]
    told = [
        (_line(text, at) - 1, one) for at, end in zip(starts, ends, strict=True) if (one := _read_one(text[at:end]))
    ]
    faults = [_below(fault, above) for above, one in told for fault in one.faults]
    if (large := _only_large_vanish([one for _, one in told])) is not None:
        above, one = told[large]
        says = f"{one.facts['target']} answers small packets, and none of {one.facts['size']} bytes"
        remedy = (
            f"tracepath -n {word(one.facts['target'])}   # where the MTU shrinks; then one MTU on every interface "
            "of the way"
        )
        faults = [Fault("mtu-blackhole", says, remedy, _below(one.faults[0], above).lines, "medium")]
    unknown = next((one.unknown for _, one in told if one.unknown), "")
    return Reading("ping", told[0][1].facts, tuple(faults), (), unknown)


def _below(fault: Fault, above: int) -> Fault:
    return replace(fault, lines=tuple(at + above for at in fault.lines))


def _only_large_vanish(pings: Sequence[Reading]) -> int | None:
    """The ping of full-size packets that nobody answered, where the same target answers small ones."""
    answered = {one.facts.get("target") for one in pings if one.facts.get("received") and _size(one) < LARGE}
    silent = [
        n for n, one in enumerate(pings) if one.facts.get("reachable") is False and one.faults and _size(one) >= LARGE
    ]
    return next((n for n in silent if pings[n].facts.get("target") in answered), None)


def _size(ping: Reading) -> int:
    size = ping.facts.get("size")
    return size if isinstance(size, int) else 0


def _read_one(text: str) -> Reading | None:
    head, summary, refused = HEAD.search(text), SUMMARY.search(text), REFUSED.search(text)
    if not head and not summary and not refused:
        return windows(text)
    facts: dict[str, object] = {
        "target": (head["target"] or None) if head else None,
        "target_ip": head["ip"] if head else None,
        "size": int(head["size"]) if head and head["size"] else None,
        "source_ip": head["source"] if head else None,
        "source_if": head["interface"] if head else None,
    }
    target = (head["target"] or head["ip"]) if head else "the peer"
    if refused:
        return Reading("ping", {**facts, "reachable": False}, (_refusal(text, refused, target),))
    if not summary:
        return Reading("ping", facts, (), (), f"it has no summary: {CUT}")
    sent, received, loss = int(summary["sent"]), int(summary["received"]), float(summary["loss"])
    trip = ROUND_TRIP.search(text)
    why = REASON.search(text)
    errors = summary["errors"]
    duplicates = summary["dup"] or summary["duplicates"]
    facts |= {
        "transmitted": sent,
        "received": received,
        "loss_pct": loss,
        "duplicates": int(duplicates) if duplicates else 0,
        "errors": int(errors) if errors else 0,
        "rtt_avg_ms": float(trip["avg"]) if trip else None,
        "reachable": received > 0,
        "reason": why["reason"] if why else None,
        "reported_by": why["by"] if why else None,
    }
    told = abs(loss - (100 * (1 - received / sent) if sent else 100)) < 1.5
    whole = sent > 0 and received <= sent and told
    lines = (_line(text, summary.start()), *((_line(text, why.start("reason")),) if why else ()))
    return Reading(
        "ping",
        facts,
        _verdict(target, sent, received, loss, why["reason"] if why else "", lines),
        (),
        "" if whole else CUT,
    )


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


PACKETS = re.compile(
    r"Packets: Sent = (?P<sent>\d+), Received = (?P<received>\d+), Lost = (?P<lost>\d+) ?\((?P<loss>\d+)% ?loss\)"
)
AVERAGE = re.compile(r"Average = (?P<avg>\d+)ms")
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
        return Reading(
            "ping", {"reachable": False}, (Fault("name-unresolvable", says, f"Resolve-DnsName {missing['name']}", at),)
        )
    if not head:
        return None
    target = head["target"]
    replies, failed = len(REPLY.findall(text)), list(FAILED.finditer(text))
    total, average = PACKETS.search(text), AVERAGE.search(text)
    facts: dict[str, object] = {
        "target": target,
        "target_ip": head["ip"] or target,
        "transmitted": int(total["sent"]) if total else None,
        "received": replies,
        "loss_pct": float(total["loss"]) if total else None,
        "rtt_avg_ms": float(average["avg"]) if average else None,
        "reachable": replies > 0 if replies or failed else None,
        "reason": failed[0][0] if failed else None,
    }
    lines = tuple(dict.fromkeys(_line(text, match.start()) for match in failed[:4]))
    if failed and "fragmented" in failed[0][0]:
        remedy = "netsh interface ipv4 show subinterfaces   # the MTU of the interface"
        fault = Fault(
            "mtu-blackhole", f"packets of {head['size']} bytes do not fit the way to {target}", remedy, lines, "medium"
        )
        return Reading("ping", facts, (fault,))
    if failed and not replies:
        reason = failed[0][0]
        cause = "no-route" if "net unreachable" in reason or "General failure" in reason else "host-unreachable"
        remedy = (
            f"Test-NetConnection {powershell_word(target)} -TraceRoute   # and `arp -a`: is "
            f"{powershell_word(target)} on, and in this network?"
        )
        sure: Confidence = "medium" if "timed out" in reason else "high"
        return Reading("ping", facts, (Fault(cause, f"{target} answers no echo: {reason}", remedy, lines, sure),))
    if failed:
        sent = int(total["sent"]) if total else replies + len(failed)
        says = f"{target} answers {replies} of {sent} echoes"
        return Reading("ping", facts, (Fault("packet-loss", says, f"ping -n 100 {word(target)}", lines, "medium"),))
    whole = total is not None and replies == int(total["sent"]) == int(total["received"]) > 0
    return Reading("ping", facts, (), (), "" if whole else CUT)


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
