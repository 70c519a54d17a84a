"""A line of a shell, taken apart as the shell itself takes it apart."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import examples

from runbook.launch.shell_commands import shell_commands

WORDS = st.lists(st.text("ab1 '\"\\#;&|<>(){}*~\n", max_size=6), min_size=1, max_size=4)
OPERATORS = st.sampled_from([";", "&&", "||", "|"])


@examples(200)
@given(st.lists(WORDS, min_size=1, max_size=4), st.lists(OPERATORS, min_size=3, max_size=3), st.booleans())
def test_quoted_words_come_back_whatever_is_in_them(commands: list[list[str]], between: list[str], tight: bool) -> None:
    commands = [["run", *words] for words in commands]
    room = "" if tight else " "
    line = shlex.join(commands[0])
    for operator, words in zip(between, commands[1:], strict=False):
        line += f"{room}{operator}{room}{shlex.join(words)}"
    found = shell_commands(line + "  # > the end; && done")
    assert [one.words() for one in found] == commands
    assert [one.operator for one in found[1:]] == between[: len(commands) - 1]


@pytest.mark.parametrize(
    "line",
    [
        "say a > out b",
        "say a 2>&1 b; say c",
        "say a &> out",
        "say a >out 2>err </dev/null b && say c",
        "say $(say x; say y) z | cat; say d",
        "say `printf 'q w'` z",
        "( say a; say b )",
        "say a#b # c",
        "say 'a # b' \\# c",
        "say a; # say b",
        "{ say a; say b; }",
        "say \"$(printf 'x;y')\" b",
        "say a 2>/dev/null & wait; say c",
        "say a\\ b",
    ],
)
def test_as_many_commands_are_seen_as_a_shell_runs(line: str, tmp_path: Path) -> None:
    program = "say() { echo called >&3; }\n" + line.replace("$(say x; say y)", "$(printf x)")
    done = subprocess.run(
        ["sh", "-c", f"exec 3>&1\n{program}"], capture_output=True, text=True, timeout=30, check=True, cwd=tmp_path
    )
    seen = [one for one in shell_commands(line) if one.words()[:1] == ["say"] or one.words()[:2] == ["{", "say"]]
    assert len(seen) == done.stdout.count("called")


@pytest.mark.parametrize("line", ["say 'a", 'say "a', "'", '"\\'])
def test_a_quote_that_is_not_closed_gives_nothing(line: str) -> None:
    assert shell_commands(line) == []


@examples(200)
@given(st.text("a '\"\\#;&|<>(){}$`=\n2", max_size=30))
def test_no_line_is_an_error(line: str) -> None:
    for one in shell_commands(line):
        assert one.text.strip()
        one.words()
