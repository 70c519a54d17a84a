"""What outputs of tools say beside what logs say: which is the root, and what only explains another cause."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from runbook.diagnose.judge import ORDER, Cause
from runbook.diagnose.paste import ToolOutput
from runbook.diagnose.sign import Hit, Line, Tier
from runbook.parsers.reading import Fault, Support

SHOWN = 300
UNREAD = "tool-output-unknown"
FOR_RDMA = ("memlock-limit",)
OWNERS = ("ufw", "firewalld")


@dataclass(frozen=True, slots=True)
class Source:
    """An output with the file it stands in. `named`: somebody named that very file, to have it read."""

    name: str
    found: ToolOutput
    node: str | None = None
    named: bool = True

    def hits(self, lines: Iterable[int]) -> tuple[Hit, ...]:
        node = self.node or self.found.node
        told = []
        for at in lines:
            if 0 < at <= len(self.found.lines):
                text = self.found.lines[at - 1].strip()
                told.append(
                    Hit(self.found.reading.tool, Line(self.name, self.found.above + at, text, text[:SHOWN], None, node))
                )
        return tuple(told)


def with_tools(causes: Sequence[Cause], sources: Sequence[Source], *, logs: bool, rdma: bool = True) -> list[Cause]:
    """The causes of logs and of tools together, the root first. `logs`: some line of a log was read; `rdma`: something
    names an adapter for RDMA, without which nobody needs its limits.

    What only may be a fault is none beside logs of a run that went well, and never comes before what logs are sure of.
    """
    if not sources:
        return list(causes)
    # Outputs of tools have no end to wait for: words between them are no job that got nowhere.
    told = [cause for cause in causes if cause.cause != "insufficient-evidence" or (logs and cause.evidence)]
    told = [_explained(cause, sources) for cause in told]
    own = _faults(sources, rdma=rdma)
    if not told and logs:
        own = [cause for cause in own if cause.confidence == "high"]
    both = {cause.cause: cause for cause in own}
    told = [_both(cause, both.pop(cause.cause)) if cause.cause in both else cause for cause in told]
    if any(cause.confidence != "low" for cause in both.values()):
        told = [cause for cause in told if cause.tier is not Tier.WRAPPER]
    # Of one tier, what logs say comes first when it is a fault that they name; else what a tool saw explains it.
    known = [(cause.tier, cause.tier is not Tier.FAULT, at, cause) for at, cause in enumerate(told)]
    added = [(cause.tier, cause.tier is Tier.FAULT, ORDER[cause.confidence], cause) for cause in both.values()]
    found = [entry[-1] for entry in sorted([*known, *added], key=lambda entry: entry[:3])] if added else told
    if not found:
        return _unread(sources, logs)
    return [replace(found[0], follows=None), *(_folded(cause, found[0]) if added else cause for cause in found[1:])]


def _folded(cause: Cause, root: Cause) -> Cause:
    if cause.tier is Tier.NOTE or root.tier is Tier.NOTE:
        return replace(cause, follows=None)
    return replace(cause, follows=root.cause) if cause.tier > root.tier and not cause.own else cause


def _faults(sources: Sequence[Source], *, rdma: bool) -> list[Cause]:
    found: dict[str, list[tuple[Source, Fault]]] = {}
    for source in sources:
        for fault in source.found.reading.faults:
            if fault.cause not in FOR_RDMA or rdma or source.named:
                found.setdefault(fault.cause, []).append((source, fault))
    return [_cause(cause, pairs) for cause, pairs in found.items()]


def _cause(cause: str, pairs: Sequence[tuple[Source, Fault]]) -> Cause:
    """All outputs that show it, the surest first."""
    pairs = sorted(pairs, key=lambda pair: ORDER[pair[1].confidence])
    fault = pairs[0][1]
    nodes = list(dict.fromkeys(node for one, _ in pairs if (node := one.node or one.found.node)))
    also = f" (the same on {', '.join(nodes[1:5])})" if len(nodes) > 1 else ""
    tier = {"high": Tier.FAULT, "medium": Tier.NETWORK, "low": Tier.NOTE}[fault.confidence]
    return Cause(
        cause, fault.confidence, f"{fault.says}{also}", fault.remedy, tuple(hit for one, each in pairs[:4] for hit in one.hits(each.lines)), tier,
        node=nodes[0] if nodes else None,
    )  # fmt: skip


def _both(told: Cause, seen: Cause) -> Cause:
    """Logs and a tool say the same: the tool names the thing, the logs say whom it hit."""
    surest = min(told.confidence, seen.confidence, key=lambda confidence: ORDER[confidence])
    if seen.confidence == "low":
        return replace(told, evidence=_each_once((*told.evidence, *seen.evidence)))
    return replace(
        told, says=seen.says, remedy=seen.remedy or told.remedy, evidence=_each_once((*told.evidence[:3], *seen.evidence)), confidence=surest,
        node=told.node or seen.node, tier=min(told.tier, seen.tier),
    )  # fmt: skip


def _each_once(hits: Iterable[Hit]) -> tuple[Hit, ...]:
    """A line that is a log's and a tool's is one line."""
    return tuple({(hit.line.source, hit.line.number): hit for hit in hits}.values())


def _explained(cause: Cause, sources: Sequence[Source]) -> Cause:
    """With what outputs add to it: what speaks of the very thing, else what might explain it; two of them at most."""
    fitting = [
        (source, support)
        for source in sources
        for support in source.found.reading.supports
        if cause.cause in support.causes and _is_about(support, cause)
    ]
    # ufw and firewalld own the rules that nft and iptables list: what opens a port is told in their words.
    fitting.sort(key=lambda pair: pair[0].found.reading.tool not in OWNERS)
    exact = [pair for pair in fitting if pair[1].about]
    ports = _ports(cause)
    for at, (source, support) in enumerate((exact or fitting)[:2]):
        node = source.node or source.found.node
        remedy = re.sub(r"\bPORT\b", ports[0], support.remedy) if len(ports) == 1 else support.remedy
        cause = replace(
            cause,
            says=f"{cause.says}; {f'{node}: ' if node else ''}{support.says}",
            remedy=(remedy or cause.remedy) if at == 0 else cause.remedy,
            evidence=(*cause.evidence[: 3 + at], *source.hits(support.lines)),
        )
    return cause


def _words(cause: Cause) -> str:
    return " ".join([cause.says, *(hit.line.shown for hit in cause.evidence)])


def _ports(cause: Cause) -> list[str]:
    """The ports that the log's lines name."""
    return list(dict.fromkeys(re.findall(r"(?:\bport[ =:]+|\]:|\w:|, )(\d{4,5})\b", _words(cause), re.IGNORECASE)))


def _is_about(support: Support, cause: Cause) -> bool:
    if support.about:
        return re.search(rf"(?<![\w.]){re.escape(support.about)}(?![\w.])", _words(cause)) is not None
    if support.ports:
        low, high = support.ports
        return any(low <= int(port) <= high for port in _ports(cause))
    return True


def _unread(sources: Sequence[Source], logs: bool) -> list[Cause]:
    """Nothing is wrong as far as was read; what could not be read is told where somebody asked for it, or no log speaks."""
    for source in sources:
        reading = source.found.reading
        if reading.unknown and (source.named or not logs):
            says = f"{reading.tool}: nothing wrong is seen, and that does not prove that all is well: {reading.unknown}"
            first = next((at for at, line in enumerate(source.found.lines, 1) if line.strip()), 1)
            remedy = "give all that it prints, in English (LC_ALL=C), with the command before it"
            return [Cause(UNREAD, "high", says, remedy, source.hits((first,)), Tier.WRAPPER, node=source.node)]
    return []
