from __future__ import annotations

from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.files.problems import render, render_all
from runbook.model.errors import Problem, Span


def test_a_problem_reads_like_a_compilers() -> None:
    problem = Problem(
        "inventory.port-range",
        "port 295000 is above 65535",
        Span("lab.yml", 7, 11, 6),
        "use 29500 plus the job index",
    )
    lines = [""] * 6 + ["    port: 295000"]
    assert render(problem, lines) == dedent("""\
        error[inventory.port-range]: port 295000 is above 65535
         --> lab.yml:7:11
          |
        7 |     port: 295000
          |           ^^^^^^
          = help: use 29500 plus the job index""")


def test_a_problem_without_a_place() -> None:
    assert render(Problem("file.missing", "there is no file x", None, "look\nagain"), []) == dedent("""\
        error[file.missing]: there is no file x
         = help: look
                 again""")


def test_a_place_that_is_not_there_any_more() -> None:
    assert render(Problem("a.b", "gone", Span("x.yml", 9, 1)), ["one line"]) == "error[a.b]: gone\n --> x.yml:9:1"


@pytest.mark.parametrize(
    ("line", "column", "length", "shown", "caret"),
    [
        ("\tkey: bad", 7, 3, "    key: bad", "         ^^^"),
        ("名前: 悪い", 5, 2, "名前: 悪い", "      ^^^^"),
        ("e\u0301: bad", 5, 3, "e\u0301: bad", "   ^^^"),
        ("a: \x1b[31mred", 4, 8, "a: \\x1b[31mred", "   ^^^^^^^^^^^"),
        ("abc", 9, 4, "abc", "   ^"),
        ("abc", 2, 99, "abc", " ^^"),
        ("a \u202e b", 3, 1, "a \\u202e b", "  ^^^^^^"),
    ],
)
def test_the_caret_stands_under_what_it_means(line: str, column: int, length: int, shown: str, caret: str) -> None:
    out = render(Problem("a.b", "m", Span("x", 1, column, length)), [line]).split("\n")
    assert out[3:] == [f"1 | {shown}", f"  | {caret}"]


def test_a_very_long_line_is_shown_around_the_caret() -> None:
    line = "x" * 5000 + "BAD" + "y" * 5000
    out = render(Problem("a.b", "m", Span("x", 1, 5001, 3)), [line]).split("\n")
    start = out[4].index("^")
    assert out[3][start : start + 3] == "BAD"
    assert out[4].count("^") == 3
    assert len(out[3]) < 120
    assert out[3].startswith("1 | …")
    assert out[3].endswith("…")


def test_messages_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in render(Problem("a.b", "\x1b[2J", Span("\x1b.yml", 1, 1)), ["\x1b"])


def test_several_problems_read_each_file_once() -> None:
    asked: list[str] = []

    def lines_of(file: str) -> list[str]:
        asked.append(file)
        return ["a: 1"]

    problems = [Problem("a.b", "one", Span("x", 1, 1)), Problem("a.c", "two", Span("x", 1, 4)), Problem("a.d", "three")]
    assert render_all(problems, lines_of).count("\n\n") == 2
    assert asked == ["x"]


@given(st.text(), st.integers(1, 400), st.integers(1, 400))
def test_any_line_can_be_shown(line: str, column: int, length: int) -> None:
    assert "^" in render(Problem("a.b", "m", Span("x", 1, column, length)), [line])
