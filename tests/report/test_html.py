"""The report of a run as a page: what it shows, of whatever run, and that nothing in it comes from elsewhere or acts."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given

from runbook.cli.main import main
from runbook.cli.run import write_run_report
from runbook.model.errors import FilesWrong
from runbook.model.events import Event, OutcomeReached, Progress
from runbook.model.remedy import Remedy
from runbook.model.verdict import Verdict
from runbook.report.folding import FindingBlock
from runbook.report.html.compare import Ratio
from runbook.report.html.render import asset_text, render, render_comparison, render_fragment, shown_fixes

from .made_up_runs import STORIES
from .strategies import RUNS, UNHURRIED
from .varied import MARKUP, VARIED, launched, linked, swept, write_run

VOID = {"meta", "br", "img", "input", "link", "hr", "wbr", "base"}


class Read(HTMLParser):
    """A page taken apart: its elements, its attributes and its text. Complains about what is not closed."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(document)
        self.close()
        assert self._open == []

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open, tag
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] not in (["script"], ["style"]):
            self.words.append(data)


def shown(tmp_path: Path, events: list[Event], files: dict[str, str] | None = None) -> str:
    return Read(render(write_run(tmp_path / "run", events, files))).text


@pytest.fixture(scope="module", params=VARIED)
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return render(VARIED[request.param](tmp_path_factory.mktemp("runs") / "run"))


# Of every run.


def test_it_is_a_whole_document_that_asks_nobody_for_anything(page: str) -> None:
    read = Read(page)
    assert page.startswith("<!doctype html>")
    assert page.isprintable() or set(re.findall(r"[^\n -~]", page)) <= set(filter(str.isprintable, page))
    assert {"script", "style"} == set(read.elements) & {
        "script",
        "style",
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "base",
    }
    assert read.elements.count("script") == read.elements.count("style") == 1
    outside = [
        one for one in read.attributes if one[1] in ("src", "href", "action", "style", "srcset") and one[2][:1] != "#"
    ]
    assert outside == []
    assert not [one for one in read.attributes if one[1].startswith("on")]


