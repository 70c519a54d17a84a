"""Makes a page from a run's folder: `render` a document that needs nothing else, `render_fragment` a part for another
page."""

from __future__ import annotations

import base64
import functools
import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

import runbook
from runbook.causes.catalogue import BACKTICKED_TEXT, cause_pages
from runbook.model.node_ranges import fold
from runbook.model.safe_text import printable_lines
from runbook.model.units import bandwidth_text, bytes_text, link_rate_text, seconds_text, significant_digits_text
from runbook.model.verdict import EXIT_BUG, EXIT_INTERRUPTED, Verdict
from runbook.report.folding import FindingBlock, NodesRemedy, finding_blocks
from runbook.report.html.charts import LEVELS, allreduce_sweeps, heat_maps
from runbook.report.html.compare import RunComparison, compare_runs
from runbook.report.html.nodes import nodes_of_run
from runbook.report.html.recorded_run import Recorded, hang_dumps, log_tails
from runbook.report.html.stages import launch_lanes, stage_timeline
from runbook.report.run_text import RUN_END_WORDS, WORDS


@dataclass(frozen=True, slots=True)
class Head:
    """How the run ended: a word, the kind of its colour, and the rest of the sentence."""

    word: str
    kind: str
    rest: str
    note: str = ""


def render(run_dir: Path) -> str:
    """The report of the run in `run_dir` as one HTML document. Raises FilesWrong if no run is there."""
    return _html_document("document.html", {**_template_values(Recorded(run_dir)), "alone": True})


def render_fragment(run_dir: Path, *, lives: bool = False) -> str:
    """The report without the document around it, for a page that has the stylesheet (`style.css`) and the script
    (`copy.js`), and lists the files itself. It has no inline style and no script, so a strict Content-Security-Policy
    allows it. `lives`: the caller knows that the run goes on."""
    values = _template_values(Recorded(run_dir, lives=lives))
    return _template_environment().get_template("report.html").render(**values, alone=False)


def render_comparison(one: Path, other: Path) -> str:
    """What differs between two runs as one HTML document. Raises FilesWrong if one of the folders holds no run."""
    compared = compare_run_folders(one, other)
    return _html_document(
        "document.html", {"comparison": compared, "title": f"{compared.one.title} against {compared.other.title}"}
    )


def render_comparison_fragment(one: Path, other: Path) -> str:
    """What differs between two runs, without the document around it."""
    return _template_environment().get_template("compare.html").render(comparison=compare_run_folders(one, other))


def compare_run_folders(one: Path, other: Path) -> RunComparison:
    return compare_runs(Recorded(one), Recorded(other))


def asset_text(name: str) -> str:
    """The text of a file beside this module: `style.css` or `copy.js`."""
    return resources.files("runbook.report.html").joinpath(name).read_text(encoding="utf-8")


def _html_document(template: str, values: Mapping[str, Any]) -> str:
    style, script = asset_text("style.css"), asset_text("copy.js")
    allowed = f"style-src '{_csp_hash(style)}'; script-src '{_csp_hash(script)}'"
    policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    # Both are ours, and end no element of HTML.
    given = {"style": Markup(style), "script": Markup(script), "policy": policy}
    return _template_environment().get_template(template).render(**values, **given)


def _csp_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _template_values(recorded: Recorded) -> dict[str, Any]:
    """All values that the templates show, by name."""
    record = recorded.record
    found = finding_blocks(record.stages, record.causes)
    shortened = any(entry.others or entry.like for block in found for entry in block.entries)
    files = recorded.files()
    hangs, more_hangs = hang_dumps(recorded, files)
    return {
        "recorded": recorded,
        "record": record,
        "started": record.started,
        "finished": record.finished,
        "head": (head := _report_head(recorded)),
        "title": f"{head.word}{head.rest}: {record.started.playbook if record.started else 'a run'}",
        "blocks": _blocks_with_followers(found),
        "follows": [block for block in found if block.follows],
        "apart": finding_blocks(record.stages, record.causes, apart=True) if shortened else [],
        "fixes_of": lambda said, block: shown_fixes(said, block),
        "timeline": stage_timeline(recorded),
        "sweeps": allreduce_sweeps(recorded),
        "heat_maps": heat_maps(recorded),
        "launches": launch_lanes(recorded),
        "nodes": nodes_of_run(recorded),
        "hangs": hangs,
        "more_hangs": more_hangs,
        "tails": log_tails(recorded, files),
        "files": files,
        "flaws": recorded.flaws,
    }


