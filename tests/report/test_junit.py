from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given

from runbook.model.events import Event, OutcomeReached, StageFinished, StageStarted
from runbook.model.verdict import Outcome, Verdict
from runbook.report.junit import Junit

from .made_up_runs import PAIR, broken_off, firewall, healthy, hostile, unreachable
from .strategies import RUNS, UNHURRIED


def junit(events: list[Event]) -> str:
    reader = Junit()
    for event in events:
        reader(event)
    return reader.text()


def suites(events: list[Event]) -> ElementTree.Element:
    return ElementTree.fromstring(junit(events))


def counts(element: ElementTree.Element) -> tuple[int, ...]:
    return tuple(int(element.get(key, "-1")) for key in ("tests", "failures", "errors", "skipped"))


@UNHURRIED
@given(RUNS)
def test_it_is_xml_whatever_is_said(events: list[Event]) -> None:
    text = junit(events)
    assert text.isascii()
    root = ElementTree.fromstring(text)
    cases = root.findall("testsuite/testcase")
    kinds = ("failure", "error", "skipped")
    assert counts(root) == (len(cases), *(len(root.findall(f"testsuite/testcase/{kind}")) for kind in kinds))


def test_a_suite_a_stage_and_a_case_a_node() -> None:
    root = suites(healthy())
    assert [suite.get("name") for suite in root] == ["reach", "ping", "ibstat", "small AllReduce"]
    assert counts(root) == (8, 0, 0, 2)
    case = root.findall("testsuite/testcase")[2]
    assert case.attrib == {"name": "node-a", "classname": "ping", "time": "1.210"}
    assert case.findtext("system-out") == "node-b answers in 0.04 ms\nwarning: node-b blocks ICMP, its TCP answers"


def test_a_failure_carries_cause_evidence_and_fix() -> None:
    failure = suites(firewall()).find("testsuite/testcase/failure")
    assert failure is not None
    assert failure.get("type") == "firewall-drop"
    assert "tcp dport 29500 drop" in (failure.text or "")
    assert "fix:\n  sudo nft insert rule" in (failure.text or "")


def test_stages_that_were_not_run_are_skipped() -> None:
    skipped = [case.get("message") for case in suites(firewall()).findall("testsuite/testcase/skipped")]
    assert skipped == ["not run: the run stopped at firewall"] * 3


def test_unknown_is_an_error() -> None:
    assert counts(suites(unreachable())[0]) == (2, 0, 1, 0)


def test_a_run_cut_short_is_no_success() -> None:
    assert counts(suites(broken_off()))[1] == 1
    started = healthy()[:2]
    assert counts(suites(started)[0]) == (2, 0, 2, 0)


def test_the_engines_word_counts_without_an_outcome_of_its_own() -> None:
    events: list[Event] = [
        StageStarted(0, "gate", "gate", PAIR[:1]),
        OutcomeReached(1, "gate", Outcome.passed("node-a", "fine")),
        StageFinished(1, "gate", Verdict.FAIL, 1.0),
    ]
    assert counts(suites(events)) == (2, 1, 0, 0)


def test_control_characters_are_gone() -> None:
    text = junit(hostile())
    assert "\x1b" not in text
    assert "red" in text
