"""What a diff of rendered files shows, and what it never does."""

from __future__ import annotations

from pathlib import Path

import pytest

from runbook.cli.render import unified_diff

PATH = Path("out/node-a/launch.env")


def diff(before: bytes | None, after: bytes | None, *, secret: bool = False) -> str:
    return "".join(unified_diff(PATH, before, after, secret))


@pytest.mark.parametrize(
    ("before", "after", "body"),
    [
        (None, b"a\n", ["--- /dev/null", "+++ out/node-a/launch.env", "@@ -0,0 +1 @@", "+a"]),
        (b"a\n", None, ["--- out/node-a/launch.env", "+++ /dev/null", "@@ -1 +0,0 @@", "-a"]),
        (b"\xef\xbb\xbfa\r\nb\r\n", b"\xef\xbb\xbfa\r\nc\r\n", ["@@ -1,2 +1,2 @@", " a", "-b", "+c"]),
        (b"a \n", b"a\n", ["@@ -1 +1 @@", "-a ", "+a"]),
        (b"a\n", b"a\n", []),
        (b"", b"", []),
        (b"\xff\n", b"b\n", ["@@ -1 +1 @@", "-\N{REPLACEMENT CHARACTER}", "+b"]),
    ],
)
def test_lines(before: bytes | None, after: bytes | None, body: list[str]) -> None:
    lines = diff(before, after).splitlines()
    assert lines[-len(body) :] == body if body else not lines


@pytest.mark.parametrize(
    ("before", "after", "body"),
    [
        (None, b"export A='x1'\n", "+export A=***"),
        (b"export A='x1'\n", None, "-export A=***"),
        (b"export A='x1'\n", b"export A='x2'\n", "-export A=***\n+export A=*** (another value)"),
        (b"export A='x1'\n", b"export A='x1'\nexport B='x2'\n", " export A=***\n+export B=***"),
        (None, b'@echo off\r\nset "A=x1"\r\n', '+@echo off\n+set "A=***'),
        (b"x1 alone\n", None, "-***"),
    ],
)
def test_of_a_secret_file_only_names(before: bytes | None, after: bytes | None, body: str) -> None:
    said = diff(before, after, secret=True)
    assert said.endswith(f"@@\n{body}\n")
    assert "x1" not in said
    assert "x2" not in said


def test_the_same_secret_is_no_difference() -> None:
    assert diff(b"export A='x1'\n", b"export A='x1'\n", secret=True) == ""
