"""Parsers for outputs of tools: run by a check, pasted by people, or gathered by `runbook collect`. Pure. One parser
for each tool: text to facts, and beside it the judge that live checks and `diagnose` share. `diagnose/tool_outputs.py`
holds every form that is known."""
