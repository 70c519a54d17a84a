"""Writes JUnit XML for a CI's test page: a suite a stage, a case a node. It is valid XML whatever a node wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timezone
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from runbook.model.events import Event
from runbook.model.safe_text import ESCAPE_SEQUENCE, visible_text
from runbook.model.verdict import Finding, Outcome, Verdict
from runbook.report.run_record import Record, StageRecord

INVALID_XML_CHARACTER = re.compile(
    "[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
)  # XML 1.0, production 2: Char
TEXT_WITHOUT_TABS = re.compile(r"[^\t\n]+")
XML_DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>\n'
VERDICT_TAGS = {Verdict.FAIL: "failure", Verdict.UNKNOWN: "error"}


class Junit:
    """A reader of events; `text()` may be called at any time, and an unfinished run is not a success."""

    def __init__(self) -> None:
        self._record = Record()

    def __call__(self, event: Event) -> None:
        self._record(event)

    def text(self) -> str:
        """The document, in ASCII, so that any stream can carry it."""
        run = self._record
        name = run.started.playbook if run.started else "runbook"
        suites = [_stage_suite(stage, run) for stage in run.stages] + [
            _not_run_suite(stage, run) for stage in run.not_run
        ]
        root = Element("testsuites", _xml_attributes(name=name, time=run.seconds, **_summed_counts(suites)))
        root.extend(suites)
        indent(root)
        body: bytes = tostring(root, encoding="us-ascii", xml_declaration=False)
        return f"{XML_DECLARATION}{body.decode()}\n"


def _stage_suite(stage: StageRecord, run: Record) -> Element:
    cases = [*_stage_cases(stage, run)]
    seconds = stage.finished.seconds if stage.finished else max(0.0, run.last_time - stage.started.time)
    began = datetime.fromtimestamp(stage.started.time, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    return _suite_of_cases(cases, name=stage.name, timestamp=began, time=seconds)


def _stage_cases(stage: StageRecord, run: Record) -> Iterator[Element]:
    for reached in stage.reached:
        yield _outcome_case(stage, reached.outcome, max(0.0, reached.time - stage.started.time))
    for node in stage.silent:
        case = Element("testcase", _xml_attributes(name=node, classname=stage.name, time=0.0))
        SubElement(case, "error", _xml_attributes(message="the node gave no outcome", type="no-outcome"))
        yield case
    answered = {reached.outcome.verdict for reached in stage.reached} | ({Verdict.UNKNOWN} if stage.silent else set())
    if stage.verdict.stops and stage.verdict not in answered:  # the engine's verdict counts
        case = Element("testcase", _xml_attributes(name=f"the stage {stage.name}", classname=stage.name, time=0.0))
        message = f"the stage ended {stage.verdict}" if stage.finished else f"the run ended during {stage.name}"
        if run.finished and run.finished.cleaned:
            message += f"; cleaned up: {run.finished.cleaned}"
        SubElement(case, VERDICT_TAGS[stage.verdict], _xml_attributes(message=message, type=str(stage.verdict)))
        yield case


def _outcome_case(stage: StageRecord, outcome: Outcome, seconds: float) -> Element:
    case = Element("testcase", _xml_attributes(name=outcome.node, classname=stage.name, time=seconds))
    if tag := VERDICT_TAGS.get(outcome.verdict):
        first, *_ = outcome.findings
        SubElement(
            case, tag, _xml_attributes(message=f"{first.cause}: {first.says}", type=first.cause)
        ).text = _xml_text("\n\n".join(_finding_text(finding) for finding in outcome.findings))
    elif outcome.verdict is Verdict.SKIP:
        SubElement(case, "skipped", _xml_attributes(message=outcome.proof or ""))
    said = [outcome.proof or "", *(f"warning: {warning}" for warning in outcome.warnings)]
    if any(said):
        SubElement(case, "system-out").text = _xml_text("\n".join(line for line in said if line))
    return case


def _finding_text(finding: Finding) -> str:
    peers = [f"peers: {', '.join(finding.peers)}"] if finding.peers else []
    evidence = ["evidence:", *(f"  {line}" for line in finding.evidence)] if finding.evidence else []
    return "\n".join([f"{finding.cause}: {finding.says}", *peers, *evidence, "fix:", f"  {finding.remedy}"])


def _not_run_suite(name: str, run: Record) -> Element:
    case = Element("testcase", _xml_attributes(name=f"the stage {name}", classname=name, time=0.0))
    stopped = f": the run stopped at {run.stopped_at}" if run.stopped_at else ""
    SubElement(case, "skipped", _xml_attributes(message=f"not run{stopped}"))
    return _suite_of_cases([case], name=name, time=0.0)


def _suite_of_cases(cases: list[Element], **attributes: str | float) -> Element:
    counts: dict[str, str | float] = {
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": str(sum(case.find("error") is not None for case in cases)),
        "skipped": str(sum(case.find("skipped") is not None for case in cases)),
    }
    suite = Element("testsuite", _xml_attributes(**attributes, **counts))
    suite.extend(cases)
    return suite


def _summed_counts(suites: list[Element]) -> dict[str, str | float]:
    keys = ("tests", "failures", "errors", "skipped")
    return {key: str(sum(int(suite.get(key, "0")) for suite in suites)) for key in keys}


def _xml_attributes(**values: str | float) -> dict[str, str]:
    return {key: _xml_text(value) if isinstance(value, str) else f"{value:.3f}" for key, value in values.items()}


def _xml_text(text: str) -> str:
    """The text as XML can carry it. Escape sequences are removed, as on the page; other characters that would act or
    hide something are shown escaped."""
    text = ESCAPE_SEQUENCE.sub("", text).replace("\r\n", "\n")
    return INVALID_XML_CHARACTER.sub("\ufffd", TEXT_WITHOUT_TABS.sub(lambda found: visible_text(found[0]), text))
