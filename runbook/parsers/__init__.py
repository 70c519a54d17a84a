"""Parsers for outputs of tools that a check ran, people pasted, or `runbook collect` gathered. Pure. Each turns text
into facts, and judges them for live checks and `diagnose` alike. A reader is a function from a text to a `Reading`; it
gives None if the text is no output of its tool. `diagnose/tools.toml` lists every tool with its reader."""
