"""Finds the outputs of tools in a text, and combines them with the causes of logs: a fault may be the root, and other
facts only explain a cause.

A text is a file with one output, a paste of several outputs, or a log that begins with outputs.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import PurePath

from runbook.diagnose.judge import CONFIDENCE_ORDER, NO_EVIDENCE, Cause
from runbook.diagnose.log_lines import ESCAPES, MAX_SHOWN_CHARACTERS, PROMPTED_COMMAND, SHELL_PROMPT, is_typed_command
from runbook.diagnose.rule_types import Hit, Line, Tier, joined_alternatives
from runbook.files.shipped_files import load_own_table
from runbook.model.grouping import values_by_key
from runbook.parsers import infiniband
from runbook.parsers.tool_reading import Fault, Reading, Support

# --- outputs in a text ----------------------------------------------------------------------------------------------

OUTPUT_FRAME_LINE = re.compile(
    r"\[exit code -?\d+\]|\[stderr\]|\[ended by its deadline|\[\.\.\. \d+ bytes left out|```|~~~"
    r"|(?:###+|==>|===|---) ?\S.*"
)
"""Text around outputs: notes of `runbook collect`, fences, headings."""

CUT_NOTE = re.compile(r"\[ended by its deadline|\[\.\.\. \d+ bytes left out|\[\.\.\.\]")
"""Notes that part of an output was left out."""
# Characters of a line that are read, to bound the cost of patterns; nft's JSON, one line, is read whole.
MAX_LINE_CHARACTERS = 1000
MERGED_TOOLS = ("ping", "py-spy")
MIN_FIT_SHARE = 0.6  # if this share of lines fits a tool, all lines up to the next command are its output, odd ones too


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """An output of a tool: its reading, and its lines, which begin after line `above` of the text. `node`: the host in
    the prompt before it."""

    reading: Reading
    above: int
    lines: tuple[str, ...]
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Paste:
    """The outputs of tools in a text. `only`: every line belongs to an output, so that no log has to be looked for.
    `meant`: the text is meant as outputs and nothing else, even if some lines are odd."""

    found: tuple[ToolOutput, ...] = ()
    only: bool = False
    meant: bool = False


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of `tools.toml`, with its patterns: of the command, of the line that an output begins with (`start`), and
    of any line of an output (`line`). `log`: its output is a log, which is read as one as well."""

    name: str
    reader: str
    keys: tuple[str, ...]
    log: bool
    command: re.Pattern[str]
    start: re.Pattern[str]
    line: re.Pattern[str]

    def read(self, text: str) -> Reading | None:
        """The reading of a text; None if it is no output of this tool."""
        module, _, name = self.reader.partition(".")
        try:
            reading: Reading | None = getattr(import_module(f"runbook.parsers.{module}"), name)(text)
        except (ValueError, LookupError, ArithmeticError, RecursionError) as error:
            # Never raises: a text on which a reader fails counts as unknown.
            reading = Reading(f"it cannot be read: {type(error).__name__}")
        return reading and replace(reading, tool=self.name)

    @property
    def unread(self) -> Reading:
        """The reading of a text that is meant as this tool's output, and is none."""
        return Reading(f"{self.name} printed what is not known here", self.name)


@cache
def known_tools() -> tuple[Tool, ...]:
    """The tools of `tools.toml`, in its order."""
    return tuple(
        Tool(
            tool["name"],
            tool["reader"],
            tuple(tool["keys"]),
            tool.get("log", False),
            re.compile(rf"(?:sudo (?:-n )?)?(?:{tool['command']})"),
            re.compile(f"^(?:{joined_alternatives(tool['start'])})".replace(r"\Z", "$"), re.MULTILINE),
            re.compile(joined_alternatives(tool["line"]) if "line" in tool else infiniband.IBSTAT_LINE),
        )
        for tool in load_own_table("runbook.diagnose", "tools.toml")["tools"]
    )


@cache
def _keys_of_tools() -> frozenset[str]:
    return frozenset(key for tool in known_tools() for key in tool.keys)


@cache
def _prompted_command_pattern() -> re.Pattern[str]:
    """The pattern of a prompt with a command of any known tool."""
    commands = "|".join(tool.command.pattern for tool in known_tools())
    return re.compile(rf"^{SHELL_PROMPT}(?:{commands})".replace(r"\Z", "$"), re.MULTILINE)