def _blocks_with_followers(found: Sequence[FindingBlock]) -> list[tuple[FindingBlock, list[FindingBlock]]]:
    """The blocks of root causes, each with the blocks that follow from it. If two blocks have one cause, these are
    under the first."""
    seen: set[str] = set()
    pairs = []
    for block in found:
        if not block.follows:
            under = [other for other in found if other.follows == block.cause and block.cause not in seen]
            pairs.append((block, under))
            seen.add(block.cause)
    return pairs


def _report_head(recorded: Recorded) -> Head:
    record, ended = recorded.record, recorded.record.finished
    at = f" at {record.stopped_at}" if record.stopped_at else ""
    if ended is None:
        after = f" after {seconds_text(record.seconds)}" if recorded.timed else ""
        note = "The events end here and no verdict was given: runbook was killed, or the run goes on."
        failed = any(outcome.verdict is Verdict.FAIL for stage in record.stages for outcome in stage.outcomes)
        kind = "fail" if failed else "running" if recorded.lives else "unknown"
        if recorded.lives:
            stalled = any("stall" in one.data for stage in record.stages for one in recorded.progress_of(stage).warned)
            note = "No rank comes further: what was found is told at the stage." if stalled else ""
            return Head("RUNNING", kind, f"{at}{after}", note)
        return Head("UNFINISHED", kind, f"{at}{after}", note)
    word, kind = RUN_END_WORDS[ended.verdict]
    if ended.exit_code == EXIT_INTERRUPTED:
        word, kind = "INTERRUPTED", "unknown"
    note = "This is a bug of runbook." if ended.exit_code == EXIT_BUG else ""
    return Head(word, kind, f"{at} after {seconds_text(ended.seconds)}", note)


def html_environment(loader: jinja2.BaseLoader) -> jinja2.Environment:
    """Everything that a template prints is escaped, after foreign text was made visible; an undefined name is an error.
    What a form sends back stays as it is: `|e` there."""
    return jinja2.Environment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        finalize=printable_value,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@functools.cache
def _template_environment() -> jinja2.Environment:
    environment = html_environment(jinja2.PackageLoader("runbook.report.html"))
    environment.filters.update(
        fold=fold,
        prose=prose,
        seconds=seconds_text,
        bytes=bytes_text,
        gbytes=bandwidth_text,
        gbits=link_rate_text,
        digits=significant_digits_text,
        when=_utc_time_text,
    )
    environment.globals.update(
        WORDS={verdict.value: word for verdict, word in WORDS.items()},
        LEVELS=LEVELS,
        pages=cause_pages(),
        version=runbook.__version__,
    )
    return environment


def printable_value(value: Any) -> Any:
    """A value as a template prints it: foreign text is made visible, so that nothing in it acts, and escaped later."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return value if value.isascii() and value.isprintable() else "\n".join(printable_lines(value))


def prose(text: str) -> Markup:
    """A sentence as HTML, with the parts in backticks as code."""
    parts = BACKTICKED_TEXT.split(" ".join(printable_lines(text)))
    return Markup().join(
        Markup("<code>{}</code>").format(piece) if at % 2 else escape(piece) for at, piece in enumerate(parts)
    )


def _utc_time_text(time_s: float) -> str:
    """Seconds since the epoch as a date and time of day, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_s))


@dataclass(frozen=True, slots=True)
class Fix:
    """A remedy of a page. `where`: the nodes, as text, empty if the sentence names them; `sentence`: empty if the
    remedy is only commands."""

    where: str
    sentence: str
    commands: tuple[str, ...]


def shown_fixes(said: Iterable[NodesRemedy], block: FindingBlock) -> list[Fix]:
    """The remedies of a block as a page shows them."""
    found: list[Fix] = []
    for on, remedy in said:
        for where, step in remedy.placed(() if block.unreached else on):
            if step.commands:
                before = found.pop().commands if found and (found[-1].where, found[-1].sentence) == (where, "") else ()
                found.append(Fix(where, "", (*before, *step.commands)))
                continue
            commands = tuple(dict.fromkeys(filter(_is_shell_command, BACKTICKED_TEXT.findall(step.note))))
            found.append(Fix(where or (fold(on) if len(block.fixes) > 1 else ""), step.note, commands))
    return found


def _is_shell_command(text: str) -> bool:
    """Whether a piece in backticks is a shell command, and not a key of a file or a plain word."""
    return " " in text.strip() and not text.strip().endswith((":", "=")) and not text[:1].isupper() and ": " not in text
