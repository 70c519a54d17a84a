"""Pictures out of characters."""

from __future__ import annotations

import pytest

from runbook.model.safe_text import ascii_text
from runbook.report.measurements import bandwidth_line, links_map, sparkline

from .varied import links_of


def test_a_sparkline_rises_with_the_logarithm() -> None:
    assert sparkline([1, 10, 100, 1000, 10000, 100000, 1e6, 1e7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5, 5]) == "██"
    assert sparkline([0, 10, float("nan"), 1]) == " █ ▁"
    assert sparkline([]) == sparkline([0]) == ""


def test_a_sweep_is_a_line_and_two_sizes_are_none() -> None:
    rows = [{"size": 1024 << number, "busbw": 0.1 * 3**number} for number in range(4)]
    assert bandwidth_line(rows) == "busbw by size ▁▃▆█ 1 KiB … 8 KiB"
    assert bandwidth_line(rows[:2]) == ""
    assert bandwidth_line([{"size": True}, {"busbw": "x", "size": 1}, *rows[:2]]) == ""


def test_who_sends_slowly_has_a_dark_row() -> None:
    nodes = ["node-a", "node-b", "node-c"]
    head, *rows = links_map(links_of(nodes, "node-b", partners=2))
    assert head.startswith("links, rows send to columns: ░░ usual")
    assert rows == ["node-a    ░░░░", "node-b  ██  ██", "node-c  ░░░░"]
    assert ascii_text(rows[1]) == "node-b  ##  ##"


def test_a_link_that_was_not_measured_is_a_dot() -> None:
    _, *rows = links_map(links_of(["a", "b", "c"], "z", partners=1))
    assert rows == ["a    ░░··", "b  ··  ░░", "c  ░░··"]


@pytest.mark.parametrize("count", [65, 256])
def test_many_nodes_share_rows_and_the_slow_one_still_shows(count: int) -> None:
    nodes = [f"gn{number:03d}" for number in range(count)]
    head, *rows = links_map(links_of(nodes, "gn033", partners=12))
    assert "the slowest of each group" in head
    assert len(rows) <= 24
    assert [row[:16].strip() for row in rows if "█" in row] == [next(row[:16].strip() for row in rows if "█" in row)]


def test_one_node_or_no_link_is_no_map() -> None:
    assert list(links_map([])) == []
    assert list(links_map(links_of(["a"], "b", partners=0))) == []