def read_paste(text: str, name: str = "") -> Paste:
    """Every output in the text, in order. Never raises, whatever the text.

    `name` is the name of its file. A file that is called like a command (`ibstat.txt`) and holds no known output is an
    unknown output of that command.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    # Without empty lines: patterns would search a long run of them again and again.
    searched = "\n".join(line[:MAX_LINE_CHARACTERS] for line in text.split("\n") if line[:MAX_LINE_CHARACTERS].strip())
    keys = {key for key in _keys_of_tools() if key in text}
    likely = [tool for tool in known_tools() if keys and not keys.isdisjoint(tool.keys) and tool.start.search(searched)]
    if likely or _prompted_command_pattern().search(searched):
        paste = _PasteReader(text, likely).paste()
        if paste.found:
            return paste
    stem = re.sub(r"[_.]", " ", PurePath(name).stem) if name.endswith(".txt") else ""
    called = next((tool for tool in known_tools() if stem and tool.command.fullmatch(stem)), None)
    if called is None or not text.strip():
        return Paste()
    return Paste((ToolOutput(called.unread, 0, tuple(text.split("\n"))),), meant=True)


def _begins_another_output(line: str) -> bool:
    """Whether a line ends the output above it: a command that was typed, a heading, or a fence."""
    if PROMPTED_COMMAND.match(line) is None:
        return re.match(r"```|~~~|###+ |==> ", line) is not None
    return is_typed_command(line) or _prompted_command_pattern().match(line) is not None


def _merge_outputs(found: Sequence[ToolOutput]) -> Iterable[ToolOutput]:
    """The outputs, with those merged into one that only together show something: all pings of a node, of which the
    sizes show that full-size packets vanish, and all stacks, which show who waits for whom."""

    def group(one: ToolOutput) -> tuple[str, str | None]:
        return one.reading.tool, one.node if one.reading.tool == "ping" else None

    by_group = values_by_key((group(one), one) for one in found if one.reading.tool in MERGED_TOOLS)
    for one in found:
        alike = by_group.get(group(one), [one])
        if len(alike) == 1:
            yield one
        elif one is alike[0]:
            lines = [""] * (alike[-1].above + len(alike[-1].lines) - one.above)
            for each in alike:
                at = each.above - one.above
                lines[at : at + len(each.lines)] = each.lines
            reading = next(tool for tool in known_tools() if tool.name == one.reading.tool).read("\n".join(lines))
            yield replace(one, reading=reading or one.reading, lines=tuple(lines))


class _PasteReader:
    """Reads the outputs of tools in one text; `likely` are the tools whose outputs may be without a command."""

    def __init__(self, text: str, likely: Sequence[Tool]) -> None:
        self._whole = [ESCAPES.sub("", line) for line in text.split("\n")]
        self._lines = [line[:MAX_LINE_CHARACTERS] for line in self._whole]
        self._likely = likely
        self._taken = [not line.strip() for line in self._lines]
        self._open = 0  # the first line that may belong to no output
        self._bounds = [n for n, line in enumerate(self._lines) if _begins_another_output(line.rstrip())]
        self._found: list[ToolOutput] = []
        self._is_log = False

    def paste(self) -> Paste:
        at = 0
        while at < len(self._lines):
            at = max(at + 1, self._command(at) or self._output(at) or 0)
        inside = {n for found in self._found for n in range(found.above, found.above + len(found.lines))}
        odd = [n for n, taken in enumerate(self._taken) if not taken]
        meant = bool(self._found) and not self._is_log and inside.issuperset(odd)
        return Paste(tuple(_merge_outputs(self._found)), meant and not odd, meant)

    def _command(self, at: int) -> int | None:
        """Takes the output of a command that was typed on line `at`; gives the line after the output, or None if there
        is no such command."""
        prompt = PROMPTED_COMMAND.match(self._lines[at].rstrip())
        if prompt is None:
            if OUTPUT_FRAME_LINE.match(self._lines[at]):
                self._taken[at] = True
            return None
        tool = next((tool for tool in known_tools() if tool.command.match(prompt["words"])), None)
        if tool is None:
            return None
        self._taken[at] = True
        end = self._end(at + 1)
        if not self._mostly(tool.line, at + 1, end):
            # Lines that do not fit the tool are something else, though no prompt is between them.
            after = self._while(tool.line, at + 1, end)
            end = after if any(text.strip() for text in self._lines[at + 1 : after]) else self._blank(at + 1, end)
        return self._take(tool, at + 1, end, prompt["node"], typed=True)

    def _output(self, at: int) -> int | None:
        """Takes an output without its command that begins on line `at`; gives the line after it, or None if there is
        none."""
        if not self._lines[at].strip():
            return None
        rest = None
        for tool in self._likely:
            rest = rest if rest is not None else "\n".join(self._lines[at : at + 4])
            if not tool.start.match(rest):
                continue
            end = self._end(at + 1)
            if not self._nothing_else_before(at) or not self._mostly(tool.line, at, end):
                end = self._while(tool.line, at + 1, end)
            if ended := self._take(tool, at, end, None, typed=False):
                return ended
        return None

    def _end(self, at: int) -> int:
        """The next line, from `at` on, with a command, heading or fence."""
        next_one = bisect.bisect_left(self._bounds, at)
        return self._bounds[next_one] if next_one < len(self._bounds) else len(self._lines)

    def _nothing_else_before(self, at: int) -> bool:
        """Whether all lines before `at` belong to outputs."""
        while self._open < at and self._taken[self._open]:
            self._open += 1
        return self._open >= at

    def _mostly(self, line: re.Pattern[str], at: int, end: int) -> bool:
        """Whether most lines in this range fit a tool."""
        fits = [bool(line.match(self._lines[n])) for n in range(at, end) if self._lines[n].strip()]
        return sum(fits) >= MIN_FIT_SHARE * len(fits)

    def _while(self, line: re.Pattern[str], at: int, end: int) -> int:
        """The first line in this range that does not fit a tool; the text's last line may be a cut one, and counts as
        fitting."""
        odd = next((n for n in range(at, end) if self._lines[n].strip() and not line.match(self._lines[n])), end)
        last = not any(text.strip() for text in self._lines[odd + 1 :])
        return end if last and odd > at and self._lines[odd - 1].strip() else odd

    def _blank(self, at: int, end: int) -> int:
        """The first blank line in this range, after `at`; without one, `end`."""
        return next((n for n in range(at, end) if not self._lines[n].strip() and n > at), end)

    def _take(self, tool: Tool, at: int, end: int, node: str | None, *, typed: bool) -> int | None:
        """Reads the lines of this range as the tool's output; gives `end`, or None if they are none. `typed`: the
        command was there, so that unknown lines are its output as well."""
        line = tool.line
        as_json = tool.name == "nft" and any('"nftables"' in self._lines[n] for n in range(at, end))
        lines = self._whole if as_json else self._lines
        told = [
            lines[n] if line.match(lines[n]) or not OUTPUT_FRAME_LINE.match(lines[n]) else "" for n in range(at, end)
        ]
        while told and not told[-1].strip():
            told.pop()
        cut = any(CUT_NOTE.search(self._lines[n]) for n in range(at, end))
        short = {n - at + 1 for n in range(at, end) if not as_json and len(self._whole[n]) > MAX_LINE_CHARACTERS}
        reading = tool.read("\n".join(told))
        if reading is None:
            if not typed or not any(text.strip() for text in told):
                return None
            reading = tool.unread
        if cut and not reading.unknown:
            reading = replace(reading, unknown="part of it was left out")
        if short:  # half a line proves nothing
            why = f"of a line of it only the first {MAX_LINE_CHARACTERS:,} characters were read"
            reading = replace(
                reading,
                unknown=reading.unknown or why,
                faults=[fault for fault in reading.faults if short.isdisjoint(fault.lines)],
                supports=[support for support in reading.supports if short.isdisjoint(support.lines)],
            )
        self._found.append(ToolOutput(reading, at, tuple(self._lines[at:end]), node))
        self._is_log = self._is_log or tool.log
        for n in range(at, end):
            self._taken[n] = self._taken[n] or bool(
                line.match(self._lines[n]) or OUTPUT_FRAME_LINE.match(self._lines[n])
            )
        return end


# --- beside the causes of logs --------------------------------------------------------------------------------------

UNKNOWN_OUTPUT_CAUSE = "tool-output-unknown"
RDMA_ONLY_CAUSES = ("memlock-limit",)
"""Causes that matter only to a job over RDMA."""
RULE_OWNER_TOOLS = ("ufw", "firewalld")
"""Tools that own the rules which other tools list."""


@dataclass(frozen=True, slots=True)
class Source:
    """An output of a tool with the name of its file. `named`: the user named that very file, not a folder."""

    name: str
    found: ToolOutput
    node: str | None = None
    named: bool = True

    def hits(self, lines: Iterable[int]) -> tuple[Hit, ...]:
        """The output's lines with these numbers (from 1 in the output), as evidence."""
        return tuple(self._hit(at) for at in lines if 0 < at <= len(self.found.lines))

    def _hit(self, at: int) -> Hit:
        text = self.found.lines[at - 1].strip()
        line = Line(self.name, self.found.above + at, text, text[:MAX_SHOWN_CHARACTERS], node=self.speaker)
        return Hit(self.found.reading.tool, line)

    @property
    def speaker(self) -> str | None:
        """The node on which the tool ran; None if not known."""
        return self.node or self.found.node


