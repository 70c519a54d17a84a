from __future__ import annotations

import io
import json
import threading
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given

from runbook.model.errors import FilesWrong
from runbook.model.events import Event, OutcomeReached, Progress
from runbook.model.secrets import Secret
from runbook.model.verdict import Outcome
from runbook.report.run_json import Jsonl, event_from_json, event_to_json, read

from .made_up_runs import STORIES, firewall
from .strategies import EVENTS, UNHURRIED


@UNHURRIED
@given(EVENTS)
def test_an_event_survives_the_trip(event: Event) -> None:
    line = event_to_json(event)
    assert line.isascii()
    assert "\n" not in line
    assert event_from_json(line) == event


def test_the_name_stands_first() -> None:
    names = [line.split('"')[3] for line in map(event_to_json, firewall())]
    assert all(event_to_json(event).startswith('{"event": "') for event in firewall())
    assert names[:2] == ["run-started", "stage-started"]
    assert names[-1] == "run-finished"


def test_every_event_has_a_name() -> None:
    seen = {type(event) for story in STORIES.values() for event in story()}
    assert seen == set(get_args(Event))


def test_values_that_json_lacks_become_what_it_has() -> None:
    data = {"nan": float("nan"), "secret": Secret("hunter2", "env"), "pair": (1, 2), "set": {2, 1}, 3: "key"}
    told = json.loads(event_to_json(Progress(0, "s", "t", data=data)))  # type: ignore[arg-type]
    assert told["data"] == {"nan": None, "secret": "***", "pair": [1, 2], "set": [1, 2], "3": "key"}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "7",
        "{",
        "{}",
        '{"event": "tea-break"}',
        '{"event": "progress"}',
        '{"event": "stage-finished", "time": "0", "stage": "s", "verdict": "pass", "seconds": 1}',
        '{"event": "stage-finished", "time": 0, "stage": "s", "verdict": "fine", "seconds": 1}',
        '{"event": "stage-started", "time": 0, "stage": "s", "check": "c", "nodes": "node-a"}',
        event_to_json(firewall()[2]).replace('"proof": "Python', '"evidence": "Python'),  # a pass without a proof
    ],
)
def test_what_is_no_event_is_refused(line: str) -> None:
    with pytest.raises(ValueError):
        event_from_json(line)


def test_unknown_keys_are_for_the_future() -> None:
    event = firewall()[0]
    assert event_from_json(json.dumps(json.loads(event_to_json(event)) | {"mood": "good"})) == event


@pytest.mark.parametrize("story", STORIES)
def test_a_run_is_told_again(story: str, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with path.open("w", encoding="ascii") as file:
        reader = Jsonl(file)
        for event in STORIES[story]():
            reader(event)
    heard: list[Event] = []
    heard += read(path)
    assert heard == STORIES[story]()


def test_a_line_cut_off_by_a_kill_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    whole = "".join(event_to_json(event) + "\n" for event in firewall())
    path.write_text(whole + event_to_json(firewall()[0])[:40])
    assert list(read(path)) == firewall()


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(event_to_json(firewall()[0]) + "\nbroken\n" + event_to_json(firewall()[1]) + "\n")
    with pytest.raises(FilesWrong) as caught:
        list(read(path))
    assert caught.value.problems[0].id == "events.malformed"
    assert str(caught.value.problems[0].span).endswith("events.jsonl:2:1")


def test_lines_of_many_threads_stay_whole() -> None:
    stream = io.StringIO()
    reader = Jsonl(stream)
    event = firewall()[3]

    def write() -> None:
        for _ in range(50):
            reader(event)

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event_from_json(line) for line in stream.getvalue().splitlines()] == [event] * 400


def test_metrics_travel() -> None:
    event = OutcomeReached(1.5, "s", Outcome.passed("n", "p", metrics={"busbw": 0.0235, "sizes": [1, 2], "deep": {}}))
    assert event_from_json(event_to_json(event)) == event
