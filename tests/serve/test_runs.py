"""Run folders: listed and searched; their files, of any size, read from either end and searched whole; runs started and ended."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.processes import wait_until
from profiles import examples

from runbook.engine.run_folder import JOB_ENDING_FILE
from runbook.serve import run_logs as logs
from runbook.serve.pages.nodes import _launch_verdicts
from runbook.serve.pages.runs import _next_day, link_measurements
from runbook.serve.rendering import moment
from runbook.serve.run_folders import NoRun, RunFilter, Runs
from runbook.serve.run_processes import Processes, Restarts, process_start_mark
from runbook.serve.store import Store
from runbook.transport.agent import SERVER_GONE
from serve.server_in_process import World, world_of

STARTED = {
    "event": "run-started",
    "time": 1000.0,
    "run_id": "job-1",
    "version": "0.1.0",
    "playbook": "books/two_node.yml",
    "inventory": "mine.yml",
    "nodes": ["gn1", "gn10"],
    "stages": ["reach"],
    "run_dir": "x",
}


def placed(folder: Path, id: str, *, result: dict[str, Any] | None = None, **started: Any) -> Path:
    path = folder / "runs" / id
    path.mkdir(parents=True)
    (path / "events.jsonl").write_text(json.dumps(STARTED | started) + "\n")
    if result is not None:
        whole = {"stages": [], "nodes": {"all": []}, "causes": [], "playbook": "", "inventory": "", "not_run": []}
        (path / "result.json").write_text(json.dumps(whole | result))
    return path


@pytest.fixture
def runs(tmp_path: Path) -> Any:
    store = Store(tmp_path / "serve.db")
    placed(tmp_path, "one", result={"verdict": "pass", "seconds": 3.0})
    placed(tmp_path, "two", time=90_000.0, nodes=["gn2"], result={"verdict": "fail", "causes": ["firewall-drop"]})
    placed(tmp_path, "three", time=200_000.0, playbook="burn_100%.yml")
    yield Runs(tmp_path / "runs", store)
    store.close()


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        (RunFilter(), ["three", "two", "one"]),
        (RunFilter(host="gn1"), ["three", "one"]),
        (RunFilter(host="gn1 "), ["three", "one"]),
        (RunFilter(host="n1"), []),
        (RunFilter(cause="firewall"), ["two"]),
        (RunFilter(playbook="burn"), ["three"]),
        (RunFilter(playbook="100%."), ["three"]),
        (RunFilter(playbook="100_."), []),
        (RunFilter(verdict="running"), ["three"]),
        (RunFilter(verdict="fail"), ["two"]),
        (RunFilter(since=1500.0, until=100_000.0), ["two"]),
        (RunFilter(person="nobody"), []),
    ],
)
def test_runs_are_found(runs: Runs, wanted: RunFilter, ids: list[str]) -> None:
    found, count = runs.search(wanted, most=10)
    assert ([row.id for row in found], count) == (ids, len(ids))


def test_a_list_is_paged_and_follows_the_folders(runs: Runs, tmp_path: Path) -> None:
    assert [[row.id for row in runs.search(RunFilter(), most=2, skip=skip)[0]] for skip in (0, 2)] == [
        ["three", "two"],
        ["one"],
    ]
    (tmp_path / "runs" / "three" / "result.json").write_text('{"verdict": "pass", "seconds": 1}')
    for name in ("events.jsonl", "result.json"):
        (tmp_path / "runs" / "one" / name).unlink()
    (tmp_path / "runs" / "one").rmdir()
    runs.forget()
    assert [(row.id, row.verdict) for row in runs.search(RunFilter(), most=9)[0]] == [
        ("three", "pass"),
        ("two", "fail"),
    ]


def test_what_is_damaged_or_no_run_hides_no_other(runs: Runs, tmp_path: Path) -> None:
    for at, text in enumerate(["", "no json\n", "[" * 100_000, '{"event": "run-started"}\n', "\xff"]):
        folder = tmp_path / "runs" / f"odd-{at}"
        folder.mkdir()
        (folder / "events.jsonl").write_text(text)
        (folder / "result.json").write_text(text)
    (tmp_path / "runs" / "linked").symlink_to("/etc")
    (tmp_path / "runs" / "empty").mkdir()
    found, _ = runs.search(RunFilter(), most=99)
    assert (
        {"one", "two", "three"}
        <= {row.id for row in found}
        <= {"one", "two", "three", *(f"odd-{at}" for at in range(5))}
    )
    assert runs.document("odd-1")["verdict"] == "unknown"


@pytest.mark.parametrize("at", [1e300, -1e300, float("inf"), float("nan")])
def test_a_time_that_no_calendar_has_hides_no_other_run(runs: Runs, tmp_path: Path, at: float) -> None:
    placed(tmp_path, "four", time=at, result={"verdict": "pass"})
    rows, _ = runs.search(RunFilter(), most=9)
    assert len(rows) == 4
    assert all(moment(row.began) for row in rows)


def test_of_many_runs_only_those_that_measured_links_are_read(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = {"node": "gn1", "verdict": "pass", "proof": "fast", "findings": []}
    stage = {"name": "links", "verdict": "pass", "seconds": 1.0, "outcomes": [outcome]}
    links = {"links": [{"from": "gn1", "to": "gn2", "gbps": 90.0, "us": 2.0}]}
    placed(tmp_path, "four", time=300_000.0, result={"verdict": "pass", "stages": [stage | {"metrics": links}]})
    rows, _ = runs.search(RunFilter(), most=9)
    read: list[str] = []
    document = runs.document

    def counted(id: str) -> dict[str, Any]:
        read.append(id)
        return document(id)

    monkeypatch.setattr(runs, "document", counted)
    assert {pair: [one.gbps for one in found] for pair, found in link_measurements(runs, rows).items()} == {
        ("gn1", "gn2"): [90.0]
    }
    assert read == ["four"]


def test_a_run_whose_first_event_is_not_whole_yet_is_looked_at_again(runs: Runs, tmp_path: Path) -> None:
    """Else it would have no nodes, and its ranks no place on the fleet's page, until it has ended."""
    folder = tmp_path / "runs" / "begins"
    folder.mkdir()
    line = json.dumps(STARTED)
    for written in ("", line[:100], line + "\n"):
        (folder / "events.jsonl").write_text(written)
        row = runs.row("begins")
    assert (row.nodes, row.job) == (("gn1", "gn10"), "job-1")


