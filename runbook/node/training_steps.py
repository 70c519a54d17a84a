"""How far has a training come? Finds the number of a step in the lines that it prints, or in the file that
RUNBOOK_PROGRESS names."""

import re
from typing import Optional, Pattern

from runbook.node.proc import digits_as_integer

USUAL_STEP_PATTERN = re.compile(
    r"""(?xi)
    (?: \b (?: (?: global | current | train | training )_ )? (?: step | iter(?:ation)? | batch | update ) \b
      | (?<! [a-z-] ) (?<! [a-z][ _] ) (?: (?:global[_ ])? step | iter(?:ation)? | update )s \b   # no `max steps`
      | \b num_updates \b )
        ["']? [ \t]{0,4} [:=\#\[(]? [ \t]{0,4} ["']? ( \d{1,3} (?:,\d{3}){1,4} (?![\d,]) | \d{1,15} )
        (?! [.,]?\d | [a-z%] | [ ] (?:ms|s|sec|seconds|%) (?!\w) )   # no `step 0.5 s`
    | (?<![\d.]) (\d{1,15}) / \d{1,15} [ \t] (?: \[ (?: \d{1,3}:\d\d | [=>.] ) | \d{1,3}:\d\d:\d\d [ ] • | ━ )   # bars
    | (?<![\d.]) (\d{1,15}) it [ ] \[ \d{1,3}:\d\d   # a bar without an end
    | (?<! epoch ) (?<! epoch[ :] ) (?<! epoch:[ ] )   # what follows counts its steps
        \[ [ ]{0,8} (\d{1,15}) / \d{1,15} (?: [ ] \( [ ]{0,3} \d{1,3} % \) )? \] (?= .{0,100} \b(?:loss|eta|lr|time)\b )
    | \b epoch [ ] \d{1,6} : [ ]{1,8} (\d{1,15}) [ ] / [ ] \d{1,15} [ ] (?=\w)
    """
)
"""The ways in which trainers print the number of a step: words, and the bars of tqdm, rich and Keras."""

STEP_HINTS = ("/", "step", "iter", "batch", "update", "it [")
"""Every line that USUAL_STEP_PATTERN matches contains one of these: most lines need not be searched."""

PREPARATION_BAR = re.compile(
    r"(?i)\b(?:load|download|fetch|map|filter|tokeniz|extract|resolv|convert|compil|captur|prepar|unpack)"
    r"[a-z]{0,4}\b[^|\r\n]{0,80}:[^|\r\n]{0,40}\|"
)
"""The progress bar of work that comes before the first step, such as a download."""

COLOUR_ESCAPE = re.compile(r"\x1b\[[\d;]{0,20}m")  # an escape sequence of a terminal

UNSTARTED_BAR = re.compile(r"(?<![\d.])0/\d{1,15} (?:\[[\d:]{1,12}<\?|[\d:]{1,12} • -:--)")
"""A bar of tqdm or rich as it is first drawn, before any step: it shows no estimate yet."""

EPOCH_FIELD = re.compile(r"""["']epoch["']: ["']?(\d{1,6}\.\d{1,20})["'},]""")
"""The line with losses of Hugging Face's trainer without a progress bar: it has no step, only the epochs so far."""

MAX_SEARCHED_CHARACTERS = 1000
"""The most characters of a line that are searched."""


def step_in_line(line: str, pattern: Pattern[str] = USUAL_STEP_PATTERN) -> Optional[int]:
    """The number of the step that a line shows, or None. If a bar was drawn in the line several times, the last state
    counts."""
    shown = line.rstrip("\r").rpartition("\r")[2][:MAX_SEARCHED_CHARACTERS]
    if pattern is USUAL_STEP_PATTERN:
        lower = shown.lower()
        if not any(hint in lower for hint in STEP_HINTS):
            return None
    shown = COLOUR_ESCAPE.sub("", shown) if "\x1b" in shown else shown
    match = pattern.search(shown)
    if match is None or (pattern is USUAL_STEP_PATTERN and PREPARATION_BAR.search(shown)):
        return None
    return digits_as_integer(next((group for group in match.groups() if group), "").replace(",", ""))


def epoch_in_line(line: str) -> Optional[float]:
    """How many epochs have passed, if a line shows only that; else None."""
    match = EPOCH_FIELD.search(line[:MAX_SEARCHED_CHARACTERS])
    return float(match.group(1)) if match else None