def merge_tool_causes(
    causes: Sequence[Cause], sources: Sequence[Source], *, logs: bool, rdma: bool = True
) -> list[Cause]:
    """The causes of logs and of tools together, the root first. `logs`: some line of a log was read; `rdma`: something
    names an adapter for RDMA, without which limits for RDMA do not matter.

    A fault that is not certain does not count beside logs of a run that went well, and never comes before a certain
    cause from logs.
    """
    if not sources:
        return list(causes)
    # Outputs of tools are no job: text between them is no log of a job that has not ended.
    told = [cause for cause in causes if cause.cause != NO_EVIDENCE or (logs and cause.evidence)]
    told = [_with_supports(cause, sources) for cause in told]
    own = _causes_of_faults(sources, rdma=rdma)
    if not told and logs:
        own = [cause for cause in own if cause.confidence == "high" or _is_of_a_stall(cause)]
    both = {cause.cause: cause for cause in own}
    merged = [_merge_causes(cause, both.pop(cause.cause)) if cause.cause in both else cause for cause in told]
    nearer = [cause.tier for cause in merged] != [cause.tier for cause in told]
    told = merged
    if any(cause.confidence != "low" for cause in both.values()):
        told = [cause for cause in told if cause.tier is not Tier.WRAPPER]
    known = [(cause.tier, _place_in_tier(cause, of_a_tool=False), at, cause) for at, cause in enumerate(told)]
    added = [
        (cause.tier, _place_in_tier(cause, of_a_tool=True), CONFIDENCE_ORDER[cause.confidence], cause)
        for cause in both.values()
    ]
    found = [entry[-1] for entry in sorted([*known, *added], key=lambda entry: entry[:3])] if added or nearer else told
    if not found:
        return _unknown_output_causes(sources, logs)
    return [
        replace(found[0], follows=None),
        *(_relate_to_root(cause, found[0]) if added or nearer else cause for cause in found[1:]),
    ]


