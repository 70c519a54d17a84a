"""What a node prints cannot keep the search for the user's own pattern, `expect: {stdout: …}`, from ending."""

from __future__ import annotations

import re

import pytest

from runbook.checks.shell import PatternSearch, Shell
from runbook.model.playbook import Expect
from runbook.model.verdict import Verdict
from runbook.transport.remote_program import Answer

LONG = 1 << 20
BAD = [
    (r"(a+)+$", "a" * 60 + "!"),
    (r"^(\w+\s?)*$", "word " * 40 + "!"),
    (r"(a|a)*b", "a" * LONG),
    (r"\d+x", "0" * LONG),  # quadratic, and looks at no signal
    (r".*.*=", "a" * LONG),
    (r"\s+$", " " * LONG + "!"),
    (r"(?:a|b|ab)*c", "ab" * LONG),
]
GOOD = ["^ready$", r"loss: \d+\.\d+", "a{2,3}", "(?i)OK", "^$", r"\bnode-[ab]\b", "x.*y", "é+", "\ud800*b"]
TEXTS = ["", "ready\n", "not\nready\n", "loss: 0.25", "aaa", "it is ok", "on node-b", "x\ny", "xzy", "éé", "b\ud800"]


@pytest.mark.parametrize(("pattern", "text"), BAD)
def test_a_search_that_does_not_end_is_ended_and_the_next_is_heard(pattern: str, text: str) -> None:
    with PatternSearch(pattern, seconds=0.3) as search:
        assert search(text) is None
        assert search("") is (re.search(pattern, "", re.MULTILINE) is not None)


@pytest.mark.parametrize("pattern", GOOD)
def test_it_finds_what_a_search_here_finds(pattern: str) -> None:
    with PatternSearch(pattern) as search:
        assert [search(text) for text in TEXTS] == [bool(re.search(pattern, text, re.MULTILINE)) for text in TEXTS]


def test_a_node_whose_text_cannot_be_searched_is_unknown_and_alone() -> None:
    check = Shell(command="./state", expect=Expect(stdout=r"^(\w+ ?)+$"))
    with PatternSearch(r"^(\w+ ?)+$", seconds=0.3) as search:
        answers = [Answer(0, None, said, "", False, 0.1) for said in ("ok" * 60 + "!", "ok ok\n")]
        outcomes = [check._judge("node-a", answer, search) for answer in answers]
    assert [outcome.verdict for outcome in outcomes] == [Verdict.UNKNOWN, Verdict.PASS]
    [finding] = outcomes[0].findings
    assert finding.cause == "insufficient-evidence"
    assert "could not be searched" in finding.says


@pytest.mark.parametrize(
    ("pattern", "left_out", "verdict"),
    [
        (r"\A(?!(?s:.*)ERROR)", 0, Verdict.PASS),
        (r"\A(?!(?s:.*)ERROR)", 9, Verdict.UNKNOWN),
        (r"(?<!not )ready", 9, Verdict.UNKNOWN),
        ("ready", 9, Verdict.PASS),
        ("never", 9, Verdict.UNKNOWN),
        ("never", 0, Verdict.FAIL),
    ],
)
def test_what_was_not_kept_is_not_taken_for_free_of_errors(pattern: str, left_out: int, verdict: Verdict) -> None:
    check = Shell(command="./state", expect=Expect(stdout=pattern))
    with PatternSearch(pattern) as search:
        outcome = check._judge("node-a", Answer(0, None, "ready\n", "", False, 0.1, left_out), search)
    assert outcome.verdict is verdict


def test_a_command_that_takes_too_long_is_told_with_what_it_printed() -> None:
    """Its time is the playbook's own: nothing is said of the node."""
    with PatternSearch("") as search:
        answers = [Answer(-9, None, said, "", True, 3.0) for said in ("waiting for data\n", "")]
        outcomes = [Shell(command="./wait")._judge("node-a", answer, search) for answer in answers]
    found = [outcome.findings[0] for outcome in outcomes]
    assert [outcome.verdict for outcome in outcomes] == [Verdict.UNKNOWN] * 2
    assert {(one.cause, one.says) for one in found} == {
        ("insufficient-evidence", "`./wait` on node-a did not end in the time of the stage")
    }
    assert [one.evidence for one in found] == [("waiting for data",), ("it printed nothing",)]
    assert "`timeout:`" in found[0].remedy


def test_nothing_is_left_running() -> None:
    with PatternSearch("a+") as search:
        assert search("a")
        process = search._process
    assert process is not None
    assert process.poll() is not None
