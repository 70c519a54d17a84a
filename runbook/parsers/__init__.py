"""Outputs of tools: of those that a check runs, that people paste, or that `runbook collect` gathers. Pure.

A parser a tool; `table.TABLE` holds every form that is known.
"""