def test_its_headings_go_down_one_by_one_and_its_links_lead_somewhere(page: str) -> None:
    read = Read(page)
    levels = [int(element[1]) for element in read.elements if re.fullmatch("h[1-6]", element)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    ids = [value for _, name, value in read.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {value[1:] for _, name, value in read.attributes if name == "href"} <= set(ids)


def test_there_are_thirty_of_them() -> None:
    assert len(VARIED) >= 30


# What it shows.


def test_verdict_cause_node_and_the_command_come_first(tmp_path: Path) -> None:
    told = shown(tmp_path, STORIES["firewall"]())
    assert told.index("FAIL at firewall after 3.5 s") < told.index("firewall-drop on node-a")
    command = "sudo nft insert rule inet filter input position 7 ip saddr 10.0.0.2 tcp dport 29500 accept"
    assert f"Run on node-a : {command}" in told
    assert told.index(command) < told.index("no answer in 2.0 s") < told.index("Not run:")
    assert "ibstat, connection, small AllReduce" in told


@pytest.mark.parametrize("story", STORIES)
def test_every_finding_and_its_evidence_is_there(story: str, tmp_path: Path) -> None:
    events = STORIES[story]()
    told = shown(tmp_path, events)
    for finding in (f for event in events if isinstance(event, OutcomeReached) for f in event.outcome.findings):
        for text in re.findall(
            r"[A-Za-z0-9./-]{4,}", f"{finding.remedy} {' '.join(finding.evidence)}".partition("\x1b")[0]
        ):
            assert text in told


def test_a_run_that_was_killed_says_so(tmp_path: Path) -> None:
    told = shown(tmp_path, STORIES["broken_off"]())
    assert told.startswith("FAIL") is False
    assert "UNFINISHED at firewall" in told
    assert "runbook was killed, or the run goes on" in told
    alive = render_fragment(tmp_path / "run", lives=True)
    assert "RUNNING" in alive
    assert "UNFINISHED" not in alive
    assert "killed" not in alive


def test_a_launch_that_goes_on_tells_its_latest_step_and_what_stalls_it_until_it_goes_on(tmp_path: Path) -> None:
    begun = launched(killed=True)
    at = begun[-1].time

    def told(*later: tuple[float, str, Mapping[str, object]]) -> str:
        events = [*begun, *(Progress(at + after, "train", text, data=data) for after, text, data in later)]
        return Read(render_fragment(write_run(tmp_path / "run", events), lives=True)).text

    steps = [(10.0 * n, f"step {n}, 1/s", {"pace": {"step": n, "per_s": 1.0, "age_s": 0.2}}) for n in range(300)]
    assert "step 299, 1/s" in told(*steps)
    waits = {"pace": {"step": 299, "per_s": 1.0, "age_s": 70.0}}
    stall = (3050.0, "stalled: rank 2 sleeps", {"stall": "rank-behind"})
    stands = told(*steps, stall, (3060.0, "step 299, 1/s, 70 s ago", waits))
    assert "warn" in stands
    assert stands.count("stalled: rank 2 sleeps") == 2  # as a moment, and as what is so
    assert "No rank comes further" in stands
    goes_on = told(*steps, stall, (3070.0, "step 301", {"pace": {"step": 301, "per_s": 1.0, "age_s": 1.0}}))
    assert "No rank comes further" not in goes_on
    assert goes_on.count("stalled: rank 2 sleeps") == 1


def test_a_launch_left_to_itself_has_not_passed_yet(tmp_path: Path) -> None:
    unseen = {"node": "node-a", "ranks": [0], "started": 1.0, "ended": None, "code": None, "state": "runs"}
    events: list[Event] = []
    attempt = 0
    for one in launched():
        if isinstance(one, Progress) and "ends" in one.data:
            attempt += 1
            one = replace(one, data={"ends": {"number": attempt, "processes": [unseen]}})
        events.append(one)
    alive = Read(render_fragment(write_run(tmp_path / "run", events), lives=True)).text
    assert "RUNNING" in alive
    assert "PASS" not in alive
    first, _, second = alive.partition("train, attempt 2")
    assert "its end was not seen" in first
    assert "its end was not seen" not in second
    assert "It goes on" in second


def test_bandwidth_has_its_gate_its_normal_range_and_a_table(tmp_path: Path) -> None:
    events = swept()
    told = shown(tmp_path, events)
    assert "gate 20.0 GB/s" in told
    assert "normal here: 21.0 to 24.0 GB/s" in told
    assert "1 GiB 23.91" in told
    document = render(tmp_path / "run")
    assert document.count("<circle") == 3 * 21


def test_a_launch_shows_each_attempt_and_how_each_rank_ended(tmp_path: Path) -> None:
    told = shown(tmp_path, launched())
    assert "train, attempt 1 direct" in told
    assert "rank 3 on node-b SIGKILL (signal 9)" in told
    assert "rank 0 on node-a SIGTERM (signal 15), ended by runbook" in told
    assert "rank 2 on node-b exit 0" in told
    assert "OMP_NUM_THREADS" in told
    cut = shown(tmp_path, launched(killed=True))
    assert "The events end before this attempt did" in cut
    assert "logs/attempt-02" in cut


def test_what_differs_between_nodes_is_marked(tmp_path: Path) -> None:
    told = shown(tmp_path, linked(4, 3))
    assert "Nodes differ" in told
    assert "torch 2.13.0 gn[001-003]" in told
    assert "differs: 2.12.1 gn004" in told
    assert "gn003 16-23 GPU 0-7 10.0.0.3" in told


@pytest.mark.parametrize(
    ("count", "kind"), [(4, '<table class="heat">'), (40, 'class="cells"'), (256, "two groups of nodes")]
)
def test_links_are_a_heat_map_of_whatever_size(count: int, kind: str, tmp_path: Path) -> None:
    document = render(write_run(tmp_path, linked(count, min(count - 1, 12))))
    assert kind in document
    slow = f"gn{count // 2 + 1:03d}"
    assert f'<th scope="row">{slow}</th>' in document
    assert len(document) < (2_000_000 if count > 64 else 300_000)


def test_hang_evidence_is_there_by_rank(tmp_path: Path) -> None:
    told = Read(render(VARIED["a hang"](tmp_path))).text
    assert "rank 1 on node-b" in told
    assert "gloo:all_reduce scheduled [[256]]" in told
    assert "in hold" in told


def test_states_of_processes_are_lines_and_what_is_no_such_document_stays_as_it_is(tmp_path: Path) -> None:
    process = {"pid": 7, "comm": "python", "state": "S", "wchan": "futex_wait", "cpu": 0.5}
    told = {"ranks": {"3": {"processes": [process], "stack": "File a", "own_stacks": {"7": "File b"}}}}
    files = {"hang/attempt-01.node-a.json": json.dumps(told), "hang/attempt-01.node-b.json": '{"ranks": [1]}'}
    text = shown(tmp_path, STORIES["firewall"](), files)
    assert "rank 3: pid 7 python, state S, 50% of a CPU, in futex_wait File a stack of 7: File b" in text
    assert '{"ranks": [1]}' in text


def test_hostile_markup_is_text(tmp_path: Path) -> None:
    read = Read(render(VARIED["hostile markup"](tmp_path)))
    assert read.elements.count("script") == 1
    assert "img" not in read.elements
    assert MARKUP in read.text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", read.text)


def test_damaged_lines_are_counted_and_the_rest_is_shown(tmp_path: Path) -> None:
    told = Read(render(VARIED["broken lines"](tmp_path))).text
    assert "5 lines (line 3, 4, 5, 6, 7) cannot be read" in told
    assert "FAIL at firewall" in told


def test_a_result_without_events_is_enough(tmp_path: Path) -> None:
    told = Read(render(VARIED["only the result"](tmp_path))).text
    assert "events.jsonl is missing" in told
    assert "FAIL at firewall" in told
    assert "sudo nft insert rule" in told


@UNHURRIED
@given(RUNS)
def test_any_events_make_a_page(tmp_path_factory: pytest.TempPathFactory, events: list[Event]) -> None:
    folder = tmp_path_factory.mktemp("any")
    write_run(folder, [*STORIES["healthy"]()[:2], *events])
    Read(render(folder)).text.encode()


def test_a_fragment_has_no_document_and_nothing_inline(tmp_path: Path) -> None:
    inner = render_fragment(VARIED["a hang"](tmp_path))
    read = Read(inner)
    assert not {"html", "head", "body", "style", "script"} & set(read.elements)
    assert not [one for one in read.attributes if one[1] == "style"]
    assert "--ok" in asset_text("style.css")


# Files that are none of ours.


def test_links_and_pipes_in_the_folder_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("do not show this")
    folder = write_run(tmp_path / "run", STORIES["firewall"]())
    (folder / "logs").mkdir()
    (folder / "logs" / "rank-0.node-a.log").symlink_to(secret)
    (folder / "hang").symlink_to(tmp_path)
    os.mkfifo(folder / "logs" / "rank-1.node-a.log")
    document = render(folder)
    assert "do not show this" not in document
    assert "secret" not in document


def test_events_behind_a_link_are_not_read(tmp_path: Path) -> None:
    real = write_run(tmp_path / "real", STORIES["firewall"]())
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "events.jsonl").symlink_to(real / "events.jsonl")
    with pytest.raises(FilesWrong, match="no run's files"):
        render(folder)


# Two runs.


def test_two_runs_show_only_what_differs(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", swept())
    other = write_run(tmp_path / "other", swept(times=0.5))
    read = Read(render_comparison(one, other))
    assert "1 GiB 23.9 12.0 ▼ × 0.500 worse" in read.text
    assert "Environment" not in read.text
    same = Read(render_comparison(one, one))
    assert "Nothing differs" in same.text


def test_two_runs_tell_other_versions_environment_and_verdicts(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", launched())
    other = write_run(tmp_path / "other", launched(killed=True, node_env="{OMP_NUM_THREADS: '8'}"))
    read = Read(render_comparison(one, other))
    assert "OMP_NUM_THREADS 4 8 node-b" in read.text
    assert "verdict pass none: it did not end" in read.text


# The command.


def test_the_command_writes_the_file_and_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", STORIES["healthy"]())
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    assert (folder / "report.html").stat().st_mode & 0o077 == 0
    assert main(["report", str(folder), str(folder), "--out", str(tmp_path / "two.html")]) == 0
    assert "Nothing differs" in (tmp_path / "two.html").read_text()


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [(0.0, 0.0, False), (None, None, False), (0.0, 5.0, True), (5.0, None, True), (None, 0.0, True), (5.0, 5.0, False)],
)
def test_what_was_measured_as_nothing_in_both_does_not_differ(
    one: float | None, other: float | None, differs: bool
) -> None:
    assert Ratio("busbw", one, other).differs is differs


def test_the_latest_run_is_taken_where_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("20261121-01", "20261121-02"):
        write_run(tmp_path / ".runbook" / "runs" / name, STORIES["healthy"]())
    assert main(["report"]) == 0
    assert capsys.readouterr().out == ".runbook/runs/20261121-02/report.html\n"
    assert main(["report", "20261121-01"]) == 0
    assert (tmp_path / ".runbook" / "runs" / "20261121-01" / "report.html").is_file()


@pytest.mark.parametrize("name", ["run 2", "b\u00e4ume", "a:b", "-x"])
def test_a_run_and_a_report_may_have_any_name(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (write_run(tmp_path / each, STORIES["healthy"]()) for each in ("one", name))
    assert main(["report", str(one), str(other)]) == 0
    written = Path(capsys.readouterr().out.strip())
    assert (written.parent, written.is_file()) == (one, True)
    assert main(["report", str(one), "--out", str(tmp_path / f"{name}.html")]) == 0
    assert (tmp_path / f"{name}.html").stat().st_mode & 0o077 == 0


def test_a_report_takes_no_place_but_that_of_a_file(tmp_path: Path) -> None:
    run, pipe = write_run(tmp_path / "run", STORIES["healthy"]()), tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "aim").write_text("mine")
    (run / "report.html").symlink_to(tmp_path / "aim")
    assert main(["report", str(run), "--out", str(pipe)]) == 2
    assert pipe.is_fifo()
    assert main(["report", str(run)]) == 0
    assert (tmp_path / "aim").read_text() == "mine"


@pytest.mark.parametrize("name", ["nothing", "empty", ".."])
def test_a_folder_without_a_run_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "inside" / "empty").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "inside")
    assert main(["report", name]) == 2
    assert "no run's files are there" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", STORIES["healthy"]())
    assert main(["report", str(folder), "--out", str(tmp_path / "no" / "report.html")]) == 2
    assert "No such file or directory" in capsys.readouterr().err


def test_a_page_that_cannot_be_made_is_a_warning_after_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run_report(tmp_path, "text")
    told = capsys.readouterr()
    assert told.out == ""
    assert "warning: the report cannot be written" in told.err
    assert "no run's files are there" in told.err
    write_run_report(write_run(tmp_path, STORIES["healthy"]()), "json")
    assert capsys.readouterr().err == f"report  {tmp_path / 'report.html'}\n"


@pytest.mark.parametrize(
    ("remedy", "commands"),
    [
        (Remedy.note("run it again"), []),
        (Remedy.note("give the stage a longer `timeout:`"), []),
        (Remedy.note("look at it: `systemctl status opensm`"), ["systemctl status opensm"]),
        (Remedy.run("runbook init 10.0.0.1 10.0.0.2", node=""), ["runbook init 10.0.0.1 10.0.0.2"]),
        (Remedy.run("sudo reboot"), ["sudo reboot"]),
    ],
)
def test_only_what_is_a_command_is_shown_as_one(remedy: Remedy, commands: list[str]) -> None:
    block = FindingBlock("launch", Verdict.FAIL, "rank-killed", (), ())
    assert [one for fix in shown_fixes([(("node-a",), remedy)], block) for one in fix.commands] == commands
