"""Outputs of tools: of those that a check runs, that people paste, or that `runbook collect` gathers. Pure.

A parser a tool: text to facts, and beside it the judge that live checks and `diagnose` share.
`diagnose/tool_outputs.py` holds every form that is known.
"""
