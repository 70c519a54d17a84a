"""The right first cause for nearly all labelled logs, where they are at hand."""

from __future__ import annotations

import pytest

from .corpus import corpus, score

LOGS = corpus()


@pytest.mark.skipif(not LOGS, reason="no corpus of labelled logs here (RUNBOOK_CORPUS)")
def test_the_corpus() -> None:
    developed = score([log for log in LOGS if not log.kept_aside])
    assert developed.share >= 0.95, developed.wrong
    assert developed.sure_on_healthy == 0
