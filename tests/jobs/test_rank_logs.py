"""Ranks' logs as they arrive: byte for byte in the files, line by line for people."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from profiles import one_in

from runbook.jobs.attempt import ProcessSpec
from runbook.jobs.known_jobs import Cluster
from runbook.jobs.logs import MAX_LOG_LINE_BYTES, RankLogs, job_secrets
from runbook.model.errors import Unreachable
from runbook.model.redact import Redactor
from runbook.model.secrets import Secret

from .made_up_attempts import PAIR

LOST = Unreachable("ssh-unreachable", "no answer for 6 s", "look at it")
NAME = "rank-00003.node-b.l1.out"
PLACE = ProcessSpec("rank-00003.node-b.l1", "node-b", 1, (3,))


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def logs(tmp_path: Path, told: list[str]) -> RankLogs:
    return RankLogs(tmp_path, "attempt-01", Redactor(()), lambda place, stream, lines: told.extend(lines))


@pytest.mark.parametrize("size", one_in(2, [7, 1, 1 << 20, 1 << 15]))
def test_what_was_written_is_kept_byte_for_byte(logs: RankLogs, size: int) -> None:
    data = b"one\r\n" + b"x" * (3 * MAX_LOG_LINE_BYTES) + b"\n\xff\xfe\x00\n\n" + b"no end"
    for begin in range(0, len(data), size) if size > 1 else range(20):
        logs.take(PLACE, NAME, data[begin : begin + size], begin)
    logs.close()
    assert (logs.folder / NAME).read_bytes() == (data if size > 1 else data[:20])


def test_bytes_that_came_twice_count_once(logs: RankLogs, told: list[str]) -> None:
    """A slow answer and the one to the question that was asked again."""
    logs.take(PLACE, NAME, b"first\nsec", 0)
    logs.take(PLACE, NAME, b"first\nsecond\n", 0)
    logs.take(PLACE, NAME, b"first\n", 0)
    logs.take(PLACE, NAME, b"third\n", 13)
    assert (logs.folder / NAME).read_bytes() == b"first\nsecond\nthird\n"
    assert told == ["first", "second", "third"]


def test_what_a_bar_shows_is_heard_before_its_line_ends(logs: RankLogs, told: list[str]) -> None:
    """tqdm draws over what it drew before, and ends no line until it is done."""
    bars: list[str] = []
    logs.drawn = lambda place, bar: bars.append(bar)
    written = b""
    for part in (
        b"\r  0%|",
        b" | 0/9 [00:00<?]",
        b"\r 11%|#| 1/9 [00:01<00:08]  ",
        b"\rstep 7",
        b"\rstep 8",
        b" done\n",
        b"x",
    ):
        logs.take(PLACE, NAME, part, len(written))
        written += part
    assert bars == ["  0%| | 0/9 [00:00<?]", " 11%|#| 1/9 [00:01<00:08]  ", " 11%|#| 1/9 [00:01<00:08]  ", "step 7"]
    assert told == [(written.removesuffix(b"\nx")).decode()]
    logs.close()
    assert (logs.folder / NAME).read_bytes() == written


def test_secrets_of_a_node_that_was_silent_at_first_are_masked_from_then_on(logs: RankLogs, told: list[str]) -> None:
    logs.take(PLACE, NAME, b"begin\n", 0)
    logs.learn(
        {"node-b": Redactor([Secret("hunter2-token", "TOKEN")]).joined_with(Redactor([Secret("of-the-file", "")]))}
    )
    logs.take(PLACE, NAME, b"with hunter2-token and of-the-file\n", 6)
    assert told == ["begin", "with *** and ***"]


def test_what_the_launch_gives_as_plain_text_is_masked_wherever_logs_are_fetched() -> None:
    """Nodes have no file of secrets with it, and a node may give none at all."""
    answers = {"node-a": b"export TOKEN='hunter2-token'\n", "node-b": LOST}
    site = SimpleNamespace(sessions=answers, each=lambda *_, **__: answers)
    job = cast(Any, SimpleNamespace(folders=dict.fromkeys(answers, "/work/job-1"), attempt="attempt-01"))
    cluster = cast(Cluster, SimpleNamespace(inventory=PAIR, site=site))
    found = job_secrets(cluster, job, Redactor([Secret("of-the-file", "")]))
    assert found.of_nodes["node-a"].text("hunter2-token, of-the-file") == "***, ***"
    assert found.everywhere.text("hunter2-token, of-the-file") == "hunter2-token, ***"