def test_what_a_launch_says_is_read_again_only_when_more_is_written(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    document = runs.document

    def counted(id: str) -> dict[str, Any]:
        read.append(id)
        return document(id)

    monkeypatch.setattr(runs, "document", counted)
    for _ in range(3):
        assert runs.found("three", "launch", _launch_verdicts) is None
    folder = tmp_path / "runs" / "three"
    with (folder / "events.jsonl").open("a") as events:
        about = {"time": 200_001.0, "stage": "train"}
        events.write(json.dumps(about | {"event": "stage-started", "check": "launch", "nodes": ["gn1", "gn10"]}) + "\n")
    for _ in range(3):
        assert runs.found("three", "launch", _launch_verdicts) == {}
    outcomes = [{"node": "gn1", "verdict": "pass", "proof": "it ended well", "findings": []}]
    stage = {"name": "train", "check": "launch", "verdict": "pass", "seconds": 1, "outcomes": outcomes}
    (folder / "result.json").write_text(json.dumps({"verdict": "pass", "stages": [stage]}))
    for _ in range(3):
        assert runs.found("three", "launch", _launch_verdicts) == {"gn1": "pass"}
    assert read == ["three"] * 3
    with pytest.raises(NoRun):
        runs.found("nowhere", "launch", _launch_verdicts)


# Logs.


def parts(data: bytes, **where: int) -> tuple[list[str], bool, bool]:
    """Lines, and whether something is before and after them."""
    window = logs.read_window(io.BytesIO(data), **where)
    return [line.text for line in window.lines], window.begin > 0, window.end < window.size


@given(st.lists(st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=30), max_size=60), st.booleans())
@examples(100)
def test_paging_up_and_down_gives_every_line_once(lines: list[str], ended: bool) -> None:
    data = "\n".join(lines).encode() + (b"\n" if ended and lines else b"")
    whole = data.decode().split("\n")
    whole = whole[:-1] if whole[-1] == "" else whole
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "WINDOW_BYTES", 64)
        stream = io.BytesIO(data)
        window, up = logs.read_window(stream), list[str]()
        while True:
            up = [line.text for line in window.lines] + up
            if window.begin == 0:
                break
            window = logs.read_window(stream, before=window.begin)
        down, window = list[str](), logs.read_window(stream, after=0)
        while True:
            down += [line.text for line in window.lines]
            if window.end == window.size:
                break
            window = logs.read_window(stream, after=window.end)
    assert up == down == whole


