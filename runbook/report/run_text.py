"""Makes the text of a run, line by line: the same for a terminal, a CI log and a pipe. It writes to no stream."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Literal, TypeVar

from runbook.model.events import (
    Event,
    NodesDropped,
    OutcomeReached,
    Progress,
    RunFinished,
    RunStarted,
    StageFinished,
    StageStarted,
)
from runbook.model.node_ranges import fold
from runbook.model.safe_text import (
    ascii_text,
    pad_to_width,
    printable_line,
    printable_lines,
    terminal_columns,
    visible_text,
    wrap_to_width,
)
from runbook.model.units import count_text, range_text, seconds_text
from runbook.model.verdict import EXIT_BUG, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_UNKNOWN, Verdict
from runbook.report.folding import (
    FindingBlock,
    FoldedFinding,
    Gist,
    Likewise,
    NodesRemedy,
    OutcomeGroup,
    dropped_groups,
    finding_blocks,
    fold_similar_entries,
    stage_groups,
    warning_groups,
)
from runbook.report.measurements import bandwidth_line, links_map, table_header, table_row
from runbook.report.run_record import Record, StageRecord, assert_never

T = TypeVar("T")

Style = Literal["", "ok", "fail", "unknown", "skip", "warn", "dim", "strong", "command"]
StyledLine = tuple[tuple[str, Style], ...]

WORDS: Mapping[Verdict, tuple[str, Style]] = {
    Verdict.PASS: ("ok", "ok"),
    Verdict.FAIL: ("FAIL", "fail"),
    Verdict.UNKNOWN: ("unknown", "unknown"),
    Verdict.SKIP: ("skip", "skip"),
}
RUN_END_WORDS: Mapping[Verdict, tuple[str, Style]] = {
    Verdict.PASS: ("PASS", "ok"),
    Verdict.FAIL: ("FAIL", "fail"),
    Verdict.UNKNOWN: ("UNKNOWN", "unknown"),
    Verdict.SKIP: ("SKIPPED", "skip"),
}
WORD_WIDTH = 8  # the widest of WORDS and a space
TIME_WIDTH = 8  # as wide as most stages take; a longer time pushes its line
STAGE_WIDTH_RANGE = (12, 28)  # at least, at most
MAX_NODE_WIDTH = 24
MAX_LISTED_NAMES_CELLS = 40  # most cells of node names in a line
MAX_HEAD_NAMES_CELLS = 160  # most cells of node names in the first line, which names all nodes if they fold so far
MIN_SENTENCE_CELLS = 24  # a sentence with less room than this is not broken
CONTINUATION_INDENT = "   "  # before a sentence on lines of its own
LABEL_FORMAT = "   {:<10}"
MAX_BRIEF_ENTRIES = 4  # groups, entries, warnings shown without -v
MAX_BRIEF_LINES = 8  # lines of evidence shown without -v


class RunPage:
    """A reader that answers each event with the lines that are now settled. `width` None never breaks a sentence."""

    def __init__(
        self, *, verbose: int = 0, width: int | None = None, only_ranks: Collection[int] = frozenset()
    ) -> None:
        self.record = Record()
        self._verbose = bool(verbose)
        self._many = 10**9 if verbose else MAX_BRIEF_ENTRIES
        self._many_lines = 10**9 if verbose else MAX_BRIEF_LINES
        self._width = width
        self._only_ranks = frozenset(only_ranks)
        self.stage_width = STAGE_WIDTH_RANGE[0]
        self._node_width = 0
        self._table_of: StageRecord | None = None  # the stage whose table has its header
        self._rows: list[Mapping[str, object]] = []  # the rows of that table
        self._closed = False
        self._master: str | None = None

    def __call__(self, event: Event) -> list[StyledLine]:
        self.record(event)
        match event:
            case RunStarted():
                return list(self._head(event))
            case Progress():
                return [*self._table_row(event), *self._output(event)]
            case StageFinished():
                stage = self.record.stage(event.stage)
                return [*self._stage(stage, event), *self._picture(stage)]
            case NodesDropped():
                return list(self._dropped(event))
            case RunFinished():
                return list(self._end(event))
            case StageStarted() | OutcomeReached():
                return []
            case _:
                return assert_never(event)

    def close(self) -> list[StyledLine]:
        """The last lines of a run whose events just end; none after a RunFinished."""
        if self._closed or self.record.first_time is None:
            return []
        return list(self._broken_off())

    # The head ------------------------------------------------------------------------------------------------------

    def _head(self, run: RunStarted) -> Iterator[StyledLine]:
        folded = printable_line(fold(run.nodes))
        self._master = next(iter(run.nodes), None)
        least, most = STAGE_WIDTH_RANGE
        self.stage_width = min(most, max((least, *(terminal_columns(printable_line(name)) for name in run.stages))))
        self._node_width = min(MAX_NODE_WIDTH, terminal_columns(folded))
        short = self._verbose or terminal_columns(folded) <= MAX_HEAD_NAMES_CELLS
        named = folded if short else printable_line(f"{run.nodes[0]} … {run.nodes[-1]}")
        nodes = f"{count_text(len(run.nodes), 'node')} ({named})"
        rest = " · ".join(["", printable_line(run.playbook), nodes, printable_line(run.inventory)])
        yield (f"runbook {printable_line(run.version)}", "strong"), (rest, "")

    # Stages --------------------------------------------------------------------------------------------------------

    def _stage(self, stage: StageRecord, finished: StageFinished | None) -> Iterator[StyledLine]:
        seconds = seconds_text(finished.seconds) if finished else ""
        name = printable_line(stage.name)
        groups = stage_groups(stage, None if self._verbose else self._gist())
        shown = _groups_to_show(groups, self._many)
        for group in shown:
            word, style = WORDS[group.verdict]
            yield from self._row(name, word, style, seconds, _nodes_text(group), group.says)
            name = seconds = ""
        hidden = [node for group in groups[len(shown) :] for node in group.nodes]
        if hidden:
            says = f"and {count_text(len(hidden), 'more node')}, each in its own words (-v shows all)"
            yield from self._row("", "", "dim", "", _nodes_text(OutcomeGroup(Verdict.PASS, "", tuple(hidden))), says)
        yield from self._warnings(stage)

    def _warnings(self, stage: StageRecord) -> Iterator[StyledLine]:
        warnings = warning_groups(stage.outcomes, None if self._verbose else self._gist())
        for says, nodes in warnings[: self._many]:
            yield from self._row("", "warn", "warn", "", fold(nodes), says)
        if len(warnings) > self._many:
            says = f"and {count_text(len(warnings) - self._many, 'more warning')} (-v shows all)"
            yield from self._row("", "", "dim", "", "", says)

    def _dropped(self, drop: NodesDropped) -> Iterator[StyledLine]:
        """Lines on the nodes that are left out, and why; the last one names the master from now on, if it is new."""
        first = next(iter(drop.left), None)
        groups = dropped_groups(drop, None if self._verbose else self._gist())
        for number, (reason, nodes) in enumerate(groups, 1):
            says = reason
            if number == len(groups):
                master = f", master {first}" if first and self._master not in drop.left else ""
                says += f"; going on with {count_text(len(drop.left), 'node')}{master}"
            yield from self._row("", "dropped", "warn", "", fold(nodes), says)
        self._master = first

    def running(self, stage: str, word: str, seconds: str, says: str, style: Style = "") -> StyledLine:
        """A line about a stage that is under way, in the columns of the page."""
        lead = f" {pad_to_width(printable_line(stage), self.stage_width)} "
        return (
            (lead, style or "strong"),
            (pad_to_width(word, WORD_WIDTH), style or "command"),
            (_time_column(seconds) + says, style),
        )

    def _row(self, name: str, word: str, style: Style, seconds: str, nodes: str, says: str) -> Iterator[StyledLine]:
        """One line of the page: stage, verdict, seconds, nodes, sentence; a long sentence goes on under itself, and on
        lines of its own where the columns leave too little room."""
        lead = f" {pad_to_width(name, self.stage_width)} "
        before = f"{_time_column(seconds)}{pad_to_width(printable_line(nodes), self._node_width)}  "
        indent = terminal_columns(lead) + WORD_WIDTH + terminal_columns(before)
        faint: Style = "dim" if style in ("skip", "dim") else ""
        if self._width is not None and self._width - indent < min(
            MIN_SENTENCE_CELLS, terminal_columns(printable_line(says))
        ):
            indent, before = terminal_columns(CONTINUATION_INDENT), before.rstrip()
            first, rest = "", wrap_to_width(printable_line(says), self._room(indent))
        else:
            first, *rest = wrap_to_width(printable_line(says), self._room(indent))
        yield (lead, "strong"), (pad_to_width(word, WORD_WIDTH), style), (before, faint), (first, faint)
        for line in rest:
            yield (" " * indent, ""), (line, faint)

    def _room(self, indent: int) -> int | None:
        if self._width is None or self._width - indent < MIN_SENTENCE_CELLS:
            return None
        return self._width - indent

    # The bandwidth table -------------------------------------------------------------------------------------------

    def _table_row(self, progress: Progress) -> Iterator[StyledLine]:
        values = progress.data.get("row")
        if not isinstance(values, Mapping):
            return
        stage = self.record.stage(progress.stage, progress.time)
        if self._table_of is not stage:
            self._table_of, self._rows = stage, []
            yield ((f"# {printable_line(stage.name)} on {printable_line(fold(stage.started.nodes))}", "dim"),)
            yield from (((line, "dim"),) for line in table_header(self._width))
        self._rows.append(values)
        wrong = values.get("wrong")
        yield ((table_row(values, self._width), "fail" if isinstance(wrong, int) and wrong else ""),)

    def _picture(self, stage: StageRecord) -> Iterator[StyledLine]:
        """What the stage measured, as far as characters can draw it."""
        rows = self._rows if self._table_of is stage else []
        for line in [bandwidth_line(rows), *links_map(stage.outcomes)]:
            if line and (self._width is None or 3 + terminal_columns(line) <= self._width):
                yield ((f"   {line}", "dim"),)

    def _output(self, progress: Progress) -> Iterator[StyledLine]:
        """What a rank of a job wrote, line by line, behind its number and its node."""
        output = progress.data.get("output")
        if not isinstance(output, Mapping):
            return
        ranks = output["ranks"]
        if self._only_ranks and not self._only_ranks & set(ranks):
            return
        numbers = range_text(ranks[0], ranks[-1])
        style: Style = "" if output["stream"] == "out" else "warn"
        for line in output["lines"]:
            yield (
                (f"[{numbers} {printable_line(progress.node or '')}] ", "dim"),
                (" ".join(printable_lines(line)), style),
            )

    # Findings ------------------------------------------------------------------------------------------------------

    def _blocks(self) -> Iterator[StyledLine]:
        shown = finding_blocks(self.record.stages, self.record.causes, apart=self._verbose)
        folded = {} if self._verbose else {place: block for place, block in enumerate(shown) if block.follows}
        for block in shown:
            if block.follows and not self._verbose:
                continue
            yield ()
            yield from self._block(block)
            # A cause of two stages is shown twice, what follows from it once.
            for under in [under for under, other in folded.items() if other.follows == block.cause]:
                yield self._folded(folded.pop(under))

    def _folded(self, block: FindingBlock) -> StyledLine:
        """A consequence in one line; -v shows it in full."""
        who, cause, says = (
            printable_line(fold(block.nodes)),
            printable_line(block.cause),
            printable_line(block.entries[0].says),
        )
        text = f"{who} {says} ({cause})" if block.waited else f"{cause} on {who}: {says}"
        return (LABEL_FORMAT.format("follows"), "dim"), (text, "dim")

    def _block(self, block: FindingBlock) -> Iterator[StyledLine]:
        stage, who, cause = printable_line(block.stage), printable_line(fold(block.nodes)), printable_line(block.cause)
        if block.unreached:
            yield (f" {stage}: ", "strong"), (f"{who} cannot be reached", "unknown"), (": ", ""), (cause, "strong")
        else:
            failed = block.verdict is Verdict.FAIL
            verb: tuple[str, Style] = ("failed", "fail") if failed else ("could not tell", "unknown")
            if block.verdict in (Verdict.PASS, Verdict.SKIP):
                verb = ("noted", "warn")
            yield (f" {stage} ", "strong"), verb, (f" on {who}: ", ""), (cause, "strong")
        if block.common:
            alike = "both nodes alike" if len(block.nodes) == 2 else f"all {len(block.nodes)} nodes alike"
            says = f"common cause: {alike}, so look first at what they share; no single node is to blame"
            for line in wrap_to_width(says, self._room(3)):
                yield ((f"   {line}", ""),)
        one_fix = len(block.fixes) == 1
        shown = block.entries[: self._many]
        for entry in shown:
            yield from self._entry(entry, named=len(block.entries) > 1)
            if not one_fix:
                yield from self._fixes(entry.fixes, block)
        hidden = [node for entry in block.entries[len(shown) :] for node in entry.nodes]
        if hidden:
            yield ((f"   and the same cause on {printable_line(fold(hidden))} (-v shows all)", "dim"),)
        if one_fix:
            yield from self._fixes(block.fixes, block)
        for label, text in dict.fromkeys(note for entry in shown for note in entry.notes):
            yield (LABEL_FORMAT.format(label), "dim"), (printable_line(text), "")
        yield (LABEL_FORMAT.format("more"), "dim"), (f"runbook explain {cause}", "")

    def _entry(self, entry: FoldedFinding, *, named: bool) -> Iterator[StyledLine]:
        who, says = printable_line(fold(entry.nodes)), printable_line(entry.says)
        lead = f"{who}: " if named and not says.startswith(who) else ""
        for line in wrap_to_width(lead + says, self._room(3)):
            yield ((f"   {line}", ""),)
        if entry.others:
            yield from self._likewise(entry.others)
        absent = [peer for peer in entry.peers if peer not in says]
        if absent:
            yield (LABEL_FORMAT.format("peers"), "dim"), (printable_line(fold(entry.peers)), "")
        if entry.evidence and entry.like and not self._verbose:
            text = f"as for {printable_line(fold(entry.like))}, but for names and numbers (-v shows it)"
            yield (LABEL_FORMAT.format("evidence"), "dim"), (text, "dim")
        else:
            yield from self._evidence(entry)

    def _likewise(self, others: Iterable[str]) -> Iterator[StyledLine]:
        text = f"and likewise on {printable_line(fold(others))}, but for names and numbers (-v shows each)"
        yield (LABEL_FORMAT.format(""), ""), (text, "dim")

    def _each(self, said: Iterable[tuple[tuple[str, ...], T]], gist: Callable[[T], object]) -> list[Likewise[T]]:
        """The entries, those that are alike under the first of them, unless -v shows all."""
        return [Likewise(*one) for one in said] if self._verbose else list(fold_similar_entries(said, gist))

    def _gist(self) -> Gist:
        return Gist(self.record.started.nodes if self.record.started else ())

    def _evidence(self, entry: FoldedFinding) -> Iterator[StyledLine]:
        label, gist = "evidence", self._gist()
        several = self._each(entry.evidence, lambda texts: tuple(map(gist, texts)))
        for one in several[: self._many]:
            shown = [line for text in one.what for line in printable_lines(text)]
            if shown and one.nodes != entry.nodes:
                shown = [f"{printable_line(fold(one.nodes))}: {shown[0]}", *shown[1:]]
            for line in shown[: self._many_lines]:
                yield (LABEL_FORMAT.format(label), "dim"), (line, "")
                label = ""
            if len(shown) > self._many_lines:
                hidden = count_text(len(shown) - self._many_lines, "more line")
                yield (LABEL_FORMAT.format(""), ""), (f"and {hidden} (-v shows all)", "dim")
            if one.others:
                yield from self._likewise(one.others)
        hidden_nodes = [node for one in several[self._many :] for node in (*one.nodes, *one.others)]
        if hidden_nodes:
            yield (
                (LABEL_FORMAT.format(""), ""),
                (f"and more from {printable_line(fold(hidden_nodes))} (-v shows all)", "dim"),
            )

    def _fixes(self, fixes: Iterable[NodesRemedy], block: FindingBlock) -> Iterator[StyledLine]:
        """The lines of remedies. A remedy is meant to be copied: never broken, never cut, nothing around it. A second
        remedy for the same nodes is not folded into the first as `likewise`."""
        turns: dict[int, list[NodesRemedy]] = defaultdict(list)
        taken: Counter[tuple[str, ...]] = Counter()
        for said in fixes:
            turns[taken[said[0]]].append(said)
            taken[said[0]] += 1
        for one in (one for turn in turns.values() for one in self._each(turn, self._gist())):
            for where, step in one.what.placed(() if block.unreached else one.nodes):
                label = LABEL_FORMAT.format(f"fix on {printable_line(where)}  " if where else "fix")
                for line in printable_lines(step.what):
                    yield (label, "dim"), (line, "command")
                    label = " " * terminal_columns(label)
            if one.others:
                yield from self._likewise(one.others)

    # The end -------------------------------------------------------------------------------------------------------

    def _end(self, finished: RunFinished) -> Iterator[StyledLine]:
        yield from self._closing()
        if finished.not_dropped:
            says = "no more dropped: " if finished.dropped else "nobody dropped: "
            yield (says, "strong"), (printable_line(finished.not_dropped), "")
        if finished.cleaned:
            yield (("cleaned up: ", "strong"), (printable_line(finished.cleaned), ""))
        if others := self._others(finished):
            says = f"--without-bad goes on with the other {count_text(others, 'node')}"
            yield (("next: ", "strong"), (says, ""))
        word, style = RUN_END_WORDS[finished.verdict]
        if finished.exit_code == EXIT_INTERRUPTED:
            word, style = "INTERRUPTED", "unknown"
        at = f" at {printable_line(finished.stopped_at)}" if finished.stopped_at else ""
        bug = ", a bug of runbook" if finished.exit_code == EXIT_BUG else ""
        rest = f"{at} after {seconds_text(finished.seconds)} (exit {finished.exit_code}{bug})"
        if finished.verdict is Verdict.PASS:
            rest += self._tally()
        elif finished.dropped:
            rest += self._without(finished)
        yield (word, style), (rest, ""), (f" · files in {printable_line(finished.run_dir)}", "")

    def _broken_off(self) -> Iterator[StyledLine]:
        yield from self._closing()
        where = f" at {printable_line(self.record.stopped_at)}" if self.record.stopped_at else ""
        files = f" · files in {printable_line(self.record.started.run_dir)}" if self.record.started else ""
        yield ("UNKNOWN", "unknown"), (f"{where}: the events end here, and no verdict was given{files}", "")

    def _closing(self) -> Iterator[StyledLine]:
        """The lines before the last line, however the run ended."""
        self._closed = True
        if self.record.open_stage:
            yield from self._stage(self.record.open_stage, None)
        if self.record.not_run:
            yield ((" not run: " + ", ".join(printable_line(name) for name in self.record.not_run), "dim"),)
        yield from self._blocks()
        yield ()

    def _without(self, finished: RunFinished) -> str:
        """The words on the nodes that were left out: a pass of the others is not a pass of the cluster."""
        unknown = tuple(name for name in finished.dropped if name in finished.unknown)
        others = tuple(name for name in finished.dropped if name not in unknown)
        who = [fold(others)] * bool(others) + [f"{fold(unknown)} (unknown)"] * bool(unknown)
        says = f": without {printable_line(' and '.join(who))}"
        left = self.record.drops[-1].left if self.record.drops else ()
        last = {stage.name: stage for stage in self.record.stages}.values()
        if any(o.verdict.stops for stage in last for o in stage.outcomes if o.node in left) or finished.stopped_at:
            return says
        return f"{says}; the other {count_text(len(left), 'node')} passed every stage"

    def _others(self, finished: RunFinished) -> int:
        """How many nodes could go on, if a few suspect nodes, and nothing else, stopped the run; otherwise 0."""
        suspects = {*finished.bad, *finished.unknown}
        stage = next((stage for stage in self.record.stages if stage.name == finished.stopped_at), None)
        if stage is None or not suspects or finished.dropped or finished.not_dropped:
            return 0
        passed = sum(outcome.verdict is Verdict.PASS for outcome in stage.outcomes)
        few = finished.exit_code in (EXIT_FAILED, EXIT_UNKNOWN) and len(suspects) + passed == len(stage.started.nodes)
        return passed if few and passed >= 2 * len(suspects) else 0

    def _tally(self) -> str:
        """The counts after a pass: stages passed, stages skipped, warnings."""
        verdicts = [stage.verdict for stage in self.record.stages]
        parts = [f"{count_text(verdicts.count(Verdict.PASS), 'stage')} passed"]
        if skipped := verdicts.count(Verdict.SKIP):
            parts.append(f"{skipped} skipped")
        if warnings := sum(len(warning_groups(stage.outcomes)) for stage in self.record.stages):
            parts.append(count_text(warnings, "warning"))
        return ": " + ", ".join(parts)


def _groups_to_show(groups: list[OutcomeGroup], many: int) -> list[OutcomeGroup]:
    """The groups to show: all that stop the run, and a few of the others. A single group is always shown, since its
    line would only be replaced by a line that says so."""
    bad = sum(group.verdict.stops for group in groups)
    limit = max(bad, many)
    return groups if len(groups) <= limit + 1 else groups[:limit]


def _time_column(seconds: str) -> str:
    return f"{seconds:>{TIME_WIDTH}}   "


def _nodes_text(group: OutcomeGroup) -> str:
    """The nodes of a group as text: nodes in trouble are all named, others only counted if their names are too long."""
    names = fold(group.nodes)
    return (
        names
        if group.verdict.stops or terminal_columns(names) <= MAX_LISTED_NAMES_CELLS
        else count_text(len(group.nodes), "node")
    )


SGR: Mapping[Style, str] = {
    "": "",
    "ok": "32",
    "fail": "1;31",
    "unknown": "1;33",
    "skip": "36",
    "warn": "33",
    "dim": "2",
    "strong": "1",
    "command": "1;36",
}


def paint_line(line: StyledLine, *, colour: bool, ascii: bool) -> str:
    """The line as a stream gets it, without the newline and without blanks at its end: the only escapes in it are
    ours."""
    spans = [(ascii_text(visible_text(text)) if ascii else visible_text(text), style) for text, style in line]
    while spans and not spans[-1][0].rstrip():
        spans.pop()
    if spans:
        spans[-1] = (spans[-1][0].rstrip(), spans[-1][1])
    if not colour:
        return "".join(text for text, _ in spans)
    return "".join(f"\x1b[{SGR[style]}m{text}\x1b[0m" if SGR[style] and text.strip() else text for text, style in spans)


MAX_WAITING_NAMES_CELLS = 60  # most cells of names that are read at a glance


def progress_text(event: Progress) -> str:
    """`gn03 rank 5: joined`; the node and the rank are put before a text that does not name them itself."""
    says = printable_line(event.text)
    who = []
    if event.node and event.node not in says:
        who.append(printable_line(event.node))
    if event.rank is not None and f"rank {event.rank}" not in says:
        who.append(f"rank {event.rank}")
    return f"{' '.join(who)}: {says}" if who and says else says


def waiting_text(stage: StageRecord) -> str:
    """How many nodes have answered, and, once one has, which are awaited."""
    silent, nodes = stage.silent, len(stage.started.nodes)
    answered = f"{nodes - len(silent)}/{nodes} nodes"
    names = printable_line(fold(silent))
    return (
        f"{answered} · waiting for {names}"
        if stage.reached and silent and terminal_columns(names) < MAX_WAITING_NAMES_CELLS
        else answered
    )
