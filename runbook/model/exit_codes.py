"""Exit codes: what they say is the same for every command."""

from __future__ import annotations

from runbook.model.verdict import Verdict

DONE, FAILED, WRONG, UNKNOWN = 0, 1, 2, 3
"""As asked; something failed; files or arguments are wrong; nobody could tell, such as where a node was not reached."""
BUG, INTERRUPTED = 70, 130

OF_VERDICT = {Verdict.PASS: DONE, Verdict.SKIP: DONE, Verdict.FAIL: FAILED, Verdict.UNKNOWN: UNKNOWN}
