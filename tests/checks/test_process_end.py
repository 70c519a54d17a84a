"""How a process ended, as its exit code tells it: of itself, or by a signal that a shell in between may tell."""

from __future__ import annotations

import pytest

from runbook.model.process_end import ProcessEnd


@pytest.mark.parametrize(
    ("code", "text", "cause"),
    [
        (-9, "signal 9, SIGKILL", "rank-killed"),
        (137, "signal 9, SIGKILL", "rank-killed"),
        (-15, "signal 15, SIGTERM", "terminated-from-outside"),
        (130, "signal 2, SIGINT", "terminated-from-outside"),
        (129, "signal 1, SIGHUP", "terminal-closed"),
        (-11, "signal 11, SIGSEGV", "rank-crashed"),
        (134, "signal 6, SIGABRT", "rank-crashed"),
        (-24, "signal 24, SIGXCPU", "rank-killed"),
        (-99, "signal 99", "rank-killed"),
    ],
)
def test_a_signal_has_a_name_and_a_cause(code: int, text: str, cause: str) -> None:
    end = ProcessEnd(code)
    assert (end.signal_text, end.cause, end.raised) == (text, cause, False)


@pytest.mark.parametrize(
    ("code", "raised"), [(None, False), (0, False), (1, True), (128, True), (160, True), (255, True)]
)
def test_an_exit_code_is_no_signal(code: int | None, raised: bool) -> None:
    end = ProcessEnd(code)
    assert (end.signal, end.cause, end.raised, end.from_outside) == (None, "program-error", raised, False)


def test_only_a_crash_is_the_process_own_doing() -> None:
    assert [code for code in (-9, -15, -2, -3, -11, -6, -1) if ProcessEnd(code).from_outside] == [-9, -15, -2, -3]
