"""A JAX program that raised and does not end: at its exit it meets its peers, who never come, for five minutes.

A traceback alone is no end of a program: it may print one and go on. So nobody is taken for lost before the grace of the job has
passed in which that rank wrote nothing after the exception, and no rank wrote anything on its stdout.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence

BEGINS = "Traceback (most recent call last):"
EXCEPTION = re.compile(r"[A-Za-z_][\w.]{0,200}(?::|$)")
NOISE = re.compile(
    r"\s|$|-{20}|[IWEF]\d{4} |For simplicity, JAX has removed|The above exception|During handling of the above"
)
"""What stands in and around a traceback, and what JAX's own runtime logs while it waits."""

MESSAGE_S = 1.0
"""So long after its first line the message of an exception may have more."""


class Raised:
    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._open: set[str] = set()
        self._said: dict[str, tuple[str, float]] = {}  # by the name of the process: the exception, and when it came
        self._stdout = 0.0  # when any process wrote there

    def heard(self, name: str, stream: str, lines: Sequence[str]) -> None:
        """Whole lines of the process of this name."""
        now = time.monotonic()
        with self._lock:
            if stream == "out":
                self._stdout = now
                self._said.pop(name, None)
                return
            for line in lines:
                self._line(name, line, now)

    def _line(self, name: str, line: str, now: float) -> None:
        if line.startswith(BEGINS):
            self._open.add(name)
            self._said.pop(name, None)
        elif NOISE.match(line):
            return
        elif name in self._open and EXCEPTION.match(line):
            self._open.discard(name)
            self._said[name] = (line, now)
        elif name in self._said and now - self._said[name][1] > MESSAGE_S:
            del self._said[name]  # it goes on

    def who(self) -> tuple[str, str] | None:
        """The process that has been silent for the grace since it raised, the first of several, and its exception."""
        now = time.monotonic()
        with self._lock:
            lost = [(at, name, says) for name, (says, at) in self._said.items() if now - at > self._grace_s]
            at, name, says = min(lost, default=(0.0, "", ""))
            return (name, says) if name and self._stdout <= at + MESSAGE_S else None
