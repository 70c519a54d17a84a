"""perfquery: the counters of a port. They count since somebody last reset them, and stop at their largest value."""

from __future__ import annotations

import re

from runbook.parsers.reading import CUT, Fault, Reading, Tool, numbered, some

ERRORS = {
    "SymbolErrorCounter": "damaged symbols",
    "LinkErrorRecoveryCounter": "recoveries of the link",
    "LinkDownedCounter": "losses of the link",
    "PortRcvErrors": "damaged packets",
    "PortRcvRemotePhysicalErrors": "packets damaged on their way here",
    "PortXmitDiscards": "packets thrown away",
    "LocalLinkIntegrityErrors": "losses of integrity",
    "ExcessiveBufferOverrunErrors": "overruns of a buffer",
}
OTHERS = ("VL15Dropped", "PortXmitWait", "PortRcvConstraintErrors", "PortXmitConstraintErrors")
FULL = (15, 255, 65535, 2**32 - 1)
LARGEST = {"LinkErrorRecoveryCounter": 255, "LinkDownedCounter": 255, "LocalLinkIntegrityErrors": 15, "ExcessiveBufferOverrunErrors": 15}  # fmt: skip
OLD_NAMES = {"SymbolErrors": "SymbolErrorCounter", "LinkRecovers": "LinkErrorRecoveryCounter", "LinkDowned": "LinkDownedCounter",
             "RcvErrors": "PortRcvErrors", "RcvRemotePhysErrors": "PortRcvRemotePhysicalErrors", "XmtDiscards": "PortXmitDiscards",
             "LinkIntegrityErrors": "LocalLinkIntegrityErrors", "ExcBufOverrunErrors": "ExcessiveBufferOverrunErrors"}  # fmt: skip


def read(text: str) -> Reading | None:
    head = re.search(r"# Port (?:extended )?counters: .{0,300}?Lid (\d+) port (\d+)", text)
    counters: dict[str, tuple[int, int]] = {}
    for at, line in numbered(text):
        if field := re.match(r"\s*(\w+):\.+(\d+)\s*$", line):
            counters[OLD_NAMES.get(field[1], field[1])] = (int(field[2]), at)
    if not head and not set(ERRORS) & set(counters):
        return None
    wrong = {name: counters[name] for name in ERRORS if counters.get(name, (0, 0))[0]}
    whole = set(ERRORS) <= set(counters) and any(name in counters for name in OTHERS)
    facts: dict[str, object] = {
        "lid": int(head[1]) if head else None,
        "port": int(head[2]) if head else None,
        "symbol_errors": _value(counters, "SymbolErrorCounter"),
        "link_downed": _value(counters, "LinkDownedCounter"),
        "xmit_discards": _value(counters, "PortXmitDiscards"),
        "rcv_errors": _value(counters, "PortRcvErrors"),
        "healthy": not wrong if whole or wrong else None,
        "saturated": [name for name, (count, _) in wrong.items() if _full(name, count)],
    }
    faults: tuple[Fault, ...] = ()
    if wrong:
        where = f"port {head[2]} of LID {head[1]}" if head else "the port"
        told = [
            f"{count} {ERRORS[name]} ({name}{', its largest value: it counts no further' if _full(name, count) else ''})"
            for name, (count, _) in wrong.items()
        ]
        faults = (
            Fault(
                "ib-port-not-active",
                f"{where} has counted {some(told, 4)} since its counters were last reset",
                "`sudo perfquery -R` resets them; read them again under load: what grows then is a bad cable, transceiver or port",
                tuple(at for _, at in wrong.values()),
                "low",
            ),
        )
    return Reading("perfquery", facts, faults, (), "" if whole else CUT)


def _value(counters: dict[str, tuple[int, int]], name: str) -> int | None:
    return counters[name][0] if name in counters else None


def _full(name: str, count: int) -> bool:
    return count == LARGEST.get(name, 65535) or count in FULL[2:]


TOOL = Tool("perfquery", r"perfquery\b", r"# Port (?:extended )?counters:", r"#|\s*\w+:\.+", ("# Port ",), read)
