"""Did a training become slower for good? Told from the rates and the times a step that its own lines give."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

MIN_LINES = 10  # lines with the same measure, without the first, in which a program warms up: fewer show no course
MIN_LINES_BEFORE, MIN_LINES_AFTER = 4, 6
MIN_SLOWDOWN = 1.4
"""How many times as long a step takes. Loaders, checkpoints and throttled clocks move it by a fifth now and then."""
MIN_GAP = 1.15  # how many times the slowest line before must be exceeded by nearly all lines after
MAX_SPREAD = 1.4
"""How many times the median nearly all lines of one pace may reach: what grows from line to line is the time since the
start."""
MAX_JUMPS = 20  # the most places at which a fall is looked for: the largest jumps
MAX_LABEL_LETTERS = 60

_NUMBER = rb"(\d{1,12}(?:,\d{3}){0,4}(?:\.\d{1,12})?)"
_MEASURES = re.compile(
    # rates: a number before its unit, or behind its name
    _NUMBER + rb" ?(?:it|tok(?:en)?s?|samples?|seqs?|words?|images?|img|imgs|examples|steps?|batch(?:es)?)/s(?:ec)?\b"
    rb"|\b(?:wps|tps|tgs|(?:tokens|samples|images|steps|words)(?:/|_per_)s\w*(?:/\w+)?|throughput)\W{1,4}"
    + _NUMBER
    + rb"|"
    # times: of a step
    + _NUMBER
    + rb" ?(?:s/it|ms/it|ms/step|s/step|sec/batch|sec/step)\b"
    rb"|\b(?:elapsed time per iteration \(ms\)|(?:step|iter(?:ation)?|batch)[_ ]time(?:_ms|_s)?"
    rb"|time[_/ ]per[_ ](?:step|iter\w*)|seconds)\W{1,4}" + _NUMBER
)
_SIZE_OF_A_STEP = re.compile(rb"\b(?:batch|seq(?:uence)?|image|img|micro)[_ -]?(?:size|len(?:gth)?)\W{1,4}\d{1,9}")
_LETTERS = re.compile(rb"[a-z]+")


@dataclass(frozen=True, slots=True)
class PaceFall:
    """From the line `number` of a log on, a step took `times` as long as before."""

    number: int
    times: float


def lasting_pace_fall(lines: Iterable[tuple[int, bytes]]) -> PaceFall | None:
    """The slowdown that lasts to the last of these lines of progress, (number, bytes), or None. Lines are compared that
    give the same measure of steps of one size in the same words: not bars of validation with those of training."""
    series: dict[bytes, list[tuple[int, float]]] = defaultdict(list)
    for number, raw in lines:
        low = raw.lower()
        for found in _MEASURES.finditer(low):
            rate = found[1] or found[2]
            digits = (rate or found[3] or found[4]).replace(b",", b"")
            value = float(digits)
            # One that is rounded to a single digit, such as 0.02 it/s, jumps by a half.
            if len(digits.replace(b".", b"").lstrip(b"0")) > 1:
                words = b" ".join(_LETTERS.findall(low[: found.start()]))[-MAX_LABEL_LETTERS:]
                label = b" ".join([words, *_LETTERS.findall(found[0]), *_SIZE_OF_A_STEP.findall(low)])
                series[label].append((number, 1 / value if rate else value))
    found_all = [slow for steps in series.values() if len(steps) > MIN_LINES and (slow := _fall(steps[1:]))]
    return max(found_all, key=lambda slow: slow.times, default=None)


def _fall(steps: list[tuple[int, float]]) -> PaceFall | None:
    """The fall that cuts the steps in two: nearly all after it are slower than nearly all before it. It is sudden: a
    drift may have a hundred reasons."""
    costs = [cost for _, cost in steps]
    places = range(MIN_LINES_BEFORE, len(costs) - MIN_LINES_AFTER + 1)
    jumps = sorted(places, key=lambda at: costs[at - 1] / costs[at])[:MAX_JUMPS]
    for at in jumps:
        before, after = costs[:at], costs[at:]
        times = median(after) / median(before)
        # Without those in which it saved, or evaluated.
        high_before, high_after = (sorted(some)[-1 - max(1, len(some) // 8)] for some in (before, after))
        low_after = sorted(after)[len(after) // 10]
        even = high_before <= MAX_SPREAD * median(before) and high_after <= MAX_SPREAD * median(after)
        lasts = min(low_after, *after[-MIN_LINES_AFTER // 2 :]) >= MIN_GAP * high_before
        sudden = costs[at] >= MIN_GAP * costs[at - 1]
        if times >= MIN_SLOWDOWN and sudden and lasts and even:
            return PaceFall(steps[at][0], times)
    return None