def _place_in_tier(cause: Cause, *, of_a_tool: bool) -> int:
    """The place of a cause among those of its tier, of logs and of tools: a fault that logs name comes first; in other
    tiers a tool's fault explains the cause from logs, unless only that one is certain."""
    if cause.tier is Tier.FAULT:
        return int(of_a_tool)
    return (0 if of_a_tool else 1) + (0 if cause.confidence == "high" else 2)


def _is_of_a_stall(cause: Cause) -> bool:
    """Whether stacks show this cause: who looks at the stacks of a training does so because it has come to a stop."""
    return all(hit.sign == "py-spy" for hit in cause.evidence)


def _relate_to_root(cause: Cause, root: Cause) -> Cause:
    """The cause with its relation to the root: it follows from the root, or stands alone."""
    if cause.tier is Tier.NOTE or root.tier is Tier.NOTE:
        return replace(cause, follows=None)
    return replace(cause, follows=root.cause) if cause.tier > root.tier and not cause.own else cause


def _causes_of_faults(sources: Sequence[Source], *, rdma: bool) -> list[Cause]:
    """The faults in the outputs, as causes."""
    found = values_by_key(
        (fault.cause, (source, fault))
        for source in sources
        for fault in source.found.reading.faults
        if fault.cause not in RDMA_ONLY_CAUSES or rdma or source.named
    )
    return [_make_cause(cause, pairs) for cause, pairs in found.items()]


