"""Any event that the types allow."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from runbook.model.events import (
    Event,
    NodesDropped,
    OutcomeReached,
    Progress,
    RunFinished,
    RunStarted,
    StageFinished,
    StageStarted,
)
from runbook.model.verdict import Finding, Outcome, Verdict

# These tests ask what is true, not how fast a busy machine is.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

TEXT = st.text(st.characters(codec=None, categories=None), max_size=20) | st.sampled_from(
    ["node-a", "\x1b[31mred\x1b[0m", "😀", "]]>", "&<\"'", "\x00\x0b\ufffe", "a\r\nb", "\u2028"]
)
SAID = TEXT.filter(bool)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
SECONDS = st.floats(0, 4e9)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
DATA = st.dictionaries(TEXT, JSON, max_size=3)
STAGES = st.sampled_from(["reach", "ping", "small AllReduce"]) | TEXT
FINDINGS = st.builds(Finding, SAID, SAID, SAID, TEXTS, TEXTS)
GOOD = st.sampled_from([Verdict.PASS, Verdict.SKIP])
BAD = st.sampled_from([Verdict.FAIL, Verdict.UNKNOWN])
OUTCOMES = st.builds(Outcome, TEXT, GOOD, SAID, st.lists(FINDINGS, max_size=2).map(tuple), DATA, TEXTS) | st.builds(
    Outcome, TEXT, BAD, st.none() | TEXT, st.lists(FINDINGS, min_size=1, max_size=2).map(tuple), DATA, TEXTS
)
VERDICTS = st.sampled_from(Verdict)

RUN_STARTED = st.builds(
    RunStarted, SECONDS, TEXT, TEXT, TEXT, TEXT, TEXTS, st.lists(STAGES, max_size=4).map(tuple), TEXT, DATA
)
RUN_FINISHED = st.builds(
    RunFinished,
    SECONDS,
    VERDICTS,
    st.integers(0, 255),
    st.none() | STAGES,
    SECONDS,
    TEXTS,
    TEXT,
    *[st.none() | TEXT, TEXTS, TEXTS, TEXTS, st.none() | TEXT],
)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    RUN_STARTED,
    st.builds(StageStarted, SECONDS, STAGES, TEXT, TEXTS),
    st.builds(Progress, SECONDS, STAGES, TEXT, st.none() | TEXT, st.none() | st.integers(0, 4096), DATA),
    st.builds(OutcomeReached, SECONDS, STAGES, OUTCOMES),
    st.builds(StageFinished, SECONDS, STAGES, VERDICTS, SECONDS),
    st.builds(NodesDropped, SECONDS, STAGES, st.dictionaries(TEXT, TEXT, max_size=3), TEXTS, TEXTS),
    RUN_FINISHED,
)
RUNS = st.lists(EVENTS, max_size=12)
