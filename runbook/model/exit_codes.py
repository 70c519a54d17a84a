"""Exit codes, with the same meaning for every command."""

from __future__ import annotations

from runbook.model.verdict import Verdict

DONE, FAILED, WRONG, UNKNOWN = 0, 1, 2, 3
"""Done as asked; something failed; files or arguments are wrong; could not tell, as when a node was not reached."""
BUG, INTERRUPTED = 70, 130

OF_VERDICT = {Verdict.PASS: DONE, Verdict.SKIP: DONE, Verdict.FAIL: FAILED, Verdict.UNKNOWN: UNKNOWN}