def test_a_place_is_shown_with_what_is_around_it() -> None:
    data = b"".join(b"line %07d\n" % number for number in range(100_000))
    at = data.index(b"line 0050000")
    window = logs.read_window(io.BytesIO(data), around=at)
    assert at in {line.at for line in window.lines}
    assert len(window.lines) < 12_000


def test_what_would_act_is_text_and_long_lines_are_cut() -> None:
    data = b"\x1b[2J\x1b]0;owned\x07\xff<script>\n50 %\r100 %\n" + b"x" * 10_000 + b"\n"
    lines = logs.read_window(io.BytesIO(data)).lines
    assert [line.text[:40] for line in lines[:2]] == ["\\x1b[2J\\x1b]0;owned\\x07�<script>", "50 %\\r100 %"]
    assert (len(lines[2].text), lines[2].cut) == (logs.MAX_SHOWN_LINE_BYTES, 6000)


def test_empty_lines_are_lines_whatever_ends_the_others() -> None:
    for end in (b"\n", b"\r\n"):
        data = end.join((b"one", b"", b"50 %\r100 %", b"", b"", b"six", b""))
        lines = logs.read_window(io.BytesIO(data)).lines
        assert [line.text for line in lines] == ["one", "", "50 %\\r100 %", "", "", "six"]
        assert [data[line.at :].startswith(text) for line, text in zip(lines, (b"one", end), strict=False)] == [
            True,
            True,
        ]
        assert data[lines[-1].at :] == b"six" + end


def test_a_line_without_an_end_does_not_stop_the_paging() -> None:
    data = b"x" * (3 * logs.WINDOW_BYTES)
    window, seen = logs.read_window(io.BytesIO(data)), 0
    while True:
        seen += window.end - window.begin
        if window.begin == 0:
            break
        window = logs.read_window(io.BytesIO(data), before=window.begin)
    assert seen == len(data)


def test_a_line_longer_than_a_window_is_shown_from_its_end_to_its_beginning() -> None:
    """The bar of pip or tqdm, with one line break at its end, and lines on both sides."""
    bar = b"\r".join(b"%6d of 20000" % number for number in range(20_000)) + b"\n"
    for data in (bar, b"first\n" * 9 + bar, b"first\n" * 9 + bar + b"last\n"):
        window, pieces = logs.read_window(io.BytesIO(data)), list[tuple[int, int]]()
        assert window.lines
        while True:
            pieces.append((window.begin, window.end))
            if window.begin == 0:
                break
            before = window.begin
            window = logs.read_window(io.BytesIO(data), before=before)
            assert (window.begin < before, window.end) == (True, before)
        assert pieces[0][1] == len(data)
    assert logs.read_window(io.BytesIO(data), before=len(data) - len("last\n")).lines


