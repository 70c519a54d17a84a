"""How far a training came: the number of a step in what it prints, or writes into the file that RUNBOOK_PROGRESS
names."""

import re
from typing import Optional, Pattern

USUAL = re.compile(
    r"""(?xi)
    \b(?: global[_ -]?step | step | iter(?:ation)? | batch | update )s? \b
        ["']? [ \t]{0,4} [:=\#\[(]? [ \t]{0,4} (\d{1,15})
    | (?<![\d.]) (\d{1,15}) / \d{1,15} [ \t] \[ \d{1,3}:\d\d   # tqdm
    """
)
"""The ways in which trainers print the number of a step."""

LOOKED_AT = 1000
"""Characters of a line that are searched."""


def step_in(line: str, pattern: Pattern[str] = USUAL) -> Optional[int]:
    """The number of the step that a line tells, or None."""
    match = pattern.search(line[:LOOKED_AT])
    return number(next((group for group in match.groups() if group), "")) if match else None


def number(text: str) -> Optional[int]:
    """A step as it is written, or None."""
    return int(text) if text.isdecimal() and len(text) < 16 else None
