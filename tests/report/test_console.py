"""The page as text: golden files, made anew with UPDATE_GOLDEN=1, and the promises that hold for every page."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any, TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.processes import wait_until

from runbook.model.events import Event, OutcomeReached, Progress, RunStarted, StageStarted
from runbook.model.remedy import Remedy
from runbook.model.verdict import Finding, Outcome, Verdict
from runbook.report.console import Console, live_and_colour
from runbook.report.run_text import RunPage, paint_line

from .made_up_runs import PAIR, STORIES, Story, firewall, healthy, many_nodes, passed
from .strategies import RUNS, UNHURRIED

GOLDEN = Path(__file__).parent / "golden"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in STORIES},
    "healthy-80-columns": ("healthy", {"width": 80}),
    "healthy-verbose": ("healthy", {"verbose": 1}),
    "many_nodes-verbose": ("many_nodes", {"verbose": 1}),
    "one_root-verbose": ("one_root", {"verbose": 1}),
    "firewall-80-columns": ("firewall", {"width": 80}),
    "firewall-colour": ("firewall", {"colour": True}),
}


# Python calls these unprintable: blanks of other scripts, code points without a character, two joiners.
UNPRINTABLE_AND_HARMLESS = ("Zs", "Cn", "Co")


def harmless(character: str) -> bool:
    category = unicodedata.category(character)
    return character.isprintable() or category in UNPRINTABLE_AND_HARMLESS or character in "\u200c\u200d"


def page(events: list[Event], stream: TextIO | None = None, **options: Any) -> str:
    text = io.StringIO()
    with Console(stream or text, **{"live": False, "colour": False, **options}) as console:
        for event in events:
            console(event)
    return text.getvalue()


@pytest.mark.parametrize("case", CASES)
def test_the_page_is_the_golden_one(case: str) -> None:
    story, options = CASES[case]
    shown = page(STORIES[story](), **options)
    golden = GOLDEN / f"{case}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(shown, encoding="utf-8")
    assert shown == golden.read_text(encoding="utf-8")


def test_no_golden_page_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(CASES)


@pytest.mark.parametrize("story", STORIES)
def test_a_plain_page_has_no_control_characters(story: str) -> None:
    shown = page(STORIES[story]())
    assert shown.endswith("\n")
    assert all(line == line.rstrip() and (line.isprintable() or not line) for line in shown.split("\n"))


@pytest.mark.parametrize("story", STORIES)
def test_a_stream_without_utf8_gets_ascii(story: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="latin-1")
    page(STORIES[story](), stream)
    stream.flush()
    assert raw.getvalue().isascii()
    assert b"runbook 0.1.0 - " in raw.getvalue()


@pytest.mark.parametrize("width", [20, 60, 80, None])
def test_a_remedy_can_be_copied(width: int | None) -> None:
    shown = page(firewall(), width=width).splitlines()
    command = "sudo nft insert rule inet filter input position 7 ip saddr 10.0.0.2 tcp dport 29500 accept"
    assert f"   fix on node-a  {command}" in shown


@UNHURRIED
@given(RUNS, st.sampled_from([None, 40, 100]), st.integers(0, 1))
def test_any_events_in_any_order_make_a_plain_page(events: list[Event], width: int | None, verbose: int) -> None:
    shown = page(events, width=width, verbose=verbose)
    assert all(map(harmless, shown.replace("\n", "")))
    shown.encode("utf-8")


def test_in_a_narrow_terminal_a_sentence_has_lines_of_its_own() -> None:
    story = Story(PAIR, "reach").step(
        "reach", 0.9, *passed(PAIR, "Python 3.11.2, torch 2.13.0, gloo; clock within 3 ms")
    )
    shown = page(story.end(), width=44).splitlines()
    assert shown[1:4] == [
        " reach        ok         0.9 s   node-[a-b]",
        "   Python 3.11.2, torch 2.13.0, gloo; clock",
        "   within 3 ms",
    ]


def test_nothing_is_said_twice() -> None:
    lines = [line for line in page(many_nodes(), verbose=1).splitlines() if line]
    assert len(lines) == len(set(lines))


@pytest.mark.parametrize("story", ["one_broken", "ten_alike", "all_unknown"])
def test_sixty_four_nodes_fit_on_a_screen_and_every_remedy_is_there_with_v(story: str) -> None:
    events = STORIES[story]()
    assert len(page(events).splitlines()) <= 24
    shown = page(events, verbose=1)
    found = [f for e in events if isinstance(e, OutcomeReached) for f in e.outcome.findings]
    assert found
    for finding in found:
        commands = re.findall("`([^`]+)`", finding.remedy) or [finding.remedy]
        assert all(command in shown for command in commands)


def test_verbose_hides_nothing() -> None:
    assert "-v shows each" in page(many_nodes())
    shown = page(many_nodes(), verbose=1)
    assert "-v shows all" not in shown
    assert all(f"ssh gn{number:02d} sudo ibportstate" in shown for number in range(3, 9))


def test_the_first_line_does_not_fill_the_screen_with_names_that_cannot_be_folded() -> None:
    names = tuple(f"{'abcdefghij'[number % 10] * (1 + number // 10)}-node" for number in range(200))
    started = RunStarted(1.0, "id", "0.1.0", "a.yml", "b.yml", names, ("reach",), "runs/id")
    (first,) = RunPage()(started)
    assert paint_line(first, colour=False, ascii=False) == (
        f"runbook 0.1.0 · a.yml · 200 nodes ({names[0]} … {names[-1]}) · b.yml"
    )
    (whole,) = RunPage(verbose=1)(started)
    assert all(name in paint_line(whole, colour=False, ascii=False) for name in names)


def test_every_line_is_flushed_when_it_is_known() -> None:
    class Pipe(io.StringIO):
        flushed = ""

        def flush(self) -> None:
            self.flushed = self.getvalue()

    stream = Pipe()
    console = Console(stream, live=False, colour=False)
    for event in healthy():
        console(event)
        assert stream.flushed == stream.getvalue()
        assert not stream.flushed or stream.flushed.endswith("\n")


def test_progress_is_thinned_out_for_logs_and_whole_with_v() -> None:
    story = Story(PAIR, "connection").begin("connection")
    for number in range(40):
        story.progress(0.25, f"{number} ranks joined")
    events = story.reach(0.1, *passed(PAIR, "all joined")).finish(10.0).end()
    thin = [line for line in page(events).splitlines() if "ranks joined" in line]
    whole = [line for line in page(events, verbose=1).splitlines() if "ranks joined" in line]
    assert len(thin) == 5
    assert len(whole) == 40


def test_a_silent_stage_is_named_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runbook.report.console.SILENCE_TIMEOUT_S", 0.02)
    stream = io.StringIO()
    console = Console(stream, live=False, colour=False)
    for event in Story(PAIR, "connection").begin("connection").reach(0.1, *passed(["node-a"], "joined")).events:
        console(event)
    wait_until("it tells", lambda: "still running" in stream.getvalue())
    console.close()
    assert " connection   ... " in stream.getvalue()
    assert "still running, 1/2 nodes · waiting for node-b\n" in stream.getvalue()


def test_closing_twice_says_nothing_new() -> None:
    stream = io.StringIO()
    console = Console(stream, live=False, colour=False)
    for event in firewall()[:5]:
        console(event)
    console.close()
    once = stream.getvalue()
    console.close()
    assert stream.getvalue() == once
    assert "no verdict was given" in once


def test_events_of_an_unannounced_stage_are_shown() -> None:
    assert "on node-[a-b]" in page([StageStarted(0, "s", "s", PAIR), Progress(1, "s", "", data={"row": {"size": 4}})])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "expected"),
    [
        (Terminal(), {"TERM": "xterm"}, (True, True)),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, (True, False)),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1", "FORCE_COLOR": "1"}, (True, False)),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": ""}, (True, True)),
        (Terminal(), {"TERM": "dumb"}, (False, False)),
        (Terminal(), {"TERM": "xterm", "CI": "true"}, (False, True)),
        (io.StringIO(), {}, (False, False)),
        (io.StringIO(), {"FORCE_COLOR": "1"}, (False, True)),
        (io.StringIO(), {"FORCE_COLOR": "0"}, (False, False)),
    ],
)
def test_what_a_stream_wants(stream: io.StringIO, environ: dict[str, str], expected: tuple[bool, bool]) -> None:
    assert live_and_colour(stream, environ) == expected


def test_rich_is_not_loaded_for_a_pipe() -> None:
    code = (
        "import sys, runbook.report.junit, runbook.report.run_json, runbook.report.run_json\n"
        "from runbook.report.console import Console\n"
        "Console(sys.stdout, live=False, colour=True)\n"
        "assert not any(name.split('.')[0] == 'rich' for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("bad", "end", "told"),
    [
        (("gn-1",), {}, True),
        (("gn-1", "gn-2"), {}, True),
        (("gn-1", "gn-2", "gn-3"), {}, False),  # of six it is not a few any more
        (("gn-1",), {"exit_code": 130}, False),
        (("gn-1",), {"dropped": ("gn-1",)}, False),
    ],
)
def test_where_a_few_nodes_stop_a_run_it_says_how_the_others_go_on(
    bad: tuple[str, ...], end: dict[str, Any], told: bool
) -> None:
    nodes = [f"gn-{number}" for number in range(1, 7)]
    story = Story(nodes, "reach", "ping")
    finding = Finding("ssh-refused", "port 22 refuses", Remedy.run("systemctl start ssh"))
    lost = [Outcome.unknown(name, finding) for name in bad]
    story.step("reach", 0.9, *lost, *passed(nodes[len(bad) :], "Python 3.11.2"))
    told_end = {"verdict": Verdict.UNKNOWN, "exit_code": 3, "stopped_at": "reach", "unknown": bad, **end}
    shown = page(story.end(**told_end))
    assert (f"next: --without-bad goes on with the other {6 - len(bad)} nodes" in shown) is told