@pytest.mark.parametrize(
    ("head", "length", "place"),
    [
        (b"", 728, 600),
        (b"first\n", 728, 600),
        (b"", 67_000, 50_000),
        (b"first\n" * 9, 67_000, 3990),
        (b"first\n" * 20_000, 67_000, 66_900),
        (b"first\n" * 20_000, 400_000, 1000),
        (b"first\n" * 20_000, 400_000, 200_000),
        (b"", 400_000, 399_980),
        (b"first\n", 150_000, 99_110),
    ],
)
@pytest.mark.parametrize("tail", [b"", b"\n", b"\nlast\n", b"\nlast\n" * 30_000])
def test_a_match_is_quoted_and_its_link_leads_to_it(head: bytes, length: int, place: int, tail: bytes) -> None:
    needle = "ibv_modify_qp"
    line = bytearray(b"50% \r" * (length // 5 + 1))[:length]
    line[place : place + len(needle)] = needle.encode()
    stream = io.BytesIO(head + bytes(line) + tail)
    (hit,) = logs.search_log_file(stream, needle).hits
    assert needle in hit.quoted
    shown = [one for one in logs.read_window(stream, around=hit.at).lines if one.at == hit.at]
    assert [needle in one.text for one in shown] == [True]


@given(st.lists(st.text("ab", max_size=8), max_size=40), st.text("ab", min_size=1, max_size=3), st.integers(10, 50))
@examples(300)
def test_every_match_is_counted_once(lines: list[str], needle: str, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "_SEARCH_PIECE_BYTES", chunk)
        found = logs.search_log_file(io.BytesIO("\n".join(lines).encode()), needle)
    assert (found.count, found.exact) == (sum(line.count(needle) for line in lines), True)


def test_a_match_across_pieces_of_a_line_without_an_end_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_SEARCH_PIECE_BYTES", 100)
    data = (b"x" * 97 + b"error") * 50
    assert logs.search_log_file(io.BytesIO(data), "error").count == 50


def test_matches_are_listed_with_their_places_and_more_on_request() -> None:
    data = b"".join(b"%d Error\n" % number for number in range(250)) + b"nothing\n"
    found = logs.search_log_file(io.BytesIO(data), "error", any_case=True)
    assert (found.count, len(found.hits), found.exact) == (250, logs.MAX_HITS, True)
    assert found.hits[1].text == "1 Error"
    assert data[found.hits[1].at :].startswith(b"1 Error")
    assert logs.search_log_file(io.BytesIO(data), "error", any_case=True, skip=200).hits[0].text == "200 Error"
    assert logs.search_log_file(io.BytesIO(data), "error").count == 0


def test_a_search_whose_time_is_over_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_SEARCH_PIECE_BYTES", 100)
    found = logs.search_log_file(io.BytesIO(b"an error\n" * 1000), "error", until=time.monotonic() - 1)
    assert not found.exact
    assert 0 < found.count < 1000


def test_files_go_by_ids_and_links_are_none(tmp_path: Path) -> None:
    path = placed(tmp_path, "one")
    (path / "logs" / "attempt-01").mkdir(parents=True)
    (path / "logs" / "attempt-01" / "rank-00001.gn1.l1.out").write_text("hello\n")
    (path / "logs" / "ranks-00002-00003.gn2.launcher.err").write_text("")
    (path / "logs" / "passwd").symlink_to("/etc/passwd")
    (path / "linked").symlink_to("/etc")
    (path / "secret.env").write_text("TOKEN=1\n")
    found = logs.readable_files(path)
    assert [(one.name, one.ranks, one.node) for one in found] == [
        ("logs/attempt-01/rank-00001.gn1.l1.out", (1, 1), "gn1"),
        ("logs/ranks-00002-00003.gn2.launcher.err", (2, 3), "gn2"),
        ("events.jsonl", None, ""),
    ]
    for name in ("logs/passwd", "secret.env", "../../../etc/passwd", "logs/../secret.env"):
        with pytest.raises(logs.NoFile):
            logs.find_log_file(path, logs.log_file_id(name))


def test_all_files_of_a_run_are_searched_and_counted(tmp_path: Path) -> None:
    path = placed(tmp_path, "one")
    (path / "logs").mkdir()
    for rank in range(5):
        (path / "logs" / f"rank-{rank:05d}.gn1.l{rank}.out").write_text("step NaN\n" * rank + "nan\n")
    (path / "logs" / "rank-00009.gn1.l9.out").symlink_to("/etc/passwd")
    later = time.monotonic() + 60
    found = logs.search_all_files(path, logs.readable_files(path), "NaN", any_case=False, until=later)
    assert (found.count, [count for _, count in found.files], found.exact) == (10, [1, 2, 3, 4], True)
    assert [(file.ranks, line.at) for file, line in found.hits[:3]] == [((1, 1), 0), ((2, 2), 0), ((2, 2), 9)]
    assert logs.search_all_files(path, logs.readable_files(path), "nan", any_case=True, until=later).count == 15
    late = logs.search_all_files(path, logs.readable_files(path), "nan", any_case=True, until=0.0)
    assert (late.count, late.unsearched, late.exact) == (0, 6, False)


# As a server answers.


def on(folder: Path, look: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        async with world_of(folder) as world:
            await look(world)

    asyncio.run(run())


def test_pages_of_a_run(tmp_path: Path) -> None:
    path = placed(tmp_path, "one", result={"verdict": "fail", "causes": ["firewall-drop"]})
    (path / "logs").mkdir()
    (path / "logs" / "rank-00000.gn1.log").write_text("first\nNCCL WARN <b>bold</b>\nlast\n")
    file = logs.log_file_id("logs/rank-00000.gn1.log")

    async def look(world: World) -> None:
        viewer = world.as_page("viewer")
        for query in ("", "?host=gn1", "?since=2026-11-23&page=7", "?page=x"):
            assert (await world.ask("GET", f"/runs{query}", viewer)).status == 200
        assert (await world.ask("GET", "/runs?since=tomorrow", viewer)).status == 422
        assert (await world.ask("GET", "/runs/one", viewer)).status == 200
        for id in ("two", "..", ".", "one%2f..", "x" * 300):
            assert (await world.ask("GET", f"/runs/{id}", viewer)).status == 404
        page = await world.ask("GET", f"/runs/one/logs?file={file}&q=nccl", viewer)
        assert b"<b>1</b> match of" in page.body
        assert b"<b>bold" not in page.body
        page = await world.ask("GET", "/runs/one/logs?in=all&q=NCCL", viewer)
        assert b"<b>1</b> match of" in page.body
        assert b"in 1 of 3 files" in page.body
        told = await world.ask("GET", "/api/v1/runs/one/logs?q=nccl", world.as_program("viewer"))
        assert told.json()["search"]["files"] == [{"id": file, "count": 1}]
        told = await world.ask("GET", "/api/v1/runs/one/logs?q=nccl&rank=1", world.as_program("viewer"))
        assert told.json()["search"]["count"] == 0
        raw = await world.ask("GET", f"/runs/one/logs/{file}/raw", viewer)
        assert raw.body == b"first\nNCCL WARN <b>bold</b>\nlast\n"
        assert (raw.header("content-disposition") or "").startswith("attachment")
        assert (await world.ask("GET", "/runs/one/logs/0000/raw", viewer)).status == 404
        told = await world.ask("GET", f"/api/v1/runs/one/logs/{file}?q=WARN&case=same", world.as_program("viewer"))
        assert told.json()["search"]["count"] == 1
        assert [line["at"] for line in told.json()["lines"]] == [0, 6, 28]
        for query in ("", "?a=one&b=one"):
            assert (await world.ask("GET", f"/compare{query}", viewer)).status == 200
        assert (await world.ask("GET", "/links", viewer)).status == 200
        assert (await world.ask("GET", "/nodes/gn10", viewer)).status == 200
        assert (await world.ask("GET", "/nodes/gn11", viewer)).status == 404

    on(tmp_path, look)


def test_a_file_whose_name_is_not_utf8_is_listed_by_the_api(tmp_path: Path) -> None:
    path = placed(tmp_path, "one", result={"verdict": "pass"})
    (path / "logs").mkdir()
    Path(os.fsdecode(os.fsencode(path / "logs") + b"/caf\xe9.log")).write_text("a needle\n")

    async def look(world: World) -> None:
        told = await world.ask("GET", "/api/v1/runs/one/logs?q=needle", world.as_program("viewer"))
        assert told.status == 200
        found = json.loads(told.body)
        assert ["caf" in one["name"] for one in found["files"]].count(True) == 1
        assert found["search"]["count"] == 1

    on(tmp_path, look)


def test_searches_wait_for_each_other_and_nothing_waits_for_them(tmp_path: Path) -> None:
    path = placed(tmp_path, "one", result={"verdict": "pass"})
    (path / "console.txt").write_text("a needle\n")
    file = logs.log_file_id("console.txt")

    async def look(world: World) -> None:
        viewer = world.as_page("viewer")
        searches = world.app.state.searches
        while not searches.locked():
            await searches.acquire()
        paths = [
            f"/runs/one/logs?file={file}&q=needle",
            "/runs/one/logs?in=all&q=needle",
            "/api/v1/runs/one/logs?q=needle",
        ]
        paths.append(f"/api/v1/runs/one/logs/{file}?q=needle")
        waiting = [asyncio.create_task(world.ask("GET", one, viewer)) for one in paths]
        for one in ("/runs", f"/runs/one/logs?file={file}", "/runs/one/logs"):
            assert (await world.ask("GET", one, viewer)).status == 200
        # What an open page fetches is only the lines that came since.
        assert (await world.ask("GET", paths[0], [*viewer, ("x-live", "1")])).status == 200
        assert not any(one.done() for one in waiting)
        searches.release()
        for task in waiting:
            assert b"needle" in (await task).body

    on(tmp_path, look)


def test_the_bandwidth_of_a_pair_over_time(tmp_path: Path) -> None:
    for number, gbps in enumerate((90.0, 45.0, 88.0)):
        links = [{"from": "gn1", "to": "gn10", "gbps": gbps, "us": 30}, {"from": "gn10", "to": "gn1", "gbps": 91.0}]
        stage = {
            "name": "links",
            "check": "links",
            "verdict": "pass",
            "seconds": 1.0,
            "outcomes": [],
            "metrics": {"links": links},
        }
        placed(tmp_path, f"run-{number}", time=1000.0 + 3600 * number, result={"verdict": "pass", "stages": [stage]})
    placed(
        tmp_path,
        "hostile",
        result={
            "verdict": "pass",
            "stages": [{**stage, "metrics": {"links": [{"from": "<b>", "to": "x", "gbps": -1}, 7]}}],
        },
    )

    async def look(world: World) -> None:
        viewer = world.as_page("viewer")
        every = (await world.ask("GET", "/links", viewer)).body.decode()
        assert "3 pairs of nodes" in every
        assert "<b>" not in every
        one = (await world.ask("GET", "/links?from=gn1&to=gn10", viewer)).body.decode()
        assert one.count("<circle") == 6
        assert "Bandwidth between gn1 and gn10 in 3 runs: 45.0 to 91.0 Gbit/s" in one
        for query in ("?from=%3Cb%3E&to=x", "?from=a&to=b", "?pair=gn10"):
            assert (await world.ask("GET", f"/links{query}", viewer)).status == 200

    on(tmp_path, look)


CUT_OFF = {
    "verdict": "unknown",
    "causes": [SERVER_GONE],
    "seconds": 1.0,
    "stages": [{"name": "reach", "check": "reach", "verdict": "unknown", "seconds": 1.0, "outcomes": []}],
}


def test_a_run_that_is_stopped_before_it_begins_again_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ready = list[str](), threading.Event()

    def child(_: Processes, words: Sequence[str], console: Path, person: str) -> subprocess.Popen[bytes]:
        begun.append(words[0])
        return subprocess.Popen(["true"])

    monkeypatch.setattr(Processes, "_child", child)
    folder = placed(tmp_path, "cut", time=time.time(), result=CUT_OFF)
    about = {"person": "ann", "group": "g", "at": time.time(), "command": ["run", "-i", "g.yml"], "begun": 1}
    (folder / "started.json").write_text(json.dumps(about))
    store = Store(tmp_path / "serve.db")
    runs = Runs(tmp_path / "runs", store)
    processes = Processes(tmp_path, runs, lambda topic: None, lambda nodes: ready.is_set())
    processes.adopt()
    assert processes.lives("cut")
    assert runs.row("cut").verdict == ""
    processes.end("cut", "ann")
    ready.set()
    wait_until("nothing follows the run any more", lambda: not processes.lives("cut"))
    assert begun == ["stop"]
    assert runs.row("cut").verdict == "unknown"
    processes.close()
    store.close()


@pytest.mark.parametrize("now", [False, True])
def test_a_wish_that_an_earlier_process_was_told_of_keeps_no_signal_from_the_present_one(
    now: bool, tmp_path: Path
) -> None:
    folder = placed(tmp_path, "one")
    store = Store(tmp_path / "serve.db")
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            about = {"group": "g", "pid": process.pid, "began": process_start_mark(process.pid)}
            (folder / "started.json").write_text(json.dumps(about))
            (folder / JOB_ENDING_FILE).write_text(json.dumps({"person": "ann", "at": time.time(), "now": False}))
            processes = Processes(tmp_path, Runs(tmp_path / "runs", store), lambda topic: None)
            processes.end("one", "ann", now=now)
            assert process.wait(60) == -signal.SIGTERM
        finally:
            process.kill()
    store.close()


def test_a_signal_is_sent_once(tmp_path: Path) -> None:
    folder = placed(tmp_path, "one")
    store = Store(tmp_path / "serve.db")
    count = "trap 'echo term' TERM; echo ready; while read line; do echo $line; done"
    with subprocess.Popen(["bash", "-c", count], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            about = {"group": "g", "pid": process.pid, "began": process_start_mark(process.pid)}
            (folder / "started.json").write_text(json.dumps(about))
            processes = Processes(tmp_path, Runs(tmp_path / "runs", store), lambda topic: None)
            processes.end("one", "ann")
            assert process.stdout.readline() == "term\n"
            processes.end("one", "ann", now=True)
            process.stdin.write("over\n")
            process.stdin.close()
            assert process.stdout.read() == "over\n"
        finally:
            process.kill()
    store.close()


def test_a_restart_that_could_not_be_asked_for_can_be_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed(tmp_path, "one")
    store, begun = Store(tmp_path / "serve.db"), threading.Event()
    processes = Processes(tmp_path, Runs(tmp_path / "runs", store), lambda topic: None)
    restarts = Restarts(store, processes)

    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(processes, "end", full)
        with pytest.raises(OSError, match="No space"):
            restarts.ask("one", "g", "ann", lambda group, person: begun.set())
    assert not restarts.pending("one")
    restarts.ask("one", "g", "ann", lambda group, person: begun.set())
    assert begun.wait(60)
    wait_until("nothing is pending", lambda: not restarts.pending("one"))
    store.close()


def test_what_begins_while_the_folders_are_read_is_seen_at_the_next_question(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Runs._ids

    def and_then_one_begins(self: Runs) -> list[str]:
        found = listed(self)
        monkeypatch.setattr(Runs, "_ids", listed)
        placed(tmp_path, "new")
        self.forget()
        return found

    monkeypatch.setattr(Runs, "_ids", and_then_one_begins)
    runs.refresh()
    assert "new" in [row.id for row in runs.search(RunFilter(), most=10)[0]]


HERE = """\
name: here
nodes:
  a: {connection: local, address: 127.0.0.1, python: PYTHON, workdir: WORKDIR}
launch:
  command: [sh, -c, "echo began $RANK of $WORLD_SIZE; sleep 600"]
  grace: 2s
"""


@pytest.mark.thorough
def test_a_run_by_hand_that_is_not_ended_here_is_not_marked_as_ending(tmp_path: Path) -> None:
    """Whoever follows it later would take the mark for a person's wish."""
    folder = placed(tmp_path, "hand")

    async def look() -> None:
        async with world_of(tmp_path) as world:
            headers = world.as_page("operator", content_type="application/x-www-form-urlencoded")
            assert (await world.ask("POST", "/runs/hand/stop", headers)).status == 409

    asyncio.run(look())
    assert not (folder / JOB_ENDING_FILE).exists()


def test_a_group_is_started_seen_and_stopped(tmp_path: Path) -> None:
    (tmp_path / "groups").mkdir()
    text = HERE.replace("PYTHON", sys.executable).replace("WORKDIR", str(tmp_path / "work"))
    (tmp_path / "groups" / "here.yml").write_text(text)

    async def look(world: World) -> None:
        workspace = world.app.state.workspace
        form = world.as_page("operator", content_type="application/x-www-form-urlencoded")
        answer = await world.ask("POST", "/groups/here/start", form, body=b"only=launch")
        id = str(answer.header("location")).rpartition("/")[2]
        assert (await world.ask("POST", "/groups/here/start", form)).status == 409
        path = workspace.runs.path(id)
        await until(lambda: any(b"began 0 of 1" in file.read_bytes() for file in path.rglob("rank-00000*.out")))
        deadline, states = time.monotonic() + 180, [""]
        while states != ["running"]:  # the server looks at a run's folder once a second
            assert time.monotonic() < deadline, states
            fleet = await world.ask("GET", "/api/v1/fleet", world.as_program("viewer"))
            states = [cell["state"] for cell in fleet.json()["nodes"][0]["ranks"]]
        assert (await world.ask("POST", "/groups/here/stop", form)).status == 303
        await until(lambda: not workspace.processes.lives(id))
        row = workspace.runs.row(id)
        assert (row.person, row.group, row.verdict) == ("operator", "here", "unknown")
        assert (await world.ask("GET", f"/runs/{id}", form)).status == 200

    on(tmp_path, look)


async def until(holds: Callable[[], bool], seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.2)


def test_a_process_is_known_by_its_start() -> None:
    assert process_start_mark(os.getpid()) != ""
    assert process_start_mark(os.getpid()) == process_start_mark(os.getpid())
    assert process_start_mark(2**22 + 1) == ""


@given(st.floats(allow_nan=True, allow_infinity=True) | st.integers(-(10**30), 10**30))
def test_any_time_has_a_text(at: float) -> None:
    """Nodes told times before they were checked, and a database keeps them."""
    assert moment(at)


@pytest.mark.parametrize("zone", ["America/New_York", "UTC", "Asia/Kolkata"])
def test_a_day_ends_when_the_next_begins(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    """Also on the day of 25 hours, and on that of 23."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        for day in ("2026-11-01", "2026-03-08", "2026-12-31", "2028-02-28"):
            ends = time.localtime(_next_day(time.mktime(time.strptime(day, "%Y-%m-%d"))))
            assert (ends.tm_hour, ends.tm_min) == (0, 0)
            assert time.localtime(time.mktime(ends) - 1).tm_mday == int(day[-2:])
    finally:
        monkeypatch.undo()
        time.tzset()