def _make_cause(cause: str, pairs: Sequence[tuple[Source, Fault]]) -> Cause:
    """The cause that these faults of outputs show: in the words of the surest fault, with lines of the first four."""
    pairs = sorted(pairs, key=lambda pair: CONFIDENCE_ORDER[pair[1].confidence])
    fault = pairs[0][1]
    nodes = list(dict.fromkeys(node for one, _ in pairs if (node := one.speaker)))
    also = f" (the same on {', '.join(nodes[1:5])})" if len(nodes) > 1 else ""
    tier = {"high": Tier.FAULT, "medium": Tier.NETWORK, "low": Tier.NOTE}[fault.confidence]
    return Cause(
        cause,
        fault.confidence,
        f"{fault.says}{also}",
        fault.remedy,
        tuple(hit for one, each in pairs[:4] for hit in one.hits(each.lines)),
        tier,
        node=nodes[0] if nodes else None,
    )


def _merge_causes(told: Cause, seen: Cause) -> Cause:
    """One cause of two, when logs and a tool show the same: the tool names the device, the logs name the ranks."""
    surest = min(told.confidence, seen.confidence, key=lambda confidence: CONFIDENCE_ORDER[confidence])
    if seen.confidence == "low":
        return replace(told, evidence=_one_hit_per_line((*told.evidence, *seen.evidence)))
    return replace(
        told,
        says=seen.says,
        remedy=seen.remedy or told.remedy,
        evidence=_one_hit_per_line((*told.evidence[:3], *seen.evidence)),
        confidence=surest,
        node=told.node or seen.node,
        tier=min(told.tier, seen.tier),
    )


def _one_hit_per_line(hits: Iterable[Hit]) -> tuple[Hit, ...]:
    """The hits without a second hit of any line: a line may belong to a log and to a tool's output."""
    return tuple({hit.line.place: hit for hit in hits}.values())


def _with_supports(cause: Cause, sources: Sequence[Source]) -> Cause:
    """The cause with up to two supports of outputs added: those about the very word that the cause names, else those
    that may explain it."""
    fitting = [
        (source, support)
        for source in sources
        for support in source.found.reading.supports
        if cause.cause in support.causes and _is_about_cause(support, cause)
    ]
    # ufw and firewalld own the rules that nft and iptables list, so their commands open a port.
    fitting.sort(key=lambda pair: pair[0].found.reading.tool not in RULE_OWNER_TOOLS)
    exact = [pair for pair in fitting if pair[1].about]
    ports = _ports_named(cause)
    for at, (source, support) in enumerate((exact or fitting)[:2]):
        node = source.speaker
        remedy = re.sub(r"\bPORT\b", ports[0], support.remedy) if len(ports) == 1 else support.remedy
        cause = replace(
            cause,
            says=f"{cause.says}; {f'{node}: ' if node else ''}{support.says}",
            remedy=(remedy or cause.remedy) if at == 0 else cause.remedy,
            evidence=(*cause.evidence[: 3 + at], *source.hits(support.lines)),
        )
    return cause


def _cause_text(cause: Cause) -> str:
    """The cause's sentence and lines as one text."""
    return " ".join([cause.says, *(hit.line.shown for hit in cause.evidence)])


def _ports_named(cause: Cause) -> list[str]:
    """The ports of four or five digits that the cause's sentence and lines name."""
    return list(dict.fromkeys(re.findall(r"(?:\bport[ =:]+|\]:|\w:|, )(\d{4,5})\b", _cause_text(cause), re.IGNORECASE)))


def _is_about_cause(support: Support, cause: Cause) -> bool:
    """Whether a cause names the word or a port that a support is about; a support about neither fits every cause."""
    if support.about:
        return re.search(rf"(?<![\w.]){re.escape(support.about)}(?![\w.])", _cause_text(cause)) is not None
    if support.ports:
        low, high = support.ports
        return any(low <= int(port) <= high for port in _ports_named(cause))
    return True


def _unknown_output_causes(sources: Sequence[Source], logs: bool) -> list[Cause]:
    """The result if no cause was found: the first output that is not understood, if the user named its file or there is
    no log; else nothing."""
    for source in sources:
        reading = source.found.reading
        if reading.unknown and (source.named or not logs):
            says = f"{reading.tool}: no fault is seen, which does not prove that all is well: {reading.unknown}"
            first = next((at for at, line in enumerate(source.found.lines, 1) if line.strip()), 1)
            remedy = "give all that it prints, in English (LC_ALL=C), with the command before it"
            return [
                Cause(UNKNOWN_OUTPUT_CAUSE, "low", says, remedy, source.hits((first,)), Tier.WRAPPER, node=source.node)
            ]
    return []
